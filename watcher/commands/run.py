"""`turnmark run`: an agent, with its directories watched while it runs."""

from __future__ import annotations

import click

from ..context import Context, pass_context
from ..running import Wish, run


class Dashed(click.Command):
    """What comes after the first -- is the command to run, whatever it looks like."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            args, ctx.meta["command"] = args[:at], args[at + 1 :]
        elif "-h" not in args and "--help" not in args:
            raise click.UsageError("Write -- before the command to run.", ctx)
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "-- COMMAND..."]


@click.command(cls=Dashed)
@click.option("--session", metavar="ID", help="The name of the session; one is made up otherwise.")
@click.argument("directories", metavar="[DIR]...", nargs=-1)
@pass_context
@click.pass_context
def command(
    ctx: click.Context, context: Context, session: str | None, directories: tuple[str, ...]
) -> int:
    """Run COMMAND with DIRs (default: where you are) watched, and exit as it does.

    The first look is waited for. Every turn of the agent becomes a point to roll back to; where it
    tells of none, the whole run is one.
    """
    words: list[str] = ctx.meta["command"]
    if not words:
        raise click.UsageError("There is no command to run after --.", ctx)
    return run(context, Wish(tuple(words), directories, session))
