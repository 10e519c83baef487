"""The agents that turnmark knows, by name: one small module each, from payload to event."""

from __future__ import annotations

from . import claude_code, cline, codex, copilot, cursor, gemini, hermes_hooks, opencode, qwen
from .model import Agent, AgentEvent, Env, Payload

AGENTS: dict[str, Agent] = {
    module.AGENT.name: module.AGENT
    for module in (
        claude_code,
        codex,
        gemini,
        opencode,
        copilot,
        cursor,
        qwen,
        hermes_hooks,
        cline,
    )
}


def read(name: str, payload: object, event: str, env: Env) -> AgentEvent:
    """What an agent's payload means; nothing if it is not that agent's, or a sub-agent's."""
    agent = AGENTS.get(name)
    if agent is None or not isinstance(payload, dict):
        return AgentEvent("none", name)
    given: Payload = payload
    found = agent.read(given, event, env)
    if not found.session or found.sub_agent:
        return AgentEvent("none", name, sub_agent=found.sub_agent)
    return found
