"""What turnmark wants to stand in each agent's settings: entries, whole files, marked blocks."""

from __future__ import annotations

import json
import os
import shlex
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ..context import Context
from . import jsontext
from .client import MARKER, hook_path, rollback_path
from .model import Agent, Hook

START, STOP = "# >>> turnmark >>>", "# <<< turnmark <<<"


class Refused(Exception):
    """A file that cannot be changed without risk to what somebody else wrote in it."""


@dataclass(frozen=True)
class Entries:
    """Elements of lists in a JSON file; `others` are members that the agent needs beside them."""

    path: Path
    entries: tuple[tuple[tuple[str, ...], Any], ...]
    others: tuple[tuple[str, Any], ...] = ()
    may_be_empty: bool = False
    """The agent takes a file with nothing in it for `{}`; to others it is an error."""

    def add(self, text: str) -> str:
        text = text if text.strip() else "{}\n"
        value = _loaded(text)
        for key, wanted in self.others:
            if key not in value:
                text = jsontext.member(text, (), key, wanted)
        try:
            for path, entry in self.entries:
                text = jsontext.append(text, path, entry)
        except (ValueError, KeyError, IndexError) as error:
            raise Refused(f"is not built as expected: {error}") from error
        return text

    def strip(self, text: str) -> str:
        """Takes out what is ours, also out of lists that somebody else has put it in."""
        if not text.strip():
            if not self.may_be_empty:
                raise Refused("is empty, which is no JSON: delete it, or write {} into it")
            return text
        while found := next(jsontext.find(_loaded(text), _is_ours), None):
            text = jsontext.remove(text, _widened(_loaded(text), found))
        return text

    def snippet(self) -> str:
        return self.add("{}")


@dataclass(frozen=True)
class Own:
    """A file that is all ours."""

    path: Path
    text: str
    mode: int = 0o600
    needed: bool = True

    def add(self, text: str) -> str:
        if text:
            raise Refused("is there already, and not turnmark's")
        return self.text

    def strip(self, text: str) -> str:
        """It is ours if it calls what we install."""
        return "" if "/bin/turnmark-" in text else text

    def snippet(self) -> str:
        return self.text


@dataclass(frozen=True)
class Block:
    """Lines between two marks, at the top or the end of a file; one key of it is ours then."""

    path: Path
    lines: str
    key: str
    parse: Callable[[str], Any]
    top: bool

    def add(self, text: str) -> str:
        before = self._parsed(text)
        if self.key in before:
            raise Refused(f"has a '{self.key}' of its own already")
        line = "\r\n" if "\r\n" in text else "\n"
        block = f"{START}\n{self.lines}{STOP}\n".replace("\n", line)
        gap = "" if not text or text.endswith("\n") else line
        after = block + text if self.top else f"{text}{gap}{block}"
        parsed = self._parsed(after)
        if {k: v for k, v in parsed.items() if k != self.key} != before:
            raise Refused("would mean something else with the lines that are needed")
        return after

    def strip(self, text: str) -> str:
        at, end = text.find(START), text.find(STOP)
        if at < 0 or end < at:
            return text
        rest = text.find("\n", end) + 1
        return text[:at] + (text[rest:] if rest else "")

    def snippet(self) -> str:
        return self.lines

    def _parsed(self, text: str) -> Mapping[str, Any]:
        try:
            value = self.parse(text)
        except (ValueError, yaml.YAMLError) as error:
            raise Refused(f"cannot be read ({str(error).splitlines()[0]})") from error
        if not isinstance(value or {}, dict):
            raise Refused("is not built as expected")
        return value or {}


Wish = Entries | Own | Block


def is_needed(wish: Wish) -> bool:
    """Whether the agent tells nothing without it."""
    return not isinstance(wish, Own) or wish.needed


