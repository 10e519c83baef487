"""How commands reach a workspace: which one is meant, who may write.

Knows core and the configuration; not what any command does with them, nor how it answers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from core.disk import REAL
from core.errors import BadInput, NoStore, TurnmarkError
from core.gitcontext import from_json
from core.model import ROOT, Maker, Point, RelPath, rfc3339
from core.refs import TOP
from core.roots import Root, check_root, root_of
from core.store import Store, registry_path

from .context import Context
from .output import note

if TYPE_CHECKING:
    from core.keeping import Policy
    from core.recorder import Recorder, Taken

    from .config import StoreLimits


# Reading


def open_store(context: Context) -> Store:
    store = Store.open(str(context.store_path))
    for reason in store.unfinished.values():
        note(context, reason)
    return store


@contextmanager
def briefly_open(context: Context) -> Iterator[Store]:
    """A store for one use in a long life: its packs are closed, not left to be found unused."""
    store = open_store(context)
    try:
        yield store
    finally:
        for pack in store.packs():
            pack.close()


def find_root(context: Context, store: Store, directory: str | None) -> Root:
    """The known workspace that is, or holds, a directory; it need not exist any more."""
    path = _resolved(context, directory)
    root = _holding(store, path)
    if root is not None and directory and not os.path.lexists(path) and root.path != path:
        note(context, f"{os.fsdecode(path)} is not there; this is of {root.shown}.")
    if root is None:
        raise BadInput(
            f"{os.fsdecode(path)} lies in no workspace.",
            "`turnmark list --everywhere` shows the known ones; `turnmark snapshot` makes one.",
        )
    return root


def is_known(store: Store, root: Root) -> bool:
    """Whether a workspace is registered; or has a history, should its register be lost."""
    registered = store.disk.exists(registry_path(store, root.id))
    return registered or bool(store.refs.names(f"{TOP}/{root.id}"))


def _holding(store: Store, path: bytes, also: Iterable[bytes] = ()) -> Root | None:
    """The nearest directory, from path upwards, that is a workspace or one of the others given."""
    others = set(also)
    while True:
        root = root_of(path)
        if path in others or is_known(store, root):
            return root
        above = os.path.dirname(path)
        if above == path:
            return None
        path = above


def _resolved(context: Context, directory: str | None) -> bytes:
    if directory is None:
        return os.fsencode(context.cwd)
    _check_text(directory)
    return os.path.realpath(os.fsencode(context.cwd / directory))


def _check_text(path: str) -> None:
    if not path or "\0" in path:
        raise BadInput("A path is empty or holds a NUL.", "Name a file or a directory.")


def store_size(context: Context) -> dict[str, int]:
    """Bytes on disk, and how many snapshots."""
    try:
        store = open_store(context)
    except NoStore:
        return {"bytes": 0, "snapshots": 0}
    from core.sweep import size_on_disk

    snapshots = sum(name.split("/")[3] == "s" for name in store.refs.names(TOP))
    return {"bytes": size_on_disk(store), "snapshots": snapshots}


# Writing


@contextmanager
def locked(context: Context, directory: str | None, *, create: bool) -> Iterator[Recorder]:
    """The recorder of one workspace, and its lock."""
    from core.recorder import Recorder  # what only reads must not wait for these to be loaded
    from core.rollback import finish_interrupted
    from core.station import START_ABOVE, allow_scout

    check_enabled(context)
    allow_scout(START_ABOVE)
    store, root = opened(context, directory, create)
    with store.workspace_lock(root.id):
        recorder = Recorder(store, root, context.config.listed().captured_by(root.path))
        try:
            if finish_interrupted(recorder) is not None:
                note(context, "finished a rollback that was interrupted")
            yield recorder
        finally:
            recorder.close()


def check_enabled(context: Context) -> None:
    if not context.config.enabled:
        raise TurnmarkError(
            "turnmark is switched off: the configuration says `enabled: false`.",
            f"Change it in {context.config_path}; reading commands work all the same.",
        )


def opened(
    context: Context, directory: str | None, create: bool, watched: Iterable[bytes] = ()
) -> tuple[Store, Root]:
    """A store is made only for a root that may be one; `watched` are roots that a service has."""
    base = str(context.store_path)
    try:
        store = Store.open(base)
    except NoStore:
        if not create:
            raise
        path = os.fsdecode(_new_root(context, None, watched)) if directory is None else directory
        root = _checked(context, path)
        return Store.create(base), root
    if directory is None:
        top = _new_root(context, store, watched) if create else find_root(context, store, None).path
        return store, _checked(context, os.fsdecode(top))
    root = _checked(context, directory)
    if not create and not is_known(store, root):
        raise BadInput(
            f"{directory} is not a workspace.", "`turnmark list --everywhere` shows the known ones."
        )
    return store, root


def _new_root(context: Context, store: Store | None, watched: Iterable[bytes]) -> bytes:
    """What holds the current directory, known or on a watch list; else the directory itself."""
    here, listed = os.fsencode(context.cwd), [*context.config.listed().rules, *watched]
    if store is None:
        above = (top for top in listed if here == top or here.startswith(top.rstrip(b"/") + b"/"))
        return max(above, key=len, default=here)
    found = _holding(store, here, listed)
    return found.path if found else here


def _checked(context: Context, directory: str) -> Root:
    _check_text(directory)
    path = os.path.join(context.cwd, directory)
    home, store = str(context.user_home), str(context.store_path)
    return check_root(REAL, path, home=home, store=store)


def synced(context: Context) -> bool:
    """Whether what a person or an agent asks for is to be durable before it is answered."""
    return context.config.durability != "none"


def policy_of(limits: StoreLimits) -> Policy:
    """What core needs to know of the configured limits."""
    from core.keeping import MEGABYTE, Policy

    return Policy(
        max_points=limits.max_points,
        burst_hours=limits.burst_hours,
        burst_turns=limits.burst_turns,
        max_total_size=limits.max_total_size_mb * MEGABYTE,
        retention_days=limits.retention_days,
        min_interval_hours=limits.min_interval_hours,
        delete_orphans=limits.delete_orphans,
    )


# Words of the answers


def taken_json(taken: Taken, seq: int) -> dict[str, object]:
    """What a writing command tells programs of the snapshot or mark that it made."""
    return {
        "workspace": taken.snapshot.workspace,
        "id": taken.snapshot.id.hex(),
        "seq": seq,
        "changed": taken.changed,
        "gaps": taken.snapshot.gaps,
        "durable": taken.durable,
    }


def point_json(point: Point) -> dict[str, object]:
    """A point as `list` tells it to programs."""
    counts = point.counts
    return {
        "n": point.n,
        "id": point.id.hex(),
        "seq": point.seq,
        "time": rfc3339(point.time_ns),
        "kind": point.kind,
        "session": point.session,
        "turn": point.turn,
        "turn_id": point.turn_id,
        "agent": point.agent,
        "label": point.label,
        "status": point.status,
        "files": counts.files if counts else None,
        "insertions": counts.insertions if counts else None,
        "deletions": counts.deletions if counts else None,
        "gaps": point.gaps,
        "pinned": point.pinned,
        **maker_json(point.by),
        "git": git_json(point.extra.get("git")),
    }


def maker_json(maker: Maker | None) -> dict[str, object]:
    """Who made a change: `turn`, `shared` by several, `person`, `rollback`, `found`, `mixed`."""
    return {"by": maker.who if maker else None, "by_turns": list(maker.turns) if maker else []}


def git_json(noted: object) -> dict[str, object] | None:
    found = from_json(noted)
    return found.as_json() if found else None


def rel_path(context: Context, root: Root, text: str) -> RelPath:
    """The path below the root that a user means, literally: nothing below the root is resolved.

    Links above the root are, since a user may have come by another name of the same directory.
    """
    _check_text(text)
    named = os.path.normpath(os.fsencode(context.cwd / text))
    above, name = os.path.split(named)
    ways = (named, os.path.join(os.path.realpath(above), name), os.path.realpath(named))
    for way in ways[:2]:
        if way.startswith(root.path + b"/"):
            return RelPath(way[len(root.path) + 1 :])
    if root.path in ways:
        return ROOT
    raise BadInput(
        f"{text} lies outside the workspace {root.shown}.", "Paths start at the current directory."
    )
