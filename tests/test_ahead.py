"""What is answered by one sync of a log is there after any crash, and nothing else is."""

from __future__ import annotations

import errno
import fcntl
import gc
import itertools
import os
import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import ahead
from core.ahead import BLOCK, BYTES, Ahead, Record, encode, records
from core.disk import REAL, Disk
from core.errors import Busy, TurnmarkError
from core.history import MarkSpec, mark_ref, snapshot_ref, write_mark
from core.keeping import Policy
from core.model import Oid, RelPath
from core.packform import TRAILER_BYTES
from core.recorder import Recorder, Taken
from core.repair import repair
from core.retention import prune
from core.store import Store
from core.sweep import size_on_disk, sweep
from core.verify import verify
from tests.faults import FaultyDisk, ShortDisk, dies, failing
from tests.stores import ALL, UNSYNCED, Bench, Unsynced, fsck, held_below
from tests.trees import build

A = [RelPath(b"a")]
NEVER = 10**9


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = prepared(tmp_path)
    yield made
    made.close()


def prepared(place: Path, disk: Disk = UNSYNCED) -> Bench:
    """A workspace with one point, ready for the next as a service makes it."""
    made = Bench(place)
    build(made.path, {"a": "1", "d/b": "2"})
    made.point()
    made.reopen(disk)
    made.recorder.prepare()
    return made


def turn(bench: Bench, content: str = "changed") -> Taken:
    (bench.path / "a").write_text(content)
    return bench.recorder.take(A, MarkSpec("manual"))


def log_of(bench: Bench) -> Path:
    return Path(bench.store.logs.path(bench.root.id))


def kept_in(bench: Bench) -> list[Record]:
    return list(records(log_of(bench).read_bytes()))


def die(bench: Bench) -> None:
    """As a killed process does: whatever it holds is let go of as it is."""
    recorder = bench.recorder
    assert recorder._log is not None
    recorder._log.close()
    recorder._log = None
    bench.close()


@pytest.fixture(autouse=True)
def _nothing_stays_open(tmp_path: Path) -> Iterator[None]:
    yield
    gc.collect()
    left = held_below(tmp_path)
    assert left < 10, f"{left} descriptors are left"


def named(bench: Bench, taken: Taken) -> dict[str, Path]:
    """The files of a point, which a power cut may take."""
    (record,) = [r for r in kept_in(bench)[-2:] if r.packs]
    pack = record.packs[0][0][-TRAILER_BYTES:].hex()
    base = Path(bench.store.base)
    assert taken.mark is not None
    return {
        "pack": base / f"objects/pack/pack-{pack}.pack",
        "index": base / f"objects/pack/pack-{pack}.idx",
        "snapshot": base / snapshot_ref(taken.snapshot),
        "mark": base / mark_ref(taken.mark),
    }


def check(bench: Bench, taken: Taken, content: bytes = b"changed") -> None:
    store = Store.open(bench.store.base)
    assert taken.mark is not None
    assert store.refs.read(mark_ref(taken.mark)) == taken.mark.id
    assert store.refs.read(snapshot_ref(taken.snapshot)) == taken.snapshot.id
    assert content in {store.read(oid)[1] for pack in store.packs() for oid in pack.oids()}
    assert verify(store).damaged == []
    fsck(store.base)


# The format

oids = st.binary(min_size=20, max_size=20).map(Oid)
names = st.from_regex(r"refs/turnmark/[0-9a-f]{16}/[sm]/[1-9][0-9]{0,5}", fullmatch=True)
some_records = st.builds(
    Record,
    st.dictionaries(names, oids, max_size=3),
    st.lists(st.tuples(st.binary(max_size=9000), st.binary(max_size=99)), max_size=2),
)


@given(st.lists(some_records, max_size=4), st.integers(1, 2**32 - 1))
def test_what_was_written_is_read(given_: list[Record], filling: int) -> None:
    log = b"".join(encode(record, filling, number) for number, record in enumerate(given_))
    assert len(log) % BLOCK == 0
    assert list(records(log + bytes(BYTES))) == given_


@given(st.lists(some_records, min_size=1, max_size=3), st.data())
def test_of_a_torn_log_the_whole_records_before_are_read(given_: list[Record], data: Any) -> None:
    parts = [encode(record, 7, number) for number, record in enumerate(given_)]
    log = bytearray(b"".join(parts))
    at = data.draw(st.integers(0, len(log) - 1))
    log[at] ^= 0xFF
    found = list(records(bytes(log)))
    ends = list(itertools.accumulate(map(len, parts)))
    torn = next(n for n, end in enumerate(ends) if at < end)
    padding = at >= ends[torn] - len(parts[torn]) + len(parts[torn].rstrip(b"\0"))
    assert found[:torn] == given_[:torn]
    assert len(found) == torn or padding or found == given_


