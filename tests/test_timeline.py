"""What the list shows and what a user's word for a point means."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from core import turns
from core.errors import BadInput, Damaged
from core.history import MarkSpec, pin_ref
from core.model import Counts, Oid, RelPath, rfc3339
from core.recorder import Recorder
from core.refs import ref_name
from core.store import root_shown
from core.timeline import Timeline, moment_of, registered
from tests.stores import Bench
from tests.trees import build

SECOND = 1_000_000_000
START = 1_760_000_000 * SECOND


class Scene:
    """Owns a workspace whose clock stands still unless it is told to move."""

    def __init__(self, base, name="work"):
        self.bench = Bench(base, name=name)
        self.now = START
        self.recorder = Recorder(
            self.bench.store, self.bench.root, self.bench.rules, lambda: self.now
        )
        self.writes = 0

    def write(self):
        self.writes += 1
        (self.bench.path / "a").write_text("".join(f"{n}\n" for n in range(self.writes)))

    def mark(self, kind="manual", label="", *, write=True):
        self.now += SECOND
        if write:
            self.write()
        return self.recorder.take(mark=MarkSpec(kind, label=label), sync=False)

    def burst(self):
        self.now += SECOND
        self.write()
        return self.recorder.take(note="burst", sync=False)

    def turn(self, session="s", *, write=True, close=True, **words):
        self.now += SECOND
        begun = turns.begin(self.recorder, session, sync=False, **words)
        if write:
            self.write()
        self.now += SECOND
        return (begun, turns.end(self.recorder, session, sync=False) if close else None)

    @property
    def timeline(self):
        return Timeline(self.bench.store, self.bench.root.id)

    def resolve(self, spec):
        return self.timeline.resolve(spec, self.now)


@pytest.fixture
def scene(tmp_path):
    made = Scene(tmp_path)
    yield made
    made.recorder.close()


def test_a_turn_is_one_row_that_carries_both_of_its_marks(scene):
    begun, ended = scene.turn(prompt="fix it", turn_id="t1", agent="codex", messages=4)
    (point,) = scene.timeline.points()
    assert (point.n, point.kind, point.seq) == (1, "turn", begun.mark.seq)
    assert (point.id, point.end) == (begun.snapshot.id, ended.snapshot.id)
    assert (point.label, point.session, point.turn) == ("fix it", "s", 1)
    assert (point.turn_id, point.agent, point.status) == ("t1", "codex", "ok")
    assert point.extra == {"messages": 4}


def test_an_open_turn_has_no_end_yet(scene):
    scene.turn(close=False)
    (point,) = scene.timeline.points()
    assert (point.end, point.status) == (None, None)


def test_a_turn_whose_end_is_lost_was_over_when_the_next_began(scene):
    _, ended = scene.turn()
    second, _ = scene.turn()
    scene.bench.store.refs.delete([ref_name(scene.bench.root.id, "m", ended.mark.seq)])
    newest, first = scene.timeline.points()
    assert (first.end, first.status) == (second.snapshot.id, "unknown")
    assert newest.status == "ok"


def test_the_end_of_a_turn_whose_begin_is_lost_is_a_state_in_between(scene):
    begun, ended = scene.turn()
    scene.bench.store.refs.delete([ref_name(scene.bench.root.id, "m", begun.mark.seq)])
    assert scene.timeline.points() == []
    assert ended.snapshot.id in {p.id for p in scene.timeline.points(everything=True)}
    assert scene.resolve(ended.mark.id.hex()).seq == ended.mark.seq


@pytest.mark.parametrize(("end", "shown"), [("ok", "late"), ("error", "error")])
def test_a_begin_that_came_late_is_worth_more_than_an_ok(scene, end, shown):
    scene.recorder.take(mark=MarkSpec("turn-begin", session="s", turn=1, status="late"))
    assert scene.timeline.points()[0].status == "late"
    scene.write()
    turns.end(scene.recorder, "s", status=end)
    assert scene.timeline.points()[0].status == shown


def test_kinds_are_shown_newest_first_and_numbered_from_one(scene):
    for kind in ("baseline", "manual", "before-rollback", "rollback", "import"):
        scene.mark(kind)
    shown = [(point.n, point.kind) for point in scene.timeline.points()]
    kinds = ["import", "rollback", "before-rollback", "manual", "baseline"]
    assert shown == list(enumerate(kinds, 1))


def test_bursts_and_turns_without_changes_show_only_with_everything(scene):
    scene.mark()
    burst = scene.burst()
    scene.write()
    scene.turn(write=False)
    partial = scene.recorder.keep_displaced({RelPath(b"x"): (0o100644, b"x")}, "kept aside")
    assert [(p.n, p.kind) for p in scene.timeline.points()] == [(1, "manual")]
    newest, turn, between, manual = scene.timeline.points(everything=True)
    assert (newest.n, newest.id, newest.label) == (None, partial.id, "kept aside")
    assert (turn.n, turn.kind) == (None, "turn")
    assert (between.n, between.id) == (None, burst.snapshot.id)
    assert manual.n == 1


def test_a_burst_between_points_is_a_row_without_a_number(scene):
    scene.mark()
    burst = scene.burst()
    scene.mark()
    shown = [(p.n, p.kind, p.label) for p in scene.timeline.points(everything=True)]
    assert shown == [(1, "manual", ""), (None, "burst", "burst"), (2, "manual", "")]
    assert scene.timeline.points(everything=True)[1].id == burst.snapshot.id


def test_two_marks_on_one_snapshot_are_two_points(scene):
    first, second = scene.mark(), scene.mark(write=False)
    newest, oldest = scene.timeline.points()
    assert newest.id == oldest.id == first.snapshot.id == second.snapshot.id
    assert newest.seq > oldest.seq


def test_a_clock_that_jumps_back_does_not_change_the_order(scene):
    scene.mark(label="one")
    scene.now -= 3600 * SECOND
    scene.mark(label="two")
    assert [point.label for point in scene.timeline.points()] == ["two", "one"]


def test_a_pin_is_seen_at_every_point_of_its_snapshot(scene):
    taken = scene.mark()
    scene.mark(write=False)
    scene.mark()
    name = pin_ref(scene.bench.root.id, taken.snapshot.id)
    scene.bench.store.refs.create(name, taken.snapshot.id, sync=False)
    assert [point.pinned for point in scene.timeline.points()] == [False, True, True]


def test_damage_of_one_mark_does_not_hide_the_others(scene):
    scene.mark(label="good")
    name = ref_name(scene.bench.root.id, "m", 999)
    scene.bench.store.refs.create(name, Oid(b"\1" * 20), sync=False)
    timeline = scene.timeline
    assert [point.label for point in timeline.points()] == ["good"]
    assert len(timeline.damage) == 1


def test_damage_of_a_snapshot_costs_its_numbers_only(scene):
    scene.mark()
    scene.mark(label="damaged")
    timeline = scene.timeline
    lost = timeline.marks[-1].snapshot
    timeline._known[lost] = None
    assert [point.label for point in timeline.points()] == ["damaged", ""]
    assert timeline.points()[0].counts is None


# Counts


def test_counts_are_of_the_turn_or_since_the_point_before(scene):
    scene.mark()
    scene.mark()
    scene.turn()
    scene.mark()
    timeline = scene.timeline
    assert timeline._book.fill(timeline.pairs(), 5) == 3
    found = [point.counts for point in scene.timeline.points()]
    assert found == [Counts(1, 1, 0), Counts(1, 1, 0), Counts(1, 1, 0), Counts(1)]


def test_the_counts_of_an_open_turn_reach_to_the_newest_snapshot(scene):
    scene.mark()
    scene.turn(close=False)
    scene.burst()
    scene.burst()
    timeline = scene.timeline
    timeline._book.fill(timeline.pairs(), 5)
    assert scene.timeline.points()[0].counts == Counts(1, 3, 0)


def test_a_listing_computes_nothing(scene):
    scene.mark()
    scene.mark()
    assert [point.counts for point in scene.timeline.points()] == [None, Counts(1)]
    assert not os.path.exists(f"{scene.bench.store.base}/turnmark/counts.db")


# The grammar


@pytest.fixture
def told(scene):
    """A baseline, two turns of s, a burst, a turn of r, a mark: numbers 5 to 1."""
    made = {"baseline": scene.mark("baseline")}
    made["s1"], made["s1.end"] = scene.turn(prompt="first", turn_id="a-1")
    made["s2"], made["s2.end"] = scene.turn(prompt="second", turn_id="a-2")
    made["burst"] = scene.burst()
    scene.write()
    made["r1"], made["r1.end"] = scene.turn("r", prompt="other")
    made["mark"] = scene.mark(label="mine")
    return made


@pytest.mark.parametrize(
    ("spec", "meant"),
    [
        ("1", "mark"),
        ("5", "baseline"),
        ("003", "s2"),
        ("@", "mark"),
        ("@-0", "mark"),
        ("@-2", "s2"),
        ("@-4", "baseline"),
        ("turn:1", "r1"),
        ("turn:1.end", "r1.end"),
        ("turn:2", "s2"),
        ("turn:a-1", "s1"),
        ("turn:a-2.end", "s2.end"),
        ("s/1", "s1"),
        ("s/1.end", "s1.end"),
        ("s/a-2", "s2"),
        ("r/1", "r1"),
        ("baseline", "baseline"),
        ("0s", "mark"),
        ("1s", "r1.end"),
        ("3s", "burst"),
    ],
)
def test_every_form_of_a_point_is_understood(scene, told, spec, meant):
    target = scene.resolve(spec)
    mark = told[meant].mark
    seq = mark.seq if mark else told[meant].snapshot.seq
    assert (target.snapshot, target.seq) == (told[meant].snapshot.id, seq)


@pytest.mark.parametrize(
    "spec",
    [
        *("0", "6", "123456", "@-5", "@-", "@1", "@@", "-1", "+1", " 1", "1 ", "٣", "9" * 5000),
        *("turn:", "turn:9", "turn:9.end", "turn:.end", "nobody/1", "s/9", "s/", "/1", "s/1.start"),
        *("--help", "-h", "../x", "/etc/passwd", "a\0b", "", "HEAD", "@{1}", "main~1"),
        *("abcdef", "zzzzzzz", "g" * 40, "a" * 41, "f" * 40, "0" * 40, "1234567", "20260102"),
        *(
            "9d",
            "9999999d",
            "5x",
            "1.5h",
            "-1h",
            "2001-01-01",
            "2001-13-01",
            "0001-01-01",
            "2999-01-01",
        ),
    ],
)
def test_what_is_no_point_is_said_with_a_way_out(scene, told, spec):
    with pytest.raises(BadInput) as caught:
        scene.resolve(spec)
    assert "turnmark list" in caught.value.hint


def test_a_time_to_come_is_no_point_unless_a_clock_has_been_there(scene, told):
    with pytest.raises(BadInput, match="2999-01-01 is yet to come"):
        scene.resolve("2999-01-01")
    scene.now += 365 * 86_400 * 1_000_000_000
    ahead = scene.mark(label="by a clock that ran ahead")
    scene.now -= 365 * 86_400 * 1_000_000_000
    spec = rfc3339(ahead.mark.time_ns)
    assert scene.resolve(spec).seq == ahead.mark.seq


def test_an_empty_history_says_so(scene):
    with pytest.raises(BadInput) as caught:
        scene.resolve("1")
    assert "no points yet" in caught.value.hint


def test_numbers_skip_what_the_list_hides(scene):
    scene.mark(label="one")
    scene.turn(write=False)
    scene.mark(label="two")
    assert scene.resolve("2").point.label == "one"
    assert scene.resolve("turn:1").point.n is None


def test_the_end_of_an_open_turn_is_not_there_yet(scene):
    scene.turn(close=False)
    with pytest.raises(BadInput, match="still open"):
        scene.resolve("turn:1.end")


def test_a_turn_is_that_of_the_session_that_was_last_active(scene):
    scene.turn("old", prompt="old 1")
    scene.turn("old", prompt="old 2")
    scene.turn("new", prompt="new 1")
    assert scene.resolve("turn:1").point.label == "new 1"
    assert scene.resolve("turn:2").point.label == "old 2"
    scene.turn("old", prompt="old 3")
    assert scene.resolve("turn:1").point.label == "old 1"


def test_labels_are_short_words_for_messages(scene, told):
    assert scene.resolve("3").label == 'point 3, "second"'
    assert scene.resolve("turn:2.end").label == 'the end of point 3, "second"'
    assert scene.resolve("baseline").label == "point 5 (baseline)"
    burst = told["burst"].snapshot.id.hex()
    assert scene.resolve(burst).label == f'snapshot {burst[:10]}, "burst"'


def test_without_a_baseline_the_oldest_snapshot_is_it(scene):
    oldest = scene.burst()
    scene.mark()
    assert scene.resolve("baseline").snapshot == oldest.snapshot.id


# Hashes


def test_a_hash_prefix_in_either_case_is_a_point(scene, told):
    oid = told["mark"].snapshot.id.hex()
    for spec in (oid, oid[:7], oid[:12].upper()):
        assert scene.resolve(spec).point.label == "mine"


def test_the_id_of_a_mark_is_that_mark(scene, told):
    assert scene.resolve(told["s1"].mark.id.hex()[:12]).seq == told["s1"].mark.seq


def test_a_snapshot_with_two_marks_is_not_ambiguous_the_newest_wins(scene):
    first, second = scene.mark(), scene.mark(write=False)
    target = scene.resolve(first.snapshot.id.hex()[:9])
    assert target.seq == second.mark.seq
    assert scene.resolve(first.mark.id.hex()).seq == first.mark.seq


def twins(scene, oid):
    """A reference to an id that begins like another."""
    other = Oid(bytes([*oid[:4], oid[4] ^ 0xFF, *oid[5:]]))
    scene.bench.store.refs.create(ref_name(scene.bench.root.id, "s", 900), other, sync=False)
    return other


def test_an_ambiguous_prefix_lists_its_candidates(scene):
    oid = scene.mark().snapshot.id
    other = twins(scene, oid)
    with pytest.raises(BadInput) as caught:
        scene.resolve(oid.hex()[:8])
    assert oid.hex() in caught.value.message
    assert other.hex() in caught.value.message
    assert scene.resolve(oid.hex()[:10]).snapshot == oid


def test_digits_are_a_number_if_there_is_one_else_a_hash(scene):
    scene.mark()
    candidate = bytes.fromhex("00000012") + bytes(16)
    name = ref_name(scene.bench.root.id, "s", 900)
    scene.bench.store.refs.create(name, Oid(candidate), sync=False)
    with pytest.raises(Damaged, match="lacks the object 00000012"):
        scene.resolve("00000012")  # it is looked for, so it was understood as a hash
    assert scene.resolve("0000001").point.n == 1


def test_a_point_of_another_workspace_is_refused_by_name(scene, tmp_path):
    scene.mark()
    other = Scene(tmp_path, "other")
    foreign = other.mark()
    other.recorder.close()
    for oid in (foreign.snapshot.id, foreign.mark.id):
        with pytest.raises(BadInput, match=str(tmp_path / "other")):
            scene.resolve(oid.hex()[:10])


def test_a_register_that_is_lost_costs_the_name_only(scene, tmp_path):
    scene.mark()
    store = scene.bench.store
    assert list(registered(store)) == [(scene.bench.root.id, str(scene.bench.path))]
    shutil.rmtree(f"{store.base}/turnmark/workspaces")
    os.mkdir(f"{store.base}/turnmark/workspaces")
    assert root_shown(store, scene.bench.root.id) == scene.bench.root.id
    assert list(registered(store)) == [(scene.bench.root.id, scene.bench.root.id)]


# Times


def test_a_time_as_the_list_prints_it_is_that_very_point(scene):
    for _ in range(3):
        scene.now += 777_777
        scene.mark()
    for point in scene.timeline.points():
        assert scene.resolve(rfc3339(point.time_ns)).seq == point.seq


def test_a_time_is_the_newest_state_at_or_before_it_by_order_not_by_clock(scene):
    scene.mark(label="at 1")
    scene.now += 9 * SECOND
    scene.mark(label="at 11")
    scene.now -= 6 * SECOND
    scene.mark(label="at 6, after a jump")
    at = {second: rfc3339(START + second * SECOND) for second in (2, 7, 20)}
    now = START + 30 * SECOND
    found = [scene.timeline.resolve(at[second], now).label for second in (2, 7, 20)]
    last = 'point 1, "at 6, after a jump"'
    assert found == ['point 3, "at 1"', last, last]


def test_what_a_rollback_put_aside_is_no_state_of_the_workspace(scene):
    taken = scene.mark()
    scene.now += SECOND
    partial = scene.recorder.keep_displaced({RelPath(b"x"): (0o100644, b"x")}, "kept aside")
    assert scene.resolve("0s").snapshot == taken.snapshot.id
    assert scene.resolve(partial.id.hex()).snapshot == partial.id


@pytest.mark.parametrize(
    ("spec", "ns"),
    [
        ("90s", START - 90 * SECOND),
        ("15m", START - 900 * SECOND),
        ("2h", START - 7200 * SECOND),
        ("3d", START - 259_200 * SECOND),
        ("1970-01-01T00:00:10Z", 10 * SECOND),
        ("1970-01-01T02:00:10+02:00", 10 * SECOND),
        ("1970-01-01 00:00:10.5+00:00", 10_599_999_999),
        ("1970-01-01T00:00:10.123Z", 10_123_999_999),
        ("1970-01-01T00:00:10.123456789Z", 10_123_456_999),
        ("tomorrow", None),
        ("20260102", None),
    ],
)
def test_ages_and_iso_times(spec, ns):
    assert moment_of(spec, START) == ns


@pytest.mark.parametrize(
    ("spec", "hour"), [("2026-01-02T03:00", 3), ("2026-01-02 03:00:00", 3), ("2026-01-02", 0)]
)
def test_a_time_without_zone_is_local(monkeypatch, spec, hour):
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        expected = moment_of(f"2026-01-02T{hour:02d}:00:00-05:00", 0)
        assert moment_of(spec, 0) == expected
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("spec", "meant"),
    [
        ("18:00", "2026-01-01T18:00:00-05:00"),
        ("11:59:59", "2026-01-02T11:59:59-05:00"),
        ("12:00", "2026-01-02T12:00:00-05:00"),
        ("00:30", "2026-01-02T00:30:00-05:00"),
    ],
)
def test_a_time_of_the_day_is_the_last_one_of_this_clock(monkeypatch, spec, meant):
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        now = moment_of("2026-01-02T12:00:00-05:00", 0) or 0
        assert moment_of(spec, now) == moment_of(meant, 0)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_no_time_of_any_day_is_no_point():
    assert moment_of("25:00", START) is None
    assert moment_of("9:00", START) is None


def test_a_safety_point_that_repeats_the_point_before_it_has_no_number(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    build(bench.path, {"f": "1"})
    first = bench.point()
    build(bench.path, {"f": "2"})
    bench.point()
    bench.back_to(first)
    line = Timeline(bench.store, bench.root.id)
    assert [point.kind for point in line.points()] == ["rollback", "manual", "manual"]
    assert "before-rollback" in [point.kind for point in line.points(everything=True)]
    build(bench.path, {"f": "3"})
    bench.back_to(first)
    newer = Timeline(bench.store, bench.root.id)
    assert [point.kind for point in newer.points()][:2] == ["rollback", "before-rollback"]
