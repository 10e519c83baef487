"""Names of a directory with what stat says of them, as kept on record and compared with it."""

from __future__ import annotations

import os
import re
import stat
import time
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from .beneath import Beneath
from .disk import Disk
from .model import RelPath, join
from .proofs import (
    MAPPED,
    WIDTH,
    Stamp,
    asked_again,
    is_fresh,
    list_names,
    may_come_again,
    numbers_of,
    stamp_of,
)
from .reading import RECENT_NS
from .rules import DirRules
from .worktree import Dir, WorkTree, texts_of

DOUBT = -(1 << 63)
"""As a modification time: never equal to a real one, so that the name is looked at again."""
has_mapped = re.compile(b"(?:%s)(?:\0|$)" % b"|".join(re.escape(m.encode()) for m in MAPPED)).search
"""Among joined names."""


class Listing(NamedTuple):
    """A directory's mode, its names in its own order, joined as on record, and their stats."""

    mode: int
    joined: bytes
    stats: bytes

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

    def believe_times(self, beneath: Beneath) -> bool:
        """For a look at everything: of what lies on the device of the root, if that keeps them."""
        mount = self.disk.mount_that_keeps_times(beneath.fd)
        self.tree.keep_stamps(mount)
        self._device = beneath.identity[0] if mount else None
        return bool(mount)

    def listing(self, fd: int, path: RelPath) -> Listing:
        """Where no name can have come or gone since the last time, those on record are asked for:
        to list them takes a third of the time."""
        info = self.disk.fstat(fd)
        mode = stat.S_IMODE(info.st_mode)
        stamp = b""
        if info.st_dev == self._device:
            stamp = stamp_of(info)
            if self.tree.stamps.get(path) == stamp and (old := self.tree.get(path)) is not None:
                stats = self._asked_again(fd, path, old)
                if stats is not None:
                    return Listing(mode, old.names, stats)
            if may_come_again(info.st_ctime_ns, time.time_ns()):
                stamp = b""
        joined, stats = self._listed_anew(fd, path)
        self.stamps[path] = stamp
        return Listing(mode, joined, stats)

    def _asked_again(self, fd: int, path: RelPath, old: Dir) -> bytes | None:
        again = asked_again(self.disk, fd, old.names, old.stats)
        if again is None:
            return None
        stats, files, found = again
        if has_mapped(old.names) or [1 for info in found if info.st_nlink != 1]:
            for name, info in zip(files, found, strict=True):
                self.note(path, os.fsdecode(name), info)
        return stats

    def _listed_anew(self, fd: int, path: RelPath) -> tuple[bytes, bytes]:
        joined, stats, odd = list_names(self.disk, fd)
        for name, info in odd:
            self.note(path, name, info)
        return joined, stats

    def note(self, path: RelPath, name: str, info: os.stat_result) -> None:
        if (info.st_nlink > 1 or name.endswith(MAPPED)) and stat.S_ISREG(info.st_mode):
            self.always.add(join(path, os.fsencode(name)))


def is_same(old: Dir, rules: DirRules, listed: Listing) -> bool:
    """Whether a directory, but for those in it, is what is on record."""
    return (
        listed.mode == old.mode
        and rules.fingerprint == old.rules
        and listed.stats == old.stats
        and listed.joined == old.names
    )


def may_be_stale(name: bytes, info: os.stat_result, now_ns: int) -> bool:
    """Whether what was read may change without another time stamp: by a write in the same tick, or
    through a map onto a page that is dirty already."""
    mapped = os.fsdecode(name).endswith(MAPPED) and info.st_ctime_ns >= now_ns - RECENT_NS
    return mapped or is_fresh(info.st_ctime_ns, now_ns)


def seems_written(was: Sequence[int], now: Sequence[int]) -> bool:
    """By size and change time, which are kept of a doubted file as well: most of those are looked
    at again only to be found as they were."""
    return (was[2], was[4]) != (now[2], now[4])


def append_stat(stats: array[int], info: os.stat_result) -> None:
    stats.extend(numbers_of(info))


def replace_stat(stats: array[int], at: int, info: os.stat_result) -> None:
    stats[at : at + WIDTH] = array("q", numbers_of(info))
