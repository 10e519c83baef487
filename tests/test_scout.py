"""A scout makes a look shorter, and never another one."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import sys
from array import array
from collections.abc import Callable
from pathlib import Path

import pytest

import core.scan
import core.scout
import core.scouting
from core.listing import DOUBT
from core.model import ROOT, RelPath
from core.rules import RuleSet
from core.scout import Scout, Vouch, can_be_sent
from tests.live import until
from tests.stores import Bench
from tests.trees import build

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="scouts are sent on Linux only")

TREE = {f"{top}/{middle}/f{number}": top for top in "abc" for middle in "de" for number in (1, 2)}


class Patient(Scout):
    """Has done all it can before the look begins, and keeps what it vouched for."""

    sent = 0
    said: list[RelPath]
    then: Callable[[], object]

    def __init__(self, paths, fd, walk) -> None:
        super().__init__(paths, fd, walk)
        os.waitid(os.P_PID, self._process, os.WEXITED | os.WNOWAIT)
        Patient.sent += 1
        Patient.then()
        Patient.said = sorted(path for path in self._places if self.vouches_for(path))


ANY_SIZE = 1 << 40


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> type[Patient]:
    monkeypatch.setattr(core.scouting, "SCOUT_ABOVE", 0)
    monkeypatch.setattr(core.scouting, "can_be_sent", lambda files: True)
    monkeypatch.setattr(core.scouting, "Scout", Patient)
    Patient.sent, Patient.said, Patient.then = 0, [], lambda: None
    return Patient


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path)
    build(bench.path, TREE)
    bench.point()
    until(lambda: not _doubts(bench))
    return bench


def _doubts(bench: Bench) -> bool:
    """Whether some name is to be looked at again, since it was written a moment before the look."""
    bench.point()
    records = map(bench.recorder.tree.get, bench.recorder.tree.paths())
    return any(DOUBT in array("q", record.stats) for record in records if record)


def test_a_scout_vouches_for_all_that_is_as_it_was_and_nothing_else(bench, patient):
    (bench.path / "b/d/f1").write_text("new")
    assert bench.point().changed == 1
    assert patient.said == [b"a", b"a/d", b"a/e", b"b/e", b"c", b"c/d", b"c/e"]


def test_what_is_new_deleted_or_of_another_mode_is_seen_with_a_scout(bench, patient):
    (bench.path / "a/d/f1").unlink()
    (bench.path / "b/e").chmod(0o700)
    build(bench.path, {"c/new/f": "x"})
    assert bench.point().changed == 3
    assert patient.sent == 1
    assert bench.point().changed == 0


def test_looks_with_and_without_a_scout_agree(bench, patient, monkeypatch):
    rng = random.Random(5)
    for _ in range(12):
        for _ in range(rng.randrange(4)):
            _change(bench.path, rng)
        taken = bench.point()
        bare = Bench(bench.base / f"bare{taken.snapshot.seq}", name="none")
        bare.root = bench.root
        monkeypatch.setattr(core.scouting, "SCOUT_ABOVE", 10**9)
        assert bare.point().snapshot.files == taken.snapshot.files
        monkeypatch.setattr(core.scouting, "SCOUT_ABOVE", 0)
    assert patient.sent >= 12


def _change(root: Path, rng: random.Random) -> None:
    directory = root / rng.choice("abc") / rng.choice("dexyz")
    directory.mkdir(parents=True, exist_ok=True)
    names = [path for path in directory.iterdir() if path.is_file()]
    act = rng.randrange(4)
    if act == 0 and names:
        rng.choice(names).unlink()
    elif act == 1 and not names:
        directory.rmdir()
    elif act == 2:
        directory.rename(directory.with_name(f"{directory.name}{rng.randrange(99)}"))
    else:
        (directory / f"f{rng.randrange(5)}").write_text(f"{rng.random()}")


def test_a_rule_written_above_counts_for_what_a_scout_vouched_for(tmp_path, patient):
    bench = Bench(tmp_path, RuleSet())
    build(bench.path, TREE)
    bench.point()
    build(bench.path, {"b/.gitignore": "d/\n"})
    assert bench.point().snapshot.total == len(TREE) - 1


def test_a_rule_written_after_the_scout_was_there_counts_too(tmp_path, patient):
    bench = Bench(tmp_path, RuleSet())
    build(bench.path, TREE)
    bench.point()
    until(lambda: not _doubts(bench))
    patient.then = lambda: build(bench.path, {"b/.gitignore": "f1\n"})
    (bench.path / "b/e/f1").write_text("new")  # so that b itself is not vouched for
    assert bench.point().snapshot.total == len(TREE) - 1
    assert b"b/d" in patient.said


def test_names_that_events_do_not_tell_of_are_noted_with_a_scout(bench, patient):
    os.link(bench.path / "a/d/f1", bench.path / "c/e/other")
    bench.point()
    until(lambda: not _doubts(bench))
    bench.point()
    assert bench.recorder.always == {b"a/d/f1", b"c/e/other"}
    assert patient.said == [b"a/e", b"b", b"b/d", b"b/e", b"c/d"]


def test_a_scout_that_dies_costs_nothing_but_time(bench, monkeypatch):
    class Mortal(Scout):
        def __init__(self, paths, fd, walk) -> None:
            super().__init__(paths, fd, lambda _: os.kill(os.getpid(), signal.SIGKILL))

    monkeypatch.setattr(core.scouting, "SCOUT_ABOVE", 0)
    monkeypatch.setattr("core.scout.KB_PER_FILE", ANY_SIZE)
    monkeypatch.setattr(core.scouting, "Scout", Mortal)
    (bench.path / "c/e/f2").write_text("new")
    assert bench.point().changed == 1


def test_without_a_process_to_send_the_look_goes_alone(bench, patient, monkeypatch):
    def refused() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refused)
    (bench.path / "a/e/f2").write_text("new")
    assert bench.point().changed == 1
    assert patient.sent == 0


def test_no_process_is_left_after_a_look_that_failed(bench, patient, monkeypatch):
    children: list[int] = []
    real = os.fork

    def fork() -> int:
        children.append(real())
        return children[-1]

    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fork", fork)
    monkeypatch.setattr(core.scan.Look, "_visit", broken)
    with pytest.raises(Exception, match="look at the workspace"):
        bench.point()
    until(lambda: not is_ours(children[0]))  # a thread waits for it


def is_ours(process: int) -> bool:
    """A child that has not been waited for."""
    try:
        os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def test_without_a_thread_to_wait_for_it_the_look_does(tmp_path, monkeypatch):
    def start(act, arguments) -> None:
        raise RuntimeError("can't start new thread")

    root = os.open(tmp_path, os.O_RDONLY)
    scout = Scout([ROOT], root, lambda _: signal.pause())
    monkeypatch.setattr(core.scout, "start_new_thread", start)
    scout.dismiss()
    assert not is_ours(scout._process)
    os.close(root)


def test_a_scout_that_outlives_its_sender_holds_no_lock(tmp_path):
    path = tmp_path / "lock"
    lock, root = os.open(path, os.O_RDWR | os.O_CREAT), os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)

    def walk(vouch: Vouch) -> None:
        vouch(ROOT, b"")
        signal.pause()

    scout = Scout([ROOT], root, walk)
    try:
        until(lambda: scout.vouches_for(ROOT))
        os.close(lock)  # as the kernel does it for a sender that dies
        other = os.open(path, os.O_RDWR)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(other)
    finally:
        scout.dismiss()
        os.close(root)


def test_where_records_are_not_proved_no_scout_is_sent(bench, patient, monkeypatch):
    real = core.scan.Look.everything

    def unproved(look: core.scan.Look) -> None:
        look.tree.trusted = False
        real(look)

    monkeypatch.setattr(core.scan.Look, "everything", unproved)
    assert bench.point().changed == 0
    assert patient.sent == 0


def test_the_scout_begins_at_the_far_end(bench, monkeypatch):
    visited: list[RelPath] = []

    class Counting(Scout):
        def __init__(self, paths, fd, walk) -> None:
            walk(lambda path, _: visited.append(path))
            super().__init__(paths, fd, lambda _: None)

    monkeypatch.setattr(core.scouting, "SCOUT_ABOVE", 0)
    monkeypatch.setattr(core.scouting, "can_be_sent", lambda files: True)
    monkeypatch.setattr(core.scouting, "Scout", Counting)
    bench.point()
    assert visited == [b"c/e", b"c/d", b"c", b"b/e", b"b/d", b"b", b"a/e", b"a/d", b"a"]


def test_a_process_that_is_slow_to_fork_sends_none(bench, monkeypatch):
    monkeypatch.setattr(core.scouting, "SCOUT_ABOVE", 0)
    monkeypatch.setattr(core.scouting, "Scout", lambda *_: pytest.fail("sent"))
    assert bench.point().changed == 0  # a dozen files, and all of pytest
    assert can_be_sent(10**9) == (len(os.sched_getaffinity(0)) > 1)


def test_what_a_process_once_held_keeps_no_scout_at_home(monkeypatch):
    """Found in the bench: a first snapshot peaks at 90 MB, and no scout was sent ever after."""
    many = int(core.scout._own_kb() / core.scout.KB_PER_FILE) + 2_000
    held = bytearray(100_000_000)
    held[:] = b"\1" * len(held)
    assert not can_be_sent(many)
    del held
    assert can_be_sent(many) == (len(os.sched_getaffinity(0)) > 1)


def test_where_nobody_tells_what_is_held_none_is_sent(monkeypatch):
    monkeypatch.setattr("builtins.open", lambda *_: (_ for _ in ()).throw(FileNotFoundError()))
    assert not can_be_sent(10**9)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None], ids=["ignored", "handled"])
def test_where_children_are_somebody_elses_business_none_is_sent(bench, monkeypatch, handler):
    """Found by a reviewer: with SIGCHLD ignored, which outlives an exec, every look failed."""
    before = signal.signal(signal.SIGCHLD, handler)
    try:
        monkeypatch.setattr(core.scouting, "SCOUT_ABOVE", 0)
        monkeypatch.setattr("core.scout.KB_PER_FILE", ANY_SIZE)
        monkeypatch.setattr(core.scouting, "Scout", lambda *_: pytest.fail("sent"))
        assert bench.point().changed == 0
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_scout_that_somebody_else_waited_for_is_left_alone(tmp_path):
    root = os.open(tmp_path, os.O_RDONLY)
    scout = Scout([ROOT], root, lambda _: None)
    os.waitpid(scout._process, 0)
    scout.dismiss()
    os.close(root)


def test_small_trees_are_looked_at_without_a_scout(bench, monkeypatch):
    monkeypatch.setattr(core.scouting, "Scout", lambda *_: pytest.fail("sent"))
    assert bench.point().changed == 0
