"""Where a store is to stand: may it, and what did another leave there."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from oocpr.store.atomic import refuse_existing, remove, replaced_name
from oocpr.store.format import ATTRIBUTES_KEY

if TYPE_CHECKING:
    from pathlib import Path


def root_checksum(path: Path) -> int | None:
    """Checksum the root's metadata of a store in a folder; None where there are none."""
    metadata = path / "zarr.json"
    return zlib.crc32(metadata.read_bytes()) if metadata.is_file() else None


def check_place(path: Path, *, overwrite: bool) -> None:
    """Raise UsageError where `GraphWriter` would."""
    refuse_existing(path, overwrite=overwrite, marker=ATTRIBUTES_KEY)


def remove_replaced(path: Path) -> None:
    """Remove the store in whose place another got the name, if the writer of that, which kept it, did not."""
    remove(replaced_name(path, kept=True))
