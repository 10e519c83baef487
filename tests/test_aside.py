"""Errands end before anything that they use is closed, and their errors reach whoever waits."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from functools import partial

import pytest

from core import aside
from tests.watching import until


def fails() -> None:
    raise IndexError("what it is about")


needs_affinity = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="this system does not say where a thread may run"
)


@pytest.fixture
def affinity() -> Iterator[set[int]]:
    """Of this thread, which may be changed; it is put back."""
    before = os.sched_getaffinity(0)
    yield before
    os.sched_setaffinity(0, before)


def test_an_errand_brings_what_was_found() -> None:
    errand = aside.begin(threading.get_ident)
    assert errand.result() != threading.get_ident()
    assert errand.has_ended
    assert errand.result() == errand.result()


def test_an_errand_brings_its_error_to_whoever_waits() -> None:
    errand = aside.begin(fails)
    errand.wait()
    with pytest.raises(IndexError):
        errand.result()


def test_the_next_errand_is_run_after_one_that_failed() -> None:
    aside.begin(fails).wait()
    assert aside.begin(lambda: 5).result() == 5


def test_who_is_interrupted_waits_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        """A lock of which the first waiting is interrupted."""

        def __init__(self, lock: threading.Lock) -> None:
            self.lock, self.asked = lock, 0

        def __enter__(self) -> None:
            self.asked += 1
            if self.asked == 1:
                go.set()
                raise KeyboardInterrupt
            self.lock.acquire()

        def __exit__(self, *_: object) -> None:
            self.lock.release()

        def __getattr__(self, name: str) -> object:
            return getattr(self.lock, name)

    go = threading.Event()
    errand = aside.Errand(lambda: go.wait(60))
    monkeypatch.setattr(errand, "_running", Interrupted(errand._running))
    thread = threading.Thread(target=errand.run)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        errand.wait()
    assert errand.has_ended
    assert errand.result()
    thread.join()


def test_an_errand_that_is_cancelled_is_not_begun() -> None:
    done: list[int] = []
    errand = aside.Errand(lambda: done.append(1))
    errand.cancel()
    errand.run()
    errand.wait()
    assert done == []


def test_an_errand_under_way_cannot_be_cancelled() -> None:
    begun, go = threading.Event(), threading.Event()

    def work() -> str:
        begun.set()
        assert go.wait(60)
        return "done"

    errand = aside.begin(work)
    assert begun.wait(60)
    errand.cancel()
    assert not errand.has_ended
    go.set()
    assert errand.result() == "done"


def test_of_errands_that_are_left_in_a_hurry_none_is_begun_any_more() -> None:
    begun, go, done = threading.Event(), threading.Event(), []

    def work(number: int) -> None:
        begun.set()
        assert go.wait(60)
        done.append(number)

    def hurry() -> None:
        with aside.Errands() as errands:
            for number in range(5):
                errands.begin(partial(work, number))
            assert begun.wait(60)
            threading.Timer(0.01, go.set).start()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hurry()
    assert done == [0]
    aside.begin(lambda: None).wait()
    assert done == [0]


@pytest.mark.parametrize("crew", ["_to_one", "_to_any"])
def test_an_errand_that_was_never_handed_over_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch, crew: str
) -> None:
    def interrupted(errand: object) -> None:
        raise KeyboardInterrupt

    def hand_over() -> None:
        with aside.Errands() as errands:
            (errands.begin if crew == "_to_one" else errands.later)(fails)

    monkeypatch.setattr(aside, crew, interrupted)
    with pytest.raises(KeyboardInterrupt):
        hand_over()


def test_errands_are_settled_oldest_first_and_raise_what_failed() -> None:
    done: list[str] = []
    with aside.Errands() as errands:
        errands.begin(lambda: done.append("first"))
        errands.begin(lambda: done.append("second"))
        errands.settle(left=1)
        assert done[:1] == ["first"]
        errands.settle()
        assert done == ["first", "second"]
        errands.begin(fails)
        with pytest.raises(IndexError):
            errands.settle()


def test_side_by_side_all_have_ended_when_an_error_is_raised() -> None:
    go, ended = threading.Event(), []

    def slow() -> None:
        assert go.wait(60)
        ended.append("slow")

    def failing() -> None:
        go.set()
        raise OSError("the first of them")

    with pytest.raises(OSError, match="the first of them"):
        aside.side_by_side([failing, slow, slow])
    assert ended == ["slow", "slow"]


def test_side_by_side_nothing_is_nothing() -> None:
    aside.side_by_side([])


@needs_affinity
def test_an_errand_is_sent_to_another_processor_than_the_askers(affinity: set[int]) -> None:
    if len(affinity) < 2:
        pytest.skip("there is one processor only")
    here = min(affinity)
    os.sched_setaffinity(0, {here, max(affinity)})
    errand = aside.begin(lambda: os.sched_getaffinity(0))
    until(lambda: errand.has_ended)
    where = errand.result()
    assert len(where) == 1
    assert where < {here, max(affinity)}


@needs_affinity
def test_who_waits_leaves_the_errand_his_processor(affinity: set[int]) -> None:
    os.sched_setaffinity(0, affinity)
    go = threading.Event()

    def work() -> set[int]:
        assert go.wait(60)
        until(lambda: os.sched_getaffinity(0) == affinity)
        return os.sched_getaffinity(0)

    errand = aside.begin(work)
    go.set()
    assert errand.result() == affinity


def test_where_no_thread_can_be_started_the_errand_is_run_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def none_left(process: int) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(aside, "_working", none_left)
    monkeypatch.setattr(aside, "_waiting", none_left)
    errand = aside.begin(threading.get_ident)
    assert errand.has_ended
    assert errand.result() == threading.get_ident()
    here: list[int] = []
    aside.side_by_side([lambda: here.append(threading.get_ident())] * 3)
    assert here == [threading.get_ident()] * 3


def test_where_few_threads_can_be_started_those_do_the_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[int] = []
    real = threading.Thread.start

    def start(self: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(1)
        real(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    crew = aside._Crew(aside.CREW, "a few")
    errand = aside.Errand(threading.get_ident)
    crew.errands.put(errand)
    assert len(crew.threads) == 2
    assert errand.result() in {thread.ident for thread in crew.threads}


def test_what_an_errand_that_failed_had_worked_on_is_let_go() -> None:
    class Large:
        """Whatever is held."""

    def work(large: Large) -> None:
        raise OSError("no room")

    large = Large()
    held = weakref.ref(large)
    errand = aside.begin(partial(work, large))
    with pytest.raises(OSError, match="no room"):
        errand.result()
    del large
    assert held() is None


@needs_affinity
def test_where_there_is_one_processor_errands_are_run_there(affinity: set[int]) -> None:
    os.sched_setaffinity(0, {min(affinity)})
    assert aside.begin(lambda: "done").result() == "done"


@needs_affinity
def test_where_it_is_forbidden_errands_are_run_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setaffinity", forbidden)
    assert aside.begin(lambda: "done").result() == "done"


def test_a_child_that_was_forked_has_threads_of_its_own() -> None:
    aside.begin(lambda: None).wait()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if aside.begin(lambda: 7).result() == 7 else 1)
    _, status = os.waitpid(pid, 0)
    assert status == 0
