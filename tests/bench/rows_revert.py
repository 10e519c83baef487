"""The rows about taking one turn out of a big tree with a long history."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from core.consolidate import consolidate
from core.diff import diff_trees
from core.history import MarkSpec, read_snapshot
from core.model import Point, RelPath
from core.revert import Wish, revert, wish_for
from core.rollback import Request, Result, preview, rollback, undo_request
from core.store import Store
from core.timeline import Timeline
from core.turns import begin, end

from .bench import Bench
from .contenders import Turnmark, Wrong
from .measure import Result as Row
from .measure import Times, seconds, within
from .trees import Edits

SESSION = "bench"
LATER = b"# and this came later\n"
LEAST_LINES = 20
"""So far apart, two edits of one file do not meet."""
POINT_EVERY = 10

Contents = dict[RelPath, bytes]


@dataclass(frozen=True)
class Turn:
    """One turn in the history, and the files it changed as they were before it."""

    point: Point
    before: Contents


def reverted(bench: Bench) -> Iterator[Row]:
    """Against the rollback of the very same changes: both begin with a full scan."""
    files = bench.scale.large
    edits, (ours, _) = bench.edits(files), bench.pair(files)
    _grow(ours, edits, bench.scale.points)
    for count, later in ((1, b""), (20, b""), (20, LATER)):
        found = Times([], [])
        for number in range(bench.scale.changes):
            _both_ways(ours, edits, count, later, found, revert_first=number % 2 == 0)
        what = f"revert of {count} in {files:,}{', edited since' if later else ''}"
        yield found.costs(what, 2, "rollback")


def previewed(bench: Bench) -> Iterator[Row]:
    """What a person waits for before the question: to a point near, and one far back."""
    files = bench.scale.large
    edits, (ours, _) = bench.edits(files), bench.pair(files)
    points = _grow(ours, edits, bench.scale.points)
    for name, request in (("newest", points[-1]), ("oldest", points[0])):
        edits.change(1)
        times = [seconds(partial(_shown, ours, request)) for _ in range(bench.scale.changes)]
        yield within(f"preview of a rollback in {files:,}, {name} point", times, 800)


def _grow(ours: Turnmark, edits: Edits, count: int) -> list[Request]:
    """A history of that many snapshots, most of them bursts, tidied up; ways to its points."""
    found: list[Request] = []
    for number in range(count):
        spec = MarkSpec("manual") if number % POINT_EVERY == 0 else None
        taken = ours.recorder.take(edits.change(3), spec, sync=False)
        if taken.mark is not None:
            found.append(Request(taken.snapshot.id, taken.mark.seq, "bench"))
    consolidate(Store.open(ours.base))
    return found


def _shown(ours: Turnmark, request: Request) -> None:
    if preview(ours.recorder, request).outcome != "planned":
        raise Wrong("The preview of a rollback shows nothing.")


def _both_ways(
    ours: Turnmark, edits: Edits, count: int, later: bytes, found: Times, *, revert_first: bool
) -> None:
    """One turn, taken out by both; in between an undo brings it back."""
    turn = _turn(ours, edits, count)
    for path in turn.before if later else ():
        with open(os.path.join(edits.root, path), "ab") as file:
            file.write(later)
    wanted = {path: data + later for path, data in turn.before.items()}

    def by_revert() -> None:
        found.ours.append(_timed(lambda: revert(ours.recorder, Wish((turn.point,)))))
        _check(ours, edits.root, turn, wanted)

    def by_rollback() -> None:
        request = Request(turn.point.id, turn.point.seq, "bench")
        found.other.append(_timed(lambda: rollback(ours.recorder, request)))
        _check(ours, edits.root, turn, turn.before)

    first, second = (by_revert, by_rollback) if revert_first else (by_rollback, by_revert)
    first()
    _undo(ours)
    second()


def _turn(ours: Turnmark, edits: Edits, count: int) -> Turn:
    begin(ours.recorder, SESSION, sync=False)
    long = (path for path in edits.rng.sample(edits.files, 50 * count) if _is_long(edits, path))
    before = {path: _read(edits.root, path) for path, _ in zip(long, range(count), strict=False)}
    for path in before:
        edits.edit(path)
    end(ours.recorder, SESSION, sync=False)
    timeline = Timeline(ours.store, ours.root.id)
    wish = wish_for(timeline, [f"turn:{_last(timeline)}"], SESSION, time.time_ns())
    return Turn(wish.turns[0], before)


def _last(timeline: Timeline) -> int:
    return max(row.mark.turn or 0 for row in timeline.rows if row.mark.session == SESSION)


def _is_long(edits: Edits, path: RelPath) -> bool:
    text = _read(edits.root, path)
    return text.count(b"\n") >= LEAST_LINES and text.endswith(b"\n")


def _read(root: bytes, path: RelPath) -> bytes:
    with open(os.path.join(root, path), "rb") as file:
        return file.read()


def _timed(act: Callable[[], Result]) -> float:
    found: list[Result] = []
    took = seconds(lambda: found.append(act()))
    if found[0].outcome != "done" or found[0].conflicts or found[0].kept:
        raise Wrong(f"It ended as '{found[0].outcome}': {found[0].reason or found[0].conflicts}.")
    return took


def _undo(ours: Turnmark) -> None:
    request = undo_request(ours.store, ours.root.id)
    if request is None or rollback(ours.recorder, request).outcome != "done":
        raise Wrong("There was nothing to undo.")


def _check(ours: Turnmark, root: bytes, turn: Turn, wanted: Contents) -> None:
    """The files of the turn on disk, and by the trees that nothing else is otherwise."""
    for path, data in wanted.items():
        if _read(root, path) != data:
            raise Wrong(f"{os.fsdecode(path)} is not what it was to become.")
    begun, now = read_snapshot(ours.store, turn.point.id), ours.recorder.last
    assert now is not None
    differing = {one.path for one in diff_trees(ours.store.tree, begun.files, now.files)}
    if differing != {path for path, data in wanted.items() if data != turn.before[path]}:
        raise Wrong("Other files than those of the turn are not as they were before it.")
