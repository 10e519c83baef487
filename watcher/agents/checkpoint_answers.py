"""Answers under the predecessor's names: of a checkpoint, a list of them, a restore, an error.

Knows values only; every answer says no more than turnmark's own did.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from core.diff import entry_at
from core.errors import NoStore, TurnmarkError
from core.model import Point, RelPath, parse_path, rfc3339
from core.plan import State
from core.roots import Root
from core.timeline import Target

from ..words import one_line

Answer = dict[str, Any]

log = logging.getLogger(__name__)

SHORT = 8


# Lists


def format_checkpoint_list(checkpoints: list[Answer], directory: str) -> str:
    """Numbered as `restore` by number counts them, newest first."""
    if not checkpoints:
        return f"No checkpoints found for {directory}"
    named = directory == "all directories"
    lines = [f"Checkpoints for {directory}:", ""]
    lines += [_line(number, one, named) for number, one in enumerate(checkpoints, 1)]
    lines += [
        "",
        "  /rollback <N>             restore to checkpoint N",
        "  /rollback diff <N>        preview changes since checkpoint N",
        "  /rollback <N> <file>      restore a single file from checkpoint N",
    ]
    return "\n".join(lines)


def _line(number: int, one: Answer, named: bool) -> str:
    when = one["timestamp"].replace("T", " ")[:16]
    where = f"  [{os.path.basename(one['workdir'])}]" if named and one.get("workdir") else ""
    files = one.get("files_changed", 0)
    stat = ""
    if files:
        word = "file" if files == 1 else "files"
        stat = f"  ({files} {word}, +{one.get('insertions', 0)}/-{one.get('deletions', 0)})"
    reason = one_line(one["reason"], 200)
    return f"  {number}. {one['short_hash']}  {when}{where}  {reason}{stat}"


def checkpoint(point: Point, first: bool) -> Answer:
    """The oldest has nothing before it to be compared with."""
    counts = None if first else point.counts
    return {
        "hash": point.id.hex(),
        "short_hash": point.id.hex()[:SHORT],
        "timestamp": rfc3339(point.time_ns),
        "reason": _reason(point),
        "files_changed": counts.files if counts else 0,
        "insertions": (counts.insertions or 0) if counts else 0,
        "deletions": (counts.deletions or 0) if counts else 0,
    }


def _reason(point: Point | None) -> str:
    if point is None:
        return ""
    turn = f"turn {point.turn}" if point.kind == "turn" else point.kind
    return point.label or turn


# Restores


def changed(done: Mapping[str, Any]) -> list[str]:
    return [path for name in ("created", "replaced", "deleted", "modes") for path in done[name]]


def told(done: Mapping[str, Any], target: Target, then: State, root: Root) -> Answer:
    """A rollback's result under the predecessor's names; a success only if all is back."""
    conflicts, kept = done["conflicts"], done["kept"]
    missing = [one["path"] for one in (*conflicts, *kept) if _holds(then, one["path"])]
    undeleted = [one["path"] for one in conflicts if not _holds(then, one["path"])]
    went = done["outcome"] in ("done", "nothing")
    ok = went and not missing and not undeleted
    return {
        "success": ok,
        "restored_to": target.snapshot.hex()[:SHORT],
        "reason": _reason(target.point),
        "directory": root.shown,
        "restored_files": changed(done) if done["outcome"] == "done" else [],
        "skipped_user_edits": [],
        "skipped_oversize": [one["path"] for one in kept if one["reason"].startswith("oversize")],
        "failed_deletes": undeleted,
        "nested_repositories": [],
        "kept": kept,
        "conflicts": conflicts,
        "undo": done["undo"],
        "debug": None,
        **({} if ok else {"error": _failure(done, missing + undeleted), "plan": done["plan"]}),
    }


def _holds(state: State, path: str) -> bool:
    return entry_at(state.read_tree, state.files, RelPath(parse_path(path))) is not None


def _failure(done: Mapping[str, Any], paths: list[str]) -> str:
    if done["outcome"] == "refused":
        return f"Refused: {done.get('reason')}. To go ahead, restore with plan={done['plan']!r}."
    shown = ", ".join(one_line(path, 60) for path in paths[:5])
    more = f" and {len(paths) - 5} more" if len(paths) > 5 else ""
    return f"Not restored: {shown}{more}."


# Trouble


def answered(work: Callable[[], Answer]) -> Answer:
    """An error as the predecessor's callers expect it."""
    try:
        return work()
    except NoStore:
        return _error("No checkpoints exist for this directory")
    except TurnmarkError as error:
        return _error(error.message, error.hint)
    except (OSError, ValueError) as error:
        log.warning("failed: %s", error, exc_info=True)
        return _error(str(error))


def _error(message: str, hint: str = "") -> Answer:
    return {"success": False, "error": message, "debug": hint or None}


def no_list(error: Exception) -> list[Answer]:
    """Without a store there is nothing to list; other trouble is said."""
    if not isinstance(error, NoStore):
        log.warning("checkpoints cannot be listed: %s", error)
    return []
