"""`turnmark rollback`: the directory, or some paths in it, as they were at a point."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from core.diff import entry_at
from core.errors import BadInput
from core.history import History
from core.model import show_path
from core.roots import Root
from core.store import Store
from core.timeline import Timeline

from ..access import open_store, opened, rel_path
from ..context import Context, pass_context
from ..following import refuse_renamed
from ..rollbacks import FAILED, How, check_directory, check_somebody_is_there, options, run
from ..together import run_together

if TYPE_CHECKING:
    from ..picking import Chosen


PATH_LIKE = re.compile(r"/|\.[a-zA-Z]")
NEWEST = 5
"""So many snapshots are asked for a path that is not there."""


@click.command(
    epilog="A fuse (much would be deleted) needs the --plan HASH that the preview names."
)
@click.argument("point", required=False)
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@options
@click.option("--session", metavar="ID", help="All workspaces of a session, back to its turn.")
@click.option("--mine-stays", is_flag=True, help="Keep what you changed since, and list it.")
@click.option("--conversation", is_flag=True, help="Have the agents forget the turns as well.")
@pass_context
def command(
    context: Context,
    point: str | None,
    paths: tuple[str, ...],
    dry_run: bool,
    plan: str,
    yes: bool,
    directory: str | None,
    full: bool,
    session: str | None,
    mine_stays: bool,
    conversation: bool,
) -> int:
    """Make the directory, or only PATHs, equal to POINT.

    Without POINT you choose it from the list; with --yes, --dry-run, --plan or --session it is @,
    the newest.
    """
    name = "@" if point is None else point
    if point is not None and session is None:
        _refuse_path(context, directory, point)
    flags = _flags(mine_stays, conversation)
    if session is not None:
        if paths or directory or conversation:
            raise click.UsageError("--session takes no PATH, no --dir and no --conversation.")
        of = ("rollback", name, "--session", session, *flags)
        how = How(of, dry_run, plan, yes, full)
        return run_together(context, how, session, name, mine_stays=mine_stays)
    where = ("--dir", directory) if directory else ()
    then = partial(_rewind, context, directory) if conversation else None
    how = How(("rollback", name, *paths, *where, *flags), dry_run, plan, yes, full, directory, then)
    params: dict[str, object] = {"point": name, "mine_stays": mine_stays}
    if paths:
        check_directory(context, directory, how.words)
        _, root = opened(context, directory, False)
        refuse_renamed(context, directory, name, paths)
        params["paths"] = [show_path(rel_path(context, root, path)) for path in paths]
    if point is None and not (dry_run or plan or yes):
        chosen = _choose(context, how, mine_stays)
        if chosen is None:
            return FAILED
        how = replace(how, words=("rollback", chosen.number, *where, *flags))
        params["point"] = chosen.spec
    return run(context, how, "rollback", params, "")


def _refuse_path(context: Context, directory: str | None, point: str) -> None:
    """Whoever names only a path is told what comes before it; most often it is gone by now."""
    if not (PATH_LIKE.search(point) or os.path.lexists(context.cwd / point)):
        return
    store = open_store(context)
    _, root = opened(context, directory, False)
    timeline = Timeline(store, root.id)
    try:
        timeline.resolve(point, time.time_ns())
    except BadInput as error:
        if not _is_path(context, store, timeline, root, point):
            return
        where = ("--dir", directory) if directory else ()
        command = shlex.join(["turnmark", "rollback", *where, "@", point])
        hint = f"The point comes first: `{command}` takes this path back to the newest point."
        raise BadInput(error.message, hint) from error


def _is_path(context: Context, store: Store, timeline: Timeline, root: Root, text: str) -> bool:
    """Whether it is there, or was in one of the newest snapshots."""
    try:
        path = rel_path(context, root, text)
    except BadInput:
        return False
    if os.path.lexists(context.cwd / text):
        return True
    whole = [one for one in timeline.snapshots if not one.partial]
    return any(entry_at(store.tree, one.files, path) is not None for one in whole[-NEWEST:])


def _choose(context: Context, how: How, mine_stays: bool) -> Chosen | None:
    from ..picking import choose  # a rollback to a named point needs nothing of it

    check_somebody_is_there(context, "point")
    check_directory(context, how.directory, how.words)
    return choose(context, how, mine_stays=mine_stays)


def _flags(mine_stays: bool, conversation: bool) -> tuple[str, ...]:
    given = (("--mine-stays", mine_stays), ("--conversation", conversation))
    return tuple(name for name, is_given in given if is_given)


def _rewind(
    context: Context, directory: str | None, data: Mapping[str, Any]
) -> tuple[dict[str, object], list[str]]:
    """The conversations of the turns that were taken back."""
    from ..agents.conversation import as_json, rewind

    _, root = opened(context, directory, False)
    marks = History(open_store(context), root.id).marks()
    found = rewind(context, root.shown, marks, data["turns_undone"])
    return {"conversations": as_json(found)}, [one.words for one in found]
