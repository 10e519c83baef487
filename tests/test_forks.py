"""Conversations that the agent itself forks: asked as recorded, answered by a stand-in program.

The real programs are asked in tests/agents.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.live import is_running, until
from watcher.agents import codex_threads, opencode_sessions
from watcher.agents.borrowed import borrowed, program
from watcher.agents.codex_threads import place_of
from watcher.agents.model import Fork

STANDINS = Path(__file__).parent / "standins"
SECOND = 1_000_000_000


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """The stand-ins, where an agent's program would be found."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for path in STANDINS.glob("*.py"):
        script = folder / path.stem
        script.write_text(f"#!{sys.executable} -I\n{path.read_text()}")
        script.chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("CODEX_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return folder


class Kept:
    """What a stand-in keeps, in its file."""

    def __init__(self, path: Path, **known: object) -> None:
        self.path = path
        path.write_text(json.dumps({"mode": "", **known}))

    def now(self):
        return json.loads(self.path.read_text())

    def mode(self, name: str) -> None:
        self.path.write_text(json.dumps({**self.now(), "mode": name}))


def turns(*names: str):
    return [{"id": name, "items": [], "status": "completed"} for name in names]


@pytest.fixture
def codex(tmp_path, programs):
    thread = {"cwd": "/p", "turns": turns("p1", "p2", "p3", "p4", "p5")}
    return Kept(tmp_path / "threads.json", threads={"t1": thread})


@pytest.fixture
def opencode(tmp_path, programs):
    session = {"directory": "/p", "messages": ["msg_1", "msg_1a", "msg_2", "msg_2a"]}
    return Kept(tmp_path / "opencode.json", sessions={"ses_1": session})


def fork_codex(turn, thread="t1"):
    return codex_threads.fork_before(program("codex", os.environ), os.environ, "/", thread, turn, 0)


def fork_opencode(message, session="ses_1"):
    return opencode_sessions.fork_before(
        program("opencode", os.environ), os.environ, session, message
    )


# Codex


def test_codex_forks_a_thread_at_the_turn_before(codex):
    before = codex.now()["threads"]["t1"]
    assert fork_codex("p4") == Fork("fork-1", "/p")
    known = codex.now()["threads"]
    assert [turn["id"] for turn in known["fork-1"]["turns"]] == ["p1", "p2", "p3"]
    assert known["fork-1"]["config"] == {"mcp_servers": {"a.b": {"enabled": False}}}
    assert known["t1"] == before


def test_before_the_first_turn_of_a_thread_there_is_nothing(codex):
    assert fork_codex("p1") == Fork(None, "/p")
    assert list(codex.now()["threads"]) == ["t1"]


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("old", "cannot fork at a turn"),
        ("odd", "answers in another way"),
        ("dies", "its app server does not answer"),
    ],
)
def test_a_codex_of_another_version_leaves_no_fork(codex, mode, words):
    codex.mode(mode)
    with pytest.raises(ValueError, match=words):
        fork_codex("p4")
    assert list(codex.now()["threads"]) == ["t1"]


@pytest.mark.parametrize(
    ("turn", "thread", "words"),
    [("p9", "t1", "the turn is not in the thread"), ("p1", "t9", "Codex says: thread not loaded")],
)
def test_what_codex_does_not_know_is_said(codex, turn, thread, words):
    with pytest.raises(ValueError, match=words):
        fork_codex(turn, thread)


def test_a_turn_without_an_id_comes_after_those_that_were_over():
    known: list[dict[str, Any]] = [
        {"id": "p1", "completedAt": 5},
        {"id": "p2", "startedAt": 7},
        {"id": "p3", "startedAt": 8, "completedAt": 9},
    ]
    assert [place_of(known, None, at * SECOND) for at in (4, 5, 8, 9)] == [0, 1, 2, 3]


# OpenCode


def test_opencode_forks_a_session_before_the_message(opencode):
    before = opencode.now()["sessions"]["ses_1"]
    assert fork_opencode("msg_2") == Fork("ses_fork1", "/p")
    known = opencode.now()["sessions"]
    assert known["ses_fork1"]["messages"] == ["msg_1-copy", "msg_1a-copy"]
    assert known["ses_1"] == before


