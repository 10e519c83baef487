"""Each change is a turn's, several turns', a rollback's or the person's, and is shown as such."""

from __future__ import annotations

import json
import random
import time
from itertools import pairwise
from pathlib import Path

import pytest

from core.attribution import Makers, together
from core.history import MarkSpec
from core.keeping import Policy
from core.model import Maker, Mark, Oid, RelPath
from core.plan import changed_among, changed_paths
from core.retention import prune
from core.states import stored_state
from core.timeline import Timeline
from core.turns import begin, end
from tests.scribbling import scribble
from tests.stores import Bench
from tests.trees import build

PERSON = Maker("person")


def mark(seq: int, kind: str, session: str | None = None, turn: int | None = None) -> Mark:
    ids = [Oid(b"%20d" % n) for n in (seq, seq - 2)]
    before = ids[1] if seq > 2 else None
    return Mark(ids[0], "w", seq, 0, kind, ids[0], session=session, turn=turn, prev=before)  # type: ignore[arg-type]


def test_turns_own_what_comes_between_their_marks_and_people_the_rest():
    makers = Makers(
        [
            mark(2, "baseline"),
            mark(4, "turn-begin", "a", 1),
            mark(6, "turn-begin", "b", 1),
            mark(8, "turn-end", "a", 1),
            mark(10, "turn-end", "b", 1),
            mark(12, "before-rollback"),
            mark(14, "rollback"),
            mark(16, "before-rollback"),
            mark(18, "manual"),
        ]
    )
    found = [makers.at(seq) for seq in range(1, 20, 2)]
    both = Maker("shared", ("a/1", "b/1"))
    assert found[:5] == [PERSON, PERSON, Maker("turn", ("a/1",)), both, Maker("turn", ("b/1",))]
    assert [one.who for one in found[5:]] == ["person", "rollback", "person", "person", "person"]
    assert makers.now == PERSON


def test_a_turn_that_was_never_ended_is_over_when_the_next_of_its_session_begins():
    makers = Makers([mark(2, "turn-begin", "a", 1), mark(4, "turn-begin", "a", 2)])
    assert [makers.at(3), makers.now] == [Maker("turn", ("a/1",)), Maker("turn", ("a/2",))]


def test_where_marks_were_pruned_nobody_is_named():
    makers = Makers([mark(4, "turn-begin", "a", 1), mark(8, "turn-end", "a", 1)])
    assert [makers.at(seq).who for seq in (3, 7, 9)] == ["unknown", "unknown", "person"]
    assert makers.at(3).may_be_person


def test_several_makers_are_one_word():
    one, two = Maker("turn", ("a/1",)), Maker("turn", ("b/1",))
    assert together([]) is None
    assert together([one, one]) == one
    assert together([one, two]) == Maker("shared", ("a/1", "b/1"))
    assert together([one, PERSON]) == Maker("mixed", ("a/1",))


