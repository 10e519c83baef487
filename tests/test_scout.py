"""A scout makes a look shorter, and never another one."""

from __future__ import annotations

import fcntl
import io
import marshal
import os
import random
import signal
import subprocess
import sys
from array import array
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import core.scan
import core.scout
import core.scouting
import core.station
from core.aside import processors
from core.beneath import Beneath
from core.disk import REAL
from core.listing import DOUBT
from core.model import ROOT, RelPath
from core.rules import RuleSet
from core.scout import HEAD, HELLO, LENGTH_BYTES, NO, YES, Scout
from core.scouting import SCOUT_ABOVE, Scouting
from core.station import START_ABOVE, Post, Station, allow_scout, can_be_sent
from tests.live import until
from tests.scouts import Patient, is_alive, wait_for_answers
from tests.stores import Bench
from tests.trees import build

REPOSITORY = Path(__file__).parents[1]
TREE = {f"{top}/{middle}/f{number}": top for top in "abc" for middle in "de" for number in (1, 2)}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> Iterator[Patient]:
    patient = Patient(monkeypatch)
    yield patient
    patient.station.close()


@pytest.fixture
def post() -> Iterator[Post]:
    """Of a scout that is there."""
    post = Post()
    wait_for_answers(post)
    assert post.hear() == []
    assert post.greeted
    yield post
    if is_alive(post.process):
        post.close()


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


def test_where_records_are_not_proved_no_scout_is_sent(bench, patient, monkeypatch):
    real = core.scan.Look.everything

    def unproved(look: core.scan.Look) -> None:
        look.tree.trusted = False
        real(look)

    monkeypatch.setattr(core.scan.Look, "everything", unproved)
    assert bench.point().changed == 0
    assert patient.sent == 0


def test_the_scout_begins_at_the_far_end(bench, patient):
    bench.point()
    assert patient.asked == [b"c/e", b"c/d", b"c", b"b/e", b"b/d", b"b", b"a/e", b"a/d", b"a"]


def hear_all(scouting: Scouting, reached: RelPath) -> None:
    def heard() -> bool:
        scouting.go_on(reached)
        return scouting._begun and not scouting._post.told

    until(heard)


def test_it_is_told_of_a_little_at_a_time_until_the_look_has_come_to_it(bench, monkeypatch, post):
    monkeypatch.setattr(core.scouting, "PART_BYTES", 1)
    with Beneath(REAL, os.fsencode(bench.path)) as beneath:
        scouting = Scouting(post, bench.recorder.tree, beneath, True)
        scouting.go_on(ROOT)
        assert [paths for _, paths in post.told] == [[b"c/e"], [b"c/d"]]
        hear_all(scouting, RelPath(b"b/d"))
        scouting._note([RelPath(b"x")], YES + bytes(24))
        assert b"x" not in scouting.stamps
        scouting._vouched.discard(RelPath(b"x"))
        scouting.end()
    assert scouting._vouched == {b"c/e", b"c/d", b"c", b"b/e"}
    assert not scouting.vouches_for(RelPath(b"b/d"))


def test_what_the_pipe_may_not_hold_is_left_to_the_look(bench, patient, monkeypatch):
    """Found by a reviewer: a scout waited for the rest for ever, and kept the root open."""
    build(bench.path, {f"b/d/f{number}": "x" for number in range(1_000)})
    bench.point()
    patient.station.close()
    monkeypatch.setattr(core.station, "ROOM_BYTES", 4096)
    for _ in range(3):
        bench.point()
        assert patient.station._post.room == 4096
        assert not patient.station._post.unsent
        assert patient.asked[-7:] == [b"c/e", b"c/d", b"c", b"b/e", b"a/e", b"a/d", b"a"]


