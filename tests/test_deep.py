"""What git packs deeply takes the place of our packs, when that is worth while, and only whole."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from core import deep as module
from core.consolidate import consolidate
from core.deep import deep_repack, repack_when_due
from core.disk import Disk
from core.errors import Busy, TurnmarkError
from core.store import Store
from core.sweep import Swept, sweep
from core.verify import verify
from tests.faults import FaultyDisk, die_at_each, failing
from tests.live import is_running, until
from tests.stores import Bench, fsck
from tests.test_consolidate import everything, grown
from tests.test_sweep import drop, held, reached

DAY_NS = 86_400 * 1_000_000_000
NOW = 1_000 * DAY_NS


def left_over(store: Store) -> list[str]:
    return os.listdir(f"{store.base}/turnmark/tmp")


def test_a_deep_repack_leaves_one_small_pack_of_what_is_alive(tmp_path):
    bench = grown(tmp_path)
    drop(bench, 2)
    before = bench.store.refs.below("refs/turnmark")
    done = deep_repack(bench.store)
    assert not done.errors
    assert done.packs_after == 1
    assert done.bytes_freed > 0
    assert held(bench.store) == reached(bench.store)
    assert bench.store.refs.below("refs/turnmark") == before
    assert verify(bench.store).ok
    fsck(bench.store.base)
    assert not bench.recorder.take().fresh


def test_without_git_a_deep_repack_says_so_and_changes_nothing(tmp_path):
    bench = grown(tmp_path)
    before = held(bench.store)
    done = deep_repack(bench.store, "no-such-git")
    assert "no-such-git" in done.errors[0]
    assert held(bench.store) == before


@pytest.mark.parametrize(
    ("does", "told"),
    [("echo no >&2; exit 3", "no"), ("exit 3", "it ended with 3"), ("kill -9 $$", "ended with -9")],
)
def test_a_git_that_fails_costs_nothing_and_is_told(tmp_path, does, told):
    bench = grown(tmp_path)
    bad = tmp_path / "git"
    bad.write_text(f"#!/bin/sh\n{does}\n")
    bad.chmod(0o755)
    before = held(bench.store)
    done = deep_repack(bench.store, str(bad))
    assert done.errors[0].startswith(f"git could not repack {bench.store.base}: ")
    assert done.errors[0].endswith(told)
    assert held(bench.store) == before
    assert verify(bench.store).ok


HANGING = """#!/bin/sh
trap '' TERM
sleep 600 &
echo $! >{said}
mv {said} {pid}
wait
"""


def test_a_git_that_hangs_is_stopped_with_all_that_it_started(tmp_path, monkeypatch):
    """Its child packed on, seen by nobody, and kept its room in the store."""
    bench = grown(tmp_path)
    drop(bench, 2)
    bad, pid = tmp_path / "git", tmp_path / "pid"
    bad.write_text(HANGING.format(said=tmp_path / "said", pid=pid))
    bad.chmod(0o755)
    before, refs = held(bench.store), bench.store.refs.below("refs/turnmark")
    for seconds in (0.2, 2.0, 20.0):  # it must have come so far
        monkeypatch.setattr(module, "GIT_SECONDS", seconds)
        done = deep_repack(bench.store, str(bad))
        if pid.exists():
            break
    assert f"it was stopped after {seconds:.0f} seconds" in done.errors[0]
    try:
        until(lambda: not is_running(int(pid.read_text())))
    finally:
        with suppress(ProcessLookupError):
            os.kill(int(pid.read_text()), signal.SIGKILL)
    assert held(bench.store) == before
    assert bench.store.refs.below("refs/turnmark") == refs
    assert not sweep(bench.store, 0.0).errors
    assert verify(bench.store).ok
    fsck(bench.store.base)


@pytest.mark.parametrize("nice", [True, False])
def test_a_git_that_cannot_be_started_costs_nothing(tmp_path, monkeypatch, nice):
    bench = grown(tmp_path)
    if not nice:
        monkeypatch.setattr(shutil, "which", lambda name: None if name == "nice" else name)
    bad = tmp_path / "git"
    bad.write_text("#!/no/such/interpreter\n")
    bad.chmod(0o755)
    before = held(bench.store)
    done = deep_repack(bench.store, str(bad))
    assert "git could not repack" in done.errors[0]
    assert held(bench.store) == before


def test_a_death_at_any_step_loses_nothing_and_is_cleaned_up(tmp_path):
    bench = grown(tmp_path, 3)
    drop(bench, 1)
    bench.close()
    base, copy = bench.store.base, f"{tmp_path}/copy"
    refs, alive = bench.store.refs.below("refs/turnmark"), reached(bench.store)

    def run(disk: Disk) -> object:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(base, copy)
        return deep_repack(Store.open(copy, disk))

    steps = 0
    for _ in die_at_each(run):
        steps += 1
        store = Store.open(copy)
        assert verify(store).ok
        assert alive <= held(store)
        assert store.refs.below("refs/turnmark") == refs
        sweep(store, 0.0)
        assert left_over(store) == []
        assert held(store) == reached(store) >= alive
        fsck(copy)
    assert steps > 30


def test_a_disk_that_fails_at_any_step_costs_nothing_and_is_told(tmp_path):
    bench = grown(tmp_path, 3)
    bench.close()
    base, copy = bench.store.base, f"{tmp_path}/copy"
    alive, untold = reached(bench.store), 0
    for at in range(1, 200):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(base, copy)
        disk = FaultyDisk(at, failing(errno.ENOSPC))
        try:
            told = bool(deep_repack(Store.open(copy, disk)).errors)
        except (TurnmarkError, OSError):
            told = True
        if not disk.struck:
            break
        untold += not told
        store = Store.open(copy)
        assert verify(store).ok
        assert alive <= held(store)
    assert at > 20
    assert untold <= 4  # of what was to be unlinked, and is met again


def test_a_full_disk_is_said_in_words(tmp_path):
    bench = grown(tmp_path)
    bench.reopen(FaultyDisk(3, failing(errno.ENOSPC)))
    with pytest.raises(TurnmarkError, match=r"Could not repack the store: the disk of .* is full"):
        deep_repack(bench.store)


def test_where_something_is_damaged_all_stays(tmp_path):
    bench = grown(tmp_path)
    broken = next(p for p in bench.store.packs() if p.holds(bench.point().snapshot.id))
    os.chmod(broken.path + ".pack", 0o600)
    with open(broken.path + ".pack", "r+b") as file:
        file.seek(12)
        file.write(b"\xff" * (os.stat(file.fileno()).st_size - 32))
    store = Store.open(bench.store.base)
    before = sorted(os.listdir(f"{store.base}/objects/pack"))
    done = deep_repack(store)
    assert "Nothing was reclaimed: run `turnmark store repair` first." in done.errors
    assert sorted(os.listdir(f"{store.base}/objects/pack")) == before


def test_what_a_killed_one_leaves_goes_with_the_next_consolidation(tmp_path):
    bench = grown(tmp_path)
    place = Path(bench.store.base, "turnmark/tmp/deep-1/pack")
    place.mkdir(parents=True)
    (place / "tmp_pack_x").write_bytes(b"x" * 1000)
    consolidate(bench.store)
    assert left_over(bench.store) == []


@pytest.mark.parametrize("name", ["a:b", 'quo"te', "back\\slash", "line\nbreak", "späce d"])
def test_git_finds_the_store_wherever_it_is(tmp_path, name):
    bench = grown(tmp_path / name)
    before = everything(bench.store)
    assert not deep_repack(bench.store).errors
    assert len(bench.store.packs()) == 1
    assert before.items() <= everything(Store.open(bench.store.base)).items()


def test_packs_that_somebody_keeps_on_purpose_stay(tmp_path):
    bench = grown(tmp_path)
    kept = bench.store.packs()[0].path
    Path(kept + ".keep").touch()
    deep_repack(bench.store)
    assert os.path.exists(kept + ".pack")
    assert verify(bench.store).ok


def test_a_second_one_with_nothing_new_changes_nothing(tmp_path):
    bench = grown(tmp_path)
    deep_repack(bench.store)
    before = everything(bench.store)
    done = deep_repack(bench.store)
    assert not done.errors
    assert everything(bench.store) == before
    assert left_over(bench.store) == []


# When


@pytest.fixture
def large(tmp_path, monkeypatch) -> Bench:
    """A store that is worth it, as far as that goes here."""
    monkeypatch.setattr(module, "LEAST_BYTES", 100)
    return grown(tmp_path)


def more(bench: Bench, size: int) -> None:
    (bench.path / "noise").write_bytes(os.urandom(size))
    bench.point()


def when_due(bench: Bench, now_ns: int, git: str = "git") -> Swept | None:
    return repack_when_due(bench.store, now_ns, DAY_NS, git)


def packed(store: Store) -> int:
    return sum(pack.size() for pack in store.packs())


def test_once_a_day_where_enough_has_come(large):
    assert when_due(large, NOW) is not None
    left = packed(large.store)
    more(large, left // 2)
    assert when_due(large, NOW + DAY_NS - 1) is None
    assert when_due(large, NOW + DAY_NS) is not None


def test_not_where_hardly_anything_has_come(large):
    more(large, 100_000)
    when_due(large, NOW)
    large.point("the same again")
    assert when_due(large, NOW + 9 * DAY_NS) is None


def test_at_once_where_it_has_doubled(large):
    when_due(large, NOW)
    more(large, packed(large.store))
    assert when_due(large, NOW + 1) is not None


def test_not_where_it_is_small(tmp_path):
    bench = grown(tmp_path)
    assert when_due(bench, NOW) is None
    assert len(bench.store.packs()) > 1


def test_a_clock_that_went_back_or_a_damaged_note_is_no_reason_to_wait(large):
    when_due(large, NOW)
    more(large, packed(large.store) // 2)
    assert when_due(large, NOW - 5 * DAY_NS) is not None
    Path(large.store.base, "turnmark/last_repack").write_bytes(b"\xff\xfe nonsense")
    assert when_due(large, NOW) is not None


def test_without_git_or_room_nothing_is_begun(large, monkeypatch):
    assert when_due(large, NOW, "no-such-git") is None
    monkeypatch.setattr(Disk, "free", lambda *_: 10)
    assert when_due(large, NOW) is None
    assert not Path(large.store.base, "turnmark/last_repack").exists()


def test_one_that_fails_is_tried_again_but_not_at_once(large, tmp_path):
    """Found by an attacker: it was not tried again before the store had grown."""
    bad = tmp_path / "git"
    bad.write_text("#!/bin/sh\nexit 3\n")
    bad.chmod(0o755)
    done = when_due(large, NOW, str(bad))
    assert done is not None
    assert done.errors
    assert when_due(large, NOW + DAY_NS - 1) is None
    done = when_due(large, NOW + DAY_NS)
    assert done is not None
    assert not done.errors
    assert when_due(large, NOW + 9 * DAY_NS) is None


def test_who_waits_for_the_store_need_not_wait_for_git(large, tmp_path):
    slow = tmp_path / "git"
    slow.write_text(f"#!/bin/sh\ntouch {tmp_path}/begun\nexec sleep 600\n")
    slow.chmod(0o755)

    def deepen() -> None:
        with pytest.raises(Busy):
            when_due(large, NOW, str(slow))

    thread = threading.Thread(target=deepen)
    thread.start()
    until((tmp_path / "begun").exists)
    with Store.open(large.store.base).maintaining(wait=30.0):
        assert left_over(large.store) == []
    thread.join()
    assert when_due(large, NOW + 1) is not None


def test_the_store_can_be_kept_up_where_no_lock_says_that_it_is_wanted(large):
    """On a full disk there is no room for a file more, and that is when a prune is needed."""
    Path(large.store.base, "turnmark/locks/wanted").unlink(missing_ok=True)
    Path(large.store.base, "turnmark/locks/wanted").mkdir()
    with large.store.maintaining():
        assert not large.store.is_wanted()
    assert when_due(large, NOW) is not None


def test_what_lies_where_git_is_to_write_is_not_taken_for_its_own(large):
    """Found by an attacker: in a container, processes often have the same number."""
    dead = next(pack for pack in large.store.packs())
    place = Path(large.store.base, f"turnmark/tmp/deep-{os.getpid()}")
    place.mkdir()
    for end in (".pack", ".idx"):
        shutil.copy(dead.path + end, place)
    drop(large, *range(5))
    assert not deep_repack(large.store).errors
    assert held(large.store) == reached(large.store)


def test_who_is_told_to_stop_takes_the_note_back(large, monkeypatch):
    def stop(*_: object) -> None:
        raise SystemExit

    monkeypatch.setattr(module, "_run_git", stop)
    with pytest.raises(SystemExit):
        when_due(large, NOW)
    assert left_over(large.store) == []
    monkeypatch.undo()
    monkeypatch.setattr(module, "LEAST_BYTES", 100)
    assert when_due(large, NOW + 1) is not None
