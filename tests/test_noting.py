"""Sessions are listed with the turns that hooks told of, also after a crash."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from core.sessions import Sessions
from tests.live import Live, until
from watcher.noting import Noting


@pytest.fixture
def live(tmp_path):
    made = Live(tmp_path)
    yield made
    made.close()


@pytest.fixture
def work(live):
    return live.workspace(a="1\n")


@pytest.fixture
def process():
    """An agent's process, which lives until it is killed."""
    made = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield made
    made.kill()
    made.communicate()


def states(live):
    return Sessions(str(live.base / "data/sessions"))


def noted(live, session="s1"):
    return (states(live).read(session) or {}).get("turnmark", {})


def begin(live, work, n=1, **more):
    given = {"session": "s1", "prompt": f"do {n}", "agent": "codex", "turn_id": f"p{n}", **more}
    return live.call("turn.begin", dirs=[str(work)], **given)["marks"][0]


def end(live):
    return live.call("turn.end", session="s1")["marks"][0]


@pytest.mark.live
def test_turns_are_noted_after_the_answer_and_listed(live, work):
    live.up(work)
    begun = begin(live, work)
    (work / "a").write_text("2\n")
    done = end(live)
    begin(live, work, 2)
    until(lambda: len(noted(live).get("turns", ())) == 2)
    own = noted(live)
    first, second = own["turns"]
    assert (first["label"], first["turn_id"], first["status"]) == ("do 1", "p1", "ok")
    assert (first["point"], first["end"]) == (begun["id"], done["id"])
    assert (second["label"], "ended" in second) == ("do 2", False)
    assert own["workspaces"] == {begun["workspace"]: {"root": str(work), "turns": 2}}
    [row] = live.ask("session", "list")["sessions"]
    assert (row["session_id"], row["agent"], row["turns"], row["open"]) == ("s1", "codex", 2, True)
    assert (row["task"], row["workspaces"]) == ("do 1", [str(work)])
    live.call("turn.end", session="s1", status="error")
    live.ask("down")  # what waits is noted first
    assert [turn["status"] for turn in noted(live)["turns"]] == ["ok", "error"]


@pytest.mark.live
def test_after_a_crash_the_notes_catch_up_with_the_marks(live, work, process):
    pid = live.up(work)
    begin(live, work, pid=process.pid)
    until(lambda: noted(live).get("open"))
    live.kill(pid)
    process.kill()
    process.wait()
    live.up()
    until(lambda: noted(live)["open"] is False)
    assert [turn["status"] for turn in noted(live)["turns"]] == ["unknown"]


MARK = {"session": "s1", "workspace": "w", "turn": 1, "id": "ab", "seq": 3}


@pytest.fixture
def kept(tmp_path):
    return Sessions(str(tmp_path / "sessions"))


def test_what_came_together_is_noted_before_the_end(kept):
    noting = Noting(kept)
    for n in range(1, 4):
        for action in ("turn.begin", "turn.end"):
            noting.told(action, "/w", {"prompt": "x", "status": "ok"}, {**MARK, "turn": n})
    noting.stop()
    assert [turn["turn"] for turn in kept.read("s1")["turnmark"]["turns"]] == [1, 2, 3]


def test_a_session_of_which_nothing_is_noted_yet_is_noted_soon(kept, monkeypatch):
    monkeypatch.setattr("watcher.noting.SETTLE_SECONDS", 600.0)
    noting = Noting(kept)
    noting.told("turn.begin", "/w", {"prompt": "x"}, MARK)
    until(lambda: kept.read("s1") is not None)
    noting.stop()


def test_prompts_that_are_not_to_be_kept_are_not_noted_either(kept):
    noting = Noting(kept)
    noting.told("turn.begin", "/w", {"prompt": "secret", "labels": False}, MARK)
    noting.stop()
    assert "secret" not in str(kept.read("s1"))
    assert kept.read("s1")["turnmark"]["open"] is True


def test_a_directory_that_cannot_be_written_is_logged(kept, caplog):
    (Path(kept.directory)).write_text("in the way")
    noting = Noting(kept)
    noting.told("turn.begin", "/w", {}, MARK)
    noting.stop()
    assert "session s1 are not noted" in caplog.text


@pytest.mark.parametrize("told_more", [True, False])
def test_what_could_not_be_noted_is_tried_again(kept, caplog, monkeypatch, told_more):
    monkeypatch.setattr("watcher.noting.SETTLE_SECONDS", 0.01)
    monkeypatch.setattr("watcher.noting.AGAIN_SECONDS", 600.0 if told_more else 0.05)
    (Path(kept.directory)).write_text("in the way")
    noting = Noting(kept)
    noting.told("turn.begin", "/w", {}, MARK)
    until(lambda: "not noted yet" in caplog.text)
    (Path(kept.directory)).unlink()
    if told_more:
        noting.told("turn.begin", "/w", {}, {**MARK, "session": "s2"})
    until(lambda: kept.read("s1") is not None)
    noting.stop()
    assert caplog.text.count("not noted yet") == 1
    assert kept.read("s1")["turnmark"]["open"] is True
