"""Copilot CLI: what its hooks tell, under the event names for which the payload has snake case."""

from __future__ import annotations

from .model import (
    Agent,
    AgentEvent,
    Env,
    Hook,
    Payload,
    additional_context,
    inner,
    text,
    tool_words,
)

NAME = "copilot"
HOOKS = (
    Hook("SessionStart", "session-begin", 10),
    Hook("UserPromptSubmit", "turn-begin", 20),
    Hook("PreToolUse", "tool", 5),
    Hook("Stop", "turn-end", 10),
    Hook("SessionEnd", "session-end", 5),
)


def read(payload: Payload, event: str, env: Env) -> AgentEvent:
    if not text(payload, "session_id") or "cursor_version" in payload:
        return AgentEvent("none", NAME)
    return AgentEvent(
        AGENT.kind(event),
        NAME,
        session=text(payload, "session_id"),
        cwd=text(payload, "cwd"),
        prompt=text(payload, "prompt"),
        transcript=text(payload, "transcript_path"),
        tool=tool_words(text(payload, "tool_name"), inner(payload, "tool_input")),
    )


AGENT = Agent(NAME, "Copilot CLI", "copilot", ".copilot", HOOKS, read, additional_context)
