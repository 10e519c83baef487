"""What a path is called at another time, for commands that are given the name of today, or an old
one.

A name is taken literally wherever it was there; it is followed only where it was not.
"""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from core.diff import diff_trees, entry_at
from core.errors import BadInput
from core.follow import Follower
from core.history import read_snapshot
from core.model import Oid, RelPath
from core.renames import find_moves

from .access import rel_path
from .context import Context
from .views import View, open_view
from .words import named

if TYPE_CHECKING:
    from core.plan import State


def holds(state: State, path: RelPath) -> bool:
    there = entry_at(state.read_tree, state.files, path) is not None
    return there or path in state.about.empty or not path


def name_at(view: View, path: RelPath, state: State, oid: Oid) -> RelPath | None:
    """What is at a path today, or else was there once: what it is called in a snapshot's state.

    None where it is not there at all, or where that snapshot did not look.
    """
    if holds(state, path) or state.about.gap_at(path):
        return path if holds(state, path) else None
    seq = read_snapshot(view.store, oid).seq
    follower = Follower(view.timeline.history)
    name = follower.name_at(name_in_snapshots(view, path), seq)
    if not holds(state, name) and not _is_here(view, path):
        name = follower.name_since(path, seq)
    return name if holds(state, name) else None


def name_now(view: View, path: RelPath, now: State) -> RelPath | None:
    """What is, or was once, at a path: what it is called now."""
    last = path if holds(now, path) else Follower(view.timeline.history).name_since(path)
    return last if holds(now, last) else None


def name_in_snapshots(view: View, path: RelPath) -> RelPath:
    """A path as the newest snapshot has it, should it have got its name only since then."""
    newest = view.timeline.newest
    if newest is None or not _is_here(view, path):
        return path
    old = view.state(newest.id)
    if holds(old, path) or old.about.gap_at(path):
        return path
    new = view.state_now()
    changes = list(diff_trees(new.read_tree, old.files, new.files))
    moves = find_moves(changes, lambda entry: new.read_blob(entry.oid))
    return moves.origin(path, lambda top: holds(new, top)) or path


def _is_here(view: View, path: RelPath) -> bool:
    return view.store.disk.exists(os.path.join(view.root.path, path))


def refuse_renamed(
    context: Context, directory: str | None, point: str, paths: tuple[str, ...]
) -> None:
    """A rollback of a file alone that had another name then would only delete it."""
    view = open_view(context, directory)
    target = view.resolve(point)
    if read_snapshot(view.store, target.snapshot).partial:
        return
    state = view.state(target.snapshot)
    asked = {rel_path(context, view.root, text): text for text in paths}
    for path, text in asked.items():
        name = name_at(view, path, state, target.snapshot)
        if name is None or name == path or name in asked:
            continue
        both = (text, os.path.relpath(os.fsdecode(view.root.path + b"/" + name), context.cwd))
        raise BadInput(
            f"{named(path)} was called {named(name)} at {target.label}.",
            f"Name both to take that back: {shlex.join(['turnmark', 'rollback', point, *both])}; "
            f"{shlex.join(['turnmark', 'cat', point, text])} prints it as it was.",
        )
