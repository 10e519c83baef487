"""`turnmark store`: how large it is and whose history it holds; pruning, checking, copies, end."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NoReturn, TypedDict

import click

from core.clear import clear
from core.errors import BadInput, Damaged, NoStore
from core.imports import (
    Imported,
    archives_at,
    check_there,
    import_stores,
    is_store,
    missing_from,
)
from core.keeping import MEGABYTE, Policy
from core.model import parse_path, rfc3339
from core.presence import record_of, state_of
from core.repair import Dropped, repair
from core.retention import Pruned, prune
from core.roots import root_of
from core.store import Store
from core.sweep import size_on_disk
from core.timeline import Timeline, registered
from core.verify import Damage, verify

from ..access import open_store, policy_of
from ..agents.checkpoint_upkeep import predecessor_base, remove_tree, tree_size
from ..asking import agreed
from ..cli import EXCEPTIONS, FAILED, OK
from ..context import Context, pass_context
from ..output import Table, age, answer, is_terminal, note, size
from ..upkeep import deepen, maintain
from ..words import capped, columns, count, left_cut

LIMIT = 20
ROOT_ROOM = 60
OTHERS = 40
"""What the other columns of the table need."""
yes_option = click.option("-f", "-y", "--yes", is_flag=True, help="Do not ask.")
full_option = click.option("--full", is_flag=True, help="Name everything, however much.")


class Legacy(TypedDict):
    """One directory that the predecessor left."""

    path: str
    bytes: int


@dataclass(frozen=True)
class Held:
    """One workspace of the store."""

    id: str
    root: str
    points: int
    snapshots: int
    last_ns: int
    state: str


@click.group(invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Sizes, pruning, checking and backup of the store."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(status)


# Looking


@command.command()
@pass_context
def status(context: Context) -> None:
    """Show how large the store is, and whose history it holds."""
    store = open_store(context)
    held, total = held_by(store), size_on_disk(store)
    snapshots = sum(one.snapshots for one in held)
    head = f"{store.base}\n{size(total)}, {count(len(held), 'workspace')}, "
    head += count(snapshots, "snapshot")
    blocks = (head, "", _table(held[:LIMIT])) if held else (head,)
    answer(context, _status_json(context, store, held, total), *blocks)
    if len(held) > LIMIT:
        note(context, f"{len(held) - LIMIT} more: `turnmark store list --limit 0` shows all.")


@command.command("list")
@click.option("--limit", type=click.IntRange(min=0), default=LIMIT, show_default=True)
@pass_context
def list_(context: Context, limit: int) -> None:
    """List the workspaces, those last used first; a limit of 0 means all."""
    store = open_store(context)
    held = held_by(store)
    shown = held[:limit] if limit else held
    answer(context, _status_json(context, store, shown, size_on_disk(store)), _table(shown))


def held_by(store: Store) -> list[Held]:
    return sorted(_held(store), key=lambda one: one.last_ns, reverse=True)


def _held(store: Store) -> Iterator[Held]:
    for workspace, root in registered(store):
        timeline = Timeline(store, workspace)
        times = [one.time_ns for one in timeline.snapshots]
        times += [mark.time_ns for mark in timeline.marks]
        state = state_of(store.disk, record_of(store, workspace))
        yield Held(
            workspace,
            root,
            len(timeline.numbered),
            len(timeline.history.snapshot_ids),
            max(times, default=0),
            state,
        )


def _table(held: list[Held]) -> Table:
    names = ("WORKSPACE", "POINTS", "SNAPSHOTS", "LAST TOUCH", "STATE")
    return Table(names, [_row(one) for one in held], ("POINTS", "SNAPSHOTS"))


def _row(one: Held) -> tuple[object, ...]:
    touched = age(one.last_ns) if one.last_ns else "never"
    return (
        left_cut(one.root, min(ROOT_ROOM, columns() - OTHERS)),
        one.points,
        one.snapshots,
        touched,
        one.state,
    )


def _status_json(context: Context, store: Store, held: list[Held], total: int) -> dict[str, object]:
    rows = [
        {
            "id": one.id,
            "root": one.root,
            "points": one.points,
            "snapshots": one.snapshots,
            "last_touch": rfc3339(one.last_ns) if one.last_ns else None,
            "state": one.state,
        }
        for one in held
    ]
    legacy = [_legacy_json(path) for path in archives_at(predecessor_base(context))]
    return {"base": store.base, "total_bytes": total, "workspaces": rows, "legacy": legacy}


# Pruning


@command.command("prune")
@click.option(
    "--retention-days", type=click.IntRange(min=0), metavar="N", help="Drop what is older; 0: none."
)
@click.option(
    "--max-size-mb", type=click.IntRange(min=0), metavar="N", help="Drop until it fits; 0: no cap."
)
@click.option("--keep-orphans", is_flag=True, help="Keep the history of deleted directories.")
@click.option("--dry-run", is_flag=True, help="Only show what would go.")
@yes_option
@pass_context
def prune_(
    context: Context,
    retention_days: int | None,
    max_size_mb: int | None,
    keep_orphans: bool,
    dry_run: bool,
    yes: bool,
) -> int:
    """Drop what the limits do not keep; the configuration has them, options win.

    The newest point of a directory that is there, and pinned points, stay whatever the limits.
    """
    store = open_store(context)
    policy = _policy(context, retention_days, max_size_mb)
    roots, now_ns = dict(registered(store)), time.time_ns()
    shown = None
    if dry_run or not yes:
        shown = prune(store, policy, now_ns, keep_orphans=keep_orphans, dry_run=True)
        if dry_run:
            return _tell_pruned(context, shown, roots, dry_run=True)
        if _loses(shown) and not _may_lose(context, shown, roots):
            return FAILED
    whole = {*shown.orphans, *shown.stale} if shown else None
    git = shutil.which("git")
    done = prune(store, policy, now_ns, keep_orphans=keep_orphans, agreed=whole, git=git)
    return _tell_pruned(context, done, roots, dry_run=False)


def _policy(context: Context, days: int | None, megabytes: int | None) -> Policy:
    policy = policy_of(context.config.store)
    if days is not None:
        policy = replace(policy, retention_days=days)
    if megabytes is not None:
        policy = replace(policy, max_total_size=megabytes * MEGABYTE)
    return policy


def _loses(pruned: Pruned) -> bool:
    return bool(pruned.snapshots_dropped or pruned.orphans or pruned.stale)


def _may_lose(context: Context, shown: Pruned, roots: Mapping[str, str]) -> bool:
    """Without --yes: the preview, and the question."""
    _check_somebody_is_there(context)
    answer(context, {}, "\n".join(_pruned_lines(shown, roots, dry_run=True)))
    return agreed(context, "Drop them?")


def _check_somebody_is_there(context: Context) -> None:
    if context.json or not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise click.UsageError("Something would be lost, and nobody can be asked here: pass --yes.")


def _tell_pruned(
    context: Context, pruned: Pruned, roots: Mapping[str, str], *, dry_run: bool
) -> int:
    lines = "\n".join(_pruned_lines(pruned, roots, dry_run=dry_run))
    answer(context, _pruned_json(pruned, roots, dry_run=dry_run), lines)
    return EXCEPTIONS if pruned.errors else OK


def _pruned_lines(pruned: Pruned, roots: Mapping[str, str], *, dry_run: bool) -> Iterator[str]:
    if dry_run:
        yield "What a prune would do; nothing is changed yet."
    yield f"Scanned    {count(pruned.scanned, 'workspace')}"
    yield f"Orphans    {count(len(pruned.orphans), 'workspace')} without a directory"
    yield from (f"  {roots.get(one, one)}" for one in pruned.orphans)
    yield f"Stale      {count(len(pruned.stale), 'workspace')} without a point young enough"
    yield from (f"  {roots.get(one, one)}" for one in pruned.stale)
    yield f"Dropped    {count(pruned.snapshots_dropped, 'snapshot')}"
    yield f"Reclaimed  {size(pruned.reclaimed)} of {size(pruned.bytes_before)}"
    yield f"Errors     {len(pruned.errors)}"
    yield from (f"  {error}" for error in pruned.errors)
    if pruned.over_cap_reason:
        yield pruned.over_cap_reason


def _pruned_json(pruned: Pruned, roots: Mapping[str, str], *, dry_run: bool) -> dict[str, object]:
    return {
        "dry_run": dry_run,
        "scanned": pruned.scanned,
        "orphans": [{"id": one, "root": roots.get(one)} for one in pruned.orphans],
        "stale": [{"id": one, "root": roots.get(one)} for one in pruned.stale],
        "errors": list(pruned.errors),
        "snapshots_dropped": pruned.snapshots_dropped,
        "bytes_before": pruned.bytes_before,
        "bytes_after": pruned.bytes_after,
        "reclaimed": pruned.reclaimed,
        "over_cap_reason": pruned.over_cap_reason or None,
    }


ENDING = signal.SIGTERM, signal.SIGHUP


def _end_orderly(*_: object) -> NoReturn:
    """Taking along what was started; told once more, it goes on with that."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    sys.exit(FAILED)


