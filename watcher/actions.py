"""The writing actions, each as one function: what the service does when asked, and what a command
does by itself where no service runs.

An action is given a recorder whose lock is held, where to look (None: everywhere), and parameters
as they come in JSON. It answers with what the command prints with --json, and under `people` with
what it prints otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

from core import turns
from core.about import decode_about
from core.errors import BadInput
from core.history import History, MarkSpec, pin_ref, read_snapshot
from core.model import RelPath, Status, is_within, label_of, parse_path, show_path
from core.recorder import Recorder, Taken
from core.rollback import (
    Request,
    preview,
    redo_request,
    rollback,
    undo_request,
)
from core.roots import Root
from core.states import stored_state
from core.store import Store
from core.timeline import Target, Timeline, registered

from .access import taken_json
from .deaths import is_alive
from .outcomes import as_json, for_people, nothing
from .unprotected import lines, measure
from .words import MEANING, count, named, one_line, short

Params = Mapping[str, Any]
Answer = dict[str, Any]
Paths = list[RelPath] | None
Action = Callable[[Recorder, Paths, Params], Answer]

LABEL_ROOM = 60
UNPROTECTED_LINES = 10
STATUSES = ("ok", "error", "interrupted", "unknown")


# Parameters: those of a socket may be anything


def text(params: Params, name: str, default: str = "") -> str:
    value = params.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        raise BadInput(f"'{name}' is not a string.", "See the methods in watcher/protocol.py.")
    return value


def text_or_none(params: Params, name: str) -> str | None:
    return text(params, name) if params.get(name) is not None else None


def needed(params: Params, name: str) -> str:
    value = text(params, name)
    if not value:
        raise BadInput(f"'{name}' is missing.", "See the methods in watcher/protocol.py.")
    return value


def number(params: Params, name: str) -> int | None:
    value = params.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise BadInput(f"'{name}' is not a number.", "See the methods in watcher/protocol.py.")
    return value


def texts(params: Params, name: str) -> list[str]:
    value = params.get(name, [])
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise BadInput(f"'{name}' is not a list of strings.", "See watcher/protocol.py.")
    return value


def _sync(params: Params) -> bool:
    return params.get("sync") is not False


# Snapshots and marks


def snapshot(recorder: Recorder, paths: Paths, params: Params) -> Answer:
    first = recorder.last is None
    spec = MarkSpec("manual")
    taken = recorder.take(paths, spec, always_mark=False, sync=_sync(params))
    says = [_snapshot_says(recorder, taken, first)]
    if first:
        says += [*outer(recorder.store, recorder.root.path), *_unprotected(recorder, taken)]
    return {**taken_json(taken, _point_seq(recorder, taken)), "people": {"lines": says}}


def _point_seq(recorder: Recorder, taken: Taken) -> int:
    """That of the point: of the new mark, or of the newest that was there already."""
    if taken.mark is not None:
        return taken.mark.seq
    marks = History(recorder.store, recorder.root.id).marks()
    return max((m.seq for m in marks if m.snapshot == taken.snapshot.id), default=0)


def _snapshot_says(recorder: Recorder, taken: Taken, first: bool) -> str:
    made, root = taken.snapshot, recorder.root.shown
    if first:
        return f"First snapshot of {root}: {short(made.id)}, {count(made.total, 'file')}."
    if taken.changed:
        return f"Snapshot of {root}: {short(made.id)}, {count(taken.changed, 'path')} changed."
    same = "the newest snapshot is" if taken.mark is None else "now a point:"
    return f"Nothing changed in {root}; {same} {short(made.id)}."


def outer(store: Store, path: bytes) -> list[str]:
    """Says that a workspace lies in another: a slip of the pen splits a history in two."""
    roots = [parse_path(shown) for _, shown in registered(store)]
    outer = max((r for r in roots if r != path and is_within(path, r)), key=len, default=None)
    if outer is None:
        return []
    return [f"It lies in the workspace {show_path(outer)}, and has a list of points of its own."]


def _unprotected(recorder: Recorder, taken: Taken) -> list[str]:
    about = decode_about(recorder.store.blob(taken.snapshot.about))
    return lines(measure(recorder.root.path, about.gap_list()), UNPROTECTED_LINES)


def mark(recorder: Recorder, paths: Paths, params: Params) -> Answer:
    """With `always` false none is made where the newest state is a point; `marked` says so."""
    label, agent = label_of(text(params, "label")), text_or_none(params, "agent")
    spec, always = MarkSpec("manual", label=label, agent=agent), params.get("always") is not False
    taken = recorder.take(paths, spec, sync=_sync(params), always_mark=always)
    name, root = f' "{label}"' if label else "", recorder.root.shown
    says = f"Marked {root}{name}: {short(taken.snapshot.id)}."
    if taken.mark is None:
        says = f"Nothing changed in {root}; {short(taken.snapshot.id)} is a point already."
    more = {} if always else {"marked": taken.mark is not None}
    answer = taken_json(taken, _point_seq(recorder, taken))
    return {**answer, **more, "people": {"lines": [says]}}


# Turns


def turn_begin(recorder: Recorder, paths: Paths, params: Params) -> Answer:
    taken = turns.begin(
        recorder,
        needed(params, "session"),
        turn_id=text_or_none(params, "turn_id"),
        prompt=text(params, "prompt"),
        agent=text_or_none(params, "agent"),
        messages=number(params, "messages"),
        pid=number(params, "pid"),
        status="late" if 0 < (number(params, "late_after_ns") or 0) < time.time_ns() else None,
        labels=params.get("labels") is not False,
        sync=_sync(params),
        paths=paths,
    )
    return _turn_answer(recorder, taken)


def turn_end(recorder: Recorder, paths: Paths, params: Params) -> Answer:
    taken = turns.end(
        recorder,
        needed(params, "session"),
        turn_id=text_or_none(params, "turn_id"),
        status=status_of(params),
        messages=number(params, "messages"),
        sync=_sync(params),
        paths=paths,
    )
    return _turn_answer(recorder, taken)


def status_of(params: Params) -> Status:
    status = text(params, "status", "ok")
    if status not in STATUSES:
        raise BadInput(f"'{status[:50]}' is no status.", f"One of: {', '.join(STATUSES)}.")
    return cast(Status, status)


def _turn_answer(recorder: Recorder, taken: Taken) -> Answer:
    assert taken.mark is not None
    made = taken.mark
    what = "begins" if made.kind == "turn-begin" else "ends"
    says = f"Turn {made.turn} {what} in {recorder.root.shown}: {short(taken.snapshot.id)}."
    return {
        **taken_json(taken, made.seq),
        "session": made.session,
        "turn": made.turn,
        "turn_id": made.turn_id,
        "people": {"lines": [says]},
    }


# Rollbacks


def go_back(recorder: Recorder, paths: Paths, params: Params) -> Answer:
    request, target = way_back(recorder, params)
    try:
        return _change(recorder, request, params, f"Rollback to {target.label}")
    except BadInput:
        _check_held(recorder, target, request.paths)
        raise


def way_back(recorder: Recorder, params: Params) -> tuple[Request, Target]:
    """What a rollback's parameters mean."""
    timeline = Timeline(recorder.store, recorder.root.id)
    target = timeline.resolve(text(params, "point", "@"), time.time_ns())
    tops = tuple(RelPath(parse_path(path)) for path in texts(params, "paths"))
    request = Request(
        *(target.snapshot, target.seq, _lasting(target), "rollback", tops),
        mine_stays=params.get("mine_stays") is True,
    )
    return request, target


