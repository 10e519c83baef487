"""Hermes: what its shell hooks tell. Its `on_session_end` comes at the end of every turn."""

from __future__ import annotations

import json

from core.model import Status

from .model import Agent, AgentEvent, Env, Hook, Payload, inner, text, usual

NAME = "hermes"
HOOKS = (
    Hook("on_session_start", "session-begin", 10),
    Hook("pre_llm_call", "turn-begin", 20),
    Hook("pre_tool_call", "tool", 5),
    Hook("on_session_end", "turn-end", 10),
    Hook("on_session_finalize", "session-end", 5),
    Hook("on_session_reset", "session-end", 5),
)


def read(payload: Payload, event: str, env: Env) -> AgentEvent:
    if text(payload, "hook_event_name") not in (event, "") or not isinstance(
        payload.get("extra"), dict
    ):
        return AgentEvent("none", NAME)
    extra = inner(payload, "extra")
    return usual(
        AGENT,
        payload,
        event,
        turn_id=text(extra, "turn_id") or None,
        prompt=text(extra, "user_message"),
        status=_status(extra),
    )


def _status(extra: Payload) -> Status:
    if extra.get("interrupted"):
        return "interrupted"
    return "error" if extra.get("failed") else "ok"


def tell(event: str, words: str) -> str:
    return json.dumps({"context": words})


AGENT = Agent(NAME, "Hermes", "hermes", ".hermes", HOOKS, read, tell)