def test_records_of_an_earlier_filling_are_none() -> None:
    old = b"".join(encode(Record({"old": Oid(bytes(20))}, ()), 1, n) for n in range(3))
    new = encode(Record({"new": Oid(bytes(20))}, ()), 2, 0)
    assert [list(one.refs) for one in records(new + old[len(new) :])] == [["new"]]


def test_points_claim_the_names_that_they_have(bench: Bench) -> None:
    """What is looked for in them is what `history` writes."""
    taken = turn(bench)
    assert taken.mark is not None
    for name, oid in (
        (snapshot_ref(taken.snapshot), taken.snapshot.id),
        (mark_ref(taken.mark), taken.mark.id),
    ):
        data = bench.store.read(oid)[1]
        assert ahead.claims(data, name)
        assert not ahead.claims(data, name + "0")
        assert not ahead.claims(data, name.replace(bench.root.id, "0" * 16))


# One sync


class Counting(Disk):
    """Writes down what is synced."""

    def __init__(self) -> None:
        self.synced: list[str] = []

    def fsync(self, fd: int) -> None:
        self.synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        super().fsync(fd)

    def fdatasync(self, fd: int) -> None:
        self.fsync(fd)


def test_a_point_that_was_prepared_for_takes_one_sync(tmp_path: Path) -> None:
    disk = Counting()
    bench = prepared(tmp_path, disk)
    disk.synced.clear()
    taken = turn(bench)
    assert disk.synced == [str(log_of(bench))]
    assert taken.durable
    check(bench, taken)
    bench.close()
    assert not log_of(bench).exists()


def test_what_is_in_the_log_is_synced_where_it_belongs_while_nobody_waits(tmp_path: Path) -> None:
    disk = Counting()
    bench = prepared(tmp_path, disk)
    files = named(bench, turn(bench))
    disk.synced.clear()
    bench.recorder.prepare()
    places = {str(path) for path in files.values()} | {str(p.parent) for p in files.values()}
    assert places <= set(disk.synced[:-1])
    assert disk.synced[-1] == str(log_of(bench))
    assert kept_in(bench) == []
    bench.close()


# Crashes


def another(path: Path) -> bytes:
    """What a file of that kind held a moment before: the blocks of a disk are used again."""
    return next(p for p in sorted(path.parent.iterdir()) if p != path).read_bytes()


HARMS = {
    "gone": lambda path: path.unlink(),
    "empty": lambda path: (path.unlink(), path.touch()),
    "other": lambda path: (path.unlink(), path.write_bytes(os.urandom(3000))),
    "of another": lambda path: (
        held := another(path),
        path.unlink(),
        path.write_bytes(held),
    ),
    "flipped": lambda path: (
        path.chmod(0o600),
        path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1])),
    ),
    "longer": lambda path: (path.chmod(0o600), path.write_bytes(path.read_bytes() + b"x")),
}


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize(
    "lost", [{"pack"}, {"index"}, {"snapshot"}, {"mark"}, {"pack", "index", "snapshot", "mark"}]
)
def test_what_a_power_cut_takes_is_put_in_place_again(
    bench: Bench, harm: str, lost: set[str]
) -> None:
    taken = turn(bench)
    files = named(bench, taken)
    die(bench)
    for name in lost:
        HARMS[harm](files[name])
    check(bench, taken)
    assert not kept_in(bench)
    modes = {path.stat().st_mode & 0o777 for path in files.values()}
    assert modes == {0o400, 0o600} or harm == "of another"


def test_several_points_are_put_in_place_again(bench: Bench) -> None:
    taken: list[Taken] = []
    files: list[Path] = []
    for number in range(5):
        taken.append(turn(bench, f"content {number}"))
        files += named(bench, taken[-1]).values()
    assert len(kept_in(bench)) == 10
    die(bench)
    for path in files:
        path.unlink()
    for number, one in enumerate(taken):
        check(bench, one, b"content %d" % number)


def test_a_first_point_that_is_put_in_place_is_known_to_be_of_its_directory(tmp_path: Path) -> None:
    """Found by the campaign."""

    fresh = Bench(tmp_path)

    class Dying(Unsynced):
        def fdatasync(self, fd: int) -> None:
            super().fdatasync(fd)
            if kept_in(fresh):
                raise KeyboardInterrupt

        def overwrite_some(self, fd: int, data: bytes | memoryview, offset: int) -> int:
            if kept_in(fresh):
                raise OSError(errno.EIO, "no more")
            return super().overwrite_some(fd, data, offset)

    build(fresh.path, {"a": "changed"})
    fresh.reopen(Dying())
    fresh.recorder.prepare()
    with pytest.raises(KeyboardInterrupt):
        turn(fresh)
    die(fresh)
    fresh.reopen()
    assert fresh.recorder.last is not None
    assert verify(fresh.store).damaged == []
    fresh.close()


