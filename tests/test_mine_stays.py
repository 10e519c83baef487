"""A rollback says which of the person's own edits it takes back, and keeps them if asked to."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from core.edits import Edits
from core.errors import Damaged
from core.history import MarkSpec, pin_ref
from core.keeping import Policy
from core.model import Maker, RelPath
from core.plan import MINE, UNATTRIBUTED
from core.recorder import Taken
from core.retention import prune
from core.rollback import UNTOLD, Request, Result, preview, rollback, undo_request
from core.rules import RuleSet
from core.states import stored_state
from core.turns import begin, end
from tests.stores import ALL, Bench
from tests.test_verify import damage_object
from tests.trees import Dir, Leaf, build, image
from watcher.outcomes import as_json, for_people, result_of
from watcher.rollbacks import How, preview_lines


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def turn(bench: Bench, changes: dict[str | bytes, Leaf], *gone: str) -> None:
    begin(bench.recorder, "s")
    for name in gone:
        (bench.path / name).unlink()
    build(bench.path, changes)
    end(bench.recorder, "s")


def request(point: Taken, *, stays: bool) -> Request:
    assert point.mark is not None
    return Request(point.snapshot.id, point.mark.seq, "p", mine_stays=stays)


def back(bench: Bench, point: Taken) -> Result:
    wanted = request(point, stays=True)
    shown = preview(bench.recorder, wanted)
    done = bench.go(wanted)
    assert done.kept == shown.kept
    return done


def start(bench: Bench, tree: dict[str | bytes, Leaf]) -> Taken:
    build(bench.path, tree)
    return bench.recorder.take(mark=MarkSpec("manual"))


def test_what_the_person_changed_stays_and_is_listed(bench: Bench) -> None:
    point = start(bench, {"a": "0", "b": "0", "c": "0"})
    turn(bench, {"a": "1", "made": "1"}, "c")
    build(bench.path, {"b": "mine", "new": "mine"})
    turn(bench, {"a": "2"})
    before = image(bench.path)
    done = back(bench, point)
    assert {left.path for left in done.kept} == {b"b", b"new"}
    assert image(bench.path) == {
        b"a": ("file", 0o644, b"0"),
        b"b": ("file", 0o644, b"mine"),
        b"c": ("file", 0o644, b"0"),
        b"new": ("file", 0o644, b"mine"),
    }
    bench.go(undo_request(bench.store, bench.root.id))
    assert image(bench.path) == before


def test_the_default_takes_it_back_and_says_so_first(bench: Bench) -> None:
    point = start(bench, {"a": "0", "b": "0"})
    was = image(bench.path)
    turn(bench, {"a": "1"})
    build(bench.path, {"b": "mine"})
    assert preview(bench.recorder, request(point, stays=False)).mine == (b"b",)
    assert bench.go(request(point, stays=False)).mine == (b"b",)
    assert image(bench.path) == was


def test_where_it_cannot_be_told_whose_an_edit_was_the_way_back_is_open(bench: Bench) -> None:
    """And closed to who wants to keep his own: what is not known to be his would go."""
    point = start(bench, {"a": "0", "b": "0"})
    was = image(bench.path)
    build(bench.path, {"b": "mine"})
    lost = start(bench, {"mine": "too"})
    turn(bench, {"a": "1"})
    damage_object(bench.store, lost.snapshot.files)
    before = image(bench.path)
    for ask in (preview, rollback):
        with pytest.raises(Damaged):
            ask(bench.recorder, request(point, stays=True))
        assert image(bench.path) == before
    shown = preview(bench.recorder, request(point, stays=False))
    assert (shown.mine, shown.warnings) == ((), (UNTOLD,))
    assert bench.go(request(point, stays=False)).outcome == "done"
    assert image(bench.path) == was
    bench.go(undo_request(bench.store, bench.root.id))
    assert image(bench.path) == before


def test_edits_that_no_snapshot_holds_yet_are_the_persons_too(bench: Bench) -> None:
    point = start(bench, {"a": "0"})
    turn(bench, {"b": "1"})
    os.chmod(bench.path / "a", 0o600)
    build(bench.path, {"mine/": Dir(0o700)})
    done = back(bench, point)
    assert {left.path for left in done.kept} == {b"a", b"mine"}
    assert image(bench.path) == {b"a": ("file", 0o600, b"0"), b"mine": ("dir", 0o700)}


def test_a_file_in_an_agents_directory_keeps_the_directory(bench: Bench) -> None:
    point = start(bench, {"a": "0"})
    turn(bench, {"pkg/one": "1"})
    build(bench.path, {"pkg/mine": "m"})
    back(bench, point)
    assert set(image(bench.path)) == {b"a", b"pkg", b"pkg/mine"}


def test_a_directory_that_the_person_deleted_stays_away(bench: Bench) -> None:
    point = start(bench, {"d/f": "0", "d/g": "0"})
    turn(bench, {}, "d/g")
    shutil.rmtree(bench.path / "d")
    done = back(bench, point)
    assert image(bench.path) == {}
    assert {left.path for left in done.kept} == {b"d", b"d/f", b"d/g"}


def test_what_a_rollback_did_is_nobodys_edit(bench: Bench) -> None:
    point = start(bench, {"a": "0"})
    turn(bench, {"a": "1"})
    turn(bench, {"a": "2", "b": "2"})
    bench.go(request(point, stays=False))
    bench.go(undo_request(bench.store, bench.root.id))
    done = back(bench, point)
    assert (done.kept, set(image(bench.path))) == ((), {b"a"})


@pytest.fixture
def pruned(bench: Bench) -> Taken:
    """A point, of the marks after which so many are gone that nobody knows who changed `a`."""
    point = start(bench, {"a": "0", "b": "0"})
    turn(bench, {"c": "1"})
    turn(bench, {"a": "1"})
    start(bench, {"a": "2"})
    bench.store.refs.create(
        pin_ref(bench.root.id, point.snapshot.id), point.snapshot.id, sync=False
    )
    bench.close()
    limits = Policy(max_points=1, burst_hours=0, burst_turns=0)
    assert not prune(bench.store, limits, now_ns=time.time_ns()).errors
    build(bench.path, {"b": "mine"})
    return point


def test_what_was_changed_by_nobody_knows_whom_is_not_called_the_persons(
    bench: Bench, pruned: Taken
) -> None:
    shown = preview(bench.recorder, request(pruned, stays=False))
    assert (shown.mine, shown.unattributed) == ((b"b",), (b"a",))
    done = back(bench, pruned)
    reasons = {left.path: left.reason for left in done.kept}
    assert reasons == {b"a": UNATTRIBUTED, b"b": MINE}
    assert (bench.path / "a").read_text() == "2"


def test_what_nobody_knows_the_makers_of_is_not_taken_together(bench: Bench) -> None:
    """The person makes a file, a rollback takes it away, another brings it back: of the first two
    no mark is left, so each is looked at on its own. Together they would have changed nothing."""
    point = start(bench, {"b": "0"})
    made = start(bench, {"a": "mine", "b": "1"})
    bench.go(request(point, stays=False))
    bench.go(request(made, stays=False))
    history = bench.history()
    marks = list(history.marks())[-2:]
    edits = Edits(history, partial(stored_state, bench.store), marks=marks)
    found = edits.by_no_agent(point.snapshot.id, [RelPath(b"a")])
    assert found == {b"a": Maker("unknown")}


def test_the_preview_names_it_in_words_and_in_json(bench: Bench, pruned: Taken) -> None:
    shown = preview(bench.recorder, request(pruned, stays=False))
    shown = replace(shown, turns_undone=({"session": "s", "turn": 1, "label": ""},))
    assert as_json(shown)["unattributed"] == ["a"]
    again = result_of(as_json(shown), for_people(shown, "Rollback"))
    lines = list(preview_lines(again, How(("rollback",))))
    at = lines.index("Takes back 1 edit that nobody knows who made (--mine-stays keeps it too):")
    assert lines[at - 2 : at + 2] == [
        "Takes back 1 edit of your own (--mine-stays keeps it):",
        "  b",
        lines[at],
        "  a",
    ]


def test_the_command_lists_them_and_exits_with_3(turnmark, tmp_path, monkeypatch):
    work = build(tmp_path / "work", {"a": "0", "b": "0"})
    monkeypatch.chdir(work)
    turnmark("snapshot")
    turnmark("turn", "begin", "--session", "s")
    build(work, {"a": "1"})
    turnmark("turn", "end", "--session", "s")
    build(work, {"b": "mine"})
    shown = turnmark("rollback", "turn:1", "--dry-run").out
    assert "Takes back 1 edit of your own (--mine-stays keeps it):\n  b\n" in shown
    assert json.loads(turnmark("rollback", "turn:1", "--dry-run", "--json").out)["mine"] == ["b"]
    planned = turnmark("rollback", "turn:1", "--mine-stays", "--dry-run").out
    assert "  b  (changed by you since)\n" in planned
    assert "turnmark rollback turn:1 --mine-stays --plan" in planned
    done = turnmark("rollback", "turn:1", "--mine-stays", "--yes", "--json")
    told = json.loads(done.out)
    assert (done.code, told["outcome"]) == (3, "done")
    assert told["kept"] == [{"path": "b", "reason": "changed by you since"}]
    assert ((work / "a").read_text(), (work / "b").read_text()) == ("0", "mine")


def test_what_was_changed_and_changed_back_is_no_edit_before_the_next_snapshot_either(
    bench: Bench,
) -> None:
    """Found by a new user: the preview kept a path, and the rollback that took a snapshot first did
    not."""
    point = start(bench, {"a": "0", "b": "0"})
    was = image(bench.path)
    turn(bench, {"a": "1", "b": "1"})
    build(bench.path, {"a": "mine"})
    bench.recorder.take()
    build(bench.path, {"a": "1"})
    assert preview(bench.recorder, request(point, stays=False)).mine == ()
    assert back(bench, point).kept == ()
    assert image(bench.path) == was


@pytest.mark.parametrize("between", [True, False])
def test_what_was_left_out_for_a_while_is_nobodys_edit(bench: Bench, between: bool) -> None:
    """Found by a new user: a watched directory in another made all that an agent had changed in it
    the person's."""
    point = start(bench, {"d/a": "0", "d/b": "0", "d/c": "0"})
    was = image(bench.path)
    turn(bench, {"d/a": "1", "d/new": "1"}, "d/b")
    leave_out(bench)
    bench.recorder.take()
    if between:
        turn(bench, {"other": "1"})
    bench.recorder.rules = ALL
    bench.recorder.take()
    assert preview(bench.recorder, request(point, stays=False)).mine == ()
    assert back(bench, point).kept == ()
    assert image(bench.path) == was


