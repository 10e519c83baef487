"""`turnmark turn`: an agent's turn begins or ends, said by the agent or any script."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import click

from core import turns
from core.errors import TurnmarkError
from core.model import Status
from core.recorder import Recorder, Taken
from core.roots import Root

from ..access import locked, maintain, open_store, synced, taken_json
from ..cli import EXCEPTIONS, OK
from ..context import Context, pass_context
from ..output import answer, fail
from ..words import short

NUMBER = click.IntRange(min=0)
Tell = Callable[[Recorder], Taken]


@click.group()
def command() -> None:
    """Tell turnmark that an agent's turn begins or ends."""


session_option = click.option(
    "--session", required=True, metavar="ID", help="The agent's session that the turn belongs to."
)
turn_option = click.option("--turn", "turn_id", metavar="ID", help="The agent's id of the turn.")
messages_option = click.option(
    "--messages", type=NUMBER, metavar="N", help="How many messages the conversation has."
)
directories = click.argument("directories", metavar="[DIR]...", nargs=-1)


@command.command()
@session_option
@turn_option
@click.option("--prompt", default="", metavar="TEXT", help="What the user asked for.")
@messages_option
@click.option("--agent", metavar="NAME", help="The agent's name.")
@click.option("--pid", type=NUMBER, metavar="N", help="The process whose death ends the turn.")
@directories
@pass_context
def begin(
    context: Context,
    session: str,
    turn_id: str | None,
    prompt: str,
    messages: int | None,
    agent: str | None,
    pid: int | None,
    directories: tuple[str, ...],
) -> int:
    """A turn begins: the state before it becomes a point."""

    def tell(recorder: Recorder) -> Taken:
        return turns.begin(
            recorder,
            session,
            turn_id=turn_id,
            prompt=prompt,
            agent=agent,
            messages=messages,
            pid=pid,
            labels=context.config.agents.labels,
            sync=synced(context),
        )

    return _tell(context, directories, tell, create=True)


@command.command()
@session_option
@turn_option
@messages_option
@click.option(
    "--status",
    type=click.Choice(["ok", "error", "interrupted"]),
    default="ok",
    show_default=True,
    help="How it ended.",
)
@directories
@pass_context
def end(
    context: Context,
    session: str,
    turn_id: str | None,
    messages: int | None,
    status: str,
    directories: tuple[str, ...],
) -> int:
    """The turn ends: its changes are what lies between begin and end."""

    def tell(recorder: Recorder) -> Taken:
        return turns.end(
            recorder,
            session,
            turn_id=turn_id,
            status=cast(Status, status),
            messages=messages,
            sync=synced(context),
        )

    return _tell(context, directories, tell, create=False)


def _tell(context: Context, directories: tuple[str, ...], tell: Tell, *, create: bool) -> int:
    """Marks every workspace; trouble with one does not cost the others their mark."""
    done: list[tuple[Root, Taken]] = []
    failed: list[tuple[str, TurnmarkError]] = []
    for directory in dict.fromkeys(directories) or (None,):
        try:
            with locked(context, directory, create=create) as recorder:
                done.append((recorder.root, tell(recorder)))
        except TurnmarkError as error:
            failed.append((directory or ".", error))
    if not done:
        raise failed[0][1]
    _answer(context, done, failed)
    maintain(context, open_store(context), [root for root, _ in done])
    return EXCEPTIONS if failed else OK


def _answer(
    context: Context,
    done: list[tuple[Root, Taken]],
    failed: list[tuple[str, TurnmarkError]],
) -> None:
    errors = [{"dir": where, "error": e.message, "hint": e.hint} for where, e in failed]
    data = {"marks": [_mark_json(taken) for _, taken in done]}
    answer(context, {**data, "errors": errors} if errors else data, *map(_says, done))
    if not context.json:
        for where, error in failed:
            fail(f"{where}: {error.message}", error.hint)


def _mark_json(taken: Taken) -> dict[str, object]:
    assert taken.mark is not None
    mark = taken.mark
    named = {"session": mark.session, "turn": mark.turn, "turn_id": mark.turn_id}
    return {**taken_json(taken, mark.seq), **named}


def _says(one: tuple[Root, Taken]) -> str:
    root, taken = one
    assert taken.mark is not None
    what = "begins" if taken.mark.kind == "turn-begin" else "ends"
    return f"Turn {taken.mark.turn} {what} in {root.shown}: {short(taken.snapshot.id)}."
