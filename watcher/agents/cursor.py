"""Cursor: what its hooks tell. Its end of a turn says how the turn ended."""

from __future__ import annotations

from core.model import Status

from .model import Agent, AgentEvent, Env, Hook, Payload, first_text, text

NAME = "cursor"
HOOKS = (
    Hook("sessionStart", "session-begin", 10),
    Hook("beforeSubmitPrompt", "turn-begin", 20),
    Hook("stop", "turn-end", 10),
    Hook("sessionEnd", "session-end", 5),
)
STATUSES: dict[str, Status] = {"completed": "ok", "error": "error", "aborted": "interrupted"}


def read(payload: Payload, event: str, env: Env) -> AgentEvent:
    session = text(payload, "conversation_id")
    if not session or text(payload, "hook_event_name") not in (event, ""):
        return AgentEvent("none", NAME)
    return AgentEvent(
        AGENT.kind(event),
        NAME,
        session=session,
        turn_id=text(payload, "generation_id") or None,
        cwd=first_text(payload, "workspace_roots") or text(payload, "cwd"),
        prompt=text(payload, "prompt"),
        status=STATUSES.get(text(payload, "status"), "ok"),
        transcript=text(payload, "transcript_path"),
    )


AGENT = Agent(NAME, "Cursor", "cursor-agent", ".cursor", HOOKS, read)
