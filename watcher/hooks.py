"""What the service makes of agents' events: sessions, turns, and what the agent is to be told.

Knows no agent in particular: payloads come through the registry. An event that cannot be understood
or acted upon is nobody's error: the agent must not notice.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from core.errors import BadInput, TurnmarkError
from core.model import label_of
from core.roots import can_be_path

from . import agents
from .actions import text
from .agents.model import AgentEvent
from .answers import Gone, nobody
from .lately import files_gone_back
from .sessions import Sessions
from .workspace import Workspace

log = logging.getLogger(__name__)

Params = Mapping[str, Any]
Call = tuple[object, ...]

REPEAT_SECONDS = 10.0
LATE_SECONDS = 1.0
LOOK_SECONDS = 60.0
OLD_SECONDS = 24 * 3600.0
HALF_SECONDS = 60.0
"""No hook lives so long."""
DELIVERY_SECONDS = 60
MOST_BYTES = 12 << 20
REMEMBERED = 1000


@dataclass(frozen=True, slots=True)
class Last:
    """What a session's newest event was, to know the same one when it comes again."""

    event: tuple[str, str | None, str]
    time: float


class NotNow(TurnmarkError):
    """What came to nothing because the service ends, or is still being done, must stay spooled."""


class Hooks:
    """Owns the memory of which events came a moment ago, and the directory of those left there."""

    def __init__(self, sessions: Sessions, spool: Path) -> None:
        self.sessions = sessions
        self.spool = spool
        self._last: dict[tuple[str, str], Last] = {}
        self._known: dict[Call, bool] = {}
        """The events that came, and whether what they ask for has been done."""
        self._begins: dict[str, frozenset[tuple[str, int, int]]] = {}
        self._went_back: dict[str, int] = {}
        self._lock = threading.Lock()
        self._draining: threading.Thread | None = None
        self._older: dict[str, threading.RLock] = {}

    def answer(self, params: Params, gone: Gone = nobody, *, older: bool = False) -> dict[str, Any]:
        """What the hook is to print, if anything."""
        spooled = text(params, "spooled")
        params = self._fetched(spooled) if spooled else params
        event = event_of(params)
        if event.kind not in ("none", "tool") and not older:
            self._hear_older(event.session)
        call = _call_of(event, params)
        if event.kind == "none" or self._has_come(call):
            return {}
        if self._is_repeated(event):
            self._is_done(call)
            return {}
        try:
            words = self._act(event, params, gone)
        except TurnmarkError as error:
            if isinstance(error, NotNow):
                self._forget_call(call, event)
                raise
            log.info("%s of %s: %s", event.kind, event.session, error.message)
            words = ""
        except BaseException:
            self._forget_call(call, event)
            raise
        self._is_done(call)
        known = agents.AGENTS[event.agent]
        said = known.tell(text(params, "event"), words) if words else ""
        return {"out": base64.b64encode(said.encode()).decode()} if said else {}

    def _fetched(self, name: str) -> Params:
        """An event too large for a request; the hook wrote it to a file instead, and spools it once
        more if it is refused."""
        if os.path.basename(name) != name or name.startswith("."):
            raise BadInput(f"'{name[:100]}' is no name of a spooled event.", "")
        path = self.spool / name
        try:
            return _read(path)
        finally:
            path.unlink(missing_ok=True)

    def _has_come(self, call: Call) -> bool:
        """The very same: a hook that had no answer in time has spooled it as well."""
        if not call:
            return False
        with self._lock:
            done = self._known.get(call)
            if done is None:
                self._known[call] = False
                _forget(self._known)
                return False
        if not done:
            raise NotNow("This event is being dealt with.")
        return True

    def _forget_call(self, call: Call, event: AgentEvent) -> None:
        """As if it had never come: it may come again."""
        with self._lock:
            self._known.pop(call, None)
            self._last.pop((event.agent, event.session), None)

    def _is_done(self, call: Call) -> None:
        with self._lock:
            if call in self._known:
                self._known[call] = True

    def _is_repeated(self, event: AgentEvent) -> bool:
        """The same event twice: installed for user and project, or read by another agent too."""
        if event.kind == "tool":
            return False
        key, now = (event.agent, event.session), time.monotonic()
        said = (event.kind, event.turn_id, "" if event.turn_id else event.prompt)
        with self._lock:
            last = self._last.pop(key, None)
            self._last[key] = Last(said, now)
            _forget(self._last)
        return last is not None and last.event == said and now - last.time < REPEAT_SECONDS

    # What the kinds mean

    def _act(self, event: AgentEvent, params: Params, gone: Gone) -> str:
        if event.kind == "session-begin":
            self._open(event, params)
        elif event.kind == "turn-begin":
            return self._begin(event, params, gone)
        elif event.kind == "turn-end":
            self._end(event, params, gone)
        elif event.kind == "session-end":
            self._close(event)
        else:
            self._announce(event)
        return ""

    def _open(self, event: AgentEvent, params: Params) -> None:
        """The first look can begin before the first prompt."""
        roots, pid = self._roots(event), params.get("pid")
        if roots and pid:
            given = {"session": event.session, "agent": event.agent, "dirs": roots, "pid": pid}
            self.sessions.open(given)

    def _begin(self, event: AgentEvent, params: Params, gone: Gone) -> str:
        session = self.sessions.all.get(event.session)
        if event.follow_up and session is not None and session.open and not session.own:
            return ""
        self._begin_turn(event, params, event.prompt, gone)
        workspaces = self._workspaces(event.session)
        if not self._is_news(event, workspaces):
            return ""
        return files_gone_back(workspaces, event.session)

    def _is_news(self, event: AgentEvent, workspaces: list[Workspace]) -> bool:
        """Whether files may have gone back since the session's turn before; looking takes time."""
        now = frozenset((w.root.id, id(w), self._went_back.get(w.root.id, 0)) for w in workspaces)
        with self._lock:
            before = self._begins.pop(event.session, None)
            self._begins[event.session] = now
            _forget(self._begins)
        return now != before

    def went_back(self, workspace: str) -> None:
        """A rollback was made, which the sessions at work there are to be told of."""
        self._went_back[workspace] = self._went_back.get(workspace, 0) + 1

    def _begin_turn(self, event: AgentEvent, params: Params, prompt: str, gone: Gone) -> None:
        roots = self._roots(event)
        if not roots:
            return
        given = {
            "session": event.session,
            "turn_id": None if event.ends_only else event.turn_id,
            "prompt": label_of(prompt),
            "agent": event.agent,
            "pid": params.get("pid") or None,
            "run": _env(params).get("TURNMARK_SESSION"),
            "dirs": roots,
            "late_after_ns": _late_after(params),
        }
        self._note_errors(event, self.sessions.begin(given, gone))

    def _end(self, event: AgentEvent, params: Params, gone: Gone) -> None:
        if event.ends_only and event.session not in self._begins:
            self._end_only(event, params, gone)
            return
        self._end_turn(event, event.turn_id, gone)

    def _end_only(self, event: AgentEvent, params: Params, gone: Gone) -> None:
        """The state after a turn is the state before the next, of which nobody will tell."""
        with suppress(TurnmarkError):
            self._end_turn(event, None, gone)
        self._begin_turn(event, params, f"after: {event.prompt}", gone)

    def _end_turn(self, event: AgentEvent, turn_id: str | None, gone: Gone) -> None:
        given = {"session": event.session, "turn_id": turn_id, "status": event.status}
        known = event.session in self.sessions.all
        roots = [] if known else self._roots(event)
        watching, holder = self.sessions.watching, f"end:{event.session}"
        for root in roots:  # a turn from before this service becomes known at the first look
            watching.watch(root, holder)
        if roots:
            self._wait_for_look(event)
        try:
            if event.session in self.sessions.all:
                for root in roots:
                    watching.watch(root, f"session:{event.session}")
            self._note_errors(event, self.sessions.end({**given, "dirs": roots}, gone))
        finally:
            if roots:
                watching.release(holder)
        for workspace in self._workspaces(event.session):
            workspace.because("")

    def _note_errors(self, event: AgentEvent, answer: Mapping[str, Any]) -> None:
        for error in answer["errors"]:
            log.info("%s of %s: %s: %s", event.kind, event.session, error["dir"], error["error"])
        if answer["errors"] and self.sessions.watching.ending:
            raise NotNow("The service ends; the next one will hear of this.")

    def _close(self, event: AgentEvent) -> None:
        self._begins.pop(event.session, None)
        if event.session not in self.sessions.all:
            self._wait_for_look(event)  # at which a turn from before this service becomes known
        ended = {"session": event.session, "status": "interrupted"}
        self._note_errors(event, self.sessions.close(ended))

    def _wait_for_look(self, event: AgentEvent) -> None:
        for workspace in map(self.sessions.watching.find, self._roots(event)):
            if workspace is not None:
                workspace.ready.wait(LOOK_SECONDS)

    def _announce(self, event: AgentEvent) -> None:
        for workspace in self._workspaces(event.session):
            workspace.because(f"before {event.tool}")

    def _roots(self, event: AgentEvent) -> list[str]:
        """The watched directory that holds the agent's own, else that one if it may be watched."""
        if not os.path.isabs(event.cwd) or not can_be_path(event.cwd):
            return []
        watching, path = self.sessions.watching, os.path.realpath(event.cwd)
        roots = [workspace.root.shown for workspace in watching.all()]
        above = [top for top in roots if f"{path}/".startswith(f"{top.rstrip('/')}/")]
        if above:
            return [max(above, key=len)]
        if not watching.config.enabled or not watching.config.agents.auto_watch:
            return []
        return [watching.check(path).shown]

    def _workspaces(self, session: str) -> list[Workspace]:
        known = self.sessions.all.get(session)
        found = map(self.sessions.watching.find, list(known.roots) if known else ())
        return [workspace for workspace in found if workspace is not None]

    # Events that came while nobody listened

    def drain(self) -> None:
        """Called at start and now and then; by a thread, as marks wait for the first look."""
        self._drop_halves()
        busy = self._draining is not None and self._draining.is_alive()
        if not busy and self._spooled():
            self._draining = threading.Thread(
                target=self._drain, name="turnmark-spool", daemon=True
            )
            self._draining.start()

    def _spooled(self) -> list[str]:
        try:
            return sorted(filter(_is_undelivered, os.listdir(self.spool)))
        except FileNotFoundError:
            return []

    def _drain(self) -> None:
        """In the order in which they came; what cannot be used is dropped."""
        for name in self._spooled():
            self._hear(self.spool / name)

    def _drop_halves(self) -> None:
        """What hooks left behind that were killed, or met a full disk, while they spooled."""
        for path in self.spool.glob(".[0-9]*"):
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > HALF_SECONDS:
                    path.unlink()

    def _hear_older(self, session: str) -> None:
        """What a session told while nobody listened comes before what it tells now."""
        for name in self._spooled():
            self._hear(self.spool / name, session)

    def _hear(self, path: Path, session: str | None = None) -> None:
        """One event, heard once: by whoever comes first, while the other waits."""
        try:
            params = _read(path)
            whose = event_of(params).session
            if session not in (None, whose):
                return
            with self._lock:
                turn = self._older.setdefault(whose, threading.RLock())
            with turn:
                if path.exists() and _age(params) < OLD_SECONDS:
                    self.answer(params, older=True)
                path.unlink(missing_ok=True)
        except NotNow:
            return
        except Exception as error:  # noqa: BLE001 - anything may lie there, and it must go
            if path.exists():
                log.warning("the event %s is dropped: %s", path.name, error)
                path.unlink(missing_ok=True)


