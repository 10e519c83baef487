"""The workspaces of a session go back together, or none of them does."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from core.disk import Disk
from core.store import Store
from core.timeline import registered
from tests.live import Live, until
from tests.terminal import on_terminal
from tests.trees import build, image


@pytest.fixture
def two(turnmark, tmp_path, monkeypatch):
    """A session that worked in two directories, and in the second alone at first."""
    one, two = build(tmp_path / "one", {"a": "0"}), build(tmp_path / "two", {"b": "0"})
    monkeypatch.chdir(one)
    turnmark("snapshot")
    turn(turnmark, {two: {"b": "1"}})
    turn(turnmark, {one: {"a": "2"}, two: {"b": "2"}}, "--turn", "id-2")
    turn(turnmark, {one: {"a": "3"}})
    return one, two


def turn(turnmark, changes, *named) -> None:
    assert turnmark("turn", "begin", "--session", "s", *named, *map(str, changes)).code == 0
    for path, tree in changes.items():
        build(path, tree)
    assert turnmark("turn", "end", "--session", "s", *map(str, changes)).code == 0


def contents(two: tuple[Path, Path]) -> tuple[str, str]:
    return (two[0] / "a").read_text(), (two[1] / "b").read_text()


def test_all_go_back_to_the_same_turn_by_whatever_number_it_has_there(turnmark, two):
    done = turnmark("rollback", "turn:id-2", "--session", "s", "--yes", "--json")
    told = json.loads(done.out)
    assert (done.code, told["outcome"]) == (0, "done")
    assert sorted(w["replaced"] for w in told["workspaces"]) == [["a"], ["b"]]
    assert contents(two) == ("0", "1")


def test_where_the_turn_did_not_come_the_next_one_counts_and_else_nothing(turnmark, two):
    shown = json.loads(turnmark("rollback", "--session", "s", "--dry-run", "--json").out)
    assert [w["workspace"]["root"] for w in shown["workspaces"]] == [str(two[0])]
    assert turnmark("rollback", "--session", "s", "--yes").code == 0
    assert contents(two) == ("2", "2")


def test_the_preview_names_each_and_its_hash_is_good_for_all(turnmark, two):
    before = [image(path) for path in two]
    words = ("rollback", "turn:id-2", "--session", "s")
    shown = turnmark(*words, "--dry-run")
    assert all(f"{path}: Rollback to " in shown.out for path in two)
    assert [image(path) for path in two] == before
    plan = json.loads(turnmark(*words, "--dry-run", "--json").out)["plan"]
    assert f"turnmark rollback turn:id-2 --session s --plan {plan}" in shown.out
    build(two[1], {"new": "since"})
    refused = turnmark(*words, "--plan", plan)
    assert (refused.code, "changed since" in refused.err) == (1, True)
    assert contents(two) == ("3", "2")
    (two[1] / "new").unlink()
    assert turnmark(*words, "--plan", plan).code == 0
    assert contents(two) == ("0", "1")


def test_a_failure_in_one_takes_the_others_back(turnmark, two, nobody):
    store = Store.open(str(nobody / "turnmark/store"))
    last = Path([shown for _, shown in registered(store)][-1])
    before = {path: image(path) for path in two}
    # What is written after the preview stands for an agent that goes on.
    shown, code = on_terminal(
        two[0],
        *("rollback", "turn:id-2", "--session", "s"),
        types=b"y\n",
        before=lambda: build(last, {"late": "by the agent"}),
    )
    assert code == 1
    assert "changed since that plan was shown" in shown
    assert (last / "late").read_text() == "by the agent"
    (last / "late").unlink()
    assert {path: image(path) for path in two} == before


def test_a_workspace_that_is_gone_stops_all_before_any_is_touched(turnmark, two, tmp_path):
    two[1].rename(tmp_path / "elsewhere")
    failed = turnmark("rollback", "turn:id-2", "--session", "s", "--yes")
    assert failed.code != 0
    assert (two[0] / "a").read_text() == "3"


@pytest.mark.parametrize("words", [("@", "a"), ("@", "--dir", "."), ("@", "--conversation")])
def test_what_is_of_one_workspace_does_not_go_with_a_session(turnmark, two, words):
    assert turnmark("rollback", *words, "--session", "s", "--yes").code == 64


def test_a_session_or_turn_that_is_nowhere_is_named(turnmark, two):
    for words in (("@", "--session", "nobody"), ("turn:9", "--session", "s")):
        failed = turnmark("rollback", *words, "--yes")
        assert (failed.code, "has no turn" in failed.err) == (65, True)


def test_a_full_disk_in_one_workspace_leaves_all_untouched(turnmark, two, monkeypatch):
    """The one that is staged last is full."""
    before = [image(path) for path in two]
    real = Disk.write_some

    def full(disk: Disk, fd: int, data: bytes | memoryview) -> int:
        if os.readlink(f"/proc/self/fd/{fd}").startswith(f"{two[1]}/"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(disk, fd, data)

    monkeypatch.setattr(Disk, "write_some", full)
    failed = turnmark("rollback", "turn:id-2", "--session", "s", "--yes")
    assert failed.code == 1
    assert f"{two[1]}: Could not stage the rollback" in failed.err
    assert "No workspace was changed." in failed.err
    assert [image(path) for path in two] == before


@pytest.mark.live
def test_a_service_does_it_for_those_it_watches_and_for_those_it_does_not(tmp_path):
    live = Live(tmp_path)
    try:
        one, two = live.workspace("one", a="0"), live.workspace("two", b="0")
        live.up(one)
        where = (str(one), str(two))
        live.ask("snapshot", cwd=two)
        live.ask("turn", "begin", "--session", "s", *where)
        build(one, {"a": "1"})
        build(two, {"b": "1", "made": "1"})
        live.ask("turn", "end", "--session", "s", *where)
        words = ("rollback", "@", "--session", "s")
        shown = live.ask(*words, "--dry-run", cwd=one)
        assert [w["outcome"] for w in shown["workspaces"]] == ["planned", "planned"]
        done = live.ask(*words, "--plan", shown["plan"], cwd=one)
        assert [w["outcome"] for w in done["workspaces"]] == ["done", "done"]
        assert (image(one), image(two)) == (
            {b"a": ("file", 0o644, b"0")},
            {b"b": ("file", 0o644, b"0")},
        )
        assert live.ask("undo", "--yes", cwd=one)["outcome"] == "done"
        assert (one / "a").read_text() == "1"
        build(one, {"a": "2"})  # the loop that had lent its recorder goes on
        until(lambda: live.ask("list", str(one), "--all")["points"][0]["kind"] == "burst")
    finally:
        live.close()
