"""What the reading commands look at: one workspace of the store, at its points and now."""

from __future__ import annotations

import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import click

from core.about import decode_about
from core.beneath import Beneath
from core.diff import diff_trees
from core.disk import GONE
from core.errors import BadInput
from core.history import History, read_snapshot
from core.model import EMPTY_TREE, Oid, Point, RelPath
from core.plan import State
from core.reading import NotAFile, read_stable
from core.recorder import Recorder, Seen
from core.rollback import stored_state
from core.roots import Root
from core.rules import DirRules, RuleSet, verdict_of
from core.store import Store
from core.timeline import Target, Timeline

from .access import find_root, open_store
from .context import Context
from .output import note

dir_option = click.option("--dir", "directory", metavar="DIR", help="A workspace other than this.")
full_option = click.option("--full", is_flag=True, help="Print all of it, however long.")


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
        return {point.id: point.n for point in reversed(self.points) if point.n is not None}

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
        return stored_state(self.store, read_snapshot(self.store, oid))

    def state_now(self) -> State:
        """The workspace as it is; looks without any lock, so that no writer has to wait."""
        rules = self.context.config.rules_for(self.root.path)
        recorder = Recorder(self.store, self.root, rules)
        try:
            seen, last = recorder.look(), recorder.last
        finally:
            recorder.close()
        read = _overlay(self.store, seen)
        base = last.files if last else EMPTY_TREE
        fresh = {c.new.oid: c.path for c in diff_trees(read, base, seen.files) if c.new}
        return State(seen.files, decode_about(seen.about), read, self._now_reader(fresh))

    def _now_reader(self, fresh: dict[Oid, RelPath]) -> Callable[[Oid], bytes]:
        """Contents that no snapshot holds come from the directory, as they are at that moment."""

        def read(oid: Oid) -> bytes:
            if oid not in fresh or self.store.has(oid):
                return self.store.blob(oid)
            with Beneath(self.store.disk, self.root.path) as beneath:
                return _read_now(beneath, fresh[oid])

        return read


def open_view(context: Context, directory: str | None) -> View:
    store = open_store(context)
    root = find_root(context, store, directory)
    return View(context, store, root, Timeline(store, root.id))


def _overlay(store: Store, seen: Seen) -> Callable[[Oid], bytes]:
    def read(oid: Oid) -> bytes:
        found = seen.trees.get(oid)
        return store.tree(oid) if found is None else found

    return read


def _read_now(beneath: Beneath, path: RelPath) -> bytes:
    """What is there; nothing if it went away since the look."""
    try:
        at, name = beneath.parent(path)
        if stat.S_ISLNK(beneath.disk.lstat(name, at).st_mode):
            return beneath.disk.readlink(name, at)
        return read_stable(beneath.disk, at, name).data
    except NotAFile:
        return b""
    except OSError as error:
        if error.errno in GONE:
            return b""
        raise


def private_paths(context: Context, root: Root) -> Callable[[RelPath], bool]:
    """Whether a path's content is shown only when asked for."""
    patterns = context.config.settings_for(root.path).private
    rules = DirRules.root(RuleSet(exclude=patterns, protect=(), gitignore=False), None)
    return lambda path: verdict_of(path, False, rules, lambda _: None) is not None


def say_damage(context: Context, damage: list[str]) -> None:
    """What could not be read is said beside the answer, which may lack something by it."""
    for message in dict.fromkeys(damage):
        note(context, f"warning: {message} Run `turnmark store verify`.")