def test_one_that_was_not_told_all_is_let_go(bench, patient):
    def stop() -> None:
        os.kill(patient.station._post.process, signal.SIGSTOP)
        patient.station._post.ask([(RelPath(b"x"), 0, bytes(2 << 20), b"", b"")])

    patient.then = stop
    assert bench.point().changed == 0
    assert patient.station._post is None
    patient.then = lambda: None
    assert bench.point().changed == 0
    assert patient.station._post is not None


@pytest.mark.parametrize("part", [1, core.scouting.PART_BYTES], ids=["one by one", "together"])
def test_with_what_changed_nothing_above_it_is_vouched_for(bench, patient, monkeypatch, part):
    monkeypatch.setattr(core.scouting, "PART_BYTES", part)
    build(bench.path, {f"c/d/x/{name}/f": "x" for name in "uvwxyz"})
    bench.point()
    until(lambda: not _doubts(bench))
    (bench.path / "c/d/x/z/f").write_text("new")
    assert bench.point().changed == 1
    below = [b"c/d/x/%c" % name for name in b"uvwxy"]
    assert patient.said == [b"a", b"a/d", b"a/e", b"b", b"b/d", b"b/e", *below, b"c/e"]


def test_what_the_look_must_take_note_of_it_is_not_asked(tmp_path, patient):
    bench = Bench(tmp_path, RuleSet())
    build(bench.path, TREE | {"a/d/.gitignore": "", "b/e/x.db": "x"})
    bench.point()
    records = bench.recorder.tree._dirs
    record = records[RelPath(b"c/d")]
    assert record is not None
    records[RelPath(b"c/d")] = record._replace(rules=b"of another time")
    patient.asked.clear()
    bench.point()
    assert patient.asked == [b"c/e", b"b/d", b"a/e"]


def test_it_is_heard_while_the_look_goes_on(bench, post, monkeypatch):
    reached: list[RelPath] = []
    monkeypatch.setattr(Scouting, "go_on", lambda self, path: reached.append(path))
    with Beneath(REAL, os.fsencode(bench.path)) as beneath:
        scouting = Scouting(post, bench.recorder.tree, beneath, True)
        for number in range(2 * core.scouting.OFTEN):
            scouting.vouches_for(RelPath(b"%d" % (number + 1)))
    assert reached == [b"8", b"16"]


def test_the_same_scout_is_there_for_the_next_look(bench, patient):
    bench.point()
    first = patient.station._post
    bench.point()
    assert patient.sent >= 2
    assert patient.station._post is first


def test_what_an_earlier_look_asked_is_not_taken_for_an_answer_to_this_one(bench, post):
    with Beneath(REAL, os.fsencode(bench.path)) as beneath:
        early = Scouting(post, bench.recorder.tree, beneath, True)
        early.go_on(ROOT)
        early.end()
        wait_for_answers(post)
        build(bench.path, {"c/e/new": "x"})
        late = Scouting(post, bench.recorder.tree, beneath, True)
        hear_all(late, ROOT)
        late.end()
    assert early._vouched == set()
    assert {b"a", b"b"} <= late._vouched
    assert not late._vouched & {b"c", b"c/e"}


def test_before_an_earlier_look_is_answered_nothing_is_asked(bench, post):
    os.kill(post.process, signal.SIGSTOP)
    with Beneath(REAL, os.fsencode(bench.path)) as beneath:
        early, late = (Scouting(post, bench.recorder.tree, beneath, True) for _ in range(2))
        early.go_on(ROOT)
        assert post.told
        late.go_on(ROOT)
    assert not late._begun
    os.kill(post.process, signal.SIGCONT)


def test_a_scout_that_dies_costs_nothing_but_time(bench, patient):
    died: list[int] = []

    def die() -> None:
        died.append(patient.station._post.process)
        os.kill(died[-1], signal.SIGKILL)

    patient.then = die
    (bench.path / "a/e/f2").write_text("new")
    assert bench.point().changed == 1
    until(lambda: not is_alive(died[0]))
    patient.then = lambda: None
    (bench.path / "a/e/f2").write_text("newer")
    assert bench.point().changed == 1
    assert patient.station._post.process != died[0]