def _loaded(text: str) -> dict[str, Any]:
    try:
        value = jsontext.load(text)
    except (ValueError, RecursionError) as error:
        raise Refused(f"is not strict JSON ({error}); comments would be lost") from error
    if not isinstance(value, dict):
        raise Refused("holds no object")
    return value


def _is_ours(value: Any) -> bool:
    return isinstance(value, dict) and MARKER in str(value.get("command", ""))


def _widened(value: Any, path: jsontext.Path) -> jsontext.Path:
    """Also what holds nothing else: a group of one hook, a list of one group, its holder."""
    while len(path) > 1:
        above: Any = value
        for step in path[:-1]:
            above = above[step]
        if isinstance(above, dict) and isinstance(above.get("hooks"), list):
            alone = path[-1] == "hooks"
        else:
            alone = len(above) == 1
        if not alone:
            break
        path = path[:-1]
    return path


# For whom


@dataclass(frozen=True)
class Place:
    """Where an agent's settings are, and what they are to name."""

    context: Context
    project: Path | None = None

    def folder(self, agent: Agent) -> Path:
        """The agent's directory, where its own variable says so or in the user's home."""
        named = self.context.env.get(FOLDER_VARIABLES.get(agent.name, ""), "")
        if named and os.path.isabs(named):
            return Path(named)
        return self.context.user_home / agent.folder

    def command(self, agent: Agent, event: str) -> str:
        return f"{shlex.quote(str(hook_path(self.context)))} {agent.name} {event}"

    @property
    def rollback(self) -> str:
        return shlex.quote(str(rollback_path(self.context)))


FOLDER_VARIABLES = {
    "claude-code": "CLAUDE_CONFIG_DIR",
    "codex": "CODEX_HOME",
    "copilot": "COPILOT_HOME",
    "hermes": "HERMES_HOME",
    "opencode": "OPENCODE_CONFIG_DIR",
}
ABOUT = "turnmark: list rollback points, show what changed, or go back"
PLEASE = (
    f"{ABOUT}.\n\nRun `{{command}} $ARGUMENTS` in a shell, exactly as written, and show me its "
    "output unchanged. Without arguments it lists the points, `diff N` shows what changed since "
    "point N, `N` puts the files back to point N, `N FILE` only that file. Do nothing else.\n"
)


def wishes(agent: Agent, place: Place) -> list[Wish]:
    return list(WISHES[agent.name](agent, place))


def _group(agent: Agent, place: Place, hook: Hook, **more: object) -> dict[str, Any]:
    """The shape that Claude Code invented."""
    one = {"type": "command", "command": place.command(agent, hook.event), **more}
    group: dict[str, Any] = {"matcher": hook.matcher} if hook.matcher else {}
    return {**group, "hooks": [{**one, "timeout": hook.timeout}]}


def _groups(
    agent: Agent, place: Place, path: Path, *, may_be_empty: bool = False, **more: object
) -> Entries:
    timed = [hook for hook in agent.hooks if hook.timeout]
    rows = ((("hooks", h.event), _group(agent, place, h, **more)) for h in timed)
    return Entries(path, tuple(rows), may_be_empty=may_be_empty)


def _claude(agent: Agent, place: Place) -> list[Wish]:
    if place.project is not None:
        path = place.project / ".claude/settings.local.json"
        return [_groups(agent, place, path, may_be_empty=True)]
    folder = place.folder(agent)
    head = f"---\ndescription: '{ABOUT}'\nargument-hint: '[diff N | N [FILE]]'\n"
    allowed = f"allowed-tools: Bash({place.rollback}:*)\n---\n"
    text = f"{head}{allowed}\n!`{place.rollback} $ARGUMENTS`\n\n{SHOW}"
    return [
        _groups(agent, place, folder / "settings.json", may_be_empty=True),
        Own(folder / "commands/rollback.md", text, 0o644, needed=False),
    ]


SHOW = (
    "Above is what turnmark says. Show it to me as it is, and do nothing else. If files were put "
    "back, what you know of them is out of date.\n"
)


