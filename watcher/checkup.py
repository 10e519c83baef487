"""What may be wrong with an installation, each finding with its cure; changes nothing."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from core.errors import BadInput, NoStore, TurnmarkError
from core.store import Store

from .address import candidates, distrust
from .agents import AGENTS, claude_code, client, jsontext
from .agents.found import clients, holds, is_loose
from .agents.model import Agent
from .agents.settings import Ledger, plan, present
from .agents.wishes import Place, Wish, is_needed, wishes
from .client import connect
from .context import Context
from .logs import log_path
from .words import trouble_of

Level = Literal["ok", "hint", "problem"]

FEW_WATCHES = 65_536
SLOW_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    what: str
    cure: str = ""


def look(context: Context) -> Iterator[Finding]:
    yield from _config(context)
    yield from _places(context)
    yield from _system()
    yield from _service(context)
    yield from _client(context)
    yield from _agents(context)


def _config(context: Context) -> Iterator[Finding]:
    try:
        enabled = context.config.enabled
    except TurnmarkError as error:
        yield Finding("problem", error.message, error.hint or "Run `turnmark config check`.")
        return
    if enabled:
        yield Finding("ok", "The configuration is in order.")
    else:
        cure = f"Change it in {context.config_path}."
        yield Finding("problem", "turnmark is switched off: `enabled: false`.", cure)


def _places(context: Context) -> Iterator[Finding]:
    for path in (str(context.home), candidates(context.env)[0]):
        if os.path.lexists(path) and (reason := distrust(path)):
            yield Finding("problem", f"{path} {reason}.", f"Run `chmod 700 {path}`, as its owner.")
    try:
        Store.open(str(context.store_path))
        yield Finding("ok", f"The store is {context.store_path}.")
    except NoStore:
        yield Finding("ok", "There is no store yet; the first snapshot makes one.")
    except TurnmarkError as error:
        yield Finding("problem", error.message, error.hint or "Run `turnmark store verify`.")
    if context.home.is_dir() and shutil.disk_usage(context.home).free < 200 << 20:
        cure = "Make room, or move it with --home."
        yield Finding("problem", f"The disk of {context.home} is nearly full.", cure)


def _system() -> Iterator[Finding]:
    try:
        most = int(Path("/proc/sys/fs/inotify/max_user_watches").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return
    if most < FEW_WATCHES:
        yield Finding(
            "hint",
            f"Only {most:,} directories can be watched by one user.",
            "Run `sudo sysctl fs.inotify.max_user_watches=524288`.",
        )


def _service(context: Context) -> Iterator[Finding]:
    try:
        found = connect(context)
        if found is None:
            yield Finding("hint", "The service does not run.", "Run `turnmark up`.")
            return
        with found:
            status = found.call("status")
    except TurnmarkError as error:
        yield Finding("problem", error.message, "Run `turnmark down`, then `turnmark up`.")
        return
    yield Finding("ok", f"The service runs: process {status['service']['pid']}.")
    for row in status["workspaces"]:
        if row["state"] in ("paused", "degraded"):
            words = f"{row['root']} is {row['state']}: {trouble_of(row)}."
            log = f"`turnmark status` has the newest, {log_path(context.home)} what was before."
            yield Finding("problem", words, log)


def _client(context: Context) -> Iterator[Finding]:
    rows = Ledger(context.home).records.values()
    if not rows:
        return
    cure = f"Run `{_init(*next((row.agent, row.project) for row in rows))}`."
    for path, text in client.files(context).items():
        if broken := client.is_whole(path):
            yield Finding("problem", f"{path} {broken}.", cure)
        elif path.read_bytes() != text.encode("utf-8", "surrogateescape"):
            yield Finding("problem", f"{path} is of another version.", cure)
    if client.module_path(context).is_file() and not client.is_compiled(context):
        slow = f"{client.compiled_path(context)} is not as it should be: hooks are slower for it."
        yield Finding("problem", slow, cure)
    yield from _speed(context, cure)


def _init(agent: str, project: Path | str | None) -> str:
    if project:
        return f"cd {shlex.quote(str(project))} && turnmark init {agent} --project"
    return f"turnmark init {agent}"


def _speed(context: Context, mend: str) -> Iterator[Finding]:
    path = client.hook_path(context)
    if client.is_whole(path):
        return
    began = time.monotonic()
    try:
        subprocess.run([path], stdin=subprocess.DEVNULL, capture_output=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        yield Finding("problem", f"{path} does not run: {error}.", mend)
        return
    took = time.monotonic() - began
    if took > SLOW_SECONDS:
        cure = "Is the machine busy, or the interpreter on a slow disk?"
        yield Finding("hint", f"A call of the hook takes {took * 1000:.0f} ms.", cure)


def _agents(context: Context) -> Iterator[Finding]:
    ledger = Ledger(context.home)
    here = {agent.name for agent in present(context)}
    for agent in AGENTS.values():
        told = [
            place for place in _places_of(agent, context, ledger) if _tells(agent, place, ledger)
        ]
        sick = dict.fromkeys(one for place in told for one in _wrong(agent, place, ledger))
        yield from sick
        if told and not sick:
            yield _told(agent, told)
        elif not told and agent.name in here:
            cure = f"Run `turnmark init {agent.name}`."
            yield Finding("hint", f"{agent.title} is here and does not tell turnmark.", cure)


def _places_of(agent: Agent, context: Context, ledger: Ledger) -> Iterator[Place]:
    """The user's settings, and those of projects: of this directory, and those that are known."""
    yield Place(context)
    if agent.name == claude_code.NAME:
        known = (row.project for row in ledger.records.values() if row.project)
        for project in dict.fromkeys([*_here(context), *map(Path, known)]):
            if project.is_dir():
                yield Place(context, project)