def has_ended(process: int) -> bool:
    return not is_alive(process)


def test_another_one_is_started_however_often_one_that_worked_dies(bench, patient):
    for _ in range(core.station.TRIES + 2):
        bench.point()
        process = patient.station._post.process
        os.kill(process, signal.SIGKILL)
        until(partial(has_ended, process))


def test_what_there_is_no_room_for_is_told_later(post):
    large = RelPath(b"none"), 0o755, bytes(1 << 20), b"", b""
    os.kill(post.process, signal.SIGSTOP)
    post.ask([large])
    post.push()
    assert post._unsent
    os.kill(post.process, signal.SIGCONT)

    heard: list[tuple[list[RelPath], bytes]] = []

    def answered() -> bool:
        post.push()
        heard.extend(post.hear())
        return bool(heard)

    until(answered)
    assert heard == [([large[0]], NO)]


def test_a_scout_that_hangs_is_not_waited_for(bench, post, monkeypatch):
    station = Station(0)
    station._post = post
    monkeypatch.setattr(core.scouting, "SCOUT_ABOVE", 0)
    monkeypatch.setattr(core.station, "can_be_sent", lambda: True)
    monkeypatch.setattr(core.scouting, "STATION", station)
    os.kill(post.process, signal.SIGSTOP)
    for number in range(core.station.TRIES + 1):
        (bench.path / "b/e/f2").write_text(f"{number}")
        assert bench.point().changed == 1
        assert post.told
        assert station._post is post
    assert bench.point().changed == 0
    assert station._post is not post
    assert not is_alive(post.process)
    station.close()


def test_without_a_process_to_send_the_look_goes_alone(bench, patient, monkeypatch):
    tried = []

    def refused(*_: object, **__: object) -> int:
        tried.append(True)
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "posix_spawn", refused)
    before = len(os.listdir("/proc/self/fd"))
    for content in "12345":
        (bench.path / "a/e/f2").write_text(content)
        assert bench.point().changed == 1
    assert patient.sent == 0
    assert len(tried) == core.station.TRIES
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_one_is_started_where_it_was_allowed_and_pays(monkeypatch):
    station = Station()
    monkeypatch.setattr(core.station, "STATION", station)
    monkeypatch.setattr(core.station, "Post", lambda: pytest.fail("started"))
    assert station.lend(10**9) is None
    allow_scout(START_ABOVE)
    assert station.lend(START_ABOVE - 1) is None
    monkeypatch.undo()
    monkeypatch.setattr(core.station, "STATION", station)
    allow_scout(SCOUT_ABOVE)
    allow_scout(START_ABOVE)
    assert station.lend(SCOUT_ABOVE) is not None
    station.take_back()
    assert station.lend(1) is not None
    station.take_back()
    station.close()


def test_after_an_interrupt_at_its_start_another_look_may_have_it(monkeypatch):
    def interrupted() -> None:
        raise KeyboardInterrupt

    station = Station(0)
    with monkeypatch.context() as patched:
        patched.setattr(core.station, "Post", interrupted)
        with pytest.raises(KeyboardInterrupt):
            station.lend(1)
    assert station.lend(1) is not None
    station.take_back()
    station.close()


def test_a_process_that_ends_leaves_none_behind():
    """Nor one that has ended, and that nobody waits for (a container's first process may not)."""
    program = (
        "from core.station import STATION as station, allow_scout; allow_scout(0); "
        "print(station.lend(10**6).process); station.take_back()"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, cwd=REPOSITORY
    )
    assert not Path(f"/proc/{int(said.stdout)}").exists()


def test_what_a_look_still_writes_to_is_not_closed():
    station = Station(0)
    post = station.lend(1)
    assert post is not None
    station.leave()
    assert is_alive(post.process)
    station.take_back()
    station.leave()
    assert not is_alive(post.process)


