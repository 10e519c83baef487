"""The agents' sessions and their turns: which workspaces one has, and when it is over.

The truth about turns is in the marks of each workspace; what is kept here is only who is at work.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from core import turns
from core.diff import diff_trees
from core.errors import Damaged, TurnmarkError
from core.history import History, read_snapshot
from core.model import Oid, Status
from core.recorder import Recorder
from core.sessions import Sessions as States
from core.store import Store

from .access import briefly_open
from .actions import (
    needed,
    number,
    status_of,
    task_of,
    text_or_none,
    texts,
)
from .answers import Gone, answer_of, nobody, settle
from .client import PATIENCE, NotWatched
from .deaths import is_alive
from .noting import Noting
from .watching import Watching
from .workspace import Workspace

log = logging.getLogger(__name__)

Params = dict[str, Any]

LINGER_SECONDS = 900.0
FORGET_SECONDS = 12 * 3600.0
CLOSE_SECONDS = 60.0


@dataclass
class Session:
    """One run of an agent. `own` says that its open turn is one that `turnmark run` began and that
    gives way to the agent's own; `run` names the session of the run that this one is part of."""

    id: str
    agent: str | None = None
    run: str | None = None
    pids: set[int] = field(default_factory=set)
    roots: dict[str, None] = field(default_factory=dict)
    before: dict[str, Oid] = field(default_factory=dict)
    turn: int | None = None
    turns: int = 0
    newest: tuple[str, int] = ("", 0)
    begun: dict[str, int] = field(default_factory=dict)
    own: bool = False
    opened: bool = False
    touched: float = field(default_factory=time.monotonic)

    @property
    def open(self) -> bool:
        """Whether a turn of it is open, or about to be, in any of its directories."""
        return bool(self.begun)


