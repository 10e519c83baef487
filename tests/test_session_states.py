"""Two agents, a person, reverts, rollbacks, undos, redos and pruning in any order, against a model.

The model is plain: trees as they were, who had been at work in between, and what undo brings back.
Nothing that was in a snapshot or on disk before an operation may be out of reach after it.

`TURNMARK_DEEP=1 pytest tests/test_session_states.py` runs far more of it.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core.diff import files_of
from core.history import MarkSpec, read_snapshot
from core.keeping import Policy
from core.model import Oid, RelPath
from core.objects import hash_object
from core.plan import MINE
from core.retention import prune
from core.revert import Wish, preview_revert, revert, wish_for
from core.rollback import Request, Result, preview, redo_request, rollback, undo_request
from core.timeline import Timeline
from core.turns import begin, end
from core.undo import replay
from core.without import Side
from tests.scribbling import scribble
from tests.stores import Bench, fsck
from tests.test_states import with_path_of
from tests.trees import Image, image

DEEP = bool(os.environ.get("TURNMARK_DEEP"))
SESSIONS = ("s", "t")
SIDES: tuple[Side, ...] = ("", "markers", "mine", "theirs")

dice = st.randoms(use_true_random=False)
sessions = st.sampled_from(SESSIONS)


@dataclass(frozen=True)
class Stretch:
    """From one look to the next: the tree after it, and whether the person alone was at work."""

    seq: int
    tree: Image
    by_person: bool


@dataclass(frozen=True)
class Back:
    """What an undo, or a redo, leads to; of a single path only that."""

    tree: Image
    top: RelPath | None = None


class Sessions(RuleBasedStateMachine):
    """The model is what this owns beside the bench; every rule holds the real thing against it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="turnmark-sessions-"))
        self.bench = Bench(self.base)
        self.bench.reopen()
        self.stretches: list[Stretch] = []
        self.running: set[str] = set()
        self.undos: list[Back] = []
        self.redos: list[Back] = []
        self.pruned = 0
        """So many stretches lie before the last pruning, of which not all is known any more."""
        self._blobs: dict[Oid, frozenset[Oid]] = {}

    @initialize(dice=dice)
    def first(self, dice: random.Random) -> None:
        scribble(dice, self.bench.path)
        taken = self.bench.recorder.take(mark=MarkSpec("baseline"), sync=False)
        self.stretches.append(Stretch(taken.snapshot.seq, self.here(), False))

    def here(self) -> Image:
        return image(self.bench.path)

    # Edits and marks

    @rule(dice=dice)
    def somebody_edits(self, dice: random.Random) -> None:
        """The agents whose turns are open; where there is none, the person."""
        scribble(dice, self.bench.path)

    @rule()
    def burst(self) -> None:
        with self.looking():
            self.bench.recorder.take(sync=False)

    @rule()
    def mark(self) -> None:
        with self.looking():
            self.bench.point()

    @rule(session=sessions)
    def turn_begins(self, session: str) -> None:
        with self.looking():
            begin(self.bench.recorder, session, sync=False)
        self.running.add(session)

    @rule(session=sessions)
    def turn_ends(self, session: str) -> None:
        if session in self.running:
            with self.looking():
                end(self.bench.recorder, session, sync=False)
            self.running.remove(session)

    @contextmanager
    def looking(self) -> Iterator[None]:
        self.look()
        yield

    def look(self, *, by_person: bool | None = None) -> None:
        """Whatever is about to be done looks first; what it finds, those at work have made."""
        person = not self.running if by_person is None else by_person
        taken = self.bench.recorder.take(sync=False)
        self.stretches.append(Stretch(taken.snapshot.seq, self.here(), person))

    # Operations

    @contextmanager
    def operation(self) -> Iterator[None]:
        """Everything that could be had before can be had after it."""
        self.look()
        before = self.reachable()
        disk = {hash_object("blob", data) for data in _contents(self.here())}
        yield
        assert disk <= before
        assert before <= self.reachable()
        self.look(by_person=False)

    def reachable(self) -> set[Oid]:
        history = self.bench.history()
        found: set[Oid] = set()
        for oid in history.snapshot_ids.values():
            if oid not in self._blobs:
                files = read_snapshot(self.bench.store, oid).files
                entries = files_of(self.bench.store.tree, files)
                self._blobs[oid] = frozenset(entry.oid for _, entry in entries)
            found |= self._blobs[oid]
        return found

    @rule(data=st.data(), side=st.sampled_from(SIDES))
    def take_out(self, data: st.DataObject, side: Side) -> None:
        wish = self.some_wish(data)
        if wish is None:
            return
        with self.operation():
            before = self.here()
            wish = replace(wish, side=side)
            shown = preview_revert(self.bench.recorder, wish)
            assert self.here() == before
            done = revert(self.bench.recorder, replace(wish, plan=shown.plan.hash))
            self.check_as_shown(shown, done)
            if done.outcome == "done":
                self.check_taken_out(wish, before, done)
                self.undos.append(Back(before))
                self.redos.clear()
            else:
                assert self.here() == before
            assert done.outcome != "refused"

    def some_wish(self, data: st.DataObject) -> Wish | None:
        timeline = Timeline(self.bench.store, self.bench.root.id)
        marks = [row.mark for row in timeline.rows if row.mark.kind == "turn-begin"]
        if not marks:
            return None
        if data.draw(st.integers(0, 3)) == 0:
            session = data.draw(st.sampled_from(sorted({str(m.session) for m in marks})))
            return wish_for(timeline, [], session, time.time_ns())
        few = st.lists(st.sampled_from(range(len(marks))), min_size=1, max_size=3, unique=True)
        names = [f"{marks[n].session}/{marks[n].turn}" for n in data.draw(few)]
        return wish_for(timeline, names, None, time.time_ns())

    def check_as_shown(self, shown: Result, done: Result) -> None:
        assert done.plan.hash == shown.plan.hash
        assert (done.kept, done.marked) == (shown.kept, shown.marked)
        assert done.conflicts == shown.conflicts
        assert (shown.outcome == "planned") == (done.outcome == "done")

    def check_taken_out(self, wish: Wish, before: Image, done: Result) -> None:
        """What no turn of them changed is as it was; what is as its turn left it is gone."""
        after = self.here()
        if len(wish.turns) > 1:
            return
        (turn,) = wish.turns
        begun, ended = self.stored(turn.id), self.stored(turn.end) if turn.end else before
        left = {one.path for one in (*done.kept, *done.marked)}
        for path in before.keys() | after.keys() | begun.keys() | ended.keys():
            was, shall = ended.get(path), begun.get(path)
            kinds = {leaf[0] for leaf in (was, shall, before.get(path)) if leaf}
            if "dir" in kinds or path in left:
                continue  # where directories come and go, neighbours count
            if was == shall:
                assert after.get(path) == before.get(path)
            elif before.get(path) == was and not _is_displaced(path, begun, before):
                assert after.get(path) == shall

    def stored(self, oid: Oid) -> Image:
        """The tree of a snapshot, by the model where it knows it: else it was pruned."""
        seq = read_snapshot(self.bench.store, oid).seq
        return next(one.tree for one in reversed(self.stretches) if one.seq == seq)

    def request(self, one: Stretch, *tops: RelPath, stays: bool = False) -> Request:
        oid = self.bench.history().snapshot_ids[one.seq]
        return Request(oid, one.seq, "p", paths=tops, mine_stays=stays)

    def some_state(self, data: st.DataObject) -> Stretch:
        kept = self.bench.history().snapshot_ids
        return data.draw(st.sampled_from([one for one in self.stretches if one.seq in kept]))

    @rule(data=st.data())
    def go_back(self, data: st.DataObject) -> None:
        with self.operation():
            one, before = self.some_state(data), self.here()
            done = self.bench.go(self.request(one))
            assert (done.conflicts, done.kept, self.here()) == ((), (), one.tree)
            self.note(done, Back(before))

    @rule(data=st.data())
    def go_back_of_a_path(self, data: st.DataObject) -> None:
        one, before = self.some_state(data), self.here()
        every = sorted(one.tree.keys() | before.keys())
        if not every:
            return
        top = RelPath(data.draw(st.sampled_from(every)))
        want = with_path_of(before, one.tree, top)
        if want is None:
            return  # something above it is no directory: a conflict, not for this model
        with self.operation():
            done = self.bench.go(self.request(one, top))
            assert (done.conflicts, done.kept, self.here()) == ((), (), want)
            self.note(done, Back(before, top))

    @rule(data=st.data())
    def go_back_but_mine_stays(self, data: st.DataObject) -> None:
        with self.operation():
            one, before = self.some_state(data), self.here()
            mine = self.changed_by_person(one)
            request = self.request(one, stays=True)
            shown = preview(self.bench.recorder, request)
            done = rollback(self.bench.recorder, replace(request, plan=shown.plan.hash))
            after = self.here()
            assert not done.conflicts
            assert {left.path for left in done.kept if left.reason == MINE} <= mine | {
                path for path in one.tree if any(_is_in(path, top) for top in mine)
            }
            known = self.place_of(one) >= self.pruned - 1
            for path in mine if known else ():
                plain = "dir" not in _kinds(path, before, one)
                if plain and before.get(path) != one.tree.get(path):
                    assert after.get(path) == before.get(path)
            kept = [left.path for left in done.kept]
            for path in after.keys() | one.tree.keys():
                if after.get(path) != one.tree.get(path):
                    assert any(_is_in(left, path) or _is_in(path, left) for left in kept)
            self.note(done, Back(before))

    def place_of(self, one: Stretch) -> int:
        return max(n for n, other in enumerate(self.stretches) if other.seq == one.seq)

    def changed_by_person(self, since: Stretch) -> set[bytes]:
        """Stretches of the person that follow each other count as one."""
        first = self.place_of(since)
        found: set[bytes] = set()
        old = self.stretches[first].tree
        for by_person, run in groupby(self.stretches[first + 1 :], lambda one: one.by_person):
            *_, last = run
            if by_person:
                every = old.keys() | last.tree.keys()
                found |= {path for path in every if old.get(path) != last.tree.get(path)}
            old = last.tree
        return found

    def note(self, done: Result, back: Back) -> None:
        if done.outcome == "done":
            self.undos.append(back)
            self.redos.clear()

    @precondition(lambda self: self.undos)
    @rule()
    def undo(self) -> None:
        with self.operation():
            self.one_undo()

    @precondition(lambda self: self.redos)
    @rule()
    def redo(self) -> None:
        with self.operation():
            self.one_redo()

    def one_undo(self) -> bool:
        request = undo_request(self.bench.store, self.bench.root.id)
        return self.one_back(request, self.undos, self.redos)

    def one_redo(self) -> bool:
        request = redo_request(self.bench.store, self.bench.root.id)
        return self.one_back(request, self.redos, self.undos)

    def one_back(self, request: Request | None, take: list[Back], give: list[Back]) -> bool:
        assert request is not None
        before, back = self.here(), take[-1]
        want: Image | None = back.tree
        if back.top is not None:
            assert request.paths == (back.top,)
            want = with_path_of(before, back.tree, back.top)
        if want is None:  # something above it is no directory
            return False
        take.pop()
        give.append(Back(before, back.top))
        done = self.bench.go(request)
        assert (done.conflicts, done.kept, self.here()) == ((), (), want)
        return True

    @precondition(lambda self: len(self.undos) > 1)
    @rule(times=st.integers(2, 6))
    def there_and_back(self, times: int) -> None:
        """So many undos and as many redos change nothing."""
        times = min(times, len(self.undos))
        if any(back.top is not None for back in self.undos[-times:]):
            return  # what single paths need of their directories may differ
        with self.operation():
            before = self.here()
            for _ in range(times):
                assert self.one_undo()
            for _ in range(times):
                assert self.one_redo()
            assert self.here() == before

    # Troubles

    @rule(most=st.integers(1, 6))
    def prune(self, most: int) -> None:
        """Old points go; whatever is left can still be gone back to, and undo knows how far."""
        self.look()
        self.bench.close()
        self.pruned = len(self.stretches)
        limits = Policy(max_points=most, burst_hours=0, burst_turns=0)
        assert not prune(self.bench.store, limits, now_ns=time.time_ns()).errors
        self.bench.reopen()
        found = replay(self.bench.history().marks())
        assert len(found.undo) <= len(self.undos)
        assert len(found.redo) <= len(self.redos)
        self.undos = self.undos[len(self.undos) - len(found.undo) :]
        self.redos = self.redos[len(self.redos) - len(found.redo) :]
        for past, _ in (*found.undo, *found.redo):
            read_snapshot(self.bench.store, past.before)
        self.look(by_person=False)

    @rule()
    def reopen(self) -> None:
        self.bench.reopen()

    @invariant()
    def nothing_is_left_behind(self) -> None:
        assert not [n for n in os.listdir(self.bench.path) if n.startswith(".turnmark")]
        assert os.listdir(f"{self.bench.store.base}/turnmark/journal") == []

    def teardown(self) -> None:
        try:
            fsck(self.bench.store.base)
        finally:
            self.bench.close()
            shutil.rmtree(self.base)


