"""What stat says of a directory and its names, as numbers to keep, and whether it says so still.

Imports next to nothing: the process that helps with looks (`scout`) is to be small.
"""

from __future__ import annotations

import os
import stat
import struct
from array import array
from itertools import chain
from operator import attrgetter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

WIDTH = 5
"""Numbers kept of a name's stat: mode, inode, size, modification and change time."""
ROW = 8 * WIDTH
A_DIRECTORY = (stat.S_IFDIR, 0, 0, 0, 0)
"""All that is kept of one, which spares its stat: whoever enters it sees its mode and contents."""
MASK = (1 << 63) - 1
MAPPED = (".db", ".sqlite", ".sqlite3", ".db3", "-shm", "-wal", ".mdb", ".lmdb")
"""Files that programs write through memory maps, of which events tell late or never."""
LAST_OF_MAPPED = frozenset(ending[-1] for ending in MAPPED)
"""Asked first of every name: most end otherwise."""
NO_ATIME = getattr(os, "O_NOATIME", 0)
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY

SECOND_NS = 1_000_000_000
FRESH_NS = 20_000_000
"""Two ticks of the coarsest clock that stamps files on Linux (4 ms to 10 ms)."""
COARSE_NS = 2_000_000_000
"""File systems that stamp whole seconds (or FAT's two) tell less."""

_A_DIRECTORY = array("q", A_DIRECTORY).tobytes()
_ROWS = struct.Struct("=qqqqq").iter_unpack
_row = attrgetter("st_mode", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns")
_STAMP = struct.Struct("<QQq").pack
STAMP_BYTES = 24
Stamp = bytes
"""Device, inode and change time of a directory that was listed: while they are the same, so are its
names, and whether each is one of a directory. (Not where a key comes or goes that encrypts them:
then one of the names is gone.)"""


class Eyes:
    """The verbs that looking takes (`disk.Disk` has the others)."""

    def open(self, name: bytes | str, flags: int, mode: int = 0o600, at: int | None = None) -> int:
        return os.open(name, flags | os.O_CLOEXEC | os.O_NOFOLLOW, mode, dir_fd=at)

    def open_quietly(self, name: bytes | str, flags: int, at: int | None = None) -> int:
        """Leaves the access time alone, which only the owner of a file may ask for."""
        try:
            return self.open(name, flags | NO_ATIME, at=at)
        except PermissionError:
            return self.open(name, flags, at=at)

    def close(self, fd: int) -> None:
        os.close(fd)

    def lstat(self, name: bytes | str, at: int | None = None) -> os.stat_result:
        return os.stat(name, dir_fd=at, follow_symlinks=False)

    def lstat_all(self, names: Iterable[bytes | str], at: int) -> list[os.stat_result]:
        lstat = os.stat
        return [lstat(name, dir_fd=at, follow_symlinks=False) for name in names]

    def fstat(self, fd: int) -> os.stat_result:
        return os.fstat(fd)

    def scandir(self, where: int | str) -> os._ScandirIterator[str]:
        return os.scandir(where)


def stamp_of(info: os.stat_result) -> Stamp:
    return _STAMP(info.st_dev, info.st_ino, info.st_ctime_ns)


def is_fresh(changed_ns: int, now_ns: int) -> bool:
    """Whether a write in this moment could leave the change time as it is (the racy rule).

    The change time alone: every write moves it, and unlike the modification time nobody can set it.
    """
    coarse = changed_ns % SECOND_NS == 0
    return changed_ns >= now_ns - (COARSE_NS if coarse else FRESH_NS)


def may_come_again(changed_ns: int, now_ns: int) -> bool:
    """Whether another change could bear the same change time: within the same tick, or where times
    are of whole seconds and the clock is set back."""
    return changed_ns % SECOND_NS == 0 or is_fresh(changed_ns, now_ns)


def numbers_of(info: os.stat_result) -> tuple[int, int, int, int, int]:
    mode = info.st_mode
    if mode & 0o170000 == 0o040000:
        return A_DIRECTORY
    return mode, info.st_ino & MASK, info.st_size, info.st_mtime_ns, info.st_ctime_ns


Found = list[tuple[str, os.stat_result]]
"""Some of a directory's names."""


def list_names(eyes: Eyes, fd: int) -> tuple[bytes, bytes, Found]:
    """Names and stats in the order of the directory, which stays the same while it does; and the
    files with several names or written through maps."""
    names: list[str] = []
    numbers: list[int] = []
    odd: Found = []
    with eyes.scandir(fd) as found:
        for item in found:
            name = item.name
            if item.is_dir(follow_symlinks=False):  # as the listing says: costs no call
                names.append(name)
                numbers += A_DIRECTORY
                continue
            try:
                info = item.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            names.append(name)
            mode, _, _, links, _, _, size, _, _, _ = info
            if mode & 0o170000 == 0o040000:  # only just now
                numbers += A_DIRECTORY
                continue
            numbers += mode, info.st_ino & MASK, size, info.st_mtime_ns, info.st_ctime_ns
            if links > 1 or (name[-1] in LAST_OF_MAPPED and name.endswith(MAPPED)):
                odd.append((name, info))
    return os.fsencode("\0".join(names)), array("q", numbers).tobytes(), odd


Again = tuple[bytes, list[bytes], list[os.stat_result]]


def asked_again(eyes: Eyes, fd: int, joined: bytes, stats: bytes) -> Again | None:
    """The stats of names that are known, and of which files what was found; None if a name is gone
    after all, or is a directory now."""
    names = joined.split(b"\0") if joined else []
    known = [*_ROWS(stats)]
    files, wanted = names, known
    if _A_DIRECTORY in stats:
        files = [name for name, row in zip(names, known, strict=True) if row != A_DIRECTORY]
        wanted = [row for row in known if row != A_DIRECTORY]
    try:
        found = eyes.lstat_all(files, fd)
        if names and not files:
            eyes.lstat(names[0], fd)
    except FileNotFoundError:
        return None
    if list(map(_row, found)) == wanted:  # all of it: a long write grows at one change time
        return stats, files, found
    if any(stat.S_ISDIR(info.st_mode) for info in found):
        return None
    now = map(numbers_of, found)
    rows = (row if row == A_DIRECTORY else next(now) for row in known)
    return array("q", chain.from_iterable(rows)).tobytes(), files, found