def test_answers_that_nobody_asked_for_end_it(bench, post):
    """Found by a reviewer: an interrupt between two steps had later looks believe old answers."""
    with Beneath(REAL, os.fsencode(bench.path)) as beneath:
        scouting = Scouting(post, bench.recorder.tree, beneath, True)
        scouting.go_on(ROOT)
        lost = post.told.popleft()
        until(lambda: scouting.go_on(ROOT) is None and post.gone)  # type: ignore[func-returns-value]
    assert scouting._vouched == set()
    assert lost


@pytest.mark.parametrize("place", ["tell", "push", "hear"])
def test_a_look_that_is_interrupted_takes_its_scout_along(bench, patient, monkeypatch, place):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    bench.point()
    process = patient.station._post.process
    with monkeypatch.context() as patched:
        patched.setattr(Post, place, interrupted)
        with pytest.raises(KeyboardInterrupt):
            bench.point()
    assert not is_alive(process) or place == "hear"
    (bench.path / "c/e/f2").write_text("new")
    assert bench.point().changed == 1


def test_where_all_was_closed_a_look_has_another_one(bench, patient):
    bench.point()
    post = patient.station._post
    os.close(post._ask)
    os.close(post._answers)
    assert bench.point().changed == 0
    assert patient.station._post is not post
    assert not is_alive(post.process)


def test_where_nothing_can_be_asked_nothing_is_begun(tmp_path, patient):
    bench = Bench(tmp_path)
    build(bench.path, {"f": "x"})
    for _ in range(3):
        bench.point()
    with Beneath(REAL, os.fsencode(bench.path)) as beneath:
        post = patient.station._post or Post()
        scouting = Scouting(post, bench.recorder.tree, beneath, True)
        until(lambda: post.hear() == [] and post.greeted)
        scouting.go_on(ROOT)
        assert not scouting._begun
    post.close()
    patient.station._post = None


def test_after_a_look_that_failed_another_one_may_have_it(bench, patient, monkeypatch):
    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(core.scan.Look, "_visit", broken)
        with pytest.raises(Exception, match="look at the workspace"):
            bench.point()
    assert bench.point().changed == 0
    assert patient.sent == 2


def test_two_looks_at_the_same_time_have_one_scout(patient):
    assert patient.station.lend(1) is not None
    assert patient.station.lend(1) is None
    patient.station.take_back()
    assert patient.station.lend(1) is not None
    patient.station.take_back()


def test_it_ends_with_whoever_asks(post):
    elsewhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(elsewhere, post._ask)  # as the kernel closes it
    os.close(elsewhere)
    until(lambda: not is_alive(post.process))
    post.close()


def test_it_holds_no_lock_and_nothing_else_open(tmp_path):
    path = tmp_path / "lock"
    lock, left_open = os.open(path, os.O_RDWR | os.O_CREAT), os.dup(0)
    os.set_inheritable(left_open, True)
    fcntl.flock(lock, fcntl.LOCK_EX)
    station = Station(0)
    post = station.lend(1)
    assert post is not None
    try:
        until(lambda: post.hear() == [] and post.greeted)
        os.close(lock)
        other = os.open(path, os.O_RDWR)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(other)
        if sys.platform == "linux":
            assert opened_by(post.process) == [0, 1, 2]
            assert os.readlink(f"/proc/{post.process}/fd/2") == os.devnull
            assert os.readlink(f"/proc/{post.process}/cwd") == "/"
            assert Path(f"/proc/{post.process}/environ").read_bytes() in (
                b"",
                b"LC_CTYPE=C.UTF-8\0",
            )
    finally:
        os.close(left_open)
        station.close()


def opened_by(process: int) -> list[int]:
    return sorted(map(int, os.listdir(f"/proc/{process}/fd")))


@pytest.mark.skipif(sys.platform != "linux", reason="nobody tells what it has open")
def test_between_looks_it_has_nothing_of_the_tree_open(bench, patient):
    bench.point()
    until(lambda: opened_by(patient.station._post.process) == [0, 1, 2])


