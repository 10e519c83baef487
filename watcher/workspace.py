"""One workspace's loop: the one writer of its history, the one consumer of its queue.

Everything that is to happen to a workspace is asked of its thread: bursts that are over, marks and
rollbacks that somebody waits for, looks after trouble, audits while nothing happens. Trouble never
ends the loop; it becomes a state that `status` shows.
"""

from __future__ import annotations

import logging
import math
import os
import stat
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal

from core import proofs
from core.errors import Busy, TurnmarkError
from core.history import MarkSpec
from core.model import RelPath, Snapshot, rfc3339
from core.recorder import Recorder, Taken
from core.rollback import finish_interrupted
from core.roots import Root
from core.rules import RuleSet
from core.store import Store

from .burst import Burst, Dirty
from .client import NotWatched
from .source import Hub, TreeSource, WatchUnavailable, event_trouble

log = logging.getLogger(__name__)

State = Literal["starting", "scanning", "watching", "scan-only", "degraded", "paused"]
Observer = Literal["auto", "events", "scan"]
Task = Callable[[Recorder, list[RelPath] | None], Any]
Notify = Callable[[dict[str, object]], None]

BARRIER_SECONDS = 0.25
RETRY_SECONDS = 2.0
RETRY_MOST = 30.0
AUDIT_SECONDS = 600.0
SCAN_SECONDS = 30.0
CALM_SECONDS = 0.01
SAVE_SECONDS = 2.0
SAVE_MOST = 30.0
ALWAYS_MOST = 20_000
MAPPED = tuple(map(os.fsencode, proofs.MAPPED))


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
    """A task for the loop, and where its answer goes.

    A task looks at the paths it is given (at everything for None): nobody else will.
    """

    task: Task
    answer: Future[Any] = field(default_factory=Future)
    full: bool = False


