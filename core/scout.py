"""A second process that vouches for directories, from the far end of a tree that is looked at.

Only a favour: what it has not vouched for is looked at as if there were no scout, and when it dies
nothing is lost but time. It shares some bytes for each directory with whoever sent it, and one open
descriptor; it changes nothing. Knows names and a walk; not what is vouched for.
"""

from __future__ import annotations

import gc
import math
import mmap
import os
import signal
import sys
from _thread import start_new_thread
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import NoReturn

from .aside import send_elsewhere
from .model import RelPath

Vouch = Callable[[RelPath, bytes], None]
"""Of a directory; and with its stamp (`listing.Stamp`), if it was listed."""
STAMP_BYTES = 24
VOUCHED, STAMPED = 1, 2

HIGHEST_FD = 1 << 16
KB_PER_FILE = 24
"""To fork a process that holds more for each file of the tree takes longer than a scout spares."""


def can_be_sent(files: int) -> bool:
    """Elsewhere than on Linux a fork of a process with threads is not safe; and where the program
    that we are part of has its own way with its children, ours would not be ours to wait for."""
    if sys.platform != "linux" or signal.getsignal(signal.SIGCHLD) is not signal.SIG_DFL:
        return False
    if not hasattr(os, "pidfd_open") or len(os.sched_getaffinity(0)) == 1:
        return False
    return _own_kb() <= files * KB_PER_FILE


def _own_kb() -> float:
    """Of memory, that a fork has to copy the tables of: not what is shared, nor what was once."""
    try:
        with open("/proc/self/statm", "rb") as told:
            _, resident, shared, *_ = map(int, told.read().split())
    except OSError:  # a sandbox that does not tell
        return math.inf
    return (resident - shared) * mmap.PAGESIZE / 1024


class Scout:
    """Owns a forked process, from its start to its end."""

    def __init__(self, paths: Iterable[RelPath], fd: int, walk: Callable[[Vouch], None]) -> None:
        """Raises OSError where no process can be started; `fd` is all that the walk may use."""
        self._places = {path: place for place, path in enumerate(paths)}
        self._said = mmap.mmap(-1, len(self._places))
        self._stamps = mmap.mmap(-1, len(self._places) * STAMP_BYTES)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:  # a signal must not let the child run on as if it were its sender
            self._process = os.fork()
            if self._process == 0:
                self._go(fd, walk)
            send_elsewhere(self._process)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

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

    def _vouch(self, path: RelPath, stamp: bytes) -> None:
        place = self._places[path]
        if stamp:
            self._stamps[place * STAMP_BYTES : (place + 1) * STAMP_BYTES] = stamp
        self._said[place] = STAMPED if stamp else VOUCHED

    def vouches_for(self, path: RelPath) -> bool:
        place = self._places.get(path)
        return place is not None and self._said[place] != 0

    def dismiss(self) -> dict[RelPath, bytes]:
        """Returns the stamps of what it has listed and vouched for; its end, which takes as long as
        a look at a thousand files, is awaited by a thread of its own."""
        with suppress(OSError):  # it is gone already
            self._end()
        found = self._stamped()
        self._said.close()
        self._stamps.close()
        return found

    def _stamped(self) -> dict[RelPath, bytes]:
        if self._said.find(bytes([STAMPED])) < 0:
            return {}
        said, stamps = self._said[:], self._stamps[:]
        return {
            path: stamps[place * STAMP_BYTES : (place + 1) * STAMP_BYTES]
            for path, place in self._places.items()
            if said[place] == STAMPED
        }

    def _end(self) -> None:
        """By a handle, once that is known to be of a child of ours: somebody else in this process
        may have waited for it, and its number may be another's."""
        handle = os.pidfd_open(self._process)
        try:
            os.waitid(os.P_PIDFD, handle, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        except OSError:
            os.close(handle)
            raise
        try:
            start_new_thread(_bury, (handle,))
        except RuntimeError:  # no thread more for this user
            _bury(handle)


def _bury(handle: int) -> None:
    try:
        os.waitid(os.P_PIDFD, handle, os.WEXITED)
    except ChildProcessError:  # somebody else was quicker
        return
    finally:
        os.close(handle)
