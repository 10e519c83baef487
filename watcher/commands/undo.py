"""`turnmark undo`: the way back over rollbacks, one more at each call."""

from __future__ import annotations

import click

from ..context import Context, pass_context
from ..rollbacks import How, options, run


@click.command()
@options
@pass_context
def command(
    context: Context, dry_run: bool, plan: str, yes: bool, directory: str | None, full: bool
) -> int:
    """Take back the last rollback that still stands; again, the one before."""

    where = ("--dir", directory) if directory else ()
    how = How(("undo", *where), dry_run, plan, yes, full, directory)
    return run(context, how, "undo", {}, "There is no rollback to take back.")
