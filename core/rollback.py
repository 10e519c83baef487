"""Makes a workspace equal to a point, and finishes what a killed rollback left.

A complete durable snapshot comes first, and what it does not hold is not touched. The steps are
those of `plan`, carried out by `apply`; the result is a snapshot again, so that a rollback can
itself be rolled back. The caller holds the workspace's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from .attribution import PERSON
from .begun import Begun
from .beneath import Beneath
from .diff import entry_at, files_of
from .edits import Edits
from .errors import BadInput, Damaged, explain
from .gitcontext import from_json, git_context, moved
from .history import History, MarkSpec, read_snapshot
from .journal import Journal, JournalFile
from .model import ROOT, Maker, Mark, Oid, RelPath, Snapshot, is_within, show_path
from .plan import MINE, UNATTRIBUTED, Left, Plan, State, Step, gone_unheld, make_plan
from .recorder import Recorder
from .staged import Work, clear_staging, journal_file, staged, take_back
from .staging import Staging
from .states import seen_state, stored_state
from .store import Store
from .undo import Act, Op, Past, Steps, Turns, act_name, replay

NAMED = 10
LEAST_OF_HASH = 8
"""So many digits of a plan's hash nobody hits upon without having seen it."""

UNTOLD = "which of the edits are yours cannot be told: the history since then is damaged"

Outcome = Literal["done", "nothing", "planned", "conflicts", "refused", "taken back"]


@dataclass(frozen=True)
class Request:
    """What is wanted: a snapshot to go to, everywhere or at some paths, and why.

    subject is where the rollback went that an undo or redo is about; label says it of this request.
    A revert takes out turns, which are given by the numbers of their begins.
    """

    target: Oid
    seq: int
    label: str
    op: Op = "rollback"
    paths: tuple[RelPath, ...] = ()
    plan: str = ""
    subject: str = ""
    act: Act = "rollback"
    turns: tuple[int, ...] = ()
    mine_stays: bool = False

    @property
    def title(self) -> str:
        """What it is called in the history."""
        name = act_name(self.act, self.subject or self.label, self.paths)
        return f"{self.op} of {name}" if self.op in ("undo", "redo") else name


@dataclass(frozen=True)
class Result:
    """What was done, or would be, and what was left as it is."""

    outcome: Outcome
    plan: Plan
    kept: tuple[Left, ...] = ()
    conflicts: tuple[Left, ...] = ()
    undo: Oid | None = None
    turns_undone: tuple[dict[str, object], ...] = ()
    open_turns: tuple[str, ...] = ()
    reason: str = ""
    marked: tuple[Left, ...] = ()
    """Written with the marks of a conflict in it, as was asked for."""
    mine: tuple[RelPath, ...] = ()
    """Edits of the person's own that the plan takes back."""
    unattributed: tuple[RelPath, ...] = ()
    """And those of which nobody can tell any more who made them."""
    warnings: tuple[str, ...] = ()
    gone: tuple[Left, ...] = ()
    """What the point did not hold, by the rules, and is not there any more."""
    followed: tuple[Left, ...] = ()
    """What was changed under a name that it has not any more, and what that was."""


def preview(recorder: Recorder, request: Request) -> Result:
    """What `rollback` would do now; stores and changes nothing."""
    then = _target_state(recorder.store, request)
    return _plan(recorder, request, seen_state(recorder, recorder.look()), then)


def rollback(recorder: Recorder, request: Request) -> Result:
    """Makes the workspace equal to the target, but for what must be kept."""
    ready = prepare(recorder, request)
    if ready.planned.outcome == "refused":
        return ready.planned
    if not ready.planned.plan.steps:
        if request.op != "rollback":  # it counts all the same, or no older one could be reached
            extra = _extra(request, ready.before)
            recorder.record(MarkSpec("rollback", request.title, extra=extra), ready.before)
        return replace(ready.planned, outcome="nothing")
    return carry_out(recorder, request, ready.planned, ready.then, ready.before)


@dataclass(frozen=True)
class Ready:
    """A rollback before its first step: what is there is stored, what is to be done is known."""

    planned: Result
    then: State
    before: Snapshot


