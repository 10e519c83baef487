"""`turnmark snapshot`: one now, by looking at every file."""

from __future__ import annotations

import click

from ..acting import acting
from ..context import Context, pass_context
from ..output import answer


def _has_no_name(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise click.UsageError(
            "A snapshot has no name; `turnmark mark -m LABEL` sets a point that has.", ctx
        )


@click.command()
@click.argument("directory", metavar="[DIR]", required=False)
@click.option("-m", "--message", hidden=True, expose_value=False, callback=_has_no_name)
@pass_context
def command(context: Context, directory: str | None) -> None:
    """Take a snapshot of DIR now; where something changed, it is a point of the list."""
    with acting(context, directory, "snapshot", {}, create=True) as (data, people):
        answer(context, data, *people["lines"])
