"""`turnmark mark`: a rollback point of a person's own."""

from __future__ import annotations

import click

from core.history import MarkSpec
from core.turns import label_of

from ..access import recording, synced, taken_json
from ..context import Context, pass_context
from ..output import answer
from ..words import short


@click.command()
@click.option("-m", "--message", metavar="TEXT", default="", help="What the list is to call it.")
@click.argument("directory", metavar="[DIR]", required=False)
@pass_context
def command(context: Context, message: str, directory: str | None) -> None:
    """Set a rollback point of your own in DIR, whether anything changed or not."""
    with recording(context, directory, create=True) as recorder:
        spec = MarkSpec("manual", label=label_of(message))
        taken = recorder.take(mark=spec, sync=synced(context))
        assert taken.mark is not None
        name = f' "{spec.label}"' if spec.label else ""
        says = f"Marked {recorder.root.shown}{name}: {short(taken.snapshot.id)}."
        answer(context, taken_json(taken, taken.mark.seq), says)
