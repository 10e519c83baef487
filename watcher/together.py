"""A rollback of all the workspaces of a session, as people and programs meet it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from core.errors import BadInput, TurnmarkError
from core.model import parse_path
from core.recorder import Recorder
from core.roots import Root, root_of
from core.store import Store
from core.timeline import Row, Timeline, registered

from .access import check_enabled, find_root, locked, open_store
from .asking import agreed
from .client import PATIENCE, connect
from .context import Context
from .joint import go_back_together
from .outcomes import result_of
from .output import answer, fail
from .rollbacks import (
    DONE,
    EXCEPTIONS,
    FAILED,
    How,
    check_somebody_is_there,
    done_lines,
    preview_lines,
)

Data = dict[str, Any]


@dataclass
class Place:
    """One workspace, the point that it is to go to, and what came of it so far."""

    root: Root
    spec: str
    data: Data = field(default_factory=dict)
    people: Data = field(default_factory=dict)

    def as_json(self) -> Data:
        return {"workspace": {"id": self.root.id, "root": self.root.shown}, **self.data}


# Which workspaces, and where to


def places_of(context: Context, session: str, spec: str) -> list[Place]:
    """The state of each workspace when the turn began; those that it never touched are left out."""
    store = open_store(context)
    turns = dict(_turns(store, session))
    wanted, end = spec.removesuffix(".end"), spec.endswith(".end")
    first = _reference(context, store, turns, wanted)
    if first is None:
        raise BadInput(
            f"Session {session} has no turn {spec!r} in any workspace.",
            "With --session a number is that of a turn, as KIND has it in"
            " `turnmark list --everywhere --session ID`; a point's number goes without --session.",
        )
    found = {root: _same_turn(rows, first) for root, rows in turns.items()}
    return [_place(store, root, row, end) for root, row in found.items() if row is not None]


def _turns(store: Store, session: str) -> Iterator[tuple[Root, list[Row]]]:
    for _, shown in registered(store):
        root = root_of(parse_path(shown))
        rows = Timeline(store, root.id).rows
        own = [r for r in rows if r.mark.kind == "turn-begin" and r.mark.session == session]
        if own:
            yield root, own


def _reference(
    context: Context, store: Store, turns: Mapping[Root, list[Row]], wanted: str
) -> Row | None:
    """The turn that is meant: in the workspace of here, else where it began last."""
    here = None
    with suppress(TurnmarkError):
        here = find_root(context, store, None)
    ordered = sorted(turns, key=lambda root: (root == here, turns[root][-1].mark.time_ns))
    for root in reversed(ordered):
        rows = turns[root]
        if wanted == "@":
            return max((rows[-1] for rows in turns.values()), key=lambda row: row.mark.time_ns)
        name = wanted.removeprefix("turn:").rpartition("/")[2]
        for row in reversed(rows):
            if name in (str(row.mark.turn), row.mark.turn_id):
                return row
    return None


def _same_turn(rows: list[Row], first: Row) -> Row | None:
    """The turn as this workspace knows it, under whatever number: a session's turns follow each
    other, so it is the one that was not over yet when it began; or the next, if it did not come."""
    mark = first.mark
    named = (row for row in rows if mark.turn_id and row.mark.turn_id == mark.turn_id)
    begun = (row for row in rows if row.end is None or row.end.time_ns >= mark.time_ns)
    return next(named, None) or next(begun, None)


def _place(store: Store, root: Root, row: Row, end: bool) -> Place:
    if end and row.end is None:
        raise BadInput(f"Turn {row.mark.turn} is still open in {root.shown}: it has no end yet.")
    spec = f"{row.mark.session}/{row.mark.turn}{'.end' * end}"
    return Place(root, spec)


# Showing, asking, doing


def run_together(context: Context, how: How, session: str, spec: str, *, mine_stays: bool) -> int:
    if not (how.yes or how.plan or how.dry_run):
        check_somebody_is_there(context)
    places = places_of(context, session, spec)
    _ask(context, places, {"mine_stays": mine_stays, "dry_run": True})
    plan = _hash(places)
    asks = not (how.yes or how.plan or how.dry_run)
    if how.dry_run or asks:
        _show(context, how, places, plan)
    if how.dry_run or (asks and not any(p.data["outcome"] == "planned" for p in places)):
        return DONE
    refusal = _refusal(how, places, plan, asks=asks)
    if refusal:
        return _refused(context, how, places, plan, refusal)
    if asks and not agreed(context, "Go on?"):
        return FAILED
    plans = [place.data["plan"] for place in places]
    reason = _ask(context, places, {"mine_stays": mine_stays, "plans": plans})
    if reason:
        return _refused(context, how, places, plan, reason)
    return _report(context, how, places, plan)


def _ask(context: Context, places: list[Place], params: Mapping[str, Any]) -> str:
    """What came of each is in the places then; why nothing did is the answer."""
    check_enabled(context)
    asked = {"points": [place.spec for place in places], **params}
    answer = _by_service(context, places, asked) or _here(context, places, asked)
    for place, row in zip(places, answer["workspaces"], strict=True):
        place.people = row.pop("people")
        place.data = row
    return str(answer["reason"])


def _by_service(
    context: Context, places: list[Place], params: Mapping[str, Any]
) -> dict[str, Any] | None:
    client = connect(context)
    if client is None:
        return None
    dirs = [place.root.shown for place in places]
    with client:
        return client.call("rollback.together", patience=PATIENCE, dirs=dirs, **params)


def _here(context: Context, places: list[Place], params: Mapping[str, Any]) -> dict[str, Any]:
    """The locks are taken in one order, so that two who do this do not wait for each other."""
    recorders: dict[str, Recorder] = {}
    with ExitStack() as stack:
        for shown in sorted(place.root.shown for place in places):
            recorders[shown] = stack.enter_context(locked(context, shown, create=False))
        return go_back_together([recorders[place.root.shown] for place in places], params)


def _hash(places: list[Place]) -> str:
    """One for all; of a single workspace its own."""
    hashes = [str(place.data["plan"]) for place in places]
    if len(hashes) == 1:
        return hashes[0]
    return hashlib.sha256(" ".join(hashes).encode()).hexdigest()[:16]


def _refusal(how: How, places: list[Place], plan: str, *, asks: bool) -> str:
    if how.plan and not plan.startswith(how.plan):
        return "a workspace or a point has changed since that plan was shown"
    fuses = [f"{p.root.shown}: {fuse}" for p in places for fuse in p.data["fuses"]]
    return "; ".join(fuses) if not (how.plan or asks) else ""


def _refused(context: Context, how: How, places: list[Place], plan: str, why: str) -> int:
    answer(context, _document("refused", places, plan) | {"reason": why})
    if not context.json:
        fail(f"Refused: {why}.", f"Look at it with --dry-run; go ahead with: {how.with_plan(plan)}")
    return FAILED


# Telling


def _document(outcome: str, places: list[Place], plan: str) -> Data:
    return {"outcome": outcome, "plan": plan, "workspaces": [place.as_json() for place in places]}


def _show(context: Context, how: How, places: list[Place], plan: str) -> None:
    lines: list[str] = []
    only = How(how.words, full=how.full)
    for place in places:
        lines += [f"{place.root.shown}: {place.people['title']}"]
        lines += preview_lines(result_of(place.data, place.people), only)
    planned = any(place.data["outcome"] == "planned" for place in places)
    if how.dry_run and planned:
        lines.append(f"Nothing was changed. To go ahead: {how.with_plan(plan)}")
    outcome = "planned" if planned else "nothing"
    answer(context, _document(outcome, places, plan), "\n".join(lines))


def _report(context: Context, how: How, places: list[Place], plan: str) -> int:
    lines: list[str] = []
    for place in places:
        there = replace(how, directory=place.root.shown)
        result = result_of(place.data, place.people)
        lines.append(f"{place.root.shown}:")
        lines += done_lines(result, there, place.people["title"])
    done = [place.data for place in places if place.data["outcome"] == "done"]
    answer(context, _document("done" if done else "nothing", places, plan), "\n".join(lines))
    return EXCEPTIONS if any(one["kept"] or one["conflicts"] for one in done) else DONE
