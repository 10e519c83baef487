"""turnmark behind the same verbs: its recorder as the service keeps it, and its own rollback."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

from core.consolidate import consolidate
from core.deep import deep_repack
from core.diff import diff_trees, entry_at
from core.history import MarkSpec
from core.keeping import Policy
from core.model import Oid, RelPath
from core.retention import prune
from core.rollback import Request, rollback
from core.store import Store
from core.timeline import Timeline

from ..contenders import Turnmark, Wrong
from .peer import Keeper, State


class Ours(Keeper):
    """Makes a point, durably, of each state; told what changed it looks at nothing else."""

    name: ClassVar[str] = "turnmark"

    def __init__(self, place: str, root: str) -> None:
        super().__init__(place, root)
        self.turnmark = Turnmark(f"{place}/store", root)

    def make_ready(self) -> None:
        self.turnmark.make_ready()

    def take(self, changed: Iterable[RelPath] | None = None) -> State:
        taken = self.turnmark.recorder.take(changed, MarkSpec("manual"), always_mark=False)
        return taken.snapshot.id.hex()

    def read(self, state: State, path: RelPath) -> bytes | None:
        """By the id alone, out of a store that knows nothing yet."""
        store = self._store()
        entry = entry_at(store.tree, self._files(self._timeline(store), state), path)
        return store.blob(entry.oid) if entry else None

    def _timeline(self, store: Store) -> Timeline:
        return Timeline(store, self.turnmark.root.id)

    def _files(self, timeline: Timeline, state: State) -> Oid:
        snapshot = timeline.snapshot(timeline.resolve(state, time.time_ns()).snapshot)
        if snapshot is None:
            raise Wrong(f"There is no snapshot {state}.")
        return snapshot.files

    def differ(self, old: State, new: State) -> int:
        store = self._store()
        timeline = self._timeline(store)
        trees = self._files(timeline, old), self._files(timeline, new)
        return sum(1 for _ in diff_trees(store.tree, *trees))

    def _store(self) -> Store:
        return Store.open(self.turnmark.base)

    def restore(self, state: State) -> None:
        recorder = self.turnmark.recorder
        target = Timeline(recorder.store, self.turnmark.root.id).resolve(state, time.time_ns())
        request = Request(target.snapshot, target.seq, "bench")
        found = rollback(recorder, request)
        if found.outcome == "refused":  # so much changes that it wants the plan's hash: shown, so
            found = rollback(recorder, replace(request, plan=found.plan.hash))
        if found.outcome != "done" or found.kept or found.conflicts:
            raise Wrong(f"The rollback ended as '{found.outcome}': {found.reason}.")

    def points(self) -> int:
        return len(Timeline(self._store(), self.turnmark.root.id).points())

    def settle(self) -> None:
        """What the service does in the background when enough small packs have gathered."""
        consolidate(self._store())

    def rest(self) -> None:
        """What the service does once nothing has happened for minutes."""
        found = deep_repack(self._store())
        if found.errors:
            raise Wrong(f"deep repack: {'; '.join(found.errors)}")

    def thin(self, keep: int) -> None:
        prune(self._store(), Policy(max_points=keep), time.time_ns())

    def remove(self) -> None:
        self.turnmark.close()
        super().remove()
