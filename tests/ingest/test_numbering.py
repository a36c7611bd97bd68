"""What the process that leads an import by workers decides about parts that are read again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oocpr.errors import LostError
from oocpr.ingest.cluster import Numbering
from oocpr.ingest.numbering import SortedPart
from oocpr.ingest.shuffle import Buckets, ReadPart

NONE = Buckets(np.empty(0, np.uint64), np.empty(0, np.int64))


class Idle:
    """Workers of which only one is there."""

    def living(self) -> list[str]:
        return ["other"]


@pytest.mark.parametrize("again", [7, 8])
def test_records_that_come_otherwise_are_not_taken_for_those_that_were_lost(again: int) -> None:
    words = np.arange(5, dtype=np.uint64)
    read = {0: ("other", ReadPart(9, -1, NONE, [], [], named=True, words=words))}
    checksums = iter([7, again])
    stages: list[str] = []

    def carry_out(done: dict[int, Any], calls: Any, stage: str, sizes: Any, unit: str) -> bool:
        stages.append(unit)
        if unit == "edges" and 0 not in done:
            done[0] = "other", SortedPart(np.ones(4, np.int64), next(checksums))
        # The nodes are never found: a worker is lost meanwhile.
        return unit == "edges"

    numbering = Numbering(Idle(), carry_out)  # type: ignore[arg-type]
    how = (read, np.empty(0, np.uint32), 1 << 20, 1, "a graph")
    assert not numbering.run(*how)
    numbering.done[0].clear()
    if again == 7:
        assert not numbering.run(*how)
        assert stages == ["edges", "names"] * 2
    else:
        with pytest.raises(LostError, match="came otherwise"):
            numbering.run(*how)
