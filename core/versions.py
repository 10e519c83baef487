"""When a name or a text was there, over all snapshots of one workspace.

Reads the history, each tree and each content once; knows nothing of points, nor of who asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from .about import decode_about
from .diff import tree_changes
from .errors import BadInput, Damaged
from .gitignore import Pattern, parse_patterns
from .history import History
from .lines import is_binary
from .model import (
    EMPTY_TREE,
    EXEC,
    FILE,
    TREE,
    Entry,
    Oid,
    RelPath,
    Snapshot,
    parse_path,
)

Matches = Callable[[RelPath, Entry], bool]


@dataclass(frozen=True, slots=True)
class Line:
    """Where a text was found: counted from 1, and without its end."""

    number: int
    text: bytes


@dataclass(frozen=True, slots=True)
class Sighting:
    """A path that matched: the snapshots that had it first and last, and how it was at the last."""

    path: RelPath
    entry: Entry
    first: Snapshot
    last: Snapshot
    still: bool
    line: Line | None = None


def find(history: History, pattern: str) -> list[Sighting]:
    """The files and directories whose path matches a glob in some snapshot, ordered by path.

    The glob reads like a line of a .gitignore: a name fits anywhere, a slash ties it to the root.
    """
    return list(_Search(history, _glob(pattern), empties=True).run())


def _glob(text: str) -> Matches:
    escaped = "\\" + text if text.startswith(("#", "!")) else text
    patterns = parse_patterns((escaped,))
    if not patterns:
        raise BadInput(f"'{text}' matches nothing.", "It is read like a line of a .gitignore.")
    return lambda path, entry: any(_fits(one, path, entry) for one in patterns)


def _fits(pattern: Pattern, path: RelPath, entry: Entry) -> bool:
    head, slash, name = path.rpartition(b"/")
    if pattern.dir_only and entry.mode != TREE:
        return False
    if pattern.places is not None and not pattern.places.fullmatch(head + slash):
        return False
    return bool(pattern.matches(name))


def find_text(history: History, text: str) -> list[Sighting]:
    """The files whose content had a text in some snapshot, ordered by path; binary ones skipped."""
    if not text:
        raise BadInput("There is no text to look for.", "Name one: `turnmark find --text TEXT`.")
    contents = _Contents(history, parse_path(text))
    return list(_Search(history, contents.has, line=contents.line).run())


class _Contents:
    """The first line with the text, by content."""

    def __init__(self, history: History, needle: bytes) -> None:
        self._history = history
        self._needle = needle
        self._lines: dict[Oid, Line | None] = {}

    def has(self, _path: RelPath, entry: Entry) -> bool:
        return entry.mode in (FILE, EXEC) and self.line(entry) is not None

    def line(self, entry: Entry) -> Line | None:
        if entry.oid not in self._lines:
            self._lines[entry.oid] = self._read(entry.oid)
        return self._lines[entry.oid]

    def _read(self, oid: Oid) -> Line | None:
        try:
            data = self._history.store.blob(oid)
        except Damaged as error:
            self._history.damage.append(error.message)
            return None
        at = data.find(self._needle)
        if at < 0 or is_binary(data):
            return None
        begin = data.rfind(b"\n", 0, at) + 1
        return Line(data.count(b"\n", 0, at) + 1, data[begin:].partition(b"\n")[0])


def _no_line(_entry: Entry) -> Line | None:
    return None


class _Search:
    """Walks from snapshot to snapshot by what differs, and notes when matching paths came, went."""

    def __init__(
        self,
        history: History,
        matches: Matches,
        *,
        empties: bool = False,
        line: Callable[[Entry], Line | None] = _no_line,
    ) -> None:
        self._history = history
        self._store = history.store
        self._matches = matches
        self._empties = empties
        self._line = line
        self._first: dict[RelPath, Snapshot] = {}
        self._last: dict[RelPath, Snapshot] = {}
        self._entries: dict[RelPath, Entry] = {}
        self._here: set[RelPath] = set()
        self._empty_dirs: dict[Oid, frozenset[RelPath]] = {}

    def run(self) -> Iterator[Sighting]:
        previous: Snapshot | None = None
        for snapshot in self._history.snapshots():
            if snapshot.is_planned:
                continue
            try:
                came, went = self._differences(None if snapshot.partial else previous, snapshot)
            except Damaged as error:
                self._history.damage.append(error.message)
                continue
            self._note(came, snapshot)
            if snapshot.partial:  # holds a few paths that a rollback met; others say nothing
                self._last.update(dict.fromkeys(came, snapshot))
                continue
            if previous is not None:
                self._last.update(dict.fromkeys(went - came.keys(), previous))
            self._here = (self._here - went) | came.keys()
            previous = snapshot
        if previous is not None:
            self._last.update(dict.fromkeys(self._here, previous))
        yield from (self._sighting(path) for path in sorted(self._first))

    def _note(self, came: dict[RelPath, Entry], snapshot: Snapshot) -> None:
        for path, entry in came.items():
            self._first.setdefault(path, snapshot)
            self._entries[path] = entry

    def _sighting(self, path: RelPath) -> Sighting:
        entry, still = self._entries[path], path in self._here
        first, last = self._first[path], self._last[path]
        return Sighting(path, entry, first, last, still, self._line(entry))

    def _differences(
        self, old: Snapshot | None, new: Snapshot
    ) -> tuple[dict[RelPath, Entry], set[RelPath]]:
        """The matching paths that a snapshot has anew or otherwise, and those that it lost."""
        read = self._store.tree
        came: dict[RelPath, Entry] = {}
        went: set[RelPath] = set()
        for change in tree_changes(read, read, old.files if old else EMPTY_TREE, new.files):
            if change.old is not None and self._matches(change.path, change.old):
                went.add(change.path)
            if change.new is not None and self._matches(change.path, change.new):
                came[change.path] = change.new
        if self._empties:
            self._compare_empty(old, new, came, went)
        return came, went

    def _compare_empty(
        self,
        old: Snapshot | None,
        new: Snapshot,
        came: dict[RelPath, Entry],
        went: set[RelPath],
    ) -> None:
        """Directories without files are in no tree."""
        nothing = Entry(TREE, EMPTY_TREE)
        before, after = self._empty(old), self._empty(new)
        went.update(path for path in before - after if self._matches(path, nothing))
        fresh = (path for path in after - before if self._matches(path, nothing))
        came.update(dict.fromkeys(fresh, nothing))

    def _empty(self, snapshot: Snapshot | None) -> frozenset[RelPath]:
        if snapshot is None:
            return frozenset()
        if snapshot.about not in self._empty_dirs:
            about = decode_about(self._store.blob(snapshot.about))
            self._empty_dirs[snapshot.about] = about.empty
        return self._empty_dirs[snapshot.about]
