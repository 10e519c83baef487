"""`turnmark find`: when a file, a directory or a text was there."""

from __future__ import annotations

import click

from core.model import TREE, Snapshot, rfc3339, show_path
from core.versions import Sighting, find, find_text

from ..context import Context, pass_context
from ..differences import Private
from ..output import Table, age, answer, note, width
from ..views import View, dir_option, open_view, private_paths, say_damage
from ..words import columns, left_cut, named, one_line, short

LINE_ROOM = 60
OTHERS = 43
"""What the columns need that are not cut."""


@click.command(epilog="ID and POINT are of LAST: `turnmark rollback ID PATH` gets it back.")
@click.argument("pattern", required=False)
@click.option("--text", metavar="TEXT", help="Look into the files' contents instead.")
@click.option("--private", is_flag=True, help="Show the lines of private files too.")
@dir_option
@pass_context
def command(
    context: Context, pattern: str | None, text: str | None, private: bool, directory: str | None
) -> int:
    """Find paths by PATTERN, or files by --text, in all snapshots, deleted ones too.

    PATTERN reads like a line of a .gitignore: `*.py` in any directory, `src/*.py` from the root.
    """
    if (pattern is None) == (text is None):
        raise click.UsageError("Name a PATTERN or --text TEXT, one of both.")
    view = open_view(context, directory)
    history = view.history()
    found = find(history, pattern) if pattern is not None else find_text(history, text or "")
    hidden = (lambda _: False) if private else private_paths(context, view.root)
    _answer(view, found, hidden, pattern)
    say_damage(context, history.damage)
    return 0


def _answer(view: View, found: list[Sighting], hidden: Private, pattern: str | None) -> None:
    room, with_lines = columns() - OTHERS, pattern is None
    lines = [_line(one, hidden, room // 2) for one in found] if with_lines else []
    room -= max(map(width, lines), default=0)
    rows = [
        (left_cut(_name(one), room), *lines[at : at + 1], *_row(view, one))
        for at, one in enumerate(found)
    ]
    names = ("PATH", *(["LINE"] if with_lines else []), "FIRST", "LAST", "POINT", "ID")
    table = [Table(names, rows, ("POINT",))] if rows else []
    answer(view.context, {"found": [_json(view, one, hidden) for one in found]}, *table)
    if not found:
        note(view.context, "Nothing found in any snapshot of this workspace.")
        if pattern is not None and pattern.isalnum():
            note(view.context, f"A pattern is for whole names; parts of one: '*{pattern}*'.")


def _name(one: Sighting) -> str:
    return named(one.path) + "/" * (one.entry.mode == TREE)


def _row(view: View, one: Sighting) -> tuple[object, ...]:
    last = "still there" if one.still else _ago(one.last)
    return _ago(one.first), last, view.numbers.get(one.last.id, ""), short(one.last.id)


def _ago(snapshot: Snapshot) -> str:
    return age(snapshot.time_ns).removesuffix(" ago")


def _line(one: Sighting, hidden: Private, room: int) -> str:
    if one.line is None:
        return ""
    if hidden(one.path):
        return f"{one.line.number}: (private)"
    text = show_path(one.line.text)
    return one_line(f"{one.line.number}: {text}", min(room, LINE_ROOM))


def _json(view: View, one: Sighting, hidden: Private) -> dict[str, object]:
    line: dict[str, object] = {}
    if one.line is not None:
        text = None if hidden(one.path) else show_path(one.line.text)
        line = {"line": one.line.number, "text": text}
    return {
        "path": show_path(one.path),
        "kind": "dir" if one.entry.mode == TREE else "file",
        "first": _seen(view, one.first),
        "last": _seen(view, one.last),
        "still": one.still,
        **line,
    }


def _seen(view: View, snapshot: Snapshot) -> dict[str, object]:
    return {
        "n": view.numbers.get(snapshot.id),
        "id": snapshot.id.hex(),
        "time": rfc3339(snapshot.time_ns),
    }
