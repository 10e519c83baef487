"""`turnmark show`: what a point is, what changed up to it, and what it does not hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import click

from core.about import About
from core.history import read_snapshot
from core.model import Gap, Oid, Point, Snapshot, rfc3339, show_path
from core.patch import FileChange
from core.timeline import Target

from ..access import point_json
from ..context import Context, pass_context
from ..differences import Difference, difference, status_of
from ..output import age, answer
from ..views import View, dir_option, full_option, open_view, say_damage
from ..words import capped, count, local_time, named, octal, one_line, short

LETTERS = {
    "added": "A",
    "deleted": "D",
    "renamed": "R",
    "retyped": "T",
    "modified": "M",
    "mode": "m",
}
MEANING = {
    "excluded": "left out by the exclude patterns",
    "ignored": "left out by a .gitignore",
    "oversize": "larger than max_file_size_mb",
    "unreadable": "could not be read",
    "special": "no file, directory or link",
    "torn": "kept changing while it was read",
    "nested-root": "a workspace of its own",
    "budget": "beyond max_files",
}


@dataclass(frozen=True)
class Part:
    """Changes up to or by a point, and the words that say which."""

    name: str
    since: Oid | None
    difference: Difference


@click.command(epilog="A point: a number of the list, @, @-2, turn:7, a hash, 15m, baseline.")
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
    lines = [*_header(context, target, snapshot), *_part_lines(view, parts, full)]
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
        yield Part("since", previous.id, _between(view, previous.id, target.snapshot))


def _between(view: View, old: Oid, new: Oid) -> Difference:
    return difference(view.state(old), view.state(new))


# For people


def _header(context: Context, target: Target, snapshot: Snapshot) -> Iterator[str]:
    yield f"{target.label}: {_what(target.point) if target.point else 'a state in between'}"
    if target.point and target.point.label:
        yield f"  label   {one_line(target.point.label, 200)}"
    time_ns = target.point.time_ns if target.point else snapshot.time_ns
    yield f"  time    {local_time(time_ns)}, {age(time_ns)}"
    yield f"  id      {snapshot.id.hex()}{', pinned' if _pinned(target.point) else ''}"
    yield f"  holds   {count(snapshot.total, 'file')}, {count(snapshot.gaps, 'gap')}"
    if snapshot.note:
        yield f"  note    {one_line(snapshot.note, 200)}"


def _pinned(point: Point | None) -> bool:
    return point is not None and point.pinned


def _what(point: Point) -> str:
    if point.kind != "turn":
        return {"manual": "set by hand", "burst": "a burst of changes"}.get(point.kind, point.kind)
    agent = f" ({point.agent})" if point.agent else ""
    status = "" if point.status in (None, "ok") else f", {point.status}"
    return f"before turn {point.turn} of session {point.session}{agent}{status}"


def _part_lines(view: View, parts: list[Part], full: bool) -> Iterator[str]:
    for part in parts:
        yield ""
        yield _part_title(view, part)
        yield from capped(list(_change_lines(part.difference)), full=full)


def _part_title(view: View, part: Part) -> str:
    ins, dels = _line_counts(part.difference)
    what = f"{count(len(part.difference.changes), 'file')}, +{ins:,} -{dels:,}"
    if part.name == "turn":
        return f"Changed by this turn: {what}" if part.difference else "This turn changed nothing."
    number = view.numbers.get(part.since) if part.since else None
    before = f"point {number}" if number else "the point before"
    if not part.difference:
        return f"Nothing had changed since {before}."
    return f"Changed since {before}: {what}"


def _line_counts(diff: Difference) -> tuple[int, int]:
    stats = [diff.numstat(change) or (0, 0) for change in diff.changes]
    return sum(ins for ins, _ in stats), sum(dels for _, dels in stats)


def _change_lines(diff: Difference) -> Iterator[str]:
    for change in diff.changes:
        moved = f"{named(change.old_path)} -> " if change.old_path else ""
        yield f"  {LETTERS[status_of(change)]} {moved}{named(change.path)}{_numbers(diff, change)}"
    for path in diff.came:
        yield f"  A {named(path)}/ (empty directory)"
    for path in diff.went:
        yield f"  D {named(path)}/ (empty directory)"
    for moded in diff.modes:
        yield f"  m {named(moded.path)}  {octal(moded.old)} -> {octal(moded.new)}"


def _numbers(diff: Difference, change: FileChange) -> str:
    stat = diff.numstat(change)
    if stat is None:
        return "  binary"
    return f"  +{stat[0]} -{stat[1]}" if any(stat) else ""


def _gap_lines(about: About, full: bool) -> Iterator[str]:
    gaps = about.gap_list()
    if not gaps:
        return
    yield ""
    yield f"Not held: {count(len(gaps), 'path')}"
    for reason in sorted({gap.reason for gap in gaps}):
        yield f"  {reason}: {MEANING[reason]}"
        paths = [f"    {named(gap.path)}" for gap in gaps if gap.reason == reason]
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
    if part is None:
        return None
    ins, dels = _line_counts(part.difference)
    return {
        "since": part.since.hex() if part.since else None,
        "insertions": ins,
        "deletions": dels,
        "changes": [change_json(part.difference, change) for change in part.difference.changes],
        **extras_json(part.difference),
    }


def change_json(diff: Difference, change: FileChange) -> dict[str, object]:
    """One changed file, as `diff` tells it too."""
    stat = diff.numstat(change)
    return {
        "path": show_path(change.path),
        "old_path": show_path(change.old_path) if change.old_path else None,
        "status": status_of(change),
        "insertions": stat[0] if stat else 0,
        "deletions": stat[1] if stat else 0,
        "binary": stat is None,
    }


def extras_json(diff: Difference) -> dict[str, object]:
    """What git's trees do not hold."""
    return {
        "modes": [
            {"path": show_path(m.path), "old": octal(m.old), "new": octal(m.new)}
            for m in diff.modes
        ],
        "dirs_added": [show_path(path) for path in diff.came],
        "dirs_deleted": [show_path(path) for path in diff.went],
    }


def _gap_json(gap: Gap) -> dict[str, object]:
    return {"path": show_path(gap.path), "reason": gap.reason}
