"""What the reading commands share: a workspace of the store, its states at points and now."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import click

from core.about import About, decode_about
from core.beneath import Beneath
from core.diff import diff_trees, entry_at, files_of
from core.disk import GONE
from core.errors import Damaged
from core.history import History, read_snapshot
from core.model import (
    EMPTY_TREE,
    LINK,
    TREE,
    Entry,
    GapReason,
    Oid,
    Point,
    RelPath,
    Snapshot,
    is_within,
)
from core.patch import FileChange, Read, find_renames
from core.plan import State
from core.reading import NotAFile, read_stable
from core.recorder import Recorder, Seen
from core.roots import Root
from core.rules import DirRules, RuleSet, verdict_of
from core.store import Store
from core.timeline import Target, Timeline

from .access import find_root, open_store
from .context import Context
from .output import clean, is_terminal, note

LINES_OF_A_GROUP = 20
SHORT_ID = 10

dir_option = click.option("--dir", "directory", metavar="DIR", help="Another workspace than this.")
full_option = click.option("--full", is_flag=True, help="Print all of it, however long.")


@dataclass(frozen=True)
class View:
    """One workspace of the store, for reading."""

    context: Context
    store: Store
    root: Root
    timeline: Timeline

    def history(self) -> History:
        return History(self.store, self.root.id)

    def resolve(self, spec: str) -> Target:
        return self.timeline.resolve(spec, time.time_ns())

    def snapshot(self, oid: Oid) -> Snapshot:
        return read_snapshot(self.store, oid)

    def state(self, oid: Oid) -> State:
        return state_of(self.store, self.snapshot(oid))

    def points(self, *, everything: bool = False) -> list[Point]:
        return self.timeline.points(everything)

    def point_names(self) -> dict[Oid, str]:
        """What a person would call a snapshot, where some point of the list is at it."""
        numbered = [point for point in self.points() if point.n is not None]
        return {point.id: str(point.n) for point in reversed(numbered)}


def open_view(context: Context, directory: str | None) -> View:
    store = open_store(context)
    root = find_root(context, store, directory)
    return View(context, store, root, Timeline(store, root.id))


def say_damage(context: Context, damage: list[str]) -> None:
    """What could not be read is said beside the answer, which may lack something by it."""
    for message in dict.fromkeys(damage):
        note(context, f"warning: {message} Run `turnmark store verify`.")


# States


def state_of(store: Store, snapshot: Snapshot) -> State:
    about = decode_about(store.blob(snapshot.about))
    return State(snapshot.files, about, store.tree, store.blob)


def state_now(view: View) -> State:
    """The workspace as it is; looks without any lock, so that no writer has to wait."""
    recorder = Recorder(view.store, view.root, view.context.config.rules_for(view.root.path))
    try:
        seen, last = recorder.look(), recorder.last
    finally:
        recorder.close()
    read = _overlay(view.store, seen)
    base = last.files if last else EMPTY_TREE
    fresh = {c.new.oid: c.path for c in diff_trees(read, base, seen.files) if c.new}
    return State(seen.files, decode_about(seen.about), read, _now_reader(view, fresh))


def _overlay(store: Store, seen: Seen) -> Callable[[Oid], bytes]:
    def read(oid: Oid) -> bytes:
        found = seen.trees.get(oid)
        return store.tree(oid) if found is None else found

    return read


def _now_reader(view: View, fresh: dict[Oid, RelPath]) -> Callable[[Oid], bytes]:
    """Contents that no snapshot holds come from the directory, as they are at that moment."""

    def read(oid: Oid) -> bytes:
        if oid not in fresh or view.store.has(oid):
            return view.store.blob(oid)
        with Beneath(view.store.disk, view.root.path) as beneath:
            return _read_now(beneath, fresh[oid])

    return read


def _read_now(beneath: Beneath, path: RelPath) -> bytes:
    try:
        at, name = beneath.parent(path)
        try:
            return beneath.disk.readlink(name, at)
        except OSError:
            return read_stable(beneath.disk, at, name).data
    except NotAFile:
        return b""
    except OSError as error:
        if error.errno in GONE:
            return b""
        raise


# Differences


@dataclass(frozen=True)
class Moded:
    """A path whose permissions alone differ."""

    path: RelPath
    old: int
    new: int


@dataclass(frozen=True)
class Difference:
    """What lies between two states, at and below the paths asked for."""

    changes: list[FileChange]
    modes: list[Moded]
    dirs_come: list[RelPath]
    dirs_gone: list[RelPath]
    read: Read

    def __bool__(self) -> bool:
        return bool(self.changes or self.modes or self.dirs_come or self.dirs_gone)


def difference(old: State, new: State, tops: tuple[RelPath, ...] = ()) -> Difference:
    read = _either(old, new)
    found = [
        change
        for change in diff_trees(_either_tree(old, new), old.files, new.files)
        if _asked(change.path, tops)
    ]
    come = (path for path in new.about.empty - old.about.empty if _asked(path, tops))
    gone = (path for path in old.about.empty - new.about.empty if _asked(path, tops))
    return Difference(
        find_renames(found, read),
        [moded for moded in _modes(old, new) if _asked(moded.path, tops)],
        sorted(path for path in come if entry_at(old.read_tree, old.files, path) is None),
        sorted(path for path in gone if entry_at(new.read_tree, new.files, path) is None),
        read,
    )


def _asked(path: RelPath, tops: tuple[RelPath, ...]) -> bool:
    return not tops or any(is_within(path, top) for top in tops)


def _either(old: State, new: State) -> Read:
    """The reader of now knows what the store holds too, so it is asked for everything."""

    def read(entry: Entry) -> bytes:
        try:
            return old.read_blob(entry.oid)
        except Damaged:
            return new.read_blob(entry.oid)

    return read if old.read_blob != new.read_blob else lambda entry: new.read_blob(entry.oid)


def _either_tree(old: State, new: State) -> Callable[[Oid], bytes]:
    def read(oid: Oid) -> bytes:
        try:
            return new.read_tree(oid)
        except Damaged:
            return old.read_tree(oid)

    return read


def _modes(old: State, new: State) -> Iterator[Moded]:
    """Permissions that git's modes do not tell apart, of paths that are otherwise the same."""
    for path in sorted(_mode_candidates(old, new)):
        one = entry_at(old.read_tree, old.files, path)
        other = entry_at(new.read_tree, new.files, path)
        if one is None or other is None or one.mode != other.mode or other.mode == LINK:
            continue
        was, now = old.about.mode(path, one.mode), new.about.mode(path, other.mode)
        if was != now:
            yield Moded(path, was, now)


