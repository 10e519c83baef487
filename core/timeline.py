"""The read side of one workspace's history: its points, and what a user's word for one means.

Knows no disk but through the store and no clock: the present moment is told to it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta
from functools import cached_property
from itertools import pairwise

from .attribution import FOUND, Makers
from .counts import CountBook
from .errors import BadInput, Damaged
from .history import History, read_snapshot, workspaces
from .model import Counts, Maker, Mark, Oid, Point, PointKind, Snapshot, Status, rfc3339
from .store import Store, root_shown

SHORT = 10
"""Characters of an id that people are shown; any seven are understood."""

_NUMBER = re.compile(r"[0-9]{1,40}")
_NEWEST = re.compile(r"@(?:-([0-9]{1,9}))?")
_HASH = re.compile(r"[0-9a-fA-F]{7,40}")
_CLOCK = re.compile(r"[0-9]{2}:[0-9]{2}(:[0-9]{2})?")
_AGE = re.compile(r"([0-9]{1,9})([smhd])")
_FRACTION = re.compile(r"[.,]([0-9]+)")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_KINDS: dict[str, PointKind] = {
    "turn-begin": "turn",
    "baseline": "baseline",
    "manual": "manual",
    "rollback": "rollback",
    "before-rollback": "before-rollback",
    "import": "import",
}


@dataclass(frozen=True, slots=True)
class Target:
    """What a spec means: a snapshot, and the place in history from which it is seen."""

    snapshot: Oid
    seq: int
    point: Point | None
    label: str


@dataclass(frozen=True, slots=True)
class Row:
    """A mark that is a point; of a turn also the mark at which it was over."""

    mark: Mark
    end: Mark | None = None
    again: bool = False

    @property
    def idle(self) -> bool:
        """A turn that is over and changed nothing; a safety point where another point was set."""
        return self.again or (self.end is not None and self.end.snapshot == self.mark.snapshot)

    @property
    def status(self) -> Status | None:
        """The turn's end decides; but a begin that came late is worth more than an ok."""
        if self.end is None:
            return self.mark.status
        if self.end.kind != "turn-end":
            return "unknown"
        late = self.mark.status == "late" and self.end.status in (None, "ok")
        return "late" if late else self.end.status


def rows_of(marks: Iterable[Mark]) -> list[Row]:
    """Oldest first; a turn whose end is lost was over when the next of its session began."""
    rows: list[Row] = []
    running: dict[str | None, int] = {}
    last: Oid | None = None
    for mark in marks:
        again = mark.kind == "before-rollback" and mark.snapshot == last
        last = mark.snapshot
        if mark.kind in ("turn-begin", "turn-end"):
            at = running.pop(mark.session, None)
            if at is not None:
                rows[at] = replace(rows[at], end=mark)
        if mark.kind == "turn-begin":
            running[mark.session] = len(rows)
        if mark.kind != "turn-end":
            rows.append(Row(mark, again=again))
    return rows


