"""Which point to go back to, chosen by eye: a list to filter, with a preview of each.

The rooms: `choices` (what there is, what is chosen) and `layout` (what is seen of it) are pure;
`loader` loads beside the keys, `looking` says what a rollback would do, `terminals` what can be
drawn, `app` draws. Choosing changes nothing. prompt_toolkit, which is optional and slow to import,
is imported when somebody is to choose.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import click

from core.model import Point
from core.roots import Root
from core.timeline import Timeline

from ..access import check_enabled, opened
from ..asking import NO_CHANGE
from ..commands.list import COLUMNS, WHOLE, row_of
from ..context import Context
from ..output import Table, answer, clean, note
from ..rollbacks import How
from ..views import say_damage
from ..words import LINES_OF_A_GROUP
from .choices import Choice
from .terminals import has_colour, is_drawable, is_installed

TO_HAVE_IT = f"To choose with the keys: {sys.executable} -m pip install prompt_toolkit"


@dataclass(frozen=True)
class Chosen:
    """A point by its number, for people, and by a name that stays when others come."""

    number: str
    spec: str


def choose(context: Context, how: How, *, mine_stays: bool) -> Chosen | None:
    """None if the person thought better of it; where nothing can be drawn, a usage error."""
    check_enabled(context)
    store, root = opened(context, how.directory, False)
    timeline = Timeline(store, root.id)
    points = timeline.points()
    say_damage(context, timeline.damage)
    if not points:
        return Chosen("@", "@")  # to which the rollback itself says that there are none
    drawable = is_drawable(context.env)
    if not (drawable and is_installed()):
        _show_list(context, points, how_to_choose=drawable)
        raise click.UsageError("Name a point of the list, for example: turnmark rollback 1")
    found = _pick(context, root, tuple(choices_of(timeline, points)), how, mine_stays)
    if found is None:
        note(context, NO_CHANGE)
        return None
    return Chosen(str(found.point.n), found.spec)


def choices_of(timeline: Timeline, points: Iterable[Point]) -> Iterator[Choice]:
    """Each by the id of its mark: a number is another point's as soon as a new one comes, and of
    two points that share a snapshot the snapshot's id names but one."""
    marks = timeline.history.mark_ids
    for point in points:
        cells = tuple(clean(str(cell)) for cell in row_of(point))
        yield Choice(point, marks[point.seq].hex(), cells)


def _show_list(context: Context, points: list[Point], *, how_to_choose: bool) -> None:
    table = Table(COLUMNS, [row_of(point) for point in points[:LINES_OF_A_GROUP]], WHOLE)
    more = len(points) - len(table.rows)
    says = [f"... {more:,} more: turnmark list"] if more else []
    answer(context, {}, table, *says, *([TO_HAVE_IT] if how_to_choose else []))


def _pick(
    context: Context, root: Root, choices: tuple[Choice, ...], how: How, mine_stays: bool
) -> Choice | None:
    from .app import Picking
    from .looking import Looker

    looker = Looker(context, root, how, mine_stays=mine_stays)
    try:
        return Picking(choices, looker, colour=has_colour(context.env)).run()
    except KeyboardInterrupt:
        note(context, NO_CHANGE)
        raise
