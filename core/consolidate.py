"""Makes few packs of many by copying their entries, and keeps what goes with that tidy.

Entries are copied as they are; only what was stored as it is, a tree or in haste a file, is
compressed by now.

Knows packs, references and the linear views; not which objects deserve to live (`sweep`).

Order of a consolidation, and what is true if the process dies after each step:
1. views rebuilt: new commits in a small pack of their own, then each view moved in one step;
2. entries copied to a file that nobody sees: a left-over, removed by the next consolidation;
3. pack, then index renamed, directory synced, everything read back: each object is there twice;
4. as one writer among others: loose references folded into packed-refs (both say the same);
5. exclusive lock, for which everybody waits: left-overs removed, and the indexes of the old packs:
   from then on nobody, git included, finds these packs;
6. without a lock again: the packs themselves. A pack without an index is a left-over for the next
   sweep, all of its objects lie in the new pack.
Readers that hold an old pack open read on; others miss it, list the packs again and find the new.
"""

from __future__ import annotations

import os
import time
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .deflate import crc32, is_stored
from .disk import Disk
from .errors import Damaged
from .history import History, workspaces
from .model import Mark, Oid, Snapshot, rfc3339
from .objects import encode_commit
from .packform import (
    KINDS,
    OFS_DELTA,
    REF_DELTA,
    encode_distance,
    parse_distance,
    parse_entry_header,
)
from .packing import HELD_BYTES, TEMPORARY, PackWriter, recompressed
from .packs import HINT, Pack
from .refs import TOP
from .store import Store
from .writer import PACK_OBJECTS, Writer

MANY_PACKS = 64
SMALL_BYTES = 50 * 1000 * 1000
"""A pack below this (and of no more than PACK_OBJECTS) is small; so much in small packs is much."""
PATIENCE = 30.0
"""How long the exclusive lock is waited for: longer than any writer holds the store."""
LONGEST_HEADER = 32
READ_AHEAD = 1 << 18
SIDE_FILES = (".rev", ".bitmap", ".mtimes", ".promisor")
"""What git may have put beside a pack."""
SHOWN = 100


@dataclass(frozen=True, slots=True)
class Consolidated:
    packs_before: int
    packs_after: int
    bytes_freed: int


def needed(store: Store) -> bool:
    """Whether there are too many packs, or too much in small ones, to leave them as they are."""
    try:
        small = small_packs(store)
        held = sum(pack.size() for pack in small)
    except FileNotFoundError:  # somebody else is consolidating right now
        store.reload()
        return False
    many = len(store.packs()) > MANY_PACKS or held > SMALL_BYTES
    return len(small) > 1 and many and has_room(store, small)


def has_room(store: Store, packs: Iterable[Pack]) -> bool:
    """Whether packs can be written anew, and as much is left to others: nobody waits for that."""
    return store.disk.free(store.base) > 2 * sum(pack.size() for pack in packs)


def consolidate(store: Store) -> Consolidated:
    """Folds small packs into one, if the disk has room for it, and loose references into
    packed-refs; drops no object."""
    with store.maintaining():
        return compact(store)


def compact(store: Store) -> Consolidated:
    """As `consolidate`; the caller is `maintaining` the store."""
    rebuild_views(store)
    before = pack_names(store)
    used = bytes_used(store.disk, before.values())
    old = [pack for pack in small_packs(store) if is_whole(pack)]
    fresh = merge(store, old) if len(old) > 1 and has_room(store, old) else None
    fold(store)
    gone = [pack.path for pack in old if pack.path != fresh] if fresh is not None else []
    with store.exclusive(PATIENCE):
        store.sweep_leftovers()
        hide_packs(store, gone)
    unlink_hidden(store, gone)
    store.reload()
    after = pack_names(store)
    left = bytes_used(store.disk, after.values())
    return Consolidated(len(before), len(after), max(0, used - left))


def small_packs(store: Store) -> list[Pack]:
    """The packs that are worth copying; one that somebody keeps on purpose is left alone."""
    return [
        pack
        for pack in store.lasting_packs()
        if pack.count <= PACK_OBJECTS and pack.size() < SMALL_BYTES and not is_kept(pack)
    ]


def is_kept(pack: Pack) -> bool:
    return pack.disk.exists(pack.path + ".keep")


def is_whole(pack: Pack) -> bool:
    """Whether the pack reads back as it was written; else it is never removed."""
    try:
        pack.check()
    except (Damaged, OSError):
        return False
    return True


def pack_names(store: Store) -> dict[str, str]:
    """The paths, without ending, of everything that looks like a pack, readable or not."""
    directory = _place(store)
    with store.disk.scandir(directory) as found:
        names = [entry.name[:-5] for entry in found if entry.name.endswith(".pack")]
    return {name: f"{directory}/{name}" for name in names}


def bytes_used(disk: Disk, paths: Iterable[str]) -> int:
    return sum(
        disk.lstat(path + end).st_size
        for path in paths
        for end in (".pack", ".idx")
        if disk.exists(path + end)
    )


