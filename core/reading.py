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
from typing import Literal, NamedTuple

from .disk import CHUNK, Disk
from .proofs import is_fresh

RECENT_NS = 60_000_000_000
"""Longer than a page that is written through a map stays dirty without moving the change time."""
ATTEMPTS = 4
PAUSE = 0.006
RECHECK = 0.024

READ = os.O_RDONLY | os.O_NONBLOCK
NO_ACCESS = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.EIO, errno.EBADMSG, errno.ESTALE, errno.ETIMEDOUT),
        errno.EAGAIN,  # another process holds a lease for writing
        *(getattr(errno, name, errno.EIO) for name in ("EUCLEAN", "ENOKEY", "EREMOTEIO")),
    }
)
SWAPPED = frozenset({errno.ELOOP, errno.ENOTDIR})
"""Something else took the place of a name: it was never absent, and is not known."""
NO_LEASES = frozenset(
    {errno.EACCES, errno.EINVAL, errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.ENOTTY}
)
"""What a file system without leases says to whoever wants one, or any to another user's file."""
HAS_LEASES = hasattr(fcntl, "F_SETLEASE")


class Read(NamedTuple):
    """A file's bytes, what stat said of them, and whether a writer may have been at work.

    held: somebody has it open for writing, and may go on through a map without moving its times.
    """

    data: bytes
    stat: os.stat_result
    torn: bool
    held: bool


class NotAFile(Exception):
    """What was a file at the last look is something else now."""


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
    """A read lease proves that nobody had the file open for writing; closing gives it back.

    Where a writer has it open, an idle file must read the same twice: what is written through a
    map moves no time stamp while the page stays dirty. A file that has not changed for long is
    proved by its time stamps alone, and no writer is kept waiting for it.
    """
    begun = time.time_ns()
    fd = disk.open_quietly(name, READ, at)
    try:
        before = disk.fstat(fd)
        if not stat.S_ISREG(before.st_mode):
            raise NotAFile
        recent = before.st_ctime_ns >= begun - RECENT_NS
        lease = _lease(disk, fd) if recent else "none"
        data = disk.read_all(fd, before.st_size)
        if lease == "granted":
            whole = disk.held_lease(fd) == fcntl.F_RDLCK
        elif is_fresh(before.st_ctime_ns, begun):
            whole = False
        else:
            whole = lease == "none" or _reads_again(disk, fd, data)
        after = disk.fstat(fd)
        whole = whole and same_file(before, after) and len(data) == after.st_size
        return Read(data, after, torn=not whole, held=lease == "refused")
    finally:
        disk.close(fd)


def _reads_again(disk: Disk, fd: int, data: bytes) -> bool:
    """After a pause in which a writer that was only waiting for its turn goes on."""
    time.sleep(RECHECK)
    at = 0
    while part := disk.pread(fd, CHUNK, at):
        if data[at : at + len(part)] != part:
            return False
        at += len(part)
    return at == len(data)


def has_writer(disk: Disk, fd: int) -> bool:
    """Whether somebody has an open file open for writing, as far as that can be told; until it is
    closed whoever wants to is kept waiting."""
    return _lease(disk, fd) == "refused"


def _lease(disk: Disk, fd: int) -> Literal["granted", "refused", "none"]:
    """Refused where somebody has the file open for writing; none where there are no leases."""
    if not HAS_LEASES:
        return "none"
    try:
        disk.lease(fd, fcntl.F_RDLCK)
    except OSError as error:
        if error.errno == errno.EAGAIN:
            return "refused"
        if error.errno in NO_LEASES:
            return "none"
        raise
    return "granted"
