"""`turnmark down`: the service ends when everything is committed."""

from __future__ import annotations

import click

from ..client import connect
from ..context import Context, Unavailable, pass_context
from ..output import answer, note
from ..starting import wait_until_free


@click.command()
@pass_context
def command(context: Context) -> None:
    """Stop the service; what is pending is committed first."""
    client = connect(context)
    if client is None:
        answer(context, {"stopped": False}, "No service is running.")
        return
    with client:
        working = [row["id"] for row in client.call("status")["sessions"] if row["open"]]
        pid = client.call("shutdown", why="turnmark down")["pid"]
    if not wait_until_free(client.path):
        raise Unavailable(
            f"The service has not ended yet: process {pid}.", "It may be writing; look again."
        )
    answer(context, {"stopped": True, "pid": pid}, "The service has ended.")
    for session in working:
        note(context, f"A turn of {session} is open: its changes are next looked at when it ends.")
