"""Reads one file of a workspace whole, or says that it would not hold still.

Knows one open directory and a name in it. Never follows a link, never waits for a FIFO, and
leaves access times alone where that is allowed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from typing import NamedTuple

from .disk import Disk

FRESH_NS = 20_000_000
"""Two ticks of the coarsest clock that stamps files on Linux (4 ms to 10 ms)."""
COARSE_NS = 2_000_000_000
"""File systems that stamp whole seconds (or FAT's two) tell less."""
ATTEMPTS = 4
PAUSE = 0.006

READ = os.O_RDONLY | os.O_NONBLOCK
QUIETLY = getattr(os, "O_NOATIME", 0)
HAS_LEASES = hasattr(fcntl, "F_SETLEASE")


class Read(NamedTuple):
    """A file's bytes, what stat said of them, and whether a writer may have been at work."""

    data: bytes
    stat: os.stat_result
    torn: bool


class NotAFile(Exception):
    """What was a file at the last look is something else now."""


def is_fresh(changed_ns: int, now_ns: int) -> bool:
    """Whether a write in this moment could leave the change time as it is (the racy rule).

    The change time alone: every write moves it, and unlike the modification time nobody can set it.
    """
    coarse = changed_ns % 1_000_000_000 == 0
    return changed_ns >= now_ns - (COARSE_NS if coarse else FRESH_NS)


def same_file(one: os.stat_result, other: os.stat_result) -> bool:
    return (
        one.st_ino == other.st_ino
        and one.st_size == other.st_size
        and one.st_mtime_ns == other.st_mtime_ns
        and one.st_ctime_ns == other.st_ctime_ns
    )


def read_stable(disk: Disk, at: int, name: bytes) -> Read:
    """The bytes of a regular file as they were at one instant; `torn` if that cannot be proved."""
    found = _read_once(disk, at, name)
    for attempt in range(1, ATTEMPTS):
        if not found.torn:
            break
        time.sleep(PAUSE * 4 ** (attempt - 1))
        found = _read_once(disk, at, name)
    return found


def _read_once(disk: Disk, at: int, name: bytes) -> Read:
    begun = time.time_ns()
    fd = _open(disk, at, name)
    try:
        before = disk.fstat(fd)
        if not stat.S_ISREG(before.st_mode):
            raise NotAFile
        if is_fresh(before.st_ctime_ns, begun):
            return _read_guarded(disk, fd, before)
        data = disk.read_all(fd, before.st_size)
        after = disk.fstat(fd)
        return Read(data, after, torn=not _whole(before, after, data))
    finally:
        disk.close(fd)


def _open(disk: Disk, at: int, name: bytes) -> int:
    """Leaves the access time alone, which only the owner of a file may ask for."""
    try:
        return disk.open(name, READ | QUIETLY, at=at)
    except PermissionError:
        return disk.open(name, READ, at=at)


def _whole(before: os.stat_result, after: os.stat_result, data: bytes) -> bool:
    return same_file(before, after) and len(data) == after.st_size


def _read_guarded(disk: Disk, fd: int, before: os.stat_result) -> Read:
    """For files changed just now: a read lease proves that nobody had them open for writing."""
    leased = _lease(disk, fd)
    data = disk.read_all(fd, before.st_size)
    after = disk.fstat(fd)
    held = leased and disk.held_lease(fd) == fcntl.F_RDLCK
    if leased:
        disk.lease(fd, fcntl.F_UNLCK)
    return Read(data, after, torn=not (held and _whole(before, after, data)))


def _lease(disk: Disk, fd: int) -> bool:
    if not HAS_LEASES:
        return False
    try:
        disk.lease(fd, fcntl.F_RDLCK)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES, errno.EINVAL, errno.EPERM, errno.ENOTSUP):
            return False
        raise
    return True
