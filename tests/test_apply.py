"""The steps of a rollback where the file system, or somebody else, is in the way."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from core.disk import Disk, Name
from core.history import MarkSpec
from core.model import RelPath
from core.recorder import Taken as Point
from core.rollback import Request, undo_request
from tests.stores import Bench
from tests.test_races import SwappingDisk
from tests.trees import Dir, File, Image, Leaf, Link, build, image

Tree = dict[str, Leaf]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


class NoExchange(Disk):
    """Like NFS: two names cannot change places in one step."""

    def exchange(self, old: bytes, new: bytes, at: int, to: int) -> None:
        raise OSError(errno.EINVAL, "not here")


class NoRenameat2(Disk):
    """Nor is there a rename that takes nobody's name."""

    def _rename2(self, old: bytes, new: bytes, at: int, to: int, flags: int) -> None:
        raise OSError(errno.ENOSYS, "not here")


WITHOUT = pytest.mark.parametrize("disk", [NoExchange(), NoRenameat2()], ids=["exchange", "both"])


@WITHOUT
def test_where_names_cannot_be_exchanged_all_comes_back_in_two_steps(
    bench: Bench, disk: Disk
) -> None:
    build(bench.path, Tree({"a": "1", "d/b": "2", "l": Link("a")}))
    point, before = bench.point(), image(bench.path)
    (bench.path / "l").unlink()
    build(bench.path, Tree({"a": "changed", "d/b": "changed", "l": Link("d")}))
    bench.reopen(disk)
    done = bench.back_to(point)
    assert (done.outcome, done.conflicts) == ("done", ())
    assert image(bench.path) == before


def test_where_no_rename_spares_a_name_it_is_spared_all_the_same(bench: Bench) -> None:
    build(bench.path, {"gone": "then", "other": "x"})
    point = bench.point()
    (bench.path / "gone").unlink()
    bench.reopen(Coming(bench.path / "gone"))
    done = bench.back_to(point)
    assert [(c.path, c.reason) for c in done.conflicts] == [(b"gone", "appeared since")]
    assert (bench.path / "gone").read_text() == "theirs"
    assert not [name for name in os.listdir(bench.path) if name.startswith(".turnmark")]


class Coming(NoRenameat2):
    """Somebody makes a file of the name in the moment before it is brought back."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def link(self, old: Name, new: Name, at: int | None = None, to: int | None = None) -> None:
        if new == os.fsencode(self.path.name):
            self.path.write_text("theirs")
        super().link(old, new, at, to)


@WITHOUT
def test_where_names_cannot_be_exchanged_a_writer_keeps_its_file(bench: Bench, disk: Disk) -> None:
    build(bench.path, {"a": "1"})
    point = bench.point()
    build(bench.path, {"a": "changed"})
    bench.reopen(disk)
    with open(bench.path / "a", "r+b") as file:
        done = bench.back_to(point)
        file.write(b"CH")
    assert [left.path for left in done.conflicts] == [b"a"]
    assert (bench.path / "a").read_text() == "CHanged"


class OtherSystem(Disk):
    """The directory d is a mount that has come since."""

    def rename_new(self, old: bytes, new: bytes, at: int, to: int) -> None:
        if new == b"in":
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        super().rename_new(old, new, at, to)


def test_what_cannot_be_moved_to_another_file_system_is_a_conflict_and_stops_nothing(
    bench: Bench,
) -> None:
    build(bench.path, {"d/in": "1", "a": "1", "d/stays": ""})
    point = bench.point()
    (bench.path / "d/in").unlink()
    build(bench.path, {"a": "changed"})
    bench.reopen(OtherSystem())
    done = bench.back_to(point)
    assert [(c.path, c.reason) for c in done.conflicts] == [
        (b"d/in", "lies on another file system")
    ]
    assert (bench.path / "a").read_text() == "1"
    assert not [name for name in os.listdir(bench.path) if name.startswith(".turnmark")]


def test_what_is_put_beside_its_place_takes_nobodys_name(bench: Bench) -> None:
    build(bench.path, {"link.saved-1": "the user's own"})
    point = bench.point()
    build(bench.path, Tree({"link": Link("f")}))
    bench.recorder.take(mark=MarkSpec("manual"))
    bench.reopen(SwappingDisk(bench.path, again=True))
    bench.back_to(point)
    assert (bench.path / "link.saved-1").read_text() == "the user's own"
    assert (bench.path / "link.saved-2/precious").read_text() == "not in any snapshot"


class GoneAndTaken(SwappingDisk):
    """And what is moved aside cannot go beside its place either: by then its directory is gone."""

    def rename_new(self, old: bytes, new: bytes, at: int, to: int) -> None:
        if new.startswith(b"link.saved-") and (self.root / "link").exists():
            shutil.rmtree(self.root)
        super().rename_new(old, new, at, to)


@pytest.mark.parametrize("there", [Tree(), Tree({"link.saved-2": "the user's own"})])
def test_what_cannot_go_beside_its_place_goes_into_the_root(bench: Bench, there: Tree) -> None:
    """The directory that it was taken from went away meanwhile, with all that was in it."""
    build(bench.path, Tree({"d/e/f": "1"}) | there)
    point = bench.point()
    build(bench.path, Tree({"d/e/link": Link("f"), "d/e/new": "2"}))
    bench.reopen(GoneAndTaken(bench.path / "d/e", again=True))
    done = bench.back_to(point)
    beside = f"link.saved-{3 if there else 2}"
    assert f"swapped while rolling back; now {beside}" in [left.reason for left in done.conflicts]
    assert (bench.path / beside / "precious").read_text() == "not in any snapshot"
    assert not there or (bench.path / "link.saved-2").read_text() == "the user's own"
    assert not [name for name in os.listdir(bench.path) if name.startswith(".turnmark")]
    assert bench.finish() is None


class Taken(Disk):
    """Somebody writes a third content the moment a file was displaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done = False

    def _third(self) -> None:
        if not self.done:
            self.done = True
            self.path.write_text("a third content")

    def exchange(self, old: bytes, new: bytes, at: int, to: int) -> None:
        super().exchange(old, new, at, to)
        self._third()

    def rename_new(self, old: bytes, new: bytes, at: int, to: int) -> None:
        super().rename_new(old, new, at, to)
        if old == b"a":
            self._third()