# Copying


def merge(store: Store, packs: Iterable[Pack], wanted: Container[Oid] | None = None) -> str:
    """A new pack, durable and read back, of the wanted objects of others: each of them once.

    In the order in which they were written, as a history is read.
    """
    out = PackWriter(store.disk, _place(store))
    try:
        for pack in sorted(packs, key=_written):
            copy_entries(out, pack, wanted)
        path = out.finish(store.disk.sync_all)
    finally:
        out.drop()
    store.disk.sync_dir(_place(store))
    check_pack(store.disk, path)
    return path


def _written(pack: Pack) -> int:
    return pack.disk.lstat(pack.path + ".pack").st_mtime_ns


def check_pack(disk: Disk, path: str) -> None:
    pack = Pack(disk, path)
    try:
        pack.check()
    finally:
        pack.close()


def copy_entries(out: PackWriter, pack: Pack, wanted: Container[Oid] | None = None) -> None:
    """Appends a pack's entries, most without inflating them; the base of a delta comes with it."""
    source = Source(pack)
    for oid in source.spans:
        if oid in out or (wanted is not None and oid not in wanted):
            continue
        entry = source.raw(oid)
        if entry.base is None:
            out.copy(oid, _rebased(out, oid, entry))
        else:
            _copy_with_base(out, source, oid, entry)


class RawEntry(NamedTuple):
    """An entry as it lies in its pack; of a delta also its base and where the base's name ends."""

    data: bytes
    number: int
    header: int
    base: Oid | None
    body: int


class Source:
    """The entries of one pack by their ids, in the order of the file; owns what was read ahead."""

    def __init__(self, pack: Pack) -> None:
        self.pack = pack
        self.spans = {oid: (start, end) for oid, start, end in pack.spans()}
        self._crcs = pack.crcs()
        self._starts: dict[int, Oid] | None = None
        self._end = pack.size()
        self._part, self._begin = b"", 0

    def size(self, oid: Oid) -> int:
        start, end = self.spans[oid]
        return end - start

    def raw(self, oid: Oid) -> RawEntry:
        """The whole entry, its check sum compared with the index."""
        start, end = self.spans[oid]
        data = self._bytes(start, end)
        if crc32(data) != self._crcs[oid]:
            raise Damaged(f"{self.pack.path}.pack holds damaged bytes for {oid.hex()}.", HINT)
        return self._parse(data, start)

    def _bytes(self, start: int, end: int) -> bytes:
        """Read ahead, as most are asked for in their order; by itself what lies further up, as the
        base of a delta may."""
        if start < self._begin:
            return _read_range(self.pack, start, end)
        if end > self._begin + len(self._part):
            ahead = min(start + READ_AHEAD, self._end)
            self._part, self._begin = _read_range(self.pack, start, max(end, ahead)), start
        at = start - self._begin
        return self._part[at : at + end - start]

    def head(self, oid: Oid) -> tuple[int, Oid | None]:
        """The entry's type, and what it is a delta to, from a look at its first bytes."""
        start, end = self.spans[oid]
        data = _read_range(self.pack, start, min(end, start + LONGEST_HEADER))
        found = self._parse(data, start)
        return found.number, found.base

    def _parse(self, data: bytes, start: int) -> RawEntry:
        try:
            number, _, at = parse_entry_header(data)
        except IndexError as error:
            raise Damaged(f"{self.pack.path}.pack holds an entry without an end.", HINT) from error
        if number in KINDS:
            return RawEntry(data, number, at, None, at)
        if number == REF_DELTA:
            return RawEntry(data, number, at, Oid(data[at : at + 20]), at + 20)
        if number != OFS_DELTA:
            raise Damaged(f"{self.pack.path}.pack holds an entry of type {number}.", HINT)
        distance, body = parse_distance(data, at)
        return RawEntry(data, number, at, self._at(start - distance), body)

    def _at(self, offset: int) -> Oid:
        if self._starts is None:
            self._starts = {start: oid for oid, (start, _) in self.spans.items()}
        if offset not in self._starts:
            raise Damaged(f"{self.pack.path}.pack lacks the base of a delta.", HINT)
        return self._starts[offset]


def _read_range(pack: Pack, start: int, end: int) -> bytes:
    parts: list[bytes] = []
    while start < end:
        part = pack.disk.pread(pack.fd, end - start, start)
        if not part:
            raise Damaged(f"{pack.path}.pack is cut short.", HINT)
        parts.append(part)
        start += len(part)
    return b"".join(parts)


def _copy_with_base(out: PackWriter, source: Source, oid: Oid, entry: RawEntry) -> None:
    """A base is written before its deltas, so that no circle of deltas can come about."""
    waiting = {oid: entry}
    while waiting:
        oid, entry = next(reversed(waiting.items()))
        if entry.base is not None and entry.base not in out:
            if entry.base not in source.spans or entry.base in waiting:
                raise Damaged(f"{source.pack.path}.pack lacks the base of a delta.", HINT)
            waiting[entry.base] = source.raw(entry.base)
            continue
        if oid not in out:
            out.copy(oid, _rebased(out, oid, entry))
        del waiting[oid]


