"""The tree on disk becomes a snapshot of it, whatever the tree is made of."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from itertools import chain, permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import core.store
from core.about import decode_about
from core.beneath import OPEN_DIRS, Beneath
from core.diff import dirs_of, files_of
from core.disk import Disk, Name
from core.errors import TurnmarkError
from core.history import MarkSpec
from core.listing import Lister
from core.model import EMPTY_TREE, EXEC, LINK, TREE, Entry, GapReason, Oid, RelPath, parents
from core.objects import child_in
from core.packing import LARGE_BYTES
from core.proofs import FRESH_NS
from core.recorder import Recorder, Taken, TreesOnly
from core.rules import RuleSet
from core.scan import Deepest
from core.splice import Outcome, Splicer
from core.store import Store
from core.worktree import Dir as Record
from core.worktree import WorkTree
from core.writer import Writer
from tests.campaign.paths import CHANGED, Sentry
from tests.stores import ALL, Bench, fsck
from tests.trees import Dir, File, Image, Leaf, Link, build, image

Tree = dict[str | bytes, Leaf]
NOTHING = Record(0o755, EMPTY_TREE, b"", b"", b"", b"", b"", b"", 0, 0)
ONLY_GITIGNORE = RuleSet(exclude=(), protect=())


def powerless(work: Callable[[], None]) -> None:
    """Runs in a child without root's powers over files; what fails there fails the test."""
    pid = os.fork()
    if pid == 0:
        try:
            _drop_capabilities()
            work()
        except BaseException:  # noqa: BLE001 - the child ends here, whatever it was
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert status == 0, "failed in the child without powers; see its traceback"


def _drop_capabilities() -> None:
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    nothing = (ctypes.c_uint32 * 6)()
    assert ctypes.CDLL(None, use_errno=True).capset(header, nothing) == 0


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def stored(bench: Bench, taken: Taken) -> Image:
    """What a snapshot says the tree is, in the words of `image`."""
    store = Store.open(bench.store.base)
    about = decode_about(store.blob(taken.snapshot.about))
    out: Image = {}
    for path, entry in files_of(store.tree, taken.snapshot.files):
        data = store.blob(entry.oid)
        mode = about.mode(path, entry.mode)
        out[path] = ("link", data) if entry.mode == LINK else ("file", mode, data)
        assert entry.mode == LINK or bool(mode & 0o100) == (entry.mode == EXEC)
    for path in (*dirs_of(store.tree, taken.snapshot.files), *about.empty):
        out[path] = ("dir", about.mode(path, TREE))
    return out


def gaps(bench: Bench, taken: Taken) -> dict[RelPath, GapReason]:
    store = Store.open(bench.store.base)
    return {**decode_about(store.blob(taken.snapshot.about)).gaps}


def exact(bench: Bench, taken: Taken) -> None:
    assert stored(bench, taken) == image(bench.path)
    assert not gaps(bench, taken)


# Every kind of entry


EVERY_KIND: Tree = {
    "plain": "x",
    "empty": "",
    "private": File("s", 0o600),
    "setgid": File("s", 0o2755),
    "run": File("#!", 0o711),
    "group run only": File("g", 0o654),
    "dangling": Link("no/where"),
    "up": Link("../.."),
    "to dir": Link("d"),
    "d/e/f": "deep",
    "none/": Dir(),
    "sticky/": Dir(0o1777),
    "private dir/": Dir(0o700),
    "private dir/f": "x",
    b"\xff\n\x1b[0m": b"\0\xff",
    "n" * 255: "long",
}


def test_every_kind_of_entry_is_captured_as_it_is(bench: Bench) -> None:
    build(bench.path, EVERY_KIND)
    exact(bench, bench.point())
    assert bench.point().changed == 0


def test_the_content_of_nested_repositories_is_captured_and_their_git_is_a_gap(
    bench: Bench,
) -> None:
    build(bench.path, {".git/HEAD": "x", "sub/.git/HEAD": "x", "sub/f": "1", "w/.git": "gitdir: x",
                       "w/.GIT/x": "alias", "w/git~1": "alias"})  # fmt: skip
    taken = bench.point()
    assert set(stored(bench, taken)) == {b"sub", b"sub/f"} | ({b"w"} & set(stored(bench, taken)))
    names = {b".git", b"sub/.git", b"w/.git", b"w/.GIT", b"w/git~1"}
    assert gaps(bench, taken) == dict.fromkeys(names, "excluded")


