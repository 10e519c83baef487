"""A directory in which no name can have come or gone is not listed again; all others are."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest

import core.proofs
import core.scan
from core.diff import files_of
from core.disk import REAL, Disk
from core.errors import TurnmarkError
from core.listing import Lister, Listing
from core.model import ROOT, RelPath
from core.proofs import DIRECTORY
from core.recorder import Recorder
from core.rules import RuleSet
from core.worktree import WorkTree
from tests.scouts import Patient
from tests.stores import Bench
from tests.trees import build
from tests.watching import until

TREE = {f"{top}/{low}/f{n}": f"{top} {low} {n}" for top in "ab" for low in "de" for n in range(3)}
ALL = sorted(map(RelPath, (b"", b"a", b"b", b"a/d", b"a/e", b"b/d", b"b/e")))


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> list[RelPath]:
    """The directories that were listed, in this process."""
    seen: list[RelPath] = []
    real = Lister._listed_anew

    def listed_anew(self: Lister, fd: int, path: RelPath) -> object:
        seen.append(path)
        return real(self, fd, path)

    monkeypatch.setattr(Lister, "_listed_anew", listed_anew)
    return seen


@pytest.fixture
def bench(tmp_path: Path, listed: list[RelPath]) -> Bench:
    """Of which nothing changed for so long that all is believed."""
    bench = Bench(tmp_path)
    build(bench.path, TREE)
    settle(bench, listed)
    return bench


def settle(bench: Bench, listed: list[RelPath]) -> None:
    def is_quiet() -> bool:
        listed.clear()
        bench.point()
        return not listed

    until(is_quiet)


def as_listed_anew(bench: Bench) -> tuple[object, bytes]:
    known, bench.recorder.tree.stamps = bench.recorder.tree.stamps, {}
    seen = bench.recorder.look()
    bench.recorder.tree.stamps = known
    return seen.files, seen.about


def test_what_changed_is_listed_and_nothing_else(bench: Bench, listed: list[RelPath]) -> None:
    (bench.path / "b/d/new").write_text("x")
    assert bench.point().changed == 1
    assert listed == [b"b/d"]


def test_new_contents_are_seen_without_listing(bench: Bench, listed: list[RelPath]) -> None:
    (bench.path / "b/d/f1").write_text("other")
    (bench.path / "a").chmod(0o700)
    assert bench.point().changed == 2
    assert listed == [b"a"]  # whose own change time moved


def _swap(path: Path) -> None:
    with REAL.opened(str(path), DIRECTORY) as fd:
        REAL.exchange(b"d", b"e", fd, fd)


def _file_to_directory(path: Path) -> None:
    (path / "d/f0").unlink()
    build(path, {"d/f0/inside": "x"})


def _directory_to_file(path: Path) -> None:
    for name in ("f0", "f1", "f2"):
        (path / "d" / name).unlink()
    (path / "d").rmdir()
    (path / "d").write_text("a file")


def _link_in_its_place(path: Path) -> None:
    (path / "d/f0").unlink()
    (path / "d/f0").symlink_to("f1")


def _made_and_gone(path: Path) -> None:
    (path / "d/t").touch()
    (path / "d/t").unlink()


def _gone_and_made(path: Path) -> None:
    (path / "d/f0").unlink()
    (path / "d/f0").write_text("a d 0")


CHANGES: dict[str, Callable[[Path], object]] = {
    "deleted": lambda path: os.unlink(path / "d/f0"),
    "renamed": lambda path: (path / "d/f0").rename(path / "d/g0"),
    "renamed over another": lambda path: (path / "d/f0").rename(path / "d/f1"),
    "moved elsewhere": lambda path: (path / "d/f0").rename(path / "e/f9"),
    "directory renamed": lambda path: (path / "d").rename(path / "g"),
    "directories exchanged": _swap,
    "a link in its place": _link_in_its_place,
    "a directory in its place": _file_to_directory,
    "a file in a directory's place": _directory_to_file,
    "made and gone again": _made_and_gone,
    "gone and made again": _gone_and_made,
    "an empty directory": lambda path: os.mkdir(path / "d/h"),
    "rules": lambda path: (path / "d/.gitignore").write_text("f1\n"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_whatever_came_or_went_is_seen(
    bench: Bench, listed: list[RelPath], change: Callable[[Path], object]
) -> None:
    change(bench.path / "a")
    taken = bench.point()
    assert (taken.snapshot.files, bench.recorder.look().about) == as_listed_anew(bench)
    settle(bench, listed)
    assert bench.recorder.last is not None
    assert bench.recorder.last.files == as_listed_anew(bench)[0]


def test_what_was_looked_at_by_its_path_is_listed_once_more(
    bench: Bench, listed: list[RelPath]
) -> None:
    (bench.path / "a/d/new").write_text("x")
    bench.recorder.take([RelPath(b"a/d/new")])
    listed.clear()
    assert bench.point().changed == 0
    assert listed == [b"a/d"]


def test_a_directory_that_changed_a_moment_ago_is_not_believed(
    bench: Bench, listed: list[RelPath], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On most kernels another name could come within the same tick of the clock."""
    monkeypatch.setattr(core.proofs, "is_fresh", lambda changed, now: True)
    (bench.path / "a/d/new").write_text("x")
    bench.point()
    listed.clear()
    bench.point()
    assert listed == [b"a/d"]


