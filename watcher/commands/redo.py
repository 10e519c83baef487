"""`turnmark redo`: a rollback that was undone is done again."""

from __future__ import annotations

import click

from core.recorder import Recorder
from core.rollback import redo_request

from ..context import Context, pass_context
from ..rollbacks import How, Wish, options, run


@click.command()
@options
@pass_context
def command(
    context: Context, dry_run: bool, plan: str, yes: bool, directory: str | None, full: bool
) -> int:
    """Do the last undone rollback again."""

    def wanted(recorder: Recorder) -> Wish | None:
        request = redo_request(recorder.store, recorder.root.id)
        return Wish(request, f"Redo: on to the state {request.label}") if request else None

    where = ("--dir", directory) if directory else ()
    how = How(("redo", *where), dry_run, plan, yes, full, directory)
    return run(context, how, wanted, "There is no undone rollback.")
