"""When a burst is over, and that nothing is lost while it lasts."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.model import ROOT, RelPath, is_within
from watcher import burst
from watcher.burst import MANY_IN_ALL, MANY_IN_ONE_DIRECTORY, Burst, Dirty

QUIET, LONGEST = 0.2, 2.0


def files(*names: str) -> Dirty:
    return Dirty(frozenset(RelPath(name.encode()) for name in names))


def trees(*names: str) -> Dirty:
    return Dirty(trees=frozenset(RelPath(name.encode()) for name in names))


@pytest.mark.parametrize(
    ("added", "due"),
    [
        ([], None),
        ([10.0], 10.2),
        ([10.0, 10.1], 10.3),
        ([10.0, 10.1, 10.25, 10.4], 10.6),
        ([10.0, 11.9], 12.0),
        ([10.0, 11.0, 11.7, 11.81], 12.0),
        ([10.0, 5.0], 10.2),
    ],
)
def test_a_burst_is_over_after_quiet_or_the_longest_wait(
    added: list[float], due: float | None
) -> None:
    burst = Burst(QUIET, LONGEST)
    for now in added:
        burst.add(files("a"), now)
    assert burst.due() == (None if due is None else pytest.approx(due))


def test_a_writer_that_never_pauses_gets_a_burst_every_longest() -> None:
    burst, taken = Burst(QUIET, LONGEST), []
    for tick in range(1000):
        now = tick / 100
        burst.add(files("a"), now)
        due = burst.due()
        assert due is not None
        if now >= due:
            burst.take()
            taken.append(now)
    gaps = [after - before for before, after in pairwise(taken)]
    assert len(taken) == 4
    assert all(gap == pytest.approx(LONGEST, abs=0.02) for gap in gaps)


def test_nothing_new_neither_opens_nor_prolongs_a_burst() -> None:
    burst = Burst(QUIET, LONGEST)
    burst.add(Dirty(), 1.0)
    assert burst.due() is None
    burst.add(files("a"), 2.0)
    burst.add(Dirty(), 2.1)
    assert burst.due() == pytest.approx(2.2)


def test_what_was_taken_is_gone_and_the_next_burst_has_its_own_clock() -> None:
    burst = Burst(QUIET, LONGEST)
    burst.add(files("a"), 1.0)
    assert burst.take() == files("a")
    assert (burst.due(), len(burst)) == (None, 0)
    burst.add(files("b"), 9.0)
    assert burst.due() == pytest.approx(9.2)
    assert burst.take() == files("b")


def test_a_crowded_directory_is_looked_at_as_one() -> None:
    crowd = [f"crowd/f{n}" for n in range(MANY_IN_ONE_DIRECTORY + 1)]
    paths = files(*crowd, "crowd/inner/deep", "else/g").paths()
    assert paths == [b"crowd", b"else/g"]
    assert files(*crowd[1:]).paths() == sorted(name.encode() for name in crowd[1:])


def test_a_crowded_root_is_a_full_look() -> None:
    assert files(*(f"f{n}" for n in range(MANY_IN_ONE_DIRECTORY + 1))).paths() is None


@pytest.mark.parametrize(
    "dirty", [Dirty(lost=True), Dirty(trees=frozenset({ROOT})), files("a") | Dirty(lost=True)]
)
def test_lost_or_the_root_itself_is_a_full_look(dirty: Dirty) -> None:
    assert dirty.paths() is None


def test_a_tree_takes_in_what_lies_below_it() -> None:
    dirty = files("d/x", "d/e/y", "dd/z") | trees("d", "d/e")
    assert dirty.paths() == [b"d", b"dd/z"]


def test_too_much_to_remember_is_a_full_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(burst, "MANY_IN_ALL", 10)
    waiting = Burst(QUIET, LONGEST)
    waiting.add(files(*(f"d/{n}" for n in range(8))), 1.0)
    waiting.add(trees("e", "f", "g"), 1.0)
    assert len(waiting) == 1
    assert waiting.take() == Dirty(lost=True)


def test_twenty_thousand_new_directories_are_sorted_out_at_once() -> None:
    dirty = trees(*(f"d{n % 40}/e{n}" for n in range(20_000)))
    paths = dirty.paths()
    assert paths is not None
    assert len(paths) == 20_000 < MANY_IN_ALL


NAMES = st.sampled_from([b"a", b"b", b"c", b"long name", b"\xff"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map(lambda names: RelPath(b"/".join(names)))
DIRTY = st.builds(
    Dirty, st.frozensets(PATHS, max_size=9), st.frozensets(PATHS | st.just(ROOT), max_size=3)
)


def covered(path: RelPath, paths: list[RelPath] | None) -> bool:
    return paths is None or any(is_within(path, top) for top in paths)


@given(steps=st.lists(st.tuples(DIRTY, st.floats(0, 5), st.booleans())), crowd=st.integers(0, 4))
def test_no_path_is_ever_lost_between_add_and_take(
    steps: list[tuple[Dirty, float, bool]], crowd: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(burst, "MANY_IN_ONE_DIRECTORY", crowd)
        patch.setattr(burst, "MANY_IN_ALL", 20)
        waiting, added, now = Burst(QUIET, LONGEST), Dirty(), 0.0
        for dirty, later, take in steps:
            now += later
            waiting.add(dirty, now)
            added |= dirty
            assert (waiting.due() is None) == (not added)
            if take:
                paths = waiting.take().paths()
                assert all(covered(path, paths) for path in added.files | added.trees)
                added = Dirty()