def prepare(recorder: Recorder, request: Request) -> Ready:
    store = recorder.store
    finish_interrupted(recorder)
    then = _target_state(store, request)
    before = recorder.take(sync=True, note=f"before {request.op}").snapshot
    planned = _plan(recorder, request, stored_state(store, before), then)
    refusal = refusal_of(request, planned.plan)
    if refusal:
        planned = replace(planned, outcome="refused", reason=refusal)
    return Ready(planned, then, before)


def _plan(recorder: Recorder, request: Request, now: State, then: State) -> Result:
    """What would be done, and what of it the person may not expect."""
    now, then = now.reading_once(), then.reading_once()
    plan = make_plan(now, then, request.target, request.paths)
    asked = request.op != "revert"
    told = _by_no_agent(recorder, request, now, then, plan) if asked else {}
    others = told or {}
    if request.mine_stays and others:
        stays = {path: MINE if maker == PERSON else UNATTRIBUTED for path, maker in others.items()}
        plan = make_plan(now, then, request.target, request.paths, stays)
    _check_paths(request, plan, now, then)
    touched = sorted({step.path for step in plan.steps} & others.keys())
    return replace(
        planned_result(recorder, request, plan),
        mine=tuple(path for path in touched if others[path] == PERSON),
        unattributed=tuple(path for path in touched if others[path] != PERSON),
        warnings=tuple(_warnings(recorder, request, told)) if plan.steps else (),
        gone=tuple(gone_unheld(now, then, request.paths)),
    )


def _warnings(
    recorder: Recorder, request: Request, told: dict[RelPath, Maker] | None
) -> Iterator[str]:
    if told is None:
        yield UNTOLD
    yield from _git_moved(recorder, request)
    yield from _under_way(recorder.marks(), request)
    for path in sorted(recorder.rules.nested):
        if any(is_within(path, top) for top in request.paths or (ROOT,)):
            yield f"{show_path(path)} is watched on its own, and stays as it is"


def _under_way(marks: Sequence[Mark], request: Request) -> Iterator[str]:
    """Turns that had begun before the point and went on: of them only a part is taken back."""
    if request.op != "rollback" or request.paths:
        return
    standing = {mark.seq for mark in replay(marks).now}
    for mark in Begun(mark for mark in marks if mark.seq <= request.seq).open():
        if mark.seq < request.seq and mark.seq in standing:
            yield f"turn {mark.session}/{mark.turn} was under way then; what it did since goes too"


def _git_moved(recorder: Recorder, request: Request) -> Iterator[str]:
    """Where the user's HEAD is another than at the newest mark of the point, or before it."""
    at_point = [mark for mark in recorder.marks() if mark.seq <= request.seq]
    if request.op == "rollback" and at_point:
        then = from_json(at_point[-1].extra.get("git"))
        yield from moved(then, git_context(recorder.store.disk, recorder.root.path))


def _by_no_agent(
    recorder: Recorder, request: Request, now: State, then: State, plan: Plan
) -> dict[RelPath, Maker] | None:
    """Of what the point has otherwise: the edits of the person, and of nobody knows whom; None
    where the history is too damaged to tell."""
    store = recorder.store

    def state_of(snapshot: Snapshot) -> State:
        return replace(stored_state(store, snapshot), read_tree=then.read_tree)

    edits = Edits(History(store, recorder.root.id), state_of, now, recorder.marks())
    differing = {step.path for step in plan.steps} | {left.path for left in plan.kept}
    try:
        return edits.by_no_agent(request.target, differing)
    except Damaged:
        if request.mine_stays:
            raise
        return None  # what a preview says is no reason to refuse the way back


def _target_state(store: Store, request: Request) -> State:
    target = read_snapshot(store, request.target)
    then = stored_state(store, target)
    if target.partial:
        _check_held(request, then)
    return then


def _check_held(request: Request, then: State) -> None:
    """Of any other path, and so of a directory, such a point says nothing: not that it is gone."""
    held = sorted(path for path, _ in files_of(then.read_tree, then.files))
    if not request.paths or not set(held).issuperset(request.paths):
        more = ", ..." if len(held) > NAMED else ""
        raise BadInput(
            f"{request.target.hex()[:12]} holds only files that a rollback had moved aside.",
            f"Name what you want of them: {', '.join(map(show_path, held[:NAMED]))}{more}.",
        )


