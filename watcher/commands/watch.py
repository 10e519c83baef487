"""`turnmark watch`: a directory more for the running service."""

from __future__ import annotations

import os

import click

from core.errors import BadInput
from core.model import parse_path

from ..access import open_store
from ..actions import outer
from ..client import connect
from ..context import Context, Unavailable, pass_context
from ..output import answer, note


@click.command()
@click.argument("directories", metavar="DIR...", nargs=-1, required=True)
@pass_context
def command(context: Context, directories: tuple[str, ...]) -> None:
    """Watch DIRs until they are dropped or the service ends.

    The watch list of the configuration is the lasting way.
    """
    if not all(directories):
        raise BadInput("The name of a directory is empty.", "Name a directory.")
    client = connect(context)
    if client is None:
        raise Unavailable("No service is running.", "`turnmark up` starts it.")
    with client:
        dirs = [os.path.join(context.cwd, directory) for directory in directories]
        found = client.call("watch", dirs=dirs)
    answer(context, found, *(f"Watching {row['root']}." for row in found["workspaces"]))
    for row in found["workspaces"]:
        for line in outer(open_store(context), parse_path(row["root"])):
            note(context, line)
