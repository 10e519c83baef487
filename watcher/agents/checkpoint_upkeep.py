"""The store's sizes, its clean-up and its end, as the predecessor's callers ask for them.

Knows the predecessor's own directory too, for what it left behind there.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from core.clear import clear
from core.errors import NoStore, TurnmarkError
from core.imports import archives_at
from core.keeping import MEGABYTE, Policy
from core.presence import record_of, state_of
from core.retention import Pruned, auto_prune, prune
from core.store import Store
from core.sweep import size_on_disk
from core.timeline import Timeline, registered

from ..access import open_store, policy_of
from ..context import Context, context_from

Answer = dict[str, Any]

log = logging.getLogger(__name__)

TROUBLE = (TurnmarkError, OSError, ValueError)
_NUMBERS = ("scanned", "deleted_orphan", "deleted_stale", "errors", "bytes_freed")


def own_context() -> Context:
    return context_from(os.environ)


def predecessor_base(context: Context) -> str:
    """Where the predecessor keeps its checkpoints, and its archives."""
    home = context.env.get("HERMES_HOME") or f"{context.user_home}/.hermes"
    return f"{home}/checkpoints"


def store_status(context: Context | None = None) -> Answer:
    """Sizes and projects, under the predecessor's names."""
    context = context or own_context()
    archives = [_archive(path) for path in archives_at(predecessor_base(context))]
    out: Answer = {
        "base": str(context.home),
        "store_size_bytes": 0,
        "legacy_size_bytes": sum(one["size_bytes"] for one in archives),
        "projects": [],
        "pre_v2_projects": [],
        "legacy_archives": archives,
    }
    try:
        store = open_store(context)
        out["store_size_bytes"] = size_on_disk(store)
        out["projects"] = [_project(store, one, root) for one, root in registered(store)]
    except NoStore:
        pass  # nothing was ever stored: zeros say so
    out["project_count"] = len(out["projects"])
    out["total_size_bytes"] = out["store_size_bytes"] + out["legacy_size_bytes"]
    return out


def _project(store: Store, workspace: str, root: str) -> Answer:
    timeline = Timeline(store, workspace)
    times = [one.time_ns / 1e9 for one in timeline.snapshots]
    times += [mark.time_ns / 1e9 for mark in timeline.marks]
    return {
        "hash": workspace,
        "workdir": root,
        "exists": state_of(store.disk, record_of(store, workspace)) == "live",
        "created_at": min(times, default=None),
        "last_touch": max(times, default=None),
        "commits": len(timeline.numbered),
    }


def _archive(path: str) -> Answer:
    return {
        "name": os.path.basename(path),
        "path": path,
        "size_bytes": tree_size(path),
        "mtime": os.stat(path).st_mtime,
    }


def tree_size(path: str) -> int:
    """Bytes of the files below a directory; what vanishes meanwhile counts nothing."""
    found = 0
    for directory, _, names in os.walk(path):
        for name in names:
            try:
                found += os.lstat(os.path.join(directory, name)).st_size
            except FileNotFoundError:
                continue
    return found


def prune_checkpoints(
    retention_days: int = 7,
    delete_orphans: bool = True,
    max_total_size_mb: int = 0,
    orphan_allowlist: Collection[str] | None = None,
    context: Context | None = None,
) -> dict[str, int]:
    """Drops what is too old, or whose directory was deleted; counts, and never an exception."""
    context = context or own_context()
    try:
        policy = replace(
            policy_of(context.config.store),
            retention_days=retention_days,
            max_total_size=max_total_size_mb * MEGABYTE,
            delete_orphans=delete_orphans,
        )
        return _counted(_prune(open_store(context), policy, orphan_allowlist))
    except NoStore:
        return dict.fromkeys(_NUMBERS, 0)
    except TROUBLE as error:
        log.warning("pruning failed: %s", error)
        return {**dict.fromkeys(_NUMBERS, 0), "errors": 1}


def _prune(store: Store, policy: Policy, allowed: Collection[str] | None) -> Pruned:
    """Of orphans only those allowed, as the user saw them; the stale go by their age."""
    now = time.time_ns()
    if allowed is None:
        return prune(store, policy, now)
    stale = prune(store, policy, now, dry_run=True).stale
    return prune(store, policy, now, agreed={*allowed, *stale})


def _counted(done: Pruned) -> dict[str, int]:
    for error in done.errors:
        log.warning("pruning: %s", error)
    numbers = (done.scanned, len(done.orphans), len(done.stale), len(done.errors), done.reclaimed)
    return dict(zip(_NUMBERS, numbers, strict=True))


def maybe_auto_prune_checkpoints(context: Context | None = None) -> Answer:
    """Once a day at most, by turnmark's own configuration; for an agent's start, not its tools."""
    context = context or own_context()
    try:
        limits = context.config.store
        done = limits.auto_prune and auto_prune(
            open_store(context), policy_of(limits), time.time_ns()
        )
        return {"skipped": False, "result": _counted(done)} if done else {"skipped": True}
    except TROUBLE as error:
        log.warning("pruning failed: %s", error)
        return {"skipped": True, "error": str(error)}


def clear_all(context: Context | None = None) -> Answer:
    """Removes the store with all history; session states and archives are not in it."""
    context = context or own_context()
    try:
        return {"bytes_freed": clear(open_store(context)).bytes, "deleted": True}
    except NoStore:
        return {"bytes_freed": 0, "deleted": False}
    except TROUBLE as error:
        log.warning("clearing the store failed: %s", error)
        return {"bytes_freed": 0, "deleted": False, "error": str(error)}


def clear_legacy(context: Context | None = None) -> dict[str, int]:
    """Removes the predecessor's archives, and nothing else of it."""
    context = context or own_context()
    freed = deleted = 0
    for path in archives_at(predecessor_base(context)):
        try:
            freed += remove_tree(path)
            deleted += 1
        except OSError as error:
            log.warning("removing %s failed: %s", path, error)
    return {"bytes_freed": freed, "deleted": deleted}


def remove_tree(path: str) -> int:
    """The bytes that are gone with a directory; a link in its place is never followed."""
    freed = tree_size(path)
    shutil.rmtree(path)
    return freed