def test_it_is_our_program_wherever_its_sender_is(tmp_path, monkeypatch):
    build(tmp_path, {"core/__init__.py": "", "core/scout.py": "raise SystemExit"})
    monkeypatch.chdir(tmp_path)
    station = Station(0)
    post = station.lend(1)
    assert post is not None
    until(lambda: post.hear() == [] and post.greeted)
    station.close()


def test_a_ctrl_c_does_not_reach_it(post):
    assert os.getpgid(post.process) == post.process


ANOTHER = 'import time; print("turnmark\'s scout, 0", flush=True); time.sleep(600)'


def test_another_program_in_its_place_is_not_believed(monkeypatch):
    monkeypatch.setattr(core.station, "PROGRAM", ANOTHER)
    station = Station(0)
    post = station.lend(1)
    assert post is not None
    until(lambda: post.hear() == [] and post.gone)
    assert not post.greeted
    station.take_back()
    again = station.lend(1)
    assert again is not post
    assert not is_alive(post.process)
    station.close()


def test_a_fork_of_the_sender_has_a_scout_of_its_own():
    station = Station(0)
    post = station.lend(1)
    assert post is not None
    station.take_back()
    child = os.fork()
    if child == 0:
        other = station.lend(1)
        try:
            assert other is not None
            assert other.process != post.process
            station.close()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert is_alive(post.process)
    station.close()


def test_small_trees_are_looked_at_without_a_scout(bench, monkeypatch):
    monkeypatch.setattr(core.station, "Post", lambda: pytest.fail("sent"))
    monkeypatch.setattr(core.scouting, "STATION", Station(0))
    assert bench.point().changed == 0


def test_where_a_dead_pipe_would_be_our_end_none_is_sent():
    before = signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        assert not can_be_sent()
    finally:
        signal.signal(signal.SIGPIPE, before)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None], ids=["ignored", "handled"])
def test_where_children_are_somebody_elses_business_none_is_sent(handler):
    """Found by a reviewer: with SIGCHLD ignored, which outlives an exec, every look failed."""
    before = signal.signal(signal.SIGCHLD, handler)
    try:
        assert not can_be_sent()
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert can_be_sent() == (processors() > 1)


def test_where_it_cannot_be_or_would_not_help_none_is_sent(bench, patient, monkeypatch):
    monkeypatch.setattr(core.station, "processors", lambda: 1)
    assert not can_be_sent()
    monkeypatch.setattr(core.station, "can_be_sent", can_be_sent)
    bench.point()
    assert patient.sent == 0


def test_where_the_program_is_no_python_none_is_sent(monkeypatch):
    for program in ("", None, "/usr/bin/uwsgi"):
        monkeypatch.setattr(sys, "executable", program)
        assert not can_be_sent()


# The scout itself


@pytest.fixture
def scout(tmp_path: Path) -> Iterator[Scout]:
    build(tmp_path, {"a/b/f": "x", "a/c/g": "y"})
    scout = Scout()
    info = tmp_path.stat()
    scout.begin(os.fsencode(tmp_path), info.st_dev, info.st_ino, True)
    yield scout
    scout.end()


def record(path: Path) -> tuple[int, bytes, bytes]:
    with REAL.opened(str(path), os.O_RDONLY) as fd:
        names, stats, _ = core.proofs.list_names(REAL, fd)
    return path.stat().st_mode & 0o7777, names, stats


def test_it_says_yes_to_what_is_as_told(scout, tmp_path):
    for path in (b"a/c", b"a/b", b"a"):
        known = record(tmp_path / os.fsdecode(path))
        assert scout.answer(path, *known, b"")[:1] == YES


