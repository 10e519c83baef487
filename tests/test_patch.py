"""core.patch against the real git: what it writes, and what git makes of it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.model import EXEC, FILE, LINK, Change, Entry, Oid, RelPath, parents
from core.objects import hash_object
from core.patch import numstat, quoted, render
from core.renames import FileChange, find_renames

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")

Files = dict[bytes, tuple[int, bytes]]
"""A tree as a literal: path to mode and content."""


class Blobs:
    """Trees to changes, and the contents they refer to."""

    def __init__(self) -> None:
        self.held: dict[Oid, bytes] = {}

    def changes(self, old: Files, new: Files) -> list[Change]:
        pairs = ((path, self.entry(old, path), self.entry(new, path)) for path in sorted(old | new))
        return [Change(RelPath(path), a, b) for path, a, b in pairs if a != b]

    def entry(self, files: Files, path: bytes) -> Entry | None:
        if path not in files:
            return None
        mode, data = files[path]
        oid = hash_object("blob", data)
        self.held[oid] = data
        return Entry(mode, oid)

    def read(self, entry: Entry) -> bytes:
        return self.held[entry.oid]


def file_changes(old: Files, new: Files) -> tuple[list[FileChange], Blobs]:
    blobs = Blobs()
    return find_renames(blobs.changes(old, new), blobs.read), blobs


def patch(old: Files, new: Files) -> bytes:
    found, blobs = file_changes(old, new)
    return b"".join(render(found, blobs.read))


def renames(old: Files, new: Files) -> list[tuple[bytes | None, bytes, int | None]]:
    found, _ = file_changes(old, new)
    return [(one.old_path, one.path, one.similarity) for one in found]


def text(*words: str) -> tuple[int, bytes]:
    return FILE, "".join(word + "\n" for word in words).encode()


def numbers(first: int, last: int) -> list[str]:
    return [f"{n:03}" for n in range(first, last)]


# The real git.


class Git:
    def __init__(self, top: Path) -> None:
        self.top = top
        self.env = {"PATH": os.environ["PATH"], "HOME": str(top)}
        self.env |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}
        self.env["GIT_CEILING_DIRECTORIES"] = str(top.parent)

    def run(self, *args: str, cwd: Path, data: bytes = b"") -> bytes:
        done = subprocess.run(
            ["git", *args], cwd=cwd, env=self.env, input=data, capture_output=True, check=False
        )
        assert done.returncode == 0, (done.stderr, data)
        return done.stdout

    def apply(self, old: Files, data: bytes) -> Files:
        work = self.top / "work"
        shutil.rmtree(work, ignore_errors=True)
        write(work, old)
        if data:
            self.run("apply", "--whitespace=nowarn", "-", cwd=work, data=data)
        return read_back(work)

    def diff(self, old: Files, new: Files, *options: str) -> bytes:
        work = self.top / "repo"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        self.run("init", "-q", cwd=work)
        trees = [self.tree(work, files) for files in (old, new)]
        return self.run("diff", "-M", *options, *trees, cwd=work)

    def tree(self, work: Path, files: Files) -> str:
        for one in work.iterdir():
            if one.name != ".git":
                shutil.rmtree(one) if one.is_dir() and not one.is_symlink() else one.unlink()
        write(work, files)
        self.run("add", "-A", cwd=work)
        return self.run("write-tree", cwd=work).decode().strip()


def write(top: Path, files: Files) -> None:
    top.mkdir(exist_ok=True)
    for path, (mode, data) in files.items():
        place = top / os.fsdecode(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        if mode == LINK:
            place.symlink_to(os.fsdecode(data))
        else:
            place.write_bytes(data)
            place.chmod(mode & 0o777)


def read_back(top: Path) -> Files:
    out: Files = {}
    for folder, _, names in os.walk(os.fsencode(top)):
        for name in names + [n for n in os.listdir(folder) if os.path.islink(folder + b"/" + n)]:
            place = folder + b"/" + name
            path = os.path.relpath(place, os.fsencode(top))
            if os.path.islink(place):
                out[path] = LINK, os.readlink(place)
            else:
                data = Path(os.fsdecode(place)).read_bytes()
                out[path] = (EXEC if os.access(place, os.X_OK) else FILE), data
    return out


@pytest.fixture(scope="module")
def git(tmp_path_factory: pytest.TempPathFactory) -> Git:
    return Git(tmp_path_factory.mktemp("patch"))


NAMES = [b"a", b"b", b"d", b"d/a", b"d/b", b"e/f/g", b"with blank", b'q"uote', b"back\\slash"]
NAMES += [b"\xc3\xa9", b"\xff", b"new\nline", b"d/ x ", b"t\tab"]
words = st.sampled_from([b"one\n", b"two\n", b"three\n", b"\n", b"cr\r\n", b"++ x\n", b"-- y\n"])
long_texts = [b"".join(b"line %d\n" % n for n in range(k, k + 30)) for k in (0, 5, 9)]
wholes = st.lists(words, max_size=8).map(b"".join) | st.sampled_from(long_texts)
bodies = st.tuples(wholes, st.sampled_from([b"", b"end"])).map(b"".join)
plain = st.tuples(st.sampled_from([FILE, FILE, EXEC]), bodies)
links = st.tuples(st.just(LINK), st.sampled_from([b"a", b"nowhere/at all", b"\xfe"]))
trees = st.dictionaries(st.sampled_from(NAMES), plain | plain | plain | links, max_size=6)


def possible(files: Files) -> Files:
    """Without the files that would have to be directories too."""
    return {p: f for p, f in files.items() if not any(p in parents(other) for other in files)}


@st.composite
def moved(draw: st.DrawFn) -> tuple[Files, Files]:
    """Two trees of which the second holds some of the first's files under other names."""
    old = draw(trees)
    new = draw(trees)
    for path in old:
        target = draw(st.sampled_from([None, path, *NAMES]))
        if target is not None:
            mode, data = old[path]
            extra = draw(st.sampled_from([b"", b"", b"more\n"])) if mode != LINK else b""
            new[target] = mode, data + extra
    return possible(old), possible(new)