def _is_hasty(entry: RawEntry) -> bool:
    """Whether it was stored as it is, in haste or because it would not shrink."""
    small = len(entry.data) <= HELD_BYTES
    return small and entry.base is None and is_stored(entry.data[entry.body : entry.body + 3])


def _rebased(out: PackWriter, oid: Oid, entry: RawEntry) -> tuple[bytes, ...]:
    """The entry's bytes; the distance to its base is another one in the new pack."""
    if _is_hasty(entry):
        kind, stream = KINDS[entry.number], entry.data[entry.body :]
        try:
            return (recompressed(kind, oid, entry.data[: entry.body], stream),)
        except Damaged:
            return (entry.data,)  # as it is, it is for `verify` to tell of
    if entry.number != OFS_DELTA or entry.base is None:
        return (entry.data,)
    distance = encode_distance(out.size - out.entries[entry.base].offset)
    return entry.data[: entry.header], distance, entry.data[entry.body :]


# Removing


def fold(store: Store) -> None:
    """Many loose references cost time to fold: writers go on, only a deletion has to wait."""
    with store.writing(PATIENCE):
        store.refs.fold()


def hide_packs(store: Store, paths: Sequence[str]) -> None:
    """Only under the exclusive lock: without its index nobody looks for a pack.

    Its name is given up as well: as soon as the lock is free, a writer of the same objects may give
    it to a pack of his own, which must not be taken away from him.
    """
    if paths:
        store.disk.discard(f"{_place(store)}/multi-pack-index")  # a user's git may have made one
        stems = map(os.path.basename, paths)
        ends = (".idx", *SIDE_FILES)
        store.disk.clear_away(_place(store), [stem + end for stem in stems for end in ends])
        for path in paths:
            if store.disk.exists(path + ".pack"):
                store.disk.rename(path + ".pack", _gone(path))


def unlink_hidden(store: Store, paths: Sequence[str]) -> None:
    """What is left of hidden packs, by whoever is `maintaining` the store."""
    if paths:
        store.disk.clear_away(_place(store), [os.path.basename(_gone(path)) for path in paths])


def _gone(path: str) -> str:
    """As left-overs are called, which the next one who keeps up removes if this process dies."""
    head, _, name = path.rpartition("/")
    return f"{head}/{TEMPORARY}{name}"


def _place(store: Store) -> str:
    return f"{store.base}/objects/pack"


# Views: one linear chain per workspace, for `git log`


def rebuild_views(store: Store) -> None:
    """Lets each view tell the retained snapshots of its workspace; what is unchanged stays."""
    for workspace in workspaces(store):
        with store.writing(PATIENCE) as writer:
            tip = _chain(writer, History(store, workspace))
            if tip is not None and tip != _view(store, workspace):
                writer.settle(sync=True)
                _move_view(store, workspace, tip)


def view_ref(workspace: str) -> str:
    return f"{TOP}/{workspace}/view"


def _view(store: Store, workspace: str) -> Oid | None:
    try:
        return store.refs.read(view_ref(workspace))
    except Damaged:
        return None


def _chain(writer: Writer, history: History) -> Oid | None:
    """Adds one commit per complete snapshot, each the child of the one before."""
    titles: dict[Oid, list[str]] = {}
    for mark in history.marks():
        titles.setdefault(mark.snapshot, []).append(_title(mark))
    tip: Oid | None = None
    for snapshot in history.snapshots():
        if snapshot.partial or not writer.store.has(snapshot.files):
            continue
        message = _message(snapshot, titles.get(snapshot.id, []))
        tip = writer.add("commit", encode_commit(snapshot.files, snapshot.time_ns, message, tip))
    return tip


def _title(mark: Mark) -> str:
    turn = f" {mark.turn}" if mark.turn is not None else ""
    label = "".join(c if c.isprintable() else " " for c in mark.label[:SHOWN])
    return f"{mark.kind}{turn}: {label}" if label else f"{mark.kind}{turn}"


def _message(snapshot: Snapshot, titles: list[str]) -> bytes:
    first, *others = titles or [f"{snapshot.changed} changed"]
    body = "".join(f"{title}\n" for title in others)
    text = f"{rfc3339(snapshot.time_ns)} {first}\n\n{body}Snapshot: {snapshot.id.hex()}\n"
    return text.encode("utf-8", "replace")


def _move_view(store: Store, workspace: str, tip: Oid) -> None:
    """Replaced in one step, and never made beside its name: every file there is a reference."""
    path = f"{store.base}/{view_ref(workspace)}"
    part = f"{store.base}/turnmark/tmp/view-{os.getpid()}-{time.monotonic_ns()}"
    try:
        store.disk.make_dirs(os.path.dirname(path))
        store.disk.create(part, tip.hex().encode() + b"\n", sync=True)
        store.disk.put_in_place(part, path)
    finally:
        store.disk.discard(part)
