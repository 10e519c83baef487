"""One workspace's loop: the one writer of its history, the one consumer of its queue.

Everything that is to happen to a workspace is asked of its thread: bursts that are over, marks and
rollbacks that somebody waits for, looks after trouble, audits while nothing happens. Trouble never
ends the loop; it becomes a state that `status` shows.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

from core.errors import Busy, TurnmarkError
from core.history import MarkSpec
from core.model import RelPath, rfc3339
from core.recorder import Recorder, Taken
from core.rollback import finish_interrupted
from core.roots import Root
from core.rules import RuleSet
from core.store import Store

from .burst import Burst, Dirty
from .source import Hub, TreeSource, WatchUnavailable, event_trouble

log = logging.getLogger(__name__)

State = Literal["starting", "scanning", "watching", "scan-only", "degraded", "paused"]
Observer = Literal["auto", "events", "scan"]
Task = Callable[[Recorder, list[RelPath] | None], Any]
Notify = Callable[[dict[str, object]], None]

BARRIER_SECONDS = 0.25
RETRY_SECONDS = 2.0
AUDIT_SECONDS = 600.0
SCAN_SECONDS = 30.0
ALWAYS_MOST = 20_000


@dataclass(frozen=True)
class Settings:
    """What the configuration says of one workspace."""

    rules: RuleSet
    quiet: float = 0.2
    longest: float = 2.0
    observer: Observer = "auto"
    durable: bool = True
    audit: float = AUDIT_SECONDS
    scan: float = SCAN_SECONDS


@dataclass
class Ask:
    """A task for the loop, and where its answer goes."""

    task: Task
    answer: Future[Any] = field(default_factory=Future)
    full: bool = False


class Workspace:
    """Owns a workspace's thread, lock, records and source."""

    def __init__(
        self, base: str, root: Root, settings: Settings, hub: Hub | None, notify: Notify
    ) -> None:
        self.base = base
        self.root = root
        self.settings = settings
        self.hub = hub
        self.notify = notify
        self.state: State = "starting"
        self.reason = ""
        self.ready = threading.Event()
        self.last: Taken | None = None
        self.audit_findings = 0
        self.recorder: Recorder | None = None
        self._source: TreeSource | None = None
        self._identity: tuple[int, int] | None = None
        self._burst = Burst(settings.quiet, settings.longest)
        self._bell = threading.Condition()
        self._asks: deque[Ask] = deque()
        self._rung = False
        self._stopping = False
        self._next_look = 0.0
        self._thread = threading.Thread(target=self._run, name=f"turnmark-{root.id}", daemon=True)

    # From other threads

    def start(self) -> None:
        self._thread.start()

    def ask(self, task: Task, *, full: bool = False) -> Future[Any]:
        """Has the loop do something after a barrier; urgent: it does not wait for a burst."""
        ask = Ask(task, full=full)
        with self._bell:
            if self._stopping:
                ask.answer.set_exception(_stopped(self.root))
                return ask.answer
            self._asks.append(ask)
            self._bell.notify()
        return ask.answer

    def stop(self) -> None:
        """Commits what is pending, then ends the loop."""
        with self._bell:
            self._stopping = True
            self._bell.notify()

    def join(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def change(self, settings: Settings) -> None:
        """New settings from a reloaded configuration."""

        def task(recorder: Recorder, paths: list[RelPath] | None) -> None:
            self.settings = recorder_settings = settings
            self._burst.quiet, self._burst.longest = settings.quiet, settings.longest
            recorder.rules = recorder_settings.rules
            if self._source is not None:
                self._source.change_rules(settings.rules)
            recorder.take(None, sync=settings.durable, note="the rules changed")

        self.ask(task)

    def status(self) -> dict[str, object]:
        last = self.last
        return {
            "id": self.root.id,
            "root": self.root.shown,
            "state": self.state,
            "reason": self.reason,
            "files": self.recorder.tree.files if self.recorder is not None else None,
            "pending": len(self._burst.dirty.files) + len(self._burst.dirty.trees),
            "last_snapshot": rfc3339(last.snapshot.time_ns) if last else None,
            "overflows": self._source.overflows if self._source is not None else 0,
            "audit_findings": self.audit_findings,
        }

    def progress(self) -> tuple[int, int, int]:
        """Of the look under way: directories done, directories known, files seen."""
        recorder, source = self.recorder, self._source
        done, files = recorder.progress() if recorder is not None else (0, 0)
        known = source.watched() if source is not None else 0
        return done, known, files

    # The loop

    def _run(self) -> None:
        with ExitStack() as stack:
            while not self._stopping:
                try:
                    self._open(stack)
                    self._serve()
                except Exception as error:  # one workspace's trouble is shown and tried again
                    self._trouble(error)
                    self._fail_asks(error)
                    stack.close()
                    self._wait(RETRY_SECONDS)
            self._fail_asks(_stopped(self.root))
            self._close()

    def _open(self, stack: ExitStack) -> None:
        """Lock, watch, then look: what changes while looking is noticed by the watch."""
        store = Store.create(self.base)
        stack.enter_context(store.workspace_lock(self.root.id, wait=0.1))
        stack.callback(self._close)
        self._set("scanning", "the first look is under way")
        self._identity = self._identify()
        self.recorder = Recorder(store, self.root, self.settings.rules)
        self._refuse_empty_stranger(self.recorder)
        finish_interrupted(self.recorder)
        self._open_source()
        self._baseline(self.recorder)
        self._settle_state()
        self.ready.set()

    def _identify(self) -> tuple[int, int]:
        info = os.stat(self.root.path)
        return info.st_dev, info.st_ino

    def _refuse_empty_stranger(self, recorder: Recorder) -> None:
        """An empty directory that is not the one we knew: most likely a disk is not mounted."""
        had = recorder.last is not None and recorder.last.total > 0
        known = recorder.tree.identity
        if had and known and known != self._identity and not os.listdir(self.root.path):
            raise Paused("its directory is empty and not the one it was; is a disk not mounted?")

    def _open_source(self) -> None:
        trouble = event_trouble(self.root.path) if self.settings.observer == "auto" else ""
        if self.settings.observer == "scan" or self.hub is None or trouble:
            self.reason = trouble or "events are switched off"
            return
        try:
            self._source = self.hub.open(self.root.path, self.settings.rules, self._ring)
        except WatchUnavailable as error:
            self.reason = str(error)

    def _ring(self) -> None:
        """Called by the reader of events; cheap while the loop has not yet come to look."""
        if self._rung:
            return
        with self._bell:
            self._rung = True
            self._bell.notify()

    def _baseline(self, recorder: Recorder) -> None:
        first = recorder.last is None
        spec = MarkSpec("baseline", label="as it was found") if first else None
        self._took(recorder.take(None, spec, sync=self.settings.durable, note="at start"))
        self._next_look = time.monotonic() + self._interval()

    def _interval(self) -> float:
        return self.settings.audit if self._source is not None else self.settings.scan

    def _settle_state(self) -> None:
        if self._source is None:
            self._set("scan-only", self.reason)
        elif degraded := self._source.degraded() or self._source.trouble:
            self._set("degraded", degraded)
        else:
            self._set("watching", "")

    def _set(self, state: State, reason: str) -> None:
        if (state, reason) != (self.state, self.reason):
            log.info("%s: %s %s", self.root.shown, state, reason)
        self.state, self.reason = state, reason

    def _serve(self) -> None:
        while True:
            ask = self._next()
            if ask is not None:
                self._answer(ask)
            elif self._stopping:
                self._snapshot("at stop")
                return
            else:
                self._work()

    def _next(self) -> Ask | None:
        """Waits for something to do; an ask, or None when time or events call."""
        with self._bell:
            if not (self._asks or self._rung or self._stopping):
                self._bell.wait(max(0.0, self._wake_at() - time.monotonic()))
            if self._asks and not self._stopping:
                return self._asks.popleft()
        return None

    def _wake_at(self) -> float:
        due = self._burst.due()
        return self._next_look if due is None else min(due, self._next_look)

    def _work(self) -> None:
        self._gather()
        now = time.monotonic()
        due = self._burst.due()
        if due is not None and now >= due:
            self._check_root()
            self._snapshot("")
        elif now >= self._next_look:
            self._check_root()
            self._audit()

    def _gather(self) -> None:
        """Moves what the source noticed into the burst."""
        self._rung = False
        if self._source is not None:
            self._burst.add(self._source.take(), time.monotonic())

    def _snapshot(self, note: str) -> None:
        self._gather()
        if self._burst.dirty:
            self._took(self._take(self._paths(self._burst.take()), note))
            self._settle_state()

    def _take(self, paths: list[RelPath] | None, note: str) -> Taken:
        assert self.recorder is not None
        try:
            return self.recorder.take(paths, sync=self.settings.durable, note=note)
        except Exception:
            self._burst.add(Dirty(lost=True), time.monotonic())
            raise

    def _took(self, taken: Taken) -> None:
        if taken.fresh or self.last is None:
            self.last = taken
            self.notify(
                {
                    "event": "snapshot",
                    "workspace": self.root.id,
                    "id": taken.snapshot.id.hex(),
                    "seq": taken.snapshot.seq,
                    "changed": taken.changed,
                }
            )

    def _paths(self, dirty: Dirty) -> list[RelPath] | None:
        """Where to look: also at what events cannot tell of."""
        paths = dirty.paths()
        assert self.recorder is not None
        always = self.recorder.always
        if paths is None or len(always) > ALWAYS_MOST:
            return None
        return sorted({*paths, *always})

    def _audit(self) -> None:
        """A full look while nothing happens: what it finds, no event has told of."""
        quiet = not self._burst.dirty
        taken = self._take(None, "found by a full look")
        self._took(taken)
        if taken.fresh and quiet and self._source is not None:
            self.audit_findings += taken.changed
            log.warning("%s: %d changes came without events", self.root.shown, taken.changed)
        self._next_look = time.monotonic() + self._interval()
        self._settle_state()

    # Asks

    def _answer(self, ask: Ask) -> None:
        """Barrier first: everything that was written before the ask is looked at."""
        dirty = Dirty(lost=True)
        try:
            self._check_root()
            dirty = self._where()
            assert self.recorder is not None
            result = ask.task(self.recorder, None if ask.full else self._paths(dirty))
        except Exception as error:  # the asker is told; what was dirty still is
            self._burst.add(dirty, time.monotonic())
            ask.answer.set_exception(error)
            if not isinstance(error, TurnmarkError):
                raise
        else:
            ask.answer.set_result(result)
            self._settle_state()

    def _where(self) -> Dirty:
        """What to look at: known by events once the barrier has come back, else everything."""
        source = self._source
        if source is not None and not source.trouble:
            if source.barrier(BARRIER_SECONDS) or source.barrier(BARRIER_SECONDS):
                self._gather()
                return self._burst.take()
            source.trouble = "events are late; the watcher is being restarted"
        self._burst.take()
        return Dirty(lost=True)

    # Trouble

    def _check_root(self) -> None:
        """A root that is gone, replaced or unmounted is no reason to record that all is deleted."""
        try:
            now = self._identify()
        except OSError as error:
            raise Paused(f"its directory cannot be reached ({error.strerror})") from error
        if now != self._identity:
            raise Paused("another directory has taken its place")
        if self._source is not None and self._source.root_gone:
            raise Paused("its directory was moved or unmounted")

    def _trouble(self, error: Exception) -> None:
        if isinstance(error, Busy):
            self._set("paused", "another turnmark process writes this workspace")
        elif isinstance(error, Paused):
            self._set("paused", str(error))
        elif isinstance(error, TurnmarkError | OSError):
            log.warning("%s: %s", self.root.shown, error)
            self._set("paused", str(error))
        else:
            log.error("%s failed", self.root.shown, exc_info=error)
            self._set("paused", f"an unexpected error: {error!r}; see the log")

    def _fail_asks(self, error: Exception) -> None:
        with self._bell:
            asks, self._asks = self._asks, deque()
        for ask in asks:
            ask.answer.set_exception(
                TurnmarkError(f"{self.root.shown} is paused: {self.reason or error}.", "")
            )

    def _wait(self, seconds: float) -> None:
        with self._bell:
            if not self._stopping:
                self._bell.wait(seconds)

    def _close(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None
        if self.recorder is not None:
            self.recorder.close()
            self.recorder = None


class Paused(Exception):
    """The workspace cannot be looked at now; its history waits."""


def _stopped(root: Root) -> TurnmarkError:
    return TurnmarkError(f"The service no longer watches {root.shown}.", "Run `turnmark up`.")