@pytest.mark.parametrize("seed", range(6))
def test_among_given_paths_the_same_ones_differ_as_among_all(tmp_path: Path, seed: int) -> None:
    bench, dice = Bench(tmp_path), random.Random(seed)
    states = []
    for _ in range(4):
        scribble(dice, bench.path)
        states.append(stored_state(bench.store, bench.recorder.take(sync=False).snapshot))
    for old, new in pairwise(states):
        every = changed_paths(old, new)
        names = ("a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "x", "x/y", "moved", "moved/a", "")
        some = {RelPath(name.encode()) for name in dice.sample(names, 5)}
        assert set(changed_among(old, new, some)) == every & some
        assert set(changed_among(old, new, every)) == every


# As it is recorded


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_points_say_who_made_what_they_count(bench: Bench) -> None:
    build(bench.path, {"a": "1"})
    bench.recorder.take(mark=MarkSpec("baseline"))
    build(bench.path, {"by hand": "1"})
    begin(bench.recorder, "s")
    build(bench.path, {"a": "2"})
    begin(bench.recorder, "t")
    build(bench.path, {"b": "2"})
    end(bench.recorder, "s")
    end(bench.recorder, "t")
    build(bench.path, {"by hand": "2"})
    bench.point()
    points = Timeline(bench.store, bench.root.id).points()
    found = {point.session or point.kind: point.by for point in points}
    assert found == {
        "baseline": Maker("found"),
        "s": Maker("shared", ("s/1", "t/1")),
        "t": Maker("shared", ("s/1", "t/1")),
        "manual": PERSON,
    }


def test_a_pruned_turn_is_not_taken_for_the_person(bench: Bench) -> None:
    build(bench.path, {"a": "0"})
    bench.point()
    for number in range(4):
        begin(bench.recorder, "s")
        build(bench.path, {"a": f"turn {number}"})
        end(bench.recorder, "s")
        bench.point()
    bench.close()
    limits = Policy(max_points=2, burst_hours=0, burst_turns=0)
    prune(bench.store, limits, now_ns=1 << 62)
    timeline = Timeline(bench.store, bench.root.id)
    kept = [timeline.maker(one).who for one in timeline.snapshots]
    assert "person" not in kept


def test_a_turn_that_is_still_open_survives_pruning_and_can_end(bench: Bench) -> None:
    build(bench.path, {"a": "0"})
    bench.point()
    begin(bench.recorder, "s")
    for number in range(4):
        build(bench.path, {"b": f"{number}"})
        bench.point()
    bench.close()
    limits = Policy(max_points=1, burst_hours=0, burst_turns=0)
    prune(bench.store, limits, now_ns=time.time_ns())
    build(bench.path, {"a": "by the agent"})
    taken = end(bench.recorder, "s")
    timeline = Timeline(bench.store, bench.root.id)
    assert timeline.maker(taken.snapshot) == Maker("turn", ("s/1",))


@pytest.fixture
def work(turnmark, tmp_path, monkeypatch):
    """A baseline, a turn, an edit by hand, two turns at once, another edit by hand."""
    work = tmp_path / "work"
    build(work, {"a": "0\n", "b": "0\n", "c": "0\n", "d/": ""})
    monkeypatch.chdir(work)
    turnmark("snapshot")
    turnmark("turn", "begin", "--session", "s")
    build(work, {"a": "1\n"})
    turnmark("turn", "end", "--session", "s")
    build(work, {"b": "mine\n"})
    turnmark("turn", "begin", "--session", "s")
    turnmark("turn", "begin", "--session", "t")
    build(work, {"a": "2\n", "c": "2\n"})
    turnmark("turn", "end", "--session", "s")
    turnmark("turn", "end", "--session", "t")
    build(work, {"c": "mine\n"})
    return work


def test_diff_tells_apart_what_turns_and_the_person_changed(turnmark, work):
    def paths(*words):
        found = json.loads(turnmark("diff", "baseline", *words, "--json").out)
        return {change["path"]: change["by"] for change in found["changes"]}

    both = ["s/2", "t/1"]
    every = {"a": ["s/1", *both], "b": ["person"], "c": [*both, "person"]}
    turnmark("pin", "@")
    assert json.loads(turnmark("diff", "4", "--json").out)["from"].startswith("point 4")
    found = json.loads(turnmark("diff", "4", "--json").out)
    assert {c["path"]: c["by"] for c in found["changes"]} == every
    by_turn = json.loads(turnmark("diff", "4", "--by", "turn", "--json").out)
    assert [c["path"] for c in by_turn["changes"]] == ["a", "c"]
    by_hand = turnmark("diff", "4", "--by", "person", "--stat").out
    assert by_hand.splitlines()[:2] == ["  M b  +1 -1", "  M c  +1 -1"]
    nothing = turnmark("diff", "turn:1", "turn:1.end", "--by", "person")
    assert (nothing.out, "by you" in nothing.err) == ("", True)


def test_history_says_who_made_each_version(turnmark, work):
    found = json.loads(turnmark("history", "a", "--json").out)["versions"]
    assert [(v["by"], v["by_turns"]) for v in found] == [
        ("shared", ["s/2", "t/1"]),
        ("turn", ["s/1"]),
        ("found", []),
    ]
    turnmark("snapshot")
    rows = [line.split() for line in turnmark("history", "c").out.splitlines()]
    assert [row[-2] for row in rows[1:]] == ["you", "t/1", "found"]


def test_list_and_show_say_it_too(turnmark, work):
    points = json.loads(turnmark("list", "--json").out)["points"]
    assert [(p["turn"], p["by"]) for p in points[:3]] == [(1, "shared"), (2, "shared"), (1, "turn")]
    assert "turn 2, shared" in turnmark("list").out
    shown = turnmark("show", "2").out
    assert "Changed by this turn, which ran beside others (s/2 + t/1): 2 files, +2 -2" in shown
    assert "Changed since point 3 by s/1 + you: 2 files" in shown
    document = json.loads(turnmark("show", "3", "--json").out)
    assert document["point"]["by_turns"] == ["s/1"]
    assert [c["by"] for c in document["turn_changes"]["changes"]] == [["s/1"]]


def test_bursts_are_listed_where_there_is_no_mark_yet(tmp_path: Path) -> None:
    """Found by the campaign: a service's first bursts, and then `list --all`."""
    bench = Bench(tmp_path)
    for text in ("one", "two"):
        build(bench.path, {"a": text})
        bench.recorder.take(sync=False)
    points = Timeline(bench.store, bench.root.id).points(everything=True)
    assert [point.by for point in points] == [PERSON, Maker("found")]
