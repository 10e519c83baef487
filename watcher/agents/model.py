"""What every agent's events come down to, and what turnmark knows of an agent; only values."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from core.model import Status

Kind = Literal["session-begin", "turn-begin", "turn-end", "session-end", "tool", "none"]
Payload = Mapping[str, Any]
Env = Mapping[str, str]

TOOL_CHARS = 60
TERMINALS = (
    "bash",
    "shell",
    "terminal",
    "execute",
    "exec_command",
    "execute_command",
    "local_shell",
    "run_shell_command",
    "run_terminal_cmd",
)


@dataclass(frozen=True, slots=True)
class AgentEvent:
    """One event in the life of a session, whichever agent told of it."""

    kind: Kind
    agent: str
    session: str = ""
    turn_id: str | None = None
    cwd: str = ""
    prompt: str = ""
    status: Status = "ok"
    transcript: str = ""
    tool: str = ""
    sub_agent: bool = False
    background: bool = False
    follow_up: bool = False
    """It may belong to the turn that is open; a new one begins only where none is."""
    ends_only: bool = False
    """Told by a way that never tells of begins."""


@dataclass(frozen=True, slots=True)
class Hook:
    """An entry of an agent's settings: one of its events, what it means, and its time-out."""

    event: str
    kind: Kind
    timeout: int = 0
    matcher: str = ""


@dataclass(frozen=True)
class Agent:
    """One agent: how to find it, what its events mean, how to tell it something."""

    name: str
    title: str
    program: str
    folder: str
    hooks: tuple[Hook, ...]
    read: Callable[[Payload, str, Env], AgentEvent]
    tell: Callable[[str, str], str] = field(default=lambda event, words: "")

    def kind(self, event: str) -> Kind:
        return next((hook.kind for hook in self.hooks if hook.event == event), "none")


@dataclass(frozen=True, slots=True)
class Fork:
    """A conversation up to a turn as a session of its own; no id if nothing was said before."""

    id: str | None
    directory: str
    """Where it was begun: some agents find it only from there."""


def text(payload: Payload, *names: str) -> str:
    """The first of the fields that is a string, and not empty."""
    found = (payload.get(name) for name in names)
    return next((value for value in found if isinstance(value, str) and value), "")


def inner(payload: Payload, name: str) -> Payload:
    value = payload.get(name)
    return value if isinstance(value, dict) else {}


def first_text(payload: Payload, name: str) -> str:
    """The first string of a list."""
    return next(iter(_texts(payload, name)), "")


def last_text(payload: Payload, name: str) -> str:
    return next(reversed(_texts(payload, name)), "")


def _texts(payload: Payload, name: str) -> list[str]:
    value = payload.get(name)
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def tool_words(name: str, given: Payload) -> str:
    """What a tool is about to do: `terminal: rm -rf build`."""
    if not name:
        return ""
    command = given.get("command", given.get("cmd"))
    if isinstance(command, list):
        command = " ".join(str(word) for word in command)
    if isinstance(command, str) and name.lower() in TERMINALS:
        return f"terminal: {cut(command)}"
    path = text(given, "file_path", "filePath", "path", "absolute_path", "notebook_path")
    return f"{name}: {cut(path)}" if path else name


def usual(agent: Agent, payload: Payload, event: str, **own: Any) -> AgentEvent:
    """From the fields that Claude Code's payloads have and most took over; `own` is what differs
    or comes on top."""
    found = AgentEvent(
        agent.kind(event),
        agent.name,
        session=text(payload, "session_id"),
        cwd=text(payload, "cwd"),
        prompt=text(payload, "prompt"),
        transcript=text(payload, "transcript_path"),
        tool=tool_words(text(payload, "tool_name"), inner(payload, "tool_input")),
        sub_agent=bool(payload.get("agent_id")),
    )
    return replace(found, **own)


def cut(words: str) -> str:
    line = " ".join(words.split())
    return line if len(line) <= TOOL_CHARS else line[: TOOL_CHARS - 1] + "…"


def additional_context(event: str, words: str) -> str:
    """The answer that Claude Code invented and most others understand."""
    more = {"hookEventName": event, "additionalContext": words}
    return json.dumps({"hookSpecificOutput": more})
