"""`turnmark init`: hooks into an agent's settings, reversibly."""

from __future__ import annotations

import click

from ..agents import AGENTS, client
from ..agents.model import Agent
from ..agents.settings import Change, Ledger, Trouble, carry_out, plan, present
from ..agents.wishes import Place, wishes
from ..cli import EXCEPTIONS, FAILED, OK
from ..context import Context, pass_context
from ..output import answer


class AgentName(click.Choice[str]):
    """One of those we know, which a message of our own names once."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in self.choices:
            known = ", ".join(self.choices)
            raise click.UsageError(f"There is no agent '{value}'; those known are {known}.", ctx)
        return value


agent_argument = click.argument("agent", required=False, type=AgentName(list(AGENTS)))


@click.command()
@agent_argument
@click.option("--all", "everyone", is_flag=True, help="Every agent that is found here.")
@click.option("--project", is_flag=True, help="Only for the current directory (Claude Code).")
@click.option("--dry-run", is_flag=True, help="Show the differences, change nothing.")
@click.option("--print", "only_print", is_flag=True, help="Print what belongs into which file.")
@pass_context
def command(
    context: Context,
    agent: str | None,
    everyone: bool,
    project: bool,
    dry_run: bool,
    only_print: bool,
) -> int:
    """Have AGENT tell turnmark when its turns begin and end."""
    if (agent is None) == (not everyone):
        raise click.UsageError("Name an agent, or pass --all.")
    chosen = present(context) if everyone else [AGENTS[agent or ""]]
    if project and [one.name for one in chosen] != ["claude-code"]:
        raise click.UsageError("Only claude-code has settings for one project that nobody shares.")
    place = Place(context, context.cwd if project else None)
    if only_print:
        return _print(context, chosen, place)
    return _init(context, chosen, place, dry_run)


def _print(context: Context, chosen: list[Agent], place: Place) -> int:
    wanted = [(one, wish) for one in chosen for wish in wishes(one, place)]
    rows = [
        {"agent": one.name, "path": str(wish.path), "text": wish.snippet()} for one, wish in wanted
    ]
    answer(context, {"files": rows}, *(f"# {row['path']}\n{row['text']}" for row in rows))
    return OK


def _init(context: Context, chosen: list[Agent], place: Place, dry_run: bool) -> int:
    ledger, rows, lines, troubled = Ledger(context.home), [], [], False
    if not dry_run:
        client.install(context)
    for agent in chosen:
        changes, troubles = plan(agent, place, ledger)
        if not dry_run:
            carry_out(agent, changes, place, ledger)
        troubled = troubled or any(one.needed for one in troubles)
        rows.append(row(agent, changes, troubles))
        lines += said(agent, changes, troubles, dry_run=dry_run, advice=not dry_run)
    if not chosen:
        lines = ["No agent is found here. `turnmark init AGENT` prepares one that will be."]
    answer(context, {"agents": rows, "dry_run": dry_run}, "\n".join(lines))
    done = any(one["changed"] or one["unchanged"] for one in rows)
    return (EXCEPTIONS if done else FAILED) if troubled else OK


def row(agent: Agent, changes: list[Change], troubles: list[Trouble]) -> dict[str, object]:
    return {
        "agent": agent.name,
        "changed": [str(change.path) for change in changes if not change.idle],
        "unchanged": [str(change.path) for change in changes if change.idle],
        "refused": [
            {"path": str(one.path), "reason": one.reason, "snippet": one.snippet}
            for one in troubles
        ],
    }


def said(
    agent: Agent,
    changes: list[Change],
    troubles: list[Trouble],
    *,
    dry_run: bool,
    advice: bool = False,
) -> list[str]:
    lines = [f"{agent.title}:"]
    for change in changes:
        done = "written" if change.after is not None else "removed"
        kept = "is as it should be" if change.before is not None else "is not there"
        word = kept if change.idle else "would change" if dry_run else done
        lines.append(f"  {change.path}  {word}")
        if dry_run and not change.idle:
            lines += change.diff().splitlines()
    for one in troubles:
        lines.append(f"  {one.path}  left alone: it {one.reason}")
        if one.needed and one.snippet:
            lines += [f"  {PUT_IN}", one.snippet.rstrip("\n")]
    if advice and agent.name in AFTERWARDS:
        lines.append(f"  {AFTERWARDS[agent.name]}")
    return lines


PUT_IN = "Correct that and run this again, or put in by hand what belongs into it:"
AFTERWARDS = {
    "codex": "Codex asks before it runs new hooks: accept them with /hooks. "
    "Until then it tells only of the ends of turns.",
    "hermes": "Hermes asks once for each hook: answer yes, or start it with --accept-hooks.",
}
