"""The file verbs everything else uses: thin over the system calls, and the seam for faults.

Knows nothing of stores or workspaces. Names may be relative to an open directory (`at`), and no
verb follows a symbolic link in its last component.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import stat
import sys
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache, partial
from typing import Any

from .aside import CREW, side_by_side
from .libc import ctypes, error_number, function
from .proofs import DIRECTORY, NO_ATIME, Eyes

Name = bytes | str
RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
FROM_HERE = -100
"""What stands for an open directory where a path is a whole one."""
WRITE, WRITE_AND_WAIT = 2, 7
GET_FLAGS, SET_FLAGS, TOP_OF_TREES = 0x80086601, 0x40086602, 0x20000
IN_ORDER = frozenset({b"data=ordered", b"barrier"})
"""What a mounted ext4 says of itself if it has a journal and a disk that is told to flush; the
journal must be on that disk, as the inode that it then is."""
TIMES_KEPT = frozenset({b"ext2", b"ext3", b"ext4", b"xfs", b"tmpfs"})
"""The kinds of mounts on which that has been tried (`mount_that_keeps_times`)."""
CHUNK = 1 << 20
HALF_WRITTEN = re.compile(r"\.[0-9]+\.[0-9]+\.new$")
"""What `replace` writes first."""
LOCK_FIRST, LOCK_STEP = 0.0003, 0.005
ALONE_BELOW = 64
"""So few names are gone before helpers would have begun."""
UNSUPPORTED = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP})
NOT_HERE = UNSUPPORTED | {errno.EPERM, errno.ESPIPE}
"""What a file system, or a sandbox, says to a call that only makes things faster."""
GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
"""What an open or stat says when the path, or a directory on the way, is not what it was."""


NO_LINKS, NO_WAY_OUT = 0x04, 0x08
"""What openat2 is asked to see to while it follows a path."""


@cache
def _openat2() -> Callable[[int, bytes], int] | None:
    """Opens a directory below another one; None where the system has no such call, or has it under
    another number."""
    call = function("syscall") if sys.platform == "linux" else None
    if call is None or os.uname().machine.startswith(("mips", "alpha")):
        return None
    wide = ctypes().c_long
    flags = DIRECTORY | os.O_CLOEXEC | NO_ATIME
    how = (ctypes().c_uint64 * 3)(flags, 0, NO_LINKS | NO_WAY_OUT)
    call.argtypes = [wide, ctypes().c_int, ctypes().c_char_p, type(how), wide]
    call.restype = wide
    return lambda at, path: call(437, at, path, how, 24)


@cache
def _sync_file_range() -> Any:
    call, wide = function("sync_file_range"), ctypes().c_int64
    if call is not None:
        call.argtypes = [ctypes().c_int, wide, wide, ctypes().c_uint]
    return call


def _block_device(paths: Iterable[str]) -> str:
    """The name of the one that holds all these directories; none is called so if it is not one."""
    try:
        device, *others = {os.stat(path).st_dev for path in paths}
        block = os.readlink(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    except OSError:
        return "?"
    return "?" if others else os.path.basename(block)


class Disk(Eyes):
    """The real thing. A test's subclass counts the calls and fails, or kills, at one of them."""

    def open_below(self, path: bytes, at: int) -> int:
        """A directory, in one step, if there is no link on the way to it."""
        call = _openat2()
        if call is None:
            raise OSError(errno.ENOSYS, "This system cannot open a path of no links.", path)
        fd = call(at, path)
        if fd < 0:
            number = error_number()
            raise OSError(number, os.strerror(number), path)
        return fd

    def read(self, fd: int, size: int) -> bytes:
        return os.read(fd, size)

    def seek_start(self, fd: int) -> None:
        os.lseek(fd, 0, os.SEEK_SET)

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return os.pread(fd, size, offset)

    def write_some(self, fd: int, data: bytes | memoryview) -> int:
        return os.write(fd, data)

    def overwrite_some(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        return os.pwrite(fd, data, offset)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def fdatasync(self, fd: int) -> None:
        """Of a file that has not grown, and in which all room was used before, that is all."""
        os.fdatasync(fd)

    def write_out(self, fd: int, *, wait: bool) -> None:
        """Has the content of a file written, or waits until it is; that alone is not durable."""
        call = _sync_file_range()
        if call is not None and call(fd, 0, 0, WRITE_AND_WAIT if wait else WRITE) == 0:
            return
        number = error_number() if call is not None else errno.ENOSYS
        if number not in NOT_HERE:
            raise OSError(number, os.strerror(number))
        if wait:
            self.fsync(fd)

    def keeps_order(self, paths: Iterable[str]) -> bool:
        """Whether, where all these directories lie, names that were given first, and content that
        was written out before them, are durable when one is synced that was given a name later.

        So it is with the journal of ext4 or xfs, of which every sync commits all until then.
        """
        name = _block_device(paths)
        try:
            options = self._ext4_options(name)
        except OSError:
            return os.path.isdir(f"/sys/fs/xfs/{name}/log")
        return IN_ORDER.issubset(options) and os.path.isdir(f"/proc/fs/jbd2/{name}-8")

    def has_no_journal(self, path: str) -> bool:
        """Whether a directory lies on an ext4 without one."""
        try:
            options = self._ext4_options(_block_device([path]))
        except OSError:
            return False
        return not any(option.startswith(b"data=") for option in options)

    def _ext4_options(self, device: str) -> list[bytes]:
        return self.read_file(f"/proc/fs/ext4/{device}/options").split()

    def sync_fs(self, fd: int) -> None:
        """Syncs the whole file system that a directory lies on: one call for many files.

        Without a journal ext4 writes some of it only after it has told the disk to flush, which the
        sync of any directory does once more.
        """
        call = function("syncfs")
        if call is None or call(fd) < 0:
            os.sync()
        os.fsync(fd)

    def free(self, path: str) -> int:
        """Bytes that the file system of a directory has for its user."""
        found = os.statvfs(path)
        if not found.f_blocks:  # some network file systems and FUSE do not say
            return sys.maxsize
        return found.f_bavail * found.f_frsize

    def fs_id(self, path: Name) -> int:
        """What tells one file system from the next in the same place; 0 where that is not said."""
        try:
            return os.statvfs(path).f_fsid
        except OSError:
            return 0

    def mount_that_keeps_times(self, fd: int) -> int:
        """The number of the mount that a directory lies on, if there the change time of a directory
        moves with each name that comes or goes; 0 if not, or if nobody knows.

        Not every network file system, or program that plays one, sees to it; and what the mount is
        called cannot be said by a server.
        """
        try:
            told = self.read_file(f"/proc/self/fdinfo/{fd}")
            mounts = self.read_file("/proc/self/mountinfo")
        except OSError:
            return 0
        number = re.search(rb"^mnt_id:\s*(\d+)$", told, re.MULTILINE)
        kind = number and re.search(rb"^%s .* - (\S+) " % number[1], mounts, re.MULTILINE)
        return int(number[1]) if number and kind and kind[1] in TIMES_KEPT else 0

    def readlink(self, name: bytes, at: int | None = None) -> bytes:
        return os.readlink(name, dir_fd=at)

    def mkdir(self, name: Name, mode: int = 0o700, at: int | None = None) -> None:
        os.mkdir(name, mode, dir_fd=at)

    def spread_out(self, fd: int) -> None:
        """Has an ext4 make each directory in this one in a group of inodes of its own.

        Without a journal it looks at all inodes of a group that were freed in the last minutes
        before it takes one: where 3,000 files were deleted, a new one took 0.9 ms instead of 0.02.
        """
        flags = array("i", [0, 0])  # called a long, and is none
        with suppress(OSError):  # another file system, which has no such groups
            fcntl.ioctl(fd, GET_FLAGS, flags)
            flags[0] |= TOP_OF_TREES
            fcntl.ioctl(fd, SET_FLAGS, flags)

    def rmdir(self, name: Name, at: int | None = None) -> None:
        os.rmdir(name, dir_fd=at)

    def unlink(self, name: Name, at: int | None = None) -> None:
        os.unlink(name, dir_fd=at)

    def symlink(self, target: bytes, name: bytes, at: int | None = None) -> None:
        os.symlink(target, name, dir_fd=at)

    def link(self, old: Name, new: Name, at: int | None = None, to: int | None = None) -> None:
        os.link(old, new, src_dir_fd=at, dst_dir_fd=to, follow_symlinks=False)

    def rename(self, old: Name, new: Name, at: int | None = None, to: int | None = None) -> None:
        os.rename(old, new, src_dir_fd=at, dst_dir_fd=to)

    def rename_new(self, old: bytes, new: bytes, at: int, to: int) -> None:
        """Renames only if nothing has the new name yet (EEXIST otherwise)."""
        try:
            self._rename2(old, new, at, to, RENAME_NOREPLACE)
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            self.link(old, new, at, to)
            self.unlink(old, at)

    def exchange(self, old: bytes, new: bytes, at: int, to: int) -> None:
        """Lets two names change places in one step."""
        self._rename2(old, new, at, to, RENAME_EXCHANGE)

    def _rename2(self, old: bytes, new: bytes, at: int, to: int, flags: int) -> None:
        call = function("renameat2")
        if call is None:
            raise OSError(errno.ENOSYS, "This system cannot rename without replacing.", new)
        if call(at, old, to, new, flags) < 0:
            number = error_number()
            raise OSError(number, os.strerror(number), new)

    def chmod(self, fd: int, mode: int) -> None:
        os.fchmod(fd, mode)

    def chown(self, fd: int, uid: int, gid: int) -> None:
        os.fchown(fd, uid, gid)

    def flock(self, fd: int, operation: int) -> None:
        fcntl.flock(fd, operation)

    def lease(self, fd: int, kind: int) -> None:
        """Takes a lease, until the file is closed; its break is signalled by something ignored.

        The default signal, SIGIO, would kill a process that has not asked for it.
        """
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # ignored by default
        fcntl.fcntl(fd, fcntl.F_SETLEASE, kind)

    def held_lease(self, fd: int) -> int:
        return fcntl.fcntl(fd, fcntl.F_GETLEASE)

    # What follows is made of the verbs above and so needs no fault of its own.

    def sync_all(self, fds: Sequence[int]) -> None:
        """Syncs several files, in no order; all have been tried before an error is raised."""
        side_by_side([partial(self.fsync, fd) for fd in fds])

    def unlink_all(self, names: Sequence[tuple[int, bytes]]) -> None:
        """Unlinks names of open directories, in no order; some may be left after an error."""
        parts = 1 if len(names) < ALONE_BELOW else CREW
        side_by_side([partial(self.unlink_each, names[at::parts]) for at in range(parts)])

    def unlink_each(self, names: Sequence[tuple[int, bytes]]) -> None:
        for at, name in names:
            self.unlink(name, at)

    def clear_away(self, where: str, names: Iterable[str]) -> None:
        """Unlinks those of a directory's names that are there, and makes that durable."""
        with self.opened(where, DIRECTORY) as top:
            there = set(names).intersection(self.names(top))
            if there:
                self.unlink_all([(top, os.fsencode(name)) for name in there])
                self.fsync(top)

    def write(self, fd: int, data: bytes | bytearray) -> None:
        """In pieces: for more at once a kernel may look long for one huge page."""
        view = memoryview(data)
        while view:
            view = view[self.write_some(fd, view[:CHUNK]) :]

    def overwrite(self, fd: int, data: bytes, at: int) -> None:
        view = memoryview(data)
        while view:
            done = self.overwrite_some(fd, view, at)
            view, at = view[done:], at + done

    def read_all(self, fd: int, limit: int | None = None) -> bytes:
        """All that is left to read; with a limit, at most one byte more than it."""
        parts: list[bytes] = []
        left = CHUNK if limit is None else limit + 1
        while left > 0 and (part := self.read(fd, left)):
            parts.append(part)
            if limit is None:
                continue
            left -= len(part)
            if left == 1:  # all that was expected, and a read that came short of more
                break
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def pread_exactly(self, fd: int, size: int, at: int) -> bytes:
        """Fewer bytes only where the file ends."""
        data = self.pread(fd, size, at)
        while len(data) < size and (part := self.pread(fd, size - len(data), at + len(data))):
            data += part
        return data

    @contextmanager
    def opened(
        self, name: Name, flags: int = os.O_RDONLY, mode: int = 0o600, at: int | None = None
    ) -> Iterator[int]:
        fd = self.open(name, flags, mode, at)
        try:
            yield fd
        finally:
            self.close(fd)

    def read_file(self, name: Name, at: int | None = None, limit: int | None = None) -> bytes:
        """With a limit, of a file that is longer one byte more than it."""
        with self.opened(name, at=at) as fd:
            return self.read_all(fd, limit)

    def sync_dir(self, name: Name, at: int | None = None) -> None:
        with self.opened(name, DIRECTORY, at=at) as fd:
            self.fsync(fd)

    def sync_dirs(self, names: Iterable[str]) -> None:
        with ExitStack() as opened:
            self.sync_all([opened.enter_context(self.opened(name, DIRECTORY)) for name in names])

    @contextmanager
    def created(self, name: Name, data: bytes, mode: int = 0o600) -> Iterator[int]:
        """A new file, still open: it is not durable yet."""
        with self.opened(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode) as fd:
            self.write(fd, data)
            yield fd

    def create(self, name: Name, data: bytes, *, sync: bool, mode: int = 0o600) -> None:
        with self.created(name, data, mode) as fd:
            if sync:
                self.fsync(fd)

    def replace(self, name: str, data: bytes, *, sync: bool = True) -> None:
        """Gives a file new content in one step: after a crash it is the old one or the new one."""
        fresh = f"{name}.{os.getpid()}.{time.monotonic_ns()}.new"
        try:
            self.create(fresh, data, sync=sync)
            if not sync:
                self.rename(fresh, name)
                return
            self.put_in_place(fresh, name)
        except BaseException:
            self.discard(fresh)
            raise

    def put_in_place(self, fresh: str, name: str) -> None:
        """Gives a file that is synced its name, durably, be there another one or not.

        Without a journal the other one may be gone from the disk before the name is given to this
        one. So they change names there, and it goes when that has lasted.
        """
        where = os.path.dirname(name)
        swapped = self.exists(name) and not self.keeps_order([where]) and self._swap(fresh, name)
        if not swapped:
            self.rename(fresh, name)
        self.sync_dir(where)
        if swapped:
            self.discard(fresh)

    def _swap(self, one: str, other: str) -> bool:
        """False if the other has gone, or names cannot be exchanged here, or by us."""
        try:
            self.exchange(os.fsencode(one), os.fsencode(other), FROM_HERE, FROM_HERE)
        except OSError as error:
            if error.errno in UNSUPPORTED | {errno.ENOENT, errno.EPERM}:
                return False
            raise
        return True

    def discard(self, name: Name, at: int | None = None) -> bool:
        """Unlinks what may be gone already; False if it could not."""
        try:
            self.unlink(name, at)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def names(self, where: int | str) -> list[str]:
        with self.scandir(where) as found:
            return [entry.name for entry in found]

    def remove_tree(self, name: Name, at: int | None = None) -> None:
        """A link is removed as a link; what is gone already is fine."""
        try:
            info = self.lstat(name, at)
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(info.st_mode):
            self.unlink(name, at)
            return
        with self.opened(name, DIRECTORY, at=at) as inner:
            for below in self.names(inner):
                self.remove_tree(below, inner)
        self.rmdir(name, at)

    def exists(self, name: Name, at: int | None = None) -> bool:
        try:
            self.lstat(name, at)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def make_dirs(self, path: str) -> None:
        """Creates a private directory and the missing ones above it."""
        if os.path.isdir(path):
            return
        self.make_dirs(os.path.dirname(path))
        try:
            self.mkdir(path, 0o700)
        except FileExistsError:
            return

    def lock(self, fd: int, *, exclusive: bool, wait: float) -> bool:
        """Takes a lock that the kernel gives back when its holder dies; False after the wait."""
        operation = (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB
        deadline, step = time.monotonic() + wait, LOCK_FIRST
        while True:
            try:
                self.flock(fd, operation)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return False
                time.sleep(step)
                step = min(2 * step, LOCK_STEP)
            else:
                return True


REAL = Disk()