def _codex(agent: Agent, place: Place) -> list[Wish]:
    folder = place.folder(agent)
    words = [str(hook_path(place.context)), agent.name, "notify"]
    lines = f"notify = {json.dumps(words)}\n"
    asks = PLEASE.format(command=place.rollback)
    return [
        _groups(agent, place, folder / "hooks.json"),
        Block(folder / "config.toml", lines, "notify", tomllib.loads, top=True),
        Own(folder / "prompts/rollback.md", asks, 0o644, needed=False),
    ]


def _gemini(agent: Agent, place: Place) -> list[Wish]:
    folder = place.folder(agent)
    prompt = (
        f'description = "{ABOUT}"\nprompt = """\n!{{{place.rollback} {{{{args}}}}}}\n\n{SHOW}"""\n'
    )
    return [
        _groups(agent, place, folder / "settings.json", name="turnmark"),
        Own(folder / "commands/rollback.toml", prompt, 0o644, needed=False),
    ]


def _copilot(agent: Agent, place: Place) -> list[Wish]:
    rows = {h.event: [_copilot_entry(agent, place, h)] for h in agent.hooks}
    text = json.dumps({"version": 1, "hooks": rows}, indent=2) + "\n"
    return [Own(place.folder(agent) / "hooks/turnmark.json", text)]


def _copilot_entry(agent: Agent, place: Place, hook: Hook) -> dict[str, Any]:
    command = place.command(agent, hook.event)
    return {"type": "command", "bash": command, "timeoutSec": hook.timeout}


def _cursor(agent: Agent, place: Place) -> list[Wish]:
    rows = tuple(
        (("hooks", h.event), {"command": place.command(agent, h.event), "timeout": h.timeout})
        for h in agent.hooks
    )
    folder = place.folder(agent)
    asks = PLEASE.format(command=place.rollback)
    return [
        Entries(folder / "hooks.json", rows, (("version", 1),)),
        Own(folder / "commands/rollback.md", asks, 0o644, needed=False),
    ]


def _opencode(agent: Agent, place: Place) -> list[Wish]:
    folder = place.folder(agent)
    text = plugin_text(place.context)
    command = f"---\ndescription: '{ABOUT}'\n---\n\n!`{place.rollback} $ARGUMENTS`\n\n{SHOW}"
    return [
        Own(folder / "plugins/turnmark.js", text),
        Own(folder / "commands/rollback.md", command, 0o644, needed=False),
    ]


def plugin_text(context: Context) -> str:
    source = Path(__file__).with_name("opencode_plugin.js").read_text(encoding="utf-8")
    return source.replace(f'"{MARKER}"', json.dumps(str(hook_path(context))), 1)


def _hermes(agent: Agent, place: Place) -> list[Wish]:
    rows = {
        hook.event: [{"command": place.command(agent, hook.event), "timeout": hook.timeout}]
        for hook in agent.hooks
    }
    lines = yaml.safe_dump({"hooks": rows}, sort_keys=False, width=10_000)
    return [Block(place.folder(agent) / "config.yaml", lines, "hooks", yaml.safe_load, top=False)]


def _cline(agent: Agent, place: Place) -> list[Wish]:
    hook, folder = shlex.quote(str(hook_path(place.context))), place.folder(agent) / "hooks"
    return [
        Own(folder / f"{one.event}.sh", CLINE.format(hook=hook, event=one.event), 0o755)
        for one in agent.hooks
    ]


CLINE = """#!/bin/sh
# turnmark: `turnmark remove cline` takes this file away.
[ -x {hook} ] && exec {hook} cline {event}
exit 0
"""

WISHES: dict[str, Callable[[Agent, Place], list[Wish]]] = {
    "claude-code": _claude,
    "codex": _codex,
    "gemini": _gemini,
    "opencode": _opencode,
    "copilot": _copilot,
    "cursor": _cursor,
    "qwen": _gemini,
    "hermes": _hermes,
    "cline": _cline,
}