def _check_paths(request: Request, plan: Plan, now: State, then: State) -> None:
    """A path that neither the point nor the workspace has is a slip of the pen."""
    told = {step.path for step in plan.steps} | {left.path for left in plan.kept}
    for path in request.paths if request.op == "rollback" else ():
        if any(is_within(one, path) for one in told) or _has(now, path) or _has(then, path):
            continue
        if reason := now.about.gap_at(path):
            raise BadInput(
                f"{show_path(path)} is left as it is: {reason} now.",
                "A rollback touches only what snapshots hold.",
            )
        raise BadInput(
            f"{show_path(path)} is neither in {request.label} nor in the workspace.",
            "Paths start at the current directory; `turnmark find` shows when one was there.",
        )


def _has(state: State, path: RelPath) -> bool:
    there = entry_at(state.read_tree, state.files, path) is not None
    return there or path in state.about.empty


def refusal_of(request: Request, plan: Plan) -> str:
    if 0 < len(request.plan) < LEAST_OF_HASH:
        return f"a plan is named by at least {LEAST_OF_HASH} digits of its hash"
    if request.plan and not plan.hash.startswith(request.plan):
        return "the workspace or the point has changed since that plan was shown"
    if plan.fuses and not request.plan:
        return "; ".join(plan.fuses)
    return ""


def planned_result(recorder: Recorder, request: Request, plan: Plan) -> Result:
    marks = recorder.marks()
    opened = tuple(f"{m.session}/{m.turn}" for m in Begun(marks).open())
    undone = _turns_undone(marks, request) if plan.steps else ()
    outcome: Outcome = "planned" if plan.steps else "nothing"
    return Result(outcome, plan, plan.kept, turns_undone=undone, open_turns=opened)


def _turns_undone(marks: Iterable[Mark], request: Request) -> tuple[dict[str, object], ...]:
    """The turns that still stand and that go; none for a part of the tree."""
    if request.paths:
        return ()
    return tuple(
        {
            "session": mark.session,
            "turn": mark.turn,
            "label": mark.label,
            "messages": mark.extra.get("messages"),
        }
        for mark in _turns_that_go(replay(marks), request)
    )


def _turns_that_go(steps: Steps, request: Request) -> Turns:
    """Those asked for, or those that will not stand where it leads."""
    if request.turns and request.op == "revert":
        return tuple(mark for mark in steps.now if mark.seq in request.turns)
    to = steps.after(request.op) if request.op in ("undo", "redo") else steps.at(request.seq)
    return tuple(mark for mark in steps.now if mark not in to)


def before_spec(request: Request) -> MarkSpec:
    return MarkSpec("before-rollback", label=f"before {request.title}")


def finished(planned: Result, conflicts: list[Left], before: Snapshot) -> Result:
    return _with_left(planned, conflicts, before.id)


def _with_left(planned: Result, conflicts: list[Left], undo: Oid) -> Result:
    whole = tuple(_first_per_path(conflicts))
    failed = {left.path for left in whole}
    done = any(step.path not in failed for step in planned.plan.steps)
    return replace(planned, outcome="done" if done else "conflicts", conflicts=whole, undo=undo)


def _first_per_path(found: Iterable[Left]) -> list[Left]:
    first: dict[RelPath, Left] = {}
    for left in found:
        first.setdefault(left.path, left)
    return sorted(first.values(), key=lambda left: left.path)


# Carrying out


def carry_out(
    recorder: Recorder, request: Request, planned: Result, then: State, before: Snapshot
) -> Result:
    """Does what was planned from the snapshot `before`; the target's snapshot is stored."""
    recorder.record(before_spec(request), before)
    work = work_of(request, planned, then, before)
    with staged(recorder, work) as ready:
        left = ready.go_on()
    return finished(planned, left, before)


def work_of(request: Request, planned: Result, then: State, before: Snapshot) -> Work:
    steps = planned.plan.steps
    return Work(steps, then, before.id, request.target, _extra(request, before))


