"""Gemini CLI: what its hooks tell; their time-outs are in milliseconds."""

from __future__ import annotations

from .model import Agent, AgentEvent, Env, Hook, Payload, additional_context, text, usual

NAME = "gemini"
HOOKS = (
    Hook("SessionStart", "session-begin", 10_000),
    Hook("BeforeAgent", "turn-begin", 20_000),
    Hook("BeforeTool", "tool", 5_000, matcher="run_shell_command|write_file|replace"),
    Hook("AfterAgent", "turn-end", 10_000),
    Hook("SessionEnd", "session-end", 5_000),
)


def read(payload: Payload, event: str, env: Env) -> AgentEvent:
    if text(payload, "hook_event_name") != event or "timestamp" not in payload:
        return AgentEvent("none", NAME)
    session = text(payload, "session_id") or env.get("GEMINI_SESSION_ID", "")
    cwd = text(payload, "cwd") or env.get("GEMINI_CWD", "")
    return usual(AGENT, payload, event, session=session, cwd=cwd)


AGENT = Agent(NAME, "Gemini CLI", "gemini", ".gemini", HOOKS, read, additional_context)
