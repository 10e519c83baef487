"""What the reading commands look at: one workspace of the store, at its points and now."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import click

from core.errors import BadInput
from core.history import History, read_snapshot
from core.model import Maker, Oid, Point, RelPath
from core.roots import Root
from core.rules import DirRules, RuleSet, verdict_of
from core.store import Store
from core.timeline import Target, Timeline

from .access import find_root, open_store
from .context import Context
from .output import note

if TYPE_CHECKING:  # reading the past needs nothing that looks at the present
    from core.plan import State

dir_option = click.option("--dir", "directory", metavar="DIR", help="A workspace other than this.")
full_option = click.option("--full", is_flag=True, help="Print all of it, however long.")


MadeBy = dict[RelPath, tuple[Maker, ...]]


@dataclass
class View:
    """One workspace of the store, for reading."""

    context: Context
    store: Store
    root: Root
    timeline: Timeline

    @cached_property
    def points(self) -> list[Point]:
        return self.timeline.points()

    @cached_property
    def numbers(self) -> dict[Oid, int]:
        """The snapshots that a number of the list names; of several the smallest."""
        rows = list(enumerate(self.timeline.numbered, 1))
        return {row.mark.snapshot: n for n, row in reversed(rows)}

    def history(self) -> History:
        return History(self.store, self.root.id)

    def resolve(self, spec: str) -> Target:
        """A point that is not found may be one that could not be read."""
        try:
            return self.timeline.resolve(spec, time.time_ns())
        except BadInput:
            say_damage(self.context, self.timeline.damage)
            raise

    def state(self, oid: Oid) -> State:
        from core.states import stored_state

        return stored_state(self.store, read_snapshot(self.store, oid))

    def made_by(self, old: Oid, new: Oid | None, now: State | None = None) -> MadeBy:
        """Who changed each path between two snapshots, or since one."""
        from core.edits import Edits
        from core.states import stored_state

        edits = Edits(self.history(), partial(stored_state, self.store), now)
        return edits.by_path(old, new)

    def state_now(self) -> State:
        """The workspace as it is; looks without any lock, so that no writer has to wait."""
        rules = self.context.config.listed().captured_by(self.root.path)
        from core.recorder import Recorder
        from core.states import seen_state

        recorder = Recorder(self.store, self.root, rules)
        try:
            return seen_state(recorder, recorder.look())
        finally:
            recorder.close()


def open_view(context: Context, directory: str | None) -> View:
    store = open_store(context)
    root = find_root(context, store, directory)
    return View(context, store, root, Timeline(store, root.id))


def private_paths(context: Context, root: Root) -> Callable[[RelPath], bool]:
    """Whether a path's content is shown only when asked for."""
    patterns = context.config.listed().rules_of(root.path).private
    rules = DirRules.root(RuleSet(exclude=patterns, protect=(), gitignore=False), None)
    return lambda path: verdict_of(path, False, rules, lambda _: None) is not None


def say_damage(context: Context, damage: list[str]) -> None:
    """What could not be read is said beside the answer, which may lack something by it."""
    for message in dict.fromkeys(damage):
        note(context, f"warning: {message} Run `turnmark store verify`.")
