"""Compiled kernels on disk, so that a process need not load a compiler to find out that it needs none.

CuPy keeps what it compiles as well, but under a name in which the compiler has a part.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from oocpr.errors import OocprError
from oocpr.store.atomic import remove, replacing


def cache_folder() -> Path | None:
    """Folder of compiled kernels: in OOCPR_CACHE_DIR, else in the user's cache; None for a user without."""
    given = os.environ.get("OOCPR_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - raises nothing
    folder = Path(given) if given else Path(base, "oocpr")
    return folder / "kernels" if folder.is_absolute() or given else None


def cached_binary(compiled_from: str, compile_it: Callable[[], bytes]) -> Path | None:
    """File with what `compile_it` makes of all that the text names; None if it cannot be written.

    A file's name has the checksums of the text and of what is in it, so a damaged one is made anew.
    """
    folder = cache_folder()
    if folder is None:
        return None
    key = _checksum(compiled_from.encode())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for found in folder.glob(f"{key}-*.cubin"):
            if found.stem == f"{key}-{_checksum(found.read_bytes())}":
                return found
            remove(found)
        if not os.access(folder, os.W_OK):
            return None
        binary = compile_it()
        path = folder / f"{key}-{_checksum(binary)}.cubin"
        with replacing(path) as temporary:
            temporary.write_bytes(binary)
    except (OSError, OocprError):
        return None
    return path


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
