"""What the real agents do is listed by their prompts, and can be taken back, shell or not."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import ExitStack

import pytest

from tests.agents.drive import HANG, REAL, Driven, prompt
from tests.agents.model import Model
from tests.live import Live
from tests.live import until as in_time
from tests.trees import build, image

pytestmark = [pytest.mark.live, pytest.mark.agents]

AWAITED = [name for name in REAL if name != "cline"]
"""Cline goes on while its hooks run, and tells no prompts: see below."""
RESUMES = {"claude-code": "claude --resume", "codex": "codex resume", "opencode": "opencode -s"}
TOLD = "cannot be rewound from outside; it is told at its next turn what went back"
BEFORE = {"a.txt": "one\n", "sub/b.txt": "two\n"}


def until(condition):
    """With patience: an agent takes its second of work alone, and a minute where all is busy."""
    return in_time(condition, 90)


@pytest.fixture
def drive(tmp_path):
    with ExitStack() as models:
        made = []

        def make(name: str) -> Driven:
            real = REAL[name]
            if real.missing:
                pytest.skip(real.missing)
            live = Live(tmp_path)
            project = live.workspace("project")
            build(project, BEFORE)
            driven = Driven(real, live, models.enter_context(Model()), project)
            made.append(driven)
            return driven

        yield make
        for driven in made:
            driven.close()


def everything(driven):
    """Files only: agents leave directories of their own."""
    return image(driven.project)


def check_conversation(driven, conversations):
    """The fork has what was said before, the session itself still has all."""
    [told] = conversations
    if driven.real.name not in RESUMES:
        assert TOLD in told["words"]
        return
    assert told["resume"] == f"{RESUMES[driven.real.name]} {told['forked']}", told["words"]
    assert told["forked"] != told["session"]
    for words, session, said in (
        ("third", told["forked"], ["first", "third"]),
        ("fourth", told["session"], ["first", "second", "fourth"]),
    ):
        driven.ask(words, session=session)
        assert prompts(driven.model.requests[-1]) == said


def prompts(request):
    """Which of the prompts the model was shown, in their order; agents add words of their own."""
    words = ("first", "second", "third", "fourth")
    starts = [text.strip(' "').split(" ")[0].split("\n")[0] for text in request.prompts]
    return [word for word in starts if word in words]


@pytest.mark.parametrize("name", AWAITED)
def test_turns_are_listed_and_files_and_conversation_go_back(drive, name):
    driven = drive(name)
    driven.init()
    driven.live.ask("up")  # what comes while it starts is listed as late
    real, project = driven.real, driven.project
    made = real.write(project / "new.txt", "new\n")
    driven.ask(prompt("first", made, real.shell("echo more >> a.txt")))
    until(lambda: [p["status"] for p in driven.points()] == ["ok"])
    middle = everything(driven)
    driven.ask(prompt("second", real.shell("mv sub gone && : > a.txt")), again=True)
    until(lambda: [p["status"] for p in driven.points()] == ["ok", "ok"])
    until(lambda: None not in [p["files"] for p in driven.points()])  # counted after the answer
    second, first = driven.points()
    assert "first" in first["label"]
    assert "second" in second["label"]
    assert (first["agent"], second["agent"]) == (name, name)
    assert (first["files"], first["insertions"], first["deletions"]) == (2, 2, 0)
    assert second["files"] == 3
    done = driven.live.ask("rollback", "1", "--yes", "--conversation", cwd=project)
    assert everything(driven) == middle
    check_conversation(driven, done["conversations"])
    driven.live.run("rollback", f"{first['id'][:12]}", "--yes", cwd=project)
    assert (project / "a.txt").read_text() == "one\n"
    assert not (project / "new.txt").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("name", AWAITED)
def test_a_turn_that_was_broken_off_is_closed(drive, name, number):
    driven = drive(name)
    driven.init()
    steps = (driven.real.shell("echo half >> a.txt"), HANG)
    process = driven.start(prompt("half", *steps))
    assert driven.model.hanging.wait(90)
    os.killpg(process.pid, number)  # as a terminal does: some agents are several processes
    process.communicate(timeout=60)
    until(lambda: [p["status"] for p in driven.points()] in (["interrupted"], ["unknown"]))
    until(lambda: driven.points()[0]["files"] == 1)


def test_turns_of_an_agent_that_does_not_wait_for_its_hooks(drive):
    driven = drive("cline")
    driven.init()
    driven.live.up(driven.project)
    before, real = everything(driven), driven.real
    first = real.write(driven.project / "new.txt", "new\n") | HANG
    process = driven.start(prompt("first", first, real.shell("echo more >> a.txt")))
    until(lambda: driven.points("--all"))
    driven.model.released.set()
    process.communicate(timeout=90)
    until(lambda: [(p["status"], p["files"]) for p in driven.points()] == [("ok", 2)])
    code, out, err = driven.live.run("rollback", "1", "--yes", cwd=driven.project)
    assert code == 0, out + err
    assert everything(driven) == before


def test_the_agent_is_told_once_what_went_back(drive):
    driven = drive("claude-code")
    driven.init()
    driven.ask(prompt("first", driven.real.shell("echo more >> a.txt")))
    driven.live.run("rollback", "1", "--yes", cwd=driven.project)
    for words, times in (("again", 1), ("once more", 1)):
        driven.ask(words, again=True)
        said = [one.text for one in driven.model.requests[-1].said]
        notes = [text for text in said if "turnmark: since your last turn" in text]
        assert len(notes) == times
        assert "a.txt" in notes[0]


def test_run_needs_no_file_of_the_agent(drive):
    driven = drive("claude-code")
    settings = driven.live.base / "user/.claude/settings.json"
    before = settings.read_bytes()
    driven.ask(prompt("first", driven.real.shell("echo more >> a.txt")), run=True)
    assert settings.read_bytes() == before
    until(lambda: [(p["label"][:5], p["files"]) for p in driven.points()] == [("first", 1)])


def test_rollback_is_a_command_of_the_agent(drive):
    driven = drive("claude-code")
    driven.init()
    driven.ask(prompt("first", driven.real.shell("echo more >> a.txt")))
    driven.ask("/rollback", again=True)
    assert any("first" in text for text in driven.model.requests[-1].prompts[-2:])


def test_a_hook_that_is_half_uninstalled_stops_no_agent(drive):
    driven = drive("claude-code")
    driven.init()
    shutil.rmtree(driven.live.base / "data")
    driven.ask(prompt("first", driven.real.shell("echo more >> a.txt")))
    assert (driven.project / "a.txt").read_text() == "one\nmore\n"
