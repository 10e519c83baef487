"""Threads beside the one that asks: for calls that wait, and for work on another processor.

Knows nothing of what they do.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
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

    def __init__(self, act: Callable[[], T], thread: int = 0) -> None:
        self._act: Callable[[], T] | None = act
        self._thread = thread
        """That which was sent elsewhere for it; 0 for none."""
        self._running = threading.Lock()
        self._running.acquire()
        self._found: T | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
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

    @property
    def has_ended(self) -> bool:
        return not self._running.locked()

    def wait(self) -> None:
        """Until it has ended, whatever interrupts: it goes on with what would be closed."""
        stop: BaseException | None = None
        if self._thread and not self.has_ended:  # whoever waits leaves his processor free
            _let_run_anywhere(self._thread)
        while not self.has_ended:
            try:
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
    try:
        crew = _working(os.getpid())
    except RuntimeError:  # no thread more for this user: then here, and at once
        errand = Errand(act)
        errand.run()
        return errand
    thread = crew.threads[0].native_id or 0
    errand = Errand(act, thread)
    if thread:
        send_elsewhere(thread)
    crew.errands.put(errand)
    return errand


def later(act: Callable[[], T]) -> Errand[T]:
    """Has something done by a helper that waits more than it works; here, and at once, where there
    can be none."""
    errand = Errand(act)
    try:
        crew = _waiting(os.getpid())
    except RuntimeError:
        errand.run()
    else:
        crew.errands.put(errand)
    return errand


def wait_for(errands: Iterable[Errand[Any]]) -> None:
    """Until all have ended, whatever interrupts."""
    stop: BaseException | None = None
    for errand in list(errands):
        try:
            errand.wait()
        except BaseException as error:  # noqa: BLE001 - raised below
            stop = error
    if stop is not None:
        raise stop


def side_by_side(acts: Sequence[Act]) -> None:
    """The first by whoever asks, the others by helpers; all have ended when an error is raised.

    What is synced at the same time, a journal writes at once (four files, their names and a busy
    disk: 3 ms instead of 8); and two that unlink are three times as fast as one.
    """
    errands = [Errand(act) for act in acts[:1]] + [later(act) for act in acts[1:]]
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
