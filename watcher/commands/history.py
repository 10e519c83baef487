"""`turnmark history`: the versions of one file or directory."""

from __future__ import annotations

import click

from core.errors import BadInput
from core.model import LINK, TREE, rfc3339, show_path
from core.versions import Version, history_of

from ..access import maker_json, rel_path
from ..context import Context, pass_context
from ..output import Table, age, answer, size
from ..views import View, dir_option, open_view, say_damage
from ..words import made_by, named, octal, short

COLUMNS = ("POINT", "ID", "WHEN", "SIZE", "MODE", "BY", "STATE")


@click.command(epilog="Print a version with `turnmark cat ID PATH`.")
@click.argument("path")
@dir_option
@click.option(
    "--limit", type=click.IntRange(min=0), default=0, metavar="N", help="At most N versions."
)
@pass_context
def command(context: Context, path: str, directory: str | None, limit: int) -> None:
    """List the versions of PATH, newest first: all snapshots in which it changed."""
    view = open_view(context, directory)
    where = rel_path(context, view.root, path)
    history = view.history()
    versions = history_of(history, where)
    if not versions:
        say_damage(context, history.damage)
        raise BadInput(
            f"No snapshot has ever seen {named(where)}.",
            f"`turnmark find {named(where).rpartition('/')[2]}` looks in all directories.",
        )
    shown = versions[:limit] if limit else versions
    data = {"path": show_path(where), "versions": [_json(view, found) for found in shown]}
    rows = [_row(view, found) for found in shown]
    answer(context, data, Table(COLUMNS, rows, ("SIZE",)))
    say_damage(context, history.damage)


def _row(view: View, found: Version) -> tuple[object, ...]:
    number = view.numbers.get(found.snapshot.id, "")
    length = _size(view, found)
    return (
        number,
        short(found.snapshot.id),
        age(found.snapshot.time_ns),
        "" if length is None else size(length),
        "" if found.mode is None else octal(found.mode),
        made_by(view.timeline.maker(found.snapshot)),
        _state(found),
    )


def _state(found: Version) -> str:
    if found.entry is None:
        return f"not held: {found.gap}" if found.gap else "not there"
    kind = {TREE: "directory", LINK: "link"}.get(found.entry.mode, "file")
    if found.snapshot.partial:
        return f"{kind}, {found.snapshot.note}"
    return f"{kind}, {found.gap}" if found.gap else kind


def _size(view: View, found: Version) -> int | None:
    if found.entry is None or found.entry.mode == TREE:
        return None
    return len(view.store.blob(found.entry.oid))


def _json(view: View, found: Version) -> dict[str, object]:
    entry = found.entry
    kind = {TREE: "dir", LINK: "link"}.get(entry.mode, "file") if entry else None
    return {
        "n": view.numbers.get(found.snapshot.id),
        "id": found.snapshot.id.hex(),
        "seq": found.snapshot.seq,
        "time": rfc3339(found.snapshot.time_ns),
        "present": entry is not None,
        "kind": kind,
        "mode": None if found.mode is None else octal(found.mode),
        "size": _size(view, found),
        "oid": entry.oid.hex() if entry else None,
        "gap": found.gap,
        "note": found.snapshot.note,
        **maker_json(view.timeline.maker(found.snapshot)),
    }