def _contents(tree: Image) -> set[bytes]:
    return {leaf[-1] for leaf in tree.values() if leaf[0] == "file"}  # type: ignore[misc]


def _is_in(path: bytes, top: bytes) -> bool:
    return path == top or path.startswith(top + b"/")


def _kinds(path: bytes, before: Image, one: Stretch) -> set[object]:
    """Of what is and was there, and above it."""
    tops = [path]
    while tops[-1]:
        tops.append(tops[-1].rpartition(b"/")[0])
    leaves = [tree.get(tops[0]) for tree in (before, one.tree)]
    above = [tree.get(top) for tree in (before, one.tree) for top in tops[1:-1]]
    blocked = {"dir" for leaf in above if leaf is None or leaf[0] != "dir"}
    return {leaf[0] for leaf in leaves if leaf} | blocked


def _is_displaced(path: bytes, begun: Image, before: Image) -> bool:
    """Whether a directory that it needs is something else now, or the other way round."""
    while path := path.rpartition(b"/")[0]:
        if begun.get(path, ("dir",))[0] != "dir" or before.get(path, ("dir",))[0] != "dir":
            return True
    return False


TestSessions = Sessions.TestCase
TestSessions.settings = settings(
    max_examples=int(os.environ.get("TURNMARK_EXAMPLES", "400")) if DEEP else 12,
    stateful_step_count=50 if DEEP else 25,
)
