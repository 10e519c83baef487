"""A conversation that goes back with the files: a copy of the session, cut before the turn."""

from __future__ import annotations

import json
import stat

import pytest

from watcher.agents import claude_history

S = "5f54c4a7-6fa0-483a-822f-fbe1e34d64dd"


def entry(kind, name, above, **more):
    ids = {"uuid": name, "parentUuid": above, "sessionId": S, "isSidechain": False}
    return {"type": kind, **ids, "cwd": "/p", "timestamp": "2026-11-18T10:00:00.000Z", **more}


def said(text):
    return {"message": {"role": "user", "content": text}}


TALK = [
    {"type": "queue-operation", "sessionId": S, "content": "first"},
    entry("attachment", "a0", None, attachment={"type": "skill_listing"}),
    entry("user", "u1", "a0", promptId="p1", slug="s", **said("first")),
    entry("assistant", "r1", "u1", message={"role": "assistant", "content": []}),
    entry("progress", "g1", "r1"),
    entry("user", "t1", "g1", promptId="p1", sourceToolAssistantUUID="r1", **said([])),
    entry("user", "x1", "t1", isSidechain=True, **said("a sub-agent's")),
    entry("assistant", "r2", "t1", message={"role": "assistant", "content": []}),
    {"type": "content-replacement", "sessionId": S, "replacements": [1]},
    {"type": "file-history-snapshot", "messageId": "u1"},
    entry("user", "u2", "r2", promptId="p2", **said("second")),
    entry("assistant", "r3", "u2", message={"role": "assistant", "content": []}),
]


@pytest.fixture
def transcript(nobody):
    path = nobody / ".claude/projects/-p" / f"{S}.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in TALK) + '{"type": "user", "cut')
    return path


def forked(path, turn):
    new = claude_history.fork_before(path, turn)
    assert new is not None
    lines = path.with_name(f"{new}.jsonl").read_text().splitlines()
    return new, [json.loads(line) for line in lines]


def test_what_came_before_the_turn_is_all_there_and_nothing_after(transcript):
    new, lines = forked(transcript, "p2")
    messages = [one for one in lines if "forkedFrom" in one]
    assert [one["forkedFrom"]["messageUuid"] for one in messages] == ["a0", "u1", "r1", "t1", "r2"]
    assert {one["sessionId"] for one in lines} == {new}
    assert "second" not in json.dumps(lines)
    assert "sub-agent" not in json.dumps(lines)


def test_messages_have_new_ids_in_one_chain(transcript):
    _, lines = forked(transcript, "p2")
    messages = [one for one in lines if "forkedFrom" in one]
    ids = [one["uuid"] for one in messages]
    assert [one["parentUuid"] for one in messages] == [None, *ids[:-1]]
    assert not set(ids) & {one.get("uuid") for one in TALK}
    assert not any("slug" in one or "sourceToolAssistantUUID" in one for one in messages)


def test_the_session_itself_stays_as_it_is(transcript):
    before = transcript.read_bytes()
    new, lines = forked(transcript, "p2")
    assert transcript.read_bytes() == before
    assert stat.S_IMODE(transcript.with_name(f"{new}.jsonl").stat().st_mode) == 0o600
    assert [one["type"] for one in lines[-2:]] == ["content-replacement", "custom-title"]
    assert lines[-1]["customTitle"] == "first (rolled back)"


def test_before_the_first_turn_there_is_nothing(transcript):
    assert claude_history.fork_before(transcript, "p1") is None
    assert [path.name for path in transcript.parent.iterdir()] == [transcript.name]


def test_a_turn_that_is_not_there_is_said(transcript):
    with pytest.raises(ValueError, match="not in the transcript"):
        claude_history.fork_before(transcript, "p9")


@pytest.mark.parametrize("name", ["", "..", "../../etc/passwd", "*", S[:-1], f"{S}/x"])
def test_only_ids_of_sessions_are_looked_for(transcript, nobody, name):
    assert claude_history.find(nobody / ".claude", name) is None
    assert claude_history.find(nobody / ".claude", S) == transcript


def turn(turnmark, session, n, agent, path):
    known = ("--session", session)
    named = ("--turn", f"p{n}") if n else ()
    turnmark("turn", "begin", *known, *named, "--prompt", f"do {n}", "--agent", agent)
    path.write_text(f"{n}\n")
    turnmark("turn", "end", *known)


@pytest.fixture
def work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_text("0\n")
    return tmp_path


def test_a_rollback_takes_the_conversation_along(turnmark, transcript, work):
    for n in (1, 2):
        turn(turnmark, S, n, "claude-code", work / "a")
    done = json.loads(turnmark("rollback", "1", "--yes", "--conversation", "--json").out)
    [told] = done["conversations"]
    assert (told["session"], told["turn"], told["agent"]) == (S, 2, "claude-code")
    assert told["resume"] == f"cd /p && claude --resume {told['forked']}"
    assert transcript.with_name(f"{told['forked']}.jsonl").exists()


def test_a_dry_run_leaves_the_conversation_alone(turnmark, transcript, work):
    for n in (1, 2):
        turn(turnmark, S, n, "claude-code", work / "a")
    told = turnmark("rollback", "1", "--dry-run", "--conversation")
    assert "--conversation" in told.out
    assert len(list(transcript.parent.iterdir())) == 1


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        ("claude-code", "stays as it is: its transcript is not there"),
        ("codex", "stays as it is: its program 'codex' is not on the PATH"),
        ("opencode", "stays as it is: this version does not tell which message began a turn"),
        ("gemini", "Gemini CLI cannot be rewound from outside; it is told at its next turn"),
    ],
)
def test_what_cannot_go_back_is_said_and_the_files_went_back_all_the_same(
    turnmark, work, agent, words, monkeypatch
):
    monkeypatch.setenv("PATH", "")
    turn(turnmark, "someone", 1 if agent != "opencode" else None, agent, work / "a")
    told = turnmark("rollback", "1", "--yes", "--conversation")
    assert told.code == 0
    assert words in told.out
    assert (work / "a").read_text() == "0\n"
