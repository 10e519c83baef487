"""`turnmark remove`: what `init` put into an agent's settings, out again."""

from __future__ import annotations

import click

from ..agents import AGENTS
from ..agents.model import Agent
from ..agents.settings import Ledger, removal, take_out
from ..agents.wishes import Place
from ..cli import EXCEPTIONS, OK
from ..context import Context, pass_context
from ..output import answer
from .init import row, said


@click.command()
@click.argument("agent", required=False, type=click.Choice(list(AGENTS)))
@click.option("--all", "everyone", is_flag=True, help="Every agent.")
@click.option("--project", is_flag=True, help="Only for the current directory (Claude Code).")
@click.option("--dry-run", is_flag=True, help="Show the differences, change nothing.")
@pass_context
def command(
    context: Context, agent: str | None, everyone: bool, project: bool, dry_run: bool
) -> int:
    """Take turnmark's entries out of AGENT's settings; what others wrote stays as it is."""
    if (agent is None) == (not everyone):
        raise click.UsageError("Name an agent, or pass --all.")
    place = Place(context, context.cwd if project else None)
    chosen = list(AGENTS.values()) if everyone else [AGENTS[agent or ""]]
    rows, lines = take_out_of(context, chosen, place, dry_run=dry_run)
    answer(context, {"agents": rows, "dry_run": dry_run}, "\n".join(lines))
    return EXCEPTIONS if any(one["refused"] for one in rows) else OK


def take_out_of(
    context: Context, chosen: list[Agent], place: Place, *, dry_run: bool
) -> tuple[list[dict[str, object]], list[str]]:
    ledger = Ledger(context.home)
    rows: list[dict[str, object]] = []
    lines: list[str] = []
    for agent in chosen:
        changes, troubles = removal(agent, place, ledger)
        if not dry_run:
            take_out(changes, ledger)
        if changes or troubles:
            rows.append(row(agent, changes, troubles))
            lines += said(agent, changes, troubles, dry_run=dry_run)
    none = "No agent's settings name turnmark."
    if len(chosen) == 1:
        none = f"{chosen[0].title}'s settings do not name turnmark."
    return rows, lines or [none]