def test_every_gap_has_its_reason(tmp_path: Path) -> None:
    rules = RuleSet(
        exclude=("out/", "*.log"), max_file_size=100, nested=frozenset({RelPath(b"inner")})
    )
    bench = Bench(tmp_path, rules)
    build(bench.path, {"out/x": "1", "a.log": "1", ".gitignore": "*.tmp\n", "b.tmp": "1",
                       "big": "b" * 101, "just": "j" * 100, "inner/f": "1"})  # fmt: skip
    os.mkfifo(bench.path / "fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(bench.path / "sock"))
        taken = bench.point()
    assert gaps(bench, taken) == {
        **dict.fromkeys([b"out", b"a.log"], "excluded"),
        **dict.fromkeys([b"fifo", b"sock"], "special"),
        b"b.tmp": "ignored",
        b"big": "oversize",
        b"inner": "nested-root",
    }
    assert set(stored(bench, taken)) == {b".gitignore", b"just"}
    assert taken.snapshot.gaps == 7


def test_a_sparse_file_above_the_cap_is_a_gap_and_one_below_is_captured(tmp_path: Path) -> None:
    bench = Bench(tmp_path, RuleSet(max_file_size=1 << 20))
    for name, size in (("huge", 1 << 40), ("small", 1 << 20)):
        with open(bench.path / name, "wb") as file:
            file.truncate(size)
    taken = bench.point()
    assert gaps(bench, taken) == {b"huge": "oversize"}
    assert stored(bench, taken)[b"small"] == ("file", image_mode(bench, "small"), bytes(1 << 20))


def image_mode(bench: Bench, name: str) -> int:
    return os.stat(bench.path / name).st_mode & 0o7777


def test_all_names_of_a_hard_link_are_captured_and_a_write_through_one_is_seen(
    bench: Bench,
) -> None:
    build(bench.path, Tree({"one": "1", "d/": Dir()}))
    os.link(bench.path / "one", bench.path / "d/two")
    exact(bench, bench.point())
    (bench.path / "one").write_text("2")
    exact(bench, bench.point())


def test_a_very_wide_tree_is_captured(bench: Bench) -> None:
    build(bench.path, {f"w/{n}": "" for n in range(3000)})
    exact(bench, bench.point())


def test_a_tree_deeper_than_the_stack_is_captured_and_forgotten(bench: Bench) -> None:
    make = 'for n in $(seq 30); do mkdir -p "$0" && cd "$0"; done; echo x > leaf'
    try:
        subprocess.run(["sh", "-c", make, "d/" * 50], cwd=bench.path, check=True)
        taken = bench.point()
        (found,) = files_of(bench.store.tree, taken.snapshot.files)
        assert found[0] == b"d/" * 1500 + b"leaf"
    finally:  # what pytest cleans up with would run out of stack
        subprocess.run(["rm", "-rf", str(bench.path / "d")], check=True)
    exact(bench, bench.point())


# Rules


def test_gitignore_counts_where_it_stands_and_below(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ONLY_GITIGNORE)
    build(bench.path, {".gitignore": "*.o\n/top\n", "a.o": "", "top": "", "d/top": "", "d/b.o": "",
                       "d/.gitignore": "!b.o\nlocal\n", "d/local": "", "d/e/local": "",
                       "local": ""})  # fmt: skip
    assert gaps(bench, bench.point()) == dict.fromkeys(
        [b"a.o", b"top", b"d/local", b"d/e/local"], "ignored"
    )


@pytest.mark.parametrize("partly", [False, True])
def test_a_changed_gitignore_changes_the_verdict_on_files_that_did_not(
    tmp_path: Path, partly: bool
) -> None:
    bench = Bench(tmp_path, ONLY_GITIGNORE)
    build(bench.path, {"d/x": "1", "d/e/x": "2", "d/e/y": "3", "x": "4"})
    bench.point()
    for text, ignored in (("x\n", 2), ("/x\n", 1), ("e/\n", 1), ("", 0)):
        build(bench.path, {"d/.gitignore": text})
        taken = bench.recorder.take([RelPath(b"d/.gitignore")] if partly else None)
        assert len(gaps(bench, taken)) == ignored
        assert len(stored(bench, taken)) + (3 if text == "e/\n" else ignored) == 7
    (bench.path / "d/.gitignore").unlink()
    taken = bench.recorder.take([RelPath(b"d/.gitignore")] if partly else None)
    exact(bench, taken)


@pytest.mark.parametrize("where", ["", "d/", "d/e/"], ids=["root", "above", "beside"])
@pytest.mark.parametrize("name", ["d/e/known", "d/e/new"])
@pytest.mark.parametrize("ignored", [{b"d/e/x"}, set()], ids=["some", "none"])
def test_rules_that_changed_unseen_are_obeyed_by_whoever_looks_below_them(
    tmp_path: Path, ignored: set[bytes], name: str, where: str
) -> None:
    """Events of a rules file may be lost, or come only with the next look."""
    bench = Bench(tmp_path, RuleSet(exclude=(), protect=(), max_files=6))
    rules = f"{where}.gitignore"
    tree: Tree = {rules: "x\n" if ignored else "\n", "d/e/x": "1", "d/e/y": "2", "q/z": "3"}
    build(bench.path, tree | {"d/e/known": "4"})
    assert gaps(bench, bench.point()) == dict.fromkeys(ignored, "ignored")
    build(bench.path, {rules: "y\n", name: "other", "q/new": "5"})
    taken = bench.recorder.take([RelPath(name.encode()), RelPath(b"q/new")])
    assert gaps(bench, taken) == {b"d/e/y": "ignored"}
    assert taken.changed == len({rules, "d/e/y", name, "q/new"}) + len(ignored)
    left = {path: leaf for path, leaf in image(bench.path).items() if path != b"d/e/y"}
    assert stored(bench, taken) == left
    assert not bench.recorder.take().fresh


def test_protected_files_inside_ignored_directories_are_captured(tmp_path: Path) -> None:
    bench = Bench(tmp_path, RuleSet(exclude=("out/",), protect=("out/keep/*.db", ".env")))
    build(bench.path, {"out/keep/a.db": "1", "out/keep/b": "2", "out/c": "3", ".gitignore": "*\n",
                       ".env": "4", "d/.env": "5"})  # fmt: skip
    taken = bench.point()
    files = {path for path, leaf in stored(bench, taken).items() if leaf[0] == "file"}
    assert files == {b"out/keep/a.db", b".env"}
    assert gaps(bench, taken)[RelPath(b"out/c")] == "excluded"


def test_a_protected_file_that_appears_later_in_an_excluded_directory_is_captured(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, RuleSet(exclude=("out/",), protect=("out/keep/*.db",)))
    build(bench.path, {"out/keep/b": "2", "a": "1"})
    assert gaps(bench, bench.point()) == {b"out": "excluded"}
    build(bench.path, {"out/keep/a.db": "1"})
    assert b"out/keep/a.db" in stored(bench, bench.point())
    (bench.path / "out/keep/a.db").unlink()
    assert gaps(bench, bench.point()) == {b"out": "excluded"}
    build(bench.path, {"out/keep/a.db": "again"})
    assert b"out/keep/a.db" in stored(bench, bench.point())


def test_rules_that_change_between_two_looks_are_obeyed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ALL)
    build(bench.path, {"d/a.log": "1", "d/b": "2"})
    bench.point()
    for exclude in (("*.log",), ("d/",), ()):
        bench.rules = RuleSet(exclude=exclude, gitignore=False)
        bench.reopen()
        assert len(gaps(bench, bench.point())) == len(exclude)
    exact(bench, bench.point())


