"""`turnmark revert`: what one turn changed goes, what came later stays."""

from __future__ import annotations

import click

from ..context import Context, pass_context
from ..rollbacks import How, options, run

SIDES = {"markers": "--markers", "mine": "--mine", "theirs": "--theirs"}


@click.command(epilog="A turn: turn:7, the number of a turn in the list, or SESSION/7.")
@click.argument("turns", nargs=-1, metavar="TURN...")
@click.option("--session", metavar="ID", help="Turns of this session; without a TURN all of them.")
@click.option("--markers", "side", flag_value="markers", help="Write conflict marks into texts.")
@click.option("--mine", "side", flag_value="mine", help="In conflicts keep what is there.")
@click.option("--theirs", "side", flag_value="theirs", help="Take the turn out regardless.")
@options
@pass_context
def command(
    context: Context,
    turns: tuple[str, ...],
    session: str | None,
    side: str | None,
    dry_run: bool,
    plan: str,
    yes: bool,
    directory: str | None,
    full: bool,
) -> int:
    """Take out what TURNs changed, and keep what came later."""
    if not turns and session is None:
        raise click.UsageError("Name a turn, or a session with --session.")
    params = {"turns": list(turns), "session": session, "side": side or ""}
    of = ("--session", session) if session else ()
    where = ("--dir", directory) if directory else ()
    words = ("revert", *turns, *of, *((SIDES[side],) if side else ()), *where)
    how = How(words, dry_run, plan, yes, full, directory)
    return run(context, how, "revert", params, "")