def test_it_says_no_to_all_else(scout, tmp_path):
    mode, names, stats = record(tmp_path / "a/b")
    assert scout.answer(b"a/b", mode ^ 1, names, stats, b"") == NO
    assert scout.answer(b"a/b", mode, b"h", stats, b"") == NO
    assert scout.answer(b"a/b", mode, names, bytes(40), b"") == NO
    assert scout.answer(b"a/none", mode, names, stats, b"") == NO
    assert scout.answer(b"a/b/f", mode, names, stats, b"") == NO
    stamp = core.proofs.stamp_of((tmp_path / "a/b").stat())
    assert scout.answer(b"a/b", mode, b"h", stats, stamp) == NO


def test_it_follows_no_link(scout, tmp_path):
    (tmp_path / "link").symlink_to("a")
    assert scout.answer(b"link", *record(tmp_path / "a"), b"") == NO
    assert scout.answer(b"link/b", *record(tmp_path / "a/b"), b"") == NO


def test_it_says_no_where_the_root_is_another_one(tmp_path):
    build(tmp_path, {"a/f": "x"})
    scout, info = Scout(), tmp_path.stat()
    for root, inode in ((tmp_path, info.st_ino + 1), (tmp_path / "none", info.st_ino)):
        scout.begin(os.fsencode(root), info.st_dev, inode, True)
        assert scout.answer(b"a", *record(tmp_path / "a"), b"") == NO


def test_it_says_no_to_files_of_several_names(scout, tmp_path):
    os.link(tmp_path / "a/b/f", tmp_path / "other")
    assert scout.answer(b"a/b", *record(tmp_path / "a/b"), b"") == NO
    stamp = core.proofs.stamp_of((tmp_path / "a/b").stat())
    assert scout.answer(b"a/b", *record(tmp_path / "a/b"), stamp) == NO


def test_where_a_stamp_holds_new_contents_are_seen_and_nothing_is_listed(
    scout, tmp_path, monkeypatch
):
    stamp = core.proofs.stamp_of((tmp_path / "a/b").stat())
    known = record(tmp_path / "a/b")
    monkeypatch.setattr(core.scout, "list_names", lambda *_: pytest.fail("listed"))
    assert scout.answer(b"a/b", *known, stamp) == YES + bytes(24)
    (tmp_path / "a/b/f").write_text("other")
    assert scout.answer(b"a/b", *known, stamp) == NO


def test_a_stamp_is_told_once_it_can_be_believed(scout, tmp_path, monkeypatch):
    known = record(tmp_path / "a/b")
    stamp = core.proofs.stamp_of((tmp_path / "a/b").stat())
    with monkeypatch.context() as patched:
        patched.setattr(core.scout, "may_come_again", lambda *_: True)
        assert scout.answer(b"a/b", *known, b"") == YES + bytes(24)
    until(lambda: scout.answer(b"a/b", *known, b"") == YES + stamp)
    info = tmp_path.stat()
    scout.begin(os.fsencode(tmp_path), info.st_dev, info.st_ino, False)
    assert scout.answer(b"a/b", *known, b"") == YES + bytes(24)


def test_it_keeps_nothing_open_after_a_look(scout, tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    scout.answer(b"a/b", *record(tmp_path / "a/b"), b"")
    assert len(os.listdir("/proc/self/fd")) == before + 2
    scout.end()
    assert len(os.listdir("/proc/self/fd")) == before - 1


def test_it_answers_until_nobody_asks(tmp_path):
    build(tmp_path, {"a/f": "x"})
    info, said = tmp_path.stat(), io.BytesIO()
    start = os.fsencode(tmp_path), info.st_dev, info.st_ino, True
    asked = 7, [(b"a", *record(tmp_path / "a"), b""), (b"b", 0o755, b"", b"", b"")]
    sent = b""
    for what in (start, asked, None):
        data = marshal.dumps(what)
        sent += len(data).to_bytes(LENGTH_BYTES, "little") + data
    core.scout.run(io.BytesIO(sent), said)
    said.seek(0)
    assert said.read(len(HELLO)) == HELLO
    assert HEAD.unpack(said.read(HEAD.size)) == (7, 2)
    assert [said.read(25)[:1], said.read(25), said.read()] == [YES, NO, b""]
