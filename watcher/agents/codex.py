"""Codex: its hooks, which a user has to trust first, and `notify`, which tells of ends only."""

from __future__ import annotations

from .model import (
    Agent,
    AgentEvent,
    Env,
    Hook,
    Payload,
    additional_context,
    last_text,
    text,
    usual,
)

NAME = "codex"
NOTIFY = "notify"
HOOKS = (
    Hook("SessionStart", "session-begin", 10),
    Hook("UserPromptSubmit", "turn-begin", 20),
    Hook("PreToolUse", "tool", 5),
    Hook("Stop", "turn-end", 10),
    Hook("SessionEnd", "session-end", 3),
    Hook(NOTIFY, "turn-end"),
)


def read(payload: Payload, event: str, env: Env) -> AgentEvent:
    if event == NOTIFY:
        return _notified(payload)
    if text(payload, "hook_event_name") != event or "conversation_id" in payload:
        return AgentEvent("none", NAME)
    return usual(AGENT, payload, event, turn_id=text(payload, "turn_id") or None)


def _notified(payload: Payload) -> AgentEvent:
    if text(payload, "type") != "agent-turn-complete":
        return AgentEvent("none", NAME)
    return AgentEvent(
        "turn-end",
        NAME,
        session=text(payload, "thread-id"),
        turn_id=text(payload, "turn-id") or None,
        cwd=text(payload, "cwd"),
        # A resumed thread names all that was ever asked in it.
        prompt=last_text(payload, "input-messages"),
        ends_only=True,
    )


AGENT = Agent(NAME, "Codex", "codex", ".codex", HOOKS, read, additional_context)