class Timeline:
    """One workspace's history as it was when first asked for."""

    def __init__(self, store: Store, workspace: str) -> None:
        self.store = store
        self.workspace = workspace
        self.history = History(store, workspace)
        self.damage = self.history.damage
        self._book = CountBook(store)
        self._known: dict[Oid, Snapshot | None] = {}

    # What is there

    @cached_property
    def marks(self) -> list[Mark]:
        return list(self.history.marks())

    @cached_property
    def rows(self) -> list[Row]:
        return rows_of(self.marks)

    @cached_property
    def numbered(self) -> list[Row]:
        """The rows of the default list, newest first: the first is number 1."""
        return [row for row in reversed(self.rows) if not row.idle]

    @cached_property
    def snapshots(self) -> list[Snapshot]:
        return [found for found in map(self.snapshot, self._ids()) if found is not None]

    @cached_property
    def newest(self) -> Snapshot | None:
        """The newest complete snapshot."""
        found = map(self.snapshot, reversed(self._ids()))
        return next((one for one in found if one is not None and not one.partial), None)

    def snapshot(self, oid: Oid) -> Snapshot | None:
        """None if it is damaged, which is then said in `damage`, once."""
        if oid not in self._known:
            try:
                self._known[oid] = read_snapshot(self.store, oid)
            except Damaged as error:
                self.damage.append(error.message)
                self._known[oid] = None
        return self._known[oid]

    def _ids(self) -> list[Oid]:
        ids = self.history.snapshot_ids
        return [ids[seq] for seq in sorted(ids)]

    # Points

    def points(self, *, everything: bool = False) -> list[Point]:
        """Newest first; with everything also bursts and turns that changed nothing."""
        if not everything:
            return [self._point(row) for row in self.numbered]
        shown = {mark.snapshot for row in self.rows for mark in (row.mark, row.end) if mark}
        bare = [one for one in self.snapshots if one.id not in shown and not one.is_planned]
        bursts = [self._burst(one) for one in bare]
        points = [*map(self._point, self.rows), *bursts]
        return sorted(points, key=lambda point: point.seq, reverse=True)

    def pairs(self) -> list[tuple[Oid, Oid]]:
        """The files-trees whose differences the default list shows, newest first."""
        found = (self._trees(row) for row in self.numbered)
        return list(dict.fromkeys(pair for pair in found if pair and pair[0] != pair[1]))

    def _point(self, row: Row) -> Point:
        mark, end = row.mark, row.end
        return Point(
            n=self._numbers.get(mark.seq),
            id=mark.snapshot,
            seq=mark.seq,
            time_ns=mark.time_ns,
            kind=_KINDS[mark.kind],
            label=mark.label,
            session=mark.session,
            turn=mark.turn,
            turn_id=mark.turn_id,
            agent=mark.agent,
            status=row.status,
            end=end.snapshot if end else None,
            counts=self._counts(row),
            gaps=mark.gaps,
            pinned=mark.snapshot in self.history.pins,
            extra=mark.extra,
            by=self._by(row),
        )

    def _burst(self, snapshot: Snapshot) -> Point:
        return Point(
            n=None,
            id=snapshot.id,
            seq=snapshot.seq,
            time_ns=snapshot.time_ns,
            kind="burst",
            label=snapshot.note,
            counts=Counts(snapshot.changed),
            gaps=snapshot.gaps,
            pinned=snapshot.id in self.history.pins,
            by=self.maker(snapshot),
        )

    @cached_property
    def makers(self) -> Makers:
        return Makers(self.marks)

    def maker(self, snapshot: Snapshot) -> Maker:
        """Who made what a snapshot holds otherwise than the one before it."""
        return FOUND if snapshot.prev is None else self.makers.at(snapshot.seq)

    @cached_property
    def _seqs(self) -> dict[Oid, int]:
        return {oid: seq for seq, oid in self.history.snapshot_ids.items()}

    def _by(self, row: Row) -> Maker | None:
        """By the numbers alone: a listing does not read every snapshot in between."""
        here = self._seqs.get(row.mark.snapshot, row.mark.seq)
        if row.mark.kind == "turn-begin":
            end = row.end.seq if row.end else self.history.last_seq()
            return self._made(here, end)
        before = self._previous.get(row.mark.seq)
        if before is None or row.mark.kind == "import":
            return FOUND
        old = self._seqs.get(before.snapshot, before.seq)
        return self._made(old, here)

    def _made(self, old: int, new: int) -> Maker | None:
        """Of the snapshots after the old one until the new one."""
        here = self._ordered[bisect_right(self._ordered, old) : bisect_right(self._ordered, new)]
        return self.makers.of(here)

    @cached_property
    def _ordered(self) -> list[int]:
        return sorted(self.history.snapshot_ids)

    @cached_property
    def _numbers(self) -> dict[int, int]:
        return {row.mark.seq: n for n, row in enumerate(self.numbered, 1)}

    @cached_property
    def _previous(self) -> dict[int, Mark]:
        return {mark.seq: before for before, mark in pairwise(self.marks)}

    def _counts(self, row: Row) -> Counts | None:
        if row.mark.kind != "turn-begin" and row.mark.seq not in self._previous:
            first = self.snapshot(row.mark.snapshot)
            return Counts(first.total) if first else None
        trees = self._trees(row)
        if trees is None:
            return None
        return Counts(0, 0, 0) if trees[0] == trees[1] else self._book.get(*trees)

    def _trees(self, row: Row) -> tuple[Oid, Oid] | None:
        """From the begin of a turn to its end or to now; of other points from the one before."""
        here = self.snapshot(row.mark.snapshot)
        if row.mark.kind == "turn-begin":
            old, new = here, self.snapshot(row.end.snapshot) if row.end else self.newest
        else:
            before = self._previous.get(row.mark.seq)
            old, new = self.snapshot(before.snapshot) if before else None, here
        return (old.files, new.files) if old and new else None

    # The grammar of points

    def resolve(self, spec: str, now_ns: int) -> Target:
        """The snapshot that a user's word for a point means."""
        found = (
            self._by_number(spec)
            or self._by_turn(spec)
            or self._by_hash(spec)
            or self._by_time(spec, now_ns)
        )
        if found is None and spec == "baseline":
            found = self._baseline()
        if found is None:
            raise self._unknown(f"There is no point {spec!r}.")
        return found

    def _unknown(self, message: str) -> BadInput:
        count = len(self.numbered)
        there = {0: "There are no points yet", 1: "There is 1 point: `1`, or `@`"}.get(count)
        all_of_them = f"There are {count} points: `1` (the newest, also `@`) to `{count}`"
        return BadInput(message, f"{there or all_of_them}; see `turnmark list`.")

    def _by_number(self, spec: str) -> Target | None:
        newest = _NEWEST.fullmatch(spec)
        if newest is None and not _NUMBER.fullmatch(spec):
            return None
        number = int(newest[1] or 0) + 1 if newest else int(spec)
        if 1 <= number <= len(self.numbered):
            return self._at_row(self.numbered[number - 1])
        if newest is None and _HASH.fullmatch(spec):
            return None
        raise self._unknown(f"There is no point {spec}.")

    def _by_turn(self, spec: str) -> Target | None:
        scheme, colon, name = spec.partition(":")
        if scheme == "turn" and colon:
            return self._turn(spec, name, None)
        session, slash, name = spec.rpartition("/")
        return self._turn(spec, name, session) if slash and session else None

    def _turn(self, spec: str, name: str, session: str | None) -> Target:
        turns = [row for row in self.rows if row.mark.kind == "turn-begin"]
        wanted = name.removesuffix(".end")
        row = _find_turn(turns, wanted, session)
        if row is None:
            raise self._unknown(f"There is no point {spec!r}.")
        if wanted == name:
            return self._at_row(row)
        if row.end is None:
            raise BadInput(
                f"Turn {wanted} is still open: it has no end yet.",
                "`turnmark turn end` ends it; `@` is the newest point.",
            )
        return self._at_end(row, row.end)

    def _by_hash(self, spec: str) -> Target | None:
        if not _HASH.fullmatch(spec):
            return None
        prefix = spec.lower()
        tagged = [mark for mark in self.marks if mark.id.hex().startswith(prefix)]
        commits = {oid for oid in self._commits() if oid.hex().startswith(prefix)}
        meant = commits | {mark.snapshot for mark in tagged}
        if len(meant) > 1:
            raise self._ambiguous(spec, meant)
        if commits:
            return self._at_commit(meant.pop())
        if tagged:
            return self._at_mark(tagged[-1])
        self._refuse_foreign(spec, prefix)
        return None

    def _commits(self) -> set[Oid]:
        return {mark.snapshot for mark in self.marks} | set(self.history.snapshot_ids.values())

    def _ambiguous(self, spec: str, meant: set[Oid]) -> BadInput:
        lines = [self._candidate(oid) for oid in sorted(meant)]
        return BadInput(f"{spec} could be {'; '.join(lines)}.", "Give more characters of one.")

    def _candidate(self, oid: Oid) -> str:
        found = self.snapshot(oid)
        return f"{oid.hex()} ({rfc3339(found.time_ns) if found else 'damaged'})"

    def _refuse_foreign(self, spec: str, prefix: str) -> None:
        for other in workspaces(self.store):
            history = History(self.store, other) if other != self.workspace else None
            if history is None:
                continue
            ids = (*history.snapshot_ids.values(), *history.mark_ids.values())
            if any(oid.hex().startswith(prefix) for oid in ids):
                raise BadInput(
                    f"{spec} is a point of another workspace, {root_shown(self.store, other)}.",
                    "Name that directory, or change to it.",
                )

    def _by_time(self, spec: str, now_ns: int) -> Target | None:
        moment = moment_of(spec, now_ns)
        if moment is None:
            return None
        whole = (one for one in self.snapshots if not one.partial)
        states: list[Mark | Snapshot] = [*self.marks, *whole]
        before = [state for state in states if state.time_ns <= moment]
        clocks = (now_ns, *(state.time_ns for state in states))  # one may have run ahead
        if moment - _slack(spec) > max(clocks):
            raise self._unknown(f"{spec} is yet to come.")
        if not before:
            raise self._unknown(f"Nothing was recorded at or before {spec}.")
        newest = max(before, key=lambda state: state.seq)
        return self._at_mark(newest) if isinstance(newest, Mark) else self._at_burst(newest)

    def _baseline(self) -> Target | None:
        marks = [row for row in self.rows if row.mark.kind == "baseline"]
        if marks:
            return self._at_row(marks[-1])
        whole = (one for one in self.snapshots if not one.partial)
        oldest = next(whole, None)
        return self._at_commit(oldest.id) if oldest else None

    # From what was found to a target

    def _at_row(self, row: Row) -> Target:
        point = self._point(row)
        return Target(point.id, point.seq, point, _label(point))

    def _at_end(self, row: Row, end: Mark) -> Target:
        point = self._point(row)
        return Target(end.snapshot, end.seq, point, f"the end of {_label(point)}")

    def _at_mark(self, mark: Mark) -> Target:
        for row in self.rows:
            if row.mark.seq == mark.seq:
                return self._at_row(row)
        for row in self.rows:
            if row.end is not None and row.end.seq == mark.seq:
                return self._at_end(row, mark)
        return Target(mark.snapshot, mark.seq, None, f"the end of turn {mark.turn}")

    def _at_commit(self, oid: Oid) -> Target:
        for mark in reversed(self.marks):
            if mark.snapshot == oid:
                return self._at_mark(mark)
        return self._at_burst(read_snapshot(self.store, oid))

    def _at_burst(self, snapshot: Snapshot) -> Target:
        point = self._burst(snapshot)
        return Target(snapshot.id, snapshot.seq, point, _label(point))


