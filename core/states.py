"""Where a plan begins or ends: the workspace as a snapshot holds it, or as a look just saw it."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from .about import decode_about
from .beneath import Beneath
from .diff import diff_trees
from .disk import GONE
from .model import EMPTY_TREE, Oid, RelPath, Snapshot
from .plan import State
from .reading import NotAFile, read_stable
from .store import Store

if TYPE_CHECKING:
    from .recorder import Recorder, Seen


def stored_state(store: Store, snapshot: Snapshot) -> State:
    about = decode_about(store.blob(snapshot.about))
    return State(snapshot.files, about, store.tree, store.blob)


def seen_state(recorder: Recorder, seen: Seen) -> State:
    """What a look saw; contents that no snapshot holds are read where they are."""
    store, root = recorder.store, recorder.root
    base = recorder.last.files if recorder.last else EMPTY_TREE

    def read_tree(oid: Oid) -> bytes:
        found = seen.trees.get(oid)
        return store.tree(oid) if found is None else found

    fresh: dict[Oid, RelPath] = {}

    def read_blob(oid: Oid) -> bytes:
        if store.has(oid):
            return store.blob(oid)
        if not fresh:
            found = diff_trees(read_tree, base, seen.files)
            fresh.update({one.new.oid: one.path for one in found if one.new})
        if oid not in fresh:
            return store.blob(oid)
        with Beneath(store.disk, root.path) as beneath:
            return _read_now(beneath, fresh[oid])

    return State(seen.files, decode_about(seen.about), read_tree, read_blob)


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
