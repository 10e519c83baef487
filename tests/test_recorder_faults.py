"""A snapshot that fails or dies at any step is never acknowledged, and the next one just works."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from core import turns
from core.diff import files_of
from core.disk import Disk
from core.errors import Damaged, TurnmarkError
from core.history import History, MarkSpec, mark_ref, snapshot_ref
from core.model import RelPath
from core.packing import PackWriter
from core.recorder import Recorder, Taken
from core.rollback import Request, rollback
from core.store import Store
from core.verify import verify
from tests.faults import FaultyDisk, ShortDisk, dies, failing
from tests.stores import ALL, Bench, fsck
from tests.trees import build

AFTER = {b"a": b"changed", b"d/b": b"2", b"d/c": b"new", b"e/f/g": b"deep"}
LARGE = b"large and waited for\n" * 60_000


def take_on(bench: Bench, disk: Disk, paths: Iterable[str] | None = None) -> Taken:
    store = Store.open(bench.store.base, disk)
    recorder = Recorder(store, bench.root, ALL)
    try:
        with store.workspace_lock(bench.root.id):
            asked = None if paths is None else [RelPath(os.fsencode(path)) for path in paths]
            return recorder.take(asked, MarkSpec("manual"))
    finally:
        recorder.close()


def contents(bench: Bench, taken: Taken) -> dict[bytes, bytes]:
    """Read by a store that was opened after the fact."""
    store = Store.open(bench.store.base)
    found = files_of(store.tree, taken.snapshot.files)
    return {path: store.blob(entry.oid) for path, entry in found}


def prepare(base: Path) -> Bench:
    bench = Bench(base)
    build(bench.path, {"a": "1", "d/b": "2"})
    bench.point()
    build(bench.path, {"a": "changed", "d/c": "new", "e/f/g": "deep"})
    bench.close()
    return bench


def check_after(bench: Bench, acked: Taken | None) -> None:
    if acked is not None:
        assert contents(bench, acked)[b"a"] == b"changed"
    bench.reopen()
    again = bench.point()
    assert contents(bench, again) == AFTER
    marks = list(History(bench.store, bench.root.id).marks())
    assert marks[-1].snapshot == again.snapshot.id
    bench.close()
    fsck(bench.store.base)


either_order = pytest.mark.parametrize("in_order", [False, True], ids=["synced", "journal"])


@either_order
@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_an_error_at_any_write_is_never_an_ack(
    tmp_path: Path, number: int, lasting: bool, in_order: bool
) -> None:
    for at in range(1, 200):
        bench = prepare(tmp_path / str(at))
        disk = FaultyDisk(at, failing(number), lasting=lasting, in_order=in_order)
        acked = None
        with suppress(TurnmarkError):
            acked = take_on(bench, disk)
        check_after(bench, acked)
        if not disk.struck:
            assert at > 12
            return


@either_order
def test_killed_at_any_write_leaves_a_store_that_just_works(tmp_path: Path, in_order: bool) -> None:
    for at in range(1, 200):
        bench = prepare(tmp_path / str(at))
        if not dies(partial(take_on, bench), at, in_order=in_order):
            assert at > 12
            return
        check_after(bench, None)


def prepare_large(base: Path) -> Bench:
    """As `prepare`, and a file that is written by another thread where a turn waits for it."""
    bench = prepare(base)
    build(bench.path, {"new/small": "beside it"})
    (bench.path / "new/large").write_bytes(LARGE)
    return bench


ALL_AFTER = AFTER | {b"new/large": LARGE, b"new/small": b"beside it"}


def check_after_large(bench: Bench, acked: Taken | None) -> None:
    if acked is not None:
        assert contents(bench, acked) == ALL_AFTER
        assert acked.snapshot.gaps == 0
    bench.reopen()
    again = bench.point()
    assert contents(bench, again) == ALL_AFTER
    bench.close()
    fsck(bench.store.base)


WAITED_FOR = ("a", "d/c", "e", "new")


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EIO, errno.ENOENT, errno.EACCES], ids=errno.errorcode.get
)
def test_an_error_at_any_write_of_a_turn_with_a_large_file_is_never_an_ack_of_less(
    tmp_path: Path, number: int, lasting: bool
) -> None:
    """Found by a reviewer: what the store could not do was taken for the workspace's fault."""
    for at in range(1, 200):
        bench = prepare_large(tmp_path / str(at))
        disk = FaultyDisk(at, failing(number), lasting=lasting, in_order=bool(at % 2))
        acked = None
        with suppress(TurnmarkError):
            acked = take_on(bench, disk, WAITED_FOR)
        check_after_large(bench, acked)
        if not disk.struck:
            assert at > 20
            return


