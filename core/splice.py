"""Records of directories in which only files and trees on record have new contents.

Most changes are of that kind, and most of such a record stays as it was: the new ids take the place
of the old ones. Where anything else is new, or may be, there is no answer here: then every name is
looked at by itself (`scan`).
"""

from __future__ import annotations

import os
import stat
import time
from array import array
from typing import NamedTuple

from .beneath import Beneath
from .listing import (
    DOUBT,
    Lister,
    Listing,
    may_be_stale,
    replace_stat,
    seems_written,
)
from .model import Entry, GapReason, Oid, RelPath, join
from .objects import Sink, child_in, hash_object
from .packing import LARGE_BYTES
from .proofs import WIDTH, numbers_of
from .reading import NotAFile, read_stable
from .rules import DirRules, RuleSet
from .worktree import Dir

SPLICE_MOST = 1 << 20
"""Bytes to go over: each new content in a directory is looked for in the whole of its tree."""


class Outcome(NamedTuple):
    """What a directory turned out to be, for the one above it."""

    path: RelPath
    old: Dir | None
    left_out: GapReason | None
    found: Dir


class Spliced(NamedTuple):
    """A directory with new contents, and of how many files."""

    found: Dir
    changed: int


class Splicer:
    """Owns nothing; reads files of one look and hands their contents on."""

    def __init__(self, beneath: Beneath, sink: Sink, rules: RuleSet, lister: Lister) -> None:
        self.beneath = beneath
        self.disk = beneath.disk
        self.sink = sink
        self.max_file_size = rules.max_file_size
        self.lister = lister

    def may_take_long(self, path: RelPath, names: set[bytes]) -> bool:
        """Whether one of the named files was large: what another thread has to do with it is best
        begun first."""
        old = self.lister.tree.get(path)
        sizes = array("q", old.stats)[2::WIDTH] if old is not None else array("q")
        if old is None or max(sizes, default=0) < LARGE_BYTES:
            return False
        known = zip(old.names.split(b"\0"), sizes, strict=True)
        return any(size >= LARGE_BYTES and name in names for name, size in known)

    def after_listing(
        self, path: RelPath, rules: DirRules, old: Dir, listed: Listing
    ) -> Spliced | None:
        """Of a directory whose names are as on record: with the contents of what differs."""
        if not old.raw or rules.fingerprint != old.rules:
            return None
        if listed.joined != old.names:
            return None
        was, now = array("q", old.stats), array("q", listed.stats)
        differing = {
            os.fsencode(name)
            for name, at in zip(listed.names, range(0, len(now), WIDTH), strict=True)
            if was[at : at + WIDTH] != now[at : at + WIDTH]
        }
        if not differing:  # then it is its mode that is another
            return None
        return self.with_contents(path, rules, old, differing, {})

    def with_contents(
        self,
        path: RelPath,
        rules: DirRules,
        old: Dir,
        names: set[bytes],
        below: dict[bytes, Outcome],
    ) -> Spliced | None:
        """With those of the named files, and with the new trees of directories."""
        if (len(names) + len(below)) * len(old.raw) > SPLICE_MOST:
            return None
        raw = _with_trees(old.raw, below) if below else old.raw
        if not raw:
            return None
        if not names:
            return Spliced(_with(old, raw, old.stats), 0)
        try:
            return self._with_files(path, rules, old, raw, names)
        except (OSError, NotAFile):
            return None

    def _with_files(
        self, path: RelPath, rules: DirRules, old: Dir, raw: bytes, names: set[bytes]
    ) -> Spliced | None:
        fd = self.beneath.dir(path)
        if old.gaps or stat.S_IMODE(self.disk.fstat(fd).st_mode) != old.mode:
            return None
        stats, changed = array("q", old.stats), 0
        places = {name: place * WIDTH for place, name in enumerate(old.names.split(b"\0"))}
        for name in names:
            at, entry = places.get(name), child_in(raw, name)
            if at is None or entry is None or rules.verdict(name, False) != "capture":
                return None
            new = self._reread(path, fd, name, entry, stats, at)
            was = b"%o %s\0%s" % (entry.mode, name, entry.oid)
            if new is None or raw.count(was) != 1:
                return None
            if new != entry.oid:
                raw = raw.replace(was, was[:-20] + new)
                changed += 1
        return Spliced(_with(old, raw, stats.tobytes()), changed)

    def _reread(
        self, path: RelPath, fd: int, name: bytes, entry: Entry, stats: array[int], at: int
    ) -> Oid | None:
        """The contents of a file that is what it was but for them, if they hold still."""
        info, cap = self.disk.lstat(name, fd), self.max_file_size
        self.lister.note(path, os.fsdecode(name), info)
        if info.st_mode != stats[at] or not stat.S_ISREG(info.st_mode) or 0 < cap < info.st_size:
            return None
        was, now = stats[at : at + WIDTH], array("q", numbers_of(info))
        if now == was:
            return entry.oid
        begun = time.time_ns()
        found = read_stable(self.disk, fd, name)
        if found.torn or found.stat.st_mode != info.st_mode or 0 < cap < len(found.data):
            return None
        replace_stat(stats, at, found.stat)
        if found.held:
            self.lister.always.add(join(path, name))
        if found.held or may_be_stale(name, found.stat, begun):
            stats[at + 3] = DOUBT
        oid = self.sink.blob_id(found.data, is_new=seems_written(was, now))
        if oid != entry.oid:
            self.sink.add("blob", found.data, oid)
        return oid


def _with(old: Dir, raw: bytes, stats: bytes) -> Dir:
    if raw == old.raw:
        return old if stats == old.stats else old._replace(stats=stats)
    return old._replace(oid=hash_object("tree", raw), raw=raw, stats=stats)


def _with_trees(raw: bytes, below: dict[bytes, Outcome]) -> bytes | None:
    """The tree with the new trees of its directories."""
    for name, (_, old, _, found) in below.items():
        if old is None or not old.raw or not found.raw:
            return None
        known = b"40000 %s\0%s" % (name, old.oid)
        if raw.count(known) != 1:
            return None  # also part of another name, with the same tree
        raw = raw.replace(known, known[:-20] + found.oid)
    return raw
