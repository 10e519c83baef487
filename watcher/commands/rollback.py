"""`turnmark rollback`: the directory, or some paths in it, as they were at a point."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import click

from core.history import History
from core.model import show_path

from ..access import open_store, opened, rel_path
from ..context import Context, pass_context
from ..rollbacks import How, check_directory, options, run
from ..together import run_together


@click.command(
    epilog="A fuse (much would be deleted) needs the --plan HASH that the preview names."
)
@click.argument("point", default="@")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@options
@click.option("--session", metavar="ID", help="All workspaces of a session, back to its turn.")
@click.option("--mine-stays", is_flag=True, help="Keep what you changed since, and list it.")
@click.option("--conversation", is_flag=True, help="Have the agents forget the turns as well.")
@pass_context
def command(
    context: Context,
    point: str,
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
    """Make the directory, or only PATHs, equal to POINT (default: @, the newest)."""

    if session is not None:
        if paths or directory or conversation:
            raise click.UsageError("--session takes no PATH, no --dir and no --conversation.")
        of = ("rollback", point, "--session", session, *_flags(mine_stays, False))
        how = How(of, dry_run, plan, yes, full)
        return run_together(context, how, session, point, mine_stays=mine_stays)
    where = ("--dir", directory) if directory else ()
    words = ("rollback", point, *paths, *where, *_flags(mine_stays, conversation))
    params: dict[str, object] = {"point": point, "mine_stays": mine_stays}
    if paths:
        check_directory(context, directory, words)
        _, root = opened(context, directory, False)
        params["paths"] = [show_path(rel_path(context, root, path)) for path in paths]
    then = partial(_rewind, context, directory) if conversation else None
    how = How(words, dry_run, plan, yes, full, directory, then)
    return run(context, how, "rollback", params, "")


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
    found = rewind(context, marks, data["turns_undone"])
    return {"conversations": as_json(found)}, [one.words for one in found]
