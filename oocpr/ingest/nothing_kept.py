"""What stands in for `oocpr.ingest.resume.Kept` where an import need not be resumed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from oocpr.ingest.rest import Taken
from oocpr.ingest.scratch import Workspace
from oocpr.store.graph import GraphWriter

if TYPE_CHECKING:
    import os

    from oocpr.ingest.deal import Dealer
    from oocpr.ingest.merge import Tally
    from oocpr.ingest.order import Order
    from oocpr.ingest.reader import Reader
    from oocpr.ingest.spill import Spilled
    from oocpr.ingest.weigh import OutWeights
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

    def workspace(self) -> Workspace:
        """Begin the temporary files."""
        return Workspace(self._folder)

    def begin(self, source: Source, reader: Reader) -> bool:  # noqa: ARG002
        """Nothing was read before."""
        return True

    def took(self, reader: Reader, mark: dict[str, Any] | None) -> None:
        """Forget a block."""

    def read(self, source: Source, reader: Reader) -> None:
        """Forget that the source is at its end."""

    def numbered(self, spilled: Spilled) -> None:
        """Forget that keys have numbers of nodes."""

    def spilled(self, source: Source) -> Spilled | None:  # noqa: ARG002
        """Nothing was read before."""
        return None

    def ordered(self) -> Order | None:
        """Nothing was ordered before."""
        return None

    def dealt(self, spilled: Spilled, order: Order, dealer: Dealer) -> None:
        """Forget that edges lie in buckets, in the order of the rows."""

    def take_tiles(
        self,
        writer: GraphWriter,  # noqa: ARG002
        tally: Tally,  # noqa: ARG002
        out_weights: OutWeights | None,  # noqa: ARG002
    ) -> Taken:
        """Nothing was written before."""
        return Taken()