def test_a_budget_of_files_makes_gaps_and_loses_nothing_that_was_captured(tmp_path: Path) -> None:
    bench = Bench(tmp_path, RuleSet(exclude=(), max_files=3))
    build(bench.path, {"a": "1", "d/b": "2", "d/c": "3"})
    exact(bench, bench.point())
    build(bench.path, {"a": "changed", "d/b": "changed"})
    exact(bench, bench.point())
    build(bench.path, {"d/e": "too many", "new/f": "too many"})
    taken = bench.point()
    assert gaps(bench, taken) == {b"d/e": "budget", b"new": "budget"}
    assert {b"a", b"d/b", b"d/c"} <= stored(bench, taken).keys()
    os.unlink(bench.path / "d/b")
    assert len(gaps(bench, bench.point())) <= 2


# What cannot be read


def test_what_cannot_be_read_is_a_gap_and_never_a_deletion(bench: Bench) -> None:
    build(bench.path, {"a": "1", "secret": "2", "closed/f": "3", "listed/f": "4", "blind/f": "5"})
    modes = {"secret": 0, "closed": 0, "listed": 0o400, "blind": 0o300}
    bench.point()
    for name, mode in modes.items():
        os.chmod(bench.path / name, mode)

    def look() -> None:
        for paths in (None, [RelPath(b"secret"), RelPath(b"closed/f"), RelPath(b"blind")]):
            taken = bench.reopen().take(paths)
            assert gaps(bench, taken) == dict.fromkeys(map(str.encode, modes), "unreadable")
            assert set(stored(bench, taken)) == {b"a"}

    powerless(look)
    for name in modes:
        os.chmod(bench.path / name, 0o755)
    bench.reopen()
    exact(bench, bench.point())


def test_a_directory_that_closes_while_known_is_a_gap_by_its_files_too(bench: Bench) -> None:
    build(bench.path, {"d/e/f": "1", "x": "1"})

    def look() -> None:
        own = bench.reopen()
        own.take()
        os.chmod(bench.path / "d", 0)
        build(bench.path, {"x": "2"})
        assert gaps(bench, own.take([RelPath(b"d/e/f"), RelPath(b"x")])) == {b"d": "unreadable"}
        os.chmod(bench.path / "d", 0o755)
        exact(bench, own.take([RelPath(b"d/e")]))

    powerless(look)


def test_a_file_that_another_process_leased_does_not_stop_the_snapshot(bench: Bench) -> None:
    build(bench.path, {"a": "1", "leased": "2"})
    fd = os.open(bench.path / "leased", os.O_RDWR)
    try:
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        taken = bench.point()
        assert b"a" in stored(bench, taken)
        assert gaps(bench, taken) == {b"leased": "unreadable"}
    finally:
        os.close(fd)
    exact(bench, bench.point())


# Changes that hide


def test_an_edit_that_keeps_size_and_modification_time_is_seen(bench: Bench) -> None:
    build(bench.path, {"f": "one"})
    os.utime(bench.path / "f", (1_000_000_000, 1_000_000_000))
    for text in ("two", "six", "ten"):
        bench.point()
        (bench.path / "f").write_text(text)
        os.utime(bench.path / "f", (1_000_000_000, 1_000_000_000))
        exact(bench, bench.point())


def test_edits_in_the_same_tick_are_seen(bench: Bench) -> None:
    build(bench.path, {"f": "00"})
    fd = os.open(bench.path / "f", os.O_WRONLY)
    for number in range(10, 41):
        os.pwrite(fd, b"%d" % number, 0)
        taken = bench.recorder.take(sync=False)
        if number % 10 == 0:
            assert stored(bench, taken).get(b"f", ("",))[-1] in (b"%d" % number, "")
    os.close(fd)
    exact(bench, bench.recorder.take())


def test_an_older_file_moved_into_place_is_seen(bench: Bench) -> None:
    build(bench.path, {"f": "new"})
    build(bench.base / "aside", {"f": "old"})
    os.utime(bench.base / "aside/f", (5, 5))
    bench.point()
    os.rename(bench.base / "aside/f", bench.path / "f")
    exact(bench, bench.recorder.take([RelPath(b"f")]))


