"""session: what agents save is what they and their people are shown."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path

import pytest

from tests.trees import build
from watcher import cli


@pytest.fixture(autouse=True)
def in_the_table(monkeypatch):
    monkeypatch.setitem(cli.COMMANDS, "session", "The states of agents' sessions.")


@pytest.fixture
def home():
    return Path(os.environ["TURNMARK_HOME"])


@pytest.fixture
def save(turnmark, monkeypatch):
    def run(data, *words):
        raw = data if isinstance(data, bytes) else json.dumps(data).encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw)))
        return turnmark("session", "save", *words)

    return run


@pytest.fixture
def said(turnmark):
    def run(*words):
        answer = turnmark("session", *words, "--json")
        return json.loads(answer.out), answer.code

    return run


def test_what_is_saved_is_shown(save, said):
    assert save({"session_id": "s1", "task": "fix it", "progress": ["began"]}).code == 0
    told, code = said("show", "s1")
    assert code == 0
    assert told["schema"] == 1
    assert told["session"]["task"] == "fix it"
    assert told["session"]["progress"] == ["began"]
    assert told["session"]["updated"].endswith("Z")


def test_yaml_comes_in_too_and_goes_out_for_people(save, turnmark):
    assert save(b"task: fix it\nupdated: 2020-01-01\n", "s1").out == "Saved s1.\n"
    shown = turnmark("session", "show", "s1").out
    assert shown.startswith("session_id: s1\ntask: fix it\nstatus: in_progress\n")


def test_a_save_replaces_and_a_merge_adds(save, said):
    save({"session_id": "s1", "progress": [1], "blocked": ["x"], "task": "t"})
    assert save({"progress": [2], "blocked": []}, "s1", "--merge").code == 0
    found = said("show", "s1")[0]["session"]
    assert (found["progress"], found["blocked"], found["task"]) == ([1, 2], [], "t")
    save({"session_id": "s1"})
    assert "progress" not in said("show", "s1")[0]["session"]


def test_the_list_has_those_last_touched_first(save, said, turnmark):
    assert turnmark("session", "list").out == "No session states are kept.\n"
    for name in ("a", "b"):
        save({"session_id": name, "task": "x\x1b[31m" * 40})
    told, code = said("list")
    assert (code, [row["session_id"] for row in told["sessions"]], told["damaged"]) == (
        0,
        ["b", "a"],
        [],
    )
    shown = turnmark("session", "list").out
    assert "\x1b" not in shown
    assert shown.splitlines()[1].startswith("b ")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"[1, 2]", ()),
        (b"caf\xe9", ()),
        (b"", ()),
        ({"task": "no id"}, ()),
        ({"session_id": "../evil"}, ()),
        ({"session_id": "a"}, ("b",)),
        ({"task": "t"}, ("a/b",)),
        ({"session_id": 7}, ()),
    ],
)
def test_bad_input_is_65_and_saves_nothing(save, home, data, words):
    answer = save(data, *words, "--json")
    assert answer.code == 65
    assert json.loads(answer.err)["error"]
    assert not (home / "sessions").exists()


@pytest.mark.parametrize("words", [("show", "none"), ("show", "../x"), ("delete", "../x")])
def test_what_is_not_there_or_cannot_be_is_65(turnmark, words):
    assert turnmark("session", *words).code == 65


def test_deleting_is_idempotent(save, said):
    save({"session_id": "s1"})
    assert said("delete", "s1") == ({"schema": 1, "session_id": "s1", "deleted": True}, 0)
    assert said("delete", "s1") == ({"schema": 1, "session_id": "s1", "deleted": False}, 0)


def test_a_damaged_state_is_said_to_be_kept(save, said, turnmark, home):
    save({"session_id": "s1"})
    (home / "sessions" / "s1.yaml").write_bytes(b"caf\xe9: [")
    answer = turnmark("session", "show", "s1")
    assert answer.code == 65
    assert str(home / "sessions" / "s1.damaged-1.yaml") in answer.err
    assert said("list")[0] == {"schema": 1, "sessions": [], "damaged": ["s1.damaged-1.yaml"]}


def test_gc_says_what_it_did(save, said, home):
    save({"session_id": "old"})
    save({"session_id": "half"})
    state = home / "sessions" / "old.yaml"
    state.write_text("session_id: old\nupdated: 2020-01-01\n")
    (home / "sessions" / "half.yaml").write_text("[")
    assert said("gc") == (
        {"schema": 1, "removed": ["old"], "aside": ["half.damaged-1.yaml"], "errors": []},
        0,
    )


def test_states_survive_the_store_they_lie_beside(save, said, turnmark, tmp_path, monkeypatch):
    work = build(tmp_path / "work", {"a": "1"})
    monkeypatch.chdir(work)
    save({"session_id": "s1"})
    turnmark("snapshot")
    assert turnmark("store", "clear", "--yes").code == 0
    assert said("show", "s1")[1] == 0


def test_odd_values_do_not_stop_json(save, said):
    save(b"session_id: s1\nwhen: 2020-01-01\nnot: .nan\nraw: !!binary 4pyT\n1: [~, true]\n")
    found = said("show", "s1")[0]["session"]
    assert (found["when"], found["not"], found["raw"]) == ("2020-01-01", "nan", "✓")
    assert found["1"] == [None, True]


# What turnmark itself knows of a session


def test_turns_make_a_session_known(turnmark, said, tmp_path, monkeypatch):
    work = build(tmp_path / "work", {"a": "1"})
    monkeypatch.chdir(work)
    begin = ("turn", "begin", "--session", "s1", "--prompt", "fix the form", "--agent", "codex")
    assert turnmark(*begin, "--pid", "47").code == 0
    (row,) = said("list")[0]["sessions"]
    assert (row["task"], row["agent"], row["open"], row["turns"]) == (
        "fix the form",
        "codex",
        True,
        1,
    )
    assert row["workspaces"] == [str(work)]
    build(work, {"a": "2"})
    turnmark("turn", "end", "--session", "s1", "--status", "error")
    own = said("show", "s1")[0]["session"]["turnmark"]
    assert (own["open"], own["pid"]) == (False, 47)
    (turn,) = own["turns"]
    listed = json.loads(turnmark("list", "--json").out)["points"]
    assert (turn["turn"], turn["status"], turn["point"]) == (1, "error", listed[0]["id"])
    assert own["last"]["point"] == turn["end"] != turn["point"]


def test_a_session_that_crashed_in_a_turn_is_seen_to_be_open(
    turnmark, save, said, tmp_path, monkeypatch
):
    monkeypatch.chdir(build(tmp_path / "work", {"a": "1"}))
    save({"session_id": "s1", "task": "the agent's own words"})
    turnmark("turn", "begin", "--session", "s1")
    shown = turnmark("session", "list").out
    assert "in_progress, in a turn" in shown
    assert "the agent's own words" in shown


def test_labels_switched_off_keep_prompts_out_of_sessions(turnmark, said, tmp_path, monkeypatch):
    config = tmp_path / "config.yaml"
    config.write_text("agents: {labels: false}\n")
    monkeypatch.setenv("TURNMARK_CONFIG", str(config))
    monkeypatch.chdir(build(tmp_path / "work", {"a": "1"}))
    turnmark("turn", "begin", "--session", "s1", "--prompt", "secret")
    assert "secret" not in json.dumps(said("show", "s1"))


def test_a_session_that_cannot_be_kept_costs_no_mark(turnmark, tmp_path, monkeypatch, home):
    monkeypatch.chdir(build(tmp_path / "work", {"a": "1"}))
    turnmark("snapshot")
    (home / "sessions").write_text("in the way")
    answer = turnmark("turn", "begin", "--session", "s1")
    assert answer.code == 0
    assert "session's state was not kept" in answer.err


def test_a_session_of_any_id_is_listed(turnmark, said, tmp_path, monkeypatch):
    monkeypatch.chdir(build(tmp_path / "work", {"a": "1"}))
    assert turnmark("turn", "begin", "--session", "agent/7 of #9").code == 0
    (row,) = said("list")[0]["sessions"]
    assert said("show", row["session_id"])[0]["session"]["turnmark"]["session"] == "agent/7 of #9"
