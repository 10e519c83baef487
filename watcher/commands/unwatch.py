"""`turnmark unwatch`: a directory less for the running service."""

from __future__ import annotations

import os

import click

from core.errors import BadInput

from ..client import PATIENCE, connect
from ..context import Context, Unavailable, pass_context
from ..output import answer


@click.command()
@click.argument("directories", metavar="DIR...", nargs=-1, required=True)
@pass_context
def command(context: Context, directories: tuple[str, ...]) -> None:
    """Watch DIRs no longer; what is pending is committed, the history stays.

    One of the watch list comes back when the configuration changes or the service starts again.
    """
    if not all(directories):
        raise BadInput("The name of a directory is empty.", "Name a directory.")
    client = connect(context)
    if client is None:
        raise Unavailable("No service is running.", "So nothing is watched.")
    with client:
        dirs = [os.path.realpath(os.path.join(context.cwd, one)) for one in directories]
        found = client.call("unwatch", patience=PATIENCE, dirs=dirs)
    answer(context, found, *(f"No longer watching {row['root']}." for row in found["workspaces"]))