@command.command("upkeep", hidden=True)
@click.option("--deep", is_flag=True)
@click.argument("roots", nargs=-1)
@pass_context
def upkeep_(context: Context, deep: bool, roots: tuple[str, ...]) -> None:
    """What a service leaves to a process of its own."""
    for number in ENDING:
        signal.signal(number, _end_orderly)
    store = open_store(context)
    if deep:
        deepen(context, store)
    else:
        maintain(context, store, [root_of(parse_path(root)) for root in roots])


# Checking


def _store_as_it_is(context: Context) -> Store:
    """Also one whose layout is damaged, as long as it is one of ours."""
    try:
        return open_store(context)
    except Damaged:
        return Store(os.path.realpath(context.store_path))
    except NoStore:
        if not (context.store_path / "turnmark").is_dir():
            raise
        return Store(os.path.realpath(context.store_path))


@command.command("verify")
@click.option("--quick", is_flag=True, help="Do not read the contents of files.")
@full_option
@pass_context
def verify_(context: Context, quick: bool, full: bool) -> int:
    """Read everything, and say what is damaged and of which snapshot."""
    store = _store_as_it_is(context)
    found = verify(store, full=not quick)
    data = {
        "ok": found.ok,
        "snapshots": found.snapshots,
        "damaged": [_damage_json(damage) for damage in found.damaged],
    }
    lines = [f"{store.base} is in order: {count(found.snapshots, 'snapshot')}, all whole."]
    if not found.ok:
        lines = [f"{store.base} is damaged: {count(len(found.damaged), 'thing')}."]
        lines += capped([f"  {damage.reason}" for damage in found.damaged], full=full)
        lines.append("`turnmark store repair` saves what can be saved.")
    answer(context, data, "\n".join(lines))
    return OK if found.ok else FAILED