def test_whoever_waits_for_the_lock_of_one_who_dies_finds_all(bench: Bench) -> None:
    other = Store.open(bench.store.base)
    taken = turn(bench)
    files = named(bench, taken)
    die(bench)
    files["mark"].unlink()  # it died before the last name: nobody was answered
    with other.workspace_lock(bench.root.id):
        recorder = Recorder(other, bench.root, ALL)
        assert recorder.last_mark == (taken.mark and taken.mark.id)
        recorder.close()
    check(bench, taken)


def test_what_was_never_answered_gives_way_to_what_was(bench: Bench) -> None:
    """Another process had the lock next, and made a reference of that name."""
    taken = turn(bench)
    assert taken.mark is not None
    ref = named(bench, taken)["mark"]
    die(bench)
    other = replace(taken.mark, label="another")
    with (store := Store(bench.store.base, UNSYNCED)).writing() as writer:
        other = write_mark(writer, other)
        writer.settle(sync=False)
    ref.write_text(other.id.hex() + "\n")
    Store.open(bench.store.base)
    assert store.refs.read(mark_ref(other)) == other.id
    assert kept_in(bench) == []


def test_a_log_of_the_living_is_left_alone(bench: Bench) -> None:
    turn(bench)
    before = log_of(bench).read_bytes()
    Store.open(bench.store.base)
    assert log_of(bench).read_bytes() == before


def killed(place: Path, at: int) -> tuple[Bench, bool]:
    bench = prepared(place)
    bench.close()
    (bench.path / "a").write_text("changed")

    def run(disk: Disk) -> None:
        store = Store.open(bench.store.base, disk)
        with store.workspace_lock(bench.root.id):
            recorder = Recorder(store, bench.root, ALL)
            recorder.prepare()
            recorder.take(A, MarkSpec("manual"))
            recorder.prepare()
            recorder.put_away()
            recorder.close()

    return bench, dies(run, at)


def test_killed_at_any_write_leaves_a_store_that_just_works(tmp_path: Path) -> None:
    for at in range(1, 200):
        bench, died = killed(tmp_path / str(at), at)
        bench.reopen()
        again = bench.point()
        assert kept_in(bench) == [] if log_of(bench).exists() else True
        bench.close()
        check(bench, again)
        if not died:
            assert at > 25
            return


def test_killed_while_it_is_put_in_place_it_is_the_next_time(tmp_path: Path) -> None:
    for at in range(1, 200):
        bench = prepared(tmp_path / str(at))
        taken = turn(bench)
        files = named(bench, taken)
        die(bench)
        files["pack"].unlink()
        HARMS["other"](files["mark"])
        died = dies(partial(Store.open, bench.store.base), at)
        check(bench, taken)
        if not died:
            assert at > 10
            return


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
def test_an_error_at_any_write_is_never_an_ack(tmp_path: Path, number: int, lasting: bool) -> None:
    """Nor does what failed come back, or stay in the way."""
    for at in range(1, 200):
        disk = FaultyDisk(NEVER, failing(number), lasting=lasting)
        bench = prepared(tmp_path / str(at), disk)
        disk.at, disk.count = at, 0
        taken, refs = None, bench.store.refs
        before = refs.below("refs")
        try:
            taken = turn(bench)
        except TurnmarkError:
            marks = {n: o for n, o in refs.below("refs").items() if "/m/" in n and n not in before}
            assert not marks
        struck, disk.at = disk.struck, NEVER
        die(bench)
        bench.reopen()
        if taken is not None:
            check(bench, taken)
        elif not lasting:
            assert {n for n in bench.store.refs.below("refs") if "/m/" in n} == {
                n for n in before if "/m/" in n
            }
        again = bench.point()
        bench.close()
        check(bench, again)
        if not struck:
            assert at > 5
            return


def test_short_writes_change_nothing(tmp_path: Path) -> None:
    bench = prepared(tmp_path, ShortDisk())
    taken = turn(bench)
    assert len(kept_in(bench)) == 2
    die(bench)
    check(bench, taken)


def test_a_log_that_reads_back_otherwise_is_not_counted_on(tmp_path: Path) -> None:
    class Lying(Counting):
        def overwrite_some(self, fd: int, data: bytes | memoryview, offset: int) -> int:
            return super().overwrite_some(fd, b"?" + bytes(data)[1:], offset)

    made = prepared(tmp_path, disk := Lying())
    assert made.store.packs_in in synced_by_a_turn(made, disk)
    made.close()


# What is not durable is not counted on


def synced_by_a_turn(bench: Bench, disk: Counting) -> set[str]:
    disk.synced.clear()
    turn(bench)
    return set(disk.synced)