@pytest.mark.parametrize("then", [Tree({"a": "then"}), Tree()])
def test_who_keeps_a_displaced_file_open_loses_nothing_that_he_writes_later(
    bench: Bench, then: Tree
) -> None:
    """Found by the campaign's races: its name is another's by now, so that it cannot go back."""
    build(bench.path, Tree({"other": "x"}) | then)
    point = bench.point()
    build(bench.path, Tree({"a": "now"}))
    with open(bench.path / "a", "r+b", buffering=0) as held:
        bench.reopen(Taken(bench.path / "a"))
        bench.back_to(point)
        held.write(b"what the agent writes next")
    bench.reopen()
    kept = {leaf[-1] for leaf in image(bench.path).values()} | set(bench.every_blob())
    assert {b"a third content", b"what the agent writes next"} <= kept
    assert not [name for name in os.listdir(bench.path) if name.startswith(".turnmark")]


class TakenTwice(Taken):
    """And has written a second one just before."""

    def rename_new(self, old: bytes, new: bytes, at: int, to: int) -> None:
        if old == b"a" and not self.done:
            self.path.write_text("a second content")
            self.path.chmod(0o750)
        super().rename_new(old, new, at, to)


def test_a_content_that_nothing_else_holds_can_be_had_back_with_its_mode(bench: Bench) -> None:
    build(bench.path, {"other": "x"})
    point = bench.point()
    build(bench.path, {"a": "now"})
    bench.reopen(TakenTwice(bench.path / "a"))
    done = bench.back_to(point)
    (saved,) = [left.reason for left in done.conflicts if "saved" in left.reason]
    bench.reopen()
    (kept,) = [one for one in bench.history().snapshots() if one.partial]
    assert saved.endswith(f"turnmark cat {kept.id.hex()[:12]} a")
    assert (bench.path / "a").read_text() == "a third content"
    bench.go(Request(kept.id, kept.seq, "what was saved", paths=(RelPath(b"a"),)))
    assert image(bench.path)[b"a"] == ("file", 0o750, b"a second content")


class Unbringing(Disk):
    """Fails, once, when what the point has at k is to be brought; before that somebody may act."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.meanwhile = meanwhile
        self.struck = False

    def _strike(self, name: object) -> None:
        if name == b"k" and not self.struck:
            self.struck = True
            self.meanwhile()
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def mkdir(self, name: bytes | str, mode: int = 0o700, at: int | None = None) -> None:
        self._strike(name)
        super().mkdir(name, mode, at)

    def rename_new(self, old: bytes, new: bytes, at: int, to: int) -> None:
        self._strike(new)
        super().rename_new(old, new, at, to)


FULL = Tree(
    {
        "k/f": File("kept", 0o600),
        "k/link": Link("f"),
        "k/deep/closed/f": "deep",
        "k/empty/": Dir(0o750),
        "k/deep/closed/": Dir(0o555),
        "k/deep/": Dir(0o500),
        "k/": Dir(0o711),
    }
)
OTHER_KINDS = [
    (Tree({"k": File("now", 0o640)}), Tree({"k/then": "x"})),
    (Tree({"k": Link("nowhere")}), Tree({"k/": Dir()})),
    (Tree({"k/": Dir(0o550)}), Tree({"k": "then"})),
    (FULL, Tree({"k": "then"})),
    (FULL, Tree({"k": Link("nowhere")})),
]


@pytest.mark.parametrize(("now", "then"), OTHER_KINDS)
def test_what_made_room_for_what_could_not_be_brought_is_there_again(
    bench: Bench, now: Tree, then: Tree
) -> None:
    """Found by the campaign's errors at every nth call: there was neither the old nor the new."""
    point, before, wanted = between_kinds(bench, now, then)
    bench.reopen(Unbringing())
    done = bench.back_to(point)
    assert (b"k", "input/output error") in [(left.path, left.reason) for left in done.conflicts]
    assert {left.path for left in done.conflicts} >= {p for p in before if p[:1] == b"k"}
    assert image(bench.path) == before | {b"other": wanted[b"other"]}
    assert bench.finish() is None
    bench.go(undo_request(bench.store, bench.root.id))
    assert image(bench.path) == before
    bench.back_to(point)
    assert image(bench.path) == wanted


