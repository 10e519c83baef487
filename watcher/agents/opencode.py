"""OpenCode: what our plugin in it tells, see opencode_plugin.js."""

from __future__ import annotations

from core.model import Status

from .model import Agent, AgentEvent, Env, Hook, Payload, inner, text, tool_words

NAME = "opencode"
HOOKS = (
    Hook("session.created", "session-begin"),
    Hook("chat.message", "turn-begin"),
    Hook("tool.execute.before", "tool"),
    Hook("session.idle", "turn-end"),
    Hook("session.deleted", "session-end"),
)
STATUSES: dict[str, Status] = {"error": "error", "interrupted": "interrupted"}


def read(payload: Payload, event: str, env: Env) -> AgentEvent:
    session = text(payload, "sessionID")
    if not session.startswith("ses_"):
        return AgentEvent("none", NAME)
    return AgentEvent(
        AGENT.kind(event),
        NAME,
        session=session,
        turn_id=text(payload, "messageID") or None,
        cwd=text(payload, "directory"),
        prompt=text(payload, "prompt"),
        status=STATUSES.get(text(payload, "status"), "ok"),
        tool=tool_words(text(payload, "tool"), inner(payload, "args")),
        sub_agent=bool(payload.get("parentID")),
    )


def tell(event: str, words: str) -> str:
    """The plugin adds it to the message."""
    return words if event == "chat.message" else ""


AGENT = Agent(NAME, "OpenCode", "opencode", ".config/opencode", HOOKS, read, tell)
