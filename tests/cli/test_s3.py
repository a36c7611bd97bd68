"""Graphs, ranks and checkpoints behind a server of the S3 protocol, which refuses some of its requests."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

import oocpr
from oocpr.cli import main
from oocpr.sources.rmat import Rmat
from oocpr.store.remote import local_file

pytestmark = pytest.mark.long

BUSY = (
    b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
)


class Server:
    """Behind it, buckets in memory; of all requests, a share is refused as those of a busy server are."""

    def __init__(self) -> None:
        self._application = DomainDispatcherApplication(create_backend_app)
        self._random, self._lock = random.Random(5), threading.Lock()
        self.share, self.asked, self.refused = 0.0, 0, 0
        self._server = make_server("127.0.0.1", 0, self, threaded=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        with self._lock:
            self.asked += 1
            refused = self._random.random() < self.share
            self.refused += refused
        if refused:
            start("503 Slow Down", [("Content-Type", "application/xml")])
            return [BUSY]
        return self._application(environ, start)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


# One for all: file systems are kept, each with the server that it knows.
@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    found = Server()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (
            ("AWS_ENDPOINT_URL", found.url),
            ("AWS_ACCESS_KEY_ID", "somebody"),
            ("AWS_SECRET_ACCESS_KEY", "something"),
            ("AWS_DEFAULT_REGION", "us-east-1"),
        ):
            patch.setenv(name, value)
        yield found
    found.close()


@pytest.fixture
def system(server: Server) -> Any:
    import s3fs

    found = s3fs.S3FileSystem()
    found.invalidate_cache()
    if found.exists("web"):
        found.rm("web", recursive=True)
    found.mkdir("web")
    return found


@pytest.mark.parametrize(
    "how",
    [
        pytest.param([], id="alone"),
        pytest.param(["--workers", "2", "--stripes", "2"], id="workers", marks=pytest.mark.slow),
    ],
)
def test_ranks_come_from_and_go_to_a_server_that_refuses_requests(
    server: Server, system: Any, tmp_path: Path, how: list[str]
) -> None:
    graph = tmp_path / "g.zarr"
    oocpr.import_graph(Rmat(14), graph)
    usual = ["--method", "mixed", "--tol", "1e-11"]
    stripes = how[2:]
    assert main(["rank", str(graph), "-o", str(tmp_path / "here.parquet"), *usual, *stripes]) == 0
    system.put(str(graph), "web/g.zarr", recursive=True)
    server.share = 0.05
    kept = ["--checkpoint", "s3://web/kept", "--resume"]
    command = ["rank", "s3://web/g.zarr", "-o", "s3://web/ranks.parquet", *usual, *kept, *how]
    # Stopped by its passes, and gone on with.
    assert main([*command, "--max-passes", "3"]) == 3
    assert system.exists("web/kept/checkpoint.json")
    assert main(command) == 0
    server.share = 0.0
    system.invalidate_cache()
    assert not system.find("web/kept")
    assert sorted(Path(name).name for name in system.ls("web")) == ["g.zarr", "ranks.parquet"]
    system.get("web/ranks.parquet", str(tmp_path / "there.parquet"))
    here, there = (oocpr.read_ranks(tmp_path / f"{name}.parquet") for name in ("here", "there"))
    assert np.array_equal(here.to_numpy(), there.to_numpy())
    assert server.refused > 3


def test_a_place_that_takes_no_file_is_refused_before_any_work(
    system: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for url, code in (("s3://nobody/ranks.csv", 2), ("gone://web/ranks.csv", 2), ("s3://web/ranks.zarr", 2)):
        assert main(["rank", "data/debian-bookworm-deps.txt.gz", "-o", url]) == code
        assert "remedy: " in capsys.readouterr().err


def test_what_is_not_written_whole_is_not_sent(system: Any) -> None:
    with pytest.raises(UnicodeEncodeError), local_file("s3://web/ranks.csv") as file:
        file.write_text("node,rank\n\ud800")
    assert not system.ls("web")
    with local_file("s3://web/ranks.csv") as file:
        file.write_text("node,rank\n")
    assert system.cat("web/ranks.csv") == b"node,rank\n"