def _damage_json(damage: Damage) -> dict[str, object]:
    return {
        "what": damage.what,
        "workspace": damage.workspace,
        "seq": damage.seq,
        "reason": damage.reason,
    }


@command.command("repair")
@full_option
@pass_context
def repair_(context: Context, full: bool) -> int:
    """Mend a damaged store; nothing is deleted that could still be read."""
    store = _store_as_it_is(context)
    done = repair(store)
    data = {
        "kept": done.kept,
        "dropped": [_dropped_json(dropped) for dropped in done.dropped],
        "notes": done.notes,
    }
    lines = capped([f"  {text}" for text in done.notes], full=full)
    if done.dropped:
        lines.append(f"Lost for good, {count(len(done.dropped), 'reference')}:")
        lines += capped([f"  {dropped.sentence()}" for dropped in done.dropped], full=full)
    lines.append(f"{store.base} is in order: {count(done.kept, 'snapshot')}.")
    answer(context, data, "\n".join(lines))
    return EXCEPTIONS if done.dropped else OK


def _dropped_json(dropped: Dropped) -> dict[str, object]:
    return {
        "name": dropped.name,
        "workspace": dropped.workspace,
        "root": dropped.root,
        "seq": dropped.seq,
        "time": rfc3339(dropped.time_ns) if dropped.time_ns else None,
        "lost": list(dropped.lost),
    }


# Copying, and the end


@command.command("backup")
@click.argument("directory", metavar="DIR")
@pass_context
def backup_(context: Context, directory: str) -> None:
    """Copy the store to DIR, which must be new or empty; it is whole at every moment."""
    from core.backup import backup

    done = backup(open_store(context), os.path.join(context.cwd, directory))
    data = {
        "path": done.path,
        "snapshots": done.snapshots,
        "packs": done.packs,
        "bytes": done.bytes,
    }
    says = f"Copied and verified: {count(done.snapshots, 'snapshot')}, {size(done.bytes)}."
    answer(context, data, says, "To use it, move it to H/store, then: turnmark --home H list")


