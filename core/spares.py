"""Empty files made ahead, for writes that somebody waits for.

To make a file takes longer than to fill it where many were deleted lately: for minutes ext4 steps
over each of their inodes. Knows names and descriptors; not what is written, or what it is called
in the end.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from .disk import Disk


class Spare(NamedTuple):
    """An empty file, open for reading and writing, that nobody else will use."""

    path: str
    fd: int
    identity: tuple[int, int]
    """Device and inode, which no other file has as long as this one is open."""


class Spares:
    """Owns files that are to begin with one prefix; whoever takes one writes and renames it."""

    def __init__(self, disk: Disk, prefix: str, mode: int = 0o600) -> None:
        self.disk = disk
        self.prefix = prefix
        self.mode = mode
        self._ready: list[Spare] = []
        self._process = os.getpid()

    @property
    def count(self) -> int:
        return len(self._ready)

    def close(self) -> None:
        while self._ready:
            spare = self._ready.pop()
            self.disk.close(spare.fd)
            if self._process == os.getpid():
                self.disk.discard(spare.path)

    def fill(self, count: int) -> None:
        """While nobody waits."""
        self._let_go_of_swept()
        while len(self._ready) < count:
            self._ready.append(self._make())

    def take(self) -> Spare:
        """Whoever takes one holds a lock of writers, under which none is swept away."""
        while self._ready:
            spare = self._ready.pop()
            if self._is_there(spare):
                return spare
            self.disk.close(spare.fd)
        return self._make()

    def _let_go_of_swept(self) -> None:
        ready, self._ready = self._ready, []
        for spare in ready:
            if self._is_there(spare):
                self._ready.append(spare)
            else:
                self.disk.close(spare.fd)

    def _is_there(self, spare: Spare) -> bool:
        """Not if a sweep took it for what a dead writer had left, or it is our parent's."""
        if self._process != os.getpid():
            return False
        try:
            named = self.disk.lstat(spare.path)
        except FileNotFoundError:
            return False
        return (named.st_dev, named.st_ino) == spare.identity

    def _make(self) -> Spare:
        path = f"{self.prefix}{os.getpid()}-{time.monotonic_ns()}"
        fd = self.disk.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, self.mode)
        info = self.disk.fstat(fd)
        return Spare(path, fd, (info.st_dev, info.st_ino))
