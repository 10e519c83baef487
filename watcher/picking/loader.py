"""Loads one thing at a time on a thread of its own: what was asked for last, and nothing stale.

Knows not what is loaded. Whoever loads asks now and then whether it is still wanted, and raises
GivenUp if not; so keys are answered at once, however long a load takes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import Condition, Thread
from typing import Generic, Protocol, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")
Asker = TypeVar("Asker", contravariant=True)
Given = TypeVar("Given", covariant=True)

PAUSE = 0.04
"""Whoever goes on typing within it wants something else in a moment."""
PATIENCE = 2.0


class GivenUp(Exception):
    """Nobody wants any more what was being loaded."""


@dataclass(frozen=True)
class Wanted:
    """Whether something else is wanted by now, or nothing at all any more."""

    is_stale: Callable[[], bool]
    is_over: Callable[[], bool]


class Source(Protocol[Asker, Given]):
    """Where things are loaded from; used, and closed, by one thread."""

    def load(self, key: Asker, wanted: Wanted) -> Given: ...

    def close(self) -> None: ...


class Loader(Generic[Key, Value]):
    """Owns the thread; `told` is called on it whenever there is something to see."""

    def __init__(self, source: Source[Key, Value], told: Callable[[], object]) -> None:
        self.failure: Exception | None = None
        self._source = source
        self._told = told
        self._moved = Condition()
        self._wanted: Key | None = None
        self._found: tuple[Key, Value] | None = None
        self._closed = False
        self._thread = Thread(target=self._work, name="preview", daemon=True)
        self._thread.start()

    def want(self, key: Key | None) -> None:
        with self._moved:
            if key != self._wanted:
                self._wanted = key
                self._moved.notify()

    def found(self, key: Key) -> Value | None:
        """None until it is loaded."""
        found = self._found
        return found[1] if found is not None and found[0] == key else None

    def close(self) -> None:
        """What is under way is given up; a load that does not notice dies with the process."""
        with self._moved:
            self._closed = True
            self._moved.notify()
        self._thread.join(PATIENCE)

    def _work(self) -> None:
        try:
            while (key := self._next()) is not None:
                self._load(key)
        except Exception as error:  # noqa: BLE001 - raised again where the picker ends
            self.failure = error
            self._told()
        finally:
            self._source.close()

    def _load(self, key: Key) -> None:
        wanted = Wanted(partial(self._is_stale, key), lambda: self._closed)
        try:
            self._found = (key, self._source.load(key, wanted))
        except GivenUp:
            return
        self._told()

    def _is_stale(self, key: Key) -> bool:
        return self._closed or self._wanted != key

    def _next(self) -> Key | None:
        """What is wanted once nothing else has been for a moment; None when all is over."""
        with self._moved:
            self._moved.wait_for(lambda: self._closed or self._is_missing())
            while not self._closed and self._moved.wait(PAUSE):
                pass
            return None if self._closed else self._wanted

    def _is_missing(self) -> bool:
        found = self._found
        return self._wanted is not None and (found is None or found[0] != self._wanted)
