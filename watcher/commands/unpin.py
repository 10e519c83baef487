"""`turnmark unpin`: lets a pinned point be pruned again."""

from __future__ import annotations

import click

from ..access import find_root, open_store
from ..acting import by_service
from ..actions import unpin_point
from ..context import Context, pass_context
from ..output import answer
from ..views import dir_option


@click.command()
@click.argument("point")
@dir_option
@pass_context
def command(context: Context, point: str, directory: str | None) -> None:
    """Let POINT be pruned again."""
    store = open_store(context)
    root = find_root(context, store, directory)
    data = by_service(context, root, "unpin", {"point": point})
    if data is None:
        data = unpin_point(store, root, {"point": point})
    people = data.pop("people")
    answer(context, data, *people["lines"])
