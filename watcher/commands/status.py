"""`turnmark status`: the service, what it watches, and who is at work."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import click

from core.errors import ConfigError

from .. import __version__
from ..access import store_size
from ..client import connect
from ..context import Context, pass_context
from ..output import Table, age, answer, size
from ..words import count, trouble_of


@click.command()
@pass_context
def command(context: Context) -> None:
    """Show the service, what it watches, and who is at work."""
    client = connect(context)
    if client is None:
        found, cure = _without_service(context)
        answer(context, found, *_absent(found, cure))
    else:
        with client:
            found = client.call("status")
        answer(context, found, *_blocks(found))


def _without_service(context: Context) -> tuple[dict[str, Any], str]:
    """And what would have one: a configuration can be in the way."""
    mistake, cure = "", "`turnmark up` starts it."
    try:
        if not context.config.enabled:
            cure = f"{context.config_path} says `enabled: false`."
    except ConfigError as error:
        mistake = error.message
        cure = f"the configuration has a mistake: {mistake.splitlines()[0].rstrip('.')}."
    service = {"running": False, "pid": None, "version": __version__, "config_error": mistake}
    store = store_size(context)
    return {"service": service, "workspaces": [], "sessions": [], "store": store}, cure


def _blocks(found: dict[str, Any]) -> Iterator[str | Table]:
    service, kept = found["service"], _kept(found["store"])
    yield f"The service runs: process {service['pid']}, version {service['version']}. {kept}"
    if service.get("config_error"):
        yield f"The configuration has a mistake, the last good one is in force: {_first(service)}"
    if found["workspaces"]:
        columns = ("DIRECTORY", "STATE", "FILES", "PENDING", "LAST SNAPSHOT")
        yield Table(columns, [_row(one) for one in found["workspaces"]], ("FILES", "PENDING"))
    else:
        yield "Nothing is watched; `turnmark watch DIR` or the configuration's watch list adds it."
    yield from (f"{w['root']}: {trouble_of(w)}" for w in found["workspaces"] if w["reason"])
    yield from map(_session, found["sessions"])


def _absent(found: dict[str, Any], cure: str) -> Iterator[str]:
    yield f"No service is running; {cure} {_kept(found['store'])}"


def _kept(store: dict[str, Any]) -> str:
    return f"The store has {count(store['snapshots'], 'snapshot')}, {size(store['bytes'])}."


def _first(service: dict[str, Any]) -> str:
    return str(service["config_error"]).splitlines()[0]


def _row(workspace: dict[str, Any]) -> tuple[object, ...]:
    files, last = workspace["files"], workspace["last_snapshot"]
    return (
        workspace["root"],
        workspace["state"],
        "-" if files is None else f"{files:,}",
        f"{workspace['pending']:,}",
        age(_ns(last), time.time_ns()) if last else "-",
    )


def _ns(stamp: str) -> int:
    return int(datetime.fromisoformat(stamp).timestamp() * 1e9)


def _session(session: dict[str, Any]) -> str:
    agent = f" ({session['agent']})" if session["agent"] else ""
    if session["turn"] is None:
        return f"Session {session['id']}{agent}: no turn yet."
    state = "is open" if session["open"] else "has ended"
    return f"Session {session['id']}{agent}: turn {session['turn']} {state}."
