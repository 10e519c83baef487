"""Which snapshots and marks of one workspace stay: rules alone, told its history and the time.

How those that do not stay are dropped is `retention`'s business.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from .begun import Begun
from .model import Mark, Oid, Snapshot

MEGABYTE = 1 << 20
HOUR_NS = 3600 * 1_000_000_000
UNDOABLE = 10
"""So many of the newest rollbacks keep the states that undo and redo need."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The limits; 0 switches one off. One MB is 2**20 bytes, as for file sizes."""

    max_points: int = 100
    burst_hours: float = 24
    burst_turns: int = 10
    max_total_size: int = 1000 * MEGABYTE
    retention_days: float = 14
    min_interval_hours: float = 24
    delete_orphans: bool = True


class Kept(NamedTuple):
    """The numbers of the marks and snapshots that stay."""

    marks: frozenset[int]
    snapshots: frozenset[int]


@dataclass(frozen=True, slots=True)
class Row:
    """What stays or goes as one: the marks of a point, or the snapshot of a burst."""

    marks: tuple[Mark, ...] = ()
    burst: Snapshot | None = None

    @property
    def seq(self) -> int:
        return self.burst.seq if self.burst else self.marks[-1].seq

    @property
    def is_turn(self) -> bool:
        return bool(self.marks) and self.marks[0].kind in ("turn-begin", "turn-end")

    @property
    def is_idle(self) -> bool:
        """A turn that changed nothing, which no list shows."""
        ended = {mark.kind for mark in self.marks} == {"turn-begin", "turn-end"}
        return ended and len({mark.snapshot for mark in self.marks}) == 1

    def own_ids(self) -> set[Oid]:
        return {self.burst.id} if self.burst else {mark.id for mark in self.marks}

    def ids(self) -> set[Oid]:
        """By any of these it can be pinned."""
        return self.own_ids() | {mark.snapshot for mark in self.marks}


def keep(
    marks: Sequence[Mark],
    snapshots: Sequence[Snapshot],
    pins: Collection[Oid],
    now_ns: int,
    policy: Policy,
    *,
    live: bool = True,
) -> Kept:
    """What stays of one workspace. Order is by number: clocks jump, numbers do not.

    Bursts go before points: none stays that is older than a point that went. However many points
    came since, a turn that is still open stays as long as it is young: without its begin it could
    not end, and what its agent goes on to do would be taken for the person's. Turns that changed
    nothing are in nobody's way: only those stay that are among the newest of all.
    """
    book = Book(tuple(marks), tuple(snapshots), frozenset(pins), live)
    age = ages(book, now_ns)
    limit = policy.retention_days * 24 * HOUR_NS
    young = [row for row in book.points if not limit or age[row.seq] <= limit]
    listed = [row for row in young if not row.is_idle]
    most = policy.max_points or len(young)
    within = {row.seq for row in (*young[-most:], *listed[-most:])}
    within |= book.running & {row.seq for row in young}
    points = [row for row in book.points if row.seq in within or book.is_fixed(row)]
    gone = max({row.seq for row in book.points} - {row.seq for row in points}, default=0)
    stays = _burst_rule(book, age, policy)
    bursts = [row for row in book.bursts if book.is_fixed(row) or (row.seq > gone and stays(row))]
    return book.held_by([*points, *bursts])


def ages(book: Book, now_ns: int) -> dict[int, int]:
    """By number, in ns: nothing is older than what came before it, and the future is now."""
    ages: dict[int, int] = {}
    latest = 0
    items: list[Mark | Snapshot] = [*book.marks, *book.snapshots]
    for item in sorted(items, key=lambda item: item.seq):
        latest = max(latest, min(item.time_ns, now_ns))
        ages[item.seq] = now_ns - latest
    return ages


def _burst_rule(book: Book, age: dict[int, int], policy: Policy) -> Callable[[Row], bool]:
    turns = [row.marks[0].seq for row in book.points if row.is_turn]
    since = min(turns[-policy.burst_turns :], default=0) if policy.burst_turns else 0
    hours, days = policy.burst_hours * HOUR_NS, policy.retention_days * 24 * HOUR_NS

    def stays(row: Row) -> bool:
        if days and age[row.seq] > days:
            return False
        recent = bool(hours) and age[row.seq] <= hours
        in_turns = bool(since) and row.seq > since
        return recent or in_turns or not (hours or policy.burst_turns)

    return stays


