"""`turnmark snapshot`: one now, by looking at every file."""

from __future__ import annotations

import click

from core.about import decode_about
from core.history import History, MarkSpec
from core.recorder import Recorder, Taken

from ..access import recording, synced, taken_json
from ..context import Context, pass_context
from ..output import answer
from ..unprotected import lines, measure
from ..words import count, short

UNPROTECTED_LINES = 10


@click.command()
@click.argument("directory", metavar="[DIR]", required=False)
@pass_context
def command(context: Context, directory: str | None) -> None:
    """Take a snapshot of DIR now; where something changed, it is a point of the list."""
    with recording(context, directory, create=True) as recorder:
        first = recorder.last is None
        spec = MarkSpec("manual")
        taken = recorder.take(mark=spec, always_mark=False, sync=synced(context))
        gaps = _unprotected(recorder, taken) if first and not context.json else []
        data = taken_json(taken, _seq(recorder, taken))
        answer(context, data, _says(recorder, taken, first), *gaps)


def _seq(recorder: Recorder, taken: Taken) -> int:
    """That of the point: of the new mark, or of the newest that was there already."""
    if taken.mark is not None:
        return taken.mark.seq
    marks = History(recorder.store, recorder.root.id).marks()
    return max((m.seq for m in marks if m.snapshot == taken.snapshot.id), default=0)


def _says(recorder: Recorder, taken: Taken, first: bool) -> str:
    snapshot, root = taken.snapshot, recorder.root.shown
    if first:
        return f"First snapshot of {root}: {short(snapshot.id)}, {count(snapshot.total, 'file')}."
    if taken.changed:
        return f"Snapshot of {root}: {short(snapshot.id)}, {count(taken.changed, 'path')} changed."
    same = "the newest snapshot is" if taken.mark is None else "now a point:"
    return f"Nothing changed in {root}; {same} {short(snapshot.id)}."


def _unprotected(recorder: Recorder, taken: Taken) -> list[str]:
    about = decode_about(recorder.store.blob(taken.snapshot.about))
    return lines(measure(recorder.root.path, about.gap_list()), UNPROTECTED_LINES)
