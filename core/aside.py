"""Threads beside the one that asks: for calls that wait, and for work on another processor.

Knows nothing of what they do.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from .libc import function

T = TypeVar("T")
Act = Callable[[], object]
CREW = 8


class Errand(Generic[T]):
    """What is to be done, mostly by somebody else; who waits for it gets what was found."""

    def __init__(self, act: Callable[[], T]) -> None:
        self._act: Callable[[], T] | None = act
        self._claim = threading.Lock()
        """Whoever takes it runs the errand, or cancels it."""
        self._running = threading.Lock()
        self._running.acquire()
        self._thread = 0
        self._found: T | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        if not self._claim.acquire(blocking=False):
            return
        assert self._act is not None
        try:
            self._found = self._act()
        except BaseException as error:  # noqa: BLE001 - for whoever waits
            import traceback

            traceback.clear_frames(error.__traceback__)  # which hold what was worked on
            self._error = error
        finally:
            self._act = None
            self._running.release()

    def cancel(self) -> None:
        """It is not begun any more; what is under way goes on to its end."""
        if self._claim.acquire(blocking=False):
            self._act = None
            self._running.release()

    def is_run_by(self, thread: int) -> None:
        """By one that was sent elsewhere for it."""
        self._thread = thread

    @property
    def has_ended(self) -> bool:
        return not self._running.locked()

    def wait(self) -> None:
        """Until it has ended, whatever interrupts: it goes on with what would be closed."""
        stop: BaseException | None = None
        thread = self._thread
        while not self.has_ended:
            try:
                if thread:  # whoever waits leaves his processor free
                    elsewhere, thread = thread, 0
                    _let_run_anywhere(elsewhere)
                with self._running:
                    break
            except BaseException as error:  # noqa: BLE001 - raised below
                stop = error
        if stop is not None:
            raise stop

    def result(self) -> T:
        self.wait()
        if self._error is not None:
            raise self._error
        return self._found  # type: ignore[return-value]


class Errands:
    """Owns what was begun for one purpose: who leaves it, however that comes, has waited for what
    is under way, and the rest is not begun any more."""

    def __init__(self) -> None:
        self._all: list[Errand[Any]] = []

    def __enter__(self) -> Errands:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        stop: BaseException | None = None
        acts: list[Act] = [errand.wait for errand in self._all]
        if kind is not None:
            acts[:0] = [errand.cancel for errand in self._all]
        for act in acts:
            try:
                act()
            except BaseException as error:  # noqa: BLE001 - raised below
                stop = error
        if stop is not None:
            raise stop

    def begin(self, act: Act) -> None:
        self._hand_over(act, _to_one)

    def later(self, act: Act) -> None:
        self._hand_over(act, _to_any)

    def _hand_over(self, act: Act, to: Callable[[Errand[Any]], None]) -> None:
        self._all.append(Errand(act))  # known before anybody can work on it
        to(self._all[-1])

    def settle(self, left: int = 0) -> None:
        """Waits until at most so many are left, the oldest first; raises what failed."""
        while len(self._all) > left:
            self._all[0].result()
            del self._all[0]


class _Crew:
    """Owns threads that take the errands of this process in turn."""

    def __init__(self, count: int, name: str) -> None:
        self.errands: SimpleQueue[Errand[Any]] = SimpleQueue()
        self.threads: list[threading.Thread] = []
        for _ in range(count):
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # no thread more for this user
                if not self.threads:
                    raise
                break
            self.threads.append(thread)

    def _work(self) -> None:
        while True:
            self.errands.get().run()


@cache
def _waiting(process: int) -> _Crew:
    """Of this process, here and below: threads do not come along when it forks."""
    return _Crew(CREW, "turnmark-disk")


@cache
def _working(process: int) -> _Crew:
    return _Crew(1, "turnmark-aside")


def wake() -> None:
    """To start a thread takes a while, once."""
    _working(os.getpid())


def begin(act: Callable[[], T]) -> Errand[T]:
    """Has work done on another processor, if there is one; the less it needs Python, the better."""
    errand = Errand(act)
    _to_one(errand)
    return errand


def _to_one(errand: Errand[Any]) -> None:
    try:
        crew = _working(os.getpid())
    except RuntimeError:  # no thread more for this user: then here, and at once
        errand.run()
        return
    thread = crew.threads[0].native_id or 0
    if thread:
        errand.is_run_by(thread)
        send_elsewhere(thread)
    crew.errands.put(errand)


def _to_any(errand: Errand[Any]) -> None:
    """To helpers that wait more than they work."""
    try:
        crew = _waiting(os.getpid())
    except RuntimeError:
        errand.run()
    else:
        crew.errands.put(errand)


def side_by_side(acts: Sequence[Act]) -> None:
    """The first by whoever asks, the others by helpers; all have ended when an error is raised.

    What is synced at the same time, a journal writes at once (four files, their names and a busy
    disk: 3 ms instead of 8); and two that unlink are three times as fast as one.
    """
    if len(acts) == 1:
        acts[0]()
        return
    errands = [Errand(act) for act in acts]
    for errand in errands[1:]:
        _to_any(errand)
    for errand in errands[:1]:
        errand.run()
    errors: list[BaseException] = []
    for errand in errands:
        try:
            errand.result()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)
    if errors:
        raise errors[0]


def processors() -> int:
    """That we may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def send_elsewhere(task: int) -> None:
    """Keeps a thread, or a process, from the processor of whoever asks, until told otherwise.

    Linux may begin it there, to wait until that one is done (0.7 ms for a thread, here); told where
    not to run, it begins at once (0.06 ms).
    """
    if hasattr(os, "sched_setaffinity") and (current := function("sched_getcpu")) is not None:
        _allow(task, os.sched_getaffinity(0) - {current()})


def _let_run_anywhere(task: int) -> None:
    _allow(task, os.sched_getaffinity(0))


def _allow(task: int, processors: set[int]) -> None:
    with suppress(OSError):  # a sandbox may forbid it, or they have just been taken away
        if processors:
            os.sched_setaffinity(task, processors)
