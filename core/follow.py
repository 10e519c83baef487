"""What became of one path over all snapshots of a workspace, followed over its renames.

Reads the history once and each tree once; knows nothing of points, nor of who asks. A file is
followed where a snapshot has it and the one before has not, and what went in the same step was
the same by its content (`renames`): backwards to the name it had, forwards to the one it got.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest

from .about import decode_about
from .diff import diff_trees
from .errors import Damaged
from .history import History
from .model import EMPTY_TREE, LINK, TREE, Entry, GapReason, Oid, RelPath, Snapshot
from .objects import child_in
from .renames import Moves, find_moves
from .store import Store


@dataclass(frozen=True, slots=True)
class Version:
    """How a path was from one snapshot until the next version; without an entry it was absent.

    `path` is what it was called; the names it had before and got then are those of that snapshot.
    """

    snapshot: Snapshot
    path: RelPath
    entry: Entry | None
    mode: int | None = None
    gap: GapReason | None = None
    renamed_from: RelPath | None = None
    renamed_to: RelPath | None = None

    def same(self, other: Version) -> bool:
        return (self.path, self.entry, self.mode, self.gap) == (
            other.path,
            other.entry,
            other.mode,
            other.gap,
        )

    @property
    def is_missing(self) -> bool:
        """Whether it was not there, rather than not looked at."""
        return self.entry is None and self.gap is None


def history_of(history: History, path: RelPath, *, renames: bool = True) -> list[Version]:
    """The versions of a path, newest first; empty if no snapshot ever knew of it."""
    return Follower(history, renames=renames).versions(path)


class Follower:
    """One workspace's snapshots, read once, and what moved between them."""

    def __init__(self, history: History, *, renames: bool = True) -> None:
        self.history = history
        self.renames = renames
        self._trail = _Trail(history.store)
        self._moves: dict[tuple[Oid, Oid], Moves] = {}

    @cached_property
    def snapshots(self) -> list[Snapshot]:
        """Newest first."""
        return [one for one in self.history.snapshots() if not one.is_planned][::-1]

    def versions(self, path: RelPath) -> list[Version]:
        """Newest first; empty if no snapshot ever knew of it."""
        out: list[Version] = []
        known: Version | None = None
        for found in reversed(list(self._backwards(path))):
            if found.snapshot.partial:  # holds a few paths that a rollback met; others say nothing
                out += [found] if found.entry else []
            elif not (found.same(known) if known else found.is_missing):
                known = found
                out.append(found)
        return out[::-1]

    def name_at(self, path: RelPath, seq: int) -> RelPath:
        """What it was called that is, or was last, at this path: at the snapshot of a number."""
        for found in self._backwards(path):
            if found.snapshot.seq <= seq:
                return found.path
            path = found.path
        return path

    def name_since(self, path: RelPath, seq: int | None = None) -> RelPath:
        """What it was called last, or at the snapshot of a number, that was once at this path."""
        later: list[Snapshot] = []  # than the one looked at, the nearest last
        for snapshot in self.snapshots:
            if snapshot.partial or (seq is not None and snapshot.seq > seq):
                continue
            if self._is_there(path, snapshot):
                return self._forwards(path, [*later, snapshot])
            later.append(snapshot)
        return path

    def _forwards(self, path: RelPath, snapshots: list[Snapshot]) -> RelPath:
        old = snapshots.pop()
        while snapshots:
            new = snapshots.pop()
            if not self._is_there(path, new):
                goal = self._goal(old, new, path)
                if goal is None:
                    return path
                path = goal
            old = new
        return path

    def _is_there(self, path: RelPath, snapshot: Snapshot) -> bool:
        found = self._version(snapshot, path)
        return found is not None and not found.is_missing

    def _backwards(self, path: RelPath) -> Iterator[Version]:
        """How it was in each snapshot, newest first; in partial ones, too, which say nothing of
        what was before or after them."""
        newer: Version | None = None
        between: list[Version] = []
        for snapshot in self.snapshots:
            found = self._version(snapshot, path)
            if found is None:
                continue
            if snapshot.partial:
                between.append(found)
                continue
            if newer is not None:
                newer, found = self._joined(newer, found)
                path = found.path
                yield newer
            yield from between
            newer, between = found, []
        yield from (newer, *between) if newer is not None else between

    def _joined(self, newer: Version, older: Version) -> tuple[Version, Version]:
        """Two neighbours; where it came or went in between, with where from and where to."""
        old, new, path = older.snapshot, newer.snapshot, newer.path
        if newer.entry and older.is_missing and (origin := self._origin(old, new, path)):
            before = self._version(old, origin)
            if before is not None:
                return replace(newer, renamed_from=origin), before
        if older.entry and newer.is_missing:
            return replace(newer, renamed_to=self._goal(old, new, path)), older
        return newer, older

    def _version(self, snapshot: Snapshot, path: RelPath) -> Version | None:
        try:
            return self._trail.version(snapshot, path)
        except Damaged as error:
            self.history.damage.append(error.message)
            return None

    def _origin(self, old: Snapshot, new: Snapshot, path: RelPath) -> RelPath | None:
        moves = self._moved(old, new)
        return moves.origin(path, lambda top: self._is_there(top, new)) if moves else None

    def _goal(self, old: Snapshot, new: Snapshot, path: RelPath) -> RelPath | None:
        moves = self._moved(old, new)
        return moves.goal(path, lambda top: self._is_there(top, old)) if moves else None

    def _moved(self, old: Snapshot, new: Snapshot) -> Moves | None:
        if not self.renames:
            return None
        pair = old.files, new.files
        if pair not in self._moves:
            store = self.history.store
            try:
                changes = list(diff_trees(store.tree, *pair))
                self._moves[pair] = find_moves(changes, lambda entry: store.blob(entry.oid))
            except Damaged as error:
                self.history.damage.append(error.message)
                return None
        return self._moves[pair]


