"""What the service makes of agents' events: asked as hooks ask it, seen as a user sees it."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import time

import pytest

from core.errors import BadInput, TurnmarkError
from tests.live import Live, until
from watcher.address import place_for_socket
from watcher.agents import client

pytestmark = pytest.mark.live


class Agent:
    """One session of a pretended agent in a live service."""

    def __init__(self, live: Live, work, name: str = "claude-code", session: str = "s1") -> None:
        self.live = live
        self.work = work
        self.name = name
        self.session = session
        self.env: dict[str, str] = {}

    def say(self, event: str, **payload):
        base = {"session_id": self.session, "cwd": str(self.work), "hook_event_name": event}
        return self.send(event, {**base, **payload})

    def send(self, event: str, payload: object, **params):
        answer = self.live.call("hook", **self.request(event, payload), **params)
        return base64.b64decode(answer.get("out", "")).decode()

    def request(self, event: str, payload: object):
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        encoded = base64.b64encode(data).decode()
        own = {"agent": self.name, "event": event, "cwd": str(self.work), "pid": os.getpid()}
        when = {"time_ns": time.time_ns(), "wait_ms": 10_000}
        return {**own, **when, "payload": encoded, "env": self.env}

    def rows(self, *more: str):
        return [
            (point["turn"], point["label"], point["status"])
            for point in self.live.points(self.work, *more)
            if point["kind"] == "turn"
        ]

    def change(self, text: str = "more\n") -> None:
        with open(self.work / "a", "a") as file:
            file.write(text)


def begin(agent: Agent) -> dict[str, str]:
    own = {"session_id": agent.session, "cwd": str(agent.work), "prompt": "x", "prompt_id": "p"}
    return {**own, "hook_event_name": "UserPromptSubmit"}


@pytest.fixture
def live(tmp_path):
    made = Live(tmp_path)
    yield made
    made.close()


@pytest.fixture
def work(live):
    return live.workspace(a="1\n")


@pytest.fixture
def agent(live, work):
    live.up()
    return Agent(live, work)


def test_a_prompt_begins_a_turn_where_nothing_was_watched(agent):
    agent.say("SessionStart")
    assert agent.say("UserPromptSubmit", prompt="fix it", prompt_id="p1") == ""
    agent.change()
    agent.say("Stop", prompt_id="p1")
    assert agent.rows() == [(1, "fix it", "ok")]


def test_the_next_prompt_ends_a_turn_that_nobody_ended(agent):
    for n in (1, 2):
        agent.say("UserPromptSubmit", prompt=f"turn {n}", prompt_id=f"p{n}")
        agent.change()
    assert agent.rows() == [(2, "turn 2", None), (1, "turn 1", "interrupted")]


def test_the_same_event_twice_counts_once(agent):
    for _ in range(2):
        agent.say("UserPromptSubmit", prompt="fix it", prompt_id="p1")
    agent.change()
    for _ in range(2):
        agent.say("Stop", prompt_id="p1")
    assert agent.rows() == [(1, "fix it", "ok")]


def test_the_same_event_without_an_id_twice_counts_once(live, work):
    live.up()
    gemini = Agent(live, work, "gemini")
    for _ in range(2):
        gemini.say("BeforeAgent", prompt="go on", timestamp="t")
    gemini.change()
    assert gemini.rows("--all") == [(1, "go on", None)]


def test_the_same_prompt_again_is_another_turn(live, work):
    live.up()
    gemini = Agent(live, work, "gemini")
    for _ in range(2):
        gemini.say("BeforeAgent", prompt="go on", timestamp="t")
        gemini.change()
        gemini.say("AfterAgent", prompt="go on", timestamp="t")
    assert gemini.rows() == [(2, "go on", "ok"), (1, "go on", "ok")]


def test_an_error_and_the_end_of_a_session_say_how_a_turn_ended(agent):
    agent.say("UserPromptSubmit", prompt="one", prompt_id="p1")
    agent.change()
    agent.say("StopFailure", prompt_id="p1", error="overloaded")
    agent.say("UserPromptSubmit", prompt="two", prompt_id="p2")
    agent.change()
    agent.say("SessionEnd", reason="other")
    assert agent.rows() == [(2, "two", "interrupted"), (1, "one", "error")]
    assert agent.live.status()["sessions"] == []


def test_the_death_of_the_agent_ends_its_turn(agent):
    with subprocess.Popen(["sleep", "60"]) as process:
        payload = {"session_id": "s1", "cwd": str(agent.work), "prompt": "x", "prompt_id": "p"}
        request = agent.request(
            "UserPromptSubmit", {**payload, "hook_event_name": "UserPromptSubmit"}
        )
        agent.live.call("hook", **{**request, "pid": process.pid})
        agent.change()
        process.kill()
    until(lambda: agent.rows() == [(1, "x", "unknown")])


def test_what_tools_return_to_qwen_is_no_turn(live, work):
    live.up()
    qwen = Agent(live, work, "qwen")
    qwen.say("UserPromptSubmit", prompt="fix it", submitted_prompt="fix it")
    qwen.change()
    qwen.say("UserPromptSubmit", prompt='[{"functionResponse": 1}]')
    qwen.change()
    qwen.say("Stop", stop_hook_active=True)
    assert qwen.rows() == [(1, "fix it", "ok")]


def test_ends_without_begins_are_points_all_the_same(live, work):
    live.up()
    codex = Agent(live, work, "codex")
    for n in (1, 2):
        told = {"type": "agent-turn-complete", "thread-id": "t1", "turn-id": f"u{n}"}
        codex.send("notify", {**told, "cwd": str(work), "input-messages": [f"do {n}"]})
        codex.change()
    assert codex.rows() == [(2, "after: do 2", None), (1, "after: do 1", "ok")]


def test_notify_after_a_stop_says_nothing_new(live, work):
    live.up()
    codex = Agent(live, work, "codex", "t1")
    codex.say("UserPromptSubmit", prompt="do it", turn_id="u1")
    codex.change()
    codex.say("Stop", turn_id="u1")
    told = {"type": "agent-turn-complete", "thread-id": "t1", "turn-id": "u1", "cwd": str(work)}
    codex.send("notify", {**told, "input-messages": ["do it"]})
    assert codex.rows("--all") == [(1, "do it", "ok")]


def test_the_burst_after_a_tool_says_what_the_tool_was(agent):
    agent.say("UserPromptSubmit", prompt="x", prompt_id="p1")
    agent.say("PreToolUse", tool_name="Bash", tool_input={"command": "rm -rf build && make"})
    agent.change()
    burst = until(
        lambda: [p for p in agent.live.points(agent.work, "--all") if p["kind"] == "burst"]
    )
    assert burst[0]["label"] == "before terminal: rm -rf build && make"


def test_the_agent_is_told_once_which_files_went_back(agent):
    agent.say("UserPromptSubmit", prompt="one", prompt_id="p1")
    agent.change()
    agent.say("Stop", prompt_id="p1")
    agent.live.ask("rollback", "1", "--yes", cwd=agent.work)
    told = json.loads(agent.say("UserPromptSubmit", prompt="two", prompt_id="p2"))
    assert told["hookSpecificOutput"]["hookEventName"] == "UserPromptSubmit"
    assert "1 path on disk: a." in told["hookSpecificOutput"]["additionalContext"]
    agent.say("Stop", prompt_id="p2")
    assert agent.say("UserPromptSubmit", prompt="three", prompt_id="p3") == ""


def test_a_rollback_that_was_undone_is_not_worth_telling(agent):
    agent.say("UserPromptSubmit", prompt="one", prompt_id="p1")
    agent.change()
    agent.say("Stop", prompt_id="p1")
    agent.live.ask("rollback", "1", "--yes", cwd=agent.work)
    agent.live.ask("undo", "--yes", cwd=agent.work)
    assert agent.say("UserPromptSubmit", prompt="two", prompt_id="p2") == ""


@pytest.mark.parametrize("place", ["/", "/etc", "relative", "", "/nowhere/at/all"])
def test_places_that_may_not_be_watched_are_ignored_quietly(agent, place):
    assert agent.say("UserPromptSubmit", prompt="x", prompt_id="p1", cwd=place) == ""
    roots = [row["root"] for row in agent.live.rows()]
    assert place not in roots or not place


def test_without_auto_watch_only_watch_lists_count(live, work):
    live.config.write_text("agents: {auto_watch: false}\n")
    live.up()
    agent = Agent(live, work)
    assert agent.say("UserPromptSubmit", prompt="x", prompt_id="p1") == ""
    assert live.rows() == []


def test_a_directory_inside_a_watched_one_belongs_to_it(live, work):
    (work / "sub").mkdir()
    live.up(work)
    agent = Agent(live, work)
    agent.say("UserPromptSubmit", prompt="x", prompt_id="p1", cwd=str(work / "sub"))
    assert [row["root"] for row in live.rows()] == [str(work)]
    assert agent.rows() == [(1, "x", None)]


@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"a": NaN}'])
def test_payloads_that_mean_nothing_are_no_error(agent, payload):
    assert agent.send("UserPromptSubmit", payload) == ""


def test_events_that_were_left_are_found(live, work):
    agent, context = Agent(live, work), live.context
    client.install(context)
    hook = client.hook_path(context)
    hook.write_text(hook.read_text().replace("START=[", "START=[] and ["))
    for event, more in (("UserPromptSubmit", {"prompt": "x", "prompt_id": "p"}), ("Stop", {})):
        payload = {"session_id": "s1", "cwd": str(work), "hook_event_name": event, **more}
        data = json.dumps(payload).encode()
        subprocess.run([hook, "claude-code", event], input=data, check=True, env=live.env)
    assert len(list((context.home / "spool").glob("*.json"))) == 2
    live.watch_list(work)
    live.up()
    until(lambda: not list((context.home / "spool").glob("*.json")))
    until(lambda: [row[0] for row in agent.rows("--all")] == [1])


@pytest.mark.parametrize("then", ["goes on", "is killed"])
def test_an_end_that_a_hung_service_did_not_take_is_not_lost(agent, work, then):
    live, context = agent.live, agent.live.context
    client.install(context)
    agent.say("UserPromptSubmit", prompt="x", prompt_id="p")
    agent.change()
    pid = live.ask("status")["service"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    payload = {"session_id": "s1", "cwd": str(work), "hook_event_name": "SessionEnd"}
    hook = [str(client.hook_path(context)), "claude-code", "SessionEnd"]
    subprocess.run(hook, input=json.dumps(payload).encode(), check=True, env=live.env)
    assert len(list((context.home / "spool").glob("*.json"))) == 1
    if then == "is killed":
        live.kill(pid)
        live.watch_list(work)
        live.up()
    else:
        os.kill(pid, signal.SIGCONT)
    until(lambda: not list((context.home / "spool").glob("*.json")))
    until(lambda: agent.rows() == [(1, "x", "interrupted")])


def test_an_event_that_was_spooled_for_want_of_an_answer_counts_once(agent):
    request = agent.request("UserPromptSubmit", begin(agent))
    agent.live.call("hook", **request)
    agent.change()
    agent.say("Stop", prompt_id="p")
    spool = agent.live.context.home / "spool"
    spool.mkdir(exist_ok=True)
    (spool / "1-1.json").write_text(json.dumps(request))
    until(lambda: not list(spool.glob("*.json")))
    assert agent.rows() == [(1, "x", "ok")]


def test_a_large_payload_comes_by_a_file_and_the_file_goes(agent):
    context = agent.live.context
    client.install(context)
    data = json.dumps({**begin(agent), "history": "x" * 2_000_000}).encode()
    hook = [str(client.hook_path(context)), "claude-code", "UserPromptSubmit"]
    subprocess.run(hook, input=data, check=True, env=agent.live.env)
    assert agent.rows() == [(1, "x", None)]
    assert [name for name in os.listdir(context.home / "spool") if name[0] != "."] == []


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", ".", "..", ".x", "none"])
def test_only_what_lies_in_the_spool_is_read(agent, name):
    with pytest.raises(TurnmarkError):
        agent.live.call("hook", spooled=name)


def test_a_begin_that_the_agent_did_not_wait_for_is_late(agent):
    request = agent.request("UserPromptSubmit", begin(agent))
    agent.live.call("hook", **{**request, "time_ns": time.time_ns() - 20_000_000_000})
    agent.change()
    agent.say("Stop", prompt_id="p")
    assert agent.rows() == [(1, "x", "late")]


def test_a_turn_of_a_run_takes_the_place_of_the_runs_own(live, work):
    live.up()
    agent = Agent(live, work)
    agent.env = {"TURNMARK_SESSION": "run-1"}
    base = {"session": "run-1", "dirs": [str(work)], "agent": "claude"}
    live.call("session.open", **base)
    live.call("turn.begin", **base, prompt="claude", own=True)
    agent.say("UserPromptSubmit", prompt="fix it", prompt_id="p1")
    agent.change()
    agent.say("Stop", prompt_id="p1")
    assert agent.rows() == [(1, "fix it", "ok")]


# Found by a reviewer


def spool(agent: Agent, *requests: dict[str, object]) -> None:
    where = agent.live.context.home / "spool"
    where.mkdir(exist_ok=True, parents=True)
    for number, request in enumerate(requests):
        (where / f"{number}-1.json").write_text(json.dumps(request))


def test_what_was_told_while_nobody_listened_comes_before_what_is_told_now(live, work):
    """An end of the turn before closed the one that had just begun."""
    gemini = Agent(live, work, "gemini")
    own = {"session_id": "s1", "cwd": str(work)}
    first = {**own, "hook_event_name": "BeforeAgent", "prompt": "one", "timestamp": "1"}
    last = {**own, "hook_event_name": "AfterAgent", "timestamp": "2"}
    live.up(work)
    spool(gemini, gemini.request("BeforeAgent", first), gemini.request("AfterAgent", last))
    gemini.say("BeforeAgent", prompt="two", timestamp="3")
    gemini.change()
    gemini.say("AfterAgent", timestamp="4")
    assert gemini.rows("--all") == [(2, "two", "ok"), (1, "one", "ok")]


def test_an_end_is_not_lost_where_a_new_service_watches_nothing_yet(agent, work):
    agent.say("UserPromptSubmit", prompt="x", prompt_id="p")
    agent.change()
    agent.live.kill(agent.live.ask("status")["service"]["pid"])
    stop = {"session_id": "s1", "cwd": str(work), "hook_event_name": "Stop", "prompt_id": "p"}
    spool(agent, agent.request("Stop", stop))
    agent.live.up()
    until(lambda: agent.rows() == [(1, "x", "ok")])


def test_the_death_of_an_agent_ends_its_turn_wherever_that_is_open_still(live, work):
    other = live.workspace("other", b="1\n")
    live.up(work, other)
    with subprocess.Popen(["sleep", "60"]) as process:
        both = [str(work), str(other)]
        live.call("turn.begin", session="s", dirs=both, pid=process.pid)
        for name in both:
            with open(f"{name}/new", "w") as file:
                file.write("x")
        live.call("turn.end", session="s", dirs=[str(work)])
        process.kill()
    until(lambda: live.points(other)[0]["status"] == "unknown")
    assert live.points(work)[0]["status"] == "ok"


def test_a_process_number_that_no_process_can_have_is_that_of_a_dead_one(live, work):
    """Each start of the service failed on it as long as the turn was open."""
    assert live.run("turn", "begin", "--session", "s", "--pid", "3000000000", str(work))[0] == 0
    live.up(work)
    assert live.row(work)["state"] == "watching"
    until(lambda: live.points(work, "--all")[0]["status"] == "unknown")


def test_an_answer_that_refuses_is_no_delivery(agent, work):
    context = agent.live.context
    client.install(context)
    agent.live.run("down")
    with socket.socket(socket.AF_UNIX) as full:
        full.bind(place_for_socket(context.env, str(context.store_path)))
        full.listen()
        payload = json.dumps(begin(agent)).encode()
        hook = [str(client.hook_path(context)), "claude-code", "UserPromptSubmit"]
        with subprocess.Popen(hook, stdin=subprocess.PIPE, env=agent.live.env) as process:
            assert process.stdin is not None
            process.stdin.write(payload)
            process.stdin.close()
            link, _ = full.accept()
            refusal = {"code": -32001, "message": "Too many connections."}
            link.send(json.dumps({"jsonrpc": "2.0", "id": None, "error": refusal}).encode() + b"\n")
            link.close()
            assert process.wait() == 0
    assert len(list((context.home / "spool").glob("*.json"))) == 1


def test_halves_of_spooled_events_do_not_pile_up(live, work):
    """At 500 of them nothing more was spooled."""
    where = live.context.home / "spool"
    where.mkdir(parents=True)
    old, fresh = where / ".17-1.json", where / ".18-1.json"
    for path in (old, fresh):
        path.write_text("half")
    os.utime(old, (1, 1))
    live.watch_list(work)
    live.up()
    until(lambda: not old.exists())
    assert fresh.exists()


@pytest.mark.parametrize("cwd", ["/tmp/a\0b", "/tmp/half a pair \ud83d"])
def test_a_directory_that_cannot_be_is_nobodys_error(agent, cwd):
    assert agent.say("UserPromptSubmit", prompt="x", prompt_id="p1", cwd=cwd) == ""
    with pytest.raises(BadInput, match="half a character"):
        agent.live.call("watch", dirs=[cwd])
    assert "bug" not in agent.live.log.lower()
