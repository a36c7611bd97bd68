"""Whatever ends the writing of a journal, the lines before are there, and writing goes on behind them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oocpr.errors import UsageError
from oocpr.ingest.resume.journal import Journal, line_of, whole_lines

events = st.lists(
    st.dictionaries(st.text(max_size=3), st.integers() | st.text() | st.lists(st.integers())), max_size=5
)


@given(events, st.data())
def test_a_journal_cut_anywhere_has_its_whole_lines(written, data):
    lines = [line_of(event) for event in written]
    text = b"".join(lines)
    cut = data.draw(st.integers(0, len(text)))
    whole = [event for k, event in enumerate(written) if len(b"".join(lines[: k + 1])) <= cut]
    found = whole_lines(text[:cut])
    assert [event for event, _ in found] == whole
    assert [end for _, end in found] == [len(b"".join(lines[: k + 1])) for k in range(len(whole))]


@given(events.filter(bool), st.data())
def test_a_byte_that_changed_ends_the_journal_before_its_line(written, data):
    text = bytearray(b"".join(map(line_of, written)))
    place = data.draw(st.integers(0, len(text) - 1))
    text[place] ^= data.draw(st.integers(1, 255))
    before = sum(len(b"".join(map(line_of, written[: k + 1]))) <= place for k in range(len(written)))
    assert [event for event, _ in whole_lines(bytes(text))] == written[:before]


@pytest.mark.parametrize("torn", [b"", b"0", line_of({"c": 3})[:-1], b"\0" * 40, b"nonsense\nmore\n"])
def test_writing_goes_on_behind_the_last_whole_line(tmp_path, torn):
    path = tmp_path / "journal"
    path.write_bytes(line_of({"a": 1}) + line_of({"b": 2}) + torn)
    with Journal(path) as journal:
        assert journal.events == [{"a": 1}, {"b": 2}]
        journal.add({"d": 4}, durable=True)
    assert path.read_bytes() == line_of({"a": 1}) + line_of({"b": 2}) + line_of({"d": 4})


def test_what_is_cut_is_gone(tmp_path):
    path = tmp_path / "journal"
    with Journal(path) as journal:
        for k in range(4):
            journal.add({"tile": k})
        journal.cut(2)
        journal.add({"tile": 9})
    with Journal(path) as journal:
        assert journal.events == [{"tile": 0}, {"tile": 1}, {"tile": 9}]


def test_one_process_at_a_time_has_it(tmp_path):
    with Journal(tmp_path / "journal"), pytest.raises(UsageError, match="in use"):
        Journal(tmp_path / "journal")
    Journal(tmp_path / "journal").close()
