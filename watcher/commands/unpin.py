"""`turnmark unpin`: lets a pinned point be pruned again."""

from __future__ import annotations

import time

import click

from core.history import pin_ref
from core.timeline import Timeline

from ..access import find_root, open_store
from ..context import Context, pass_context
from ..output import answer
from ..views import dir_option
from .pin import pin_json


@click.command()
@click.argument("point")
@dir_option
@pass_context
def command(context: Context, point: str, directory: str | None) -> None:
    """Let POINT be pruned again."""
    store = open_store(context)
    root = find_root(context, store, directory)
    timeline = Timeline(store, root.id)
    target = timeline.resolve(point, time.time_ns())
    there = target.snapshot in timeline.history.pins
    if there:
        with store.exclusive():
            store.refs.delete([pin_ref(root.id, target.snapshot)])
    says = "no longer pinned" if there else "was not pinned"
    answer(context, pin_json(root.id, target, pinned=False), f"{target.label}: {says}.")
