"""A service's upkeep of the store: done by a process of its own, of which there is one at a time.

A thread would take the interpreter from the turns that begin meanwhile. The process may be killed
at any time, as anything may that works on a store; it is asked to end first, as it may have started
a git.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable

from core.roots import Root

from .context import Context
from .starting import again

UNHURRIED = 10
"""How nice it is to all others."""
STOP_SECONDS = 1.0


class Upkeep:
    """Owns the process."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.process: subprocess.Popen[bytes] | None = None
        self._deep: subprocess.Popen[bytes] | None = None
        """The same, as long as it is to give way: told once, by any thread."""

    def is_busy(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self, roots: Iterable[Root]) -> None:
        self._start("--", *(root.shown for root in roots))

    def start_deep(self) -> None:
        """What takes long, and is for hours in which nothing happens."""
        self._deep = self._start("--deep")

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        self._deep = None
        self.process = subprocess.Popen(
            [*again(self.context), "store", "upkeep", *words],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        # from its first moment: to start takes it longer than most upkeeps
        os.setpriority(os.PRIO_PROCESS, self.process.pid, UNHURRIED)
        return self.process

    def give_way(self) -> None:
        """Somebody works again."""
        deep, self._deep = self._deep, None
        if deep is not None:
            deep.terminate()

    def has_ended(self) -> bool:
        """Told once of each."""
        if self.process is None or self.process.poll() is None:
            return False
        self.process = None
        return True

    def stop(self) -> None:
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