def leave_out(bench: Bench) -> None:
    bench.recorder.rules = RuleSet(exclude=("d/",), gitignore=False)


def test_what_the_person_changes_back_to_what_it_was_when_left_out_stays(bench: Bench) -> None:
    """Found by a reviewer, as the next two."""
    point = start(bench, {"d/a": "0"})
    turn(bench, {"d/a": "1"})
    leave_out(bench)
    bench.recorder.take()
    begin(bench.recorder, "s")
    bench.recorder.rules = ALL
    build(bench.path, {"d/a": "2"})
    end(bench.recorder, "s")
    build(bench.path, {"d/a": "1"})
    bench.recorder.take()
    turn(bench, {"other": "1"})
    back(bench, point)
    assert (bench.path / "d/a").read_text() == "1"


def test_what_the_person_deletes_while_it_is_left_out_stays_deleted(bench: Bench) -> None:
    point = start(bench, {"d/a": "0", "d/b": "0"})
    turn(bench, {"d/a": "1", "d/b": "1"})
    leave_out(bench)
    bench.recorder.take()
    turn(bench, {"other": "1"})
    (bench.path / "d/b").unlink()
    bench.recorder.rules = ALL
    bench.recorder.take()
    back(bench, point)
    assert not (bench.path / "d/b").exists()
    assert (bench.path / "d/a").read_text() == "0"


