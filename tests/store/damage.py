"""Damage to files of stores."""

from __future__ import annotations

from pathlib import Path


def flip_bits(file: Path, at: int | None = None, bits: int = 1) -> None:
    """Change these bits of one byte of a file, the middle one unless `at` says which."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2 if at is None else at] ^= bits
    file.write_bytes(data)
