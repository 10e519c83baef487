"""Which paths were changed between two snapshots, or until now, and by whom.

Knows the history of one workspace, and is told how to read the state of a snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from .attribution import Interval, Makers, by_path, intervals
from .history import History, read_snapshot
from .model import Maker, Oid, RelPath, Snapshot
from .plan import State, changed_paths


@dataclass
class Edits:
    """One workspace's history, as it was when first asked for; `now` is how it is, if known."""

    history: History
    state_of: Callable[[Snapshot], State]
    now: State | None = None

    @cached_property
    def makers(self) -> Makers:
        return Makers(list(self.history.marks()))

    def by_path(self, since: Oid, until: Oid | None) -> dict[RelPath, tuple[Maker, ...]]:
        """Who changed each path, in order of time; from the older to the newer of the two."""
        old, new = self._seq(since), self._seq(until) if until else None
        if new is not None and new < old:
            old, new = new, old
        return by_path(self._between(old, new), self._differing)

    def by_person(self, since: Oid) -> frozenset[RelPath]:
        """What the person, as far as can be told, changed from a snapshot until now."""
        own = (one for one in self._between(self._seq(since), None) if one.maker.may_be_person)
        return frozenset(by_path(own, self._differing))

    def _seq(self, oid: Oid) -> int:
        return read_snapshot(self.history.store, oid).seq

    def _between(self, old: int, new: int | None) -> list[Interval]:
        return intervals(self.makers, self._whole(old, new), old, new)

    def _whole(self, old: int, new: int | None) -> dict[int, Oid]:
        """The complete snapshots; the others hold a few paths and say nothing of the rest."""
        ids = self.history.snapshot_ids
        asked = {n: oid for n, oid in ids.items() if old <= n and (new is None or n <= new)}
        store = self.history.store
        return {n: oid for n, oid in asked.items() if not read_snapshot(store, oid).partial}

    def _differing(self, old: Oid, new: Oid | None) -> Iterable[RelPath]:
        before, after = self._state(old), self._state(new)
        return changed_paths(before, after) if before and after else ()

    def _state(self, oid: Oid | None) -> State | None:
        if oid is None:
            return self.now
        return self.state_of(read_snapshot(self.history.store, oid))