class Sessions:
    """Owns who is at work; asks the workspaces for their marks."""

    def __init__(
        self,
        watching: Watching,
        settled: Callable[[], Params],
        watch_pid: Callable[[int], None],
        notify: Callable[[dict[str, object]], None],
    ) -> None:
        self.watching = watching
        self.settled = settled
        self.watch_pid = watch_pid
        self.notify = notify
        self.noting = Noting(States(str(watching.context.home / "sessions")))
        self.all: dict[str, Session] = {}
        self._lock = threading.RLock()
        self._asked = 0

    def status(self) -> list[dict[str, Any]]:
        with self._lock:
            return [
                {"id": s.id, "agent": s.agent, "turn": s.turn, "open": s.open}
                for s in self.all.values()
            ]

    # From clients

    def open(self, params: Params) -> dict[str, Any]:
        """Watches the directories for the session; the baselines need not be taken yet."""
        session = self._session(needed(params, "session"), text_or_none(params, "agent"), None)
        session.opened = True
        found, errors = self._workspaces(session, texts(params, "dirs"), watch=True)
        self._hold(session, number(params, "pid"))
        rows = [workspace.status() for workspace in found]
        return {"workspaces": rows, "errors": errors}

    def add_pid(self, params: Params) -> dict[str, Any]:
        session = self.all.get(needed(params, "session"))
        if session is not None:
            self._hold(session, number(params, "pid"))
        return {"known": session is not None}

    def begin(self, params: Params, gone: Gone = nobody) -> dict[str, Any]:
        """A turn begins in all workspaces of the session, and of the run that it is part of."""
        name, run = needed(params, "session"), text_or_none(params, "run")
        agent, watch = text_or_none(params, "agent"), bool(self.settled()["auto_watch"])
        session = self._session(name, agent, run)
        above = self.all.get(run or "") or session
        dirs = [*texts(params, "dirs"), *session.roots, *above.roots]
        found, errors = self._workspaces(session, dirs, watch=watch)
        own = bool(params.get("own"))
        if not own:
            self._give_way(above)
        marks = self._ask(found, "turn.begin", params, errors, gone, of=session)
        if marks or session.open:  # what is late is made all the same
            self._began(session, above, marks, own=own)
            self._hold(session, number(params, "pid"))
        self._forget_idle_failures(session, marks)
        if session.open and self.all.get(session.id) is not session:  # its agent died meanwhile
            self._finish(session, "unknown")
        return {"marks": marks, "errors": errors}

    def end(self, params: Params, gone: Gone = nobody) -> dict[str, Any]:
        """The session's turn ends in the directories, or in all workspaces of the session."""
        status_of(params)
        session = self.all.get(needed(params, "session"))
        dirs = texts(params, "dirs") or list(session.roots if session is not None else ())
        if not dirs:
            raise NotWatched("The service knows no such session.", "Name its directories.")
        found, errors = self._workspaces(session, dirs, watch=False)
        marks = self._ask(found, "turn.end", params, errors, gone, of=session)
        if session is not None and marks:
            with self._lock:
                session.own = session.own and session.open
                session.touched = time.monotonic()
        return {"marks": marks, "errors": errors}

    def close(self, params: Params) -> dict[str, Any]:
        """The session is over; a turn that it left open ends as the status says."""
        status = status_of(params)
        with self._lock:
            session = self.all.pop(needed(params, "session"), None)
            parts = [s for s in self.all.values() if session and s.run == session.id]
            for part in parts:
                del self.all[part.id]
        if session is None:
            return {"known": False, "turns": 0, "files": 0, "errors": []}
        for part in parts:
            self._finish(part, "unknown")
        errors = self._finish(session, status)
        files = self._files_changed(session)
        return {"known": True, "turns": session.turns or 1, "files": files, "errors": errors}

    # From within

    def died(self, pid: int) -> None:
        """An agent's process has ended without a word."""
        with self._lock:
            bereft = [s for s in self.all.values() if pid in s.pids]
            for session in bereft:
                session.pids.discard(pid)
            over = [s for s in bereft if not s.pids]
        for session in over:
            log.info("the process of session %s has ended", session.id)
            self.close({"session": session.id, "status": "unknown"})

    def sweep(self, recorder: Recorder) -> None:
        """After a first look: turns whose process has gone are over, the others still at work."""
        for mark in recorder.begun().open():
            pid = mark.extra.get("pid")
            if not isinstance(pid, int) or mark.session is None or mark.session in self.all:
                continue
            if is_alive(pid, mark.time_ns):
                session = self._session(mark.session, mark.agent, None)
                session.turn = mark.turn
                session.begun[recorder.root.shown] = 0
                session.roots[recorder.root.shown] = None
                self._hold(session, pid)
            else:
                turns.end(recorder, mark.session, status="unknown", paths=[])
        self.noting.catch_up(recorder.root.shown, recorder.marks())

    def tidy(self) -> None:
        """Forgets sessions of which nothing has been heard for long and whose end nobody tells."""
        now = time.monotonic()
        with self._lock:
            old = [s for s in self.all.values() if _is_over(s, now)]
            for session in old:
                del self.all[session.id]
        for session in old:
            self.watching.release(_holder(session.id))

    def _session(self, name: str, agent: str | None, run: str | None) -> Session:
        with self._lock:
            session = self.all.setdefault(name, Session(name))
            session.agent = agent or session.agent
            session.run = run if run != name else None
            session.touched = time.monotonic()
            return session

    def _hold(self, session: Session, pid: int | None) -> None:
        """The session lasts as long as one of its processes does."""
        if pid:
            with self._lock:
                session.pids.add(pid)
            self.watch_pid(pid)

    def _forget_idle_failures(self, session: Session, marks: list[Any]) -> None:
        with self._lock:
            unused = not marks and not session.turn and not session.opened
            if unused and not session.roots:
                self.all.pop(session.id, None)

    def _workspaces(
        self, session: Session | None, dirs: Iterable[str], *, watch: bool
    ) -> tuple[list[Workspace], list[dict[str, str]]]:
        """Those that are watched, or can be from now on; and why others are not."""
        found: dict[str, Workspace] = {}
        errors: list[dict[str, str]] = []
        for path in dict.fromkeys(dirs):
            try:
                workspace = self._workspace(session, path, watch=watch)
                found[workspace.root.id] = workspace
                if session is not None:
                    session.roots[workspace.root.shown] = None
            except TurnmarkError as error:
                errors.append(_error(path, error))
        return list(found.values()), errors

    def _workspace(self, session: Session | None, path: str, *, watch: bool) -> Workspace:
        if session is not None and watch:
            return self.watching.watch(path, _holder(session.id))
        workspace = self.watching.find(path)
        if workspace is None:
            raise NotWatched(f"{path} is not watched.", f"Run `turnmark watch {path}`.")
        return workspace

    def _ask(
        self,
        workspaces: list[Workspace],
        action: str,
        params: Params,
        errors: list[dict[str, str]],
        gone: Gone = nobody,
        seconds: float = PATIENCE,
        of: Session | None = None,
    ) -> list[dict[str, Any]]:
        """The answers of those that could; all are asked before the first is waited for."""
        told = {**params, **self.settled()}
        task = task_of(action, told)
        with self._lock:  # the numbers are in the order in which the loops are asked
            this = self._asked = self._asked + 1
            asked = [(workspace, workspace.ask(task)) for workspace in workspaces]
            if of is not None and action == "turn.begin":
                of.begun |= {workspace.root.shown: this for workspace in workspaces}
        settle([future for _, future in asked], seconds, gone, cancel=False)
        marks = []
        for workspace, future in asked:
            root = workspace.root.shown
            try:
                marks.append(answer_of(future))
                if of is not None and action == "turn.end" and of.begun.get(root, this) < this:
                    del of.begun[root]
                self._tell(action, marks[-1])
                self.noting.told(action, workspace.root.shown, told, marks[-1])
            except TurnmarkError as error:
                errors.append(_error(root, error))
                over = action == "turn.begin" and future.done() and of is not None
                if over and of is not None and of.begun.get(root) == this:
                    del of.begun[root]
        return marks

    def _tell(self, action: str, mark: dict[str, Any]) -> None:
        shown = {name: value for name, value in mark.items() if name != "people"}
        self.notify({"event": "turn", "what": action.removeprefix("turn."), **shown})

    def _give_way(self, session: Session) -> None:
        """The turn that the run began for want of a better one ends before the agent's own."""
        with self._lock:
            if not session.own:
                return
            session.own, session.turns = False, 0
        found, errors = self._workspaces(None, session.roots, watch=False)
        ended = {"session": session.id, "status": "ok"}
        self._ask(found, "turn.end", ended, errors, of=session)

    def _began(
        self, session: Session, above: Session, marks: list[dict[str, Any]], *, own: bool
    ) -> None:
        newest = (marks[0]["workspace"], marks[0]["seq"]) if marks else ("", 0)
        with self._lock:
            session.own = own
            if not marks or newest != session.newest:  # else it was told twice
                above.turns += 1
            session.newest = newest
            session.turn = marks[0]["turn"] if marks else session.turn
            for mark in marks:
                first = Oid(bytes.fromhex(mark["id"]))
                session.before.setdefault(mark["workspace"], first)

    def _finish(self, session: Session, status: Status) -> list[dict[str, str]]:
        """What kept the end of its turn from being seen."""
        found, errors = self._workspaces(None, session.roots, watch=False)
        begun = [workspace for workspace in found if workspace.root.shown in session.begun]
        if begun:
            params = {"session": session.id, "status": status}
            self._ask(begun, "turn.end", params, errors, seconds=CLOSE_SECONDS, of=session)
        for error in errors:
            log.warning("%s: the turn of %s: %s", error["dir"], session.id, error["error"])
        self.watching.release(_holder(session.id))
        return errors

    def _files_changed(self, session: Session) -> int:
        with briefly_open(self.watching.context) as store:
            return sum(_changed(store, name, first) for name, first in session.before.items())


def _holder(session: str) -> str:
    return f"session:{session}"


def _error(path: str, error: TurnmarkError) -> dict[str, str]:
    kind = type(error).__name__
    return {"dir": path, "error": error.message, "hint": error.hint, "kind": kind}


def _is_over(session: Session, now: float) -> bool:
    if session.pids or session.opened:
        return False
    return now - session.touched > (FORGET_SECONDS if session.open else LINGER_SECONDS)


def _changed(store: Store, workspace: str, first: Oid) -> int:
    """How many paths differ between a snapshot and the newest."""
    try:
        last = History(store, workspace).newest()
        old = read_snapshot(store, first).files
        return sum(1 for _ in diff_trees(store.tree, old, last.files)) if last else 0
    except Damaged:
        return 0
