"""What no reference reaches goes; what one reaches never does, whoever writes or dies meanwhile."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from core import sweep as module
from core.consolidate import consolidate, hide_packs, merge, rebuild_views, unlink_hidden
from core.disk import Disk
from core.errors import Damaged, TurnmarkError
from core.history import read_snapshot
from core.model import Oid
from core.objects import hash_object
from core.packing import TEMPORARY
from core.store import Store
from core.sweep import Reach, drop_refs, dropped, parse_dropped, roots, sweep
from core.verify import verify
from tests.faults import FaultyDisk, die_at_each, failing
from tests.stores import Bench, fsck
from tests.test_consolidate import everything, git, grown, repack_with_deltas
from tests.trees import build


def drop(bench: Bench, *points: int) -> None:
    """The nth points of a bench that was only given points."""
    top = f"refs/turnmark/{bench.root.id}"
    names = [f"{top}/{kind}/{2 * n + (kind == 'm') - 1}" for n in points for kind in "sm"]
    with bench.store.exclusive():
        drop_refs(bench.store, names)


def held(store: Store) -> set[Oid]:
    return {oid for pack in store.packs() for oid in pack.oids()}


def reached(store: Store) -> set[Oid]:
    found = Reach(store)
    found.walk(roots(store))
    assert not found.damage
    return found.oids


def test_dropped_snapshots_give_back_their_space_and_the_others_stay(tmp_path):
    bench = grown(tmp_path)
    drop(bench, 2, 3)
    done = sweep(bench.store, 0.0)
    assert done.bytes_freed > 0
    assert not done.errors
    assert held(bench.store) == reached(bench.store)
    assert verify(bench.store).ok
    fsck(bench.store.base)


def test_ids_do_not_change(tmp_path):
    bench = grown(tmp_path)
    before = bench.store.refs.below("refs")
    drop(bench, 2, 3)
    sweep(bench.store, 0.0)
    after = {n: o for n, o in bench.store.refs.below("refs").items() if not n.endswith("/view")}
    assert after.items() < before.items()


def test_a_little_dead_weight_is_not_worth_copying(tmp_path):
    bench = Bench(tmp_path)
    for turn in range(12):
        build(bench.path, {f"big{turn}": os.urandom(9000), "f": f"{turn}"})
        bench.point()
    consolidate(bench.store)
    drop(bench, 6)
    before = {pack.path for pack in bench.store.packs()}
    sweep(bench.store)
    assert before <= {pack.path for pack in bench.store.packs()}
    sweep(bench.store, 0.0)
    assert held(bench.store) == reached(bench.store)
    fsck(bench.store.base)


@pytest.mark.parametrize("by_name", [False, True])
def test_bases_of_deltas_stay_and_a_second_sweep_finds_nothing_to_do(tmp_path, by_name):
    bench = grown(tmp_path)
    repack_with_deltas(bench.store, by_name=by_name)
    drop(bench, 5, 6)
    sweep(bench.store, 0.0)
    assert verify(bench.store).ok
    fsck(bench.store.base)
    files = inodes(bench.store)
    assert sweep(bench.store, 0.0).bytes_freed == 0
    assert inodes(bench.store) == files


def inodes(store: Store) -> dict[str, int]:
    """A pack that was copied onto itself has another inode."""
    return {pack.path: os.stat(pack.path + ".pack").st_ino for pack in store.packs()}


def test_caches_are_told_also_of_what_somebody_else_unreferenced(tmp_path):
    bench = grown(tmp_path)
    top = f"refs/turnmark/{bench.root.id}"
    bench.store.refs.delete([f"{top}/s/3", f"{top}/m/4"])
    before = bench.store.generation()
    sweep(bench.store, 0.0)
    assert held(bench.store) == reached(bench.store)
    assert bench.store.generation() == before + 1


def test_caches_are_told_that_something_went(tmp_path):
    bench = grown(tmp_path)
    before = bench.store.generation()
    drop(bench, 2)
    sweep(bench.store, 0.0)
    assert bench.store.generation() > before
    assert not bench.recorder.take().fresh
    build(bench.path, {"late": "x"})
    assert bench.point().fresh
    fsck(bench.store.base)


def test_references_of_a_user_keep_what_they_name(tmp_path):
    bench = grown(tmp_path)
    wanted = bench.history().snapshot_ids[3]
    git(bench.store.base, "update-ref", "refs/heads/mine", wanted.hex())
    drop(bench, 2)
    sweep(bench.store, 0.0)
    assert read_snapshot(bench.store, wanted).seq == 3
    fsck(bench.store.base)


def test_what_appeared_while_it_copied_is_kept(tmp_path, monkeypatch):
    """A writer found an old object, and made its reference only after the walk."""
    bench = grown(tmp_path)
    store, gone = bench.store, bench.history().snapshot_ids[3]
    drop(bench, 2)
    real = merge

    def late(*arguments):
        path = real(*arguments)
        if store.refs.read("refs/turnmark/late") is None:
            store.refs.create("refs/turnmark/late", gone, sync=True)
        return path

    monkeypatch.setattr(module, "merge", late)
    sweep(store, 0.0)
    assert gone in reached(store)
    assert reached(store) <= held(store)
    store.refs.delete(["refs/turnmark/late"])
    fsck(store.base)


def test_writers_and_sweeps_at_once_lose_nothing(tmp_path):
    bench = grown(tmp_path, 2)
    errors: list[str] = []
    stop = threading.Event()

    def upkeep() -> None:
        store = Store.open(bench.store.base)
        while not stop.is_set():
            errors.extend(sweep(store, 0.0).errors)
            consolidate(store)

    thread = threading.Thread(target=upkeep)
    thread.start()
    try:
        for turn in range(15):
            build(bench.path, {"f": f"{turn % 5}", "g": f"{turn % 3}"})
            bench.point()
            if turn > 4:
                with bench.store.exclusive():
                    seqs = sorted(bench.history().snapshot_ids)[:1]
                    top = f"refs/turnmark/{bench.root.id}"
                    drop_refs(bench.store, [f"{top}/{k}/{s}" for s in seqs for k in "sm"])
                    drop_refs(bench.store, [f"{top}/m/{s + 1}" for s in seqs])
    finally:
        stop.set()
        thread.join()
    assert not errors
    assert verify(bench.store).ok
    fsck(bench.store.base)


# Damage


def test_where_a_tree_is_unreadable_nothing_is_dropped(tmp_path):
    bench = grown(tmp_path)
    drop(bench, 2)
    files = read_snapshot(bench.store, bench.history().snapshot_ids[11]).files
    pack = next(p for p in bench.store.packs() if p.place(files) is not None)
    os.rename(pack.path + ".idx", tmp_path / "idx")
    store = Store.open(bench.store.base)
    before = held(store)
    done = sweep(store, 0.0)
    assert "repair" in done.errors[-1]
    assert held(store) >= before
    os.rename(tmp_path / "idx", pack.path + ".idx")
    assert verify(Store.open(store.base)).ok


def test_a_damaged_pack_is_never_removed(tmp_path):
    bench = grown(tmp_path)
    pack = bench.store.packs()[0]
    drop(bench, 1, 2, 3, 4, 5)
    path = Path(pack.path + ".pack")
    path.chmod(0o600)
    data = path.read_bytes()
    path.write_bytes(data[:-3] + b"bad")
    done = sweep(bench.store, 0.0)
    assert any(pack.path in error for error in done.errors)
    assert path.exists()


def test_a_missing_blob_is_said_and_halves_are_left_for_repair(tmp_path):
    bench = grown(tmp_path)
    blob = next(o for o, (k, d) in everything(bench.store).items() if k == "blob" and d == b"5")
    consolidate(bench.store)
    whole = bench.store.packs()
    trees = [o for o in reached(bench.store) if o != blob]
    merge(bench.store, whole, set(trees))
    paths = [p.path for p in whole]
    hide_packs(bench.store, paths)
    unlink_hidden(bench.store, paths)
    half = Path(f"{bench.store.base}/objects/pack/pack-{'0' * 40}.pack")
    half.write_bytes(b"half")
    done = sweep(bench.store, 0.0)
    assert blob.hex() in done.errors[0]
    assert half.exists()


def test_left_overs_of_the_dead_go(tmp_path):
    bench = grown(tmp_path)
    top = f"{bench.store.base}/objects/pack"
    for name in ("writing-1-1", "tmp_pack_old", f"pack-{'0' * 40}.pack"):
        Path(top, name).write_bytes(b"x")
    os.utime(f"{top}/tmp_pack_old", (1, 1))
    Path(top, "tmp_pack_new").write_bytes(b"x")
    sweep(bench.store)
    assert {n for n in os.listdir(top) if not n.startswith("pack-")} == {"tmp_pack_new"}
    fsck(bench.store.base)


class FullDisk(Disk):
    """No new pack fits."""

    def open(self, name: Any, flags: int, mode: int = 0o600, at: int | None = None) -> int:
        if TEMPORARY in str(name):
            raise OSError(errno.ENOSPC, "full", name)
        return super().open(name, flags, mode, at)


def test_on_a_full_disk_what_is_dead_as_a_whole_still_goes(tmp_path):
    bench = grown(tmp_path, 3)
    rebuild_views(bench.store)
    build(bench.path, {"text": os.urandom(5000)})
    bench.point()
    build(bench.path, {"text": "small"})
    bench.point()
    (dead,) = packs_with(bench.store, bench.history().snapshot_ids[7])
    drop(bench, 2, 4)
    done = sweep(Store.open(bench.store.base, FullDisk()), 0.0)
    assert any("full" in error for error in done.errors)
    assert not os.path.exists(dead)
    assert done.bytes_freed > 5000
    assert verify(bench.store).ok
    fsck(bench.store.base)


def packs_with(store: Store, oid: Oid) -> list[str]:
    return [pack.path + ".pack" for pack in store.packs() if pack.place(oid) is not None]


def test_what_was_dropped_is_noted_until_it_is_gone(tmp_path):
    bench = grown(tmp_path)
    oid = bench.history().snapshot_ids[3]
    drop(bench, 2)
    assert oid in dropped(bench.store)
    assert verify(bench.store).ok
    sweep(bench.store, 0.0)
    assert not dropped(bench.store)


@pytest.mark.parametrize("line", ["11", "11" * 19, "11" * 21])
def test_an_id_of_another_length_among_those_dropped_is_damage(line):
    assert parse_dropped(b"11" * 20 + b"\nend\n")
    with pytest.raises(Damaged):
        parse_dropped(line.encode() + b"\nend\n")


# Faults


def prepared(base: Path) -> Bench:
    bench = grown(base, 3)
    drop(bench, 2)
    bench.close()
    return bench


def test_whatever_step_it_dies_at_all_references_are_whole(tmp_path):
    bench = prepared(tmp_path / "template")
    refs = bench.store.refs.below("refs")
    base = tmp_path / "copy"

    def run(disk: Disk) -> None:
        sweep(Store.open(str(base), disk), 0.0)

    shutil.copytree(bench.store.base, base)
    for _ in die_at_each(run):
        store = Store.open(str(base))
        assert refs.items() <= store.refs.below("refs").items()
        assert verify(store).ok
        fsck(base)
        assert not sweep(store, 0.0).errors
        assert held(store) == reached(store)
        shutil.rmtree(base)
        shutil.copytree(bench.store.base, base)


def test_whatever_call_fails_all_references_are_whole(tmp_path):
    bench = prepared(tmp_path / "template")
    base = tmp_path / "copy"
    at, struck = 0, True
    while struck:
        at += 1
        shutil.copytree(bench.store.base, base)
        disk = FaultyDisk(at, failing(errno.EIO))
        with suppress(OSError, TurnmarkError):
            sweep(Store.open(str(base), disk), 0.0)
        struck = disk.struck
        store = Store.open(str(base))
        assert verify(store).ok
        sweep(store, 0.0)
        assert held(store) == reached(store)
        shutil.rmtree(base)


def test_a_pack_made_anew_under_the_name_of_one_that_goes_stays(tmp_path):
    """Found by a reviewer: equal contents make equal names, and a first snapshot that was killed is
    taken again while a sweep, past its lock, still takes away what the killed one left."""
    bench = grown(tmp_path)
    contents = [f"{n}" * 1000 for n in range(9)]

    def pack() -> str:
        with bench.store.writing() as writer:
            for text in contents:
                writer.add("blob", text.encode())
            return writer.settle(sync=True).packs[0]

    path = pack()
    top = os.path.dirname(path)
    Path(path + ".mtimes").write_bytes(b"as git marks what is to go")
    with bench.store.maintaining():
        with bench.store.exclusive():
            bench.store.next_generation()
            hide_packs(bench.store, [path])
            assert not [name for name in os.listdir(top) if name.startswith(os.path.basename(path))]
        bench.store.follow()
        assert pack() == path
        unlink_hidden(bench.store, [path])
    again = Store.open(bench.store.base)
    oid = hash_object("blob", contents[0].encode())
    assert again.blob(oid) == contents[0].encode()
    assert any(one.holds(oid) for one in again.lasting_packs())
    assert not [name for name in os.listdir(top) if name.startswith("writing-")]
