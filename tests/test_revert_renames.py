"""A revert follows files that were renamed, by the turn or since; see also `test_merge_corpus`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from core.rollback import undo_request
from core.without import Side
from tests.stores import Bench
from tests.test_revert import edit, reasons, replaced, take_out, turn
from tests.trees import image

TEXT = "".join(f"line {n}\n" for n in range(1, 21))
TURNS = replaced(TEXT, _3="x").replace("line 3\n", "the turn's\n")
MINE = TEXT.replace("line 17\n", "the person's\n")
BOTH = TURNS.replace("line 17\n", "the person's\n")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path)
    edit(made.path, {"a": TEXT, "d/f": TEXT.upper(), "d/g": TEXT * 2, "other": "x\n"})
    made.point()
    return made


def texts(bench: Bench) -> dict[str, str]:
    found = [path for path in bench.path.rglob("*") if path.is_file()]
    return {str(path.relative_to(bench.path)): path.read_text() for path in found}


REST = {"d/f": TEXT.upper(), "d/g": TEXT * 2, "other": "x\n"}


@pytest.mark.parametrize("name", ["b", "new/dir/b", "d/a"])
def test_what_a_turn_changed_is_taken_out_under_the_new_name(bench: Bench, name: str) -> None:
    turn(bench, {"a": TURNS})
    edit(bench.path, {name: BOTH}, "a")
    before = image(bench.path)
    done = take_out(bench, "turn:1")
    assert done.outcome == "done"
    assert reasons(done.followed) == {name.encode(): "a at turn s/1"}
    assert texts(bench) == {**REST, name: MINE}
    bench.go(undo_request(bench.store, bench.root.id))
    assert image(bench.path) == before


def test_a_file_of_the_same_lines_changed_is_a_conflict_under_the_new_name(bench: Bench) -> None:
    turn(bench, {"a": TURNS})
    edit(bench.path, {"b": TURNS.replace("the turn's\n", "mine\n")}, "a")
    before = image(bench.path)
    done = take_out(bench, "turn:1")
    assert reasons(done.conflicts) == {b"b": "the same lines changed since"}
    assert image(bench.path) == before
    take_out(bench, "turn:1", side="theirs")
    assert texts(bench) == {**REST, "b": TEXT}


def test_a_renaming_is_taken_back_with_what_was_edited_since(bench: Bench) -> None:
    turn(bench, {"b": TURNS}, "a")
    edit(bench.path, {"b": BOTH})
    assert take_out(bench, "turn:1").outcome == "done"
    assert texts(bench) == {**REST, "a": MINE}


def test_a_renamed_directory_is_taken_back_with_what_was_edited_since(bench: Bench) -> None:
    turn(bench, {"e/f": TEXT.upper(), "e/g": TEXT * 2}, "d")
    edit(bench.path, {"e/f": TEXT.upper() + "more\n"})
    assert take_out(bench, "turn:1").outcome == "done"
    assert texts(bench) == {**REST, "a": TEXT, "d/f": TEXT.upper() + "more\n"}
    assert not (bench.path / "e").exists()


@pytest.mark.parametrize(("side", "left"), [("", {"b": "new\n"}), ("theirs", {})])
def test_a_file_made_by_the_turn_and_renamed_since_is_a_conflict(
    bench: Bench, side: Side, left: dict[str, str]
) -> None:
    turn(bench, {"made": "new\n"})
    edit(bench.path, {"b": "new\n"}, "made")
    done = take_out(bench, "turn:1", side=side)
    if side == "":
        assert reasons(done.conflicts) == {b"b": "renamed since"}
    assert texts(bench) == {**REST, "a": TEXT, **left}


@pytest.mark.parametrize("since", [TURNS, BOTH])
@pytest.mark.parametrize("side", ["", "mine", "theirs"])
def test_a_file_renamed_by_the_turn_and_again_since_is_a_conflict(
    bench: Bench, side: Side, since: str
) -> None:
    turn(bench, {"b": TURNS}, "a")
    edit(bench.path, {"c": since}, "b")
    left = {"a": TEXT if since == TURNS else MINE} if side == "theirs" else {"c": since}
    done = take_out(bench, "turn:1", side=side)
    if side == "":
        assert reasons(done.conflicts) == {b"b": "renamed again since"}
    assert texts(bench) == {**REST, **left}


@pytest.mark.parametrize(("side", "left"), [("", {}), ("mine", {}), ("theirs", {"a": TEXT})])
def test_a_file_renamed_by_the_turn_and_deleted_since_is_a_conflict(
    bench: Bench, side: Side, left: dict[str, str]
) -> None:
    turn(bench, {"b": TEXT}, "a")
    edit(bench.path, {}, "b")
    done = take_out(bench, "turn:1", side=side)
    if side == "":
        assert reasons(done.conflicts) == {b"b": "deleted since"}
    assert texts(bench) == {**REST, **left}


def test_links_are_not_followed(bench: Bench) -> None:
    (bench.path / "old").symlink_to("other")
    turn(bench, {}, "old")
    (bench.path / "new").symlink_to("other")
    assert take_out(bench, "turn:1", side="theirs").outcome == "done"
    assert {"old", "new"} <= set(os.listdir(bench.path))


def test_markers_come_under_the_old_name_and_the_new_one_goes(bench: Bench) -> None:
    turn(bench, {"b": TURNS}, "a")
    edit(bench.path, {"b": TURNS.replace("the turn's\n", "mine\n")})
    assert reasons(take_out(bench, "turn:1").conflicts) == {b"a": "the same lines changed since"}
    done = take_out(bench, "turn:1", side="markers")
    assert reasons(done.marked) == {b"a": "the same lines changed since"}
    assert texts(bench).keys() == {*REST, "a"}
    assert "<<<<<<< now\nmine\n" in texts(bench)["a"]


def test_a_name_that_is_taken_again_is_not_written_over(bench: Bench) -> None:
    turn(bench, {"b": TURNS}, "a")
    edit(bench.path, {"b": BOTH, "a": "something else\n"})
    before = image(bench.path)
    assert take_out(bench, "turn:1").outcome == "conflicts"
    assert image(bench.path) == before


@pytest.mark.parametrize("side", ["mine", "markers"])
@pytest.mark.parametrize("mine", [TEXT, MINE], ids=["as the turn left it", "edited since"])
def test_what_cannot_get_its_old_name_back_keeps_its_new_one(
    bench: Bench, side: Side, mine: str
) -> None:
    """Found by a reviewer: it was in neither place, with the person's edits."""
    edit(bench.path, {"e/a": TEXT}, "a")
    bench.point()
    turn(bench, {"b": TEXT, "other": "y\n"}, "e/a")
    os.rmdir(bench.path / "e")
    edit(bench.path, {"b": mine, "e": "a file of the person's"})
    done = take_out(bench, "turn:1", side=side)
    assert (bench.path / "b").read_text() == mine
    assert (bench.path / "e").read_text() == "a file of the person's"
    assert b"e/a" in reasons(done.kept)
