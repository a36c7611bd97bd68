"""What stands in for `oocpr.ingest.resume.session.Kept` where an import need not be resumed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from oocpr.ingest.resume.tiles import Taken
from oocpr.ingest.spill.files import SpillDir
from oocpr.store.graph import GraphWriter

if TYPE_CHECKING:
    import os

    from oocpr.ingest.order.permutation import Order
    from oocpr.ingest.read import EdgeSpiller, SpilledEdges
    from oocpr.ingest.sort.rows import EdgeCounter
    from oocpr.ingest.sort.weights import OutWeights
    from oocpr.ingest.spill.partition import Partitioner
    from oocpr.sources.block import Source


class NothingKept:
    """An import whose temporary files go with its process.

    Parameters
    ----------
    path
        The store to make.
    tmp
        Folder for temporary files; None for that of the store.
    overwrite
        Whether a store that stands at `path` is replaced.
    """

    def __init__(self, path: Path, tmp: str | os.PathLike[str] | None, *, overwrite: bool) -> None:
        self._path = path
        self._overwrite = overwrite
        self._folder = path.absolute().parent if tmp is None else Path(tmp)

    @property
    def whole(self) -> bool:
        """Whether the store has its name already."""
        return False

    def writer(self) -> GraphWriter:
        """Begin the store."""
        return GraphWriter(self._path, overwrite=self._overwrite)

    def workspace(self) -> SpillDir:
        """Begin the temporary files."""
        return SpillDir(self._folder)

    def begin(self, source: Source, reader: EdgeSpiller) -> bool:  # noqa: ARG002
        """Nothing was read before."""
        return True

    def took(self, reader: EdgeSpiller, mark: dict[str, Any] | None) -> None:
        """Forget a block."""

    def read(self, source: Source, reader: EdgeSpiller) -> None:
        """Forget that the source is at its end."""

    def numbered(self, spilled: SpilledEdges) -> None:
        """Forget that keys have numbers of nodes."""

    def spilled(self, source: Source) -> SpilledEdges | None:  # noqa: ARG002
        """Nothing was read before."""
        return None

    def ordered(self) -> Order | None:
        """Nothing was ordered before."""
        return None

    def dealt(self, spilled: SpilledEdges, order: Order, dealer: Partitioner) -> None:
        """Forget that edges lie in buckets, in the order of the rows."""

    def take_tiles(
        self,
        writer: GraphWriter,  # noqa: ARG002
        tally: EdgeCounter,  # noqa: ARG002
        out_weights: OutWeights | None,  # noqa: ARG002
    ) -> Taken:
        """Nothing was written before."""
        return Taken()
