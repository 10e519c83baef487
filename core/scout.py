"""A second process that vouches for directories, from the far end of a tree that is looked at.

Only a favour: what it has not vouched for is looked at as if there were no scout, and when it dies
nothing is lost but time. It shares a byte for each directory with whoever sent it, and one open
descriptor; it changes nothing. Knows names and a walk; not what is vouched for.
"""

from __future__ import annotations

import gc
import mmap
import os
import signal
import sys
from collections.abc import Callable, Iterable
from typing import NoReturn

from .model import RelPath

Vouch = Callable[[RelPath], None]

HIGHEST_FD = 1 << 16


def can_be_sent() -> bool:
    """Elsewhere than on Linux a fork of a process with threads is not safe."""
    return sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1


class Scout:
    """Owns a forked process, from its start to its end."""

    def __init__(self, paths: Iterable[RelPath], fd: int, walk: Callable[[Vouch], None]) -> None:
        """Raises OSError where no process can be started; `fd` is all that the walk may use."""
        self._places = {path: place for place, path in enumerate(paths)}
        self._said = mmap.mmap(-1, len(self._places))
        self._process = os.fork()
        if self._process == 0:
            self._go(fd, walk)

    def _go(self, fd: int, walk: Callable[[Vouch], None]) -> NoReturn:
        """Holds nothing else open: no lock may outlive the sender. What fails is not vouched for.

        Other threads may have held locks at the fork, so nothing here may wait for one.
        """
        try:
            gc.disable()
            os.closerange(0, fd)
            os.closerange(fd + 1, HIGHEST_FD)
            walk(self._vouch)
        finally:
            os._exit(0)

    def _vouch(self, path: RelPath) -> None:
        self._said[self._places[path]] = 1

    def vouches_for(self, path: RelPath) -> bool:
        place = self._places.get(path)
        return place is not None and self._said[place] == 1

    def dismiss(self) -> None:
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        self._said.close()