def _here(context: Context) -> list[Path]:
    """Nowhere, if somebody has removed it."""
    try:
        return [context.cwd]
    except BadInput:
        return []


def _tells(agent: Agent, place: Place, ledger: Ledger) -> bool:
    """Whether it should by the ledger, or would by what stands in its settings."""
    at = str(place.project) if place.project else None
    rows = ledger.records.values()
    known = any(row.agent == agent.name and row.project == at for row in rows)
    return known or any(clients(wish) for wish in wishes(agent, place))


def _told(agent: Agent, places: list[Place]) -> Finding:
    """One directory's settings say nothing of what the agent does in another."""
    projects = [place.project for place in places]
    if None in projects:
        return Finding("ok", f"{agent.title} tells turnmark.")
    for cwd in _here(places[0].context):
        if cwd in projects:
            return Finding("ok", f"{agent.title} tells turnmark in {cwd}, by its own settings.")
    words = f"{agent.title} tells turnmark only in {', '.join(map(str, projects))}; not here."
    init = f"`turnmark init {agent.name}`"
    return Finding("hint", words, f"Run {init}; with --project for this directory only.")


def _wrong(agent: Agent, place: Place, ledger: Ledger) -> Iterator[Finding]:
    init = _init(agent.name, place.project)
    changes, troubles = plan(agent, place, ledger)
    for change in changes:
        belongs = is_needed(change.wish) or str(change.path) in ledger.records
        if belongs and not change.idle and not holds(change.wish):
            words = f"{agent.title}: {change.path} lacks what belongs into it."
            yield Finding("problem", words, f"Run `{init}`.")
    for one in troubles:
        if one.needed:
            words = f"{agent.title}: {one.path} {one.reason}."
            by_hand = f"put in by hand what `{init} --print` shows"
            yield Finding("problem", words, f"Correct that and run `{init}`, or {by_hand}.")
    for wish in wishes(agent, place):
        yield from _named(agent, wish, init)
    for check in CHECKS.get(agent.name, ()):
        yield from check(place.folder(agent))


def _named(agent: Agent, wish: Wish, init: str) -> Iterator[Finding]:
    for client_path in clients(wish):
        if not os.access(client_path, os.X_OK):
            words = f"{agent.title}: {wish.path} names {client_path}, which cannot be run."
            out = init.replace("turnmark init", "turnmark remove")
            yield Finding("problem", words, f"Run `{init}`, or `{out}` to be rid of it.")
    if agent.name not in TAKE_COMMENTS and is_loose(wish):
        words = f"{agent.title} may discard {wish.path}: it has comments, or commas too many."
        yield Finding("hint", words, f"Take those out, and run `{init}`.")


# By their sources; Claude Code says "Invalid or malformed JSON", and goes on without the file.
TAKE_COMMENTS = ("gemini", "qwen")


def _claude_off(folder: Path) -> Iterator[Finding]:
    if _json(folder / "settings.json").get("disableAllHooks"):
        cure = f"Take disableAllHooks out of {folder / 'settings.json'}."
        yield Finding("problem", "Claude Code has its hooks switched off.", cure)


def _codex_trust(folder: Path) -> Iterator[Finding]:
    """What is trusted is in `[hooks.state]`, by a key that begins with the file's path."""
    try:
        text = (folder / "config.toml").read_text(encoding="utf-8")
    except OSError:
        text = ""
    if f"{folder / 'hooks.json'}:" not in text:
        yield Finding(
            "hint",
            "Codex does not trust the hooks yet, and tells only of the ends of turns.",
            "Start codex, type /hooks, accept those with turnmark-hook.",
        )


def _hermes_consent(folder: Path) -> Iterator[Finding]:
    allowed = folder / "shell-hooks-allowlist.json"
    if client.MARKER not in (allowed.read_text(encoding="utf-8") if allowed.is_file() else ""):
        cure = "Answer yes when Hermes asks, or start it with --accept-hooks."
        yield Finding("hint", "Hermes has not been allowed to run the hooks yet.", cure)


def _json(path: Path) -> dict[str, Any]:
    try:
        value = jsontext.lenient(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


CHECKS = {
    "claude-code": (_claude_off,),
    "codex": (_codex_trust,),
    "hermes": (_hermes_consent,),
}
