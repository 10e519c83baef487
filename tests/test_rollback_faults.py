"""A rollback that dies, or meets a broken disk, at any step loses nothing and is finished."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from core.diff import files_of
from core.disk import Disk
from core.errors import Damaged, TurnmarkError
from core.history import read_snapshot
from core.model import Oid, RelPath
from core.recorder import Recorder
from core.rollback import Request, finish_interrupted, rollback
from core.store import Store
from tests.faults import FaultyDisk, dies, failing, killing
from tests.stores import ALL, Bench, fsck
from tests.test_verify import damage_object
from tests.trees import Dir, File, Image, Leaf, Link, build, image

OLD: dict[str | bytes, Leaf] = {
    "same": "unchanged",
    "edited": File("before", 0o600),
    "tool": File("#!/bin/sh", 0o755),
    "gone/deep/f": "deleted by the agent",
    "gone/link": Link("nowhere"),
    "empty/": Dir(0o750),
    "kind": "was a file",
    "swap/inner": "was a directory",
}
NEW: dict[str | bytes, Leaf] = {
    "same": "unchanged",
    "edited": File("after", 0o644),
    "tool": File("#!/bin/sh", 0o644),
    "made/by/agent": "new",
    "made/link": Link("same"),
    "kind/": Dir(),
    "kind/inner": "is a directory",
    "swap": "is a file",
}


KINDS = (b"kind", b"kind/inner", b"swap", b"swap/inner")


def two_states(base: Path) -> tuple[Bench, Request, Image, Image]:
    bench = Bench(base)
    build(bench.path, OLD)
    before = image(bench.path)
    point = bench.point("the old state")
    assert point.mark is not None
    replace_tree(bench.path, NEW)
    now = image(bench.path)
    request = Request(point.snapshot.id, point.mark.seq, "the old state")
    plan = bench.go_plan(request)
    return bench, Request(request.target, request.seq, request.label, plan=plan), before, now


def replace_tree(path: Path, tree: dict[str | bytes, Leaf]) -> None:
    for name in os.listdir(path):
        inner = path / name
        if inner.is_dir() and not inner.is_symlink():
            shutil.rmtree(inner)
        else:
            inner.unlink()
    build(path, tree)


def contents(found: Image) -> set[object]:
    return {leaf[-1] for leaf in found.values() if leaf[0] in ("file", "link")}


def unsettled(found: Image, *states: Image) -> list[bytes]:
    """Paths that are as no state has them, but for the mode of a directory, which is told."""
    now, *ones = (
        {p: leaf[:1] if leaf[0] == "dir" else leaf for p, leaf in one.items()}
        for one in (found, *states)
    )
    paths = set(now).union(*ones)
    return [path for path in paths if now.get(path) not in [one.get(path) for one in ones]]


class NoRoomForOld(Disk):
    """Has no descriptor left when the second half of a staging directory is to be opened."""

    struck = 0

    def open(self, name: bytes | str, flags: int, mode: int = 0o600, at: int | None = None) -> int:
        if name == b"old" and not self.struck:
            self.struck += 1
            raise OSError(errno.EMFILE, "no descriptor left")
        return super().open(name, flags, mode, at)


def test_a_staging_directory_that_was_half_made_leaves_no_trace(tmp_path: Path) -> None:
    bench, request, _, now = two_states(tmp_path)
    disk = NoRoomForOld()
    with suppress(TurnmarkError, OSError):
        run_rollback(bench, request, disk)
    assert disk.struck
    bench.finish()
    assert image(bench.path) == now


def run_rollback(bench: Bench, request: Request, disk: Disk) -> None:
    recorder = Recorder(Store.open(bench.store.base, disk), bench.root, ALL)
    with recorder.store.workspace_lock(bench.root.id):
        finish_interrupted(recorder)
        rollback(recorder, request)
    recorder.close()


def test_killed_at_every_step_nothing_is_lost_and_the_next_command_finishes(
    tmp_path: Path,
) -> None:
    for number in range(1, 1000):
        bench, request, before, now = two_states(tmp_path / str(number))
        if not dies(partial(run_rollback, bench, request), number):
            assert number > 60
            return
        check_nothing_lost(bench, now)
        bench.reopen()
        bench.finish()
        after = image(bench.path)
        assert after in (before, now), f"neither state after death {number}"
        assert not bench.finish()
        assert bench.recorder.take() is not None
        bench.close()
        fsck(bench.store.base)


def check_nothing_lost(bench: Bench, now: Image, *damaged: Oid) -> None:
    kept = contents(image(bench.path)) | set(Bench(bench.base).every_blob(damaged))
    missing = contents(now) - kept
    assert not missing


@pytest.mark.parametrize(("number", "lasting"), [(errno.ENOSPC, True), (errno.EIO, False)])
def test_an_error_at_any_step_is_told_and_loses_nothing(
    tmp_path: Path, number: int, lasting: bool
) -> None:
    """And where it is said to be done, every path is as it was or as it shall be."""
    for at in range(1, 1000):
        bench, request, before, now = two_states(tmp_path / str(at))
        disk = FaultyDisk(at, failing(number), lasting=lasting)
        with suppress(TurnmarkError):
            run_rollback(bench, request, disk)
            assert not unsettled(image(bench.path), before, now), f"after an error at {at}"
        check_nothing_lost(bench, now)
        bench.reopen()
        bench.finish()
        bench.recorder.take()
        assert not [n for n in os.listdir(bench.path) if n.startswith(".turnmark")]
        fsck(bench.store.base)
        bench.close()
        if not disk.struck:
            assert at > 60
            assert image(bench.path) == before
            return


def at_exchange(verb: str) -> None:
    if verb == "exchange":
        killing(verb)


def files_oid(bench: Bench, target: Oid) -> Oid:
    return read_snapshot(bench.store, target).files


def edited_oid(bench: Bench, target: Oid) -> Oid:
    return dict(files_of(bench.store.tree, files_oid(bench, target)))[RelPath(b"edited")].oid


@pytest.mark.parametrize("lost", [files_oid, edited_oid], ids=["its tree", "a file"])
def test_a_killed_rollback_whose_point_is_lost_since_is_said_once_and_leaves_what_is_there(
    tmp_path: Path, lost: Callable[[Bench, Oid], Oid]
) -> None:
    bench, before, now = killed_half_way(tmp_path)
    oid = lost(bench, bench.history().snapshot_ids[1])
    damage_object(bench.store, oid)
    with pytest.raises(Damaged):
        bench.finish()
    check_nothing_lost(bench, now, oid)
    left = image(bench.path)
    assert not unsettled(left, before, now)
    assert not [name for name in left if name.startswith(b".turnmark")]
    assert bench.finish() is None
    build(bench.path, {"edited": "after that"})
    point = bench.point()
    build(bench.path, {"edited": "and later"})
    assert bench.back_to(point).outcome == "done"
    assert (bench.path / "edited").read_text() == "after that"


def killed_half_way(base: Path) -> tuple[Bench, Image, Image]:
    bench, request, before, now = two_states(base)
    half = FaultyDisk(1, at_exchange, lasting=True)
    assert dies(lambda _: run_rollback(bench, request, half), at=1 << 20)
    bench.reopen()
    return bench, before, now


def test_what_was_changed_after_the_kill_stays_and_is_told(tmp_path: Path) -> None:
    bench, before, _ = killed_half_way(tmp_path)
    theirs: dict[str | bytes, Leaf] = {"edited": File("mine by now", 0o600), "other": "mine too"}
    build(bench.path, theirs)
    done = bench.finish()
    assert done is not None
    assert [(left.path, left.reason) for left in done.conflicts] == [
        (b"edited", "changed since the rollback was interrupted")
    ]
    assert image(bench.path) == before | {
        b"edited": ("file", 0o600, b"mine by now"),
        b"other": ("file", 0o644, b"mine too"),
    }
    assert bench.finish() is None


def test_in_another_directory_in_the_place_of_the_root_nothing_is_finished(tmp_path: Path) -> None:
    bench, _, now = killed_half_way(tmp_path)
    bench.path.rename(tmp_path / "aside")
    build(bench.path, {"edited": "of another project", "swap": "also"})
    other = image(bench.path)
    assert bench.finish() is None
    assert image(bench.path) == other
    check_nothing_lost(bench, now)
    assert bench.finish() is None


class Unemptying(Disk):
    """Cannot empty a staging directory."""

    def unlink(self, name: bytes | str, at: int | None = None) -> None:
        if name == b"0":
            failing(errno.EIO)("unlink")
        super().unlink(name, at)


def test_an_error_while_finishing_is_told_and_the_next_command_finishes(tmp_path: Path) -> None:
    bench, before, now = killed_half_way(tmp_path)
    bench.reopen(Unemptying())
    with pytest.raises(TurnmarkError, match="finish the interrupted rollback"):
        bench.finish()
    check_nothing_lost(bench, now)
    bench.reopen()
    done = bench.finish()
    assert done is not None
    assert (done.outcome, done.conflicts) == ("done", ())
    assert image(bench.path) == before


class Unbringing(FaultyDisk):
    """Neither makes the directory nor brings the file that are to take the place of the other."""

    def mkdir(self, name: bytes | str, mode: int = 0o700, at: int | None = None) -> None:
        if name == b"swap":
            failing(errno.EIO)("mkdir")
        super().mkdir(name, mode, at)

    def rename_new(self, old: bytes, new: bytes, at: int, to: int) -> None:
        if new == b"kind":
            failing(errno.EIO)("rename_new")
        super().rename_new(old, new, at, to)


def run_unbringing(bench: Bench, request: Request, disk: Disk) -> None:
    assert isinstance(disk, FaultyDisk)
    run_rollback(bench, request, Unbringing(disk.at, disk.strike))


def test_killed_while_what_made_room_is_put_back_the_next_command_finishes(tmp_path: Path) -> None:
    bench, request, before, now = two_states(tmp_path / "whole")
    run_unbringing(bench, request, FaultyDisk(0, killing))
    done = image(bench.path)
    assert {p: done.get(p) for p in KINDS} == {p: now.get(p) for p in KINDS}
    assert not unsettled(done, before, now)
    for number in itertools.count(1):
        bench, request, before, now = two_states(tmp_path / str(number))
        if not dies(partial(run_unbringing, bench, request), number):
            assert number > 60
            return
        check_nothing_lost(bench, now)
        bench.reopen()
        bench.finish()
        assert image(bench.path) in (before, now, done), f"an unknown state after death {number}"
        bench.close()
        fsck(bench.store.base)
