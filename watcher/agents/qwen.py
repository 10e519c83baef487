"""Qwen Code: what its hooks tell; their time-outs are in milliseconds.

It announces a prompt for what its tools return as well, and only one that a person typed into its
terminal has `submitted_prompt`: any other begins a turn only where none is open.
"""

from __future__ import annotations

from .model import Agent, AgentEvent, Env, Hook, Payload, additional_context, text, usual

NAME = "qwen"
HOOKS = (
    Hook("SessionStart", "session-begin", 10_000),
    Hook("UserPromptSubmit", "turn-begin", 20_000),
    Hook("PreToolUse", "tool", 5_000, matcher="run_shell_command|write_file|edit"),
    Hook("Stop", "turn-end", 10_000),
    Hook("StopFailure", "turn-end", 10_000),
    Hook("SessionEnd", "session-end", 5_000),
)


def read(payload: Payload, event: str, env: Env) -> AgentEvent:
    if text(payload, "hook_event_name") != event or "conversation_id" in payload:
        return AgentEvent("none", NAME)
    return usual(
        AGENT,
        payload,
        event,
        cwd=text(payload, "cwd") or env.get("QWEN_PROJECT_DIR", ""),
        prompt=text(payload, "submitted_prompt", "prompt"),
        status="error" if event == "StopFailure" else "ok",
        follow_up=event == "UserPromptSubmit" and not text(payload, "submitted_prompt"),
    )


AGENT = Agent(NAME, "Qwen Code", "qwen", ".qwen", HOOKS, read, additional_context)
