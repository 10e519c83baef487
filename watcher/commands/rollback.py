"""`turnmark rollback`: the directory, or some paths in it, as they were at a point."""

from __future__ import annotations

import time

import click

from core.recorder import Recorder
from core.rollback import Request
from core.timeline import Timeline

from ..access import rel_path
from ..context import Context, pass_context
from ..rollbacks import How, options, run


@click.command(epilog="A fuse (much would be deleted) needs the --plan HASH that the preview names.")
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

    def wanted(recorder: Recorder) -> Request:
        timeline = Timeline(recorder.store, recorder.root.id)
        target = timeline.resolve(point, time.time_ns())
        tops = tuple(rel_path(context, recorder.root, path) for path in paths)
        return Request(target.snapshot, target.seq, target.label, "rollback", tops)

    where = ("--dir", directory) if directory else ()
    how = How(("rollback", point, *paths, *where), dry_run, plan, yes, full, directory)
    return run(context, how, wanted, "")