def _extra(request: Request, before: Snapshot) -> dict[str, Any]:
    """What undo and redo will have to know."""
    return {
        "op": request.op,
        "title": request.title,
        "subject": request.subject or request.label,
        "target": request.target.hex(),
        "target_seq": request.seq,
        "before": before.id.hex(),
        "paths": [show_path(path) for path in request.paths],
        "act": request.act,
        "turns": list(request.turns),
    }


# After a crash


def finish_interrupted(recorder: Recorder) -> Result | None:
    """Finishes the rollback that a killed process left, or clears away one that had not begun."""
    journal = journal_file(recorder)
    record = journal.read()
    if record is None:
        return None
    with Beneath(recorder.store.disk, recorder.root.path) as beneath:
        staging = Staging(beneath, record.tx)
        try:
            here = recorder.store.disk.exists(staging.name, beneath.fd)
            if beneath.identity != record.root and not here:  # a disk's number may change
                journal.finish(record.group)
                return None
            if not journal.is_applying(record):
                take_back(recorder, staging, record.steps)
                if not record.resumed:
                    journal.finish(record.group)
                    return None
            return _roll_forward(recorder, record, staging, journal)
        except OSError as error:
            raise explain(error, "finish the interrupted rollback", recorder.root.shown) from error
        finally:
            staging.close()


def _roll_forward(
    recorder: Recorder, record: Journal, staging: Staging, journal: JournalFile
) -> Result:
    """First what is there becomes a snapshot, then every path that nobody changed is finished."""
    store = recorder.store
    here = recorder.take(sync=True, note="found after an interrupted rollback").snapshot
    saved = clear_staging(recorder, staging, record.steps) if staging.open() else []
    staging.close()
    try:
        then = stored_state(store, read_snapshot(store, record.target))
        plan = make_plan(stored_state(store, here), then, record.target)
    except Damaged:
        journal.finish(record.group)  # the point is lost: what is there stays, and is stored
        raise
    steps, strange = _still_ours(plan, record)
    left = saved + strange
    if steps or not _recorded(recorder, record.tx):
        work = Work(steps, then, record.before, record.target, record.extra)
        with staged(recorder, work, resumed=True, group=record.group) as ready:
            left += ready.go_on()
    else:
        journal.finish(record.group)
    done = replace(plan, steps=steps)
    return _with_left(Result("done", done, plan.kept), left, record.before)


def _still_ours(plan: Plan, record: Journal) -> tuple[tuple[Step, ...], list[Left]]:
    """The steps whose paths are as the rollback found or would have left them; the rest stays."""
    ours: dict[RelPath, list[Step]] = {}
    for step in record.steps:
        ours.setdefault(step.path, []).append(step)
    steps: list[Step] = []
    strange: list[Left] = []
    for step in plan.steps:
        if step.path not in ours:
            continue
        if _expected(step, ours[step.path]):
            steps.append(step)
        else:
            strange.append(Left(step.path, "changed since the rollback was interrupted"))
    return tuple(steps), strange


def _expected(step: Step, recorded: list[Step]) -> bool:
    if step.old is None or step.old.kind == "dir":
        return True
    states = [node for past in recorded for node in (past.old, past.new) if node is not None]
    return any(step.old.same_content(node) for node in states)


def _recorded(recorder: Recorder, tx: str) -> bool:
    """Whether the killed process had come as far as its result."""
    history = History(recorder.store, recorder.root.id)
    return any(mark.extra.get("tx") == tx for mark in history.marks())


# Undo and redo


def undo_request(store: Store, workspace: str) -> Request | None:
    """Back to the state before the newest rollback that still stands."""
    steps = replay(History(store, workspace).marks()).undo
    return _request("undo", steps[-1][0]) if steps else None


def redo_request(store: Store, workspace: str) -> Request | None:
    """Forward to the state before the newest undo."""
    steps = replay(History(store, workspace).marks()).redo
    return _request("redo", steps[-1][0]) if steps else None


def _request(op: Op, past: Past) -> Request:
    side = "before" if op == "undo" else "after"
    return Request(
        *(past.before, past.target_seq, f"{side} {past.name}", op, past.paths),
        subject=past.subject,
        act=past.act,
        turns=past.turns,
    )
