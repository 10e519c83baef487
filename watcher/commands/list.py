"""`turnmark list`: the rollback points, newest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import click

from core.model import Point, parse_path
from core.roots import Root
from core.store import Store
from core.timeline import Timeline, registered

from ..access import find_root, open_store, point_json
from ..context import Context, pass_context
from ..output import Table, age, answer, note
from ..views import say_damage
from ..words import columns, one_line, short

COLUMNS = ("#", "AGE", "WHAT", "FILES", "+", "-", "KIND", "ID")
WHOLE = ("#", "AGE", "FILES", "+", "-", "ID")
"""The columns that are never cut, however narrow the terminal."""
COUNTING = "…"
"""Of a turn that ended just now: an empty cell would look as if it had changed nothing."""
NARROW = 64
SPARED = ("+", "-", "ID")
WHAT = {
    "baseline": "as it was found",
    "manual": "set by hand",
    "rollback": "after a rollback",
    "before-rollback": "before a rollback",
    "import": "imported",
    "burst": "a burst of changes",
}
LABEL_CHARS = 72


@dataclass(frozen=True)
class Wanted:
    """Which points of a workspace are asked for."""

    everything: bool
    session: str | None
    limit: int

    def of(self, timeline: Timeline) -> list[Point]:
        points = timeline.points(everything=self.everything)
        found = [p for p in points if self.session is None or p.session == self.session]
        return found[: self.limit] if self.limit else found


@dataclass(frozen=True)
class Found:
    """One workspace and what was found there."""

    root: Root
    points: list[Point]
    damage: list[str]

    def workspace(self) -> dict[str, object]:
        return {"id": self.root.id, "root": self.root.shown}


@click.command(epilog="The numbers are those of the whole list, whatever is filtered.")
@click.argument("directory", metavar="[DIR]", required=False)
@click.option("--all", "everything", is_flag=True, help="Also bursts and turns without changes.")
@click.option("--everywhere", is_flag=True, help="The points of all workspaces.")
@click.option("--session", metavar="ID", help="Only the turns of one session.")
@click.option(
    "--limit", type=click.IntRange(min=0), default=0, metavar="N", help="At most N per workspace."
)
@pass_context
def command(
    context: Context,
    directory: str | None,
    everything: bool,
    everywhere: bool,
    session: str | None,
    limit: int,
) -> None:
    """List the rollback points of DIR, newest first."""
    if everywhere and directory is not None:
        raise click.UsageError("DIR and --everywhere exclude each other.")
    store = open_store(context)
    wanted = Wanted(everything, session, limit)
    if everywhere:
        found = sorted(_everywhere(store, wanted), key=_last_time, reverse=True)
        _answer_everywhere(context, found)
    else:
        found = [_look(store, find_root(context, store, directory), wanted)]
        _answer_one(context, found[0])
    say_damage(context, [message for one in found for message in one.damage])


def _look(store: Store, root: Root, wanted: Wanted) -> Found:
    timeline = Timeline(store, root.id)
    return Found(root, wanted.of(timeline), timeline.damage)


def _everywhere(store: Store, wanted: Wanted) -> Iterator[Found]:
    for workspace, shown in registered(store):
        yield _look(store, Root(parse_path(shown), workspace), wanted)


def _last_time(found: Found) -> int:
    return max((point.time_ns for point in found.points), default=0)


def _answer_one(context: Context, found: Found) -> None:
    data = {"workspace": found.workspace(), "points": [point_json(p) for p in found.points]}
    answer(
        context,
        {**data, **_damaged([found])},
        _table(found.points) if found.points else "No points.",
    )
    _explain(context, found.points)


def _answer_everywhere(context: Context, found: list[Found]) -> None:
    points = [
        {**point_json(point), "workspace": one.workspace()} for one in found for point in one.points
    ]
    blocks: list[str | Table] = []
    for one in found:
        if one.points:
            blocks += [f"{chr(10) * bool(blocks)}{one.root.shown}", _table(one.points)]
    data = {"workspace": None, "points": points}
    answer(context, {**data, **_damaged(found)}, *(blocks or ["No points."]))
    _explain(context, [point for one in found for point in one.points])


def _explain(context: Context, points: list[Point]) -> None:
    if any(point.counts is None for point in points):
        note(
            context,
            f"{COUNTING} is not counted yet: the service does that, of turns that have ended.",
        )


def _damaged(found: list[Found]) -> dict[str, object]:
    """For programs, which read no warnings: what could not be read, if anything."""
    damage = [message for one in found for message in one.damage]
    return {"damaged": damage} if damage else {}


def _table(points: list[Point]) -> Table:
    """On a narrow terminal what a point was about goes before what nobody needs to go there."""
    shown = [n for n, name in enumerate(COLUMNS) if columns() >= NARROW or name not in SPARED]
    rows = [row_of(point) for point in points]
    names = tuple(COLUMNS[n] for n in shown)
    return Table(names, [tuple(row[n] for n in shown) for row in rows], WHOLE)


def row_of(point: Point) -> tuple[object, ...]:
    counts = point.counts
    numbers = (counts.files, counts.insertions, counts.deletions) if counts else ()
    cells = ["" if number is None else f"{number:,}" for number in numbers] or [COUNTING] * 3
    return (
        "" if point.n is None else point.n,
        age(point.time_ns).removesuffix(" ago"),
        _what(point),
        *cells,
        _kind(point),
        short(point.id),
    )


def _what(point: Point) -> str:
    if point.label:
        return one_line(point.label, LABEL_CHARS)
    if point.kind == "turn":
        return f"{point.agent or 'session'} {point.session}"
    return WHAT[point.kind]


def _kind(point: Point) -> str:
    """A turn has its number, which `turn:7` means, and how it ended unless that was well."""
    words: list[str] = ["before" if point.kind == "before-rollback" else point.kind]
    if point.kind == "turn":
        status = point.status or ("ok" if point.end else "open")
        beside = ["shared"] if point.by and point.by.who == "shared" else []
        words = [f"turn {point.turn}", *beside, *([status] if status != "ok" else [])]
    return ", ".join([*words, *(["pinned"] if point.pinned else [])])