def test_what_another_one_wrote_is_vouched_for_before_a_log_counts_on_it(tmp_path: Path) -> None:
    """Its names may not be durable yet, and who wrote it may be dead."""
    disk = Counting()
    bench = prepared(tmp_path, disk)
    with Store.open(bench.store.base).writing() as writer:
        writer.add("blob", b"changed")
        writer.settle(sync=False)
    assert bench.store.packs_in in synced_by_a_turn(bench, disk)
    assert kept_in(bench) == []
    bench.recorder.prepare()
    (bench.path / "a").write_text("1")
    disk.synced.clear()
    bench.recorder.take(A, MarkSpec("manual"))
    assert disk.synced == [str(log_of(bench))]
    bench.close()


def test_after_a_burst_that_was_not_synced_all_is_vouched_for_first(tmp_path: Path) -> None:
    disk = Counting()
    bench = prepared(tmp_path, disk)
    (bench.path / "a").write_text("a burst")
    bench.recorder.take(A, sync=False)
    assert len(synced_by_a_turn(bench, disk)) > 1
    (bench.path / "a").write_text("another")
    bench.recorder.take(A, sync=False)
    bench.recorder.prepare()
    assert synced_by_a_turn(bench, disk) == {str(log_of(bench))}
    bench.close()


def test_what_was_found_at_the_start_is_vouched_for_before_there_is_a_log(tmp_path: Path) -> None:
    bench = prepared(tmp_path)
    disk = Counting()
    bench.reopen(disk)
    bench.recorder.prepare()
    base = bench.store.base
    of_workspace = f"{base}/refs/turnmark/{bench.root.id}"
    made = disk.synced.index(str(log_of(bench)))
    for place in (f"{base}/objects/pack", f"{of_workspace}/s", f"{of_workspace}/m"):
        assert place in disk.synced[:made]
    assert f"{base}/turnmark" in disk.synced[:made]
    assert f"{base}/turnmark/ahead" in disk.synced[made:]
    bench.close()


# What is dropped does not come back


@pytest.mark.parametrize("alive", [True, False])
def test_a_log_brings_nothing_back_that_was_dropped(bench: Bench, alive: bool) -> None:
    taken = [turn(bench, f"content {number}") for number in range(4)]
    log = log_of(bench)
    if not alive:
        die(bench)
    other = Store.open(bench.store.base) if alive else Store(bench.store.base, REAL)
    prune(other, Policy(max_points=1, burst_hours=0, burst_turns=0), taken[-1].snapshot.time_ns)
    sweep(other, 0.0)
    assert list(records(log.read_bytes())) == [] if alive else not log.exists()
    left = set(other.refs.below("refs"))
    assert mark_ref(taken[0].mark) not in left  # type: ignore[arg-type]
    if alive:
        after = turn(bench, "after it")
        assert len(kept_in(bench)) in (0, 2)
        die(bench)
        check(bench, after, b"after it")
    Store.open(bench.store.base)
    assert mark_ref(taken[0].mark) not in other.refs.below("refs")  # type: ignore[arg-type]
    fsck(bench.store.base)


def test_the_owner_goes_on_with_a_log_that_somebody_worked_off(bench: Bench) -> None:
    turn(bench, "first")
    with Store.open(bench.store.base).exclusive():
        pass
    assert kept_in(bench) == []
    taken = turn(bench, "second")
    assert len(kept_in(bench)) == 2
    files = named(bench, taken)
    die(bench)
    files["pack"].unlink()
    check(bench, taken, b"second")


# Room, and who may write it


def test_more_turns_than_the_log_holds_go_the_other_way(bench: Bench) -> None:
    content = "".join(chr(97 + n % 26) * 50 for n in range(1000))
    taken = [turn(bench, f"{number}{content}") for number in range(14)]
    assert 0 < len(kept_in(bench)) < 28
    assert log_of(bench).stat().st_size == BYTES
    die(bench)
    check(bench, taken[-1], b"13" + content.encode())
    fsck(bench.store.base)


def test_after_it_was_worked_off_there_is_room_again(bench: Bench) -> None:
    for number in range(14):
        turn(bench, f"{number}{os.urandom(50_000).hex()}")
        assert len(kept_in(bench)) == 2
        bench.recorder.prepare()


def test_a_log_that_was_taken_away_is_not_written(tmp_path: Path) -> None:
    disk = Counting()
    bench = prepared(tmp_path, disk)
    log_of(bench).unlink()
    assert len(synced_by_a_turn(bench, disk)) > 1
    bench.recorder.prepare()
    assert synced_by_a_turn(bench, disk) == {str(log_of(bench))}
    bench.close()


