"""`turnmark store`: how large it is and whose history it holds; pruning, checking, backup, end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import click

from core.errors import TurnmarkError
from core.model import rfc3339
from core.retention import MEGABYTE, Policy, Pruned, prune, record_of, state_of
from core.store import Store
from core.sweep import size_on_disk
from core.timeline import Timeline, registered

from ..access import open_store, policy_of
from ..asking import agreed
from ..cli import EXCEPTIONS, FAILED, OK
from ..context import Context, pass_context
from ..output import Table, age, answer, is_terminal, note, size
from ..words import count, left_cut, named_root

LIMIT = 20
yes_option = click.option("-f", "-y", "--yes", is_flag=True, help="Do not ask.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Only show what would go.")


@dataclass(frozen=True)
class Held:
    """One workspace of the store."""

    id: str
    root: str
    points: int
    snapshots: int
    last_ns: int
    state: str


@click.group(invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Sizes, pruning, checking and backup of the store."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(status)


# Looking


@command.command()
@pass_context
def status(context: Context) -> None:
    """Show how large the store is, and whose history it holds."""
    store = open_store(context)
    held, total = held_by(store), size_on_disk(store)
    snapshots = sum(one.snapshots for one in held)
    head = f"{store.base}\n{size(total)}, {count(len(held), 'workspace')}, "
    head += count(snapshots, "snapshot")
    blocks = (head, "", _table(held[:LIMIT])) if held else (head,)
    answer(context, _status_json(store, held, total), *blocks)
    if len(held) > LIMIT:
        note(context, f"{len(held) - LIMIT} more: `turnmark store list --limit 0` shows all.")


@command.command("list")
@click.option("--limit", type=click.IntRange(min=0), default=LIMIT, show_default=True)
@pass_context
def list_(context: Context, limit: int) -> None:
    """List the workspaces, those last used first; a limit of 0 means all."""
    store = open_store(context)
    held = held_by(store)
    shown = held[:limit] if limit else held
    answer(context, _status_json(store, shown, size_on_disk(store)), _table(shown))


def held_by(store: Store) -> list[Held]:
    return sorted(_held(store), key=lambda one: one.last_ns, reverse=True)


def _held(store: Store) -> Iterator[Held]:
    for workspace, root in registered(store):
        timeline = Timeline(store, workspace)
        times = [one.time_ns for one in (*timeline.marks, *timeline.snapshots)]
        state = state_of(store.disk, record_of(store, workspace))
        yield Held(
            workspace,
            root,
            len(timeline.numbered),
            len(timeline.history.snapshot_ids),
            max(times, default=0),
            state,
        )


def _table(held: list[Held]) -> Table:
    columns = ("WORKSPACE", "POINTS", "SNAPSHOTS", "LAST TOUCH", "STATE")
    return Table(columns, [_row(one) for one in held], ("POINTS", "SNAPSHOTS"))


def _row(one: Held) -> tuple[object, ...]:
    touched = age(one.last_ns) if one.last_ns else "never"
    return left_cut(one.root, _room()), one.points, one.snapshots, touched, one.state


def _room() -> int:
    """The other columns need 40 of the terminal's; a cut beginning says more than a cut end."""
    return min(60, _columns() - 40) if is_terminal(sys.stdout) else 60


def _status_json(store: Store, held: list[Held], total: int) -> dict[str, object]:
    rows = [
        {
            "id": one.id,
            "root": one.root,
            "points": one.points,
            "snapshots": one.snapshots,
            "last_touch": rfc3339(one.last_ns) if one.last_ns else None,
            "state": one.state,
        }
        for one in held
    ]
    return {"base": store.base, "total_bytes": total, "workspaces": rows, "legacy": []}
