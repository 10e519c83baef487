"""Conversations that go back together with the files, where an agent allows that from outside.

Never in place: a fork is made next to the session, in one step, and told of. If the process dies
between the two there is one more session in the agent's list, and nothing else has changed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from core.model import Mark

from ..context import Context
from . import AGENTS, borrowed, claude_history, codex_threads, opencode_sessions
from .model import Fork
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


@dataclass(frozen=True, slots=True)
class Way:
    """How one agent's conversation is forked, and what resumes the fork."""

    fork: Callable[[Context, str, Mark], Fork]
    resume: str
    names: Callable[[str], object]
    """Whether it could have named a session so."""


def rewind(
    context: Context, root: str, marks: Iterable[Mark], undone: Iterable[Mapping[str, Any]]
) -> list[Rewound]:
    """Each session whose turns were taken back, to before the first of them."""
    first: dict[str, int] = {}
    for turn in undone:
        name, number = turn.get("session"), turn.get("turn")
        if isinstance(name, str) and isinstance(number, int):
            first[name] = min(number, first.get(name, number))
    begins = {(m.session, m.turn): m for m in marks if m.kind == "turn-begin"}
    turns = [begins[key] for key in first.items() if key in begins]
    return [
        _rewind(context, root, replace(mark, time_ns=_since(mark, turns)))
        for mark in turns
        if not _is_of_run(mark, turns)
    ]


def _since(mark: Mark, turns: list[Mark]) -> int:
    """A turn without an id is known by its time: that of all that was taken back of its agent."""
    same = [one.time_ns for one in turns if one.agent == mark.agent and not one.turn_id]
    return mark.time_ns if mark.turn_id else min(same)


def _is_of_run(mark: Mark, turns: list[Mark]) -> bool:
    """`turnmark run` began it for want of a better one, and the agent's own is there as well."""
    way = WAYS.get(mark.agent or "")
    if way is None or way.names(str(mark.session)):
        return False
    return any(one.agent == mark.agent and way.names(str(one.session)) for one in turns)


def _rewind(context: Context, root: str, mark: Mark) -> Rewound:
    way, agent = WAYS.get(mark.agent or ""), AGENTS.get(mark.agent or "")
    title = agent.title if agent else mark.agent or "the agent"
    late = f"{title} cannot be rewound from outside; it is told at its next turn what went back."
    if way is None or agent is None or not mark.session:
        return _told(mark, late)
    try:
        fork = way.fork(context, root, mark)
    except (ValueError, OSError) as error:
        return _told(mark, f"The conversation of {title} stays as it is: {error}.")
    new = fork.id and way.resume.format(shlex.quote(fork.id))
    resume = _in_directory(context, fork.directory, new or agent.program)
    when = f"before turn {mark.turn}" if mark.turn_id else "then"
    words = f"Go on with the conversation as it was {when}: {resume}"
    if new is None:
        words = f"Nothing was said {when}; begin anew: {resume}"
    return Rewound(str(mark.session), mark.agent, mark.turn, fork.id, resume, words)


def _told(mark: Mark, words: str) -> Rewound:
    return Rewound(str(mark.session), mark.agent, mark.turn, None, "", words)


def _in_directory(context: Context, begun: str, command: str) -> str:
    """A session belongs to the directory in which it was begun."""
    if not begun or begun == str(context.cwd):
        return command
    return f"cd {shlex.quote(begun)} && {command}"


def _claude(context: Context, root: str, mark: Mark) -> Fork:
    path = claude_history.find(Place(context).folder(AGENTS["claude-code"]), str(mark.session))
    if path is None:
        raise ValueError("its transcript is not there")
    if not mark.turn_id:
        raise ValueError(UNNAMED)
    new = claude_history.fork_before(path, mark.turn_id)
    return Fork(new, claude_history.directory(path))


def _codex(context: Context, root: str, mark: Mark) -> Fork:
    """Its turn has no id where only `notify` told of it."""
    program = borrowed.program(AGENTS["codex"].program, context.env)
    thread = (str(mark.session), mark.turn_id, mark.time_ns)
    return codex_threads.fork_before(program, context.env, root, *thread)


def _opencode(context: Context, root: str, mark: Mark) -> Fork:
    if not mark.turn_id:
        raise ValueError(UNNAMED)
    program = borrowed.program(AGENTS["opencode"].program, context.env)
    return opencode_sessions.fork_before(program, context.env, str(mark.session), mark.turn_id)


UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
UNNAMED = "this version does not tell which message began a turn"
WAYS = {
    "claude-code": Way(_claude, "claude --resume {}", UUID.fullmatch),
    "codex": Way(_codex, "codex resume {}", UUID.fullmatch),
    "opencode": Way(_opencode, "opencode -s {}", re.compile("ses_.+").fullmatch),
}


def as_json(found: Iterable[Rewound]) -> list[dict[str, object]]:
    return [asdict(one) for one in found]