def test_before_the_first_message_of_a_session_there_is_nothing(opencode):
    assert fork_opencode("msg_1") == Fork(None, "/p")
    assert list(opencode.now()["sessions"]) == ["ses_1"]


@pytest.mark.parametrize(
    ("mode", "words"), [("old", "cannot fork at a message"), ("dies", "its server did not start")]
)
def test_an_opencode_of_another_version_leaves_no_fork(opencode, mode, words):
    opencode.mode(mode)
    with pytest.raises(ValueError, match=words):
        fork_opencode("msg_2")
    assert list(opencode.now()["sessions"]) == ["ses_1"]


@pytest.mark.parametrize(
    ("message", "session", "words"),
    [
        ("msg_9", "ses_1", "the turn is not in the session"),
        ("msg_1", "../x", "OpenCode says: Session not found: ..%2Fx"),
    ],
)
def test_what_opencode_does_not_know_is_said_and_nothing_is_copied(
    opencode, message, session, words
):
    with pytest.raises(ValueError, match=words):
        fork_opencode(message, session)
    assert list(opencode.now()["sessions"]) == ["ses_1"]


# The program that is borrowed


def test_a_program_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ValueError, match="'codex' is not on the PATH"):
        program("codex", {"PATH": str(tmp_path)})


def test_a_program_that_says_nothing_is_ended_in_time_with_its_children(tmp_path):
    lines = "trap '' TERM; sleep 600 & echo $! > child; echo ready; wait; wait"
    with borrowed(["/bin/sh", "-c", lines], os.environ, str(tmp_path), seconds=0.5) as process:
        assert list(process.lines()) == [b"ready\n"]
    child = int((tmp_path / "child").read_text())
    until(lambda: not is_running(child))
    assert process.process.returncode == -signal.SIGKILL


# What people are told


@pytest.fixture
def work(tmp_path, monkeypatch):
    path = tmp_path / "work"
    path.mkdir()
    (path / "a").write_text("0\n")
    monkeypatch.chdir(path)
    return path


@pytest.mark.parametrize(
    ("agent", "session", "ids", "resume"),
    [
        ("codex", "t1", ("p1", "p2"), "cd /p && codex resume fork-1"),
        ("opencode", "ses_1", ("msg_1", "msg_2"), "cd /p && opencode -s ses_fork1"),
    ],
)
def test_a_rollback_takes_the_conversation_along(
    turnmark, codex, opencode, work, agent, session, ids, resume
):
    for turn in ids:
        known = ("--session", session)
        turnmark("turn", "begin", *known, "--turn", turn, "--agent", agent)
        (work / "a").write_text(turn)
        turnmark("turn", "end", *known)
    done = json.loads(turnmark("rollback", "1", "--yes", "--conversation", "--json").out)
    [told] = done["conversations"]
    assert (told["session"], told["agent"], told["turn"]) == (session, agent, 2)
    assert told["resume"] == resume
    assert told["words"] == f"Go on with the conversation as it was before turn 2: {resume}"
    first = turnmark("rollback", "turn:1", "--yes", "--conversation").out
    program = resume.split()[3]
    assert f"Nothing was said before turn 1; begin anew: cd /p && {program}\n" in first


def test_turns_that_only_their_ends_were_told_of_go_back_by_their_time(turnmark, codex, work):
    """As under `turnmark run`, where Codex tells of nothing but ends."""
    thread, now = "01a1eeaf-825c-7073-8b6c-9620539469bb", int(time.time())
    said = [{"id": "p1", "completedAt": now - 60}, {"id": "p2", "completedAt": now + 60}]
    codex.path.write_text(
        json.dumps({"mode": "", "threads": {thread: {"cwd": "/", "turns": said}}})
    )
    for session in ("run-1", thread):
        turnmark("turn", "begin", "--session", session, "--agent", "codex")
        (work / "a").write_text(session)
        turnmark("turn", "end", "--session", session)
    done = turnmark("rollback", "run-1/1", "--yes", "--conversation", "--json")
    [told] = json.loads(done.out)["conversations"]
    assert told["session"] == thread
    assert "as it was then: cd / && codex resume fork-1" in told["words"]
    assert codex.now()["threads"]["fork-1"]["turns"] == said[:1]
