"""A service's upkeep of the store: done by a process of its own, of which there is one at a time.

A thread would take the interpreter from the turns that begin meanwhile. The process may be killed
at any time, as anything may that works on a store.
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


class Upkeep:
    """Owns the process."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._process: subprocess.Popen[bytes] | None = None

    def is_busy(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, roots: Iterable[Root]) -> None:
        command = [*again(self.context), "store", "upkeep", "--", *(root.shown for root in roots)]
        self._process = subprocess.Popen(
            command, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        # from its first moment: to start takes it longer than most upkeeps
        os.setpriority(os.PRIO_PROCESS, self._process.pid, UNHURRIED)

    def has_ended(self) -> bool:
        """Told once of each."""
        if self._process is None or self._process.poll() is None:
            return False
        self._process = None
        return True

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
