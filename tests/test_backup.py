"""A backup is a whole store or nothing, also while others write and tidy up."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from core.backup import backup
from core.consolidate import consolidate
from core.disk import Disk
from core.errors import BadInput, Busy, Damaged, TurnmarkError
from core.history import History, read_snapshot
from core.recorder import Recorder
from core.store import Store
from core.verify import verify
from tests.faults import die_at_each
from tests.stores import ALL, fsck
from tests.test_consolidate import git, grown
from tests.trees import build


def test_a_backup_is_the_store_without_its_caches(tmp_path):
    bench = grown(tmp_path, 3)
    done = backup(bench.store, str(tmp_path / "deep/er/copy"))
    copy = Store.open(done.path)
    assert done.snapshots == 3
    assert copy.refs.below("refs") == bench.store.refs.below("refs")
    assert not copy.refs.loose("refs")
    assert verify(copy).ok
    fsck(copy.base)
    assert not os.listdir(f"{copy.base}/turnmark/cache")
    assert os.listdir(f"{copy.base}/turnmark/workspaces") == [f"{bench.root.id}.json"]


def test_what_a_users_git_wrote_is_backed_up_too(tmp_path):
    bench = grown(tmp_path, 2)
    files = read_snapshot(bench.store, bench.history().snapshot_ids[1]).files
    who = ("-c", "user.name=u", "-c", "user.email=u@example.org")
    oid = git(bench.store.base, *who, "commit-tree", "-m", "mine", files.hex()).strip()
    git(bench.store.base, "update-ref", "refs/heads/mine", oid)
    copy = Store.open(backup(bench.store, str(tmp_path / "copy")).path)
    assert "mine" in git(copy.base, "log", "--format=%s", "refs/heads/mine")
    assert verify(copy).ok
    fsck(copy.base)


def test_work_goes_on_in_a_backup(tmp_path):
    bench = grown(tmp_path, 2)
    done = backup(bench.store, str(tmp_path / "copy"))
    copy = Store.open(done.path)
    recorder = Recorder(copy, bench.root, ALL)
    assert not recorder.take().fresh
    build(bench.path, {"late": "x"})
    assert recorder.take().fresh
    recorder.close()
    fsck(copy.base)


def test_an_empty_target_will_do_and_a_full_one_will_not(tmp_path):
    bench = grown(tmp_path, 1)
    (tmp_path / "empty").mkdir()
    backup(bench.store, str(tmp_path / "empty"))
    with pytest.raises(BadInput, match="not empty"):
        backup(bench.store, str(tmp_path / "empty"))
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="not a directory"):
        backup(bench.store, str(tmp_path / "file"))
    with pytest.raises(BadInput, match="in the store"):
        backup(bench.store, f"{bench.store.base}/objects/copy")


def test_a_damaged_store_is_not_passed_off_as_a_backup(tmp_path):
    bench = grown(tmp_path, 2)
    path = Path(bench.store.packs()[0].path + ".pack")
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(Damaged, match="not whole"):
        backup(bench.store, str(tmp_path / "copy"))
    assert not (tmp_path / "copy").exists()


def test_upkeep_waits_until_the_copy_is_made(tmp_path):
    bench = grown(tmp_path, 2)

    class Curious(Disk):
        """Tries to tidy up as soon as the copy has its first file."""

        met = False

        def chmod(self, fd, mode):
            if not self.met:
                self.met = True
                with pytest.raises(Busy), Store.open(bench.store.base).maintaining(0.0):
                    pass
            super().chmod(fd, mode)

    disk = Curious()
    backup(Store.open(bench.store.base, disk), str(tmp_path / "copy"))
    assert disk.met


def test_a_backup_of_a_store_in_use_is_clean(tmp_path):
    bench = grown(tmp_path, 3)
    stop = threading.Event()

    def work() -> None:
        store = Store.open(bench.store.base)
        while not stop.is_set():
            consolidate(store)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for turn in range(6):
            build(bench.path, {"f": f"{turn}"})
            bench.point()
            done = backup(Store.open(bench.store.base), str(tmp_path / f"copy{turn}"))
            known = History(Store.open(done.path), bench.root.id)
            assert known.last_seq() >= 8 + 2 * turn
            fsck(done.path)
    finally:
        stop.set()
        thread.join()


def test_what_is_published_while_it_begins_does_not_look_like_damage(tmp_path):
    """Found by the campaign: a copy was refused for packs newer than its references."""
    bench = grown(tmp_path, 3)

    class Busy(Disk):
        rounds = 0

        def scandir(self, where):
            if str(where).endswith("objects/pack") and self.rounds < 3:
                self.rounds += 1
                for text in ("one", "two"):
                    build(bench.path, {"f": f"{text}{self.rounds}"})
                    bench.point()
            return super().scandir(where)

    disk = Busy()
    done = backup(Store.open(bench.store.base, disk), str(tmp_path / "copy"))
    assert disk.rounds == 3
    assert verify(Store.open(done.path)).ok
    fsck(done.path)


def test_whatever_step_it_dies_at_there_is_a_whole_target_or_none(tmp_path):
    bench = grown(tmp_path / "template", 1)
    bench.close()
    target = tmp_path / "copies"

    def run(disk: Disk) -> None:
        backup(Store.open(bench.store.base, disk), str(target / "copy"))

    for at in die_at_each(run):
        if (target / "copy").exists():
            assert verify(Store.open(str(target / "copy"))).ok
            target.rename(tmp_path / f"done{at}")
    assert verify(bench.store).ok
    fsck(bench.store.base)


def test_a_failing_disk_is_explained(tmp_path):
    bench = grown(tmp_path, 1)

    class Full(Disk):
        def chmod(self, fd, mode):
            raise OSError(28, "No space left on device")

    with pytest.raises(TurnmarkError, match="full"):
        backup(Store.open(bench.store.base, Full()), str(tmp_path / "copy"))
