"""What all tests share: options, Hypothesis profiles and the real graphs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# The first call of a compiled function takes seconds, so no profile has a deadline.
settings.register_profile("laptop", deadline=None, max_examples=25)
settings.register_profile("ci", deadline=None, max_examples=60, derandomize=True, print_blob=True)
settings.register_profile(
    "nightly", deadline=None, max_examples=2000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "laptop"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-long", action="store_true", help="run the tests marked long as well")
    parser.addoption("--run-slow", action="store_true", help="run the tests marked slow or long as well")
    parser.addoption("--run-device", action="store_true", help="run the tests marked device as well")
    parser.addoption(
        "--variants",
        choices=("some", "others", "all"),
        default="some",
        help="of a test with more than three sets of parameters run three (some), the others, or all",
    )


def pytest_configure(config: pytest.Config) -> None:
    if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:
        # Teams of threads take it that the processors are theirs. Those of several processes of tests share
        # them, so whoever waits long keeps from its work whom it waits for.
        from oocpr.engine.cpu import threads

        threads._MANY_SPINS = threads._FEW_SPINS


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for marker in ("slow", "long", "device"):
        option = f"--run-{marker}"
        if not (config.getoption(option) or (marker == "long" and config.getoption("--run-slow"))):
            skip = pytest.mark.skip(reason=f"runs with {option}")
            for item in items:
                if marker in item.keywords:
                    item.add_marker(skip)
    chosen = config.getoption("--variants")
    if chosen != "all":
        some = _some_variants(items)
        left = [item for item in items if (item in some) != (chosen == "some")]
        config.hook.pytest_deselected(items=left)
        gone = set(left)
        items[:] = [item for item in items if item not in gone]


def _some_variants(items: list[pytest.Item]) -> set[pytest.Item]:
    """All tests, but of those with more than three sets of parameters the first, the middle and the last."""
    variants: dict[str, list[pytest.Item]] = {}
    for item in items:
        variants.setdefault(item.nodeid.partition("[")[0], []).append(item)
    some = set()
    for group in variants.values():
        runs = [item for item in group if not list(item.iter_markers("skip"))] or group
        some |= {runs[0], runs[len(runs) // 2], runs[-1]} if len(runs) > 3 else set(group)
    return some


@pytest.fixture(scope="session")
def graphs() -> Path:
    """Folder of the shared real graphs."""
    folder = os.environ.get("OOCPR_GRAPHS")
    if not folder:
        pytest.skip("OOCPR_GRAPHS does not name the folder of the real graphs")
    path = Path(folder)
    assert path.is_dir(), f"OOCPR_GRAPHS names {folder}, which is no folder"
    return path


@pytest.fixture(scope="session")
def data() -> Path:
    """Folder of the graphs that come with the repository."""
    return Path(__file__).parents[1] / "data"