def between_kinds(bench: Bench, now: Tree, then: Tree) -> tuple[Point, Image, Image]:
    build(bench.path, Tree({"other": "then"}) | then)
    point, wanted = bench.point(), image(bench.path)
    clear(bench.path / "k")
    build(bench.path, Tree({"other": "now"}) | now)
    return point, image(bench.path), wanted


def clear(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


class UnbringingByTwo(NoExchange, Unbringing):
    """And names cannot be exchanged."""


def test_where_names_cannot_be_exchanged_what_went_first_comes_back(bench: Bench) -> None:
    point, before, wanted = between_kinds(bench, Tree({"k": "now"}), Tree({"k": "then"}))
    bench.reopen(UnbringingByTwo())
    done = bench.back_to(point)
    assert [(c.path, c.reason) for c in done.conflicts] == [(b"k", "input/output error")]
    assert image(bench.path) == before | {b"other": wanted[b"other"]}


@pytest.mark.parametrize("theirs", [Tree({"k": "theirs"}), Tree({"k/f": "theirs", "k/g": "more"})])
@pytest.mark.parametrize(("now", "then"), OTHER_KINDS)
def test_what_came_into_its_place_meanwhile_stays(
    bench: Bench, now: Tree, then: Tree, theirs: Tree
) -> None:
    point, before, _ = between_kinds(bench, now, then)
    bench.reopen(Unbringing(lambda: build(bench.path, theirs)))
    done = bench.back_to(point)
    assert b"k" in {left.path for left in done.conflicts}
    after = image(bench.path)
    for name in theirs:
        assert after[os.fsencode(name)][-1] == os.fsencode(str(theirs[name]))
    lost = {leaf[-1] for leaf in before.values() if leaf[0] != "dir"} - bench.every_blob()
    assert not lost
    assert not [name for name in after if name.startswith(b".turnmark")]


def test_a_directory_that_was_made_anew_meanwhile_gets_back_what_the_old_one_held(
    bench: Bench,
) -> None:
    point, before, _ = between_kinds(bench, FULL, Tree({"k": "then"}))
    mode = Dir(0o770)
    bench.reopen(Unbringing(lambda: build(bench.path, {"k/g": "theirs", "k/": mode})))
    bench.back_to(point)
    after = image(bench.path)
    assert (after[b"k"], after[b"k/g"][-1]) == (("dir", 0o770), b"theirs")
    assert all(after[p] == leaf for p, leaf in before.items() if p.startswith(b"k/"))


def test_a_directory_that_cannot_go_since_one_file_in_it_is_in_use_stays_whole(
    bench: Bench,
) -> None:
    point, before, wanted = between_kinds(bench, FULL, Tree({"k": "then"}))
    with open(bench.path / "k/deep/closed/f", "r+b"):
        bench.back_to(point)
    assert image(bench.path) == before | {b"other": wanted[b"other"]}


class Appearing(Disk):
    """Somebody puts a file into a directory in the moment before it goes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def rmdir(self, name: bytes | str, at: int | None = None) -> None:
        if name == os.fsencode(self.path.name):
            (self.path / "new").write_text("theirs")
        super().rmdir(name, at)


def test_a_directory_that_cannot_go_is_as_closed_as_it_was(bench: Bench) -> None:
    build(bench.path, {"a": "x"})
    point = bench.point()
    build(bench.path, Tree({"d/f": "x", "d/": Dir(0o555)}))
    bench.recorder.take()
    bench.reopen(Appearing(bench.path / "d"))
    done = bench.back_to(point)
    assert [(c.path, c.reason) for c in done.conflicts] == [
        (b"d", "not empty: something appeared in it")
    ]
    assert image(bench.path)[b"d"] == ("dir", 0o555)


class Unreturning(Unbringing):
    """Nor does it give a file back."""

    def rename_new(self, old: bytes, new: bytes, at: int, to: int) -> None:
        if new == b"link":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().rename_new(old, new, at, to)


def test_what_cannot_be_put_back_is_told_and_kept(bench: Bench) -> None:
    point, before, wanted = between_kinds(bench, FULL, Tree({"k": "then"}))
    bench.reopen(Unreturning())
    done = bench.back_to(point)
    reasons = {left.path: left.reason for left in done.conflicts}
    assert reasons[RelPath(b"k/link")] == "could not be put back: input/output error"
    assert reasons[RelPath(b"k/f")] == "put back, as k could not be brought"
    del before[b"k/link"]
    assert image(bench.path) == before | {b"other": wanted[b"other"]}
    bench.reopen()
    bench.go(undo_request(bench.store, bench.root.id))
    assert (bench.path / "k/link").is_symlink()
