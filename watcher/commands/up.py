"""`turnmark up`: the service, in the background or here."""

from __future__ import annotations

import click

from core.errors import TurnmarkError

from .. import __version__, logs
from ..access import check_enabled
from ..address import place_for_socket
from ..context import Context, pass_context
from ..output import answer, note, put
from ..starting import Readiness, daemon_command, ensure_service
from ..systemd import unit
from ..words import trouble_of


@click.command()
@click.option("-f", "--foreground", is_flag=True, help="Stay here, and log to stderr.")
@click.option("--idle", type=click.IntRange(min=1), metavar="SECONDS", help="End when not needed.")
@click.option(
    "--print-unit", type=click.Choice(["systemd", "launchd"]), help="Print a file that starts it."
)
@click.option("--ready-fd", type=int, hidden=True)
@pass_context
def command(
    context: Context,
    foreground: bool,
    idle: int | None,
    print_unit: str | None,
    ready_fd: int | None,
) -> int | None:
    """Start the service, unless it runs already."""
    if print_unit:
        log = str(logs.log_path(context.home).with_name("stderr.log"))
        put(unit(print_unit, daemon_command(context), log))
        return None
    if foreground:
        return _serve(context, idle, Readiness(ready_fd), to_file=ready_fd is not None)
    check_enabled(context)
    client, started = ensure_service(context, idle)
    with client:
        if idle is None:
            client.call("stay")
        hello = client.hello()
        rows = client.call("status")["workspaces"]
    says = f"The service {'has started' if started else 'runs already'}: process {hello['pid']}."
    data = {"started": started, "pid": hello["pid"], "version": hello["version"]}
    answer(context, data, says)
    for row in rows:
        if row["state"] == "paused":
            note(context, f"{row['root']} is paused: {trouble_of(row)}.")
    if hello["version"] != __version__:
        old = f"It is version {hello['version']}, this is {__version__}"
        note(context, f"{old}: `turnmark down`, then `turnmark up`.")
    return None


def _serve(context: Context, idle: int | None, readiness: Readiness, *, to_file: bool) -> int:
    # watchdog and what else the service needs is not for the other commands to pay.
    from ..service import serve

    try:
        check_enabled(context)
        path = place_for_socket(context.env, str(context.store_path))
        if to_file:
            logs.to_file(context.home, context.config.log)
        else:
            logs.to_stderr(context.env, context.config.log)
    except TurnmarkError as error:
        readiness.failed(error)
        raise
    return serve(context, path, readiness, idle)
