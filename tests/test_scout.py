"""A scout makes a look shorter, and never another one."""

from __future__ import annotations

import fcntl
import io
import marshal
import os
import random
import signal
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

import core.scan
import core.scout
import core.scouting
from core.aside import processors
from core.beneath import Beneath
from core.disk import REAL
from core.listing import DOUBT
from core.model import ROOT, RelPath
from core.rules import RuleSet
from core.scout import HELLO, LENGTH_BYTES, NO, YES, Scout
from core.scouting import Post, Scouting, Station, can_be_sent
from tests.live import until
from tests.scouts import Patient, dismiss, is_alive, wait_for_answers
from tests.stores import Bench
from tests.trees import build

TREE = {f"{top}/{middle}/f{number}": top for top in "abc" for middle in "de" for number in (1, 2)}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> Iterator[Patient]:
    patient = Patient(monkeypatch)
    yield patient
    patient.dismiss()


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
        assert [part.paths for part in post.told] == [[b"c/e"], [b"c/d"]]
        hear_all(scouting, RelPath(b"b/d"))
        scouting.end()
    assert scouting._vouched == {b"c/e", b"c/d", b"c", b"b/e"}
    assert not scouting.vouches_for(RelPath(b"b/d"))


def test_what_would_take_much_memory_is_left_to_the_look(bench, patient, monkeypatch):
    monkeypatch.setattr(core.scouting, "LARGE_BYTES", 3 * core.proofs.ROW)
    build(bench.path, {"b/d/f3": "x"})
    assert bench.point().changed == 1
    bench.point()
    assert patient.asked[-7:] == [b"c/e", b"c/d", b"c", b"b/e", b"a/e", b"a/d", b"a"]


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
        assert post.told
        build(bench.path, {"c/e/new": "x"})
        late = Scouting(post, bench.recorder.tree, beneath, True)
        late.go_on(ROOT)
        assert not late._begun or not late._vouched
        hear_all(late, ROOT)
        late.end()
    assert early._vouched == set()
    assert {b"a", b"b"} <= late._vouched
    assert not late._vouched & {b"c", b"c/e"}


def test_a_scout_that_dies_costs_nothing_but_time(bench, patient):
    def die() -> None:
        os.kill(patient.station._post.process, signal.SIGKILL)

    patient.then = die
    (bench.path / "a/e/f2").write_text("new")
    assert bench.point().changed == 1
    died = patient.station._post
    until(lambda: not is_alive(died.process))
    patient.then = lambda: None
    (bench.path / "a/e/f2").write_text("newer")
    assert bench.point().changed == 1
    assert patient.station._post is not died
    assert not is_alive(died.process)


def test_a_scout_that_hangs_is_not_waited_for(bench, post, monkeypatch):
    station = Station()
    station._post = post
    monkeypatch.setattr(core.scouting, "SCOUT_ABOVE", 0)
    monkeypatch.setattr(core.scouting, "can_be_sent", lambda: True)
    monkeypatch.setattr(core.scouting, "_STATION", station)
    os.kill(post.process, signal.SIGSTOP)
    try:
        for content in "123":
            (bench.path / "b/e/f2").write_text(content)
            assert bench.point().changed == 1
        assert len(post.told) == core.scouting.PARTS or post.told
    finally:
        os.kill(post.process, signal.SIGCONT)


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
    assert len(tried) == core.scouting.TRIES
    assert len(os.listdir("/proc/self/fd")) <= before + 1


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
    assert patient.station.lend() is not None
    assert patient.station.lend() is None
    patient.station.take_back()
    assert patient.station.lend() is not None
    patient.station.take_back()


def test_it_ends_with_whoever_asks(tmp_path):
    station = Station()
    post = station.lend()
    assert post is not None
    process = post.process
    os.close(os.dup2(os.open(os.devnull, os.O_WRONLY), post._ask))  # as the kernel does it
    until(lambda: not is_alive(process))
    os.waitpid(process, 0)