@either_order
def test_killed_at_any_write_of_a_turn_with_a_large_file_the_store_just_works(
    tmp_path: Path, in_order: bool
) -> None:
    for at in range(1, 200):
        bench = prepare_large(tmp_path / str(at))
        taking = partial(take_on, bench, paths=WAITED_FOR)
        if not dies(taking, at, in_order=in_order):
            assert at > 20
            return
        check_after_large(bench, None)


def test_what_failed_to_be_read_back_is_not_believed_by_the_next_try(tmp_path: Path) -> None:
    """Found by a reviewer: the pack stayed, under the name by which all find it."""

    class Forgetful(Disk):
        lying = True

        def write_some(self, fd: int, data: bytes | memoryview) -> int:
            if self.lying and len(data) > 500_000:
                data = b"?" + bytes(data[1:])
            return super().write_some(fd, data)

    for place, paths in (("told", WAITED_FOR), ("all", None)):
        bench, disk = prepare_large(tmp_path / place), Forgetful()
        (bench.path / "new/large").write_bytes(os.urandom(1_200_000))
        with pytest.raises(Damaged, match="reads back otherwise"):
            take_on(bench, disk, paths)
        disk.lying = False
        taken = take_on(bench, disk, paths)
        assert contents(bench, taken)[b"new/large"] == (bench.path / "new/large").read_bytes()
        fsck(bench.store.base)


@pytest.mark.parametrize("kind", ["snapshots", "marks"])
def test_either_name_alone_is_enough_after_a_power_cut(tmp_path: Path, kind: str) -> None:
    """Both are synced at once: which of them a disk has by then, nobody can know."""
    bench = prepare(tmp_path)
    taken = take_on(bench, Disk())
    store = Store.open(bench.store.base)
    assert taken.mark is not None
    lost = {"snapshots": snapshot_ref(taken.snapshot), "marks": mark_ref(taken.mark)}[kind]
    store.refs.delete([lost])
    assert verify(store).damaged == []
    check_after(bench, taken)
    bench.reopen()
    build(bench.path, {"a": "later"})
    bench.point()
    assert verify(bench.store).damaged == []
    then = Request(taken.snapshot.id, taken.mark.seq, "the point")
    assert rollback(bench.recorder, then).outcome == "done"
    assert (bench.path / "a").read_text() == "changed"


def test_a_store_whose_creation_is_killed_at_any_step_is_completed(tmp_path: Path) -> None:
    for at in range(1, 200):
        base = str(tmp_path / str(at) / "store")
        if not dies(partial(Store.create, base), at):
            assert at > 10
            return
        Store.create(base)
        fsck(Store.open(base).base)


def test_short_reads_and_writes_change_nothing(tmp_path: Path) -> None:
    bench = prepare(tmp_path)
    check_after(bench, take_on(bench, ShortDisk()))


def name_of(fd: int) -> str:
    """Within the store."""
    return os.readlink(f"/proc/self/fd/{fd}").rsplit("/store/", 1)[-1]


class LyingDisk(Disk):
    """Says that it wrote, and wrote something else: what read-back is there for."""

    def write_some(self, fd: int, data: bytes | memoryview) -> int:
        raw = bytes(data)
        if raw.startswith(b"PACK"):
            raw = raw[:40] + bytes([raw[40] ^ 1]) + raw[41:]
        return super().write_some(fd, raw)


def test_a_disk_that_lies_is_found_out_before_the_ack(tmp_path: Path) -> None:
    bench = prepare(tmp_path)
    with pytest.raises(TurnmarkError, match="reads back otherwise"):
        take_on(bench, LyingDisk())


class LosingDisk(Disk):
    """Loses the name of every reference that is linked."""

    def link(
        self, old: bytes | str, new: bytes | str, at: int | None = None, to: int | None = None
    ) -> None:
        return


