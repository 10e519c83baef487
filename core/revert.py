"""Takes turns out of a workspace and keeps what came later; the result is a snapshot again.

What the workspace would be without the turns is stored as a snapshot of its own, to which then a
rollback leads: it is staged, journalled, finished after a crash and undone as any other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import cast, get_args

from .about import encode_about, notes_of
from .errors import BadInput
from .history import read_snapshot
from .model import Oid, Point
from .plan import Left, State, make_plan
from .recorder import Recorder
from .rollback import (
    Request,
    Result,
    carry_out,
    finish_interrupted,
    planned_result,
    refusal_of,
)
from .states import seen_state, stored_state
from .timeline import Timeline
from .without import Rest, Side, Turn, without


@dataclass(frozen=True)
class Wish:
    """The turns to take out, what is to become of conflicts, and the plan that was shown."""

    turns: tuple[Point, ...]
    side: Side = ""
    plan: str = ""

    @property
    def label(self) -> str:
        names = [f"turn {turn.session}/{turn.turn}" for turn in self.turns]
        return names[0] if len(names) == 1 else f"{len(names)} turns ({names[-1]} to {names[0]})"


def side_of(name: str) -> Side:
    if name not in get_args(Side):
        raise BadInput(f"'{name[:50]}' is no side.", "One of: markers, mine, theirs.")
    return cast(Side, name)


def wish_for(timeline: Timeline, specs: Iterable[str], session: str | None, now_ns: int) -> Wish:
    """The turns that are named, newest first; of a session without a name all of them."""
    found = [_turn(timeline, spec, session, now_ns) for spec in specs]
    if not found and session is not None:
        points = timeline.points(everything=True)
        found = [p for p in points if p.kind == "turn" and p.session == session]
    if not found:
        raise BadInput(
            f"Session {session} has no turn here." if session else "No turn is named.",
            "`turnmark list` shows the turns; name one as `turn:7`, by its number, or SESSION/7.",
        )
    unique = {point.seq: point for point in found}
    return Wish(tuple(unique[seq] for seq in sorted(unique, reverse=True)))


def _turn(timeline: Timeline, spec: str, session: str | None, now_ns: int) -> Point:
    named = f"{session}/{spec[5:]}" if session and spec.startswith("turn:") else spec
    point = timeline.resolve(named, now_ns).point
    if point is None or point.kind != "turn":
        raise BadInput(
            f"{spec} is no turn.", "Only a turn can be taken out; `rollback` goes back to a point."
        )
    if session is not None and point.session != session:
        raise BadInput(f"{spec} is a turn of session {point.session}, not of {session}.")
    return point


def preview_revert(recorder: Recorder, wish: Wish) -> Result:
    """What `revert` would do now; stores and changes nothing."""
    now = seen_state(recorder, recorder.look())
    return _plan(recorder, wish, now, _without(recorder, wish, now))


def revert(recorder: Recorder, wish: Wish) -> Result:
    """Makes the workspace what it would be without the turns; with conflicts nothing is done."""
    finish_interrupted(recorder)
    safety = recorder.take(sync=True, note="before revert").snapshot
    now = stored_state(recorder.store, safety)
    rest = _without(recorder, wish, now)
    planned = _plan(recorder, wish, now, rest)
    if planned.outcome in ("conflicts", "nothing"):
        return planned
    refusal = refusal_of(_request(wish, rest.state.files), planned.plan)
    if refusal:
        return replace(planned, outcome="refused", reason=refusal)
    target = _store(recorder, rest, wish)
    return carry_out(recorder, _request(wish, target), planned, rest.state, safety)


def _request(wish: Wish, target: Oid) -> Request:
    turns = tuple(turn.seq for turn in wish.turns)
    return Request(target, 0, wish.label, "revert", plan=wish.plan, act="revert", turns=turns)


def _without(recorder: Recorder, wish: Wish, now: State) -> Rest:
    turns = [_states(recorder, point, now) for point in wish.turns]
    return without(now, turns, wish.side)


def _states(recorder: Recorder, point: Point, now: State) -> Turn:
    """Of a turn that is still open the end is now."""
    store = recorder.store
    end = stored_state(store, read_snapshot(store, point.end)) if point.end else now
    begin = stored_state(store, read_snapshot(store, point.id))
    return Turn(f"turn {point.session}/{point.turn}", begin, end)


def _plan(recorder: Recorder, wish: Wish, now: State, rest: Rest) -> Result:
    """The hash is of the tree that comes out: its snapshot is not there yet."""
    plan = make_plan(now, rest.state, rest.state.files)
    plan = replace(plan, kept=_one_per_path([*plan.kept, *rest.kept]))
    result = planned_result(recorder, _request(wish, rest.state.files), plan)
    result = replace(result, marked=_one_per_path(rest.marked), warnings=_warnings(wish))
    result = replace(result, followed=tuple(rest.followed))
    if rest.conflicts:
        result = replace(result, outcome="conflicts", conflicts=_one_per_path(rest.conflicts))
    undone = tuple(map(_undone, wish.turns)) if result.outcome != "nothing" else ()
    return replace(result, turns_undone=undone)


def _undone(turn: Point) -> dict[str, object]:
    messages = turn.extra.get("messages")
    name = {"session": turn.session, "turn": turn.turn, "label": turn.label}
    return {**name, "messages": messages}


def _one_per_path(found: Iterable[Left]) -> tuple[Left, ...]:
    first: dict[bytes, Left] = {}
    for left in found:
        first.setdefault(left.path, left)
    return tuple(sorted(first.values(), key=lambda left: left.path))


def _warnings(wish: Wish) -> tuple[str, ...]:
    """What of others' goes with the turns, since nobody can tell it apart."""
    return tuple(
        f"while turn {turn.session}/{turn.turn} ran, {', '.join(others)} ran as well: "
        "what they changed meanwhile is taken out too"
        for turn in wish.turns
        if turn.by is not None
        and (others := [t for t in turn.by.turns if t != f"{turn.session}/{turn.turn}"])
    )


def _store(recorder: Recorder, rest: Rest, wish: Wish) -> Oid:
    about = rest.state.about
    data = encode_about(about.usual, about.rules, notes_of(about), about.coverage)
    note = f"revert of {wish.label}"
    return recorder.keep_planned(rest.state.files, data, rest.objects, note).id
