"""What workers keep of a run in their own folders, each of its stripes and of a neighbour's.

So a run goes on without a place that all workers reach: when a worker is lost, another one has what it kept.
The folders are those that Dask gives to workers, and go with them.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oocpr.engine.executors.dask_client import RANK_AGAIN
from oocpr.errors import LostError
from oocpr.store.checkpoint import stripe_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

_HANDLER = "oocpr_copy"
_PIECE = 2**24
"""Bytes that are sent at a time."""


class WorkerCopies:
    """The copies that a worker has of stripes of a run, which others may fetch.

    `name` tells the run from others, as long as it goes on.
    """

    def __init__(self, worker: Any, name: str) -> None:
        self._worker, self._name = worker, name
        self.path = _folder(worker, name)
        worker.handlers[_HANDLER] = self.serve

    async def fetch(self, number: int, stripe: int, holders: Sequence[str]) -> None:
        """Have the copy of a stripe after a pass, from one of its holders if it is not there.

        Raises LostError if none of them answers.
        """
        place = stripe_folder(number, stripe)
        if self._worker.address in holders:
            return
        for holder in holders:
            shutil.rmtree(self.path / place, ignore_errors=True)
            try:
                await self._fetch_from(self._worker.rpc(holder), place)
            except OSError:
                # Also what a connection to a worker that is gone ends with.
                continue
            return
        raise LostError(f"no worker that is left has stripe {stripe} after pass {number}.", RANK_AGAIN)

    async def _fetch_from(self, rpc: Any, place: str) -> None:
        ask = getattr(rpc, _HANDLER)
        for file, nbytes in await ask(name=self._name, place=place, file=None, begin=0):
            target = self.path / place / file
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as out:
                for begin in range(0, nbytes, _PIECE):
                    out.write(await ask(name=self._name, place=place, file=file, begin=begin))

    async def serve(self, name: str, place: str, file: str | None, begin: int) -> Any:
        """Say which files a copy has, each with its size, or what is in a piece of one."""
        folder = _folder(self._worker, name) / place
        if file is None:
            found = (path for path in folder.rglob("*") if path.is_file())
            return [(str(path.relative_to(folder)), path.stat().st_size) for path in found]
        with (folder / file).open("rb") as stored:
            stored.seek(begin)
            return stored.read(_PIECE)


def _folder(worker: Any, name: str) -> Path:
    return Path(worker.local_directory) / f"oocpr-run-{name}"


def remove_copies(name: str, dask_worker: Any) -> None:
    """Remove what a worker has of a run that has ended."""
    shutil.rmtree(_folder(dask_worker, name), ignore_errors=True)
