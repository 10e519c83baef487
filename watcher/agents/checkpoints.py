"""The predecessor's checkpoint manager, call for call, on turnmark's store.

For agents that call it in their own process: nothing here raises into their tools, and no answer
claims more than what is durable. With a service at work it is asked; without one core does it here.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import stat
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from core.clear import clear
from core.consolidate import consolidate, needed
from core.counts import CountBook
from core.diff import entry_at
from core.disk import REAL
from core.errors import BadInput, Busy, NoStore, TurnmarkError
from core.history import MarkSpec, read_snapshot
from core.imports import archives_at
from core.model import Point, RelPath, is_within, parse_path, rfc3339, show_path
from core.objects import hash_object
from core.patch import render
from core.plan import State
from core.recorder import Recorder
from core.retention import MEGABYTE, Policy, Pruned, auto_prune, prune, record_of, state_of
from core.rollback import stored_state
from core.roots import Root, root_of
from core.store import Store
from core.sweep import size_on_disk
from core.timeline import Target, Timeline, registered
from core.turns import label_of

from ..access import locked, open_store, opened, policy_of
from ..acting import acting, by_service
from ..client import connect
from ..context import Context, context_from
from ..differences import change_lines, difference, is_private, total
from ..outcomes import nothing
from ..views import View, private_paths
from ..words import one_line

Answer = dict[str, Any]

log = logging.getLogger(__name__)

MARKERS = (
    *(".git", "pyproject.toml", "package.json", "Cargo.toml", "go.mod", "Makefile", "pom.xml"),
    *(".hg", "Gemfile"),
)
"""A directory that holds one of these is a project."""
SHORT = 8
LEDGER = 2000
COUNTING_SECONDS = 0.2
"""What a tool call may wait for numbers that only a listing shows."""
LISTING_SECONDS = 2.0
TROUBLE = (TurnmarkError, OSError, ValueError)
_HASH = re.compile(r"[0-9a-fA-F]{4,64}")
_NUMBERS = ("scanned", "deleted_orphan", "deleted_stale", "errors", "bytes_freed")


def own_context() -> Context:
    return context_from(os.environ)


def predecessor_base(context: Context) -> str:
    """Where the predecessor keeps its checkpoints, and its archives."""
    home = context.env.get("HERMES_HOME") or f"{context.user_home}/.hermes"
    return f"{home}/checkpoints"


# What needs no manager


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


# The manager


class CheckpointManager:
    """Owns what one agent has done in its turn; everything else lies in the store."""

    format_checkpoint_list = staticmethod(format_checkpoint_list)

    def __init__(
        self,
        enabled: bool = False,
        max_snapshots: int = 20,
        max_total_size_mb: int = 500,
        max_file_size_mb: int = 10,
        *,
        context: Context | None = None,
    ) -> None:
        self.enabled = enabled
        self.max_snapshots = max(1, int(max_snapshots))
        self.max_total_size_mb = max(0, int(max_total_size_mb))
        self.max_file_size_mb = max(0, int(max_file_size_mb))
        self._given = context
        self._done: set[bytes] = set()
        self._written: dict[bytes, bytes] = {}
        self._notice = ""

    def _context(self) -> Context:
        """As the environment says now; the size cap holds where no entry of the watch list does."""
        context = self._given or own_context()
        config = context.config
        defaults = replace(config.defaults, max_file_size_mb=self.max_file_size_mb)
        own = replace(context)
        own.__dict__["config"] = replace(config, defaults=defaults)
        return own

    # Turns

    def new_turn(self) -> None:
        self._done.clear()

    def ensure_checkpoint(self, working_dir: str, reason: str = "auto") -> bool:
        """Whether a checkpoint was made: one per directory and turn, if anything changed.

        What a later call of the turn finds is kept too, as a state that lists do not show.
        """
        if not self.enabled:
            return False
        try:
            return self._ensure(working_dir, reason)
        except Exception as error:
            self._notice = f"No checkpoint of {working_dir!r} was made: {error}"
            log.warning("%s", self._notice, exc_info=not isinstance(error, TROUBLE))
            return False

    def _ensure(self, working_dir: str, reason: str) -> bool:
        context, root = self._context(), _root(working_dir)
        again = root.path in self._done
        made = _take(context, root, label_of(reason), again)
        self._done.add(root.path)
        return made

    def consume_checkpoint_notice(self) -> str | None:
        """What the user should be told, once: why there is no checkpoint."""
        notice, self._notice = self._notice, ""
        return notice or None

    def record_agent_write(self, file_path: str) -> None:
        """Remembers what the agent wrote, by which a safe restore knows what others did since."""
        if "\0" in file_path:
            return
        path = os.path.realpath(os.fsencode(os.path.expanduser(file_path)))
        self._written.pop(path, None)  # what is written last is forgotten last
        if (content := _content(path)) is not None:
            self._written[path] = content
        while len(self._written) > LEDGER:
            del self._written[next(iter(self._written))]

    # Lists

    def list_checkpoints(self, working_dir: str) -> list[Answer]:
        """Newest first, at most `max_snapshots`."""
        try:
            return self._listed(open_store(self._context()), _root(working_dir))
        except TROUBLE as error:
            return _no_list(error)

    def list_all(self) -> list[Answer]:
        """Those of every directory, with their `workdir`."""
        try:
            store = open_store(self._context())
            found = [
                {**one, "workdir": root}
                for _, root in registered(store)
                for one in self._listed(store, root_of(parse_path(root)))
            ]
        except TROUBLE as error:
            return _no_list(error)
        return sorted(found, key=lambda one: str(one["timestamp"]), reverse=True)

    list_all_checkpoints = list_all

    def _listed(self, store: Store, root: Root) -> list[Answer]:
        timeline = Timeline(store, root.id)
        if pairs := timeline.pairs()[: self.max_snapshots]:
            CountBook(store).fill(pairs, LISTING_SECONDS)
        oldest = timeline.marks[0].seq if timeline.marks else 0
        points = timeline.points()[: self.max_snapshots]
        return [_checkpoint(point, point.seq == oldest) for point in points]

    # Differences

    def diff(self, working_dir: str, commit_hash: str) -> Answer:
        """From a checkpoint to what is there now, new files included."""
        return _answered(lambda: self._diff(working_dir, commit_hash))

    def session_diff(self, working_dir: str) -> Answer:
        """From the oldest checkpoint that there is."""
        found = self.list_checkpoints(working_dir)
        if not found:
            return {"success": True, "stat": "", "diff": "", "empty": True}
        result = self.diff(working_dir, found[-1]["hash"])
        if result["success"]:
            result["baseline"] = found[-1]["hash"]
            if not result["diff"]:
                result["empty"] = True
        return result

    def _diff(self, working_dir: str, commit_hash: str) -> Answer:
        context, root = self._context(), _root(working_dir)
        store = open_store(context)
        timeline = Timeline(store, root.id)
        view = View(context, store, root, timeline)
        target = _target(timeline, commit_hash)
        found = difference(view.state(target.snapshot), view.state_now())
        if not found:
            return {"success": True, "stat": "", "diff": ""}
        hidden = private_paths(context, root)
        parts: list[bytes] = []
        for change in found.changes:
            if is_private(change, hidden):
                parts.append(b"%s: private, not shown\n" % change.path)
            else:
                parts += render([change], found.read)
        lines = [*change_lines(found, full=True), f"  {total(found)}"]
        # What is not UTF-8 is shown as its bytes: neither lost nor unprintable.
        text = b"".join(parts).decode("utf-8", "backslashreplace")
        return {"success": True, "stat": "\n".join(lines), "diff": text}

    # Restoring

    def restore(
        self,
        working_dir: str,
        commit_hash: str,
        file_path: str | None = None,
        safe: bool = False,
        plan: str = "",
    ) -> Answer:
        """Makes the directory, or one path in it, equal to a checkpoint; `undo` names the state
        before. safe: files stay that somebody changed after the agent wrote them. plan: what an
        answer named that refused, because much would be deleted."""
        return _answered(lambda: self._restore(working_dir, commit_hash, file_path, safe, plan))

    def _restore(
        self, working_dir: str, commit_hash: str, file_path: str | None, safe: bool, plan: str
    ) -> Answer:
        context, root = self._context(), _root(working_dir)
        timeline = Timeline(open_store(context), root.id)
        target = _target(timeline, commit_hash)
        params: Answer = {"point": target.snapshot.hex(), "plan": plan, "paths": []}
        skipped: list[str] = []
        if file_path is not None:
            params["paths"] = [_literal(file_path)]
        elif safe:
            skipped, params["paths"] = self._edited(context, root, params)
        only_edited = bool(skipped) and not params["paths"]
        done = nothing() if only_edited else _act(context, root, "rollback", params)
        then = stored_state(timeline.store, read_snapshot(timeline.store, target.snapshot))
        told = _told(done, target, then, root)
        told["skipped_user_edits"] = skipped
        return told if file_path is None else {**told, "file": file_path}

    def _edited(self, context: Context, root: Root, params: Answer) -> tuple[list[str], list[str]]:
        """What others changed since the agent wrote it, and then all else that would change."""
        would = _act(context, root, "rollback", params, dry_run=True)
        edited = [
            path
            for path in (*would["replaced"], *would["deleted"])
            if (was := self._written.get(root.path + b"/" + parse_path(path))) is not None
            and was != _content(root.path + b"/" + parse_path(path))
        ]
        stay = [parse_path(path) for path in edited]
        others = [p for p in _changed(would) if not any(is_within(s, parse_path(p)) for s in stay)]
        return edited, others if edited else []

    # Upkeep; the store's own limits are in turnmark's configuration

    def store_status(self) -> Answer:
        return store_status(self._context())

    def prune_checkpoints(
        self,
        retention_days: int = 7,
        delete_orphans: bool = True,
        max_total_size_mb: int | None = None,
        orphan_allowlist: Collection[str] | None = None,
    ) -> dict[str, int]:
        size = self.max_total_size_mb if max_total_size_mb is None else max_total_size_mb
        context = self._context()
        return prune_checkpoints(retention_days, delete_orphans, size, orphan_allowlist, context)

    def clear_all(self) -> Answer:
        return clear_all(self._context())

    def clear_legacy(self) -> dict[str, int]:
        return clear_legacy(self._context())

    # Places

    def get_working_dir_for_path(self, file_path: str) -> str:
        """The nearest directory that is known, else the project that a path lies in."""
        path = os.path.realpath(os.fsencode(os.path.expanduser(file_path)))
        start = path if os.path.isdir(path) else os.path.dirname(path)
        known = [root for root in self._known() if is_within(start, root.rstrip(b"/"))]
        if known:
            return show_path(max(known, key=len))
        home = os.path.realpath(os.fsencode(self._context().user_home))
        here = start
        while here != os.path.dirname(here) and not is_within(home, here):
            if any(os.path.lexists(os.path.join(here, os.fsencode(name))) for name in MARKERS):
                return show_path(here)
            here = os.path.dirname(here)
        return show_path(start)

    def _known(self) -> Iterable[bytes]:
        try:
            found = registered(open_store(self._context()))
            return [parse_path(root) for _, root in found if root.startswith("/")]
        except TROUBLE as error:
            _no_list(error)
            return []


# Between the manager and the store


def _act(context: Context, root: Root, action: str, params: Answer, **more: object) -> Answer:
    """The seam: done by the service where one watches the directory, else here."""
    told = {**params, **more}
    with acting(context, root.shown, action, told, create=False, tidy=False) as (data, _):
        return data


def _take(context: Context, root: Root, label: str, again: bool) -> bool:
    """The other seam. A service keeps every state by itself, so only points are asked of it."""
    opened(context, root.shown, True)
    if again and _is_watched(context, root):
        return False
    if not again and by_service(context, root, "mark", {"label": label}) is not None:
        return True
    spec = None if again else MarkSpec("manual", label=label, agent="hermes")
    with locked(context, root.shown, create=True) as recorder:
        taken = recorder.take(mark=spec, always_mark=False, sync=not again, note=label)
        _tidy(recorder)
        return taken.mark is not None


def _is_watched(context: Context, root: Root) -> bool:
    client = connect(context)
    if client is None:
        return False
    with client:
        return root.shown in client.call("roots")["roots"]


def _tidy(recorder: Recorder) -> None:
    """Little, as a tool is waiting; pruning is for an agent's start."""
    store = recorder.store
    try:
        CountBook(store).fill(Timeline(store, recorder.root.id).pairs()[:1], COUNTING_SECONDS)
        if needed(store):
            consolidate(store)
    except Busy:
        return  # somebody is at it
    except TROUBLE as error:
        log.warning("tidying up the store failed: %s", error)


