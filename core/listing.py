"""Names of a directory with what stat says of them, as kept on record and compared with it."""

from __future__ import annotations

import os
import stat
from array import array

from .disk import Disk
from .model import RelPath, join
from .reading import RECENT_NS, is_fresh
from .rules import DirRules
from .worktree import Dir

WIDTH = 5
"""Numbers kept of a name's stat: mode, inode, size, modification and change time."""
A_DIRECTORY = (stat.S_IFDIR, 0, 0, 0, 0)
"""All that is kept of one, which spares its stat: whoever enters it sees its mode and contents."""
DOUBT = -(1 << 63)
"""As a modification time: never equal to a real one, so that the name is looked at again."""
MASK = (1 << 63) - 1
MAPPED = (".db", ".sqlite", ".sqlite3", ".db3", "-shm", "-wal", ".mdb", ".lmdb")
"""Files that programs write through memory maps, of which events tell late or never."""
LAST_OF_MAPPED = frozenset(ending[-1] for ending in MAPPED)
"""Asked first of every name: most end otherwise."""

Listing = tuple[list[str], "array[int]"]


class Lister:
    """Owns `always`: the files met of which file system events may not tell, with several names or
    written through maps."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.always: set[RelPath] = set()

    def list(self, fd: int, path: RelPath) -> Listing:
        """Names and stats in the order of the directory, which stays the same while it does."""
        names: list[str] = []
        numbers: list[int] = []
        with self.disk.scandir(fd) as found:
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
                    self.note(path, name, info)
        return names, array("q", numbers)

    def note(self, path: RelPath, name: str, info: os.stat_result) -> None:
        if (info.st_nlink > 1 or name.endswith(MAPPED)) and stat.S_ISREG(info.st_mode):
            self.always.add(join(path, os.fsencode(name)))


def is_same(old: Dir, mode: int, rules: DirRules, listed: Listing) -> bool:
    """Whether a directory, but for those in it, is what is on record."""
    return (
        mode == old.mode
        and rules.fingerprint == old.rules
        and listed[1].tobytes() == old.stats
        and os.fsencode("\0".join(listed[0])) == old.names
    )


def may_be_stale(name: bytes, info: os.stat_result, now_ns: int) -> bool:
    """Whether what was read may change without another time stamp: by a write in the same tick, or
    through a map onto a page that is dirty already."""
    mapped = os.fsdecode(name).endswith(MAPPED) and info.st_ctime_ns >= now_ns - RECENT_NS
    return mapped or is_fresh(info.st_ctime_ns, now_ns)


def numbers_of(info: os.stat_result) -> tuple[int, int, int, int, int]:
    mode = info.st_mode
    if mode & 0o170000 == 0o040000:
        return A_DIRECTORY
    return mode, info.st_ino & MASK, info.st_size, info.st_mtime_ns, info.st_ctime_ns


def append_stat(stats: array[int], info: os.stat_result) -> None:
    stats.extend(numbers_of(info))


def replace_stat(stats: array[int], at: int, info: os.stat_result) -> None:
    stats[at : at + WIDTH] = array("q", numbers_of(info))
