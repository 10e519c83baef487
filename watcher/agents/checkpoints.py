"""The predecessor's checkpoint manager, call for call, on turnmark's store.

For agents that call it in their own process: nothing here raises into their tools, and no answer
claims more than what is durable. With a service at work it is asked; without one core does it here.
"""

from __future__ import annotations

import logging
import os
import re
import stat
import time
from collections.abc import Collection, Iterable
from dataclasses import replace

from core.consolidate import consolidate, needed
from core.counts import CountBook
from core.disk import REAL
from core.errors import BadInput, Busy
from core.history import MarkSpec, read_snapshot
from core.model import is_within, label_of, parse_path, show_path
from core.objects import hash_object
from core.patch import render
from core.recorder import Recorder
from core.roots import Root, root_of
from core.states import stored_state
from core.store import Store
from core.timeline import Target, Timeline, registered

from ..access import locked, open_store, opened
from ..acting import acting, by_service
from ..client import connect
from ..context import Context
from ..differences import change_lines, difference, is_private, total
from ..outcomes import nothing
from ..views import View, private_paths
from .checkpoint_answers import (
    Answer,
    answered,
    changed,
    checkpoint,
    format_checkpoint_list,
    no_list,
    told,
)
from .checkpoint_upkeep import (
    TROUBLE,
    clear_all,
    clear_legacy,
    maybe_auto_prune_checkpoints,
    own_context,
    prune_checkpoints,
    store_status,
)

__all__ = [
    "CheckpointManager",
    "clear_all",
    "clear_legacy",
    "format_checkpoint_list",
    "maybe_auto_prune_checkpoints",
    "prune_checkpoints",
    "store_status",
]

log = logging.getLogger(__name__)

MARKERS = (
    *(".git", "pyproject.toml", "package.json", "Cargo.toml", "go.mod", "Makefile", "pom.xml"),
    *(".hg", "Gemfile"),
)
"""A directory that holds one of these is a project."""
LEDGER = 2000
COUNTING_SECONDS = 0.2
"""What a tool call may wait for numbers that only a listing shows."""
LISTING_SECONDS = 2.0
_HASH = re.compile(r"[0-9a-fA-F]{4,64}")


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
            return no_list(error)

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
            return no_list(error)
        return sorted(found, key=lambda one: str(one["timestamp"]), reverse=True)

    list_all_checkpoints = list_all

    def _listed(self, store: Store, root: Root) -> list[Answer]:
        timeline = Timeline(store, root.id)
        if pairs := timeline.pairs()[: self.max_snapshots]:
            CountBook(store).fill(pairs, LISTING_SECONDS)
        oldest = timeline.marks[0].seq if timeline.marks else 0
        points = timeline.points()[: self.max_snapshots]
        return [checkpoint(point, point.seq == oldest) for point in points]

    # Differences

    def diff(self, working_dir: str, commit_hash: str) -> Answer:
        """From a checkpoint to what is there now, new files included."""
        return answered(lambda: self._diff(working_dir, commit_hash))

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
        return answered(lambda: self._restore(working_dir, commit_hash, file_path, safe, plan))

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
        answer = told(done, target, then, root)
        answer["skipped_user_edits"] = skipped
        return answer if file_path is None else {**answer, "file": file_path}

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
        others = [p for p in changed(would) if not any(is_within(s, parse_path(p)) for s in stay)]
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
            no_list(error)
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
    wanted = {"label": label, "agent": "hermes", "always": False}
    if not again and (done := by_service(context, root, "mark", wanted)) is not None:
        return done.get("marked") is not False  # a service of before this answer always marked
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
