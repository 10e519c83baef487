"""`turnmark history`: the versions of one file or directory, under whatever names."""

from __future__ import annotations

from dataclasses import dataclass

import click

from core.errors import BadInput
from core.follow import Follower, Version
from core.model import LINK, TREE, RelPath, rfc3339, show_path

from ..access import maker_json, rel_path
from ..context import Context, pass_context
from ..following import name_in_snapshots
from ..output import Table, age, answer, note, size
from ..views import View, dir_option, open_view, say_damage
from ..words import columns, left_cut, made_by, named, octal, short

COLUMNS = ("POINT", "ID", "WHEN", "SIZE", "MODE", "BY", "STATE")
OTHERS = 60
"""What the columns need beside that of the paths."""


@click.command(epilog="Print a version with `turnmark cat ID PATH`.")
@click.argument("path")
@dir_option
@click.option(
    "--limit", type=click.IntRange(min=0), default=0, metavar="N", help="At most N versions."
)
@click.option("--no-follow", is_flag=True, help="Only what was at this very path.")
@pass_context
def command(
    context: Context, path: str, directory: str | None, limit: int, no_follow: bool
) -> None:
    """List the versions of PATH, newest first: all snapshots in which it changed.

    A file or directory is followed to the names that it had before, and got later.
    """
    view = open_view(context, directory)
    follower = Follower(view.timeline.history, renames=not no_follow)
    found = _life(view, follower, rel_path(context, view.root, path))
    if not found.versions:
        say_damage(context, view.timeline.damage)
        name = named(found.path)
        raise BadInput(
            f"No snapshot has ever seen {name}.",
            f"`turnmark find {name.rpartition('/')[2]}` looks in all directories.",
        )
    _answer(view, found, found.versions[:limit] if limit else found.versions)
    say_damage(context, view.timeline.damage)


@dataclass(frozen=True)
class _Life:
    """A path, what the newest snapshot calls it, what it was called last, and its versions."""

    path: RelPath
    here: RelPath
    last: RelPath
    versions: list[Version]

    @property
    def names(self) -> set[RelPath]:
        return {one.path for one in self.versions}

    def words(self) -> str:
        if self.here != self.path:
            return f"No snapshot has {named(self.path)} yet; it was {named(self.here)} before."
        if self.last == self.path:
            return ""
        lives = "lives on" if self.versions[0].entry else "was last there"
        return f"{named(self.path)} {lives} as {named(self.last)}."


def _life(view: View, follower: Follower, path: RelPath) -> _Life:
    """Under the name that it had last; but under its own where that was of something else later."""
    here = name_in_snapshots(view, path) if follower.renames else path
    last = follower.name_since(here)
    found = _Life(path, here, last, follower.versions(last))
    return found if here in found.names else _Life(path, here, here, follower.versions(here))


def _answer(view: View, life: _Life, shown: list[Version]) -> None:
    context = view.context
    if context.json:
        doc = {"path": show_path(life.path), "last": show_path(life.last)}
        answer(context, {**doc, "versions": [_json(view, found) for found in shown]})
        return
    with_paths = life.names != {life.path}
    headings = (*COLUMNS, "PATH") if with_paths else COLUMNS
    rows = [_row(view, found, with_paths) for found in shown]
    answer(context, {}, Table(headings, rows, ("SIZE",)))
    if words := life.words():
        note(context, words)


def _row(view: View, found: Version, with_path: bool) -> tuple[object, ...]:
    length = _size(view, found)
    row = (
        view.numbers.get(found.snapshot.id, ""),
        short(found.snapshot.id),
        age(found.snapshot.time_ns),
        "" if length is None else size(length),
        "" if found.mode is None else octal(found.mode),
        made_by(view.timeline.maker(found.snapshot)),
        _state(found),
    )
    return (*row, left_cut(named(found.path), columns() - OTHERS)) if with_path else row


def _state(found: Version) -> str:
    if found.entry is None:
        return f"not held: {found.gap}" if found.gap else _missing(found)
    kind = {TREE: "directory", LINK: "link"}.get(found.entry.mode, "file")
    if found.snapshot.partial:
        return f"{kind}, {found.snapshot.note}"
    if found.renamed_from:
        return f"{kind}, renamed"
    return f"{kind}, {found.gap}" if found.gap else kind


def _missing(found: Version) -> str:
    return f"now {named(found.renamed_to)}" if found.renamed_to else "not there"


def _size(view: View, found: Version) -> int | None:
    if found.entry is None or found.entry.mode == TREE:
        return None
    return view.store.size(found.entry.oid)


def _json(view: View, found: Version) -> dict[str, object]:
    entry = found.entry
    kind = {TREE: "dir", LINK: "link"}.get(entry.mode, "file") if entry else None
    return {
        "n": view.numbers.get(found.snapshot.id),
        "id": found.snapshot.id.hex(),
        "seq": found.snapshot.seq,
        "time": rfc3339(found.snapshot.time_ns),
        "path": show_path(found.path),
        "renamed_from": show_path(found.renamed_from) if found.renamed_from else None,
        "renamed_to": show_path(found.renamed_to) if found.renamed_to else None,
        "present": entry is not None,
        "kind": kind,
        "mode": None if found.mode is None else octal(found.mode),
        "size": _size(view, found),
        "oid": entry.oid.hex() if entry else None,
        "gap": found.gap,
        "note": found.snapshot.note,
        **maker_json(view.timeline.maker(found.snapshot)),
    }
