"""What the rollbacks of a workspace's history mean together: what undo and redo go back to, and
which turns still stand. Pure: knows marks only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from .model import Mark, Oid, RelPath, parse_path, show_path

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
        return act_name(self.act, self.subject, self.paths)


def act_name(act: Act, subject: str, paths: Sequence[RelPath] = ()) -> str:
    if act == "revert":
        return f"revert of {subject}"
    more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
    what = f" of {show_path(paths[0])}{more}" if paths else ""
    return f"rollback{what} to {subject}"


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


Turns = tuple[Mark, ...]
"""The begins of turns whose changes are there, oldest first."""


@dataclass(frozen=True, slots=True)
class Steps:
    """What a history comes to: which turns stand, and what undo and redo would go back over, newest
    last, each with what stood before it."""

    now: Turns
    undo: tuple[tuple[Past, Turns], ...]
    redo: tuple[tuple[Past, Turns], ...]
    _stood: tuple[tuple[int, Turns, Turns], ...]

    def at(self, seq: int) -> Turns:
        """What stood at a place in the history; a turn's begin is the state before the turn."""
        return _stood_at(self._stood, seq)

    def after(self, op: Op) -> Turns:
        """What would stand after the next undo, or redo."""
        entries = self.undo if op == "undo" else self.redo
        return entries[-1][1] if entries else self.now


def replay(marks: Iterable[Mark]) -> Steps:
    """An undo brings back what stood before the rollback, a redo what stood before the undo; what
    stands after a rollback is what stood at its target. Those of single paths move no turn.

    Each mark names the one before it. Where marks were dropped in between, an undo may have been
    among them: what is older is gone back over no more.
    """
    now: Turns = ()
    undo: list[tuple[Past, Turns]] = []
    redo: list[tuple[Past, Turns]] = []
    stood: list[tuple[int, Turns, Turns]] = []
    last: Oid | None = None
    for mark in marks:
        if last is not None and mark.prev not in (None, last):
            undo.clear()
            redo.clear()
        last = mark.id
        before, past = now, past_of(mark)
        if mark.kind == "turn-begin":
            now = (*now, mark)
        elif past is not None and past.op in ("undo", "redo"):
            taken, other = (undo, redo) if past.op == "undo" else (redo, undo)
            now = taken.pop()[1] if taken else now
            other.append((past, before))
        elif past is not None:
            undo.append((past, now))
            redo.clear()
            now = _gone_back(now, past, stood)
        if past is not None and past.paths:
            now = before
        stood.append((mark.seq, before if mark.kind == "turn-begin" else now, now))
    return Steps(now, tuple(undo), tuple(redo), tuple(stood))


def _gone_back(now: Turns, past: Past, stood: Sequence[tuple[int, Turns, Turns]]) -> Turns:
    if past.turns:
        return tuple(mark for mark in now if mark.seq not in past.turns)
    return _stood_at(stood, past.target_seq) if past.target_seq else now


def _stood_at(stood: Iterable[tuple[int, Turns, Turns]], seq: int) -> Turns:
    found: Turns = ()
    for number, there, after in stood:
        if number > seq:
            break
        found = there if number == seq else after
    return found
