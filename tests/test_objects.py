"""Objects are git's own, byte for byte; whatever is malformed is Damaged and nothing else."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import Damaged
from core.model import EMPTY_TREE, EXEC, FILE, LINK, TREE, Entry, Oid
from core.objects import (
    Kind,
    encode_commit,
    encode_tag,
    encode_tree,
    hash_object,
    header_oid,
    parse_headers,
    parse_tree,
    references,
)

KINDS: tuple[Kind, ...] = ("blob", "tree", "commit", "tag")
SOME = Oid(bytes(range(20)))

oids = st.binary(min_size=20, max_size=20).map(Oid)
names = (
    st.binary(min_size=1, max_size=40)
    .map(lambda name: name.replace(b"\0", b"_").replace(b"/", b"_"))
    .filter(lambda name: name not in (b".", b".."))
)
entries = st.dictionaries(
    names, st.builds(Entry, st.sampled_from([FILE, EXEC, LINK, TREE]), oids), max_size=20
)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("git") / "r.git"
    subprocess.run(["git", "init", "-q", "--bare", str(path)], check=True)
    return path


def git(repository: Path, *arguments: str, data: bytes = b"") -> bytes:
    command = ["git", f"--git-dir={repository}", *arguments]
    return subprocess.run(command, input=data, capture_output=True, check=True).stdout


def stored(repository: Path, kind: str, data: bytes) -> Oid:
    said = git(repository, "hash-object", "-w", "-t", kind, "--stdin", data=data)
    return Oid(bytes.fromhex(said.decode().strip()))


@given(entries)
def test_a_tree_comes_back_as_it_went_in(tree: dict[bytes, Entry]) -> None:
    assert parse_tree(encode_tree(tree.items())) == tree


@pytest.mark.parametrize("data", [b"", b"x", b"\0\xff\r\n" * 1000, b"a" * 100_000])
def test_a_blob_has_the_id_that_git_gives_it(repository: Path, data: bytes) -> None:
    assert hash_object("blob", data) == stored(repository, "blob", data)


def test_a_tree_has_the_id_that_git_mktree_gives_it(repository: Path) -> None:
    blob, tree = stored(repository, "blob", b"x"), stored(repository, "tree", b"")
    order = [b"a", b"a.b", b"a-b", b"a0", b"A", b"a b", b"\xff", b"\n", b"a\x01", b"ab"]
    ours = {name: Entry((FILE, EXEC, LINK)[n % 3], blob) for n, name in enumerate(order)}
    ours[b"a"] = ours[b"b"] = Entry(TREE, tree)
    types = {TREE: b"tree"}
    lines = [
        b"%06o %s %s\t%s\0" % (e.mode, types.get(e.mode, b"blob"), e.oid.hex().encode(), name)
        for name, e in ours.items()
    ]
    said = git(repository, "mktree", "-z", data=b"".join(lines)).decode().strip()
    assert hash_object("tree", encode_tree(ours.items())).hex() == said


def test_the_empty_tree_is_the_one_that_everybody_knows() -> None:
    assert hash_object("tree", encode_tree([])) == EMPTY_TREE


def test_git_takes_our_commits_and_tags_and_gives_them_the_same_ids(repository: Path) -> None:
    tree = stored(repository, "tree", b"")
    first = encode_commit(tree, 1_700_000_000_123_456_789, b"one\n\n{}\n")
    parent = stored(repository, "commit", first)
    second = encode_commit(tree, -5, b"before the epoch\n", parent)
    assert hash_object("commit", second) == stored(repository, "commit", second)
    tag = encode_tag(parent, "turnmark-0-1", 1, b"manual\n\n{}\n")
    assert hash_object("tag", tag) == stored(repository, "tag", tag)
    git(repository, "fsck", "--strict")


@given(oids, oids, st.integers(-(10**18), 10**19), st.binary(max_size=60))
def test_what_commits_and_tags_need_is_read_back(
    tree: Oid, parent: Oid, time_ns: int, message: bytes
) -> None:
    commit = encode_commit(tree, time_ns, message, parent)
    assert list(references("commit", commit)) == [("tree", tree), ("commit", parent)]
    assert parse_headers(commit)[1] == message
    tag = encode_tag(parent, "name", time_ns, message)
    assert list(references("tag", tag)) == [("commit", parent)]


@given(entries)
def test_what_a_tree_needs_is_all_of_its_entries(tree: dict[bytes, Entry]) -> None:
    needed = sorted(references("tree", encode_tree(tree.items())))
    assert needed == sorted(("tree" if e.mode == TREE else "blob", e.oid) for e in tree.values())


MALFORMED = {
    "cut in the id": b"100644 a\0" + bytes(19),
    "no id": b"100644 a\0",
    "no nul": b"100644 a",
    "no space": b"100644",
    "mode not octal": b"100849 a\0" + SOME,
    "mode with a sign": b"-100644 a\0" + SOME,
    "mode of blanks": b"\t100644 a\0" + SOME,
    "mode with underscores": b"10_0644 a\0" + SOME,
    "mode with a prefix": b"0o100644 a\0" + SOME,
    "no mode": b" a\0" + SOME,
    "no name": b"100644 \0" + SOME,
    "name with a slash": b"100644 a/b\0" + SOME,
    "name is the parent": b"40000 ..\0" + SOME,
    "name is the directory": b"100644 .\0" + SOME,
    "a name twice": (b"100644 a\0" + SOME) * 2,
    "text": b"this is no tree at all",
}


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_tree_is_damaged(raw: bytes) -> None:
    with pytest.raises(Damaged):
        parse_tree(raw)


def is_tree_or_damaged(raw: bytes) -> None:
    try:
        tree = parse_tree(raw)
    except Damaged:
        return
    assert all(len(entry.oid) == 20 and entry.mode >= 0 for entry in tree.values())
    assert not any(b"/" in name or name in (b"", b".", b"..") for name in tree)


@given(st.binary(max_size=200) | st.builds(bytes.join, st.just(b" a\0"), st.lists(oids)))
def test_any_bytes_are_a_tree_or_damaged(raw: bytes) -> None:
    is_tree_or_damaged(raw)


@given(entries, st.data())
def test_a_tree_with_any_byte_changed_is_a_tree_or_damaged(
    tree: dict[bytes, Entry], data: st.DataObject
) -> None:
    raw = bytearray(encode_tree(tree.items()))
    for _ in range(data.draw(st.integers(0, 3)) if raw else 0):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    is_tree_or_damaged(bytes(raw))


@given(st.binary(max_size=120) | st.just(b"tree " + b"ab" * 20 + b"\n\n"), st.data())
def test_references_of_any_bytes_are_whole_ids_or_damaged(raw: bytes, data: st.DataObject) -> None:
    cut = raw[: data.draw(st.integers(0, len(raw)))]
    for kind in KINDS:
        try:
            found = list(references(kind, cut))
        except Damaged:
            continue
        assert all(len(oid) == 20 for _, oid in found)


@pytest.mark.parametrize("value", [b"", b"ab", b"zz" * 20, b"ab" * 21, b"ab " * 20, b"\xff" * 40])
def test_a_header_that_names_no_object_is_damaged(value: bytes) -> None:
    with pytest.raises(Damaged):
        header_oid({b"tree": value}, b"tree")
    with pytest.raises(Damaged):
        list(references("commit", b"tree %s\n\n" % value))
