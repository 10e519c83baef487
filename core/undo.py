"""What the rollbacks of a workspace's history mean together: what undo and redo go back to, and
which turns still stand. Pure: knows marks only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from .model import Mark, Oid, RelPath, parse_path

Op = Literal["rollback", "revert", "undo", "redo"]
Act = Literal["rollback", "revert"]
"""What an undo or a redo can be about."""


@dataclass(frozen=True, slots=True)
class Past:
    """One rollback, revert, undo or redo as its mark tells it.

    subject is where the rollback went, or what the revert took out; turns are the numbers of the
    begins of what was taken out.
    """

    op: Op
    before: Oid
    target_seq: int
    paths: tuple[RelPath, ...]
    subject: str
    act: Act = "rollback"
    turns: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return act_name(self.act, self.subject)


@dataclass(frozen=True, slots=True)
class Stacks:
    """What undo would take back, and what redo would, newest last."""

    undo: tuple[Past, ...]
    redo: tuple[Past, ...]


def act_name(act: Act, subject: str) -> str:
    return f"revert of {subject}" if act == "revert" else f"rollback to {subject}"


def past_of(mark: Mark) -> Past | None:
    if mark.kind != "rollback":
        return None
    extra = mark.extra
    paths, turns = extra.get("paths"), extra.get("turns")
    return Past(
        op=extra.get("op", "rollback"),  # type: ignore[arg-type]
        before=Oid(bytes.fromhex(str(extra.get("before", "")))),
        target_seq=int(str(extra.get("target_seq", 0))),
        paths=tuple(RelPath(parse_path(str(p))) for p in paths) if isinstance(paths, list) else (),
        subject=str(extra.get("subject", "")),
        act="revert" if extra.get("act") == "revert" else "rollback",
        turns=tuple(n for n in turns if isinstance(n, int)) if isinstance(turns, list) else (),
    )


def stacks(marks: Iterable[Mark]) -> Stacks:
    """Replays the history: an undo moves the newest rollback over to redo, a redo moves it back."""
    undo: list[Past] = []
    redo: list[Past] = []
    for past in filter(None, map(past_of, marks)):
        if past.op == "undo":
            if undo:
                undo.pop()
            redo.append(past)
        elif past.op == "redo":
            if redo:
                redo.pop()
            undo.append(past)
        else:
            undo.append(past)
            redo.clear()
    return Stacks(tuple(undo), tuple(redo))


@dataclass(frozen=True, slots=True)
class Standing:
    """The begins of the turns whose changes are there, oldest first: now, and after another step.

    Rollbacks of single paths take no turn back.
    """

    now: list[Mark]
    after_undo: list[Mark]
    after_redo: list[Mark]


def standing_turns(marks: Iterable[Mark]) -> Standing:
    """Replays the history: an undo brings back what stood before the rollback, a redo what stood
    before the undo."""
    now: list[Mark] = []
    undo: list[list[Mark]] = []
    redo: list[list[Mark]] = []
    for mark in marks:
        past = past_of(mark)
        if mark.kind == "turn-begin":
            now = [*now, mark]
        elif past is None or past.paths:
            continue
        elif past.op == "undo":
            redo.append(now)
            now = undo.pop() if undo else now
        elif past.op == "redo":
            undo.append(now)
            now = redo.pop() if redo else now
        else:
            undo.append(now)
            redo.clear()
            now = [m for m in now if not _takes(past, m.seq)]
    return Standing(now, undo[-1] if undo else now, redo[-1] if redo else now)


def _takes(past: Past, begun: int) -> bool:
    if past.turns:
        return begun in past.turns
    return bool(past.target_seq) and begun >= past.target_seq


def open_turns(marks: Iterable[Mark]) -> list[Mark]:
    """The begins of the turns that have no end yet, oldest first."""
    opened: dict[tuple[str | None, int | None], Mark] = {}
    for mark in marks:
        key = (mark.session, mark.turn)
        if mark.kind == "turn-begin":
            opened[key] = mark
        elif mark.kind == "turn-end":
            opened.pop(key, None)
    return list(opened.values())
