"""Files made ahead: used once, by whoever made them, and only while they are where they were."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from core.disk import REAL, Disk
from core.history import MarkSpec
from core.spares import Spares
from tests.stores import Bench, fsck
from tests.trees import build


@pytest.fixture
def spares(tmp_path: Path):
    made = Spares(REAL, f"{tmp_path}/part-")
    made.fill(2)
    yield made
    made.close()


def inode(path: str) -> int:
    return os.stat(path).st_ino


def test_what_was_made_ahead_is_taken_once(spares: Spares, tmp_path: Path) -> None:
    made = {str(path) for path in tmp_path.iterdir()}
    taken = [spares.take() for _ in range(3)]
    assert len(made) == 2
    assert {one.path for one in taken[:2]} == made
    assert taken[2].path not in made
    assert [inode(one.path) for one in taken] == [os.fstat(one.fd).st_ino for one in taken]
    for one in taken:
        os.close(one.fd)


@pytest.mark.parametrize("again", [False, True], ids=["gone", "another in its place"])
def test_what_was_swept_away_is_not_taken(spares: Spares, tmp_path: Path, again: bool) -> None:
    fds = len(os.listdir("/proc/self/fd"))
    for path in tmp_path.iterdir():
        path.unlink()
        if again:
            path.write_bytes(b"not ours")
    taken = spares.take()
    assert inode(taken.path) == os.fstat(taken.fd).st_ino
    assert os.fstat(taken.fd).st_size == 0
    assert len(os.listdir("/proc/self/fd")) == fds - 1
    os.close(taken.fd)


def test_what_was_swept_away_is_made_anew_ahead(spares: Spares, tmp_path: Path) -> None:
    fds = len(os.listdir("/proc/self/fd"))
    for path in tmp_path.iterdir():
        path.unlink()
    spares.fill(2)
    assert len(list(tmp_path.iterdir())) == 2
    assert len(os.listdir("/proc/self/fd")) == fds


def test_a_child_leaves_its_parents_alone(spares: Spares) -> None:
    pid = os.fork()
    if pid == 0:
        parents = {one.path for one in spares._ready}
        taken = spares.take()
        spares.close()
        os._exit(taken.path in parents)
    assert os.waitpid(pid, 0)[1] == 0
    assert os.path.exists(spares.take().path)


def test_what_nobody_took_is_put_away(spares: Spares, tmp_path: Path) -> None:
    spares.close()
    assert list(tmp_path.glob("part-*")) == []


class Making(Disk):
    """Counts the files that are made."""

    def __init__(self) -> None:
        self.made = 0

    def open(self, name: bytes | str, flags: int, mode: int = 0o600, at: int | None = None) -> int:
        self.made += bool(flags & os.O_EXCL)
        return super().open(name, flags, mode, at)


def test_a_snapshot_that_was_prepared_for_makes_no_file(tmp_path: Path) -> None:
    disk = Making()
    bench = Bench(tmp_path)
    bench.reopen(disk)
    build(bench.path, {"a": "1"})
    bench.point()
    bench.store.prepare()
    build(bench.path, {"a": "changed"})
    before = disk.made
    taken = bench.recorder.take(mark=MarkSpec("manual"))
    assert disk.made == before
    assert taken.mark is not None
    bench.store.sweep_leftovers()
    build(bench.path, {"a": "once more"})
    bench.point()
    bench.store.put_away()
    left = [*Path(bench.store.base, "objects/pack").iterdir()]
    assert {path.suffix for path in left} <= {".pack", ".idx", ".rev"}
    assert list(Path(bench.store.base, "turnmark/tmp").iterdir()) == []
    bench.close()
    fsck(bench.store.base)
