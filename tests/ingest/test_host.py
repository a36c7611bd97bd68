import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from oocpr.ingest.nodes import strings
from oocpr.ingest.nodes.strings import NumberedStrings, StringFile, external_argsort, split_strings
from oocpr.ingest.order.orders import host_keys, looks_like_urls, order_by_host
from oocpr.ingest.spill.files import SpillDir

URLS = [
    "http://www.example.com/b",
    "https://example.com/",
    "http://example.org/a/b?c=http://www.example.com/",
    "http://WWW.Example.com/a",
    "http://www.example.com:8080/a",
    "http://me:secret@mail.example.com/a@b",
    "http://example.com",
    "http://example.com?q=1",
    "ftp://192.168.10.1/a",
    "ftp://192.168.9.1/a",
    "http://[2001:db8::1]:80/a",
    "http://example.com./a",
    "example.net/x.y/z",
    "localhost",
    "//cdn.example.com/x",
    "",
]


def plain_key(name):
    """What a name is sorted by, with regular expressions."""
    rest = re.sub(r"\A[^:/?#]*://", "", name)
    authority, tail = re.fullmatch(r"([^/?#]*)(.*)", rest, re.DOTALL).groups()
    host, port = re.fullmatch(r"(.*?)(:[0-9]*)?", authority.rpartition("@")[2], re.DOTALL).groups()
    if not re.fullmatch(r"[0-9.]*|\[.*", host, re.DOTALL):
        host = ".".join(reversed(host.removesuffix(".").split(".")))
        host = re.sub("[A-Z]", lambda letter: letter[0].lower(), host)
    return (host + (port or "") + ("" if tail.startswith("/") else "/") + tail).encode()


def joined(names):
    coded = [name.encode() for name in names]
    lengths = np.array([len(name) for name in coded], np.uint32)
    return np.frombuffer(b"".join(coded), np.uint8), lengths


@pytest.fixture
def small():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strings, "BUCKETS", 3)
        patch.setattr(strings, "_SPLITTERS_FROM", 4)
        yield


@given(st.lists(st.text("aB.:/?#@[]19é", max_size=12)))
@example(URLS)
def test_keys_are_what_regular_expressions_make_of_names(names):
    assert split_strings(host_keys(*joined(names))) == [plain_key(name) for name in names]


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("http://www.example.com/a", "com.example.www/a"),
        ("HTTP://WWW.EXAMPLE.COM/A", "com.example.www/A"),
        ("https://example.com", "com.example/"),
        ("http://me@a.b:80?q", "b.a:80/?q"),
        ("http://10.2.3.4/x", "10.2.3.4/x"),
        ("http://[::1]:80/x", "[::1]:80/x"),
        ("file:///etc", "/etc"),
        ("a.b/c.d", "b.a/c.d"),
        ("a.b/c?d=x://y.z", "b.a/c?d=x://y.z"),
    ],
)
def test_a_key(name, key):
    assert split_strings(host_keys(*joined([name]))) == [key.encode()]


@pytest.mark.usefixtures("small")
@given(
    st.lists(st.sampled_from([*URLS, *(f"http://h{k}.org/" for k in range(9))]), max_size=60), st.booleans()
)
def test_the_order_is_that_of_an_independent_sort(names, roomy):
    with SpillDir(Path()) as workspace:
        given_names = StringFile(workspace)
        given_names.append(*joined(names))
        found = order_by_host(given_names, workspace, 1 << 20 if roomy else 0)
    expected = sorted(range(len(names)), key=lambda k: plain_key(names[k]))
    assert (list(range(len(names))) if found is None else found.nodes.tolist()) == expected


@pytest.mark.usefixtures("small")
@given(
    st.lists(st.one_of(st.sampled_from([b"", b"\0", b"a", b"a\0", b"ab"]), st.binary(max_size=9))),
    st.integers(0, 3000),
)
def test_names_that_do_not_fit_are_sorted_like_those_that_do(names, space):
    numbers = np.random.default_rng(len(names)).permutation(len(names)).astype(np.uint32)
    with SpillDir(Path()) as workspace:
        keys = NumberedStrings(workspace)
        lengths = np.array([len(name) for name in names], np.uint32)
        keys.add(np.frombuffer(b"".join(names), np.uint8), lengths, numbers)
        found = [number for part in external_argsort(keys, workspace, space) for number in part.tolist()]
    assert found == [int(numbers[k]) for k in sorted(range(len(names)), key=names.__getitem__)]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["http://a", "b"], True),
        (["http://a", "b", "c"], False),
        (["libc6", "python3.11"], False),
        ([], False),
    ],
)
def test_urls_are_told_by_half_of_the_names(names, expected):
    assert looks_like_urls(iter([joined(names)])) is expected


def test_no_names_are_no_urls():
    assert not looks_like_urls(iter([]))
