"""`turnmark rollback`: the directory, or some paths in it, as they were at a point."""

from __future__ import annotations

import click

from core.model import show_path

from ..access import opened, rel_path
from ..context import Context, pass_context
from ..rollbacks import How, options, run


@click.command(
    epilog="A fuse (much would be deleted) needs the --plan HASH that the preview names."
)
@click.argument("point", default="@")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@options
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
) -> int:
    """Make the directory, or only PATHs, equal to POINT (default: @, the newest)."""

    params: dict[str, object] = {"point": point}
    if paths:
        _, root = opened(context, directory, False)
        params["paths"] = [show_path(rel_path(context, root, path)) for path in paths]
    where = ("--dir", directory) if directory else ()
    how = How(("rollback", point, *paths, *where), dry_run, plan, yes, full, directory)
    return run(context, how, "rollback", params, "")