@command.command("clear")
@yes_option
@pass_context
def clear_(context: Context, yes: bool) -> int:
    """Remove the store with all history. There is no way back."""
    store = open_store(context)
    if not yes:
        _check_somebody_is_there(context)
        held = held_by(store)
        snapshots = count(sum(one.snapshots for one in held), "snapshot")
        all_of_it = f"{snapshots} of {count(len(held), 'workspace')}, {size(size_on_disk(store))}"
        answer(context, {}, f"Remove {store.base}: {all_of_it}. There is no way back.")
        if held:
            answer(context, {}, _table(held))
        if not agreed(context, "Remove all of it?"):
            return FAILED
    done = clear(store)
    data = {"base": store.base, "reclaimed": done.bytes, "left": list(done.left)}
    left = f"Left there, as it is not turnmark's: {', '.join(done.left)}"
    answer(
        context, data, f"Removed {store.base}: {size(done.bytes)}.", *([left] if done.left else [])
    )
    return EXCEPTIONS if done.left else OK


# What the predecessor left


@command.command("import")
@click.argument("path", metavar="[PATH]", required=False)
@pass_context
def import_(context: Context, path: str | None) -> int:
    """Turn the checkpoints of hermes into rollback points; its stores stay as they are.

    PATH is its directory `checkpoints` or one of the repositories in it. The points are pinned, as
    most are older than what a prune keeps. A directory that has snapshots of its own already is
    left out: its history only grows at the end.
    """
    source = os.path.join(context.cwd, path) if path else predecessor_base(context)
    check_there(source)
    done = import_stores(Store.create(str(context.store_path)), source)
    failed = [one for one in done if one.error]
    data = {"path": source, "workspaces": [_imported_json(one) for one in done]}
    answer(context, data, "\n".join(map(_imported_line, done)) or "There was nothing in it.")
    if failed:
        return EXCEPTIONS if len(failed) < len(done) else FAILED
    return OK


def _imported_json(one: Imported) -> dict[str, object]:
    return {
        "id": one.workspace,
        "root": one.root,
        "points": one.points,
        "known": one.known,
        "gaps": one.gaps,
        "error": one.error or None,
    }


def _imported_line(one: Imported) -> str:
    if one.error:
        return f"{one.root}: not imported. {one.error}"
    line = f"{one.root}: {count(one.points, 'point')}"
    line += f", {one.known:,} imported before" if one.known else ""
    nested = count(one.gaps, "nested repository", "nested repositories")
    return line + (f"; {nested} not in them" if one.gaps else "")


@command.command("clear-legacy")
@click.argument("path", metavar="[PATH]", required=False)
@yes_option
@pass_context
def clear_legacy_(context: Context, path: str | None, yes: bool) -> int:
    """Remove the archives `legacy-*` that hermes made; with the PATH of a store of it, that one.

    A store goes only if all of it was imported. There is no way back.
    """
    going = _going(context, os.path.join(context.cwd, path) if path else None)
    if not going:
        answer(context, {"removed": [], "reclaimed": 0}, "There is nothing to remove.")
        return OK
    rows = [_legacy_json(one) for one in going]
    if not yes:
        _check_somebody_is_there(context)
        lines = [f"  {row['path']}  ({size(row['bytes'])})" for row in rows]
        answer(context, {}, "\n".join(["Remove for good:", *lines]))
        if not agreed(context, "Remove them?"):
            return FAILED
    freed = sum(remove_tree(one) for one in going)
    says = f"Removed {count(len(going), 'directory', 'directories')}: {size(freed)}."
    answer(context, {"removed": rows, "reclaimed": freed}, says)
    return OK


def _going(context: Context, path: str | None) -> list[str]:
    if path is None or not is_store(os.path.realpath(path)):
        return archives_at(path or predecessor_base(context))
    missing = missing_from(open_store(context), path)
    if missing:
        raise BadInput(
            f"{path} holds what was not imported: {'; '.join(missing)}.",
            "`turnmark store import` it first, or remove it by hand.",
        )
    return [os.path.realpath(path)]


def _legacy_json(path: str) -> Legacy:
    return {"path": path, "bytes": tree_size(path)}
