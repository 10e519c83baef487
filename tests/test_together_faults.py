"""Rollbacks of several workspaces together that fail, or die, at any step: all are done or none.

`TURNMARK_DEEP=1 pytest tests/test_together_faults.py` leaves out no step.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from core.disk import REAL, Disk
from core.errors import TurnmarkError
from core.recorder import Recorder
from core.rollback import Request, undo_request
from core.store import Store
from core.together import Part, Together, rollback_all
from tests.faults import FaultyDisk, dies, failing
from tests.stores import ALL, Bench, fsck
from tests.trees import File, Image, Leaf, build, image

DEEP = bool(os.environ.get("TURNMARK_DEEP"))
OLD: dict[str | bytes, Leaf] = {"edited": File("before", 0o600), "gone": "deleted since"}
NEW: dict[str | bytes, Leaf] = {"edited": "after", "made": "new"}


class Session:
    """Owns two workspaces of one store, each with a state to go back to."""

    def __init__(self, base: Path) -> None:
        self.benches = [Bench(base, name=name) for name in ("one", "two")]
        for bench in self.benches:
            bench.reopen()
        self.requests: list[Request] = []
        self.before: list[Image] = []
        self.now: list[Image] = []
        for bench in self.benches:
            self.requests.append(self._changed(bench))

    def _changed(self, bench: Bench) -> Request:
        build(bench.path, OLD)
        self.before.append(image(bench.path))
        point = bench.point("the old state")
        assert point.mark is not None
        (bench.path / "gone").unlink()
        build(bench.path, NEW)
        self.now.append(image(bench.path))
        request = Request(point.snapshot.id, point.mark.seq, "the old state")
        bench.close()
        return request

    def go(self, *disks: Disk) -> Together:
        recorders = [
            Recorder(Store.open(bench.store.base, disk), bench.root, ALL)
            for bench, disk in zip(self.benches, disks, strict=True)
        ]
        try:
            return rollback_all(list(map(Part, recorders, self.requests)))
        finally:
            for recorder in recorders:
                recorder.close()

    def images(self) -> list[Image]:
        return [image(bench.path) for bench in self.benches]

    def recover(self) -> None:
        """As the next command in each workspace does; after it nothing is left over."""
        for bench in self.benches:
            bench.reopen()
            bench.finish()
            assert not bench.finish()
            bench.recorder.take()
            assert not [name for name in os.listdir(bench.path) if name.startswith(".turnmark")]
        self.check_journals()

    def check_journals(self) -> None:
        left = os.listdir(f"{self.benches[0].store.base}/turnmark/journal")
        assert [name for name in left if name.endswith(".json")] == []

    def check_nothing_lost(self) -> None:
        kept = self.benches[0].every_blob()
        for bench, now in zip(self.benches, self.now, strict=True):
            here = {leaf[-1] for leaf in image(bench.path).values() if leaf[0] == "file"}
            assert {leaf[-1] for leaf in now.values() if leaf[0] == "file"} <= kept | here

    def check_no_litter(self) -> None:
        """A new rollback has cleared away what a killed one left: what meant nothing any more."""
        assert os.listdir(f"{self.benches[0].store.base}/turnmark/journal") == []

    def check_told(self, conflicts: list[set[bytes]]) -> None:
        """All is as before but for the paths that were said not to be."""
        for bench, before, told in zip(self.benches, self.before, conflicts, strict=True):
            differing = {path for path, _ in image(bench.path).items() ^ before.items()}
            assert differing <= told

    def undo_all(self) -> None:
        for bench in self.benches:
            bench.go(undo_request(bench.store, bench.root.id))

    def close(self) -> None:
        for bench in self.benches:
            bench.close()


def another(disk: Disk) -> FaultyDisk:
    """With a count of its own."""
    assert isinstance(disk, FaultyDisk)
    return FaultyDisk(disk.at, disk.strike, lasting=disk.lasting)


class FullBelow(Disk):
    """Has no room for a byte below one directory."""

    def __init__(self, top: Path) -> None:
        self.top = top

    def write_some(self, fd: int, data: bytes | memoryview) -> int:
        if _is_below(fd, self.top):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write_some(fd, data)


class NoNames(FaultyDisk):
    """Lets no file below one directory change its name; staging there works."""

    def __init__(self, top: Path, disk: FaultyDisk | None = None) -> None:
        super().__init__(disk.at if disk else 0, disk.strike if disk else failing(errno.EIO))
        self.top = top

    def exchange(self, old: bytes, new: bytes, at: int, to: int) -> None:
        self._refuse(at, to)
        super().exchange(old, new, at, to)

    def rename_new(self, old: bytes, new: bytes, at: int, to: int) -> None:
        self._refuse(at, to)
        super().rename_new(old, new, at, to)

    def _refuse(self, *fds: int) -> None:
        if any(_is_below(fd, self.top) for fd in fds):
            raise OSError(errno.EIO, os.strerror(errno.EIO))


def _is_below(fd: int, top: Path) -> bool:
    return Path(os.readlink(f"/proc/self/fd/{fd}")).is_relative_to(top)


def test_all_of_them_are_done_and_each_can_be_undone(tmp_path: Path) -> None:
    session = Session(tmp_path)
    done = session.go(REAL, REAL)
    assert ([one.outcome for one in done.results], done.reason) == (["done", "done"], "")
    assert session.images() == session.before
    session.check_no_litter()
    session.undo_all()
    assert session.images() == session.now
    session.close()
    fsck(session.benches[0].store.base)


def test_a_full_disk_while_the_last_is_staged_leaves_every_tree_untouched(tmp_path: Path) -> None:
    session = Session(tmp_path)
    full = FullBelow(session.benches[1].path)
    with pytest.raises(TurnmarkError, match=r"two: .* full") as caught:
        session.go(REAL, full)
    assert "No workspace was changed." in caught.value.hint
    assert session.images() == session.now
    session.check_no_litter()
    assert not [m for m in session.benches[0].history().marks() if m.kind == "rollback"]


def test_a_failure_while_the_second_is_applied_takes_the_first_back(tmp_path: Path) -> None:
    session = Session(tmp_path)
    done = session.go(REAL, NoNames(session.benches[1].path))
    assert [one.outcome for one in done.results] == ["taken back", "conflicts"]
    assert "two: every path there is in conflict" in done.reason
    assert session.images() == session.now
    session.recover()
    assert session.images() == session.now


@pytest.mark.parametrize(("number", "lasting"), [(errno.ENOSPC, True), (errno.EIO, False)])
def test_an_error_at_any_step_leaves_no_half_and_loses_nothing(
    tmp_path: Path, number: int, lasting: bool
) -> None:
    at = 0
    while True:
        at += 1 if DEEP else 7
        session = Session(tmp_path / str(at))
        disk = FaultyDisk(at, failing(number), lasting=lasting)
        told: list[set[bytes]] = []
        try:
            done = session.go(disk, disk)
            told = [{left.path for left in one.conflicts} for one in done.results]
        except TurnmarkError:
            assert disk.struck
        session.check_nothing_lost()
        session.recover()
        if any(told):
            session.check_told(told)
        elif not lasting:
            assert session.images() in (session.before, session.now), f"half of it at {at}"
        session.close()
        if not disk.struck:
            assert session.images() == session.before
            return


def test_killed_at_every_step_all_of_them_are_finished_or_none(tmp_path: Path) -> None:
    for at in range(1, 1000, 1 if DEEP else 3):
        session = Session(tmp_path / str(at))

        def run(disk: Disk, session: Session = session) -> None:
            one = another(disk)
            session.go(one, one)

        if not dies(run, at):
            assert at > 60
            return
        session.check_nothing_lost()
        session.recover()
        images = session.images()
        assert images in (session.before, session.now), f"half of it after death {at}"
        if images == session.before:
            session.undo_all()
            assert session.images() == session.now
            session.check_no_litter()
        session.close()
    raise AssertionError("it never came to its end")


def test_killed_while_it_is_taken_back_every_tree_is_whole_and_can_be_undone(
    tmp_path: Path,
) -> None:
    at = 40  # by then something is staged, and there is something to take back
    while True:
        at += 1 if DEEP else 17
        session = Session(tmp_path / str(at))

        def run(disk: Disk, session: Session = session) -> None:
            assert isinstance(disk, FaultyDisk)
            bad = NoNames(session.benches[1].path, disk)
            session.go(bad, bad)

        if not dies(run, at):
            assert session.images() == session.now
            return
        session.check_nothing_lost()
        session.recover()
        for bench, before, now in zip(session.benches, session.before, session.now, strict=True):
            if image(bench.path) == before:
                bench.go(undo_request(bench.store, bench.root.id))
            assert image(bench.path) == now, f"neither state after death {at}"
        session.close()
