"""Cline: what its hook files tell. Nobody waits for those at a turn's begin and end."""

from __future__ import annotations

from core.model import Status

from .model import Agent, AgentEvent, Env, Hook, Payload, first_text, inner, text

NAME = "cline"
HOOKS = (
    Hook("TaskStart", "turn-begin"),
    Hook("TaskResume", "turn-begin"),
    Hook("UserPromptSubmit", "turn-begin"),
    Hook("TaskComplete", "turn-end"),
    Hook("TaskError", "turn-end"),
    Hook("TaskCancel", "turn-end"),
    Hook("SessionShutdown", "session-end"),
)
STATUSES: dict[str, Status] = {"TaskError": "error", "TaskCancel": "interrupted"}


def read(payload: Payload, event: str, env: Env) -> AgentEvent:
    session = text(payload, "taskId") or text(inner(payload, "sessionContext"), "rootSessionId")
    if not session or not text(payload, "hookName"):
        return AgentEvent("none", NAME)
    task = inner(payload, "taskStart") or inner(payload, "userPromptSubmit")
    about = inner(payload, "workspaceInfo")
    return AgentEvent(
        AGENT.kind(event),
        NAME,
        session=session,
        cwd=first_text(payload, "workspaceRoots") or text(about, "rootPath"),
        prompt=text(task, "prompt", "task") or text(inner(task, "taskMetadata"), "initialTask"),
        status=STATUSES.get(event, "ok"),
        sub_agent=bool(payload.get("parent_agent_id")),
        follow_up=event == "TaskResume",
    )


AGENT = Agent(NAME, "Cline", "cline", ".cline", HOOKS, read)
