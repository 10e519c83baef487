"""Who made what changed between two snapshots: a turn, several at once, a rollback or the person.

Pure: knows marks, and the numbers of snapshots. What changes between a turn's begin and its end is
the turn's; while turns of several sessions overlap it is shared; between turns it is the person's.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest

from .model import Maker, Mark, Oid, RelPath

PERSON, ROLLBACK, UNKNOWN = Maker("person"), Maker("rollback"), Maker("unknown")
FOUND = Maker("found")


@dataclass(frozen=True, slots=True)
class Interval:
    """Between two snapshots that follow each other; without a new one it lasts until now."""

    old: Oid
    new: Oid | None
    maker: Maker


class Makers:
    """Who was at work, from each mark until the next."""

    def __init__(self, marks: Sequence[Mark]) -> None:
        self._seqs = [mark.seq for mark in marks]
        self._after = _replayed(marks)
        self._first = Maker("unknown") if marks and marks[0].prev is not None else PERSON

    def at(self, seq: int) -> Maker:
        """Of what a snapshot of that number holds anew: those at work when it was taken."""
        before = bisect_left(self._seqs, seq)
        return self._after[before - 1] if before else self._first

    @property
    def now(self) -> Maker:
        return self._after[-1] if self._after else PERSON

    def of(self, seqs: Iterable[int]) -> Maker | None:
        """All of them in one; None where nothing was made."""
        return together(map(self.at, seqs))


def _replayed(marks: Sequence[Mark]) -> list[Maker]:
    running: dict[str | None, Mark] = {}
    after: list[Maker] = []
    for mark, following in zip_longest(marks, marks[1:]):
        if mark.kind == "turn-begin":
            running[mark.session] = mark
        elif mark.kind == "turn-end":
            running.pop(mark.session, None)
        after.append(_maker(mark, following, running))
    return after


def _maker(mark: Mark, following: Mark | None, running: dict[str | None, Mark]) -> Maker:
    if following is not None and following.prev not in (None, mark.id):
        return UNKNOWN  # marks between the two were pruned
    if following is not None and following.kind == "import":
        return FOUND
    rolling = mark.kind == "before-rollback" and following is not None
    if rolling and following is not None and following.kind == "rollback":
        return ROLLBACK
    turns = tuple(sorted(f"{m.session}/{m.turn}" for m in running.values()))
    if not turns:
        return PERSON
    return Maker("turn" if len(turns) == 1 else "shared", turns)


def together(makers: Iterable[Maker]) -> Maker | None:
    """Several makers as one: of turns alone it is shared, else mixed."""
    every = list(dict.fromkeys(makers))
    if len(every) < 2:
        return every[0] if every else None
    turns = tuple(sorted({turn for maker in every for turn in maker.turns}))
    return Maker("shared" if all(maker.is_agent for maker in every) else "mixed", turns)


def intervals(makers: Makers, ids: dict[int, Oid], old: int, new: int | None) -> list[Interval]:
    """From one snapshot's number to another's, or to now; `ids` are the complete snapshots."""
    seqs = sorted(ids)
    last = len(seqs) if new is None else bisect_right(seqs, new)
    asked = seqs[bisect_left(seqs, old) : last]
    found = [Interval(ids[one], ids[two], makers.at(two)) for one, two in pairwise(asked)]
    if new is None and asked:
        found.append(Interval(ids[asked[-1]], None, makers.now))
    return found


Differing = Callable[[Oid, Oid | None], Iterable[RelPath]]


def by_path(found: Iterable[Interval], differing: Differing) -> dict[RelPath, tuple[Maker, ...]]:
    """Who changed each path, in the order in which they did."""
    out: dict[RelPath, tuple[Maker, ...]] = {}
    for one in found:
        for path in differing(one.old, one.new):
            had = out.get(path, ())
            out[path] = had if one.maker in had else (*had, one.maker)
    return out