def _root(working_dir: str) -> Root:
    """A directory by its own name, also one that is gone."""
    if not working_dir or "\0" in working_dir:
        raise BadInput("The path of the directory is empty or holds a NUL.")
    return root_of(os.path.realpath(os.fsencode(os.path.expanduser(working_dir))))


def _target(timeline: Timeline, commit_hash: str) -> Target:
    """Of this directory's own snapshots the one whose id begins so, in either case."""
    if not _HASH.fullmatch(commit_hash):
        raise BadInput(f"Invalid commit hash (expected 4-64 hex characters): {commit_hash!r}")
    ids = {mark.snapshot for mark in timeline.marks} | set(timeline.history.snapshot_ids.values())
    if not ids:
        raise BadInput("No checkpoints exist for this directory")
    prefix = commit_hash.lower()
    found = sorted(oid.hex() for oid in ids if oid.hex().startswith(prefix))
    if not found:
        raise BadInput(f"Checkpoint '{commit_hash}' not found")
    if len(found) > 1:
        raise BadInput(f"Checkpoint '{commit_hash}' could be {', '.join(found)}")
    return timeline.resolve(found[0], time.time_ns())


def _literal(file_path: str) -> str:
    """One path, which means itself: no pattern, no way out, and not the whole directory."""
    if not file_path or "\0" in file_path:
        raise BadInput("The file path is empty or holds a NUL.")
    if os.path.isabs(file_path):
        raise BadInput(f"File path must be relative, got absolute path: {file_path!r}")
    if ".." in file_path.split("/"):
        raise BadInput(f"File path escapes the working directory via traversal: {file_path!r}")
    path = os.path.normpath(file_path)
    if path == ".":
        raise BadInput(f"File path names the whole directory: {file_path!r}")
    return path


def _content(path: bytes) -> bytes | None:
    """The object that a regular file would be."""
    try:
        with REAL.opened(path, os.O_RDONLY | os.O_NONBLOCK) as fd:
            is_file = stat.S_ISREG(REAL.fstat(fd).st_mode)
            return hash_object("blob", REAL.read_all(fd)) if is_file else None
    except OSError:
        return None


def _changed(done: Mapping[str, Any]) -> list[str]:
    return [path for name in ("created", "replaced", "deleted", "modes") for path in done[name]]


def _told(done: Mapping[str, Any], target: Target, then: State, root: Root) -> Answer:
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
        "restored_files": _changed(done) if done["outcome"] == "done" else [],
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


def _checkpoint(point: Point, first: bool) -> Answer:
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


def _answered(work: Callable[[], Answer]) -> Answer:
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


def _no_list(error: Exception) -> list[Answer]:
    """Without a store there is nothing to list; other trouble is said."""
    if not isinstance(error, NoStore):
        log.warning("checkpoints cannot be listed: %s", error)
    return []
