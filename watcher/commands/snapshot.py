"""`turnmark snapshot`: one now, by looking at every file."""

from __future__ import annotations

import click

from ..acting import acting
from ..context import Context, pass_context
from ..output import answer


@click.command()
@click.argument("directory", metavar="[DIR]", required=False)
@pass_context
def command(context: Context, directory: str | None) -> None:
    """Take a snapshot of DIR now; where something changed, it is a point of the list."""
    with acting(context, directory, "snapshot", {}, create=True) as (data, people):
        answer(context, data, *people["lines"])