def test_a_child_writes_no_log_of_its_parent(bench: Bench) -> None:
    log = bench.recorder._log
    assert log is not None
    pid = os.fork()
    if pid == 0:
        os._exit(log.takes(1))
    assert os.waitpid(pid, 0)[1] == 0
    assert log.takes(1)


def test_where_there_is_little_room_there_is_no_log(tmp_path: Path) -> None:
    class Full(Unsynced):
        def free(self, path: str) -> int:
            return ahead.ROOM - 1

    bench = prepared(tmp_path, Full())
    taken = turn(bench)
    assert not log_of(bench).exists()
    check(bench, taken)
    bench.close()


def test_a_log_that_cannot_be_made_leaves_nothing_behind(tmp_path: Path) -> None:
    for at in itertools.count(1):
        disk = FaultyDisk(at, failing(errno.ENOSPC))
        try:
            Ahead(disk, str(tmp_path / "log")).remove()
        except OSError:
            assert os.listdir(tmp_path) == []
            assert held_below(tmp_path) == 0
        if not disk.struck:
            assert at > 4
            return


def test_the_lock_of_a_log_tells_that_its_owner_lives(bench: Bench) -> None:
    with open(log_of(bench)) as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)


def test_what_cannot_be_synced_is_written_anew(tmp_path: Path) -> None:
    """Of a file whose sync has failed once, the next one says nothing."""

    class Failing(Unsynced):
        armed = False

        def fsync(self, fd: int) -> None:
            if self.armed and os.readlink(f"/proc/self/fd/{fd}").endswith(".pack"):
                self.armed = False
                raise OSError(errno.EIO, "once")
            super().fsync(fd)

    disk = Failing()
    bench = prepared(tmp_path, disk)
    taken = turn(bench)
    pack = named(bench, taken)["pack"]
    before = pack.stat().st_ino
    disk.armed = True
    bench.recorder.prepare()
    assert not disk.armed
    assert pack.stat().st_ino != before
    bench.close()
    check(bench, taken)


class Broken(Unsynced):
    """Gives no file a name."""

    def rename(self, *arguments: Any, **options: Any) -> None:
        raise OSError(errno.EIO, "broken")


def test_a_log_that_cannot_be_worked_off_is_told_of_and_kept(bench: Bench) -> None:
    """Found by a reviewer: nobody could read anything any more, not even of other workspaces."""
    taken = turn(bench)
    named(bench, taken)["pack"].unlink()
    die(bench)
    store = Store.open(bench.store.base, Broken())
    assert list(store.unfinished) == [bench.root.id]
    assert "answered last" in store.unfinished[bench.root.id]
    assert next(damage.what for damage in verify(store).damaged) == "log"
    for lock in (store.workspace_lock(bench.root.id), store.exclusive()):
        with pytest.raises(TurnmarkError, match="answered last"), lock:
            pass
    check(bench, taken)


def test_repair_puts_a_log_aside_that_nobody_can_work_off(bench: Bench) -> None:
    taken = turn(bench)
    named(bench, taken)["pack"].unlink()
    die(bench)
    log = log_of(bench).read_bytes()

    class Unwilling(Unsynced):
        def pread(self, fd: int, size: int, offset: int) -> bytes:
            if "/ahead/" in os.readlink(f"/proc/self/fd/{fd}"):
                raise OSError(errno.EIO, "unreadable")
            return super().pread(fd, size, offset)

    store = Store.open(bench.store.base, Unwilling())
    repair(store)
    (aside,) = Path(bench.store.base, "turnmark/damaged").glob("*ahead*")
    assert aside.read_bytes() == log
    assert not log_of(bench).exists()
    assert verify(Store.open(bench.store.base)).damaged == []


def test_what_is_no_log_is_left_alone(bench: Bench) -> None:
    place = log_of(bench).parent
    (place / "0123456789abcdef").mkdir()
    (place / "fedcba9876543210").symlink_to(log_of(bench))
    (place / "notes").write_text("of a user")
    turn(bench)
    with Store.open(bench.store.base).exclusive():
        pass
    assert {"0123456789abcdef", "fedcba9876543210", "notes"} <= set(os.listdir(place))


def test_a_log_that_goes_while_somebody_waits_to_work_it_off_is_no_trouble(bench: Bench) -> None:
    """Found by a reviewer: the service did not start."""
    taken = turn(bench)
    die(bench)

    class Late(Unsynced):
        """Another one holds the store alone, and works off all, before this one is let in."""

        def flock(self, fd: int, operation: int) -> None:
            if os.readlink(f"/proc/self/fd/{fd}").endswith("/locks/gate") and not done:
                done.append(True)
                with Store(bench.store.base, UNSYNCED).exclusive():
                    pass
            super().flock(fd, operation)

    done: list[bool] = []
    store = Store.open(bench.store.base, Late())
    assert done
    assert not store.unfinished
    check(bench, taken)


