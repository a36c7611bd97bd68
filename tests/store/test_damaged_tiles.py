"""Whatever bytes a tile has, decoding stays inside the buffers: shown with memory that kills when touched."""

from __future__ import annotations

import collections
import ctypes
import mmap
import re
import subprocess
import sys

import numpy as np
import pytest

from oocpr.errors import DamagedError
from oocpr.store.codec.bitpacking import decode_offsets, encode_offsets
from oocpr.store.codec.layout import FAULTS, parse_tile
from oocpr.store.codec.tiles import decode_columns, decode_tile, encode_tile, expand_segments


def fenced(dtype: str, size: int, *, at_end: bool) -> np.ndarray:
    """An array right before or right behind a page of memory that nobody may touch."""
    page = mmap.PAGESIZE
    nbytes = size * np.dtype(dtype).itemsize
    inside = max(1, -(-nbytes // page)) * page
    memory = mmap.mmap(-1, inside + 2 * page)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for fence in (base, base + page + inside):
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(fence), page, 0) == 0
    return np.frombuffer(memory, dtype, size, page + (inside - nbytes if at_end else 0))


def valid_tile(rng: np.random.Generator) -> np.ndarray:
    degree = int(rng.choice([1, 5, 60, 4000]))
    rows = [np.unique(rng.integers(0, 10**6, rng.integers(0, 2 * degree))) for _ in range(4000 // degree)]
    if rng.random() < 0.3:
        rows += [np.unique(rng.integers(0, 2**32, 1500))]
    columns = np.concatenate(rows).astype(np.uint32)
    return np.frombuffer(encode_tile(columns, np.array([r.size for r in rows])), np.uint8)


def spoil(tile: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Change a few bytes or words, mostly where they steer the decoder, or cut or stretch the tile."""
    tile = tile.copy()
    for _ in range(rng.integers(1, 4)):
        sections = parse_sections(tile)
        lo, hi = sections[rng.integers(len(sections))]
        if hi > lo:
            at = int(rng.integers(lo, hi))
            if rng.random() < 0.5:
                tile[at] ^= 1 << rng.integers(8)
            else:
                word = tile[at & ~3 :][:4]
                old = int.from_bytes(word.tobytes(), "little")
                new = rng.choice([0, old + 1, old - 1, 2 * old, 2**32 - 1, rng.integers(2**32)])
                word[:] = np.frombuffer((int(new) % 2**32).to_bytes(4, "little"), np.uint8)[: word.size]
    if rng.random() < 0.1:
        return tile[: rng.integers(tile.size)]
    if rng.random() < 0.05:
        return np.concatenate([tile, np.zeros(rng.integers(1, 9), np.uint8)])
    return tile


def parse_sections(tile: np.ndarray) -> list[tuple[int, int]]:
    """Begin and end of the sections, found as the reference reader finds them; those of the header first."""
    header = tile[:64].view("<u4").astype(np.int64)
    verbatim = bool(header[1] & 1 << 9)
    sizes = [header[2], header[3]] if verbatim else [header[2], header[4], header[3]]
    counts = [(size, *header[5 + 3 * k : 8 + 3 * k]) for k, size in enumerate(sizes)]
    lengths = [16, *(32 * c[1] for c in counts)]
    lengths += [4 * (-(-c[0] // 1024) + 1) for c in counts]
    lengths += [-(-header[3] // 1024) + 1, *(c[2] for c in counts)]
    ends = np.cumsum([4 * n for n in lengths] + [2 * c[3] for c in counts] + [-(-c[0] // 32) for c in counts])
    return [(int(a), int(b)) for a, b in zip([0, *ends], ends, strict=False) if b <= tile.size]


def decode_fenced(tile: np.ndarray, *, at_end: bool) -> str:
    buf = fenced("u1", tile.size, at_end=at_end)
    buf[:] = tile
    try:
        parsed = parse_tile(buf)
        # Memory of what a header promises is the caller's, who knows how much belongs there.
        assert max(parsed.edges, parsed.segments) <= 40 * tile.size
        positions, segments = (fenced("u4", parsed.nonempty + 1, at_end=at_end) for _ in range(2))
        starts = fenced("u4", max(1, parsed.nonempty), at_end=at_end)
        columns = fenced("u4", max(1, parsed.edges), at_end=at_end)
        expand_segments(parsed, positions, starts, segments)
        decode_columns(parsed, positions, starts, columns)
    except DamagedError as error:
        return re.sub(r"(0x)?[0-9a-f]*[0-9]+", "#", str(error))
    return "decoded"


def fuzz(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    outcomes: collections.Counter[str] = collections.Counter()
    for trial in range(count):
        outcomes[decode_fenced(spoil(valid_tile(rng), rng), at_end=bool(trial % 2))] += 1
    sys.stdout.write(f"{outcomes}\n")
    assert outcomes["decoded"] > count // 50
    assert len(outcomes) > 4


def run_fuzz(seed: int, count: int) -> None:
    done = subprocess.run(
        [sys.executable, __file__, str(seed), str(count)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"seed {seed}: exit {done.returncode}\n{done.stdout}{done.stderr}"


@pytest.mark.long
def test_no_damage_leads_outside_the_buffers():
    run_fuzz(1, 400)


@pytest.mark.slow
def test_no_damage_leads_outside_the_buffers_in_many_trials():
    run_fuzz(2, 20_000)


def test_the_fence_kills():
    code = f"import runpy; m = runpy.run_path({__file__!r}); m['fenced']('u1', 10, at_end=True)"
    overrun = code + ".ctypes; import ctypes; a = m['fenced']('u1', 10, at_end=True); "
    overrun += "ctypes.string_at(a.ctypes.data, 11)"
    done = subprocess.run([sys.executable, "-c", overrun], capture_output=True, check=False)
    assert done.returncode < 0


def tampered(section: str, field: str, index: tuple[int, ...] | int, value: int) -> np.ndarray:
    """A valid tile with one number of one section changed."""
    rng = np.random.default_rng(9)
    gaps = np.where(rng.random(3000) < 0.02, rng.integers(100, 300, 3000), rng.integers(0, 8, 3000))
    gaps[:1024] *= 2**9
    gaps[[100, 2500]] = 2**20, 2**23
    columns = np.cumsum(gaps + 1).astype(np.uint32)
    tile = np.frombuffer(encode_tile(columns, np.array([1000, 0, 2000])), np.uint8).copy()
    view = getattr(getattr(parse_tile(tile), section), field)
    offset = view.ctypes.data - tile.ctypes.data
    np.frombuffer(tile, view.dtype, view.size, offset).reshape(view.shape)[index] = value
    return tile


@pytest.mark.parametrize(
    ("fault", "field", "index", "value"),
    [
        (1, "widths", 40, 33),
        (2, "widths", 40, 32),
        (2, "directory", (1, 0), 0),
        (2, "directory", (3, 0), 0),
        (4, "directory", (0, 1), 1),
        (4, "directory", (3, 1), 5),
        (4, "directory", (1, 2), 2**32 - 1),
        (5, "narrow", -1, 1 << 10 | 1023),
        (5, "wide", -1, 1 << 10 | 1023),
        (6, "wide", 0, 2**32 - 1),
    ],
)
def test_each_contradiction_of_a_stream_is_named(fault, field, index, value):
    with pytest.raises(DamagedError, match=FAULTS[fault]):
        parse_tile(tampered("gaps", field, index, value))


@pytest.mark.parametrize(
    ("section", "field", "index", "value", "message"),
    [
        ("lengths", "wide", 0, 999 << 10, "lengths contradict"),
        ("lengths", "directory", (1, 3), 7, "lengths contradict"),
        ("starts", "directory", (1, 3), 7, "lengths contradict"),
        ("gaps", "directory", (2, 3), 7, "columns contradict"),
        ("gaps", "directory", (3, 3), 7, "columns contradict"),
    ],
)
def test_numbers_that_only_decoding_shows_to_be_wrong_are_found(section, field, index, value, message):
    with pytest.raises(DamagedError, match=message):
        decode_tile(tampered(section, field, index, value))


def test_offsets_cut_anywhere_are_damaged():
    coded = np.frombuffer(encode_offsets(np.arange(3000) ** 2), np.uint8)
    for size in range(0, coded.size, 97):
        with pytest.raises(DamagedError):
            decode_offsets(coded[:size])


if __name__ == "__main__":
    fuzz(int(sys.argv[1]), int(sys.argv[2]))
