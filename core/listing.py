"""Names of a directory with what stat says of them, as kept on record and compared with it."""

from __future__ import annotations

import os
import re
import stat
import struct
import time
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .beneath import Beneath
from .disk import Disk
from .model import RelPath, join
from .reading import RECENT_NS, is_fresh
from .rules import DirRules
from .worktree import Dir, WorkTree, texts_of

WIDTH = 5
"""Numbers kept of a name's stat: mode, inode, size, modification and change time."""
A_DIRECTORY = (stat.S_IFDIR, 0, 0, 0, 0)
"""All that is kept of one, which spares its stat: whoever enters it sees its mode and contents."""
_DIRECTORY = array("q", A_DIRECTORY)
DOUBT = -(1 << 63)
"""As a modification time: never equal to a real one, so that the name is looked at again."""
MASK = (1 << 63) - 1
MAPPED = (".db", ".sqlite", ".sqlite3", ".db3", "-shm", "-wal", ".mdb", ".lmdb")
"""Files that programs write through memory maps, of which events tell late or never."""
_has_mapped = re.compile(
    b"(?:%s)(?:\0|$)" % b"|".join(re.escape(m.encode()) for m in MAPPED)
).search
"""Among joined names."""
LAST_OF_MAPPED = frozenset(ending[-1] for ending in MAPPED)
"""Asked first of every name: most end otherwise."""

_STAMP = struct.Struct("<QQq").pack
Stamp = bytes
"""Device, inode and change time of a directory that was listed: while they are the same, so are its
names, and whether each is one of a directory. (Not where a key comes or goes that encrypts them:
then one of the names is gone.)"""
SECOND_NS = 1_000_000_000


class Listing(NamedTuple):
    """A directory's mode, its names in its own order, joined as on record, and their stats."""

    mode: int
    joined: bytes
    stats: array[int]

    @property
    def names(self) -> list[str]:
        return texts_of(self.joined)


class Lister:
    """Owns `always`, the files met of which file system events may not tell, with several names or
    written through maps; and `stamps` of what was listed anew."""

    def __init__(self, disk: Disk, tree: WorkTree) -> None:
        self.disk = disk
        self.tree = tree
        self.always: set[RelPath] = set()
        self.stamps: dict[RelPath, Stamp] = {}
        """Of each directory that was listed; empty where its time is not to be believed."""
        self._device: int | None = None

    def believe_times(self, beneath: Beneath) -> None:
        """For a look at everything: what lies on the device of the root, if that keeps them."""
        mount = self.disk.mount_that_keeps_times(beneath.fd)
        self.tree.keep_stamps(mount)
        self._device = beneath.identity[0] if mount else None

    def listing(self, fd: int, path: RelPath) -> Listing:
        """Where no name can have come or gone since the last time, those on record are asked for:
        to list them takes a third of the time."""
        info = self.disk.fstat(fd)
        mode = stat.S_IMODE(info.st_mode)
        stamp = b""
        if info.st_dev == self._device:
            stamp = _STAMP(info.st_dev, info.st_ino, info.st_ctime_ns)
            if self.tree.stamps.get(path) == stamp and (old := self.tree.get(path)) is not None:
                stats = self._stats_again(fd, path, old)
                if stats is not None:
                    return Listing(mode, old.names, stats)
            if _may_come_again(info.st_ctime_ns, time.time_ns()):
                stamp = b""
        found = self._listed_anew(fd, path)
        self.stamps[path] = stamp
        return Listing(mode, *found)

    def _stats_again(self, fd: int, path: RelPath, old: Dir) -> array[int] | None:
        """None if a name is gone after all, or is a directory now."""
        before = array("q", old.stats)
        modes = before[::WIDTH]
        names = old.names.split(b"\0") if modes else []
        files = names
        if stat.S_IFDIR in modes:
            files = [name for name, mode in zip(names, modes, strict=True) if mode != stat.S_IFDIR]
        try:
            found = self.disk.lstat_all(files, fd)
            if names and not files:
                self.disk.lstat(names[0], fd)
        except FileNotFoundError:
            return None
        if _has_mapped(old.names) or [1 for info in found if info.st_nlink != 1]:
            for name, info in zip(files, found, strict=True):
                self.note(path, os.fsdecode(name), info)
        stats = _numbers(found)
        if files is not names:
            stats = _with_directories(modes, stats)
        if stats != before and any(stat.S_ISDIR(info.st_mode) for info in found):
            return None
        return stats

    def _listed_anew(self, fd: int, path: RelPath) -> tuple[bytes, array[int]]:
        """In the order of the directory, which stays the same while it does."""
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
        return os.fsencode("\0".join(names)), array("q", numbers)

    def note(self, path: RelPath, name: str, info: os.stat_result) -> None:
        if (info.st_nlink > 1 or name.endswith(MAPPED)) and stat.S_ISREG(info.st_mode):
            self.always.add(join(path, os.fsencode(name)))


def _may_come_again(changed_ns: int, now_ns: int) -> bool:
    """Whether another change could bear the same change time: within the same tick, or where times
    are of whole seconds and the clock is set back."""
    return changed_ns % SECOND_NS == 0 or is_fresh(changed_ns, now_ns)


def _numbers(found: Iterable[os.stat_result]) -> array[int]:
    return array(
        "q",
        [
            number
            for i in found
            for number in (i.st_mode, i.st_ino & MASK, i.st_size, i.st_mtime_ns, i.st_ctime_ns)
        ],
    )


def _with_directories(modes: array[int], stats: array[int]) -> array[int]:
    """The stats of files, and where the modes say so what is kept of a directory."""
    out, last = array("q"), 0
    places = [place for place, mode in enumerate(modes) if mode == stat.S_IFDIR]
    for before, place in enumerate(places):
        at = (place - before) * WIDTH
        out += stats[last:at]
        out += _DIRECTORY
        last = at
    return out + stats[last:]


def is_same(old: Dir, rules: DirRules, listed: Listing) -> bool:
    """Whether a directory, but for those in it, is what is on record."""
    return (
        listed.mode == old.mode
        and rules.fingerprint == old.rules
        and listed.stats.tobytes() == old.stats
        and listed.joined == old.names
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


def seems_written(was: Sequence[int], now: Sequence[int]) -> bool:
    """By size and change time, which are kept of a doubted file as well: most of those are looked
    at again only to be found as they were."""
    return (was[2], was[4]) != (now[2], now[4])


def append_stat(stats: array[int], info: os.stat_result) -> None:
    stats.extend(numbers_of(info))


def replace_stat(stats: array[int], at: int, info: os.stat_result) -> None:
    stats[at : at + WIDTH] = array("q", numbers_of(info))
