"""What agents' payloads mean: real ones, in every shape that is known to come."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from watcher import agents
from watcher.agents import AGENTS
from watcher.agents.model import AgentEvent, tool_words

S = "5f54c4a7-6fa0-483a-822f-fbe1e34d64dd"
P = "440a12cb-5a74-4961-8f30-7ee1d47d84d7"
CLAUDE = {"session_id": S, "transcript_path": "/h/.claude/projects/-p/s.jsonl", "cwd": "/p"}
CODEX = {"session_id": "t1", "turn_id": "u1", "cwd": "/p", "model": "m", "transcript_path": None}
STAMP = {"timestamp": "2026-11-18T10:34:26.529Z"}
GEMINI = {"session_id": "g1", "cwd": "/p", "transcript_path": "/h/x.json", **STAMP}
CURSOR = {"conversation_id": "c1", "generation_id": "g1", "workspace_roots": ["/p"]}
HERMES = {"session_id": "h1", "cwd": "/p", "tool_name": None, "tool_input": None}
CLINE = {"taskId": "k1", "workspaceRoots": ["/p"], "clineVersion": "", "timestamp": "1"}


def event(name: str, native: str, payload: Mapping[str, object]) -> AgentEvent:
    return agents.read(name, dict(payload), native, {})


def hooked(base: Mapping[str, object], native: str, **more: object) -> dict[str, object]:
    return {**base, "hook_event_name": native, **more}


MEANINGS = [
    # Claude Code
    ("claude-code", "SessionStart", hooked(CLAUDE, "SessionStart", source="startup"),
     {"kind": "session-begin", "session": S, "cwd": "/p", "turn_id": None}),
    ("claude-code", "UserPromptSubmit", hooked(CLAUDE, "UserPromptSubmit", prompt="x", prompt_id=P),
     {"kind": "turn-begin", "prompt": "x", "turn_id": P}),
    ("claude-code", "PreToolUse",
     hooked(CLAUDE, "PreToolUse", tool_name="Bash", tool_input={"command": "rm -rf  a\nb"}),
     {"kind": "tool", "tool": "terminal: rm -rf a b"}),
    ("claude-code", "Stop", hooked(CLAUDE, "Stop", prompt_id=P, stop_hook_active=True),
     {"kind": "turn-end", "turn_id": P, "status": "ok", "background": False}),
    ("claude-code", "Stop", hooked(CLAUDE, "Stop", background_tasks=[{"id": 1}]),
     {"kind": "turn-end", "background": True}),
    ("claude-code", "StopFailure", hooked(CLAUDE, "StopFailure", error="rate_limit"),
     {"kind": "turn-end", "status": "error"}),
    ("claude-code", "SessionEnd", hooked(CLAUDE, "SessionEnd", reason="other", prompt_id="later"),
     {"kind": "session-end", "session": S}),
    # Codex
    ("codex", "UserPromptSubmit", hooked(CODEX, "UserPromptSubmit", prompt="x"),
     {"kind": "turn-begin", "session": "t1", "turn_id": "u1", "prompt": "x"}),
    ("codex", "PreToolUse",
     hooked(CODEX, "PreToolUse", tool_name="shell", tool_input={"command": ["ls", "-l"]}),
     {"kind": "tool", "tool": "terminal: ls -l"}),
    ("codex", "Stop", hooked(CODEX, "Stop"), {"kind": "turn-end", "ends_only": False}),
    ("codex", "notify",
     {"type": "agent-turn-complete", "thread-id": "t1", "turn-id": "u1", "cwd": "/p",
      "input-messages": ["x", "y"], "client": "codex_exec"},
     {"kind": "turn-end", "session": "t1", "turn_id": "u1", "prompt": "y", "ends_only": True}),
    ("codex", "notify", {"type": "approval-requested", "thread-id": "t1"}, {"kind": "none"}),
    # Gemini CLI
    ("gemini", "BeforeAgent", hooked(GEMINI, "BeforeAgent", prompt="x"),
     {"kind": "turn-begin", "session": "g1", "turn_id": None, "prompt": "x"}),
    ("gemini", "BeforeTool",
     hooked(GEMINI, "BeforeTool", tool_name="run_shell_command", tool_input={"command": "ls"}),
     {"kind": "tool", "tool": "terminal: ls"}),
    ("gemini", "AfterAgent", hooked(GEMINI, "AfterAgent", prompt="x", stop_hook_active=False),
     {"kind": "turn-end", "status": "ok"}),
    ("gemini", "SessionEnd", hooked(GEMINI, "SessionEnd", reason="exit"), {"kind": "session-end"}),
    # Qwen Code: also what its tools return is announced as a prompt
    ("qwen", "UserPromptSubmit", hooked(GEMINI, "UserPromptSubmit", prompt="x"),
     {"kind": "turn-begin", "follow_up": True}),
    ("qwen", "UserPromptSubmit",
     hooked(GEMINI, "UserPromptSubmit", prompt="x y", submitted_prompt="x"),
     {"kind": "turn-begin", "follow_up": False, "prompt": "x"}),
    ("qwen", "Stop", hooked(GEMINI, "Stop", stop_hook_active=True), {"kind": "turn-end"}),
    # Copilot CLI
    ("copilot", "UserPromptSubmit", hooked(GEMINI, "UserPromptSubmit", prompt="x"),
     {"kind": "turn-begin", "session": "g1", "prompt": "x"}),
    ("copilot", "Stop", {**GEMINI, "stop_reason": "end_turn"}, {"kind": "turn-end"}),
    # Cursor
    ("cursor", "beforeSubmitPrompt", hooked(CURSOR, "beforeSubmitPrompt", prompt="x"),
     {"kind": "turn-begin", "session": "c1", "turn_id": "g1", "cwd": "/p"}),
    ("cursor", "stop", hooked(CURSOR, "stop", status="aborted"),
     {"kind": "turn-end", "status": "interrupted"}),
    ("cursor", "stop", hooked(CURSOR, "stop", status="error"), {"status": "error"}),
    # OpenCode, by our plugin
    ("opencode", "chat.message",
     {"sessionID": "ses_1", "messageID": "msg_1", "directory": "/p", "prompt": "x"},
     {"kind": "turn-begin", "session": "ses_1", "turn_id": "msg_1", "cwd": "/p"}),
    ("opencode", "tool.execute.before",
     {"sessionID": "ses_1", "tool": "bash", "args": {"command": "ls"}},
     {"kind": "tool", "tool": "terminal: ls"}),
    ("opencode", "session.idle", {"sessionID": "ses_1", "status": "interrupted"},
     {"kind": "turn-end", "status": "interrupted"}),
    # Hermes: the end of a session is the end of a turn
    ("hermes", "pre_llm_call",
     hooked(HERMES, "pre_llm_call", extra={"user_message": "x", "turn_id": "u1"}),
     {"kind": "turn-begin", "prompt": "x", "turn_id": "u1"}),
    ("hermes", "on_session_end", hooked(HERMES, "on_session_end", extra={"completed": True}),
     {"kind": "turn-end", "status": "ok"}),
    ("hermes", "on_session_end", hooked(HERMES, "on_session_end", extra={"interrupted": True}),
     {"kind": "turn-end", "status": "interrupted"}),
    ("hermes", "on_session_finalize", hooked(HERMES, "on_session_finalize", extra={}),
     {"kind": "session-end"}),
    # Cline
    ("cline", "UserPromptSubmit",
     {**CLINE, "hookName": "prompt_submit", "userPromptSubmit": {"prompt": "x"}},
     {"kind": "turn-begin", "session": "k1", "prompt": "x", "cwd": "/p"}),
    ("cline", "TaskCancel", {**CLINE, "hookName": "agent_abort"},
     {"kind": "turn-end", "status": "interrupted"}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "native", "payload", "meaning"), MEANINGS)
def test_what_a_payload_means(name, native, payload, meaning):
    found = event(name, native, payload)
    assert {field: getattr(found, field) for field in meaning} == meaning
    assert found.agent == name


FOREIGN = [
    ("Cursor runs Claude Code's hooks", "claude-code", "UserPromptSubmit",
     {**hooked(CLAUDE, "UserPromptSubmit", prompt="x"), **CURSOR}),
    ("with its own name of the event", "claude-code", "UserPromptSubmit",
     hooked({**CURSOR, "session_id": "c1"}, "beforeSubmitPrompt")),
    ("Grok Build, camel case", "claude-code", "Stop", {"sessionId": S, "hookEventName": "Stop"}),
    ("Copilot with a file of Claude Code's format", "claude-code", "Stop", hooked(GEMINI, "Stop")),
    ("Copilot, camel case", "copilot", "Stop", {"sessionId": "x", "timestamp": 1}),
    ("Goose", "claude-code", "Stop", {"session_id": "x", "event": "Stop"}),
    ("Claude Code in a file of Gemini's", "gemini", "Stop", hooked(CLAUDE, "Stop")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "native", "payload"), [row[1:] for row in FOREIGN])
def test_other_agents_that_read_our_hooks_are_not_taken_for_this_one(name, native, payload):
    assert event(name, native, payload).kind == "none"


def test_sub_agents_make_no_turns():
    payload = hooked(CLAUDE, "Stop", agent_id="a1", agent_type="Explore")
    assert event("claude-code", "Stop", payload) == AgentEvent(
        "none", "claude-code", sub_agent=True
    )
    child = {"sessionID": "ses_2", "parentID": "ses_1"}
    assert event("opencode", "session.idle", child).sub_agent


FIELDS = (
    "session_id",
    "cwd",
    "prompt",
    "extra",
    "tool_input",
    "status",
    "input-messages",
    "sessionID",
    "conversation_id",
    "taskId",
    "workspace_roots",
    "hook_event_name",
)


@pytest.mark.parametrize("value", [None, 1, [], {}, True, "x" * 1000, {"session_id": {}}], ids=repr)
@pytest.mark.parametrize("name", AGENTS)
def test_no_payload_breaks_an_adapter(name, value):
    for hook in AGENTS[name].hooks:
        agents.read(name, value, hook.event, {})
        agents.read(name, dict.fromkeys(FIELDS, value), hook.event, {})


def test_an_unknown_agent_means_nothing():
    assert agents.read("nobody", hooked(CLAUDE, "Stop"), "Stop", {}).kind == "none"


def test_time_outs_are_in_each_agents_own_unit():
    longest = {name: max(h.timeout for h in agent.hooks) for name, agent in AGENTS.items()}
    assert {name for name, most in longest.items() if most >= 1000} == {"gemini", "qwen"}


def test_the_names_are_those_of_the_design():
    names = "claude-code codex gemini opencode copilot cursor qwen hermes cline"
    assert list(AGENTS) == names.split()


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("Bash", {"command": "x" * 100}, f"terminal: {'x' * 59}…"),
        ("Write", {"file_path": "/p/a.txt", "content": "secret"}, "Write: /p/a.txt"),
        ("Task", {"prompt": "secret"}, "Task"),
        ("", {"command": "ls"}, ""),
        ("Bash", {"command": {"odd": 1}}, "Bash"),
    ],
)
def test_tools_are_named_with_the_beginning_of_their_command(name, given, words):
    assert tool_words(name, given) == words


def test_each_agent_is_told_in_its_own_way():
    said = {name: agent.tell(agent.hooks[1].event, "words") for name, agent in AGENTS.items()}
    assert said["hermes"] == '{"context": "words"}'
    assert said["opencode"] == "words"
    assert said["cursor"] == said["cline"] == ""
    claude = '{"hookSpecificOutput": {"hookEventName": "UserPromptSubmit", '
    assert said["claude-code"] == said["qwen"] == claude + '"additionalContext": "words"}}'
    assert '"BeforeAgent"' in said["gemini"]