def test_a_reference_that_does_not_stay_is_found_out_before_the_ack(tmp_path: Path) -> None:
    bench = prepare(tmp_path)
    with pytest.raises(TurnmarkError):
        take_on(bench, LosingDisk())


class OrderDisk(Disk):
    """Writes down what was synced when."""

    def __init__(self, *, in_order: bool = False) -> None:
        self.in_order = in_order
        self.log: list[str] = []

    def keeps_order(self, paths: Iterable[str]) -> bool:
        return self.in_order

    def fsync(self, fd: int) -> None:
        self.log.append(f"sync {name_of(fd)}")
        super().fsync(fd)

    def write_out(self, fd: int, *, wait: bool) -> None:
        self.log.append(f"{'written' if wait else 'write'} {name_of(fd)}")
        super().write_out(fd, wait=wait)

    def rename(
        self, old: bytes | str, new: bytes | str, at: int | None = None, to: int | None = None
    ) -> None:
        self.log.append("rename " + str(new).rsplit("/store/", 1)[-1])
        super().rename(old, new, at, to)

    def link(
        self, old: bytes | str, new: bytes | str, at: int | None = None, to: int | None = None
    ) -> None:
        self.log.append("link " + str(new).rsplit("/store/", 1)[-1])
        super().link(old, new, at, to)


def test_everything_is_synced_before_the_reference_names_it(tmp_path: Path) -> None:
    bench = prepare(tmp_path)
    disk = OrderDisk()
    take_on(bench, disk)
    kinds = [line.split("/")[0] if "tmp" in line else line for line in disk.log]
    refs = [n for n, line in enumerate(kinds) if line.startswith("link refs/")]
    packs = [n for n, line in enumerate(kinds) if line.startswith("rename objects/pack")]
    synced = [n for n, line in enumerate(disk.log) if line == "sync objects/pack"]
    assert len(refs) == 2
    assert len(packs) == 2
    assert max(packs) < synced[0] < min(refs)
    names = {disk.log[n].removeprefix("link ").rpartition("/")[0] for n in refs}
    assert {line.removeprefix("sync ") for line in disk.log[max(refs) + 1 :]} >= names
    assert sum(line.startswith("sync objects/pack/writing-") for line in disk.log[: packs[0]]) == 2


def test_where_a_journal_keeps_the_order_one_sync_is_enough(tmp_path: Path) -> None:
    """Whole before it is named, and the last name synced: its journal has all that came before."""
    bench = prepare(tmp_path)
    disk = OrderDisk(in_order=True)
    taken = take_on(bench, disk)
    log = [line for line in disk.log if "packed-refs" not in line and "turnmark/cache" not in line]
    whole = [n for n, line in enumerate(log) if line.startswith("written")]
    named = [n for n, line in enumerate(log) if line.startswith(("rename objects", "link"))]
    assert (len(whole), len(named)) == (4, 4)
    assert max(whole) < min(named)
    assert taken.mark is not None
    ref_dir = mark_ref(taken.mark).rpartition("/")[0]
    assert [line for line in log if line.startswith("sync")] == [f"sync {ref_dir}"]
    assert log[-1] == f"sync {ref_dir}"
    assert log[-2].startswith(f"link {ref_dir}/")
    assert not (Path(bench.store.base) / "turnmark/unsynced").exists()
    check_after(bench, taken)


@either_order
def test_a_durable_answer_that_names_nothing_new_vouches_for_what_is_newest(
    tmp_path: Path, in_order: bool
) -> None:
    """Found by a reviewer: it was acknowledged, and the next power cut took it away."""
    bench = prepare(tmp_path)
    disk = OrderDisk(in_order=in_order)
    recorder = Recorder(Store.open(bench.store.base, disk), bench.root, ALL)
    recorder.take(sync=False, mark=MarkSpec("manual"))
    disk.log.clear()
    again = recorder.take(mark=MarkSpec("manual"), always_mark=False)
    assert (again.fresh, again.mark, again.durable) == (False, None, True)
    top = f"refs/turnmark/{bench.root.id}"
    assert sorted(disk.log) == [f"sync {name}" for name in ("objects/pack", f"{top}/m", f"{top}/s")]
    disk.log.clear()
    recorder.take()
    assert disk.log == []  # that is known by now
    recorder.close()


