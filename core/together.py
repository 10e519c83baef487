"""Several workspaces' rollbacks as one: all of them are done, or none is.

Order of operations, and what is true if the process dies after each:
1. each is planned: what was interrupted is finished, a safety snapshot taken; if one is refused,
   all are: no tree is touched;
2. each is staged: a journal that names the group, and every new content beside its tree. A failure
   (a full disk) gives up those that were staged: no tree was touched. As long as there is no marker
   of the group, the next command in each workspace clears its staging away;
3. the group's marker is made durable: from here on the next command in each workspace finishes its
   rollback, so that none of them stays behind, whichever had been begun;
4. one after the other: its own marker, steps, result snapshot, journal removed; the last journal
   takes the group's marker with it: done.

If one fails while it is applied, or all of its paths turn out to be in conflict:
5. the group's marker is removed: the next command clears away what had not been begun;
6. those that had not been begun are given up, the one that failed is finished and undone, the ones
   before it are undone, the latest first. What cannot be taken back is said. If the process dies
   here, every tree is whole, but some may be at the point and others not: `undo` there takes it
   back, as after any rollback.

All workspaces are in one store; their locks are held by the caller.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from .errors import TurnmarkError, explain
from .history import History
from .recorder import Recorder
from .rollback import (
    Ready,
    Request,
    Result,
    before_spec,
    finish_interrupted,
    finished,
    prepare,
    preview,
    rollback,
    undo_request,
    work_of,
)
from .staged import Staged, journal_file, staged
from .undo import replay

UNTOUCHED = "No workspace was changed."


@dataclass(frozen=True)
class Part:
    """One workspace, and what is wanted in it."""

    recorder: Recorder
    request: Request


@dataclass(frozen=True)
class Together:
    """What came of each, in the order of the parts; and why nothing did, if so."""

    results: tuple[Result, ...]
    reason: str = ""


def preview_all(parts: Sequence[Part]) -> Together:
    return Together(tuple(preview(part.recorder, part.request) for part in parts))


def rollback_all(parts: Sequence[Part]) -> Together:
    """An error says whose it is, and that the others were left alone or taken back."""
    ready = [_prepared(part) for part in parts]
    refused = [
        f"{_shown(part)}: {one.planned.reason}"
        for part, one in zip(parts, ready, strict=True)
        if one.planned.outcome == "refused"
    ]
    if refused:
        return Together(tuple(one.planned for one in ready), "; ".join(refused))
    group = _Group([_Member(part, one) for part, one in zip(parts, ready, strict=True)])
    with ExitStack() as stack:
        group.stage(stack)
        reason = group.go_on()
    return Together(tuple(member.result for member in group.members), reason)


def _prepared(part: Part) -> Ready:
    try:
        return prepare(part.recorder, part.request)
    except TurnmarkError as error:
        raise _of(part, error, UNTOUCHED) from error


def _shown(part: Part) -> str:
    return part.recorder.root.shown


def _of(part: Part, error: TurnmarkError, others: str) -> TurnmarkError:
    return TurnmarkError(f"{_shown(part)}: {error.message}", f"{others} {error.hint}".strip())


class _Member:
    """One part of a group, as far as it has come."""

    def __init__(self, part: Part, ready: Ready) -> None:
        self.part = part
        self.ready = ready
        self.result = ready.planned
        self.staged: Staged | None = None
        self.rollbacks = 0
        """How many rollbacks an undo could take back before."""

    @property
    def has_steps(self) -> bool:
        return bool(self.ready.planned.plan.steps)

    def undoable(self) -> int:
        recorder = self.part.recorder
        return len(replay(History(recorder.store, recorder.root.id).marks()).undo)

    def stage(self, stack: ExitStack, group: str) -> None:
        recorder, request, ready = self.part.recorder, self.part.request, self.ready
        self.rollbacks = self.undoable()
        recorder.record(before_spec(request), ready.before)
        work = work_of(request, ready.planned, ready.then, ready.before)
        self.staged = stack.enter_context(staged(recorder, work, group=group))

    def go_on(self) -> None:
        assert self.staged is not None
        left = self.staged.go_on()
        self.result = finished(self.ready.planned, left, self.ready.before)

    def give_up(self) -> None:
        assert self.staged is not None
        self.staged.give_up()
        self.result = self.ready.planned

    def undo(self) -> None:
        """Whatever it had come to; also what was cut short, once that is finished."""
        recorder = self.part.recorder
        finish_interrupted(recorder)
        request = undo_request(recorder.store, recorder.root.id)
        if request is not None and self.undoable() > self.rollbacks:
            shown = preview(recorder, request).plan.hash
            rollback(recorder, replace(request, plan=shown))
            if self.result.outcome == "done":
                self.result = replace(self.result, outcome="taken back")


class _Group:
    """Owns the members, and the marker that decides for all of them."""

    def __init__(self, members: list[_Member]) -> None:
        self.members = members
        self.name = secrets.token_hex(8)
        self.active = [member for member in members if member.has_steps]

    def stage(self, stack: ExitStack) -> None:
        """All, or none is left staged."""
        for number, member in enumerate(self.active):
            try:
                member.stage(stack, self.name)
            except TurnmarkError as error:
                unsaid = _each(self.active[:number], _Member.give_up)
                raise _of(member.part, error, _and(UNTOUCHED, unsaid)) from error

    def go_on(self) -> str:
        """Why all of it was taken back; empty if it was not."""
        begun: list[_Member] = []
        if not self.active:
            return ""
        try:
            self._decide()
            for member in self.active:
                begun.append(member)
                member.go_on()
                if member.result.outcome == "conflicts":
                    why = f"{_shown(member.part)}: every path there is in conflict"
                    return _and(why, self._go_back(begun))
        except TurnmarkError as error:
            failed = begun[-1] if begun else self.active[0]
            others = "What had been done elsewhere was taken back." if begun[1:] else UNTOUCHED
            raise _of(failed.part, error, _and(others, self._go_back(begun))) from error
        return ""

    def _decide(self) -> None:
        recorder = self.active[0].part.recorder
        try:
            journal_file(recorder).mark_group(self.name)
        except OSError as error:
            raise explain(error, "begin the rollback", recorder.store.base) from error

    def _go_back(self, begun: list[_Member]) -> list[str]:
        """What could not be taken back."""
        unbegun = [member for member in self.active if member not in begun]
        return [
            *_each(self.active[:1], self._undecide),
            *_each(unbegun, _Member.give_up),
            *_each(reversed(begun), _Member.undo),
        ]

    def _undecide(self, any_of_them: _Member) -> None:
        journal_file(any_of_them.part.recorder).unmark_group(self.name)


def _each(members: Iterable[_Member], act: Callable[[_Member], None]) -> list[str]:
    """Trouble with one does not keep the others from it; what it was is told."""
    troubles = []
    for member in members:
        try:
            act(member)
        except (TurnmarkError, OSError) as error:
            troubles.append(f"{_shown(member.part)} was not: {error}")
    return troubles


def _and(first: str, more: list[str]) -> str:
    return " ".join([first, *more])