@dataclass(frozen=True)
class Book:
    """One workspace's history with what is never to be dropped of it.

    live: its newest point and its newest snapshot stay.
    """

    marks: tuple[Mark, ...]
    snapshots: tuple[Snapshot, ...]
    pins: frozenset[Oid]
    live: bool

    @cached_property
    def points(self) -> list[Row]:
        """Begin and end of a turn are one point; ordered by the last mark of each."""
        found: dict[object, list[Mark]] = {}
        for mark in self._in_order:
            found.setdefault(_point_key(mark), []).append(mark)
        return sorted((Row(tuple(group)) for group in found.values()), key=lambda row: row.seq)

    @cached_property
    def bursts(self) -> list[Row]:
        marked = {mark.snapshot for mark in self.marks}
        rows = [Row(burst=one) for one in self.snapshots if one.id not in marked]
        return sorted(rows, key=lambda row: row.seq)

    @cached_property
    def newest(self) -> frozenset[Oid]:
        """The newest snapshot, and the newest complete one if it is another; the newest mark."""
        ordered = sorted(self.snapshots, key=lambda one: one.seq)
        whole = [one for one in ordered if not one.partial]
        marks = [mark for row in self.points[-1:] for mark in row.marks[-1:]]
        newest: list[Mark | Snapshot] = [*ordered[-1:], *whole[-1:], *marks]
        return frozenset(one.id for one in newest)

    @cached_property
    def fixed(self) -> frozenset[int]:
        """The numbers of the rows that never go."""
        rows = [*self.points, *self.bursts]
        pinned = {row.seq for row in rows if not self.pins.isdisjoint(row.ids())}
        last = {row.seq for row in rows if not self.newest.isdisjoint(row.own_ids())}
        return frozenset(pinned | (last if self.live else set()))

    @cached_property
    def running(self) -> frozenset[int]:
        """The numbers of the turns that have not ended: of each session at most its last."""
        last = {mark.session: mark.seq for mark in self._in_order if mark.kind == "turn-begin"}
        begun = {mark.seq for mark in Begun(self._in_order).open()} & set(last.values())
        return frozenset(row.seq for row in self.points if row.seq in begun)

    @cached_property
    def _in_order(self) -> list[Mark]:
        return sorted(self.marks, key=lambda mark: mark.seq)

    def is_fixed(self, row: Row) -> bool:
        return row.seq in self.fixed

    def droppable(self) -> list[Row]:
        """What may go for the sake of size, in that order: bursts first, oldest first."""
        return [row for row in (*self.bursts, *self.points) if not self.is_fixed(row)]

    def held_by(self, rows: Iterable[Row]) -> Kept:
        """The numbers of what the rows are made of and need."""
        rows = list(rows)
        marks = [mark for row in rows for mark in row.marks]
        ids = {row.burst.id for row in rows if row.burst is not None}
        ids |= {mark.snapshot for mark in marks} | _undo_states(marks) | self.pins
        if self.live:
            ids |= self.newest
        return Kept(
            frozenset(mark.seq for mark in marks),
            frozenset(one.seq for one in self.snapshots if one.id in ids),
        )


def _point_key(mark: Mark) -> object:
    in_turn = mark.kind in ("turn-begin", "turn-end")
    named = mark.turn is not None or mark.turn_id is not None
    return (mark.session, mark.turn, mark.turn_id) if in_turn and named else mark.seq


def _undo_states(marks: Iterable[Mark]) -> set[Oid]:
    """What every rollback came from, which undo and redo go to as long as its mark is there, and
    where the newest ones went."""
    rollbacks = sorted((m for m in marks if m.kind == "rollback"), key=lambda mark: mark.seq)
    newest = {oid for mark in rollbacks[-UNDOABLE:] for oid in states_of(mark)}
    return newest | {oid for mark in rollbacks for oid in states_of(mark, "before")}


def states_of(mark: Mark, *keys: str) -> set[Oid]:
    named = [mark.extra.get(key) for key in keys or ("before", "target")]
    return {Oid(bytes.fromhex(text)) for text in named if isinstance(text, str) and _is_id(text)}


def _is_id(text: str) -> bool:
    return re.fullmatch("[0-9a-f]{40}", text) is not None