def test_what_is_left_out_in_a_turn_and_seen_again_after_it_is_nobodys_edit(bench: Bench) -> None:
    point = start(bench, {"d/a": "0", "d/b": "0"})
    turn(bench, {"d/a": "1", "d/b": "1"})
    begin(bench.recorder, "s")
    leave_out(bench)
    build(bench.path, {"other": "1"})
    end(bench.recorder, "s")
    bench.recorder.rules = ALL
    bench.recorder.take()
    assert back(bench, point).kept == ()


def test_an_edit_of_which_only_the_end_of_a_turn_tells_stays(bench: Bench) -> None:
    """Edited, then left out, by the person; looked at again in a turn."""
    point = start(bench, {"d/a": "0"})
    turn(bench, {"other": "1"})
    build(bench.path, {"d/a": "mine"})
    leave_out(bench)
    bench.recorder.take()
    begin(bench.recorder, "s")
    bench.recorder.rules = ALL
    end(bench.recorder, "s")
    back(bench, point)
    assert (bench.path / "d/a").read_text() == "mine"


def test_what_the_person_changed_while_it_was_left_out_stays(bench: Bench) -> None:
    point = start(bench, {"d/a": "0", "d/b": "0"})
    turn(bench, {"d/a": "1", "d/b": "1"})
    bench.recorder.rules = RuleSet(exclude=("d/",), gitignore=False)
    bench.recorder.take()
    turn(bench, {"other": "1"})
    build(bench.path, {"d/b": "mine"})
    bench.recorder.rules = ALL
    bench.recorder.take()
    done = back(bench, point)
    assert {left.path for left in done.kept} == {b"d/b"}
    assert (bench.path / "d/b").read_text() == "mine"
    assert (bench.path / "d/a").read_text() == "0"