@pytest.mark.parametrize("strike", ["dies", "fails"])
def test_what_was_emptied_in_memory_alone_is_not_taken_for_empty(
    tmp_path: Path, strike: str
) -> None:
    """Found by a reviewer: after a power cut it brought back what had been dropped since."""
    emptied = []

    class Forgetful(Unsynced):
        def fdatasync(self, fd: int) -> None:
            emptied.append(list(records(log_of(made).read_bytes())) == [])
            if strike == "dies" and len(emptied) == 1:
                raise KeyboardInterrupt

        def unlink(self, name: bytes | str, at: int | None = None) -> None:
            if strike == "fails":
                raise OSError(errno.EIO, "no")
            super().unlink(name, at)

    made = prepared(tmp_path)
    turn(made)
    store = Store(made.store.base, Forgetful())
    with ExitStack() as stack:
        if strike == "dies":
            stack.enter_context(pytest.raises(KeyboardInterrupt))
        stack.enter_context(store.exclusive())
    assert emptied == [True]
    with store.exclusive():
        assert emptied == [True, True]
    made.close()


def test_a_log_that_cannot_be_emptied_is_taken_away_for_certain(tmp_path: Path) -> None:
    class Full(Counting):
        def overwrite_some(self, fd: int, data: bytes | memoryview, offset: int) -> int:
            raise OSError(errno.EIO, "no")

    made = prepared(tmp_path)
    taken = turn(made)
    log = log_of(made)
    with Store(made.store.base, disk := Full()).exclusive():
        assert not log.exists()
        assert str(log.parent) in disk.synced
    again = turn(made, "again")
    die(made)
    check(made, taken)
    check(made, again, b"again")


def test_what_was_stored_for_no_point_is_not_counted_on(tmp_path: Path) -> None:
    """Found by a reviewer: where a journal keeps the order, nothing had synced it."""

    class InOrder(Counting):
        def keeps_order(self, paths: Iterable[str]) -> bool:
            return True

    disk = InOrder()
    made = prepared(tmp_path, disk)
    with made.store.writing() as writer:
        writer.add("blob", b"changed")
        writer.settle(sync=True)
        writer.publish(sync=True)
    assert len(synced_by_a_turn(made, disk)) == 1
    assert kept_in(made) == []
    made.recorder.prepare()
    (made.path / "a").write_text("1")
    made.recorder.take(A, MarkSpec("manual"))
    assert len(kept_in(made)) == 2
    made.close()


def test_a_pack_that_came_again_is_not_the_one_that_was_vouched_for(bench: Bench) -> None:
    assert all(pack.lasts for pack in bench.store.packs())
    bench.store.reload()
    assert not any(pack.lasts for pack in bench.store.packs())
    bench.recorder.prepare()
    assert all(pack.lasts for pack in bench.store.packs())


@pytest.mark.parametrize("when", ["written", "read back"])
def test_whatever_interrupts_leaves_no_hole_and_nothing_that_comes_back(
    tmp_path: Path, when: str
) -> None:
    """Found by a reviewer."""

    class Short(Unsynced):
        """Of memory, once."""

        armed = ""

        def overwrite_some(self, fd: int, data: bytes | memoryview, offset: int) -> int:
            self.strike("written")
            return super().overwrite_some(fd, data, offset)

        def pread(self, fd: int, size: int, offset: int) -> bytes:
            if size > 100 and "/ahead/" in os.readlink(f"/proc/self/fd/{fd}"):
                self.strike("read back")
            return super().pread(fd, size, offset)

        def strike(self, here: str) -> None:
            if self.armed == here:
                self.armed = ""
                raise MemoryError

    made = prepared(tmp_path, disk := Short())
    first = turn(made, "first")
    disk.armed = when
    with pytest.raises(MemoryError):
        turn(made, "second")
    third = turn(made, "third")
    die(made)
    check(made, first, b"first")
    check(made, third, b"third")
    marks = [name for name in Store.open(made.store.base).refs.below("refs") if "/m/" in name]
    assert len(marks) == 3


def test_what_was_in_a_log_that_was_taken_away_is_synced_by_the_next_turn(tmp_path: Path) -> None:
    made = prepared(tmp_path, disk := Counting())
    turn(made, "first")
    log_of(made).unlink()
    synced: list[bool] = []
    disk.sync_fs = lambda fd: synced.append(True)  # type: ignore[method-assign]
    turn(made, "second")
    assert synced == [True]
    made.close()


def test_where_nothing_is_to_be_durable_nothing_is_prepared_to_be(tmp_path: Path) -> None:
    made = prepared(tmp_path, disk := Counting())
    made.close()
    made.reopen(disk)
    (made.path / "a").write_text("a burst")
    made.recorder.take(A, sync=False)
    disk.synced.clear()
    made.recorder.prepare(durable=False)
    assert disk.synced == []
    assert not log_of(made).exists()
    made.close()


