"""Tree against tree: what differs is told, and nothing else, however the trees are written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.diff import differing
from core.model import EXEC, FILE, TREE, Entry, Oid
from core.objects import encode_tree, parse_tree

NAMES = st.sampled_from([b"a", b"b", b"c", b"c.py", b"d"])
ENTRIES = st.builds(
    Entry, st.sampled_from([FILE, EXEC, TREE]), st.sampled_from([Oid(b"1" * 20), Oid(b"2" * 20)])
)
TREES = st.dictionaries(NAMES, ENTRIES)


@given(TREES, TREES)
def test_what_differs_is_what_is_not_equal(
    old: dict[bytes, Entry], new: dict[bytes, Entry]
) -> None:
    names = sorted(old.keys() | new.keys())
    expected = [(n, old.get(n), new.get(n)) for n in names if old.get(n) != new.get(n)]
    assert list(differing(encode_tree(old.items()), encode_tree(new.items()))) == expected


@pytest.mark.parametrize("others", [{}, {b"b": Entry(TREE, Oid(b"2" * 20))}])
def test_a_mode_that_is_written_otherwise_is_no_change(others: dict[bytes, Entry]) -> None:
    raw = encode_tree([(b"a", Entry(TREE, Oid(b"1" * 20))), *others.items()])
    padded = raw.replace(b"40000 ", b"040000 ")
    assert parse_tree(padded) == parse_tree(raw)
    assert list(differing(raw, padded)) == []


def test_a_mode_that_git_does_not_have_is_told_as_it_is() -> None:
    old, new = (b"100666 a\0" + oid * 20 for oid in (b"1", b"2"))
    ((name, was, now),) = differing(old, new)
    assert (name, was, now) == (b"a", *(Entry(0o100666, Oid(o * 20)) for o in (b"1", b"2")))