def _mode_candidates(old: State, new: State) -> set[RelPath]:
    one, other = old.about, new.about
    paths = one.modes.keys() | other.modes.keys()
    if one.usual != other.usual:
        paths |= {path for path, _ in files_of(new.read_tree, new.files)}
    return {path for path in paths if one.modes.get(path) != other.modes.get(path)} | (
        set(paths) if one.usual != other.usual else set()
    )


# Words


def status_of(change: FileChange) -> str:
    if change.old is None:
        return "added"
    if change.new is None:
        return "deleted"
    if change.old_path is not None:
        return "renamed"
    if (change.old.mode == LINK) != (change.new.mode == LINK):
        return "retyped"
    return "modified" if change.old.oid != change.new.oid else "mode"


def kind_of(entry: Entry) -> str:
    if entry.mode == TREE:
        return "dir"
    return "link" if entry.mode == LINK else "file"


def private_paths(context: Context, root: Root) -> Callable[[RelPath], bool]:
    """Whether a path's content is shown only when asked for."""
    patterns = context.config.settings_for(root.path).private
    rules = DirRules.root(RuleSet(exclude=patterns, protect=(), gitignore=False), None)
    return lambda path: verdict_of(path, False, rules, lambda _: None) is not None


def octal(mode: int) -> str:
    return f"{mode:04o}"


def short(oid: Oid) -> str:
    return oid.hex()[:SHORT_ID]


def count(number: int, one: str, many: str = "") -> str:
    """A number and its noun: `1 file`, `2,000 files`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def capped(lines: list[str], *, full: bool, most: int = LINES_OF_A_GROUP) -> list[str]:
    """At most so many lines and one that says how many more; one line is never hidden alone."""
    if full or len(lines) <= most + 1:
        return lines
    return [*lines[:most], f"  … {len(lines) - most:,} more (--full shows them)"]


def gaps_by_reason(about: About) -> dict[GapReason, list[RelPath]]:
    found: dict[GapReason, list[RelPath]] = {}
    for gap in about.gap_list():
        found.setdefault(gap.reason, []).append(gap.path)
    return found


def columns(context: Context) -> int:
    import shutil

    return shutil.get_terminal_size().columns


def one_line(text: str, room: int) -> str:
    """Text on one line, cut where there is no room."""
    line = clean(" ".join(text.split()))
    return line if len(line) <= room else line[: max(0, room - 1)] + "…"


def local_time(time_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_ns // 1_000_000_000))


def wants_colour(context: Context) -> bool:
    import sys

    return is_terminal(sys.stdout) and not context.env.get("NO_COLOR")


def fs_text(path: bytes) -> str:
    return os.fsdecode(path)


Json = dict[str, Any]