@needs_git
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(pair=moved())
def test_git_apply_makes_the_new_tree_of_the_old(git: Git, pair: tuple[Files, Files]) -> None:
    old, new = pair
    assert git.apply(old, patch(old, new)) == new


LONG = text(*numbers(0, 40))
PAIRS: dict[str, tuple[Files, Files]] = {
    "created": ({}, {b"n": text("1", "2")}),
    "created empty": ({}, {b"n": (FILE, b"")}),
    "deleted": ({b"n": (EXEC, b"1")}, {}),
    "edited": ({b"n": LONG}, {b"n": text(*numbers(0, 20), "x", *numbers(21, 40))}),
    "two hunks": ({b"n": LONG}, {b"n": text("0", *numbers(0, 39))}),
    "mode": ({b"n": LONG}, {b"n": (EXEC, LONG[1])}),
    "mode and text": ({b"n": text("1")}, {b"n": (EXEC, b"2")}),
    "renamed": ({b"n": LONG}, {b"d/m": LONG}),
    "renamed with mode": ({b"n": LONG}, {b"m": (EXEC, LONG[1])}),
    "renamed and edited": ({b"n": LONG}, {b"m": text(*numbers(0, 30))}),
    "link": ({b"l": (LINK, b"here")}, {b"l": (LINK, b"there")}),
    "link to file": ({b"l": (LINK, b"here")}, {b"l": text("1")}),
    "no newline": ({b"n": (FILE, b"1\n2")}, {b"n": (FILE, b"1\n2\n")}),
    "binary": ({b"n": (FILE, b"\0")}, {b"n": (FILE, b"\0\1"), b"m m": (FILE, b"\0\2")}),
    "quoted": ({b'\xc3\xa9 \t"\\\x01': text("1")}, {b'\xc3\xa9 \t"\\\x01': text("2")}),
    "blank": ({b"a b": text("1")}, {b"a b": text("2")}),
}


@needs_git
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_a_patch_is_what_git_writes(git: Git, pair: tuple[Files, Files]) -> None:
    assert patch(*pair) == git.diff(*pair)


@needs_git
@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_numstat_is_what_git_counts(git: Git, pair: tuple[Files, Files]) -> None:
    found, blobs = file_changes(*pair)
    stats = [numstat(one, blobs.read) for one in found]
    rows = git.diff(*pair, "--numstat", "--minimal").splitlines()
    theirs = [tuple(row.split(b"\t")[:2]) for row in rows]
    assert [(b"-", b"-") if s is None else (b"%d" % s[0], b"%d" % s[1]) for s in stats] == theirs


@needs_git
def test_a_link_may_leave_its_place_to_a_directory(git: Git) -> None:
    old: Files = {b"d": (LINK, b"here")}
    new: Files = {b"m": (LINK, b"here"), b"d/a": text("1")}
    assert renames(old, new)[1] == (b"d", b"m", 100)
    assert git.apply(old, patch(old, new)) == new


def test_a_moved_file_keeps_its_name_where_several_could_be_the_source() -> None:
    old = {b"x/one": text("1"), b"x/two": text("1")}
    new = {b"y/two": text("1"), b"y/one": text("1")}
    assert renames(old, new) == [(b"x/one", b"y/one", 100), (b"x/two", b"y/two", 100)]


def test_the_most_similar_pair_is_taken_first() -> None:
    old = {b"a": text(*numbers(0, 10)), b"b": text(*numbers(0, 9))}
    assert renames(old, {b"c": text(*numbers(0, 9), "x")}) == [
        (None, b"a", None),
        (b"b", b"c", 94),
    ]


def test_less_than_half_alike_is_no_rename() -> None:
    old = {b"a": text(*numbers(0, 10))}
    assert renames(old, {b"b": text(*numbers(5, 15))}) == [(b"a", b"b", 50)]
    assert renames(old, {b"b": text(*numbers(6, 16))}) == [(None, b"a", None), (None, b"b", None)]


def test_an_empty_file_or_another_kind_is_no_source() -> None:
    assert renames({b"a": (FILE, b"")}, {b"b": (FILE, b"")})[0] == (None, b"a", None)
    assert renames({b"a": (FILE, b"x")}, {b"b": (LINK, b"x")})[0] == (None, b"a", None)


def test_too_many_candidates_are_matched_by_object_only() -> None:
    old = {b"o%03d" % n: text(str(n), "same", "same") for n in range(602)}
    new = {b"n%03d" % n: text(str(n), "same", "same", "x") for n in range(601)}
    new[b"n601"] = old[b"o601"]
    assert [one for one in renames(old, new) if one[0]] == [(b"o601", b"n601", 100)]


def test_names_are_quoted_as_git_quotes_them() -> None:
    assert quoted(b"plain name") == b"plain name"
    assert quoted(b'\x01\t\n"\\\x7f\xc3') == b'"\\001\\t\\n\\"\\\\\\177\\303"'