@pytest.mark.parametrize("partly", [False, True])
def test_whatever_takes_the_place_of_a_name_is_seen(bench: Bench, partly: bool) -> None:
    kinds: list[dict[str | bytes, Leaf]] = [
        {"n": "file"}, {"n": Link("file")}, {"n/": Dir()}, {"n/f": "x"}, {"n/f": Link("x")},
        {"n": Link("other")}, {"n/f/g": "y"}, {"n": File("file", 0o755)}, {"n/": Dir(0o700)},
    ]  # fmt: skip
    for one in kinds:
        for other in kinds:
            for tree in (one, other):
                remove(bench.path / "n")
                build(bench.path, tree)
                exact(bench, bench.recorder.take([RelPath(b"n")] if partly else None, sync=False))


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def test_a_fifo_in_place_of_a_file_never_blocks(bench: Bench) -> None:
    build(bench.path, {"f": "1", ".gitignore": "x\n"})
    bench.rules = ONLY_GITIGNORE
    bench.reopen().take()
    for name in ("f", ".gitignore"):
        os.unlink(bench.path / name)
        os.mkfifo(bench.path / name)
    assert gaps(bench, bench.recorder.take()) == {b"f": "special", b".gitignore": "special"}
    assert gaps(bench, bench.recorder.take([RelPath(b".gitignore")])) != {}


# Some paths against the whole

NAMES = ("a", "b", "d", "e", ".gitignore", "x.log", ".env")
paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)
texts = st.sampled_from(["", "1", "22", "a\n", "b\n*.log\n", "d/\n", "!a\n", "/e\n"])
moves = st.one_of(
    st.tuples(st.just("write"), paths, texts),
    st.tuples(st.just("mkdir"), paths, st.just("")),
    st.tuples(st.just("link"), paths, paths),
    st.tuples(st.just("delete"), paths, st.just("")),
    st.tuples(st.just("chmod"), paths, st.sampled_from(["600", "755", "711", "700"])),
    st.tuples(st.just("move"), paths, paths),
)


def mutate(root: Path, move: tuple[str, str, str]) -> list[str]:
    """Makes the change if it can be made; the paths that events would name."""
    verb, path, other = move
    if through_a_link(root, path) or (verb == "move" and through_a_link(root, other)):
        return []  # events would name what it leads to
    with suppress(OSError):
        VERBS[verb](root / path, root / other if verb == "move" else other)
    return [path, other] if verb == "move" else [path]


