"""Web servers on this machine."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any


class Files(http.server.SimpleHTTPRequestHandler):
    """Serves files; what is asked for is not logged."""

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(handler: Callable[..., Any]) -> Iterator[str]:
    """Run a web server; gives its address."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def serving_files(folder: Path, handler: type[Files] = Files) -> AbstractContextManager[str]:
    """Serve the files of a folder."""
    return serving(functools.partial(handler, directory=str(folder)))
