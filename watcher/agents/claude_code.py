"""Claude Code: what its hooks tell."""

from __future__ import annotations

from .model import Agent, AgentEvent, Env, Hook, Payload, additional_context, text, usual

NAME = "claude-code"
# Fields that others send who run the hooks of Claude Code's settings: Cursor, Copilot, Grok, Qwen.
FOREIGN = ("conversation_id", "cursor_version", "workspace_roots", "sessionId", "timestamp")
SHELLS_AND_EDITS = "Bash|PowerShell|Write|Edit|MultiEdit|NotebookEdit"
HOOKS = (
    Hook("SessionStart", "session-begin", 10),
    Hook("UserPromptSubmit", "turn-begin", 20),
    Hook("PreToolUse", "tool", 5, matcher=SHELLS_AND_EDITS),
    Hook("Stop", "turn-end", 10),
    Hook("StopFailure", "turn-end", 10),
    # Without one of its own this event has 1.5 seconds, which a busy machine uses up.
    Hook("SessionEnd", "session-end", 5),
)


def read(payload: Payload, event: str, env: Env) -> AgentEvent:
    if any(name in payload for name in FOREIGN) or text(payload, "hook_event_name") != event:
        return AgentEvent("none", NAME)
    return usual(
        AGENT,
        payload,
        event,
        turn_id=text(payload, "prompt_id") or None,
        cwd=text(payload, "cwd") or env.get("CLAUDE_PROJECT_DIR", ""),
        status="error" if event == "StopFailure" else "ok",
        background=bool(payload.get("background_tasks")),
    )


AGENT = Agent(NAME, "Claude Code", "claude", ".claude", HOOKS, read, additional_context)
