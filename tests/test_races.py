"""What others do at full speed while we look or roll back: nothing outside is reached or lost."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from core.about import decode_about
from core.diff import files_of
from core.disk import REAL, Disk
from core.errors import TurnmarkError
from core.history import History, MarkSpec, read_snapshot
from core.model import LINK, Oid, RelPath
from core.objects import hash_object
from core.recorder import Recorder
from core.roots import Root, root_of
from core.store import Store
from tests.stores import ALL, Bench, fsck
from tests.trees import Dir, Leaf, Link, build, image

Tree = dict[str, Leaf]
SECONDS = 1.2
CANARY = b"canary: this is outside of the workspace"


@contextmanager
def meanwhile(work: Callable[[], None]) -> Iterator[None]:
    """Does it over and over in another process."""
    pid = os.fork()
    if pid == 0:
        while True:
            with suppress(FileNotFoundError):  # what was moved away for a moment
                work()
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def for_a_while() -> Iterator[int]:
    until, count = time.monotonic() + SECONDS, 0
    while time.monotonic() < until:
        yield count
        count += 1


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    return build(tmp_path / "outside", {"f": CANARY, "deep/f": CANARY, ".gitignore": CANARY})


@pytest.fixture
def bench(tmp_path: Path, outside: Path) -> Bench:
    bench = Bench(tmp_path)
    build(bench.path, {"d/f": "inside", "d/deep/f": "inside", "f": "inside"})
    bench.point()
    return bench


def swapper(bench: Bench, outside: Path, name: str) -> Callable[[], None]:
    """Lets a directory and a link to the outside change places."""
    (bench.base / "trick").symlink_to(outside)
    here = os.open(bench.path / name.rpartition("/")[0], os.O_RDONLY)
    there = os.open(bench.base, os.O_RDONLY)
    last = os.fsencode(name.rpartition("/")[2])
    return lambda: REAL.exchange(last, b"trick", here, there)


def holds_canary(store: Store) -> bool:
    return store.has(hash_object("blob", CANARY))


@pytest.mark.parametrize("name", ["d", "d/deep"])
def test_a_directory_swapped_for_a_link_while_looking_leads_nowhere(
    bench: Bench, outside: Path, name: str
) -> None:
    linked = 0
    with meanwhile(swapper(bench, outside, name)):
        for count in for_a_while():
            build(bench.path, {"f": str(count)})
            paths = [None, [RelPath(b"d/f"), RelPath(b"d/deep/f"), RelPath(b"f")]][count % 2]
            taken = bench.recorder.take(paths, sync=False)
            found = dict(files_of(bench.store.tree, taken.snapshot.files))
            gaps = decode_about(bench.store.blob(taken.snapshot.about)).gaps
            linked += found.get(RelPath(name.encode()), (0,))[0] == LINK
            assert all(p in found or p in gaps or whole(found, gaps, p) for p in [name.encode()])
    assert linked
    assert not holds_canary(bench.store)
    fsck(bench.store.base)


def whole(found: object, gaps: object, top: bytes) -> bool:
    """Neither link nor gap: then the directory with all that was in it."""
    assert isinstance(found, dict)
    below = {path for path in found if path.startswith(top + b"/")}
    return top + b"/f" in below


def test_a_file_swapped_for_a_link_while_looking_is_never_followed(
    bench: Bench, outside: Path
) -> None:
    (bench.base / "trick").symlink_to(outside / "f")
    here, there = (os.open(path, os.O_RDONLY) for path in (bench.path, bench.base))
    with meanwhile(lambda: REAL.exchange(b"f", b"trick", here, there)):
        for _ in for_a_while():
            taken = bench.recorder.take(sync=False)
            found = dict(files_of(bench.store.tree, taken.snapshot.files))
            gaps = decode_about(bench.store.blob(taken.snapshot.about)).gaps
            assert b"f" in found or b"f" in gaps
    assert not holds_canary(bench.store)


@pytest.mark.parametrize("name", ["d", "d/deep"])
def test_a_directory_swapped_for_a_link_while_rolling_back_leads_nowhere(
    bench: Bench, outside: Path, name: str
) -> None:
    before = image(outside)
    newest = bench.history().newest()
    assert newest is not None
    point = bench.recorder.take(mark=MarkSpec("manual"))
    done = 0
    with meanwhile(swapper(bench, outside, name)):
        for count in for_a_while():
            scribble(bench.path, count)
            with suppress(TurnmarkError):  # a fuse, or nothing to be reached just now
                done += bench.back_to(point).outcome == "done"
    assert done
    assert image(outside) == before
    assert not holds_canary(bench.store)
    bench.finish()
    bench.recorder.take()
    assert not [n for n in os.listdir(bench.path) if n.startswith(".turnmark")]
    fsck(bench.store.base)


def scribble(path: Path, count: int) -> None:
    """What the rollback will have to take back, written without following the links."""
    build(path, {"f": str(count), f"extra{count % 3}/x": "x"})
    for name in ("d", "d/deep"):
        try:
            fd = os.open(path / name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            if os.fstat(fd).st_ino != (path.parent / "outside" / name[2:]).stat().st_ino:
                file = os.open(f"new{count % 2}", os.O_WRONLY | os.O_CREAT, dir_fd=fd)
                os.close(file)
        finally:
            os.close(fd)


class SwappingDisk(Disk):
    """Puts a directory in the place of a link in the moment before it is moved aside."""

    def __init__(self, root: Path, *, again: bool) -> None:
        self.root = root
        self.again = again

    def rename_new(self, old: bytes, new: bytes, at: int, to: int) -> None:
        swap = old == b"link" and (self.root / "link").is_symlink()
        if swap:
            (self.root / "link").unlink()
            build(self.root, {"link/precious": "not in any snapshot"})
        super().rename_new(old, new, at, to)
        if swap and self.again:
            build(self.root, {"link": "a third thing"})


@pytest.mark.parametrize("again", [False, True])
def test_a_directory_swapped_in_for_what_is_deleted_is_given_back(
    bench: Bench, again: bool
) -> None:
    point = bench.point()
    build(bench.path, Tree({"link": Link("f"), "new": "x"}))
    bench.reopen(SwappingDisk(bench.path, again=again))
    done = bench.back_to(point)
    assert [left.path for left in done.conflicts] == [b"link"]
    place = "link.saved-1" if again else "link"
    assert (bench.path / place / "precious").read_text() == "not in any snapshot"
    assert not (bench.path / "new").exists()
    assert not [n for n in os.listdir(bench.path) if n.startswith(".turnmark")]
    assert bench.finish() is None


def test_a_rollback_first_finishes_one_that_was_interrupted(bench: Bench) -> None:
    class Failing(Disk):
        def unlink(self, name: bytes | str, at: int | None = None) -> None:
            if name == b"0":
                raise OSError(5, "failed")
            super().unlink(name, at)

    point = bench.point()
    build(bench.path, {"f": "newer"})
    bench.reopen(Failing())
    with pytest.raises(TurnmarkError, match="finish the rollback"):
        bench.back_to(point)
    bench.reopen()
    assert bench.back_to(point).outcome == "nothing"
    assert not [n for n in os.listdir(bench.path) if n.startswith(".turnmark")]


def test_directories_that_are_moved_about_while_looking_are_never_halved(bench: Bench) -> None:
    """A directory that is renamed to and fro is, in each snapshot, whole, or a gap, or away."""
    build(bench.path, {f"m/{n}": str(n) for n in range(30)})
    (bench.path / "to").mkdir()
    os.rename(bench.path / "m", bench.path / "to/m")
    here, there = bench.path / "m", bench.path / "to/m"

    def move() -> None:
        os.rename(there, here)
        os.rename(here, there)

    with meanwhile(move):
        for _ in for_a_while():
            taken = bench.recorder.take(sync=False)
            found = [path for path, _ in files_of(bench.store.tree, taken.snapshot.files)]
            for top in (b"m/", b"to/m/"):
                assert len([p for p in found if p.startswith(top)]) in (0, 30)


# Many at once


def worker(base: str, root: Root, name: str, tell: int) -> None:
    """Edits, takes, and tells what was acknowledged, until it is ended."""
    rng = random.Random(name)
    count = 0
    while True:
        count += 1
        data = f"{name} {count} ".encode() * rng.randrange(1, 400)
        file = os.path.join(os.fsdecode(root.path), name, f"{count % 7}")
        with open(file, "wb") as out:
            out.write(data)
        store = Store.open(base)
        with store.workspace_lock(root.id, wait=30):
            recorder = Recorder(store, root, ALL)
            spec = MarkSpec("manual", name) if count % 3 == 0 else None
            taken = recorder.take(mark=spec, sync=count % 4 == 0)
            recorder.close()
        path = os.path.relpath(file, os.fsdecode(root.path))
        told = (taken.snapshot.id.hex(), path, hash_object("blob", data).hex())
        os.write(tell, (" ".join(told) + "\n").encode())


def test_four_processes_in_two_workspaces_of_one_store_lose_no_acknowledged_snapshot(
    tmp_path: Path,
) -> None:
    store = Store.create(str(tmp_path / "store"))
    roots = [root_of(os.fsencode(build(tmp_path / f"w{n}", {}))) for n in range(2)]
    read, write = os.pipe()
    pids = []
    for number in range(4):
        root = roots[number % 2]
        os.mkdir(os.path.join(os.fsdecode(root.path), str(number)))
        pid = os.fork()
        if pid == 0:
            worker(store.base, root, str(number), write)
        pids.append(pid)
    time_is_up = time.monotonic() + SECONDS * 1.5
    os.close(write)
    said = b""
    while time.monotonic() < time_is_up or said.count(b"\n") < 40:
        said += os.read(read, 1 << 16)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    for pid in pids:
        os.waitpid(pid, 0)
    while part := os.read(read, 1 << 16):
        said += part
    os.close(read)
    acknowledged = [line.split() for line in said.decode().splitlines()]
    assert len({name for _, name, _ in acknowledged}) > 4
    check_acknowledged(Store.open(store.base), roots, acknowledged)


def check_acknowledged(store: Store, roots: list[Root], told: list[list[str]]) -> None:
    for commit, path, blob in told:
        snapshot = read_snapshot(store, Oid(bytes.fromhex(commit)))
        found = dict(files_of(store.tree, snapshot.files))
        assert found[RelPath(path.encode())].oid.hex() == blob
        assert store.read(found[RelPath(path.encode())].oid)
    for root in roots:
        history = History(store, root.id)
        numbers = [s.seq for s in history.snapshots()] + [m.seq for m in history.marks()]
        assert len(numbers) == len(set(numbers))
        assert not history.damage
        recorder = Recorder(store, root, ALL)
        taken = recorder.take()
        recorder.close()
        files = {p for p, leaf in image(root.path).items() if leaf[0] == "file"}
        assert {p for p, _ in files_of(store.tree, taken.snapshot.files)} == files
    fsck(store.base)


def test_a_tree_that_is_torn_down_while_it_is_looked_at_is_no_error(bench: Bench) -> None:
    def come_and_go() -> None:
        build(bench.path, Tree({"t/a/b/c": "1", "t/l": Link("a"), "t/e/": Dir(), "t/g": "2"}))
        shutil.rmtree(bench.path / "t")

    with meanwhile(come_and_go):
        for count in for_a_while():
            paths = None if count % 2 else [RelPath(b"t/a/b/c"), RelPath(b"t/g"), RelPath(b"t")]
            bench.recorder.take(paths, sync=False)
    shutil.rmtree(bench.path / "t", ignore_errors=True)
    taken = bench.recorder.take()
    assert {p for p, _ in files_of(bench.store.tree, taken.snapshot.files)} == {
        *(b"f", b"d/f", b"d/deep/f")
    }
    fsck(bench.store.base)
