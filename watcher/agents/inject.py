"""For `turnmark run`: an agent's own way of taking hooks for one session, no file touched."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from typing import Any

from ..context import Context
from . import AGENTS, client
from .model import Agent
from .wishes import Entries, Place, plugin_text, wishes

Inject = Callable[[Context, list[str]], list[str]]


def inject(context: Context, argv: Sequence[str]) -> list[str]:
    """The command with what makes the agent call our hooks; unchanged where nothing is known."""
    words, name = list(argv), os.path.basename(argv[0]) if argv else ""
    known = next((a for a in AGENTS.values() if a.program == name and a.name in WAYS), None)
    if known is None:
        return words
    client.install(context)
    return WAYS[known.name](context, words)


def _claude(context: Context, words: list[str]) -> list[str]:
    if any(word == "--settings" or word.startswith("--settings=") for word in words):
        return words
    return [words[0], "--settings", json.dumps(_hooks(context, AGENTS["claude-code"])), *words[1:]]


def _hooks(context: Context, agent: Agent) -> dict[str, Any]:
    entries = next(wish for wish in wishes(agent, Place(context)) if isinstance(wish, Entries))
    value: dict[str, Any] = json.loads(entries.add("{}"))
    return value


def _codex(context: Context, words: list[str]) -> list[str]:
    if any(word.removeprefix("--config=").startswith("notify=") for word in words):
        return words
    command = [str(client.hook_path(context)), "codex", "notify"]
    return [words[0], "-c", f"notify={json.dumps(command)}", *words[1:]]


def _opencode(context: Context, words: list[str]) -> list[str]:
    """Its configuration in the environment, where nobody else uses that."""
    if "OPENCODE_CONFIG_CONTENT" in context.env:
        return words
    path = context.home / "bin/turnmark-opencode.js"
    client.write(path, plugin_text(context).encode(), 0o600)
    given = json.dumps({"plugin": [path.as_uri()]})
    return ["env", f"OPENCODE_CONFIG_CONTENT={given}", *words]


WAYS: dict[str, Inject] = {"claude-code": _claude, "codex": _codex, "opencode": _opencode}
