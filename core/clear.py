"""Takes a whole store off the disk: what turnmark made, and nothing else that lies there.

Order, and what is true if the process dies after each step: 1. nobody else is at work, held by
locks; 2. references: some or all history is gone, which was the wish; 3. objects, records; 4. the
layout file: what is left is an empty shell, which `Store.create` completes; 5. locks, directories.
Everything is reached by descriptor from the store's own directory, never through a link.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass

from .errors import Refused, explain
from .proofs import DIRECTORY
from .store import WAIT, Store, root_shown
from .sweep import size_on_disk

FIRST = ("packed-refs", "refs", "objects", "config", "HEAD")
LAST = ("layout.json", "locks")
OWN_LOCKS = frozenset({"gate", "store", "maintenance", "wanted"})


@dataclass(frozen=True, slots=True)
class Cleared:
    """How much is gone, and what of others' is left in the directory."""

    bytes: int
    left: tuple[str, ...]


def clear(store: Store, wait: float = WAIT) -> Cleared:
    """Removes the store once nobody writes to it; waits so long for each who does."""
    with ExitStack() as locks:
        for workspace in _locked_before(store):
            locks.enter_context(store.workspace_lock(workspace, wait))
        locks.enter_context(store.maintaining(wait))
        locks.enter_context(store.exclusive(wait))
        _refuse_unfinished(store)
        size = size_on_disk(store)
        try:
            left = _remove_all(store)
        except OSError as error:
            raise explain(error, "clear the store", store.base) from error
    return Cleared(size, left)


def _locked_before(store: Store) -> list[str]:
    with store.disk.scandir(f"{store.base}/turnmark/locks") as found:
        return sorted(entry.name for entry in found if entry.name not in OWN_LOCKS)


def _refuse_unfinished(store: Store) -> None:
    """What a killed rollback moved aside may be nowhere but in the store."""
    with store.disk.scandir(f"{store.base}/turnmark/journal") as found:
        names = [entry.name for entry in found if entry.name.endswith(".json")]
    for root in (root_shown(store, name.removesuffix(".json")) for name in names):
        if os.path.isdir(os.fsencode(root)):
            raise Refused(
                f"A rollback of {root} was interrupted and needs this store.",
                "`turnmark snapshot` there finishes it; then clear the store.",
            )


def _remove_all(store: Store) -> tuple[str, ...]:
    disk = store.disk
    with disk.opened(store.base, DIRECTORY) as top:
        for name in FIRST:
            disk.remove_tree(name, top)
        with disk.opened("turnmark", DIRECTORY, at=top) as own:
            for name in [*sorted(set(disk.names(own)) - set(LAST)), *LAST]:
                disk.remove_tree(name, own)
        disk.rmdir("turnmark", top)
        left = tuple(sorted(disk.names(top)))
    if not left:
        disk.rmdir(store.base)
    return left
