"""`turnmark redo`: a rollback that was undone is done again."""

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
    """Do the last undone rollback again."""

    where = ("--dir", directory) if directory else ()
    how = How(("redo", *where), dry_run, plan, yes, full, directory)
    return run(context, how, "redo", {}, "There is no undone rollback.")