def test_where_a_file_system_may_not_tell_all_is_listed(
    bench: Bench, listed: list[RelPath], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Disk, "mount_that_keeps_times", lambda self, fd: 0)
    bench.recorder.tree.stamps.clear()
    for _ in range(2):
        listed.clear()
        bench.point()
        assert sorted(listed) == ALL


def test_another_disk_below_is_listed(bench: Bench, listed: list[RelPath]) -> None:
    with bench.recorder._beneath() as beneath:
        beneath.identity = (beneath.identity[0] + 1, beneath.identity[1])
        lister = Lister(REAL, bench.recorder.tree)
        lister.believe_times(beneath)
        lister.listing(beneath.fd, ROOT)
    assert lister.stamps == {ROOT: b""}


def test_a_file_system_that_nobody_knows_is_not_believed() -> None:
    with REAL.opened("/proc", DIRECTORY) as fd:
        assert REAL.mount_that_keeps_times(fd) == 0


def test_the_next_process_lists_all(bench: Bench, listed: list[RelPath]) -> None:
    """After a power cut a directory may hold other names, and have its old change time."""
    bench.reopen()
    listed.clear()
    assert bench.point().changed == 0
    assert sorted(listed) == ALL


def test_a_new_name_that_could_not_be_stored_is_seen_by_the_next_look(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError("no room")

    (bench.path / "a/d/new").write_text("x")
    with monkeypatch.context() as patched:
        patched.setattr(Recorder, "_publish", full)
        with pytest.raises((OSError, TurnmarkError)):
            bench.point()
    assert bench.point().changed == 1


def test_a_name_that_goes_while_it_is_looked_at_has_the_directory_listed(
    bench: Bench, listed: list[RelPath], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Disk.lstat_all

    def gone(self: Disk, names: list[bytes], at: int) -> list[os.stat_result]:
        if b"f2" in names:
            os.unlink(b"f2", dir_fd=at)
        return real(self, names, at)

    monkeypatch.setattr(Disk, "lstat_all", gone)
    assert bench.point().changed == 4
    assert {b"a/d", b"a/e", b"b/d", b"b/e"} <= set(listed)


def test_files_with_several_names_or_written_through_maps_are_told_of(
    bench: Bench, listed: list[RelPath]
) -> None:
    os.link(bench.path / "a/d/f0", bench.path / "b/same")
    (bench.path / "a/x.db").write_text("x")
    settle(bench, listed)
    assert bench.recorder.always == {b"a/d/f0", b"b/same", b"a/x.db"}


def test_what_a_scout_has_listed_is_not_listed_again(
    bench: Bench, listed: list[RelPath], monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = Patient(monkeypatch)
    (bench.path / "a/d/new").write_text("x")
    bench.recorder.tree.stamps.clear()
    listed.clear()
    assert bench.point().changed == 1
    assert patient.sent
    assert sorted(listed) == [b"", b"a", b"a/d"]  # the others, by the scout
    listed.clear()
    bench.point()
    patient.station.close()
    assert set(listed) <= {b"a/d"}
    assert bench.recorder.last is not None
    assert bench.recorder.last.files == as_listed_anew(bench)[0]


def test_a_scouts_word_counts_only_where_the_look_found_nothing_else(bench: Bench) -> None:
    with bench.recorder._beneath() as beneath:
        look = core.scan.Look(bench.recorder.tree, beneath, None, bench.recorder.rules)  # type: ignore[arg-type]
        path, other, third = RelPath(b"a"), RelPath(b"b"), RelPath(b"c")
        look.changes[path] = None
        look.stamps[other] = b"its own"
        look._believe({path: b"scout's", other: b"scout's", third: b"scout's"})
        assert look.stamps == {other: b"its own", third: b"scout's"}


def test_records_that_are_dropped_take_their_stamps_along(tmp_path: Path) -> None:
    tree = WorkTree(str(tmp_path / "tree.db"))
    tree.stamps[ROOT] = b"stamp"
    tree.forget()
    assert tree.stamps == {}
    tree.close()


def test_a_listing_gives_its_names_as_text() -> None:
    assert Listing(0o755, b"a\0\xff", b"").names == ["a", "\udcff"]
    assert Listing(0o755, b"", b"").names == []


# Found by a reviewer: a directory's own change time stays when one above it is renamed


def _swapped_for_a_guest(bench: Bench, files: dict[str, str]) -> Callable[[], object]:
    """Puts another `a` in the place of it, whose `d` has just changed; returns the way back."""
    build(bench.base / "guest", files)
    (bench.path / "a").rename(bench.base / "host")
    (bench.base / "guest/d/t").touch()
    (bench.base / "guest/d/t").unlink()
    (bench.base / "guest").rename(bench.path / "a")

    def back() -> None:
        (bench.path / "a").rename(bench.base / "guest")
        (bench.base / "host").rename(bench.path / "a")

    return back


@pytest.mark.parametrize(
    "guest",
    [
        {"d/f0/inside": "x", "d/f1": "y", "d/f2": "z"},
        {"d/f0": "other", "d/f1": "y", "d/f2": "z"},
        {"d/other": "x"},
    ],
    ids=["other kinds", "other contents", "other names"],
)
def test_what_comes_back_to_its_place_is_seen(
    bench: Bench, listed: list[RelPath], guest: dict[str, str]
) -> None:
    before = bench.point()
    back = _swapped_for_a_guest(bench, guest)
    assert bench.point().snapshot.files != before.snapshot.files
    back()
    assert bench.point().snapshot.files == before.snapshot.files
    (bench.path / "a/d/f0").write_text("edited")
    after = bench.point()
    assert (after.changed, after.snapshot.gaps) == (1, 0)
    assert after.snapshot.files == as_listed_anew(bench)[0]


def test_a_look_that_begins_again_believes_nothing_of_the_first_time(
    tmp_path: Path, listed: list[RelPath], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, RuleSet(exclude=()))
    build(bench.path, TREE | {"b/.gitignore": "old\n"})
    settle(bench, listed)
    build(bench.path, {"a/new/n": "host", "a/new/secret": "host", "b/.gitignore": "not told of\n"})
    real = core.scan.Look.everything
    backs: list[Callable[[], object]] = []

    def everything(look: core.scan.Look) -> None:
        assert not backs
        backs.append(_swapped_for_a_guest(bench, {"new/n": "guest", "d/f0": "guest"}))
        real(look)

    with monkeypatch.context() as patched:
        patched.setattr(core.scan.Look, "everything", everything)
        bench.recorder.take([RelPath(b"a/new"), RelPath(b"b/d/f0")])
    backs[0]()
    settle(bench, listed)
    assert bench.recorder.last is not None
    found = dict(files_of(bench.store.tree, bench.recorder.last.files))
    assert RelPath(b"a/new/secret") in found


def test_stamps_stay_of_directories_on_record_only(tmp_path: Path, listed: list[RelPath]) -> None:
    bench = Bench(tmp_path, RuleSet(exclude=("cache",), protect=("cache/*/keep",)))
    build(bench.path, {"cache/stay/keep": "k"})
    settle(bench, listed)
    for number in range(3):
        passing = bench.path / f"cache/d{number}"
        build(bench.path, {f"cache/d{number}/f": "x"})
        bench.point()
        (passing / "f").unlink()
        passing.rmdir()
        bench.point()
    tree = bench.recorder.tree
    assert tree.stamps.keys() <= set(tree.paths())


def test_names_that_are_others_without_a_change_are_seen(
    bench: Bench, listed: list[RelPath], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is where a key comes that encrypts them, which moves no time."""
    monkeypatch.setattr(core.proofs, "_STAMP", lambda *_: b"the same")
    settle(bench, listed)
    for old, new in (("a", "c"), ("b", "d")):
        (bench.path / old).rename(bench.path / new)
    assert bench.point().changed == 24
    assert ROOT in listed


def test_stamps_are_forgotten_after_an_hour_and_with_another_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, now = WorkTree(str(tmp_path / "tree.db")), [1_000.0]
    monkeypatch.setattr("core.worktree.time.monotonic", lambda: now[0])
    tree.keep_stamps(7)
    for mount, later, kept in ((7, 3_599.0, True), (7, 3_601.0, False), (8, 3_601.0, False)):
        tree.stamps[ROOT] = b"stamp"
        now[0] = 1_000.0 + later
        tree.keep_stamps(mount)
        assert bool(tree.stamps) == kept
    tree.close()


def test_times_of_whole_seconds_are_not_believed() -> None:
    """Where the clock is set back another change may bear the same one."""
    assert core.proofs.may_come_again(5 * 10**9, 10**12)
    assert core.proofs.may_come_again(10**12 - 10**6, 10**12)
    assert not core.proofs.may_come_again(5 * 10**9 + 1, 10**12)


def test_a_file_that_grows_at_one_change_time_is_seen() -> None:
    """Found by a reviewer: a long write moves it once, at its start."""
    before = array("q", (0o100644, 7, 100, 5, 5)).tobytes()
    grown = os.stat_result((0o100644, 7, 0, 1, 0, 0, 200, 0, 0, 0, 0.0, 0.0, 0.0, 5, 5, 5))

    class Growing(Disk):
        def lstat_all(self, names: object, at: int) -> list[os.stat_result]:
            return [grown]

    found = core.proofs.asked_again(Growing(), 0, b"f", before)
    assert found is not None
    assert list(array("q", found[0])) == [0o100644, 7, 200, 5, 5]