def write(path: Path, text: str | Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        path.unlink()
    path.write_text(str(text))


def chmod(path: Path, mode: str | Path) -> None:
    if not path.is_symlink():
        os.chmod(path, int(str(mode), 8) | (0o700 if path.is_dir() else 0))


VERBS: dict[str, Callable[[Path, str | Path], object]] = {
    "write": write,
    "mkdir": lambda path, _: path.mkdir(parents=True),
    "link": lambda path, to: path.symlink_to(to),
    "delete": lambda path, _: remove(path),
    "chmod": chmod,
    "move": lambda path, to: path.rename(to),
}


def through_a_link(root: Path, path: str) -> bool:
    return any((root / above).is_symlink() for above in Path(path).parents)


def touched(path: str) -> list[RelPath]:
    """A path and what `mkdir -p` may have made above it."""
    parts = path.split("/")
    return [RelPath("/".join(parts[:n]).encode()) for n in range(1, len(parts) + 1)]


RULES = (
    RuleSet(exclude=("*.log",), protect=(".env",)),
    RuleSet(exclude=("d/",), protect=("d/e/*.log", ".env")),
    ALL,
)


@settings(max_examples=40 if not os.environ.get("TURNMARK_DEEP") else 3000)
@given(st.sampled_from(RULES), st.lists(st.lists(moves, max_size=6), min_size=1, max_size=6))
def test_looking_at_what_changed_tells_the_same_as_looking_at_everything(
    tmp_path_factory: pytest.TempPathFactory,
    rules: RuleSet,
    bursts: list[list[tuple[str, str, str]]],
) -> None:
    base = tmp_path_factory.mktemp("dirty")
    bench = Bench(base, rules)
    partly = bench.recorder
    fresh = Bench(base, rules)  # the same tree, looked at by one that knows nothing
    fresh.store = Store.create(str(base / "other/store"))
    for burst in bursts:
        partly.take(sync=False) if partly.last is None else None
        seen = [p for move in burst for path in mutate(bench.path, move) for p in touched(path)]
        by_path = partly.take(seen, sync=False)
        whole = Recorder(fresh.store, fresh.root, rules)
        whole.tree.usual = partly.tree.usual
        everything = whole.take(sync=False)
        whole.close()
        os.unlink(whole.tree.path)
        assert gaps(bench, by_path) == gaps(fresh, everything)
        assert stored(bench, by_path) == stored(fresh, everything)
        again = partly.take(sync=False)
        assert (again.fresh, again.changed) == (False, 0)
        partly.tree.save()
        records = WorkTree(partly.tree.path)
        root = records.root()
        records.close()
        assert root is not None, "the records are not whole"
        assert root.oid == by_path.snapshot.files
        assert by_path.snapshot.total == everything.snapshot.total
        assert by_path.snapshot.gaps == everything.snapshot.gaps
    bench.close()
    shutil.rmtree(base)


class Swapping(Disk):
    """Moves a directory away when a certain other is opened; another one takes its place once it
    was missed so many times."""

    def __init__(self, path: Path, at: bytes, missed: int) -> None:
        self.path, self.at, self.missed = path, at, missed

    def open(self, name: Name, flags: int, mode: int = 0o600, at: int | None = None) -> int:
        try:
            fd = super().open(name, flags, mode, at)
        except FileNotFoundError:
            self.missed -= name == os.fsencode(self.path.name)
            if self.missed == 0 and not self.path.exists():
                build(self.path, {"a/f": "other", "z": "other"})
            raise
        if name == self.at and self.missed and self.path.exists():
            self.path.rename(self.path.parent.parent.parent / "away")
        return fd


@pytest.mark.parametrize(
    ("new", "missed"),
    [("p/x/new", 1), ("p/x/a/new", 2)],
    ids=["while its names are looked at", "after something below it was"],
)
def test_what_was_seen_in_a_directory_that_went_away_meanwhile_leaves_no_record(
    bench: Bench, new: str, missed: int
) -> None:
    build(bench.path, {"p/x/a/f": "1", "p/x/z": "1"})
    bench.point()
    more = OPEN_DIRS + 6  # than are kept open, so that those above have to be opened once more
    build(bench.path, {f"{new}/{n:02}/f": "x" for n in range(more)} | {"p/x/z": "2"})
    disk = Swapping(bench.path / "p/x", b"%02d" % (more - 1), missed)
    recorder = bench.reopen(disk)
    recorder.take([RelPath(new.encode()), RelPath(b"p/x/z")])
    assert disk.missed == 0
    taken = recorder.take([RelPath(b"p")])
    exact(bench, taken)
    assert taken.snapshot.total == 2
    on_record = {path for path, found in recorder.tree._dirs.items() if found}
    assert on_record == {b"", *dirs_of(bench.store.tree, taken.snapshot.files)}


@pytest.mark.parametrize(
    "path", ["../outside", "../outside/f", "d/../../outside", "/", "d//f", "."]
)
def test_a_path_that_is_none_makes_everything_be_looked_at_and_leads_nowhere(
    bench: Bench, path: str
) -> None:
    build(bench.base / "outside", {"f": "not ours"})
    build(bench.path, {"d/f": "1"})
    bench.point()
    build(bench.path, {"d/f": "2"})
    exact(bench, bench.recorder.take([RelPath(path.encode())]))


# Nothing is written into the tree


def test_looking_leaves_no_trace_in_the_tree(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ONLY_GITIGNORE)
    build(bench.path, Tree({"f": "x", ".gitignore": "i\n", "i": "", "d/e/f": "y", "none/": Dir()}))
    names = [bench.path, *bench.path.rglob("*")]
    for name in names:
        os.utime(name, (5, 7_000_000_000))  # so old that every read would move it

    def times() -> dict[Path, tuple[int, ...]]:
        stats = {name: os.lstat(name) for name in names}
        return {n: (s.st_atime_ns, s.st_mtime_ns, s.st_ctime_ns) for n, s in stats.items()}

    before = times()
    bench.point()
    bench.recorder.take([RelPath(b"d/e/f"), RelPath(b"none"), RelPath(b".gitignore")])
    bench.reopen().look()
    assert times() == before


# Usual permissions


@pytest.mark.parametrize("umask", [0o077, 0o022, 0o002, 0o027])
def test_modes_are_exact_under_any_umask_and_take_no_room_if_usual(
    tmp_path: Path, umask: int
) -> None:
    bench = Bench(tmp_path)
    build(bench.path, {})
    previous = os.umask(umask)
    try:
        os.chmod(bench.path, 0o777 & ~umask)
        for number in range(20):
            (bench.path / f"d{number}").mkdir()
            (bench.path / f"d{number}/f").write_text("x")
    finally:
        os.umask(previous)
    build(
        bench.path, Tree({"odd": File("x", 0o640), "run": File("x", 0o750), "odd dir/": Dir(0o711)})
    )
    taken = bench.point()
    exact(bench, taken)
    assert len(bench.store.blob(taken.snapshot.about)) < 1000 + 2 * 200
    os.chmod(bench.path / "d3/f", 0o604)
    exact(bench, bench.recorder.take([RelPath(b"d3/f")]))
    exact(bench, bench.reopen().take())


def test_the_mode_of_the_root_is_kept(bench: Bench) -> None:
    build(bench.path, {"a": "1"})
    for mode in (0o700, 0o755):
        os.chmod(bench.path, mode)
        taken = bench.point()
        about = decode_about(bench.store.blob(taken.snapshot.about))
        assert about.mode(RelPath(b""), TREE) == mode


# The records of earlier looks

TREE_WITH_NOTES: dict[str | bytes, Leaf] = {
    **{f"d{n}/f": str(n) for n in range(6)},
    "s/secret": File("s", 0o600),
    "none/in/side/": Dir(0o700),
    "x/y": "1",
}


def lose(path: str) -> None:
    os.unlink(path)


def truncate(path: str) -> None:
    os.truncate(path, os.path.getsize(path) // 2)


def garbage(path: str) -> None:
    Path(path).write_bytes(b"this is no database" * 1000)


def zeros(path: str) -> None:
    Path(path).write_bytes(bytes(os.path.getsize(path)))


def emptied(path: str) -> None:
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM meta")
    db.close()


def rotten(column: str, value: object) -> Callable[[str], None]:
    def damage(path: str) -> None:
        with sqlite3.connect(path) as db:
            db.execute(f"UPDATE dirs SET {column}=? WHERE path IN (?,?)", (value, b"s", b"none"))
        db.close()

    return damage


def forgotten(path: str) -> None:
    with sqlite3.connect(path) as db:
        db.execute("DELETE FROM dirs WHERE path=?", (b"s",))
    db.close()


def other_schema(path: str) -> None:
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE dirs")
        db.execute("CREATE TABLE dirs (path, whatever)")
    db.close()


DAMAGES = {
    "lost": lose, "cut": truncate, "garbage": garbage, "zeros": zeros, "no state": emptied,
    "note": rotten("note", b""), "raw": rotten("raw", b"x"), "mode": rotten("mode", 0o777),
    "type": rotten("names", 7), "null": rotten("stats", None), "no row": forgotten,
    "files": rotten("files", 99), "schema": other_schema,
}  # fmt: skip


@pytest.mark.parametrize("partly", [False, True])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damaged_records_cost_time_and_never_truth(
    bench: Bench, damage: Callable[[str], None], partly: bool
) -> None:
    build(bench.path, TREE_WITH_NOTES)
    first = bench.point()
    bench.close()
    damage(cache_of(bench))
    build(bench.path, {"x/y": "2", "x/z": "new"})
    taken = bench.reopen().take([RelPath(b"x/y"), RelPath(b"x/z")] if partly else None)
    exact(bench, taken)
    assert taken.snapshot.total == first.snapshot.total + 1
    fsck(bench.store.base)
    bench.reopen()
    exact(bench, bench.recorder.take([RelPath(b"x/y")]))


def cache_of(bench: Bench) -> str:
    return f"{bench.store.base}/turnmark/cache/{bench.root.id}.db"


@pytest.mark.parametrize("partly", [False, True])
def test_records_that_lag_behind_the_references_are_made_up_for(bench: Bench, partly: bool) -> None:
    build(bench.path, TREE_WITH_NOTES)
    bench.point()
    bench.close()
    shutil.copy(cache_of(bench), bench.base / "older")
    shutil.rmtree(bench.path / "d1")
    build(bench.path, Tree({"x/y": "2", "s/secret": File("other", 0o640), "none/in/side/f": ""}))
    bench.reopen().take()
    bench.close()
    shutil.copy(bench.base / "older", cache_of(bench))
    build(bench.path, {"x/y": "3"})
    exact(bench, bench.reopen().take([RelPath(b"x/y")] if partly else None))
    fsck(bench.store.base)


def test_records_of_another_generation_are_not_trusted(bench: Bench) -> None:
    build(bench.path, TREE_WITH_NOTES)
    bench.point()
    bench.store.next_generation()
    exact(bench, bench.recorder.take([RelPath(b"x/y")]))
    bench.reopen()
    bench.store.next_generation()
    exact(bench, bench.recorder.take())


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Oid]:
    """The objects of which looks ask the store whether it holds them."""
    out: list[Oid] = []

    class Asking(Writer):
        def holds(self, oid: Oid) -> bool:
            out.append(oid)
            return super().holds(oid)

    monkeypatch.setattr(core.store, "Writer", Asking)
    return out


MANY_FILES = {f"d/{n}": f"{n}" for n in range(50)}


def test_after_something_was_taken_out_only_a_full_look_asks_for_every_object(
    bench: Bench, asked: list[Oid]
) -> None:
    build(bench.path, MANY_FILES)
    bench.point()
    proved = []
    for number, full in enumerate((False, False, True, True)):
        if not full:
            bench.store.next_generation()
        build(bench.path, {"d/1": f"again {number}"})
        asked.clear()
        exact(bench, bench.recorder.take(None if full else [RelPath(b"d/1")]))
        proved.append(len(asked) >= len(MANY_FILES) - 1)
    assert proved == [False, False, True, False]


@pytest.mark.parametrize("meanwhile", ["a new process", "a look that fails"])
def test_what_is_still_to_be_asked_for_is_not_forgotten(
    bench: Bench, asked: list[Oid], meanwhile: str
) -> None:
    build(bench.path, MANY_FILES)
    bench.point()
    bench.store.next_generation()
    build(bench.path, {"d/1": "again"})
    bench.recorder.take([RelPath(b"d/1")])
    if meanwhile == "a new process":
        bench.reopen()
    else:
        bench.recorder.expected = (0, 0)
        with pytest.raises(TurnmarkError):
            bench.recorder.take()
        bench.recorder.expected = None
    asked.clear()
    exact(bench, bench.recorder.take())
    assert len(asked) >= len(MANY_FILES) - 1
    asked.clear()
    bench.recorder.take()
    assert not asked


def test_a_store_that_was_put_back_is_noticed(bench: Bench) -> None:
    """With the same generation, so that nothing else tells of it."""
    build(bench.path, {"a": "1"})
    bench.point()
    shutil.copytree(bench.store.base, bench.base / "older")
    build(bench.path, {"a": "2"})
    bench.recorder.take([RelPath(b"a")])
    shutil.rmtree(bench.store.base)
    (bench.base / "older").rename(bench.store.base)
    build(bench.path, {"b": "3"})
    exact(bench, bench.recorder.take([RelPath(b"b")]))


def test_nothing_is_remembered_of_directories_that_are_gone(bench: Bench) -> None:
    """Found by an hour's soak: memory grew with every name that there ever was."""
    build(bench.path, {"a": "1"})
    for number in range(3):
        build(bench.path, {f"d/{number}/{n}/f": "x" for n in range(20)})
        bench.recorder.take([RelPath(b"d")])
        shutil.rmtree(bench.path / "d")
        exact(bench, bench.recorder.take([RelPath(b"d")]))
    tree = bench.recorder.tree
    assert tree._dirs.keys() == {b""}
    assert tree.rules is not None
    assert not tree.rules._children
    bench.reopen()
    exact(bench, bench.recorder.take())


def test_records_whose_snapshots_are_gone_do_not_stand_for_objects(bench: Bench) -> None:
    build(bench.path, TREE_WITH_NOTES)
    bench.point()
    with bench.store.exclusive():
        bench.store.refs.delete(bench.store.refs.names("refs/turnmark"))
        for name in os.listdir(f"{bench.store.base}/objects/pack"):
            os.unlink(f"{bench.store.base}/objects/pack/{name}")
        bench.store.next_generation()
    exact(bench, bench.recorder.take([RelPath(b"x/y")]))
    fsck(bench.store.base)


def test_a_root_that_was_replaced_is_looked_at_anew(bench: Bench) -> None:
    build(bench.path, TREE_WITH_NOTES)
    bench.point()
    shutil.rmtree(bench.path)
    build(bench.path, {"x/y": "another", "s/secret": "s"})
    bench.recorder.take([RelPath(b"x/y")])
    exact(bench, bench.recorder.take())


def test_a_clock_that_jumps_back_changes_neither_order_nor_truth(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    now = [2_000_000_000_000_000_000]
    bench.recorder.clock = lambda: now[0]
    taken = []
    for number, jump in enumerate((0, -(10**18), 10**18, -(19 * 10**17), 1)):
        now[0] += jump
        build(bench.path, {"f": str(number), f"only{number}": "x"})
        taken.append(bench.point())
        exact(bench, taken[-1])
    history = bench.history()
    assert [s.id for s in history.snapshots()] == [t.snapshot.id for t in taken]
    assert bench.reopen().last == taken[-1].snapshot
    fsck(bench.store.base)


def test_files_from_the_future_are_captured_and_their_changes_seen(bench: Bench) -> None:
    build(bench.path, {"f": "one"})
    for text in ("two", "six"):
        os.utime(bench.path / "f", (2**33, 2**33))
        exact(bench, bench.point())
        (bench.path / "f").write_text(text)
    os.utime(bench.path / "f", (-5, -5))
    exact(bench, bench.point())


@pytest.mark.parametrize("paths", [None, [RelPath(b"f")]])
def test_what_is_written_through_a_map_after_it_was_looked_at_is_not_missed(
    bench: Bench, paths: list[RelPath] | None
) -> None:
    """On a page that is dirty already no time stamp moves, and no event comes."""
    build(bench.path, {"f": "-" * 4096})
    bench.point()

    def seen() -> bytes:
        files = bench.recorder.take(paths).snapshot.files
        return bench.store.blob(dict(files_of(bench.store.tree, files))[RelPath(b"f")].oid)[:5]

    with open(bench.path / "f", "r+b") as file, mmap.mmap(file.fileno(), 4096) as mapped:
        for word in (b"first", b"again", b"third"):
            mapped[:5] = word
            assert seen() == word
            assert b"f" in bench.recorder.always
        mapped[:5] = b"last."
    assert seen() == b"last."
    bench.reopen()
    bench.recorder.take()
    assert not bench.recorder.always


class Opening(Disk):
    """Writes down what is opened."""

    def __init__(self) -> None:
        self.opened_names: list[bytes | str] = []

    def open(self, name: bytes | str, flags: int, mode: int = 0o600, at: int | None = None) -> int:
        self.opened_names.append(name)
        return super().open(name, flags, mode, at)


def test_a_file_that_was_just_written_is_read_again_by_the_next_look(bench: Bench) -> None:
    """Another write in the same tick of the clock would leave its times as they are."""
    disk = Opening()
    bench.reopen(disk)
    for number in range(5):
        begun = time.monotonic_ns()
        build(bench.path, {"f": str(number)})
        bench.recorder.take()
        at_once = time.monotonic_ns() - begun < FRESH_NS
        disk.opened_names.clear()
        bench.recorder.take()
        assert b"f" in disk.opened_names or not at_once


def test_capturing_writes_nothing_into_the_workspace(bench: Bench) -> None:
    build(
        bench.path, {"d/f": "1", "e/": Dir(), "l": Link("d"), ".git/HEAD": "x", ".gitignore": "g"}
    )
    before, sentry = image(bench.path, skip=()), Sentry(bench.path, CHANGED)
    bench.recorder.take(mark=MarkSpec("manual"))
    bench.recorder.take([RelPath(b"d/f"), RelPath(b"e")])
    bench.recorder.look()
    bench.reopen().take()
    assert not sentry.told()
    sentry.close()
    assert image(bench.path, skip=()) == before


def test_a_directory_whose_entry_stands_in_the_name_of_another_is_not_taken_for_it(
    bench: Bench,
) -> None:
    """In the tree the whole entry of `a` stands also within that of `x40000 a`."""
    build(bench.path, {"d/a/f": "same", "d/x40000 a/f": "same", "top": "x"})
    bench.point()
    bench.point()
    build(bench.path, {"d/a/f": "other"})
    taken = bench.recorder.take([RelPath(b"d/a/f")])
    assert taken.changed == 1
    exact(bench, taken)
    fsck(bench.store.base)
    build(bench.path, {"d/x40000 a/f": "other"})
    exact(bench, bench.recorder.take([RelPath(b"d/x40000 a/f")]))


def test_a_directory_that_was_empty_or_becomes_so_leaves_its_tree_and_comes_back(
    bench: Bench,
) -> None:
    build(bench.path, {"d/a/f": "1", "d/b/f": "1", "top": "x"})
    bench.point()
    for fill in (False, True, False):
        if fill:
            build(bench.path, {"d/a/f": "2"})
        else:
            (bench.path / "d/a/f").unlink()
        taken = bench.recorder.take([RelPath(b"d/a/f")])
        exact(bench, taken)
        assert not bench.recorder.take().fresh
    fsck(bench.store.base)


def test_a_name_that_ends_like_the_entry_of_another_is_not_taken_for_it(tmp_path: Path) -> None:
    """In the tree the whole entry of `a` stands also within that of `x100644 a`."""
    bench = Bench(tmp_path)
    build(bench.path, {"d/a": "same", "d/x100644 a": "same"})
    bench.point()
    bench.point()
    build(bench.path, {"d/a": "other"})
    taken = bench.recorder.take([RelPath(b"d/a")])
    assert taken.changed == 1
    entries = files_of(bench.store.tree, taken.snapshot.files)
    found = {path: bench.store.blob(entry.oid) for path, entry in entries}
    assert found == {b"d/a": b"other", b"d/x100644 a": b"same"}


# Full looks that splice new contents in


@pytest.mark.parametrize("below", [False, True], ids=["alone", "and below it"])
def test_what_was_read_within_a_tick_of_its_change_is_read_again(bench: Bench, below: bool) -> None:
    """Found by a reviewer: in a directory with a changed one below it the doubt was lost."""
    build(bench.path, {"d/file": "old", "d/sub/other": "1"})
    bench.point()
    time.sleep(2 * FRESH_NS / 1e9)
    bench.point()
    target = bench.path / "d/file"
    with open(target, "r+b", buffering=0) as file:
        file.truncate(3)
        with mmap.mmap(file.fileno(), 3) as mapped:
            mapped[:] = b"A00"
            if below:
                build(bench.path, {"d/sub/other": "2"})
            bench.point()
            mapped[1:2] = b"B"  # the page is dirty already: no time stamp moves
            taken = bench.point()
    found = dict(files_of(bench.store.tree, taken.snapshot.files))
    assert bench.store.blob(found[RelPath(b"d/file")].oid) == b"AB0"


def test_many_new_contents_in_one_directory_are_not_looked_for_one_by_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by a reviewer: 16,000 of them took 23 seconds."""
    names = [f"{n:04}" for n in range(300)]
    build(bench.path, dict.fromkeys(names, "old"))
    bench.point()
    asked: list[bytes] = []

    def counted(raw: bytes, name: bytes) -> Entry | None:
        asked.append(name)
        return child_in(raw, name)

    monkeypatch.setattr("core.splice.SPLICE_MOST", 100_000)
    monkeypatch.setattr("core.splice.child_in", counted)
    build(bench.path, dict.fromkeys(names, "new"))
    assert bench.point().changed == 300
    build(bench.path, dict.fromkeys(names, "newer"))
    assert bench.recorder.take([RelPath(name.encode()) for name in names]).changed == 300
    assert asked == []
    time.sleep(2 * FRESH_NS / 1e9)
    bench.point()
    asked.clear()  # of those that were written a moment before the last look
    build(bench.path, dict.fromkeys(names[:5], "newest"))
    assert bench.point().changed == 5
    assert len(asked) == 5


@pytest.mark.parametrize("large", ["large", "a/large", "a/b/large", "a/b/c/large", "z/large"])
def test_where_a_large_file_is_may_be_looked_at_first(bench: Bench, large: str) -> None:
    others = ["a/b/c/d/f", "a/b/f", "a/f", "z/y/f"]
    build(bench.path, {large: b"x" * LARGE_BYTES} | dict.fromkeys(others, "x"))
    bench.point()
    build(bench.path, {large: b"y" * LARGE_BYTES} | dict.fromkeys(others, "y"))
    paths = [RelPath(os.fsencode(path)) for path in (large, *others)]
    taken = bench.recorder.take(paths, MarkSpec("manual"))
    assert taken.changed == 5
    assert not bench.recorder.take().fresh


def test_no_directory_is_given_out_before_another_that_lies_in_it() -> None:
    asked = [b"", b"a", b"a-b", b"a/b", b"a/b/c", b"a/b/c/d", b"q/r/s", b"z"]
    lonely = {b"a-b", b"a/b/c/d", b"q/r/s", b"z"}
    names = {RelPath(path): {b"f"} for path in asked}
    for first in chain.from_iterable(permutations(names, count) for count in range(3)):
        pending, order = Deepest(names, first), list[RelPath]()
        while (task := pending.pop()) is not None:
            order.append(task.path)
            pending.hand_up(Outcome(task.path, None, None, NOTHING))
        assert sorted(order) == sorted([*asked, b"q", b"q/r"])
        for place, path in enumerate(order):
            assert not any(path in parents(later) for later in order[place:])
        begun = lonely.intersection(first)
        assert set(order[: len(begun)]) == begun


def test_only_a_large_file_that_is_asked_for_comes_first(bench: Bench) -> None:
    build(bench.path, {"d/large": b"x" * LARGE_BYTES, "d/small": "x", "d/e/f": "x"})
    bench.point()
    splicer = Splicer(Beneath(Disk(), os.fsencode(bench.path)), TreesOnly(), ALL, Lister(
        Disk(), bench.recorder.tree))  # fmt: skip
    asked = {name: splicer.may_take_long(RelPath(b"d"), {name}) for name in (b"large", b"small")}
    assert asked == {b"large": True, b"small": False}
    assert not splicer.may_take_long(RelPath(b"d/e"), {b"f"})
    assert not splicer.may_take_long(RelPath(b"none"), {b"f"})
    splicer.beneath.close()