def _find_turn(turns: list[Row], name: str, session: str | None) -> Row | None:
    """By ordinal, else by the agent's id; of the session that was last active, unless named."""
    latest = {row.mark.session: row.mark.seq for row in turns}
    of_session = [row for row in turns if session is None or row.mark.session == session]
    by_age = sorted(of_session, key=lambda row: (latest[row.mark.session], row.mark.seq))
    ordinals = (row for row in reversed(by_age) if str(row.mark.turn) == name)
    ids = (row for row in reversed(by_age) if row.mark.turn_id == name)
    return next(ordinals, None) or next(ids, None)


def moment_of(spec: str, now_ns: int) -> int | None:
    """The instant that an age, an ISO time or a time of the day names; the last one of these."""
    age = _AGE.fullmatch(spec)
    if age:
        return now_ns - int(age[1]) * _UNITS[age[2]] * 1_000_000_000
    if spec.isdecimal():  # the basic form of a date looks like a number, and is one here
        return None
    try:
        moment = _last(spec, now_ns) if _CLOCK.fullmatch(spec) else datetime.fromisoformat(spec)
        since = (moment if moment.tzinfo else moment.astimezone()) - _EPOCH
    except (ValueError, OverflowError, OSError):
        return None
    return since // timedelta(microseconds=1) * 1000 + _slack(spec)