def _call_of(event: AgentEvent, params: Params) -> Call:
    """What tells one call of a hook from all others; nothing where it does not say."""
    call = (event.agent, event.session, event.kind, params.get("time_ns"), params.get("pid"))
    return call if all(isinstance(part, str | int) for part in call) else ()


def event_of(params: Params) -> AgentEvent:
    """What a hook's request means; payloads may be anything."""
    name, event = text(params, "agent"), text(params, "event")
    try:
        payload = json.loads(base64.b64decode(text(params, "payload")))
    except (ValueError, RecursionError):
        return AgentEvent("none", name)
    found = agents.read(name, payload, event, _env(params))
    return found if found.cwd else replace(found, cwd=text(params, "cwd"))


def _env(params: Params) -> dict[str, str]:
    env = params.get("env")
    return {k: v for k, v in env.items() if isinstance(v, str)} if isinstance(env, dict) else {}


def _read(path: Path) -> Params:
    try:
        with open(path, "rb") as file:
            params = json.loads(file.read(MOST_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path.name} cannot be read: {error}") from error
    if not isinstance(params, dict):
        raise BadInput(f"{path.name} is no event.")
    return params


def _is_undelivered(name: str) -> bool:
    """Also a large payload of which no hook has told us in time: the service was just ending."""
    stem, _, ending = name.partition(".")
    when = stem.partition("-")[0]
    old = when.isdecimal() and time.time_ns() - int(when) > DELIVERY_SECONDS * 1_000_000_000
    return ending == "json" or (ending == "payload" and old)


def _age(params: Params) -> float:
    """Seconds since the hook was called."""
    then = params.get("time_ns")
    return (time.time_ns() - then) / 1e9 if isinstance(then, int) else 0.0


def _late_after(params: Params) -> int:
    """From when on the agent has not waited for the mark, and may have changed files before it."""
    then, wait = params.get("time_ns"), params.get("wait_ms")
    if not isinstance(then, int) or not isinstance(wait, int):
        return 0
    spooled = _age(params) > LATE_SECONDS
    return then if spooled else then + wait * 1_000_000


def _forget(known: dict[Any, Any]) -> None:
    """The oldest go first."""
    while len(known) > REMEMBERED:
        del known[next(iter(known))]