def test_a_full_disk_gives_up_what_nobody_depends_on(tmp_path: Path) -> None:
    made = prepared(tmp_path)
    taken = turn(made)
    named(made, taken)["pack"].unlink()
    die(made)
    caches = Path(made.store.base, "turnmark/cache")

    class Full(Unsynced):
        def write_some(self, fd: int, data: bytes | memoryview) -> int:
            if list(caches.iterdir()):
                raise OSError(errno.ENOSPC, "full")
            return super().write_some(fd, data)

    assert list(caches.iterdir())
    assert not Store.open(made.store.base, Full()).unfinished
    check(made, taken)


def test_nobody_waits_for_whoever_was_first_to_put_it_in_place(bench: Bench) -> None:
    """A service keeps the locks of its workspaces: the others' threads open the store as well."""
    turn(bench)
    die(bench)
    left = threading.Event()

    class Late(Unsynced):
        """Its look at the log comes before another one takes the lock, for long."""

        def flock(self, fd: int, operation: int) -> None:
            if not left.is_set() and "/locks/" in os.readlink(f"/proc/self/fd/{fd}"):
                left.set()
                kept.enter_context(first.workspace_lock(bench.root.id))
            super().flock(fd, operation)

    with ExitStack() as kept:
        first = Store(bench.store.base, UNSYNCED)
        begun = time.monotonic()
        Store.open(bench.store.base, Late())
        assert left.is_set()
        assert time.monotonic() - begun < 2
    assert kept_in(bench) == []


def test_a_new_one_takes_the_place_of_one_that_was_left(tmp_path: Path) -> None:
    disk = Counting()
    bench = prepared(tmp_path, disk)
    die(bench)
    bench.reopen(disk)
    bench.recorder.prepare()
    assert synced_by_a_turn(bench, disk) == {str(log_of(bench))}
    bench.close()


def test_a_log_that_failed_is_not_written_until_it_was_emptied(tmp_path: Path) -> None:
    class Failing(Counting):
        armed = False

        def fdatasync(self, fd: int) -> None:
            if self.armed:
                self.armed = False
                raise OSError(errno.EIO, "once")
            super().fdatasync(fd)

    disk = Failing()
    bench = prepared(tmp_path, disk)
    disk.armed = True
    assert len(synced_by_a_turn(bench, disk)) > 1
    assert kept_in(bench)[-1].refs == {}
    assert bench.store.packs_in in synced_by_a_turn(bench, disk)
    bench.recorder.prepare()
    assert synced_by_a_turn(bench, disk) <= {str(log_of(bench))}
    bench.close()


def test_what_was_dropped_from_a_fuller_log_does_not_come_back(bench: Bench) -> None:
    for number in range(3):
        turn(bench, f"content {number}")
    bench.recorder.prepare()
    turn(bench, "after it")
    assert len(kept_in(bench)) == 2


def test_a_change_of_several_packs_is_not_logged(tmp_path: Path, monkeypatch: Any) -> None:
    disk = Counting()
    bench = prepared(tmp_path, disk)
    monkeypatch.setattr("core.writer.PACK_OBJECTS", 2)
    assert bench.store.packs_in in synced_by_a_turn(bench, disk)
    bench.close()


def test_a_reference_that_is_in_place_is_put_right_though_the_next_one_failed(
    tmp_path: Path,
) -> None:
    class NoMark(Unsynced):
        armed = False

        def link(self, *arguments: Any, **options: Any) -> None:
            if self.armed and "/m/" in arguments[1]:
                raise OSError(errno.EIO, "no mark")
            super().link(*arguments, **options)

    disk = NoMark()
    bench = prepared(tmp_path, disk)
    before, disk.armed = set(bench.store.refs.below("refs")), True
    with pytest.raises(TurnmarkError):
        turn(bench)
    (name,) = set(bench.store.refs.below("refs")) - before
    die(bench)
    (Path(bench.store.base) / name).write_text("")
    Store.open(bench.store.base)
    assert bench.store.refs.read(name) is not None
    assert set(bench.store.refs.below("refs")) - before == {name}


def test_a_log_costs_nobody_a_point(bench: Bench) -> None:
    """It is no history, and nothing that is dropped makes it smaller."""
    with_it = size_on_disk(bench.store)
    bench.recorder.put_away()
    assert with_it - size_on_disk(bench.store) < BLOCK


def test_what_nobody_awaits_is_in_no_log(tmp_path: Path) -> None:
    """It would be synced twice."""
    made = prepared(tmp_path, disk := Counting())
    (made.path / "a").write_text("a burst")
    made.recorder.take(A, awaited=False)
    assert kept_in(made) == []
    disk.synced.clear()
    made.recorder.prepare()
    assert disk.synced == []
    made.close()