def _last(clock: str, now_ns: int) -> datetime:
    """Today's, or yesterday's where it is not so late yet."""
    now = datetime.fromtimestamp(now_ns / 1e9).astimezone()
    today = datetime.combine(now.date(), time.fromisoformat(clock)).astimezone()
    return today if today <= now else (today.replace(tzinfo=None) - timedelta(1)).astimezone()


def _slack(spec: str) -> int:
    """What a written fraction leaves open: our own times are cut to milliseconds, and the state
    that one of them names must not be newer than it."""
    fraction = _FRACTION.search(spec)
    return 10 ** (9 - min(len(fraction[1]), 6)) - 1 if fraction else 0


def _label(point: Point) -> str:
    """Short words for messages."""
    if point.n is not None:
        name = f"point {point.n}"
    elif point.kind == "turn":
        name = f"turn {point.turn}"
    else:
        name = f"snapshot {point.id.hex()[:SHORT]}"
    if point.label:
        text = point.label if len(point.label) <= 60 else point.label[:59] + "…"
        return f'{name}, "{text}"'
    return name if point.kind in ("turn", "burst") else f"{name} ({point.kind})"


def registered(store: Store) -> Iterator[tuple[str, str]]:
    """Id and root of every workspace that has a register or a history."""
    with store.disk.scandir(f"{store.base}/turnmark/workspaces") as found:
        known = {entry.name[:-5] for entry in found if entry.name.endswith(".json")}
    for workspace in sorted(known | set(workspaces(store))):
        yield workspace, root_shown(store, workspace)
