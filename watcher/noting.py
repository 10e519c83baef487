"""Turns noted in the session states, by a thread of its own, once the agent has its answer.

The marks are the truth, and are durable before anybody is answered; these notes only make sessions
easy to list and to resume. A turn: its mark, the answer, then the note, which is one file replaced
in one step. Killed before the note, the document calls a turn open that is over, or lacks the last
one: after the next first look `catch_up` puts that right from the marks. Trouble with a document is
logged, and it is tried again; no agent waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from core.errors import TurnmarkError
from core.model import Mark
from core.sessions import Sessions, TurnNote, note_of, note_of_mark

log = logging.getLogger(__name__)

SOON_SECONDS = 0.05
SETTLE_SECONDS = 1.0
"""The answer and what the agent asks next go first; turns that follow each other closely become
one write, which costs a few milliseconds of the interpreter."""
SETTLE_MOST = 10.0
AGAIN_SECONDS = 60.0
"""What could not be noted is tried again so long after, or with what is noted next."""
STOP_SECONDS = 5.0
COLLECT_SECONDS = 24 * 3600.0
RECENT = 100


class Noting:
    """Owns what waits to be noted, and the thread that does it."""

    def __init__(self, states: Sessions) -> None:
        self.states = states
        self._waiting: dict[tuple[str, bool], list[TurnNote]] = {}
        self._failed: dict[tuple[str, bool], list[TurnNote]] = {}
        self._news_count = 0
        self._noted: set[tuple[str, bool]] = set()
        self._news = threading.Condition()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._collect_at = 0.0

    def told(self, action: str, root: str, params: Mapping[str, Any], mark: dict[str, Any]) -> None:
        """A turn has begun or ended in one workspace, and the mark is made."""
        label = params.get("prompt") if params.get("labels") is not False else ""
        given = {**params, "label": label or "", "root": root, "time_ns": time.time_ns()}
        self._put((mark["session"], False), [note_of(action, {**given, **mark})])

    def catch_up(self, root: str, marks: Iterable[Mark]) -> None:
        """What came of the turns of a workspace that a document calls open."""
        turns = [mark for mark in marks if mark.kind in ("turn-begin", "turn-end")]
        for mark in turns[-RECENT:]:
            if mark.session is not None:
                self._put((mark.session, True), [note_of_mark(root, mark)])

    def stop(self) -> None:
        """What waits is noted first."""
        with self._news:
            self._stopping.set()
            self._news.notify()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    def _put(self, key: tuple[str, bool], notes: list[TurnNote]) -> None:
        with self._news:
            self._waiting.setdefault(key, []).extend(notes)
            self._news_count += 1
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="turnmark-notes", daemon=True
                )
                self._thread.start()
            self._news.notify()

    def _run(self) -> None:
        while self._is_news():
            self._settle()
            with self._news:
                waiting, self._waiting = self._waiting, {}
            for key, notes in self._failed.items():
                waiting[key] = [*notes, *waiting.get(key, [])][-RECENT:]
            self._failed = {
                key: notes for key, notes in waiting.items() if not self._note(key, notes)
            }
            noted = waiting.keys() - self._failed.keys()
            self._noted = noted | (self._noted if len(self._noted) < RECENT else set())
            self._collect()

    def _settle(self) -> None:
        """Until nothing more is told, or it would get too late for a listing; of a session of
        which nothing is noted yet, until the answer is out."""
        until, count = time.monotonic() + SETTLE_MOST, -1
        while count != self._news_count and time.monotonic() < until:
            count = self._news_count
            is_new = bool(self._waiting.keys() - self._noted)
            if self._stopping.wait(SOON_SECONDS if is_new else SETTLE_SECONDS) or is_new:
                return

    def _is_news(self) -> bool:
        with self._news:
            again = AGAIN_SECONDS if self._failed else None
            self._news.wait_for(lambda: self._waiting or self._stopping.is_set(), again)
            return bool(self._waiting or (self._failed and not self._stopping.is_set()))

    def _note(self, key: tuple[str, bool], notes: list[TurnNote]) -> bool:
        session, if_known = key
        try:
            self.states.note_turns(session, notes, if_known=if_known)
        except (TurnmarkError, OSError) as error:
            if key not in self._failed:
                log.warning("the turns of session %s are not noted yet: %s", session, error)
            return False
        return True

    def _collect(self) -> None:
        """Documents that hold nothing but our notes, of which nothing was heard for long."""
        if time.monotonic() < self._collect_at:
            return
        self._collect_at = time.monotonic() + COLLECT_SECONDS
        for error in self.states.garbage_collect(only_notes=True).errors:
            log.warning("old session states: %s", error)