@either_order
def test_what_somebody_who_was_killed_has_named_is_synced_before_it_is_vouched_for(
    tmp_path: Path, in_order: bool
) -> None:
    bench = prepare(tmp_path)
    turns.begin(bench.recorder, "s", turn_id="one")
    bench.close()
    disk = OrderDisk(in_order=in_order)
    recorder = Recorder(Store.open(bench.store.base, disk), bench.root, ALL)
    assert turns.begin(recorder, "s", turn_id="one").durable
    assert f"sync refs/turnmark/{bench.root.id}/m" in disk.log
    recorder.close()


def test_only_a_file_system_that_says_so_keeps_the_order(tmp_path: Path) -> None:
    """What it says is looked at by mounting one: see the campaign's blocks."""
    assert not Disk().keeps_order(["/proc"])
    assert not Disk().keeps_order([str(tmp_path / "missing")])


def test_an_unfinished_pack_is_dropped_when_the_look_fails(tmp_path: Path) -> None:
    bench = prepare(tmp_path)

    class Unreadable(Disk):
        def readlink(self, name: bytes, at: int | None = None) -> bytes:
            raise OSError(errno.ENOMEM, "no memory")

    build(bench.path, {"zz": "x"})
    (bench.path / "link").symlink_to("a")
    with pytest.raises(TurnmarkError, match="look at the workspace"):
        take_on(bench, Unreadable())
    left = [p for p in (Path(bench.store.base) / "objects/pack").iterdir() if "writing" in p.name]
    assert not left


def test_a_pack_in_writing_is_not_seen(tmp_path: Path) -> None:
    bench = prepare(tmp_path)
    writer = PackWriter(bench.store.disk, f"{bench.store.base}/objects/pack")
    writer.add("blob", bytes(20), b"x")  # type: ignore[arg-type]
    fsck(bench.store.base)
    writer.drop()


def test_a_durable_mark_vouches_for_what_was_written_without_syncing(tmp_path: Path) -> None:
    bench = prepare(tmp_path)
    bench.recorder.take(sync=False)
    bench.close()

    class Counting(Disk):
        synced = 0

        def keeps_order(self, paths: Iterable[str]) -> bool:
            return False

        def sync_fs(self, fd: int) -> None:
            self.synced += 1
            super().sync_fs(fd)

    disk = Counting()
    take_on(bench, disk)
    assert disk.synced == 1
    take_on(bench, disk)
    assert disk.synced == 1


def test_what_need_not_be_durable_is_whole_or_not_there_after_a_power_cut(tmp_path: Path) -> None:
    """Found by the campaign: references of noughts and empty indexes where nothing was synced."""
    bench = prepare(tmp_path)
    disk = OrderDisk()
    recorder = Recorder(Store.open(bench.store.base, disk), bench.root, ALL)
    recorder.take(mark=MarkSpec("manual"), sync=False)
    recorder.close()
    named = [n for n, line in enumerate(disk.log) if line.startswith(("rename objects", "link"))]
    assert len(named) == 4
    before = [sum(line.startswith("sync") for line in disk.log[:n]) for n in named]
    assert before == [4, 4, 5, 5]  # and the names of packs before those of references


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, None])
def test_what_cannot_be_written_out_here_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int | None
) -> None:
    def refused(fd: int, start: int, size: int, flags: int) -> int:
        ctypes.set_errno(number or 0)
        return -1

    monkeypatch.setattr("core.disk._sync_file_range", lambda: refused if number else None)
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    with Disk().opened(str(tmp_path / "a"), os.O_RDWR | os.O_CREAT) as fd:
        Disk().write_out(fd, wait=False)
        assert not synced
        Disk().write_out(fd, wait=True)
        assert synced == [fd]


def test_what_cannot_be_written_out_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(fd: int, start: int, size: int, flags: int) -> int:
        ctypes.set_errno(errno.EIO)
        return -1

    monkeypatch.setattr("core.disk._sync_file_range", lambda: broken)
    with pytest.raises(OSError, match="Input/output"):
        Disk().write_out(0, wait=False)
