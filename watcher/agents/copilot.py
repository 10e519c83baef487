"""Copilot CLI: what its hooks tell, under the event names for which the payload has snake case."""

from __future__ import annotations

from .model import Agent, AgentEvent, Env, Hook, Payload, additional_context, text, usual

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
    return usual(AGENT, payload, event)


AGENT = Agent(NAME, "Copilot CLI", "copilot", ".copilot", HOOKS, read, additional_context)
