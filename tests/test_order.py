"""Where no journal keeps the order, nothing has a name on the disk before it is there itself."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from core.disk import Disk
from core.model import Oid
from core.refs import TOP, RefStore
from core.store import LONG, ROOM, Store
from tests.stores import Bench
from tests.trees import Dir, File, Leaf, Link, build, image

Tree = dict[str | bytes, Leaf]


class Told(Disk):
    """Writes down what changes names or modes, and what is synced, by the last of its name."""

    def __init__(self, *, in_order: bool = False) -> None:
        self.in_order = in_order
        self.log: list[str] = []

    def keeps_order(self, paths: Iterable[str]) -> bool:
        return self.in_order

    def has_no_journal(self, path: str) -> bool:
        return not self.in_order

    def at(self, line: str) -> int:
        return self.log.index(line)


def last(what: object) -> str:
    path = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else what
    assert isinstance(path, str | bytes)
    return os.fsdecode(os.path.basename(path))


def told(verb: str, which: int) -> Any:
    real = getattr(Disk, verb)

    def method(self: Told, *arguments: Any) -> Any:
        name = last(arguments[which])
        name = name.rstrip("0123456789-") if name.startswith("dir-") else name
        self.log.append(f"{verb} {name}")
        return real(self, *arguments)

    return method


for _verb, _which in {"fsync": 0, "sync_fs": 0, "chmod": 0, "mkdir": 0, "rmdir": 0}.items():
    setattr(Told, _verb, told(_verb, _which))
for _verb, _which in {"unlink": 0, "rename": 1, "exchange": 1, "link": 1}.items():
    setattr(Told, _verb, told(_verb, _which))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def back(bench: Bench, old: Tree, new: Tree, *, in_order: bool = False) -> Told:
    """The log of a rollback from the new state to the old one."""
    build(bench.path, old)
    before = image(bench.path)
    point = bench.point()
    for path in new:
        (bench.path / os.fsdecode(path)).unlink(missing_ok=True)
    build(bench.path, new)
    disk = Told(in_order=in_order)
    bench.reopen(disk)
    bench.back_to(point)
    assert image(bench.path) == before
    return disk


def test_staging_is_gone_for_certain_before_its_journal_is(bench: Bench) -> None:
    """Found by the campaign: a power cut left a hidden directory that nobody came for."""
    disk = back(bench, {"a": "1"}, {"a": "2"})
    (removed,) = [n for n, line in enumerate(disk.log) if line.startswith("rmdir .turnmark-")]
    assert disk.log[removed + 1] == f"fsync {bench.path.name}"
    assert disk.at(f"unlink {bench.root.id}.json") == removed + 2


def test_modes_that_a_rollback_set_are_synced(bench: Bench) -> None:
    """Found by the campaign: it was done, and after a power cut the file had its mode of before."""
    disk = back(bench, {"d/a": File("1", 0o600)}, {"d/a": File("1", 0o644)})
    assert disk.log[disk.at("chmod a") + 1] == "fsync a"
    assert not [line for line in disk.log if line.startswith("sync_fs")]


def test_a_directory_that_a_rollback_made_is_synced(bench: Bench) -> None:
    build(bench.path, {"a": "1", "new/": Dir()})
    point = bench.point()
    (bench.path / "new").rmdir()
    disk = Told()
    bench.reopen(disk)
    bench.back_to(point)
    made = disk.at("mkdir new")
    assert "fsync new" in disk.log[made : disk.at("chmod new")]
    assert disk.log[disk.at("chmod new") + 1] == "fsync new"


def test_for_a_link_that_a_rollback_brought_everything_is_synced(bench: Bench) -> None:
    disk = back(bench, {"a": Link("nowhere")}, {"a": "2"})
    assert f"sync_fs {bench.path.name}" in disk.log


def test_a_journal_needs_none_of_it(bench: Bench) -> None:
    disk = back(bench, {"a": Link("x"), "b": File("1", 0o600)}, {"a": "2", "b": "1"}, in_order=True)
    assert not [line for line in disk.log if line.startswith(("sync_fs", "exchange packed"))]
    assert "fsync b" not in disk.log


@pytest.mark.parametrize("in_order", [True, False])
def test_a_directory_of_references_is_there_before_its_name(tmp_path: Path, in_order: bool) -> None:
    """Found by the campaign: after a power cut it was a file, and no command worked any more."""
    store = Store.create(str(tmp_path / "store"))
    disk = Told(in_order=in_order)
    RefStore(disk, store.base).create(f"{TOP}/w/s/1", Oid(bytes(20)), sync=False)
    names = [line for line in disk.log if "dir" in line or line.endswith((" w", " s", "turnmark"))]
    each = ["mkdir dir", "fsync dir"]
    assert names == (
        ["mkdir w", "mkdir s"]
        if in_order
        else [*each, "rename w", "fsync turnmark", *each, "rename s", "fsync w"]
    )
    assert os.listdir(f"{store.base}/turnmark/tmp") == []


def test_one_that_another_process_has_filled_meanwhile_stays(tmp_path: Path) -> None:
    store = Store.create(str(tmp_path / "store"))

    class Late(Told):
        def rename(self, old: Any, new: Any, at: int | None = None, to: int | None = None) -> None:
            (Path(new) / "others").mkdir(parents=True)
            super().rename(old, new, at, to)

    disk = Late()
    RefStore(disk, store.base).order.directory(
        f"{store.base}/{TOP}/w", f"{store.base}/turnmark/tmp"
    )
    assert os.listdir(f"{store.base}/{TOP}/w") == ["others"]
    assert os.listdir(f"{store.base}/turnmark/tmp") == []


def test_what_is_replaced_stays_until_the_new_one_has_its_name(tmp_path: Path) -> None:
    """Without a journal the old one may go from the disk first, and both are lost."""
    disk = Told()
    path = tmp_path / "packed-refs"
    disk.replace(str(path), b"old")
    disk.log.clear()
    disk.replace(str(path), b"new")
    verbs = [line.split()[0] for line in disk.log]
    assert verbs == ["fsync", "exchange", "fsync", "unlink"]
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"new", ["packed-refs"])


def test_where_names_cannot_be_exchanged_one_is_replaced_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.disk.function", lambda name: None)
    disk = Told()
    for data in (b"old", b"new"):
        disk.replace(str(tmp_path / "a"), data)
    assert ((tmp_path / "a").read_bytes(), os.listdir(tmp_path)) == (b"new", ["a"])


@pytest.mark.parametrize("number", [errno.EPERM, errno.EINVAL])
def test_where_somebody_forbids_it_one_is_replaced_all_the_same(
    tmp_path: Path, number: int
) -> None:
    class Forbidding(Told):
        def exchange(self, old: bytes, new: bytes, at: int, to: int) -> None:
            raise OSError(number, os.strerror(number))

    for data in (b"old", b"new"):
        Forbidding().replace(str(tmp_path / "a"), data)
    assert ((tmp_path / "a").read_bytes(), os.listdir(tmp_path)) == (b"new", ["a"])


def test_the_directory_of_packs_has_room_from_the_beginning(tmp_path: Path) -> None:
    """Found by the campaign: when ext4 divided its block, packs of long ago had no names."""
    disk = Told()
    store = Store.create(str(tmp_path / "store"), disk)
    assert sum(line.startswith("link writing-") for line in disk.log) == ROOM - 1
    assert disk.at("fsync pack") > disk.at(f"unlink writing-{ROOM - 1:03}{LONG}")
    assert os.listdir(store.packs_in) == []
    assert (ROOM - 1) * len(LONG) > 6 * 4096
    disk.log.clear()
    Store.create(store.base, disk)
    assert disk.log == []


def test_a_new_store_and_all_that_leads_to_it_is_synced_before_it_counts(tmp_path: Path) -> None:
    disk = Told()
    Store.create(str(tmp_path / "new/home/store"), disk)
    counts = disk.at("rename layout.json")
    synced = {line.removeprefix("fsync ") for line in disk.log[:counts] if "fsync" in line}
    made = {os.path.basename(path) for path, _, _ in os.walk(tmp_path / "new")}
    assert made | {tmp_path.name} <= synced
    for place in ("new", "home", "store"):
        assert f"fsync {place}" in disk.log[disk.at(f"mkdir {place}") : counts]


def test_a_store_is_made_also_where_there_is_no_such_room(tmp_path: Path) -> None:
    class NoLinks(Told):
        def link(self, *arguments: Any) -> None:
            raise PermissionError

    store = Store.create(str(tmp_path / "store"), NoLinks())
    assert os.listdir(store.packs_in) == []
    Store.open(store.base)