@dataclass
class _Way:
    """The names of a path; the trees that were met along it last, and what was at its end."""

    names: list[bytes]
    met: list[Oid] = field(default_factory=list)
    end: Entry | None = None


class _Trail:
    """Looks one path up in many trees; below one that it was in last it need not look again."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ways: dict[RelPath, _Way] = {}
        self._facts: dict[tuple[Oid, int, RelPath], tuple[int | None, GapReason | None, bool]] = {}

    def version(self, snapshot: Snapshot, path: RelPath) -> Version:
        entry = self._entry(snapshot.files, path)
        mode, gap, empty = self._about(snapshot.about, entry.mode if entry else TREE, path)
        if entry is None and empty:
            entry = Entry(TREE, EMPTY_TREE)
        return Version(snapshot, path, entry, mode if entry else None, gap)

    def _entry(self, tree: Oid, path: RelPath) -> Entry | None:
        if path not in self._ways:
            self._ways[path] = _Way(path.split(b"/") if path else [])
        way = self._ways[path]
        found: Entry | None = Entry(TREE, tree)
        met: list[Oid] = []
        for name, before in zip_longest(way.names, way.met):
            if found is None or found.mode != TREE:
                found = None
                break
            if found.oid == before:
                way.met[: len(met)] = met
                return way.end
            met.append(found.oid)
            found = child_in(self._store.tree(found.oid), name)
        way.met, way.end = met, found
        return found

    def _about(
        self, oid: Oid, kind: int, path: RelPath
    ) -> tuple[int | None, GapReason | None, bool]:
        key = (oid, kind, path)
        if key not in self._facts:
            about = decode_about(self._store.blob(oid))
            mode = None if kind == LINK else about.mode(path, kind)
            self._facts[key] = mode, about.gap_at(path), path in about.empty
        return self._facts[key]