def _check_held(recorder: Recorder, target: Target, tops: tuple[RelPath, ...]) -> None:
    """A path that the point left out is not missing: says why it cannot be brought back."""
    about = stored_state(recorder.store, read_snapshot(recorder.store, target.snapshot)).about
    for path in tops:
        if reason := about.gap_at(path):
            raise BadInput(
                f"{named(path)} is not held by {target.label}: {reason} ({MEANING[reason]}).",
                f"`turnmark history {named(path)}` shows whether another point holds it.",
            )


def _lasting(target: Target) -> str:
    """What the history will call the point: its number in the list will be another's soon."""
    point = target.point
    if point is None or point.kind not in ("turn", "manual", "baseline", "import"):
        return f"snapshot {short(target.snapshot)}"
    end = "the end of " if target.snapshot != point.id else ""
    name = f"turn {point.turn}" if point.kind == "turn" else f"snapshot {short(point.id)}"
    label = f', "{one_line(point.label, LABEL_ROOM)}"' if point.label else ""
    return f"{end}{name}{label}"


def take_out(recorder: Recorder, paths: Paths, params: Params) -> Answer:
    from core.revert import preview_revert, revert, side_of, wish_for  # not for every hook

    wish = wish_for(
        Timeline(recorder.store, recorder.root.id),
        texts(params, "turns"),
        text_or_none(params, "session"),
        time.time_ns(),
    )
    wish = replace(wish, side=side_of(text(params, "side")), plan=text(params, "plan"))
    result = (preview_revert if params.get("dry_run") else revert)(recorder, wish)
    return {**as_json(result), "people": for_people(result, f"Revert of {wish.label}")}


