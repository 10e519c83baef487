"""An agent's turns as marks: where one begins, where it ends, and which one is still open.

Knows the history of one workspace; not who says that a turn began, nor what a user sees of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from .errors import TurnmarkError
from .history import MarkSpec, read_snapshot
from .model import Mark, RelPath, Status, label_of
from .recorder import Recorder, Taken


def begin(
    recorder: Recorder,
    session: str,
    *,
    turn_id: str | None = None,
    prompt: str = "",
    agent: str | None = None,
    messages: int | None = None,
    pid: int | None = None,
    status: Status | None = None,
    labels: bool = True,
    sync: bool = True,
    paths: Iterable[RelPath] | None = None,
) -> Taken:
    """The state before a turn; another one that the session had open is interrupted."""
    begun = recorder.begun()
    running = begun.running(session)
    if running is not None and turn_id is not None and running.turn_id == turn_id:
        return _again(recorder, running, sync)
    spec = MarkSpec(
        kind="turn-begin",
        label=label_of(prompt) if labels else "",
        session=session,
        turn=begun.next(session),
        turn_id=turn_id,
        agent=agent,
        status=status,
        extra=_extra(messages=messages, pid=pid),
    )
    if running is None:
        return recorder.take(paths, spec, sync=sync)
    closed = recorder.take(paths, _end_of(running, "interrupted", {}), sync=sync)
    return replace(closed, mark=recorder.record(spec, closed.snapshot, sync=sync))


def end(
    recorder: Recorder,
    session: str,
    *,
    turn_id: str | None = None,
    status: Status = "ok",
    messages: int | None = None,
    sync: bool = True,
    paths: Iterable[RelPath] | None = None,
) -> Taken:
    """The state after the session's open turn; without one no mark is made."""
    running = recorder.begun().running(session)
    if running is None:
        raise TurnmarkError(
            f"Session {session} has no open turn in {recorder.root.shown}.",
            "`turnmark turn begin` opens one; no mark was made.",
        )
    if turn_id is not None and running.turn_id not in (None, turn_id):
        raise TurnmarkError(
            f"The open turn of session {session} is {running.turn_id}, not {turn_id}.",
            "A later turn has begun since; no mark was made.",
        )
    spec = _end_of(running, status, _extra(messages=messages))
    return recorder.take(paths, spec, sync=sync)


def _end_of(begun: Mark, status: Status, extra: dict[str, object]) -> MarkSpec:
    """With the very ids of the begin: by them the two are kept or pruned together."""
    return MarkSpec(
        kind="turn-end",
        session=begun.session,
        turn=begun.turn,
        turn_id=begun.turn_id,
        agent=begun.agent,
        status=status,
        extra=extra,
    )


def _extra(**numbers: int | None) -> dict[str, object]:
    return {name: number for name, number in numbers.items() if number is not None}


def _again(recorder: Recorder, mark: Mark, sync: bool) -> Taken:
    if sync:
        recorder.vouch()
    snapshot = read_snapshot(recorder.store, mark.snapshot)
    return Taken(snapshot, mark, changed=0, fresh=False, durable=sync)