def test_it_holds_no_lock_and_nothing_else_open(tmp_path):
    path = tmp_path / "lock"
    lock = os.open(path, os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    station = Station()
    post = station.lend()
    assert post is not None
    try:
        until(lambda: post.hear() == [] and post.greeted)
        os.close(lock)
        other = os.open(path, os.O_RDWR)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(other)
        if sys.platform == "linux":
            assert sorted(map(int, os.listdir(f"/proc/{post.process}/fd"))) == [0, 1, 2]
            assert os.readlink(f"/proc/{post.process}/cwd") == "/"
            assert Path(f"/proc/{post.process}/environ").read_bytes() in (
                b"",
                b"LC_CTYPE=C.UTF-8\0",
            )
    finally:
        dismiss(station)


def test_a_ctrl_c_does_not_reach_it(post):
    assert os.getpgid(post.process) == post.process


def test_another_program_in_its_place_is_not_believed(monkeypatch):
    monkeypatch.setattr(core.scouting, "PROGRAM", "print('turnmark\\'s scout, 2' + 99 * ' ')")
    station = Station()
    post = station.lend()
    assert post is not None
    until(lambda: post.hear() == [] and post.gone)
    assert not post.greeted
    station.take_back()
    again = station.lend()
    assert again is not post
    assert not is_alive(post.process)
    dismiss(station)


def test_a_fork_of_the_sender_has_a_scout_of_its_own():
    station = Station()
    post = station.lend()
    assert post is not None
    station.take_back()
    child = os.fork()
    if child == 0:
        other = station.lend()
        try:
            assert other is not None
            assert other.process != post.process
            dismiss(station)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert is_alive(post.process)
    dismiss(station)


def test_small_trees_are_looked_at_without_a_scout(bench, monkeypatch):
    monkeypatch.setattr(core.scouting, "Post", lambda: pytest.fail("sent"))
    monkeypatch.setattr(core.scouting, "_STATION", Station())
    assert bench.point().changed == 0


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None], ids=["ignored", "handled"])
def test_where_children_are_somebody_elses_business_none_is_sent(handler):
    """Found by a reviewer: with SIGCHLD ignored, which outlives an exec, every look failed."""
    before = signal.signal(signal.SIGCHLD, handler)
    try:
        assert not can_be_sent()
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert can_be_sent() == (processors() > 1)


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
        assert scout.answer(path, *known, b"")[0] == YES


def test_it_says_no_to_all_else(scout, tmp_path):
    mode, names, stats = record(tmp_path / "a/b")
    assert scout.answer(b"a/b", mode ^ 1, names, stats, b"") == NO
    assert scout.answer(b"a/b", mode, b"h", stats, b"") == NO
    assert scout.answer(b"a/b", mode, names, bytes(40), b"") == NO
    assert scout.answer(b"a/none", mode, names, stats, b"") == NO
    assert scout.answer(b"a/b/f", mode, names, stats, b"") == NO


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
    assert scout.answer(b"a/b", *known, stamp) == bytes([YES]) + bytes(24)
    (tmp_path / "a/b/f").write_text("other")
    assert scout.answer(b"a/b", *known, stamp) == NO


def test_a_stamp_is_told_once_it_can_be_believed(scout, tmp_path):
    known = record(tmp_path / "a/b")
    stamp = core.proofs.stamp_of((tmp_path / "a/b").stat())
    until(lambda: scout.answer(b"a/b", *known, b"") == bytes([YES]) + stamp)
    info = tmp_path.stat()
    scout.begin(os.fsencode(tmp_path), info.st_dev, info.st_ino, False)
    assert scout.answer(b"a/b", *known, b"") == bytes([YES]) + bytes(24)


def test_it_keeps_nothing_open_after_a_look(scout, tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    scout.answer(b"a/b", *record(tmp_path / "a/b"), b"")
    assert len(os.listdir("/proc/self/fd")) == before + 2
    scout.end()
    assert len(os.listdir("/proc/self/fd")) == before - 1


def test_it_answers_until_nobody_asks(tmp_path):
    build(tmp_path, {"a/f": "x"})
    info, (read, write) = tmp_path.stat(), os.pipe()
    start = os.fsencode(tmp_path), info.st_dev, info.st_ino, True
    asked = [(b"a", *record(tmp_path / "a"), b""), (b"b", 0o755, b"", b"", b"")]
    sent = b""
    for what in (start, asked, None):
        data = marshal.dumps(what)
        sent += len(data).to_bytes(LENGTH_BYTES, "little") + data
    core.scout.run(io.BytesIO(sent), write)
    os.close(write)
    with open(read, "rb") as answers:
        assert answers.read(len(HELLO)) == HELLO
        assert [answers.read(25)[0], answers.read(25)[0], answers.read()] == [YES, 0, b""]
