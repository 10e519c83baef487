"""`turnmark turn`: an agent's turn begins or ends, said by the agent or any script."""

from __future__ import annotations

from collections.abc import Mapping

import click

from core.errors import TurnmarkError
from core.model import label_of

from ..acting import Told, tell, tidy_after
from ..cli import EXCEPTIONS, OK
from ..context import Context, pass_context
from ..output import answer, fail, note

NUMBER = click.IntRange(min=0)


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
prompt_option = click.option(
    "--prompt", default="", metavar="TEXT", help="What the user asked for."
)
agent_option = click.option("--agent", metavar="NAME", help="The agent's name.")
pid_option = click.option(
    "--pid", type=NUMBER, metavar="N", help="The process whose death ends the turn."
)
directories = click.argument("directories", metavar="[DIR]...", nargs=-1)


@command.command()
@session_option
@turn_option
@prompt_option
@messages_option
@agent_option
@pid_option
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
    params = {
        "session": session,
        "turn_id": turn_id,
        "prompt": label_of(prompt),
        "agent": agent,
        "messages": messages,
        "pid": pid,
        "run": context.env.get("TURNMARK_SESSION"),
    }
    return _tell(context, directories, "turn.begin", params, create=True)


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
@prompt_option
@agent_option
@pid_option
@directories
@pass_context
def end(
    context: Context,
    /,
    session: str,
    turn_id: str | None,
    messages: int | None,
    status: str,
    directories: tuple[str, ...],
    **_: object,
) -> int:
    """The turn ends: its changes are what lies between begin and end.

    What only its begin could say is accepted, so that both can be given the same options.
    """
    params = {"session": session, "turn_id": turn_id, "messages": messages, "status": status}
    return _tell(context, directories, "turn.end", params, create=False)


def _tell(
    context: Context,
    directories: tuple[str, ...],
    action: str,
    params: Mapping[str, object],
    *,
    create: bool,
) -> int:
    if not params["session"]:
        raise click.UsageError("--session is empty.")
    told = tell(context, directories, action, params, create=create)
    if not told.marks:
        raise told.failed[0][1]
    _answer(context, told)
    _note_session(context, action, params, told)
    tidy_after(context, told)
    return EXCEPTIONS if told.failed else OK


def _answer(context: Context, told: Told) -> None:
    errors = [{"dir": where, "error": e.message, "hint": e.hint} for where, e in told.failed]
    data: dict[str, object] = {"marks": [mark for mark, _ in told.marks]}
    lines = [line for _, people in told.marks for line in people["lines"]]
    answer(context, {**data, "errors": errors} if errors else data, *lines)
    if not context.json:
        for where, error in told.failed:
            fail(f"{where}: {error.message}", error.hint)


def _note_session(context: Context, action: str, params: Mapping[str, object], told: Told) -> None:
    """Best effort, after the answer: the marks are what counts, and they are made."""
    from core.sessions import Sessions, note_of
    from core.store import root_shown

    from ..access import open_store

    label = params.get("prompt") if context.config.agents.labels else ""
    try:
        store = open_store(context)
        sessions = Sessions(str(context.home / "sessions"))
        for mark, _ in told.marks:
            root = root_shown(store, mark["workspace"])
            more = {**params, "label": label or "", "root": root}
            sessions.note_turn(mark["session"], note_of(action, {**more, **mark}))
    except (TurnmarkError, OSError) as error:
        note(context, f"warning: the session's state was not kept: {error}")