class Workspace:
    """Owns a workspace's thread, lock, records and source."""

    def __init__(
        self,
        base: str,
        root: Root,
        settings: Settings,
        hub: Hub | None,
        notify: Notify,
        looked: Callable[[Recorder], None] = lambda _: None,
    ) -> None:
        """`looked` is called after each first look, before anything else is asked."""
        self.base = base
        self.root = root
        self.settings = settings
        self.hub = hub
        self.notify = notify
        self.looked = looked
        self.ready = threading.Event()
        self.last: Snapshot | None = None
        self.audit_findings = 0
        self.recorder: Recorder | None = None
        self._shown: tuple[State, str] = ("starting", "")
        self._source: TreeSource | None = None
        self._no_events = ""
        self._observing: Observer = settings.observer
        self._identity: tuple[int, int] | None = None
        self._gone = False
        self._burst = Burst(settings.quiet, settings.longest)
        self._bell = threading.Condition()
        self._asks: deque[Ask] = deque()
        self._note = ""
        self._rung = False
        self._changed = False
        self._active = self._stale = False
        self._stopping = False
        self._next_look = 0.0
        self._retry = RETRY_SECONDS
        self._held_until = 0.0
        self._mend_at = 0.0
        self._save_at = self._save_latest = self._prepare_at = math.inf
        self._thread = threading.Thread(target=self._run, name=f"turnmark-{root.id}", daemon=True)

    @property
    def state(self) -> State:
        return self._shown[0]

    @property
    def reason(self) -> str:
        return self._shown[1]

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
        """Answers what was asked, commits what is pending, then ends the loop."""
        with self._bell:
            self._stopping = True
            self._bell.notify()

    def join(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def change(self, settings: Settings) -> None:
        """New settings from a reloaded configuration; also while paused they are not forgotten."""
        with self._bell:
            self.settings = settings
            self._changed = True
            self._bell.notify()

    def freshen(self) -> None:
        """Lets the loop learn, while nobody waits, what an upkeep has moved in the store: its next
        turn, if one is likely, need not."""
        with self._bell:
            self._stale, self._active = self._active, False
            if self._stale:
                self._bell.notify()

    def because(self, note: str) -> None:
        """What the snapshots of the bursts to come are noted with, until told otherwise."""
        self._note = note

    def status(self) -> dict[str, object]:
        (state, reason), last = self._shown, self.last
        recorder, source = self.recorder, self._source
        return {
            "id": self.root.id,
            "root": self.root.shown,
            "state": state,
            "reason": reason,
            "files": recorder.tree.files if recorder is not None else None,
            "pending": len(self._burst),
            "last_snapshot": rfc3339(last.time_ns) if last else None,
            "overflows": source.overflows if source is not None else 0,
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
                except Exception as error:  # noqa: BLE001 - one workspace's trouble, shown and tried again
                    self._trouble(error)
                    self._fail_asks()
                    stack.close()
                    self._pause(error)
            self._set("paused", "it has been stopped")
            self._fail_asks()

    def _open(self, stack: ExitStack) -> None:
        """Lock, watch, then look: what changes while looking is noticed by the watch."""
        store = Store.create(self.base)
        stack.enter_context(store.workspace_lock(self.root.id, wait=0.1))
        stack.callback(self._close)
        self._set("scanning", "the first look is under way")
        self._identity = self._identify()
        self._use_settings()
        self.recorder = Recorder(store, self.root, self.settings.rules)
        self.recorder.expected = self._identity
        self._refuse_empty_stranger(self.recorder)
        self._gone = False
        finish_interrupted(self.recorder)
        self._open_source()
        self._baseline(self.recorder)
        self.looked(self.recorder)
        self.recorder.tree.save()
        self.recorder.tree.fold()
        store.warm_up()
        self._settle_state()
        self.ready.set()

    def _use_settings(self) -> Settings:
        with self._bell:
            self._changed = False
            settings = self.settings
        self._burst.quiet, self._burst.longest = settings.quiet, settings.longest
        self._observing = settings.observer
        return settings

    def _identify(self) -> tuple[int, int]:
        try:
            info = os.stat(self.root.path)
        except OSError as error:
            self._gone = True
            raise Paused(f"its directory cannot be reached ({error.strerror})") from error
        return info.st_dev, info.st_ino

    def _refuse_empty_stranger(self, recorder: Recorder) -> None:
        """An empty directory that is not the one we knew: most likely a disk is not mounted.

        A new directory may have the number of the one that was just deleted.
        """
        had = recorder.last is not None and recorder.last.total > 0
        known = recorder.tree.identity
        stranger = self._gone or (known and known != self._identity)
        if had and stranger and not os.listdir(self.root.path):
            raise Paused("its directory is empty and not the one it was; is a disk not mounted?")

    def _open_source(self) -> None:
        trouble = event_trouble(self.root.path) if self.settings.observer == "auto" else ""
        if self.settings.observer == "scan" or self.hub is None or trouble:
            self._no_events = trouble or "events are switched off"
            return
        try:
            self._source = self.hub.open(self.root.path, self.settings.rules, self._ring)
        except WatchUnavailable as error:
            self._no_events = str(error)

    def _ring(self) -> None:
        """Called by the reader of events; cheap while the loop has not yet come to look."""
        if self._rung:
            return
        with self._bell:
            self._rung = True
            self._bell.notify()

    def _baseline(self, recorder: Recorder) -> None:
        """A full look; what was dirty before it need not be looked at once more."""
        self._gather()
        self._burst.take()
        first = recorder.last is None
        spec = MarkSpec("baseline", label="as it was found") if first else None
        self._take(None, "at start", spec)
        self._put_off_look()

    def _put_off_look(self) -> None:
        source = self._source
        blind = source is None or bool(source.blind()) or bool(source.trouble)
        self._next_look = time.monotonic() + (self.settings.scan if blind else self.settings.audit)

    def _settle_state(self) -> None:
        """After something went well."""
        self._retry, self._held_until = RETRY_SECONDS, 0.0
        self._show_state()

    def _show_state(self) -> None:
        if self._source is None:
            self._set("scan-only", self._no_events)
        elif degraded := self._source.degraded() or self._source.trouble:
            self._set("degraded", degraded)
        else:
            self._set("watching", "")

    def _set(self, state: State, reason: str) -> None:
        if (state, reason) != self._shown:
            log.info("%s: %s %s", self.root.shown, state, reason)
        self._shown = state, reason

    def _serve(self) -> None:
        while True:
            self._prepare()
            self._save_now_and_then()
            if self._changed and not self._stopping:
                self._tend()  # whoever asks after a change was answered is to find it in force
            ask = self._next()
            if ask is not None:
                self._answer(ask)
                self._prepare_at = time.monotonic() + CALM_SECONDS
                self._put_off_save()
            elif self._stopping:
                self._finish()
                return
            else:
                self._tend()

    def _save_now_and_then(self) -> None:
        """While nobody waits, and not after each of many turns: what is not saved costs a look."""
        recorder, now = self.recorder, time.monotonic()
        if recorder is None or not (recorder.tree.is_unsaved() or recorder.store.holds_unused):
            self._save_at = self._save_latest = math.inf
        elif self._save_at == math.inf:
            self._save_at, self._save_latest = now + SAVE_SECONDS, now + SAVE_MOST
        elif now >= self._save_at and not self._called():
            recorder.tree.save(self._called)
            if recorder.tree.trouble:
                log.warning("%s: %s", self.root.shown, recorder.tree.trouble)
            if not self._called():
                self._warm_up()
            if not recorder.tree.is_unsaved():
                self._save_at = self._save_latest = math.inf
                recorder.tree.fold()

    def _put_off_save(self) -> None:
        """Who asked for something may ask for more at once."""
        if self._save_at < math.inf:
            self._save_at = min(self._save_latest, time.monotonic() + SAVE_SECONDS)

    def _tend(self) -> None:
        """What is due without being asked for; a failure keeps its dirty paths and is retried."""
        try:
            if self._stale:
                self._warm_up()
            if self._changed:
                self._change()
            self._mend()
            self._work()
        except TurnmarkError as error:
            self._hold_off(error)

    def _next(self) -> Ask | None:
        """Waits for something to do; an ask, or None when time or events call."""
        with self._bell:
            while not self._called() and (left := self._wake_at() - time.monotonic()) > 0:
                self._bell.wait(left)
            changed = self._changed and not self._stopping
            return self._asks.popleft() if self._asks and not changed else None

    def _called(self) -> bool:
        """During a burst events need not wake the loop: it comes to look when the burst is due."""
        fresh = self._rung and self._burst.first is None
        return bool(self._asks) or fresh or self._changed or self._stale or self._stopping

    def _wake_at(self) -> float:
        due = self._burst.due()
        wake = self._next_look if due is None else min(due, self._next_look)
        if self._source is not None and self._source.trouble:
            wake = min(wake, self._mend_at)
        return min(max(wake, self._held_until), self._save_at, self._prepare_at)

    def _work(self) -> None:
        self._gather()
        now = time.monotonic()
        due = self._burst.due()
        if now < self._held_until:
            return
        if due is not None and now >= due:
            self._check_root()
            self._snapshot(self._note)
        elif now >= self._next_look:
            self._check_root()
            self._audit()

    def _gather(self) -> None:
        """Moves what the source noticed into the burst."""
        self._rung = False
        source = self._source
        if source is not None:
            dirty = source.take()
            self._burst.add(dirty, source.noticed or time.monotonic())

    def _snapshot(self, note: str) -> None:
        if len(self._burst):
            self._look_at(self._burst.take(), note)
            self._prepare_at = 0.0
            self._settle_state()

    def _look_at(self, dirty: Dirty, note: str) -> Taken:
        """What could not be looked at stays dirty."""
        try:
            return self._take(self._paths(dirty), note)
        except Exception:
            self._burst.add(dirty, time.monotonic())
            raise

    def _take(self, paths: list[RelPath] | None, note: str, mark: MarkSpec | None = None) -> Taken:
        assert self.recorder is not None
        durable = self.settings.durable
        taken = self.recorder.take(paths, mark, sync=durable, note=note, awaited=False)
        self._tell()
        return taken

    def _tell(self) -> None:
        """Lets followers know of a snapshot that is new, whoever made it."""
        last = self.recorder.last if self.recorder is not None else None
        if last is None or (self.last is not None and self.last.id == last.id):
            return
        self.last, self._active = last, True
        self.notify(
            {
                "event": "snapshot",
                "workspace": self.root.id,
                "id": last.id.hex(),
                "seq": last.seq,
                "changed": last.changed,
            }
        )

    def _paths(self, dirty: Dirty) -> list[RelPath] | None:
        """Where to look: also at what events cannot tell of."""
        paths = dirty.paths()
        assert self.recorder is not None
        always = self.recorder.always
        linked = self._meet(dirty.files - always, always)
        if paths is None or linked or len(always) > ALWAYS_MOST:
            return None
        blind = self._source.blind() if self._source is not None else ()
        return sorted({*paths, *always, *blind})

    def _meet(self, files: frozenset[RelPath], always: set[RelPath]) -> bool:
        """Takes note of new databases; True for a second name, whose first one is not known."""
        always |= {path for path in files if path.endswith(MAPPED)}
        return any(self._linked(path) for path in files)

    def _linked(self, path: RelPath) -> bool:
        try:
            info = os.lstat(self.root.path + b"/" + path)
        except OSError:
            return False
        return info.st_nlink > 1 and stat.S_ISREG(info.st_mode)

    def _audit(self) -> None:
        """A full look while nothing happens: what it finds, no event has told of."""
        if self._source is None:
            self._open_source()  # what was short may be free again
        dirty = self._where()
        if not dirty.lost:
            self._look_at(dirty, "")
        taken = self._look_at(Dirty(lost=True), "found by a full look")
        if self._source is not None and not self._source.trouble:
            self._count_findings(self._source, taken)
        if self.recorder is not None:
            self.recorder.put_away()  # where nothing happens, nothing needs to be ready
        self._put_off_look()
        self._settle_state()

    def _count_findings(self, source: TreeSource, taken: Taken) -> None:
        """Only where nothing was noticed meanwhile, which the look may have seen as well."""
        if not taken.fresh or not source.barrier(BARRIER_SECONDS):
            return
        self._gather()
        if not len(self._burst):
            self.audit_findings += taken.changed
            log.warning("%s: %d changes came without events", self.root.shown, taken.changed)

    def _change(self) -> None:
        """Puts new settings into force."""
        old = self._observing
        settings = self._use_settings()
        assert self.recorder is not None
        same = self.recorder.rules == settings.rules
        self.recorder.rules = settings.rules
        self._put_off_look()
        if old != settings.observer:
            self._close_source()
            self._open_source()
        elif self._source is not None and not same:
            self._source.change_rules(settings.rules)
        if not same or old != settings.observer:
            self._burst.add(Dirty(lost=True), time.monotonic())
            self._check_root()
            self._snapshot("the rules changed")

    def _warm_up(self) -> None:
        """A favour to whoever comes next, who will meet, and tell of, what fails here."""
        self._stale = False
        try:
            if self.recorder is not None:
                self.recorder.store.warm_up()
                if self.recorder.store.is_prepared:  # an upkeep has swept it away
                    self._prepare_at = 0.0
        except (OSError, TurnmarkError) as error:
            log.debug("%s: the store could not be looked at ahead: %s", self.root.shown, error)

    def _prepare(self) -> None:
        """As a favour too, once whoever was answered has had the answer."""
        if time.monotonic() < self._prepare_at or self._called():
            return
        self._prepare_at = math.inf
        try:
            if self.recorder is not None:
                self.recorder.prepare(durable=self.settings.durable)
        except Busy:  # an upkeep is taking something out
            self._prepare_at = time.monotonic() + CALM_SECONDS
        except TurnmarkError as error:
            log.warning("%s: %s", self.root.shown, error)
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread could be started
            log.debug("%s: nothing could be prepared: %s", self.root.shown, error)

    def _mend(self) -> None:
        """Has a watcher that was found silent restarted; until then everything is scanned."""
        source, now = self._source, time.monotonic()
        if self.hub is None or source is None or not source.trouble or now < self._mend_at:
            return
        self.hub.mend()
        self._mend_at = time.monotonic() + RETRY_SECONDS
        if not self._held_until:
            self._show_state()

    def _finish(self) -> None:
        """The last snapshot, of what was written before the stop."""
        dirty = self._where()
        self._check_root()
        if dirty:
            self._look_at(dirty, "at stop")

    # Asks

    def _answer(self, ask: Ask) -> None:
        """Barrier first: everything that was written before the ask is looked at."""
        if not ask.answer.set_running_or_notify_cancel():
            return
        dirty = Dirty(lost=True)
        try:
            dirty = self._where()
            self._check_root()
            assert self.recorder is not None
            result = ask.task(self.recorder, None if ask.full else self._paths(dirty))
        except Exception as error:  # noqa: BLE001 - the asker is told; dirty stays dirty
            self._burst.add(dirty, time.monotonic())
            self._refuse(ask, error)
        else:
            ask.answer.set_result(result)
            self._settle_state()
            self._tell()

    def _refuse(self, ask: Ask, error: Exception) -> None:
        """A failure that says what it is leaves the records as they were; others may not."""
        if isinstance(error, Paused):
            self._trouble(error)
            ask.answer.set_exception(self._paused())
            raise error
        ask.answer.set_exception(error)
        if not isinstance(error, TurnmarkError):
            log.error("%s: a task failed", self.root.shown, exc_info=error)
            self._renew()

    def _renew(self) -> None:
        """Reads the records anew, after a task has died at a place that nobody foresaw."""
        assert self.recorder is not None
        old, self.recorder = self.recorder, None
        old.close()
        self.recorder = Recorder(old.store, self.root, old.rules)
        self._burst.add(Dirty(lost=True), time.monotonic())
        finish_interrupted(self.recorder)

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
        if self._identify() != self._identity:
            self._gone = True
            raise Paused("another directory has taken its place")
        if self._source is not None and self._source.root_gone:
            self._gone = True
            raise Paused("its directory was moved, deleted or unmounted")

    def _hold_off(self, error: TurnmarkError) -> None:
        """Most often a full disk: the watch goes on, and the snapshot is tried again later.

        When it lasts, all is opened anew: the store itself may have been taken away.
        """
        if self._retry > RETRY_SECONDS * 8:
            raise error
        log.warning("%s: %s", self.root.shown, error)
        self._set("degraded", str(error))
        self._held_until = time.monotonic() + self._retry
        self._retry *= 2

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

    def _fail_asks(self) -> None:
        with self._bell:
            asks, self._asks = self._asks, deque()
        for ask in asks:
            if ask.answer.set_running_or_notify_cancel():
                ask.answer.set_exception(self._paused())

    def _paused(self) -> TurnmarkError:
        if self._stopping:
            return _stopped(self.root)
        # whoever asks may do it without the service, which has let go of the workspace's lock
        return NotWatched(f"{self.root.shown} is paused: {self.reason}.", "See `turnmark status`.")

    def _pause(self, error: Exception) -> None:
        """Until it is time to try again, or somebody asks for something."""
        quick = isinstance(error, Paused | Busy)
        seconds = RETRY_SECONDS if quick else self._retry
        self._retry = RETRY_SECONDS if quick else min(2 * self._retry, RETRY_MOST)
        with self._bell:
            if not (self._stopping or self._asks or self._changed):
                self._bell.wait(seconds)

    def _close_source(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            source.close()

    def _close(self) -> None:
        self._close_source()
        recorder, self.recorder = self.recorder, None
        if recorder is not None:
            recorder.close()


class Paused(Exception):
    """The workspace cannot be looked at now; its history waits."""


def _stopped(root: Root) -> TurnmarkError:
    return TurnmarkError(f"The service no longer watches {root.shown}.", "Run `turnmark up`.")
