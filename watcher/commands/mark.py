"""`turnmark mark`: a rollback point of a person's own."""

from __future__ import annotations

import click

from core.turns import label_of

from ..acting import acting
from ..context import Context, pass_context
from ..output import answer


@click.command()
@click.option("-m", "--message", metavar="TEXT", default="", help="What the list is to call it.")
@click.argument("directory", metavar="[DIR]", required=False)
@pass_context
def command(context: Context, message: str, directory: str | None) -> None:
    """Set a rollback point of your own in DIR, whether anything changed or not."""
    params = {"label": label_of(message)}
    with acting(context, directory, "mark", params, create=True) as (data, people):
        answer(context, data, *people["lines"])
