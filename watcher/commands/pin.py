"""`turnmark pin`: keeps a point from being pruned."""

from __future__ import annotations

import time

import click

from core.history import pin_ref
from core.timeline import Target, Timeline

from ..access import find_root, open_store
from ..context import Context, pass_context
from ..output import answer
from ..views import dir_option


@click.command()
@click.argument("point")
@dir_option
@pass_context
def command(context: Context, point: str, directory: str | None) -> None:
    """Keep POINT from being pruned."""
    store = open_store(context)
    root = find_root(context, store, directory)
    with store.workspace_lock(root.id), store.writing():
        # Looked up under the locks: a point cannot be pruned between that and the pin.
        timeline = Timeline(store, root.id)
        target = timeline.resolve(point, time.time_ns())
        there = target.snapshot in timeline.history.pins
        if not there:
            store.refs.create(pin_ref(root.id, target.snapshot), target.snapshot, sync=True)
    says = "was pinned already" if there else "pinned"
    answer(context, pin_json(root.id, target, pinned=True), f"{target.label}: {says}.")


def pin_json(workspace: str, target: Target, *, pinned: bool) -> dict[str, object]:
    return {
        "workspace": workspace,
        "id": target.snapshot.hex(),
        "seq": target.seq,
        "pinned": pinned,
    }
