"""`turnmark session`: the states that agents keep of their tasks, and the turns of each."""

from __future__ import annotations

import sys
from typing import Any

import click

from core.errors import BadInput
from core.sessions import MAX_BYTES, OWN, Sessions, State, check_id, encode, parse_input

from ..cli import EXCEPTIONS, OK
from ..context import Context, pass_context
from ..output import Table, answer, note
from ..words import count, one_line

TASK_ROOM = 60


@click.group()
def command() -> None:
    """List, show, save and delete the states of agents' sessions."""


def sessions_of(context: Context) -> Sessions:
    """Beside the store and apart from it: clearing one never takes the other along."""
    return Sessions(str(context.home / "sessions"))


@command.command("list")
@pass_context
def list_(context: Context) -> None:
    """List the sessions, those last touched first."""
    sessions = sessions_of(context)
    found = [(name, sessions.read(name)) for name in sessions.list()]
    rows = [_row(name, state) for name, state in found if state is not None]
    rows.sort(key=lambda row: str(row["updated"]), reverse=True)
    aside = sessions.aside()
    data = {"sessions": rows, "damaged": list(aside)}
    answer(context, data, _table(rows) if rows else "No session states are kept.")
    if aside:
        note(context, f"Damaged and kept aside: {', '.join(aside)}.")


def _row(name: str, state: State) -> dict[str, object]:
    own = _mapping(state.get(OWN))
    spaces = [_mapping(space) for space in _mapping(own.get("workspaces")).values()]
    turns = [number for space in spaces if isinstance(number := space.get("turns"), int)]
    return {
        "session_id": name,
        "task": as_json(state.get("task")),
        "status": as_json(state.get("status")),
        "created": as_json(state.get("created")),
        "updated": as_json(state.get("updated")),
        "agent": own.get("agent"),
        "turns": max(turns, default=0),
        "open": own.get("open") is True,
        "workspaces": [space.get("root") for space in spaces],
    }


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _table(rows: list[dict[str, object]]) -> Table:
    names = ("SESSION", "AGENT", "STATUS", "UPDATED", "TURNS", "TASK")
    return Table(
        names,
        [
            (
                row["session_id"],
                row["agent"] or "",
                f"{row['status']}{', in a turn' if row['open'] else ''}",
                row["updated"],
                row["turns"],
                one_line(str(row["task"] or ""), TASK_ROOM),
            )
            for row in rows
        ],
        ("TURNS",),
    )


@command.command()
@click.argument("session", metavar="ID")
@pass_context
def show(context: Context, session: str) -> None:
    """Show all that is known of a session."""
    sessions = sessions_of(context)
    state = sessions.read(session)
    if state is None:
        aside = sessions.aside(session)
        kept = f" A damaged one is kept as {sessions.directory}/{aside[-1]}." if aside else ""
        raise BadInput(f"There is no session {session}.{kept}", "See `turnmark session list`.")
    answer(context, {"session": as_json(state)}, encode(state).decode().rstrip("\n"))


@command.command()
@click.argument("session", metavar="[ID]", required=False)
@click.option("--merge", is_flag=True, help="Add to what is there; else it is replaced.")
@pass_context
def save(context: Context, session: str | None, merge: bool) -> None:
    """Save the state that comes in on stdin, as YAML or JSON; what turnmark noted itself stays.

    With --merge progress and decisions are added, blocked and unresolved replaced.
    """
    given = parse_input(sys.stdin.buffer.read(MAX_BYTES + 1))
    wanted = session if session is not None else given.get("session_id")
    if wanted is None:
        raise BadInput(
            "Which session it is of is not said.", "Give an ID, or a 'session_id' in it."
        )
    name = check_id(wanted)
    if given.setdefault("session_id", name) != name:
        raise BadInput(
            f"The state says that it is of session {str(given['session_id'])[:80]}, not {name}.",
            "Name the session in one place.",
        )
    sessions = sessions_of(context)
    saved = sessions.update(name, given) if merge else sessions.write(given)
    data = {key: saved[key] for key in ("session_id", "status", "created", "updated")}
    answer(context, {name: as_json(value) for name, value in data.items()}, f"Saved {name}.")


@command.command()
@click.argument("session", metavar="ID")
@pass_context
def delete(context: Context, session: str) -> None:
    """Delete a session's state; its turns stay rollback points."""
    there = sessions_of(context).delete(session)
    says = f"Deleted {session}." if there else f"There was no session {session} to delete."
    answer(context, {"session_id": session, "deleted": there}, says)


@command.command()
@click.option(
    "--max-age-days",
    type=click.IntRange(min=0),
    default=7,
    show_default=True,
    metavar="N",
    help="Completed ones go after a day.",
)
@pass_context
def gc(context: Context, max_age_days: int) -> int:
    """Remove the states that nobody has touched for long."""
    done = sessions_of(context).garbage_collect(max_age_days)
    data = {"removed": list(done.removed), "aside": list(done.aside), "errors": list(done.errors)}
    lines = [f"Removed {count(len(done.removed), 'session')}."]
    lines += [f"Damaged, kept as {name}" for name in done.aside]
    lines += [f"Failed: {error}" for error in done.errors]
    answer(context, data, "\n".join(lines))
    return EXCEPTIONS if done.errors else OK


def as_json(value: object) -> Any:
    """What JSON can say of a document: times and bytes as text."""
    if isinstance(value, dict):
        return {str(key): as_json(below) for key, below in value.items()}
    if isinstance(value, list | tuple | set):
        return [as_json(below) for below in value]
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
