"""What stays of a history, and that a prune drops neither more, nor less, nor other people's."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.consolidate import consolidate
from core.disk import REAL, Disk
from core.errors import Busy
from core.history import History, MarkSpec, pin_ref, read_snapshot
from core.keeping import HOUR_NS, UNDOABLE, Book, Kept, Policy, keep
from core.model import EMPTY_TREE, Mark, MarkKind, Oid, Snapshot
from core.presence import record_of, state_of
from core.recorder import Recorder
from core.retention import Order, auto_prune, choose, prune, read_ledger
from core.rollback import undo_request
from core.roots import check_root
from core.store import Store, registry_path
from core.sweep import size_on_disk
from core.undo import replay
from core.verify import verify
from tests.faults import FaultyDisk, die_at_each, failing
from tests.stores import ALL, Bench, fsck
from tests.test_verify import damage_object
from tests.trees import build

DAY = 24 * HOUR_NS
NOW = 1_000 * DAY
OFF = Policy(0, 0, 0, 0, 0, 0)


def ids(marks: set[int], snapshots: set[int]) -> Kept:
    return Kept(frozenset(marks), frozenset(snapshots))


def oid(seq: int) -> Oid:
    return Oid(seq.to_bytes(20, "big"))


def snapshot(seq: int, time_ns: int = NOW, *, partial: bool = False) -> Snapshot:
    return Snapshot(oid(seq), "w", seq, time_ns, EMPTY_TREE, EMPTY_TREE, partial=partial)


def mark(seq: int, of: int, kind: MarkKind = "manual", time_ns: int = NOW, **rest: object) -> Mark:
    return Mark(oid(seq), "w", seq, time_ns, kind, oid(of), **rest)  # type: ignore[arg-type]


def points(
    count: int, time_of: Callable[[int], int] = lambda n: NOW
) -> tuple[list[Mark], list[Snapshot]]:
    """Snapshots 1, 3, 5, ... each with a mark of the next number."""
    marks = [mark(2 * n + 2, 2 * n + 1, time_ns=time_of(n)) for n in range(count)]
    return marks, [snapshot(2 * n + 1, time_of(n)) for n in range(count)]


# The rules


def test_at_most_so_many_points_stay_the_newest_ones():
    marks, snapshots = points(10)
    kept = keep(marks, snapshots, (), NOW, replace(OFF, max_points=3))
    assert kept == ids({16, 18, 20}, {15, 17, 19})


def test_begin_and_end_of_a_turn_are_one_point():
    turns = [
        mark(2 * n + 1 + end, 1, "turn-end" if end else "turn-begin", session="s", turn=n)
        for n in range(1, 5)
        for end in (0, 1)
    ]
    kept = keep(turns, [snapshot(1)], (), NOW, replace(OFF, max_points=2))
    assert kept.marks == {7, 8, 9, 10}


def test_turns_that_changed_nothing_push_no_point_out():
    """Found by a user: a hundred questions to an agent, and all that could be gone back to was."""
    marks, snapshots = points(4)
    idle = [
        mark(100 + 2 * n + end, 7, ("turn-begin", "turn-end")[end], session="s", turn=n)
        for n in range(1, 6)
        for end in (0, 1)
    ]
    kept = keep([*marks, *idle], snapshots, (), NOW, replace(OFF, max_points=3))
    assert kept.marks == {4, 6, 8} | {106, 107, 108, 109, 110, 111}


def test_pinned_and_protected_points_stay_whatever_their_age():
    marks, snapshots = points(4, lambda n: NOW - (100 - n) * DAY)
    policy = Policy(max_points=1)
    assert keep(marks, snapshots, {oid(3)}, NOW, policy) == ids({4, 8}, {3, 7})
    assert keep(marks, snapshots, {marks[0].id}, NOW, policy) == ids({2, 8}, {1, 7})


def test_age_counts_in_days_and_the_newest_of_a_live_workspace_stays():
    marks, snapshots = points(4, lambda n: NOW - (40 - 10 * n) * DAY)
    policy = replace(OFF, retention_days=25)
    assert keep(marks, snapshots, (), NOW, policy).marks == {6, 8}
    assert keep(marks, snapshots, (), NOW + 100 * DAY, policy) == ids({8}, {7})
    assert keep(marks, snapshots, (), NOW + 100 * DAY, policy, live=False) == ids(set(), set())


def test_clocks_that_jump_lose_nothing():
    """One mark of 1970, one of the next century: their neighbours tell when they were made."""
    times = [NOW - 5 * DAY, 0, NOW - 3 * DAY, NOW + 40_000 * DAY, NOW - DAY]
    marks, snapshots = points(5, lambda n: times[n])
    policy = replace(OFF, retention_days=14)
    assert len(keep(marks, snapshots, (), NOW, policy).marks) == 5


def test_bursts_stay_for_some_hours_or_turns_and_go_before_points():
    bursts = [snapshot(n, NOW - (48 - n) * HOUR_NS) for n in range(1, 48)]
    begin = mark(20, 19, "turn-begin", NOW - 28 * HOUR_NS, session="s", turn=1)
    end = mark(48, 47, "turn-end", NOW, session="s", turn=1)
    bursts = [one for one in bursts if one.seq != 20]
    hours = replace(OFF, burst_hours=24)
    turns = replace(OFF, burst_turns=1)
    assert keep([begin, end], bursts, (), NOW, hours).snapshots == {19, *range(24, 48)}
    assert keep([begin, end], bursts, (), NOW, turns).snapshots == {19, *range(21, 48)}
    both = replace(hours, burst_turns=1)
    assert keep([begin, end], bursts, (), NOW, both).snapshots == {19, *range(21, 48)}
    assert len(keep([begin, end], bursts, (), NOW, OFF).snapshots) == 46


def test_without_turns_only_the_hours_count():
    bursts = [snapshot(1, NOW - 30 * HOUR_NS), snapshot(2, NOW - HOUR_NS), snapshot(3, NOW)]
    assert keep([], bursts, (), NOW, Policy()).snapshots == {2, 3}


def test_the_newest_complete_snapshot_stays_below_a_partial_one():
    old = NOW - 100 * DAY
    history = [snapshot(1, old), snapshot(2, old), snapshot(3, old, partial=True)]
    assert keep([], history, (), NOW, Policy()).snapshots == {2, 3}


def test_what_the_newest_rollbacks_need_stays_as_long_as_their_marks():
    marks, snapshots = points(3, lambda n: NOW - 3 * DAY)
    undo = {"op": "rollback", "before": oid(3).hex(), "target": oid(1).hex()}
    marks += [mark(8, 7, "rollback", extra=undo)]
    snapshots += [snapshot(7)]
    policy = replace(OFF, max_points=1, burst_hours=1)
    assert keep(marks, snapshots, (), NOW, policy) == ids({8}, {1, 3, 7})
    marks += [mark(10 + n, 7, "rollback", extra={"before": "rubbish"}) for n in range(UNDOABLE)]
    assert 1 in keep(marks[:-1], snapshots, (), NOW, replace(policy, max_points=11)).snapshots
    assert keep(marks, snapshots, (), NOW, replace(policy, max_points=11)).snapshots == {3, 7}


KINDS: list[MarkKind] = ["baseline", "turn-begin", "turn-end", "manual", "rollback"]


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Mark], list[Snapshot], set[Oid]]:
    marks: list[Mark] = []
    snapshots: list[Snapshot] = []
    for seq in range(1, draw(st.integers(1, 30))):
        when = draw(st.sampled_from([NOW - 400 * DAY, NOW - DAY, NOW, NOW + DAY, 0]))
        if not snapshots or draw(st.booleans()):
            snapshots.append(snapshot(seq, when, partial=draw(st.booleans())))
            continue
        of = draw(st.sampled_from(snapshots)).seq
        turn, kind = draw(st.integers(1, 4)), draw(st.sampled_from(KINDS))
        extra = {"before": draw(st.sampled_from(snapshots)).id.hex()}
        marks.append(mark(seq, of, kind, when, session="s", turn=turn, extra=extra))
    pins = draw(st.sets(st.sampled_from(snapshots).map(lambda s: s.id))) if snapshots else set()
    return marks, snapshots, pins


policies = st.builds(
    Policy,
    max_points=st.integers(0, 5),
    burst_hours=st.sampled_from([0, 1, 48]),
    burst_turns=st.integers(0, 3),
    retention_days=st.sampled_from([0, 14]),
)


@given(histories(), policies, st.booleans())
def test_keep_keeps_its_promises(history, policy, live):
    marks, snapshots, pins = history
    kept = keep(marks, snapshots, pins, NOW, policy, live=live)
    by_id = {one.id: one.seq for one in snapshots}
    book = Book(tuple(marks), tuple(snapshots), frozenset(pins), live)
    assert kept.marks <= {m.seq for m in marks}
    for one in marks:
        if one.snapshot in pins:
            assert one.seq in kept.marks
        if one.seq in kept.marks:
            assert by_id[one.snapshot] in kept.snapshots
    assert {by_id[pin] for pin in pins} <= kept.snapshots
    whole = [row for row in book.points if {m.seq for m in row.marks} & kept.marks]
    assert all({m.seq for m in row.marks} <= kept.marks for row in whole)
    free = [row for row in whole if not book.is_fixed(row) and row.seq not in book.running]
    listed = [row for row in free if not row.is_idle]
    assert not policy.max_points or len(listed) <= policy.max_points
    assert not policy.max_points or len(free) <= 2 * policy.max_points
    if live and snapshots:
        assert max(by_id.values()) in kept.snapshots
    if live and marks:
        assert max(m.seq for m in marks) in kept.marks
    again = keep(
        [m for m in marks if m.seq in kept.marks],
        [s for s in snapshots if s.seq in kept.snapshots],
        pins,
        NOW,
        policy,
        live=live,
    )
    assert again.marks == kept.marks


@given(histories(), policies)
def test_no_burst_stays_that_is_older_than_a_point_that_went(history, policy):
    marks, snapshots, pins = history
    kept = keep(marks, snapshots, pins, NOW, policy)
    book = Book(tuple(marks), tuple(snapshots), frozenset(pins), live=True)
    needed = book.held_by([row for row in book.points if row.seq in kept.marks]).snapshots
    gone = max((m.seq for m in marks if m.seq not in kept.marks), default=0)
    fixed = {row.seq for row in book.bursts if book.is_fixed(row)}
    loose = {row.seq for row in book.bursts} & kept.snapshots - needed - fixed
    assert all(seq > gone for seq in loose)


# Where the root is


def record(root: Path, **changes: object) -> dict[str, object]:
    info = root.parent.lstat()
    return {"root": str(root), "parent": [info.st_dev, info.st_ino], **changes}


def test_only_proof_makes_an_orphan(tmp_path):
    root = tmp_path / "in/use/root"
    build(root, {})
    there = record(root)
    assert state_of(REAL, there) == "live"
    root.rmdir()
    assert state_of(REAL, there) == "away", "an empty directory may be an unmounted volume's"
    (root.parent / "other").touch()
    assert state_of(REAL, there) == "orphan"
    assert state_of(REAL, {**there, "parent": [1, 2]}) == "away"
    assert state_of(REAL, {"root": str(root)}) == "away"
    assert state_of(REAL, {**there, "parent": None}) == "away"
    root.touch()
    assert state_of(REAL, there) == "away", "something else has its name"
    shutil.rmtree(root.parent)
    assert state_of(REAL, there) == "away", "the directory that held it is gone too"
    assert state_of(REAL, None) == "away"
    assert state_of(REAL, {"root": 3}) == "away"


def test_a_mount_point_proves_that_the_root_is_gone_where_it_is_the_same_file_system():
    """Found by a reviewer: another disk in the same place has the same numbers, and is no proof."""
    mounted = Path("/dev/shm")
    if not os.path.ismount(mounted) or not REAL.fs_id(str(mounted)):
        pytest.skip("no file system is mounted there that says which one it is")
    found = record(mounted / "no such root")
    assert state_of(REAL, found) == "away"
    assert state_of(REAL, {**found, "fs": REAL.fs_id(str(mounted)) + 1}) == "away"
    assert state_of(REAL, {**found, "fs": REAL.fs_id(str(mounted))}) == "orphan"


def test_a_mount_point_that_does_not_say_which_file_system_it_is_proves_nothing(
    tmp_path, monkeypatch
):
    def failing_statvfs(path: object) -> os.statvfs_result:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "statvfs", failing_statvfs)
    bench = grown(tmp_path, 1)
    assert json.loads(Path(registry_path(bench.store, bench.root.id)).read_text())["fs"] == 0
    mounted = Path("/dev/shm")
    if os.path.ismount(mounted):
        assert state_of(REAL, record(mounted / "no such root", fs=0)) == "away"


def test_a_file_system_that_does_not_say_what_room_it_has_is_not_taken_for_full(
    tmp_path, monkeypatch
):
    bench = grown(tmp_path, 6)
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result((0,) * 10))
    assert consolidate(bench.store).packs_after == 1
    in_order(bench)


def lose(register: Path) -> None:
    register.unlink()


def says(text: str) -> Callable[[Path], None]:
    def harm(register: Path) -> None:
        register.write_text(text)

    return harm


def names_a_neighbour(register: Path) -> None:
    """As one flipped bit does: where it says that the root is, nothing is, and that is proved."""
    told = json.loads(register.read_text())
    register.write_text(json.dumps(told | {"root": f"{told['root'][:-1]}!"}))


LOSSES = {
    "lost": lose,
    "cut": says('{"root": "/'),
    "a list": says("[]"),
    "a number": says('{"root": 7}'),
    "no path": says('{"root": "\\u0000"}'),
    "no text": says('{"root": "\\ud800"}'),
    "deep": says("[" * 100_000),
    "another": names_a_neighbour,
}


@pytest.mark.parametrize("harm", LOSSES.values(), ids=LOSSES.keys())
def test_a_live_workspace_stays_so_without_its_register(tmp_path, harm):
    """Else it counted as gone: everything went, the newest point as well."""
    bench = grown(tmp_path, 3)
    harm(Path(registry_path(bench.store, bench.root.id)))
    assert state_of(REAL, record_of(bench.store, bench.root.id)) == "live"
    later = now_of(bench) + 90 * DAY
    for done in (auto_prune(bench.store, Policy(), later), prune(bench.store, Policy(), later)):
        assert done is not None
        assert (done.orphans, done.stale) == ((), ())
        assert seqs(bench) == {5, 6}
    add(bench, 1)
    assert {5, 6, 7, 8} == seqs(bench)


@pytest.mark.parametrize("known", [True, False], ids=["by its snapshots", "by nothing"])
def test_without_its_register_nothing_proves_that_a_directory_was_deleted(tmp_path, known):
    bench = orphaned(tmp_path)
    os.unlink(registry_path(bench.store, bench.root.id))
    if not known:
        for commit in set(bench.history().snapshot_ids.values()):
            damage_object(bench.store, commit)
    before = bench.store.refs.below("refs/turnmark")
    found = record_of(bench.store, bench.root.id)
    assert found == ({"root": str(bench.path)} if known else None)
    assert state_of(REAL, found) == "away"
    now = time.time_ns()
    done = prune(bench.store, Policy(), now)
    assert (done.orphans, done.stale) == ((), ())
    left = bench.store.refs.below("refs/turnmark")
    assert {n: o for n, o in left.items() if not n.endswith("/view")} == before
    auto_prune(bench.store, Policy(), now + 90 * DAY)
    assert (seqs(bench) == {5, 6}) if known else (len(seqs(bench)) == 6)


# Pruning stores


def grown(base: Path, count: int, *, size: int = 500, name: str = "work") -> Bench:
    bench = Bench(base, name=name)
    add(bench, count, size=size)
    return bench


def add(bench: Bench, count: int, *, size: int = 500) -> None:
    for turn in range(count):
        build(bench.path, {"f": os.urandom(size), "same": "s"})
        bench.point(f"number {turn}")


def seqs(bench: Bench) -> set[int]:
    return {*bench.history().mark_ids, *bench.history().snapshot_ids}


def now_of(bench: Bench) -> int:
    return max(one.time_ns for one in bench.history().marks())


def in_order(bench: Bench) -> None:
    assert verify(bench.store).ok
    fsck(bench.store.base)


def test_a_prune_drops_what_the_policy_does_not_keep_and_no_id_changes(tmp_path):
    bench = grown(tmp_path, 8)
    before = bench.store.refs.below("refs/turnmark")
    done = prune(bench.store, Policy(max_points=3), now_of(bench))
    assert (done.scanned, done.snapshots_dropped) == (1, 5)
    assert done.bytes_after == size_on_disk(bench.store) < done.bytes_before
    assert done.reclaimed == done.bytes_before - done.bytes_after
    assert seqs(bench) == {11, 12, 13, 14, 15, 16}
    after = bench.store.refs.below("refs/turnmark")
    assert {n: o for n, o in after.items() if not n.endswith("view")}.items() <= before.items()
    in_order(bench)
    add(bench, 1)
    assert {17, 18} < seqs(bench)


def test_a_dry_run_says_the_same_and_changes_nothing(tmp_path):
    bench = grown(tmp_path, 8, size=20_000)
    before = seqs(bench), size_on_disk(bench.store)
    policy = Policy(max_points=3)
    told = prune(bench.store, policy, now_of(bench), dry_run=True)
    assert (seqs(bench), size_on_disk(bench.store)) == before
    done = prune(bench.store, policy, now_of(bench))
    assert told.snapshots_dropped == done.snapshots_dropped
    assert told.reclaimed == pytest.approx(done.reclaimed, rel=0.6)


def test_a_pin_and_a_protected_point_survive_age_and_size(tmp_path):
    bench = grown(tmp_path, 6)
    taken = bench.history().snapshot_ids
    bench.store.refs.create(pin_ref(bench.root.id, taken[3]), taken[3], sync=True)
    policy = Policy(max_total_size=1)
    done = prune(bench.store, policy, now_of(bench) + 90 * DAY, protect={taken[5]})
    assert seqs(bench) == {3, 4, 5, 6, 11, 12}
    assert "more than its cap" in done.over_cap_reason
    in_order(bench)


def test_what_an_unfinished_rollback_needs_is_protected(tmp_path):
    bench = grown(tmp_path, 6)
    target = bench.history().snapshot_ids[1]
    journal = Path(bench.store.base, f"turnmark/journal/{bench.root.id}.json")
    journal.write_text(json.dumps({"target": target.hex()}))
    prune(bench.store, Policy(max_points=2), now_of(bench))
    assert seqs(bench) == {1, 2, 9, 10, 11, 12}


def test_undo_goes_on_working_after_a_prune(tmp_path):
    bench = Bench(tmp_path)
    build(bench.path, {"f": "one"})
    first = bench.point()
    build(bench.path, {"f": "two"})
    bench.point()
    bench.back_to(first)
    prune(bench.store, Policy(max_points=1, burst_hours=0, burst_turns=0), now_of(bench))
    (rollback,) = [one for one in bench.history().marks() if one.kind == "rollback"]
    for key in ("before", "target"):
        assert Oid(bytes.fromhex(str(rollback.extra[key]))) in set(
            bench.history().snapshot_ids.values()
        )
    in_order(bench)


def between(monkeypatch: pytest.MonkeyPatch, comes: Callable[[], object]) -> None:
    """What comes after a prune has decided, and before it has the store for itself."""
    real, waiting = Store.exclusive, [comes]

    def exclusive(store: Store, wait: float = 0.0) -> Any:
        if waiting:
            waiting.pop()()
        return real(store, wait)

    monkeypatch.setattr(Store, "exclusive", exclusive)


def test_what_is_pinned_or_marked_while_a_prune_decides_stays(tmp_path, monkeypatch):
    bench = grown(tmp_path, 6)
    build(bench.path, {"f": "a burst"})
    bench.recorder.take()
    add(bench, 1)
    taken = bench.history().snapshot_ids
    old = read_snapshot(bench.store, taken[5])

    def comes() -> None:
        bench.store.refs.create(pin_ref(bench.root.id, taken[3]), taken[3], sync=True)
        bench.recorder.record(MarkSpec("manual", "again"), old)

    between(monkeypatch, comes)
    now = now_of(bench)
    done = prune(bench.store, Policy(max_points=1, burst_hours=0, burst_turns=1), now)
    assert seqs(bench) == {3, 4, 5, 14, 15, 16}
    assert done.snapshots_dropped == 5
    in_order(bench)


def test_what_is_damaged_while_a_prune_decides_keeps_its_workspace_whole(tmp_path, monkeypatch):
    bench = grown(tmp_path, 4)
    path = Path(bench.store.base, f"refs/turnmark/{bench.root.id}/s/3")
    oid = path.read_text()
    between(monkeypatch, lambda: path.write_text("rubbish"))
    done = prune(bench.store, Policy(max_points=2), now_of(bench))
    assert any(bench.root.id in error for error in done.errors)
    path.write_text(oid)
    assert seqs(bench) == set(range(1, 9))
    in_order(bench)


def test_no_history_goes_for_what_a_killed_process_left(tmp_path):
    """Found by an attacker: where a sweep could not be made, the rubbish counted as history."""
    bench = grown(tmp_path, 10)
    cap = size_on_disk(bench.store) + 50_000
    left = Path(bench.store.base, "turnmark/tmp/deep-77/pack")
    left.mkdir(parents=True)
    (left / "tmp_pack_x").write_bytes(os.urandom(400_000))
    damage_object(bench.store, bench.recorder.take().snapshot.files)
    points = seqs(bench)
    done = prune(bench.store, Policy(max_points=0, max_total_size=cap), now_of(bench))
    assert done.errors
    assert seqs(bench) == points
    assert os.listdir(f"{bench.store.base}/turnmark/tmp") == []


def orphaned(base: Path) -> Bench:
    bench = grown(base, 3)
    (base / "neighbour").touch()
    bench.close()
    shutil.rmtree(bench.path)
    return bench


def test_an_orphan_goes_whole_with_all_that_was_kept_for_it(tmp_path):
    bench = orphaned(tmp_path)
    done = prune(bench.store, Policy(), 0)
    assert done.orphans == (bench.root.id,)
    assert not bench.store.refs.below("refs/turnmark")
    assert not os.path.exists(registry_path(bench.store, bench.root.id))
    assert not os.listdir(f"{bench.store.base}/turnmark/cache")
    in_order(bench)


def test_orphans_are_kept_where_that_is_wished_or_not_agreed(tmp_path):
    bench = orphaned(tmp_path)
    now = now_of(bench)
    prune(bench.store, Policy(), now, keep_orphans=True)
    prune(bench.store, Policy(delete_orphans=False), now)
    prune(bench.store, Policy(), now, agreed=())
    prune(bench.store, Policy(), now, dry_run=True)
    assert len(seqs(bench)) == 6
    pin = bench.history().snapshot_ids[3]
    bench.store.refs.create(pin_ref(bench.root.id, pin), pin, sync=True)
    assert prune(bench.store, Policy(), now).orphans == ()
    assert seqs(bench) == {3, 4}
    assert os.path.exists(registry_path(bench.store, bench.root.id))


def test_an_unmounted_volume_keeps_its_history_until_it_is_stale(tmp_path):
    bench = grown(tmp_path / "volume", 3)
    os.rename(bench.store.base, tmp_path / "store")
    store = Store.open(str(tmp_path / "store"))
    bench.close()
    shutil.rmtree(tmp_path / "volume")
    (tmp_path / "volume").mkdir()
    marks = list(History(store, bench.root.id).marks())
    now = marks[-1].time_ns
    done = prune(store, Policy(max_points=1, max_total_size=1), now)
    assert (done.orphans, done.stale) == ((), ())
    assert set(History(store, bench.root.id).mark_ids) == {6}
    assert prune(store, Policy(), now + 15 * DAY).stale == (bench.root.id,)
    assert not store.refs.below("refs/turnmark")


def test_a_register_that_a_killed_prune_left_goes_next_time(tmp_path):
    bench = orphaned(tmp_path)
    bench.store.refs.delete(bench.store.refs.below("refs"))
    prune(bench.store, Policy(), 0)
    assert not os.path.exists(registry_path(bench.store, bench.root.id))


def test_damage_in_one_workspace_costs_another_nothing(tmp_path):
    bench = grown(tmp_path, 4)
    other = neighbour(bench, "other", 4)
    Path(bench.store.base, f"refs/turnmark/{bench.root.id}/s/3").write_text("rubbish")
    store = Store.open(bench.store.base)
    done = prune(store, Policy(max_points=2), time.time_ns())
    assert any(bench.root.id in error for error in done.errors)
    assert len(History(store, other).mark_ids) >= 1
    assert store.refs.read(f"refs/turnmark/{bench.root.id}/s/1") is not None


# Size


def neighbour(bench: Bench, name: str, count: int, size: int = 500) -> str:
    """Another workspace in the same store."""
    path = bench.base / name
    build(path, {})
    root = check_root(REAL, str(path), home="/nonexistent", store=bench.store.base)
    recorder = Recorder(bench.store, root, ALL)
    for turn in range(count):
        build(path, {"f": os.urandom(size) + name.encode()})
        recorder.take(mark=MarkSpec("manual", label=f"{turn}"))
    recorder.close()
    return root.id


def test_the_cap_is_kept_and_not_much_more_is_dropped_than_needed(tmp_path):
    bench = grown(tmp_path, 40, size=30_000)
    cap = 600_000
    done = prune(bench.store, Policy(max_total_size=cap), now_of(bench))
    assert done.over_cap_reason == ""
    assert done.bytes_after == size_on_disk(bench.store)
    assert cap * 0.85 < done.bytes_after <= cap
    assert max(seqs(bench)) == 80
    assert min(seqs(bench)) > 40
    in_order(bench)


class SmallDisk(Disk):
    """Takes so many bytes more, and some again when files go."""

    def __init__(self, room: int) -> None:
        self.room = room

    def free(self, path: str) -> int:
        return self.room

    def write_some(self, fd: int, data: bytes | memoryview) -> int:
        if len(data) > self.room:
            raise OSError(errno.ENOSPC, "full")
        self.room -= len(data)
        return super().write_some(fd, data)

    def unlink(self, name: Any, at: int | None = None) -> None:
        size = self.lstat(name, at).st_size
        super().unlink(name, at)
        self.room += size


@pytest.mark.parametrize("room", [0, 5_000, 300_000, 700_000])
def test_history_can_be_dropped_on_a_disk_that_is_full(tmp_path, room):
    bench = grown(tmp_path, 40, size=30_000)
    store = Store.open(bench.store.base, SmallDisk(room))
    done = prune(store, Policy(max_total_size=600_000), now_of(bench))
    assert done.bytes_after == size_on_disk(bench.store) <= 600_000
    assert seqs(bench)
    in_order(bench)


def test_without_its_reserve_a_full_disk_keeps_its_history_whole(tmp_path):
    bench = grown(tmp_path, 4, size=30_000)
    os.unlink(f"{bench.store.base}/turnmark/reserve")
    before = seqs(bench)
    store = Store.open(bench.store.base, SmallDisk(0))
    with pytest.raises(OSError, match="full"):
        prune(store, Policy(max_total_size=60_000), now_of(bench))
    assert seqs(bench) == before
    in_order(bench)


def test_the_reserve_comes_back_where_there_is_room_again(tmp_path):
    bench = grown(tmp_path, 4)
    path = Path(bench.store.base, "turnmark/reserve")
    path.write_bytes(b"")
    prune(bench.store, Policy(), now_of(bench))
    assert os.stat(path).st_blocks * 512 >= 1 << 20
    path.unlink()
    prune(Store.open(bench.store.base, SmallDisk(10_000_000)), Policy(), now_of(bench))
    assert not path.exists()


def test_the_workspace_that_holds_the_most_pays(tmp_path):
    bench = grown(tmp_path, 10, size=100)
    hog = neighbour(bench, "hog", 20, size=40_000)
    before = seqs(bench)
    done = prune(bench.store, Policy(max_total_size=400_000), time.time_ns())
    assert done.over_cap_reason == ""
    assert seqs(bench) == before
    assert 0 < len(History(bench.store, hog).mark_ids) < 20
    in_order(bench)


def test_equals_pay_equally(tmp_path):
    bench = grown(tmp_path, 15, size=20_000)
    other = neighbour(bench, "other", 15, size=20_000)
    prune(bench.store, Policy(max_total_size=400_000), time.time_ns())
    mine, theirs = len(bench.history().mark_ids), len(History(bench.store, other).mark_ids)
    assert abs(mine - theirs) <= 1
    assert mine < 15


def test_above_the_cap_bursts_go_before_points(tmp_path):
    bench = Bench(tmp_path)
    for turn in range(30):
        build(bench.path, {"f": os.urandom(20_000)})
        if turn % 3 == 0:
            bench.point()
        else:
            bench.recorder.take()
    prune(bench.store, Policy(max_total_size=450_000), now_of(bench))
    history = bench.history()
    assert len(history.mark_ids) == 10
    assert len(history.snapshot_ids) < 30


def test_what_two_workspaces_share_is_only_free_when_both_let_go(tmp_path):
    bench = Bench(tmp_path)
    big = os.urandom(200_000)
    for content in (big, b"small", b"smaller"):
        build(bench.path, {"f": content})
        bench.point()
    path = build(bench.base / "other", {"f": big})
    root = check_root(REAL, str(path), home="/nonexistent", store=bench.store.base)
    recorder = Recorder(bench.store, root, ALL)
    recorder.take(mark=MarkSpec("manual"))
    recorder.close()
    order = Order(Policy(), time.time_ns())
    ledgers = [read_ledger(bench.store, one, order) for one in (bench.root.id, root.id)]
    chosen = choose(bench.store, ledgers, 1500)
    assert (chosen[bench.root.id].snapshots, chosen[root.id].snapshots) == (2, 0)
    done = prune(bench.store, Policy(max_total_size=150_000), now_of(bench))
    assert "newest points" in done.over_cap_reason
    in_order(bench)


def test_git_compresses_before_history_is_dropped(tmp_path):
    bench = Bench(tmp_path)
    text = "".join(f"{os.urandom(30).hex()}\n" for _ in range(400))
    for turn in range(12):
        build(bench.path, {"f": f"{turn}\n{text}"})
        bench.point()
    bench.close()
    cap = Policy(max_total_size=150_000)
    assert prune(bench.store, cap, time.time_ns(), dry_run=True).snapshots_dropped > 0
    done = prune(bench.store, cap, time.time_ns(), git="git")
    assert (done.snapshots_dropped, done.over_cap_reason) == (0, "")
    in_order(bench)


# Unattended


def test_it_prunes_by_itself_only_so_often(tmp_path):
    bench = grown(tmp_path, 3)
    store, now, policy = bench.store, now_of(bench), Policy(max_points=1)
    marker = Path(store.base, "turnmark/last_prune")
    assert auto_prune(store, policy, now) is not None
    assert auto_prune(store, policy, now + 23 * HOUR_NS) is None
    assert auto_prune(store, policy, now + 24 * HOUR_NS) is not None
    assert auto_prune(store, policy, now) is not None, "a marker of the future says nothing"
    marker.write_text("rubbish")
    assert auto_prune(store, policy, now) is not None
    marker.unlink()
    with store.maintaining(), pytest.raises(Busy):
        auto_prune(Store.open(store.base), policy, now)


def test_a_prune_that_fails_is_not_tried_again_at_once(tmp_path):
    bench = grown(tmp_path, 1)
    now = now_of(bench)
    disk = FaultyDisk(10, failing(5), lasting=True)
    with pytest.raises(OSError, match="Input/output"):
        auto_prune(Store.open(bench.store.base, disk), Policy(), now)
    assert auto_prune(bench.store, Policy(), now) is None


def test_whatever_step_it_dies_at_what_was_to_stay_is_whole(tmp_path):
    bench = grown(tmp_path / "template", 3)
    (tmp_path / "template" / "away").mkdir()
    gone = neighbour(bench, "away/gone", 1)
    build(tmp_path / "template" / "away", {"neighbour": ""})
    shutil.rmtree(tmp_path / "template" / "away/gone")
    policy, now = Policy(max_points=2), now_of(bench)
    bench.close()
    base = tmp_path / "copy"
    kept = {
        name: oid
        for name, oid in bench.store.refs.below(f"refs/turnmark/{bench.root.id}").items()
        if int(name.rsplit("/", 1)[1]) > 2
    }

    def run(disk: Disk) -> None:
        prune(Store.open(str(base), disk), policy, now)

    shutil.copytree(bench.store.base, base)
    for _ in die_at_each(run):
        store = Store.open(str(base))
        assert kept.items() <= store.refs.below("refs").items()
        assert verify(store).ok, verify(store)
        fsck(base)
        prune(store, policy, now)
        left = {n: o for n, o in store.refs.below("refs").items() if not n.endswith("/view")}
        assert left == kept
        assert not os.path.exists(registry_path(store, gone))
        assert verify(store).ok
        shutil.rmtree(base)
        shutil.copytree(bench.store.base, base)


def test_a_disk_in_a_drawer_keeps_its_newest_point_unless_somebody_prunes_by_hand(tmp_path):
    bench = grown(tmp_path, 3)
    bench.path.rename(tmp_path / "elsewhere")
    record = Path(bench.store.base, f"turnmark/workspaces/{bench.root.id}.json")
    told = json.loads(record.read_text())
    record.write_text(json.dumps(told | {"parent": [0, 0]}))
    later = now_of(bench) + 90 * DAY
    auto_prune(bench.store, Policy(), later)
    assert seqs(bench) == {5, 6}
    prune(bench.store, Policy(), later)
    assert seqs(bench) == set()


def test_a_directory_deleted_just_now_keeps_its_history_when_nobody_asked_for_a_prune(tmp_path):
    bench = grown(tmp_path, 3)
    shutil.rmtree(bench.path)
    (bench.path.parent / "neighbour").mkdir()
    before = seqs(bench)
    done = auto_prune(bench.store, Policy(), now_of(bench) + DAY)
    assert done is not None
    assert done.orphans == ()
    assert seqs(bench) == before
    auto_prune(bench.store, Policy(), now_of(bench) + 30 * DAY)
    assert seqs(bench) == set()


@pytest.mark.parametrize("most", [5, 6])
def test_every_undo_that_is_left_after_a_prune_can_be_done(tmp_path, most):
    """Found by a reviewer: where the limit fell between a rollback and the point before it, undo
    wanted a snapshot that was gone."""
    bench = Bench(tmp_path)
    build(bench.path, {"f": "0"})
    first = bench.point()
    for number in range(UNDOABLE + 3):
        build(bench.path, {"f": f"edit {number}"})
        bench.back_to(first)
    prune(bench.store, replace(OFF, max_points=2 * UNDOABLE + most), NOW)
    bench.reopen()
    left = len(replay(bench.history().marks()).undo)
    assert left > UNDOABLE
    for number in range(left):
        bench.go(undo_request(bench.store, bench.root.id))
        assert (bench.path / "f").read_text() == f"edit {UNDOABLE + 2 - number}"


def test_a_rollback_whose_undo_was_dropped_is_not_undone_again(tmp_path):
    """Found by a reviewer: it was pinned, its undo was not, and undo went back to long ago."""
    bench = Bench(tmp_path)
    build(bench.path, {"f": "0"})
    first = bench.point()
    build(bench.path, {"f": "1"})
    bench.back_to(first)
    (back,) = (mark for mark in bench.history().marks() if mark.kind == "rollback")
    bench.go(undo_request(bench.store, bench.root.id))
    bench.store.refs.create(pin_ref(bench.root.id, back.id), back.id, sync=False)
    add(bench, 5)
    prune(bench.store, replace(OFF, max_points=2), now_of(bench))
    bench.reopen()
    assert back.seq in bench.history().mark_ids
    assert undo_request(bench.store, bench.root.id) is None
