"""The compiled tokenizer against a few lines of plain Python."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.errors import InputError
from oocpr.sources.block import MAX_NODES
from oocpr.sources.lines import EdgeLines, LineReader


class Trickle:
    """A stream that hands out a few bytes at a time."""

    title = "edges.txt"
    begins, lines_before = True, 0

    def __init__(self, text: bytes, step: int) -> None:
        self._stream = io.BytesIO(text)
        self._step = step

    def readinto(self, view: memoryview) -> int:
        return self._stream.readinto(view[: self._step])


def read(
    text: bytes, *, block_bytes: int = 64, step: int = 64, max_edges: int = 5, form: EdgeLines | None = None
):
    lines = LineReader(Trickle(text, step), block_bytes)
    blocks = list(lines.edges(max_edges, form or EdgeLines()))
    assert all(block.src.dtype == block.dst.dtype == np.uint32 for block in blocks)
    assert all(len(block.src) == max_edges for block in blocks[:-1])
    return [
        edge for block in blocks for edge in zip(block.src.tolist(), block.dst.tolist(), strict=True)
    ], lines


def plain_parse(text: bytes) -> list[tuple[int, int]] | int:
    """The edges, or the number of the first line that cannot be read."""
    edges = []
    for number, line in enumerate(text.split(b"\n"), start=1):
        words = re.split(rb"[ \t\r]+", re.sub(rb"(?:^|(?<=[ \t\r]))[#%].*", b"", line).strip(b" \t\r"))
        if words == [b""]:
            continue
        if len(words) != 2 or not all(re.fullmatch(rb"[0-9]+", w) and int(w) < MAX_NODES for w in words):
            return number
        edges.append((int(words[0]), int(words[1])))
    return edges


blanks = st.text(" \t", min_size=1, max_size=4)
maybe_blanks = st.text(" \t\r", max_size=3)
ids = st.one_of(
    st.integers(0, 20), st.integers(0, MAX_NODES - 1), st.sampled_from([MAX_NODES - 1, MAX_NODES - 2])
)
written_ids = st.builds(lambda zeros, node: "0" * zeros + str(node), st.sampled_from([0, 0, 0, 1, 30]), ids)
comments = st.builds(lambda mark, text: mark + text, st.sampled_from("#%"), st.text("ab 1#%\t", max_size=30))
edge_lines = st.builds(
    lambda *parts: "".join(parts),
    maybe_blanks,
    written_ids,
    blanks,
    written_ids,
    st.one_of(maybe_blanks, st.builds(lambda blank, text: blank + text, blanks, comments)),
)
line_ends = st.sampled_from(["\n", "\n", "\r\n"])
good_lines = st.one_of(
    edge_lines, edge_lines, maybe_blanks, st.builds(lambda blank, text: blank + text, maybe_blanks, comments)
)
bad_lines = st.one_of(
    st.sampled_from(
        ["1", "1 ", "a b", "1 b", "a 2", "-1 2", "1 -2", "1 2 3", "1 2 x", "1.5 2", "1 2.5", "1,2", "1 2,",
         "+1 2", f"{MAX_NODES} 0", f"0 {MAX_NODES}", "18446744073709551616 0", "0 99999999999999999999999999",
         "1 # 2", "1\x002", "é 1", "1 2\x0b"]
    ),
    st.text("0123456789 \t-+.#%ax", min_size=1, max_size=12),
)  # fmt: skip


def whole_text(lines: list[tuple[str, str]], last_newline: bool) -> bytes:
    text = "".join(line + end for line, end in lines)
    return (text if last_newline else text.removesuffix("\n").removesuffix("\r")).encode()


@given(
    st.lists(st.tuples(good_lines, line_ends), max_size=30),
    st.booleans(),
    st.integers(1, 80),
    st.integers(1, 80),
    st.integers(1, 7),
)
def test_good_text_gives_the_edges_python_finds(lines, last_newline, block_bytes, step, max_edges):
    text = whole_text(lines, last_newline)
    edges, reader = read(text, block_bytes=block_bytes, step=step, max_edges=max_edges)
    assert edges == plain_parse(text)
    assert reader.entries == len(edges)
    assert reader.line == 1 + text.count(b"\n") + (not text.endswith(b"\n") and text != b"")


@given(
    st.lists(st.tuples(st.one_of(good_lines, good_lines, bad_lines), line_ends), min_size=1, max_size=20),
    st.booleans(),
    st.integers(1, 40),
    st.integers(1, 40),
)
def test_any_text_fails_at_the_line_where_python_fails(lines, last_newline, block_bytes, step):
    text = whole_text(lines, last_newline)
    expected = plain_parse(text)
    if isinstance(expected, list):
        assert read(text, block_bytes=block_bytes, step=step)[0] == expected
    else:
        with pytest.raises(InputError, match=rf"edges\.txt, line {expected}: "):
            read(text, block_bytes=block_bytes, step=step)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (b"12", "one column"),
        (b"12 # comment", "one column"),
        (b"12 b", "not a whole number"),
        (b"a 12", "not a whole number"),
        (b"1.5 2", "not a whole number"),
        (b"-1 2", "negative"),
        (b"1 -2", "negative"),
        (b"2024-01-02 5", "not a whole number"),
        (b"4294967295 1", "above 4294967294"),
        (b"1 18446744073709551617", "above 4294967294"),
        (b"1 2 3", "more columns"),
    ],
)
def test_each_bad_line_is_called_by_its_fault(line, cause):
    with pytest.raises(InputError, match=r"edges\.txt, line 3: .*" + cause) as caught:
        read(b"# head\n0 1\n" + line + b"\n5 5\n")
    assert line.decode() in caught.value.cause
    assert "\n" not in str(caught.value)


def test_the_highest_id_is_read():
    assert read(b"4294967294 0")[0] == [(MAX_NODES - 1, 0)]


def test_ids_from_one_within_the_stated_nodes():
    form = EdgeLines(first=1, nodes=3)
    assert read(b"1 3\n", form=form)[0] == [(0, 2)]
    with pytest.raises(InputError, match="below 1"):
        read(b"0 3\n", form=form)
    with pytest.raises(InputError, match="above 3"):
        read(b"1 4\n", form=form)


def test_lines_that_begin_with_a_letter():
    form = EdgeLines(lead="e")
    assert read(b"e 1 2\n  e\t3 4 # x\n", form=form)[0] == [(1, 2), (3, 4)]
    for line in (b"1 2\n", b"e1 2\n", b"f 1 2\n"):
        with pytest.raises(InputError, match=r"line 1: .* letter 'e'"):
            read(line, form=form)


@given(st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(-5, 5)), st.sampled_from("eE"))
def test_a_value_is_checked_and_zero_leaves_the_edge_out(value, exponent):
    text = f"0 1 {value}\n".replace("e", exponent).encode()
    edges, reader = read(text, form=EdgeLines(valued=True))
    # A number too small for float64 is not zero as text, so the text decides.
    assert edges == ([] if float(value) == 0 else [(0, 1)])
    assert (reader.entries, reader.zeros) == (1, int(float(value) == 0))


@pytest.mark.parametrize("value", ["", " x", " 1 2", " 1e", " e5", " -", " 1e5e5", " 0x1"])
def test_a_value_that_is_no_number_is_refused(value):
    with pytest.raises(InputError, match="line 1"):
        read(f"0 1{value}\n".encode(), form=EdgeLines(valued=True))


def test_zero_is_zero_whatever_its_exponent():
    assert read(b"0 1 -0.00e7\n0 2 0.10e0\n", form=EdgeLines(valued=True))[0] == [(0, 2)]


def test_a_byte_order_mark_is_skipped():
    assert read(b"\xef\xbb\xbf1 2\n", block_bytes=1, step=1)[0] == [(1, 2)]


def test_a_line_without_end_is_refused_in_bounded_memory():
    with pytest.raises(InputError, match="line 2: longer than"):
        read(b"1 2\n" + b"x" * (3 << 20), block_bytes=1 << 16, step=1 << 16)


@given(st.lists(st.text("aé\r", max_size=9), max_size=20), st.integers(1, 30), st.integers(1, 30))
def test_texts_are_whole_lines_with_their_numbers(lines, block_bytes, step):
    text = "".join(line + "\n" for line in lines)
    reader = LineReader(Trickle(text.encode(), step), block_bytes)
    first, found = 1, ""
    for piece in map(bytes.decode, reader.pieces()):
        assert reader.line == first
        assert piece.endswith("\n")
        first += piece.count("\n")
        found += piece
    assert found == text
