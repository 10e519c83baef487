"""`turnmark pin`: keeps a point from being pruned."""

from __future__ import annotations

import click

from ..access import find_root, open_store
from ..acting import by_service
from ..actions import pin_point
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
    data = by_service(context, root, "pin", {"point": point})
    if data is None:
        with store.workspace_lock(root.id):
            data = pin_point(store, root, {"point": point})
    people = data.pop("people")
    answer(context, data, *people["lines"])
