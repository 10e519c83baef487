"""`turnmark uninstall`: everything of turnmark's out again; its history only when asked."""

from __future__ import annotations

import sys
from contextlib import suppress

import click

from core.clear import clear
from core.errors import NoStore, TurnmarkError

from ..access import open_store
from ..agents import AGENTS
from ..agents.wishes import Place
from ..asking import agreed
from ..cli import EXCEPTIONS, FAILED, OK
from ..client import connect
from ..context import Context, pass_context
from ..output import answer, is_terminal
from ..starting import wait_until_free
from .remove import take_out_of

OURS = (
    "bin/turnmark-*",
    "bin/turnmark_hook.py",
    "bin/__pycache__/turnmark_hook.*",
    "agents/????????T??????Z-*",
    "agents.json",
    "spool/*.json",
    "spool/*.payload",
    "spool/.starting",
    "spool/.*.json",
    "log/turnmark.log*",
    "bug.txt",
)
STATES = ("sessions/*.yaml", "sessions/.lock")
"""Prompts stand in them, as in the history."""
FOLDERS = ("bin/__pycache__", "bin", "agents", "spool", "log", "sessions", "")


@click.command()
@click.option(
    "--store", "also_store", is_flag=True, help="Also all history, and the states of sessions."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@pass_context
def command(context: Context, also_store: bool, yes: bool) -> int:
    """Take turnmark out of every agent's settings, stop the service, remove its files."""
    if not yes:
        _check_somebody_is_there(context)
        more = " AND ALL HISTORY AND SESSIONS" if also_store else "; the history stays"
        answer(context, {}, f"Entries in agents' settings and files in {context.home} go{more}.")
        if not agreed(context, "Go on?"):
            return FAILED
    # Entries before files: a hook that is named and missing must not be what an agent meets.
    chosen = list(AGENTS.values())
    rows, lines = take_out_of(context, chosen, Place(context), dry_run=False)
    if any(one["refused"] for one in rows):
        lines.append("Something is left in settings; so the files that it names are left too.")
        answer(context, {"agents": rows, "removed": []}, "\n".join(lines))
        return EXCEPTIONS
    _stop_service(context)
    removed = _remove_files(context, also_store)
    said = [f"Removed {path}" for path in removed]
    answer(context, {"agents": rows, "removed": removed}, "\n".join([*lines, *said]))
    return OK


def _check_somebody_is_there(context: Context) -> None:
    if context.json or not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise click.UsageError("Nobody can be asked here: pass --yes.")


def _stop_service(context: Context) -> None:
    client = connect(context)
    if client is not None:
        with client:
            client.call("shutdown", why="uninstall")
        if not wait_until_free(client.path):
            raise TurnmarkError("The service does not end.", "Run `turnmark down`, then again.")


def _remove_files(context: Context, also_store: bool) -> list[str]:
    """By name: the home may have been put where other things are, and those stay."""
    patterns = (*OURS, *STATES) if also_store else OURS
    found = [path for pattern in patterns for path in sorted(context.home.glob(pattern))]
    for path in found:
        path.unlink()
    removed = [str(path) for path in found]
    if also_store:
        with suppress(NoStore):
            store = open_store(context)
            clear(store)
            removed.append(store.base)
    for name in FOLDERS:
        with suppress(OSError):
            (context.home / name).rmdir()
    return removed
