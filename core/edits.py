"""Which paths were changed between two snapshots, or until now, and by whom.

Knows the history of one workspace, and is told how to read the state of a snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain, groupby

from .attribution import PERSON, UNKNOWN, Interval, Makers, by_path, intervals
from .history import History, read_snapshot
from .model import Maker, Mark, Oid, RelPath, Snapshot, nearest_in
from .plan import Node, State, changed_among, changed_paths


class Covered:
    """Owns what paths held before they were left out: that they are not held for a while, and held
    again as they were, is no change of theirs. To be asked of every interval, in order of time."""

    def __init__(self) -> None:
        self._held: dict[RelPath, Node | None] = {}

    def besides(self, old: State, new: State, differing: Iterable[RelPath]) -> Iterator[RelPath]:
        for path in differing:
            if new.leaves_out(path):
                self._held.setdefault(path, old.node_at(path))
            elif not old.leaves_out(path) or path not in self._held:
                yield path
        for path in [path for path in self._held if not new.leaves_out(path)]:
            if self._held.pop(path) != new.node_at(path):
                yield path


@dataclass
class Edits:
    """One workspace's history, as it was when first asked for; `now` is how it is, if known."""

    history: History
    state_of: Callable[[Snapshot], State]
    now: State | None = None
    marks: Sequence[Mark] | None = None
    """Where they were read already."""
    _alike: dict[Oid, State] = field(default_factory=dict)

    @cached_property
    def makers(self) -> Makers:
        return Makers(list(self.history.marks()) if self.marks is None else self.marks)

    def by_path(self, since: Oid, until: Oid | None) -> dict[RelPath, tuple[Maker, ...]]:
        """Who changed each path, in order of time; from the older to the newer of the two."""
        old, new = self._seq(since), self._seq(until) if until else None
        if new is not None and new < old:
            old, new = new, old
        return by_path(self._between(old, new), partial(self._differing, Covered()))

    def by_no_agent(self, since: Oid, among: Collection[RelPath]) -> dict[RelPath, Maker]:
        """Which of the paths the person changed from a snapshot until now, or nobody knows who.

        What was changed and changed back in one go counts as unchanged, and costs nothing.
        """
        found: dict[RelPath, Maker] = {}
        runs = list(self._runs(self._seq(since))) if among else []
        hidden = self._ever_left_out(runs, among)
        plain = self._changed_plainly(runs, [one for one in among if one not in hidden])
        others = ((one, maker) for one in hidden for maker in self._makers_of(one, runs))
        for path, maker in chain(plain, others):
            if maker.may_be_person:
                known = found.setdefault(path, maker)
                found[path] = PERSON if PERSON in (known, maker) else known
        return found

    def _changed_plainly(
        self, runs: Iterable[Interval], among: Collection[RelPath]
    ) -> Iterator[tuple[RelPath, Maker]]:
        for one in runs:
            if one.maker.may_be_person:  # what agents did need not be read
                old, new = self._span_state(one.old), self._span_state(one.new)
                for path in changed_among(old, new, among) if old and new else ():
                    yield path, one.maker

    def _ever_left_out(self, runs: list[Interval], among: Collection[RelPath]) -> set[RelPath]:
        ends = [*(one.old for one in runs[:1]), *(one.new for one in runs)]
        gaps: set[RelPath] = set()
        for state in {id(s.about): s for s in map(self._span_state, ends) if s}.values():
            gaps.update(state.about.gaps)
        return {path for path in among if nearest_in(gaps, path) is not None}

    def _makers_of(self, path: RelPath, runs: list[Interval]) -> Iterator[Maker]:
        """Of the changes of a path that was left out at times: what happened meanwhile may be
        anybody's who was at work then."""
        first = self._span_state(runs[0].old)
        held: list[Node | None] = []
        if first is not None and not first.leaves_out(path):
            held = [first.node_at(path)]
        meanwhile: list[Maker] = []
        for one in runs:
            meanwhile.append(one.maker)
            state = self._span_state(one.new)
            if state is None or state.leaves_out(path):
                continue
            now = [state.node_at(path)]
            if held and held != now:
                yield meanwhile[0] if len(set(meanwhile)) == 1 else UNKNOWN
            held, meanwhile = now, []

    def _runs(self, since: int) -> Iterator[Interval]:
        """The times of each maker as one, however many snapshots it has, and the last of them until
        now: a snapshot that is taken meanwhile changes nothing."""
        ids, before = self.history.snapshot_ids, None
        numbers = [seq for seq in sorted(ids) if seq >= since]
        runs = [(maker, list(run)) for (maker, _), run in groupby(numbers, key=self._at_once)]
        now = self.makers.now
        for place, (maker, seqs) in enumerate(runs, 1):
            run = [ids[seq] for seq in seqs]
            before = before or self._first_whole(run)
            if place == len(runs) and maker == now != UNKNOWN:
                break
            after = self._first_whole(reversed(run))
            if before and after and before != after:
                yield Interval(before, after, maker)
            before = after or before
        if before:
            yield Interval(before, None, now)

    def _at_once(self, seq: int) -> tuple[Maker, int]:
        """What nobody knows the maker of may be several makers': each snapshot on its own."""
        maker = self.makers.at(seq)
        return maker, seq if maker == UNKNOWN else 0

    def _first_whole(self, ids: Iterable[Oid]) -> Oid | None:
        store = self.history.store
        return next((oid for oid in ids if not read_snapshot(store, oid).partial), None)

    def _seq(self, oid: Oid) -> int:
        return read_snapshot(self.history.store, oid).seq

    def _between(self, old: int, new: int | None) -> list[Interval]:
        return intervals(self.makers, self._whole(old, new), old, new)

    def _whole(self, old: int, new: int | None) -> dict[int, Oid]:
        """The complete snapshots; the others hold a few paths and say nothing of the rest."""
        ids = self.history.snapshot_ids
        asked = {n: oid for n, oid in ids.items() if old <= n and (new is None or n <= new)}
        store = self.history.store
        return {n: oid for n, oid in asked.items() if not read_snapshot(store, oid).partial}

    def _differing(self, covered: Covered, old: Oid, new: Oid | None) -> Iterable[RelPath]:
        before, after = self._state(old), self._state(new)
        if before is None or after is None:
            return ()
        return covered.besides(before, after, changed_paths(before, after))

    def _span_state(self, oid: Oid | None) -> State | None:
        """Of many states most are alike but for their files, and share what is read of them."""
        if oid is None:
            return self.now
        snapshot = read_snapshot(self.history.store, oid)
        if snapshot.about not in self._alike:
            self._alike[snapshot.about] = self.state_of(snapshot).reading_once()
        return replace(self._alike[snapshot.about], files=snapshot.files)

    def _state(self, oid: Oid | None) -> State | None:
        if oid is None:
            return self.now
        return self.state_of(read_snapshot(self.history.store, oid))
