"""`turnmark undo`: the way back over rollbacks, one more at each call."""

from __future__ import annotations

import click

from core.recorder import Recorder
from core.rollback import undo_request

from ..context import Context, pass_context
from ..rollbacks import How, Wish, options, run


@click.command()
@options
@pass_context
def command(
    context: Context, dry_run: bool, plan: str, yes: bool, directory: str | None, full: bool
) -> int:
    """Take back the last rollback that still stands; again, the one before."""

    def wanted(recorder: Recorder) -> Wish | None:
        request = undo_request(recorder.store, recorder.root.id)
        return Wish(request, f"Undo: back to the state {request.label}") if request else None

    where = ("--dir", directory) if directory else ()
    how = How(("undo", *where), dry_run, plan, yes, full, directory)
    return run(context, how, wanted, "There is no rollback to take back.")
