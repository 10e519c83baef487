"""Files made ahead: used once, by whoever made them, and only while they are where they were."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.aside import CREW
from core.consolidate import consolidate
from core.disk import REAL, Disk
from core.history import MarkSpec
from core.spares import Spares
from core.store import Store
from core.sweep import sweep
from tests.stores import Bench, fsck, held_below
from tests.trees import build
from tests.watching import PATIENT, Live, until
from watcher.workspace import Settings, Workspace


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
    fds = held_below(tmp_path)
    for path in tmp_path.iterdir():
        path.unlink()
        if again:
            path.write_bytes(b"not ours")
    taken = spares.take()
    assert inode(taken.path) == os.fstat(taken.fd).st_ino
    assert os.fstat(taken.fd).st_size == 0
    assert held_below(tmp_path) == fds - 1
    os.close(taken.fd)


def test_what_was_swept_away_is_made_anew_ahead(spares: Spares, tmp_path: Path) -> None:
    fds = held_below(tmp_path)
    for path in tmp_path.iterdir():
        path.unlink()
    spares.fill(2)
    assert len(list(tmp_path.iterdir())) == 2
    assert held_below(tmp_path) == fds


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
    bench.recorder.prepare()
    build(bench.path, {"a": "changed"})
    before = disk.made
    taken = bench.recorder.take(mark=MarkSpec("manual"))
    assert disk.made == before
    assert taken.mark is not None
    bench.store.sweep_leftovers()
    build(bench.path, {"a": "once more"})
    bench.point()
    bench.recorder.put_away()
    left = [*Path(bench.store.base, "objects/pack").iterdir()]
    assert {path.suffix for path in left} <= {".pack", ".idx", ".rev"}
    assert list(Path(bench.store.base, "turnmark/tmp").iterdir()) == []
    bench.close()
    fsck(bench.store.base)


class PuttingAway(Disk):
    """Another workspace leaves while its files are listed."""

    other: Bench | None = None

    @contextmanager
    def scandir(self, where: int | str) -> Iterator[Any]:  # type: ignore[override]
        with super().scandir(where) as found:
            entries = list(found)
        if self.other is not None and any(entry.name.startswith("writing-") for entry in entries):
            self.other.store.put_away()
        yield iter(entries)


@pytest.mark.parametrize("upkeep", [sweep, consolidate])
def test_an_upkeep_does_not_stumble_over_who_leaves(tmp_path: Path, upkeep) -> None:
    """Found by a reviewer."""
    bench = Bench(tmp_path)
    build(bench.path, {"a": "1"})
    bench.point()
    bench.recorder.prepare()
    disk = PuttingAway()
    disk.other = bench
    upkeep(Store.open(bench.store.base, disk))
    assert not list(Path(bench.store.base, "objects/pack").glob("writing-*"))


def test_a_workspace_without_room_for_spares_is_watched(tmp_path: Path, monkeypatch) -> None:
    """Found by a reviewer: it was paused, and looked at again and again."""
    bench = Bench(tmp_path)
    build(bench.path, {"a": "1"})
    bench.point()
    bench.close()

    def full(spares: Spares) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", spares.prefix)

    monkeypatch.setattr(Spares, "_make", full)
    settings = Settings(bench.rules, observer="scan")
    workspace = Workspace(bench.store.base, bench.root, settings, None, lambda _: None)
    workspace.start()
    try:
        assert workspace.ready.wait(20)
        assert workspace.state == "scan-only"
    finally:
        workspace.stop()
        assert workspace.join(20)


def test_only_where_turns_come_something_is_made_ahead(tmp_path: Path) -> None:
    """Two hundred directories at rest would hold hundreds of files and descriptors."""
    build(tmp_path / "work", {"a": "1"})

    def made() -> tuple[int, int]:
        store = tmp_path / "store"
        spares, logs = store.glob("objects/pack/writing-*"), store.glob("turnmark/ahead/*")
        return len(list(spares)), len(list(logs))

    with Live(tmp_path, replace(PATIENT, audit=1.5, durable=True)).ready() as live:
        assert made() == (0, 0)
        live.ask()
        until(lambda: made() == (4, 1))
        until(lambda: made() == (0, 0))


def test_where_nothing_is_to_be_durable_there_is_no_log(tmp_path: Path) -> None:
    build(tmp_path / "work", {"a": "1"})
    with Live(tmp_path, replace(PATIENT, durable=False)).ready() as live:
        live.ask()
        until(lambda: len(list((tmp_path / "store/objects/pack").glob("writing-*"))) == 4)
        assert not (tmp_path / "store/turnmark/ahead").exists()


def test_who_is_interrupted_waits_for_those_who_unlink(tmp_path: Path) -> None:
    """Found by a reviewer: they went on in whatever directory got the descriptor's number."""
    names = [b"%d" % n for n in range(80)]
    for name in names:
        (tmp_path / name.decode()).touch()
    begun, busy = threading.Event(), []

    class Slow(Disk):
        def unlink(self, name: bytes | str, at: int | None = None) -> None:
            if threading.current_thread() is not threading.main_thread():
                busy.append(name)
                begun.set()
                time.sleep(0.003)
                busy.remove(name)
            elif begun.wait(10):
                raise KeyboardInterrupt
            super().unlink(name, at)

    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(KeyboardInterrupt):
            Slow().unlink_all([(fd, name) for name in names])
        assert busy == []
        assert len(list(tmp_path.iterdir())) == 80 // CREW
    finally:
        os.close(fd)
