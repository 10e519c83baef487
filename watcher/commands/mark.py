"""`turnmark mark`: a rollback point of a person's own."""

from __future__ import annotations

import os
import shlex

import click

from core.errors import BadInput
from core.model import label_of

from ..acting import acting
from ..context import Context, pass_context
from ..output import answer


@click.command()
@click.option("-m", "--message", metavar="TEXT", default="", help="What the list is to call it.")
@click.argument("directory", metavar="[DIR]", required=False)
@pass_context
def command(context: Context, message: str, directory: str | None) -> None:
    """Set a rollback point of your own in DIR, whether anything changed or not."""
    if directory and not message and not os.path.lexists(context.cwd / directory):
        command = shlex.join(["turnmark", "mark", "-m", directory])
        raise BadInput(
            f"There is no directory {directory!r}.", f"A label comes with -m: `{command}`."
        )
    params = {"label": label_of(message)}
    with acting(context, directory, "mark", params, create=True) as (data, people):
        answer(context, data, *people["lines"])
