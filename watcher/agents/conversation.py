"""Conversations that go back together with the files, where an agent allows that from outside."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from core.model import Mark

from ..context import Context
from . import AGENTS, claude_history
from .wishes import Place


@dataclass(frozen=True, slots=True)
class Rewound:
    """What became of one session's conversation; `resume` goes on from there."""

    session: str
    agent: str | None
    turn: int | None
    forked: str | None
    resume: str
    words: str


def rewind(
    context: Context, marks: Iterable[Mark], undone: Iterable[Mapping[str, Any]]
) -> list[Rewound]:
    """Each session whose turns were taken back, to before the first of them."""
    first: dict[str, int] = {}
    for turn in undone:
        name, number = turn.get("session"), turn.get("turn")
        if isinstance(name, str) and isinstance(number, int):
            first[name] = min(number, first.get(name, number))
    begins = {(m.session, m.turn): m for m in marks if m.kind == "turn-begin"}
    found = (begins.get((name, number)) for name, number in first.items())
    return [_rewind(context, mark) for mark in found if mark is not None]


def _rewind(context: Context, mark: Mark) -> Rewound:
    way = WAYS.get(mark.agent or "")
    agent = AGENTS.get(mark.agent or "")
    title = agent.title if agent else mark.agent or "the agent"
    late = f"{title} cannot be rewound from outside; it is told at its next turn what went back."
    if way is None or agent is None or not mark.session:
        return _told(mark, late)
    try:
        return way(context, mark)
    except (ValueError, OSError) as error:
        return _told(mark, f"The conversation of {title} stays as it is: {error}.")


def _told(mark: Mark, words: str) -> Rewound:
    return Rewound(str(mark.session), mark.agent, mark.turn, None, "", words)


def _claude(context: Context, mark: Mark) -> Rewound:
    agent, session = AGENTS["claude-code"], str(mark.session)
    path = claude_history.find(Place(context).folder(agent), session)
    if path is None:
        raise ValueError("its transcript is not there")
    if not mark.turn_id:
        raise ValueError("this version does not tell which message began a turn")
    new = claude_history.fork_before(path, mark.turn_id)
    resume = _in_directory(context, path, "claude" if new is None else f"claude --resume {new}")
    words = f"Go on with the conversation as it was before turn {mark.turn}: {resume}"
    if new is None:
        words = f"Nothing was said before turn {mark.turn}; begin anew: {resume}"
    return Rewound(session, mark.agent, mark.turn, new, resume, words)


def _in_directory(context: Context, path: Path, command: str) -> str:
    """A session is found only from the directory in which it was begun."""
    begun = claude_history.directory(path)
    if not begun or begun == str(context.cwd):
        return command
    return f"cd {shlex.quote(begun)} && {command}"


WAYS: dict[str, Callable[[Context, Mark], Rewound]] = {"claude-code": _claude}


def as_json(found: Iterable[Rewound]) -> list[dict[str, object]]:
    return [asdict(one) for one in found]
