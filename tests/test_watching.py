"""Which workspaces are watched, while others come and go."""

from __future__ import annotations

import base64
import json
import os
import threading
import time
from pathlib import Path

import pytest

from core.history import History
from core.roots import root_of
from core.store import Store
from tests.watching import until
from watcher.context import context_from
from watcher.hooks import Hooks, NotNow
from watcher.sessions import Sessions
from watcher.watching import Watching


@pytest.fixture
def watching(tmp_path: Path):
    home = tmp_path / "home"
    context = context_from({"HOME": str(tmp_path / "user"), "TURNMARK_HOME": str(home)})
    Store.create(str(context.store_path))
    made = Watching(context, None, "no events here", lambda _: None)
    made.apply(context.config)
    yield made
    made.stop(10)


@pytest.mark.parametrize("way", ["release", "unwatch"])
def test_a_workspace_that_is_slow_to_end_holds_up_nobody_else(watching, tmp_path, way):
    """Found by a review: a session that was closed during its baseline stopped all turns."""
    slow, other = tmp_path / "slow", tmp_path / "other"
    slow.mkdir()
    other.mkdir()
    looks, leave = threading.Event(), threading.Event()

    def looked(recorder) -> None:
        if recorder.root.shown == str(slow):
            looks.set()
            assert leave.wait(10)

    watching.looked = looked
    first = watching.watch(str(slow), "session:s")
    assert looks.wait(10)
    away = {"release": "session:s", "unwatch": str(slow)}[way]
    closing = threading.Thread(target=getattr(watching, way), args=(away,))
    again = threading.Thread(target=watching.watch, args=(str(slow), "session:t"))
    try:
        closing.start()
        until(lambda: not watching.all())
        again.start()
        watched = watching.watch(str(other), "session:t")
        assert watched.ready.wait(10)
        assert closing.is_alive()
        assert again.is_alive()
        assert [workspace.root.shown for workspace in watching.all()] == [str(other)]
    finally:
        leave.set()
        closing.join(10)
        again.join(10)
    assert first.join(10)
    until(lambda: len(watching.all()) == 2)
    assert watching.find(str(slow)) is not first


# Agents' events while it begins and ends


@pytest.fixture
def hooks(watching, tmp_path):
    sessions = Sessions(watching, lambda: {"auto_watch": True}, lambda _: None, lambda _: None)
    spool = tmp_path / "home/spool"
    spool.mkdir()
    yield Hooks(sessions, spool)
    sessions.noting.stop()


def begin_event(work: Path) -> dict[str, object]:
    own = {"session_id": "s1", "cwd": str(work), "prompt": "x", "prompt_id": "p"}
    payload = json.dumps({**own, "hook_event_name": "UserPromptSubmit"}).encode()
    event = {"agent": "claude-code", "event": "UserPromptSubmit", "cwd": str(work)}
    when = {"time_ns": time.time_ns(), "wait_ms": 10_000, "pid": 0}
    return {**event, **when, "payload": base64.b64encode(payload).decode()}


def turns(hooks: Hooks, work: Path) -> int:
    store = Store.open(str(hooks.sessions.watching.context.store_path))
    kinds = [mark.kind for mark in History(store, root_of(os.fsencode(work)).id).marks()]
    return kinds.count("turn-begin")


def test_a_spooled_event_stays_until_the_first_telling_of_it_is_done(hooks, watching, tmp_path):
    """Found by a campaign: it was dropped as known while its mark could still fail."""
    work, looks, leave = tmp_path / "work", threading.Event(), threading.Event()
    work.mkdir()

    def looked(_) -> None:
        looks.set()
        assert leave.wait(10)

    watching.looked = looked
    event = begin_event(work)
    copy = hooks.spool / "1-1.json"
    telling = threading.Thread(target=hooks.answer, args=(event,))
    telling.start()
    try:
        assert looks.wait(10)
        copy.write_text(json.dumps(event))
        hooks.drain()
        hooks._draining.join(10)
        assert copy.exists()
    finally:
        leave.set()
        telling.join(10)
    hooks.drain()
    until(lambda: not copy.exists())
    assert turns(hooks, work) == 1


def test_who_ends_leaves_events_to_the_next_service(hooks, watching, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    watching.watch(str(work), "config").ready.wait(10)
    assert watching.stop(10)
    large = hooks.spool / f"{time.time_ns()}-1.payload"
    large.write_text(json.dumps(begin_event(work)))
    for told in (begin_event(work), {"spooled": large.name}):
        with pytest.raises(NotNow):
            hooks.answer(told)
    assert not large.exists()  # a hook that is refused spools all of it, and once is enough
    copy = hooks.spool / "1-1.json"
    copy.write_text(json.dumps(begin_event(work)))
    hooks.drain()
    hooks._draining.join(10)
    assert copy.exists()
    assert turns(hooks, work) == 0


def test_a_session_that_ends_while_the_service_does_is_left_to_the_next(hooks, watching, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    begun = begin_event(work)
    hooks.answer(begun)
    assert watching.stop(10)
    payload = {"session_id": "s1", "cwd": str(work), "hook_event_name": "SessionEnd"}
    ended = {**begun, "event": "SessionEnd", "time_ns": time.time_ns()}
    ended["payload"] = base64.b64encode(json.dumps(payload).encode()).decode()
    with pytest.raises(NotNow):
        hooks.answer(ended)


def test_what_came_twice_or_failed_does_not_stay_in_the_spool(hooks, tmp_path, monkeypatch):
    """Found by a reviewer: the next service made turns of it that nobody had begun."""
    work = tmp_path / "work"
    work.mkdir()
    events = [{**begin_event(work), "pid": 0} for _ in range(2)]
    for number, event in enumerate(events):
        hooks.answer(event)
        (hooks.spool / f"{number}-1.json").write_text(json.dumps(event))
    hooks.drain()
    until(lambda: not list(hooks.spool.glob("*.json")))
    assert turns(hooks, work) == 1
    failing = {**begin_event(work), "time_ns": time.time_ns()}
    with monkeypatch.context() as patch:
        patch.setattr(hooks, "_act", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
        hooks._last.clear()
        with pytest.raises(OSError, match="full"):
            hooks.answer(failing)
    (hooks.spool / "9-1.json").write_text(json.dumps(failing))
    hooks.drain()
    until(lambda: not list(hooks.spool.glob("*.json")))
    assert not hooks._known or all(hooks._known.values())