def test_a_mark_on_what_is_there_takes_one_sync_too(tmp_path: Path) -> None:
    made = prepared(tmp_path, disk := Counting())
    assert made.recorder.last is not None
    disk.synced.clear()
    made.recorder.record(MarkSpec("manual"), made.recorder.last)
    assert disk.synced == [str(log_of(made))]
    made.close()


def test_vouching_syncs_what_bursts_did_not(tmp_path: Path) -> None:
    class NoOrder(Counting):
        def keeps_order(self, paths: Iterable[str]) -> bool:
            return False

        def sync_fs(self, fd: int) -> None:
            self.synced.append("everything")

    made = prepared(tmp_path, disk := NoOrder())
    (made.path / "a").write_text("a burst")
    made.recorder.take(A, sync=False)
    made.recorder.prepare()
    assert "everything" in disk.synced
    assert synced_by_a_turn(made, disk) == {str(log_of(made))}
    made.close()


def test_a_pack_that_comes_while_others_are_vouched_for_is_doubtful(tmp_path: Path) -> None:
    class Meanwhile(Unsynced):
        def fsync(self, fd: int) -> None:
            if armed and os.readlink(f"/proc/self/fd/{fd}").endswith("objects/pack"):
                with armed.pop().writing() as writer:
                    writer.add("blob", b"meanwhile")
                    writer.settle(sync=False)

    made = prepared(tmp_path)
    made.reopen(Meanwhile())
    armed = [Store(made.store.base, UNSYNCED)]
    made.recorder.prepare()
    assert not armed
    assert made.store.holds_doubtful or len(made.store.packs()) == 2
    assert not all(pack.lasts for pack in made.store.packs())


def test_a_reference_that_could_not_be_synced_is_written_anew(tmp_path: Path) -> None:
    class Failing(Unsynced):
        armed = False

        def fsync(self, fd: int) -> None:
            if self.armed and os.readlink(f"/proc/self/fd/{fd}") == str(ref):
                self.armed = False
                raise OSError(errno.EIO, "once")
            super().fsync(fd)

    made = prepared(tmp_path, disk := Failing())
    ref = named(made, turn(made))["mark"]
    before, disk.armed = ref.stat().st_ino, True
    made.recorder.prepare()
    assert not disk.armed
    assert ref.stat().st_ino != before
    made.close()


def test_after_names_that_failed_to_be_synced_there_is_no_log_until_they_are(
    tmp_path: Path,
) -> None:
    class Failing(Counting):
        armed = False

        def fsync(self, fd: int) -> None:
            super().fsync(fd)
            if self.armed and self.synced[-1].endswith("/m"):
                self.armed = False
                raise OSError(errno.EIO, "once")

    made = prepared(tmp_path, disk := Failing())
    disk.armed = True
    with pytest.raises(TurnmarkError):
        made.recorder.take(A, MarkSpec("manual"), awaited=False)
    assert not disk.armed
    turn(made)
    assert kept_in(made) == []
    made.recorder.prepare()
    assert synced_by_a_turn(made, disk) == {str(log_of(made))}
    made.close()


def test_a_store_of_a_newer_version_is_left_as_it_is(bench: Bench) -> None:
    files = named(bench, turn(bench))
    layout = Path(bench.store.base, "turnmark/layout.json")
    die(bench)
    files["mark"].unlink()
    layout.write_text(layout.read_text().replace('"min_writer": 1', '"min_writer": 99'))
    log = log_of(bench).read_bytes()
    store = Store.open(bench.store.base)
    with store.workspace_lock(bench.root.id):
        assert log_of(bench).read_bytes() == log
    assert not files["mark"].exists()


def test_a_log_waits_for_whoever_holds_the_store_alone(bench: Bench) -> None:
    turn(bench)
    store = Store(bench.store.base, UNSYNCED)
    store.logs.work_off_all = lambda *_: None  # type: ignore[method-assign]
    with store.exclusive(), pytest.raises(Busy):
        bench.recorder.prepare()
    assert len(kept_in(bench)) == 2
    bench.recorder.prepare()
    assert kept_in(bench) == []


def test_a_store_that_nobody_holds_is_gone_at_once(tmp_path: Path) -> None:
    """Its packs have descriptors, and maps of the disk."""
    store = weakref.ref(Store.create(str(tmp_path / "store")))
    assert store() is None


def test_a_log_is_synced_by_the_system(tmp_path: Path, monkeypatch: Any) -> None:
    made, synced = prepared(tmp_path, REAL), []
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append(os.fstat(fd).st_ino))
    turn(made)
    assert synced == [log_of(made).stat().st_ino]
    made.close()
