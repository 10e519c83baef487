"""When a burst of changes is over: a pure debounce on a clock that is handed in.

Knows paths and instants; not where the paths come from or what is done with them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from core.model import ROOT, RelPath, parents

MANY_IN_ONE_DIRECTORY = 500
MANY_IN_ALL = 50_000


@dataclass(frozen=True, slots=True)
class Dirty:
    """Where to look: single paths, whole subtrees, or (`lost`) everywhere."""

    files: frozenset[RelPath] = frozenset()
    trees: frozenset[RelPath] = frozenset()
    lost: bool = False

    def __bool__(self) -> bool:
        return bool(self.files or self.trees or self.lost)

    def __or__(self, other: Dirty) -> Dirty:
        return Dirty(self.files | other.files, self.trees | other.trees, self.lost or other.lost)

    def paths(self) -> list[RelPath] | None:
        """The paths to look at, crowded directories as one; None for a full look."""
        if self.lost or ROOT in self.trees or len(self.files) + len(self.trees) > MANY_IN_ALL:
            return None
        crowded = _crowded(self.files)
        tops = self.trees | crowded
        if ROOT in tops:
            return None
        single = {f for f in self.files if not tops.intersection((f, *parents(f)))}
        return sorted(single | _topmost(tops))


def _crowded(files: Iterable[RelPath]) -> frozenset[RelPath]:
    """Directories with so many dirty names that one look at the directory is cheaper."""
    counts: dict[RelPath, int] = {}
    for path in files:
        parent = RelPath(path.rpartition(b"/")[0])
        counts[parent] = counts.get(parent, 0) + 1
    return frozenset(path for path, count in counts.items() if count > MANY_IN_ONE_DIRECTORY)


def _topmost(trees: frozenset[RelPath]) -> set[RelPath]:
    return {tree for tree in trees if trees.isdisjoint(parents(tree))}


@dataclass(slots=True)
class Burst:
    """Owns the changes of one burst: closed `quiet` after the last, or `longest` after the first.

    The longest wait is counted from the first change and nothing moves it: a writer that never
    pauses gets a snapshot every `longest` seconds. What is too much to be looked at one by one is
    not remembered one by one either.
    """

    quiet: float
    longest: float
    files: set[RelPath] = field(default_factory=set)
    trees: set[RelPath] = field(default_factory=set)
    lost: bool = False
    first: float | None = None
    last: float = 0.0

    def __len__(self) -> int:
        """How many places there are to look at."""
        return len(self.files) + len(self.trees) + self.lost

    def add(self, dirty: Dirty, now: float) -> None:
        if not dirty:
            return
        self.files |= dirty.files
        self.trees |= dirty.trees
        self.lost |= dirty.lost
        if len(self) > MANY_IN_ALL:
            self.files, self.trees, self.lost = set(), set(), True
        if self.first is None:
            self.first = self.last = now
        self.last = max(self.last, now)

    def due(self) -> float | None:
        """The instant at which this burst is over; None while there is none."""
        if self.first is None:
            return None
        return min(self.last + self.quiet, self.first + self.longest)

    def take(self) -> Dirty:
        dirty = Dirty(frozenset(self.files), frozenset(self.trees), self.lost)
        self.files, self.trees, self.lost, self.first = set(), set(), False, None
        return dirty