def undo(recorder: Recorder, paths: Paths, params: Params) -> Answer:
    request = undo_request(recorder.store, recorder.root.id)
    if request is None:
        return _none()
    title = f"Undo: back to the state {request.label}"
    return _change(recorder, request, params, title)


def redo(recorder: Recorder, paths: Paths, params: Params) -> Answer:
    request = redo_request(recorder.store, recorder.root.id)
    if request is None:
        return _none()
    return _change(recorder, request, params, f"Redo: on to the state {request.label}")


def _none() -> Answer:
    return {**nothing(), "people": {}}


def _change(recorder: Recorder, request: Request, params: Params, title: str) -> Answer:
    """A dry run changes and stores nothing."""
    request = replace(request, plan=text(params, "plan"))
    result = (preview if params.get("dry_run") else rollback)(recorder, request)
    over = _never_ended(recorder) if result.open_turns else ()
    result = replace(result, open_turns=tuple(t for t in result.open_turns if t not in over))
    return {**as_json(result), "people": for_people(result, title)}


def _never_ended(recorder: Recorder) -> set[str]:
    """Turns that are open in the history alone: whoever made them is no more."""
    marks = ((mark, mark.extra.get("pid")) for mark in recorder.begun().open())
    return {
        f"{mark.session}/{mark.turn}"
        for mark, pid in marks
        if isinstance(pid, int) and not is_alive(pid, mark.time_ns)
    }


# Pins


def pin(recorder: Recorder, paths: Paths, params: Params) -> Answer:
    return pin_point(recorder.store, recorder.root, params)


def unpin(recorder: Recorder, paths: Paths, params: Params) -> Answer:
    return unpin_point(recorder.store, recorder.root, params)


def pin_point(store: Store, root: Root, params: Params) -> Answer:
    with store.writing():
        # Looked up under the locks: a point cannot be pruned between that and the pin.
        timeline = Timeline(store, root.id)
        target = timeline.resolve(needed(params, "point"), time.time_ns())
        there = target.snapshot in timeline.history.pins
        if not there:
            store.refs.create(pin_ref(root.id, target.snapshot), target.snapshot, sync=True)
    return _pin_answer(root, target, True, "was pinned already" if there else "pinned")


def unpin_point(store: Store, root: Root, params: Params) -> Answer:
    timeline = Timeline(store, root.id)
    target = timeline.resolve(needed(params, "point"), time.time_ns())
    there = target.snapshot in timeline.history.pins
    if there:
        with store.exclusive():
            store.refs.delete([pin_ref(root.id, target.snapshot)])
    return _pin_answer(root, target, False, "no longer pinned" if there else "was not pinned")


def _pin_answer(root: Root, target: Target, pinned: bool, says: str) -> Answer:
    return {
        "workspace": root.id,
        "id": target.snapshot.hex(),
        "seq": target.seq,
        "pinned": pinned,
        "people": {"lines": [f"{target.label}: {says}."]},
    }


ACTIONS: dict[str, Action] = {
    "snapshot": snapshot,
    "mark": mark,
    "turn.begin": turn_begin,
    "turn.end": turn_end,
    "rollback": go_back,
    "revert": take_out,
    "undo": undo,
    "redo": redo,
    "pin": pin,
    "unpin": unpin,
}
LOOKING = frozenset(
    {"snapshot", "mark", "turn.begin", "turn.end", "rollback", "revert", "undo", "redo"}
)
"""These look at the paths they are given, or at everything."""


def task_of(action: str, params: Params) -> Callable[[Recorder, Paths], Answer]:
    """An action as a workspace's loop does it: where the action itself does not look, what was
    dirty is looked at all the same, since nobody else will."""

    def task(recorder: Recorder, paths: Paths) -> Answer:
        before = recorder.seq
        if action not in LOOKING or params.get("dry_run"):
            recorder.take(paths, sync=_sync(params))
        answer = ACTIONS[action](recorder, paths, params)
        again = action == "turn.begin" and answer["seq"] <= before  # the mark of an earlier request
        if again or answer["people"] == {}:  # there was nothing to undo
            recorder.take(paths, sync=_sync(params))
        return answer

    return task
