"""`turnmark rollback`: the directory, or some paths in it, as they were at a point."""

from __future__ import annotations

import time

import click

from core.recorder import Recorder
from core.rollback import Request
from core.timeline import Target, Timeline

from ..access import rel_path
from ..context import Context, pass_context
from ..rollbacks import How, Wish, options, run
from ..words import one_line, short

LABEL_ROOM = 60


@click.command(
    epilog="A fuse (much would be deleted) needs the --plan HASH that the preview names."
)
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

    def wanted(recorder: Recorder) -> Wish:
        timeline = Timeline(recorder.store, recorder.root.id)
        target = timeline.resolve(point, time.time_ns())
        tops = tuple(rel_path(context, recorder.root, path) for path in paths)
        request = Request(target.snapshot, target.seq, _lasting(target), "rollback", tops)
        return Wish(request, f"Rollback to {target.label}")

    where = ("--dir", directory) if directory else ()
    how = How(("rollback", point, *paths, *where), dry_run, plan, yes, full, directory)
    return run(context, how, wanted, "")


def _lasting(target: Target) -> str:
    """What the history will call the point: its number in the list will be another's soon."""
    point = target.point
    if point is None or point.kind not in ("turn", "manual", "baseline", "import"):
        return f"snapshot {short(target.snapshot)}"
    end = "the end of " if target.snapshot != point.id else ""
    name = f"turn {point.turn}" if point.kind == "turn" else f"snapshot {short(point.id)}"
    label = f', "{one_line(point.label, LABEL_ROOM)}"' if point.label else ""
    return f"{end}{name}{label}"
