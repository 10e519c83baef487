"""`turnmark show`: what a point is, what changed up to it, and what it does not hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import click

from core.about import About
from core.gitcontext import from_json
from core.history import read_snapshot
from core.model import Gap, Oid, Point, Snapshot, rfc3339, show_path
from core.timeline import Target

from ..access import point_json
from ..context import Context, pass_context
from ..differences import Difference, as_json, change_lines, difference, total
from ..output import age, answer
from ..views import View, dir_option, full_option, open_view, say_damage
from ..words import (
    MEANING,
    capped,
    columns,
    count,
    local_time,
    made_by,
    named,
    one_line,
    path_line,
    short,
)


@dataclass(frozen=True)
class Part:
    """Changes by the point's turn, or since the point that is named."""

    name: str
    since: Oid
    difference: Difference


@click.command(
    epilog="A point: a number of the list, @, @-2, turn:7, a hash, 15m, 18:00, baseline."
)
@click.argument("point")
@dir_option
@full_option
@pass_context
def command(context: Context, point: str, directory: str | None, full: bool) -> None:
    """Show one point: what changed, and what it does not hold."""
    view = open_view(context, directory)
    target = view.resolve(point)
    snapshot = read_snapshot(view.store, target.snapshot)
    state = view.state(target.snapshot)
    parts = list(_parts(view, target))
    data = {
        "workspace": {"id": view.root.id, "root": view.root.shown},
        "point": point_json(target.point) if target.point else None,
        "snapshot": _snapshot_json(snapshot),
        "changes": _part_json(next((p for p in parts if p.name != "turn"), None)),
        "turn_changes": _part_json(next((p for p in parts if p.name == "turn"), None)),
        "gaps": [_gap_json(gap) for gap in state.about.gap_list()],
    }
    lines = [*_header(target, snapshot), *_part_lines(parts, full)]
    lines += _gap_lines(state.about, full)
    answer(context, data, "\n".join(lines))
    say_damage(context, view.timeline.damage)


def _parts(view: View, target: Target) -> Iterator[Part]:
    """What the point's turn changed, and what had changed since the point before."""
    point = target.point
    if point and point.kind == "turn" and point.end:
        yield Part("turn", point.id, _between(view, point.id, point.end))
        if target.snapshot == point.end != point.id:
            return
    previous = next((p for p in view.points if p.seq < target.seq), None)
    if previous:
        name = f"point {previous.n}" if previous.n else "the point before"
        yield Part(name, previous.id, _between(view, previous.id, target.snapshot))


def _between(view: View, old: Oid, new: Oid) -> Difference:
    found = difference(view.state(old), view.state(new))
    return replace(found, by=view.made_by(old, new))


# For people


def _header(target: Target, snapshot: Snapshot) -> Iterator[str]:
    point = target.point
    yield _title(target, snapshot)
    label = one_line(point.label, min(200, columns() - 9)) if point else ""
    time_ns = point.time_ns if point and point.id == snapshot.id else snapshot.time_ns
    if label:
        yield f"  label  {label}"
    yield f"  time   {local_time(time_ns)}, {age(time_ns)}"
    yield f"  id     {snapshot.id.hex()}{', pinned' if _pinned(point) else ''}"
    yield f"  holds  {count(snapshot.total, 'file')}, {count(snapshot.gaps, 'gap')}"
    git = from_json(point.extra.get("git")) if point else None
    if git:
        yield f"  git    {one_line(git.words, columns() - 9)}"
    if snapshot.note and not label:
        yield f"  note   {one_line(snapshot.note, 200)}"


def _title(target: Target, snapshot: Snapshot) -> str:
    point = target.point
    if point is None:
        return f"{target.label[0].upper()}{target.label[1:]}"
    name = f"Point {point.n}" if point.n else f"Snapshot {short(snapshot.id)}"
    if snapshot.id != point.id:
        return f"The end of turn {point.turn} of session {point.session}{_agent(point)}"
    return f"{name}: {_what(point)}"


def _pinned(point: Point | None) -> bool:
    return point is not None and point.pinned


def _what(point: Point) -> str:
    words = {"manual": "set by hand", "burst": "a burst of changes", "baseline": "the baseline"}
    if point.kind == "turn":
        return f"before turn {point.turn} of session {point.session}{_agent(point)}"
    return words.get(point.kind, point.kind)


def _agent(point: Point) -> str:
    agent = f" ({point.agent})" if point.agent else ""
    return agent if point.status in (None, "ok") else f"{agent}, {point.status}"


def _part_lines(parts: list[Part], full: bool) -> Iterator[str]:
    for part in parts:
        yield ""
        yield _part_title(part)
        yield from capped(change_lines(part.difference, full=full), full=full)


def _part_title(part: Part) -> str:
    if part.name == "turn":
        what = f"Changed by this turn{_by(part)}"
        what = what if part.difference else "This turn changed nothing."
    else:
        what = "Changed since" if part.difference else "Nothing had changed since"
        what = f"{what} {part.name}{_by(part) if part.difference else '.'}"
    return f"{what}: {total(part.difference)}" if part.difference else what


def _by(part: Part) -> str:
    """Who it was, unless that goes without saying."""
    makers = [maker for makers in part.difference.by.values() for maker in makers]
    if part.name != "turn":
        return f" by {made_by(*makers)}" if makers else ""
    beside = any(maker.who == "shared" for maker in makers)
    return f", which ran beside others ({made_by(*makers)})" if beside else ""


def _gap_lines(about: About, full: bool) -> Iterator[str]:
    gaps = about.gap_list()
    if not gaps:
        return
    yield ""
    yield f"Not held: {count(len(gaps), 'path')}"
    for reason in sorted({gap.reason for gap in gaps}):
        yield f"  {reason}: {MEANING[reason]}"
        paths = [
            path_line("    ", named(gap.path), full=full) for gap in gaps if gap.reason == reason
        ]
        yield from capped(paths, full=full)


# For programs


def _snapshot_json(snapshot: Snapshot) -> dict[str, object]:
    return {
        "id": snapshot.id.hex(),
        "seq": snapshot.seq,
        "time": rfc3339(snapshot.time_ns),
        "files": snapshot.total,
        "gaps": snapshot.gaps,
        "note": snapshot.note,
    }


def _part_json(part: Part | None) -> dict[str, object] | None:
    return {"since": part.since.hex(), **as_json(part.difference)} if part else None


def _gap_json(gap: Gap) -> dict[str, object]:
    return {"path": show_path(gap.path), "reason": gap.reason}
