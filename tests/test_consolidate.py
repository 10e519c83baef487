"""Many packs become one without losing, changing or inflating anything, whatever kills it."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import zlib
from pathlib import Path

import pytest

from core import consolidate as module
from core import deflate
from core.consolidate import SIDE_FILES, consolidate, copy_entries, needed, rebuild_views, view_ref
from core.disk import REAL, Disk
from core.errors import Busy, Damaged
from core.history import MarkSpec
from core.model import Oid, RelPath
from core.objects import hash_object, parse_headers
from core.packform import OFS_DELTA, REF_DELTA, TYPES, entry_header
from core.packing import PackWriter, recompressed
from core.packs import Pack
from core.store import Store
from core.sweep import drop_refs
from core.verify import verify
from tests.faults import die_at_each
from tests.stores import Bench, fsck
from tests.trees import build


def grown(base: Path, count: int = 6) -> Bench:
    bench = Bench(base)
    for turn in range(count):
        lines = "".join(f"line {number}\n" for number in range(400))
        build(bench.path, {"text": f"{turn}\n{lines}", f"d{turn % 2}/f": f"{turn}"})
        bench.point(f"number {turn}")
    return bench


def everything(store: Store) -> dict[Oid, tuple[str, bytes]]:
    return {oid: store.read(oid) for pack in store.packs() for oid in pack.oids()}


def git(base: str, *command: str, given: str = "") -> str:
    environment = {"PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1", "HOME": "/nonexistent"}
    return subprocess.run(
        ["git", f"--git-dir={base}", *command],
        input=given,
        env=environment,
        cwd="/",
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def repack_with_deltas(store: Store, *, by_name: bool) -> None:
    """One pack as git makes it, the bases named by distance or by id."""
    listed = git(store.base, "rev-list", "--objects", "--all")
    kind = [] if by_name else ["--delta-base-offset"]
    top = f"{store.base}/objects/pack"
    old = [Path(top, name) for name in os.listdir(top)]
    git(store.base, "pack-objects", "-q", *kind, f"{top}/pack", given=listed)
    for path in old:
        path.unlink()
    store.reload()


def types_in(pack: Pack) -> set[int]:
    source = module.Source(pack)
    return {source.head(oid)[0] for oid in source.spans}


def test_what_was_written_first_lies_first(tmp_path):
    store, oids = Store.create(str(tmp_path / "store")), []
    for number in range(9):
        with store.writing() as writer:
            oids.append(writer.add("blob", b"%d" % number))
            writer.settle(sync=False)
        (path,) = {pack.path for pack in store.packs() if pack.holds(oids[-1])}
        os.utime(path + ".pack", ns=(number, number))
    consolidate(store)
    (pack,) = store.packs()
    assert [oid for oid, _, _ in pack.spans()] == oids


def test_many_packs_become_one_with_all_objects_and_references(tmp_path):
    bench = grown(tmp_path)
    store = bench.store
    refs = store.refs.below("refs")
    rebuild_views(store)
    before = everything(store)
    done = consolidate(store)
    assert (done.packs_before, done.packs_after) == (7, 1)
    assert done.bytes_freed > 0
    assert everything(store) == before
    assert refs.items() <= store.refs.below("refs").items()
    assert not [n for n in store.refs.loose("refs") if not n.endswith("/view")]
    assert verify(store).ok
    fsck(store.base)


def test_nothing_is_inflated(tmp_path, monkeypatch):
    bench = grown(tmp_path)
    rebuild_views(bench.store)
    monkeypatch.setattr(Pack, "_inflate", None)
    packs = bench.store.packs()
    path = module.merge(bench.store, packs)
    module.check_pack(REAL, path)


def test_trees_that_were_stored_as_they_are_are_compressed_by_and_by(tmp_path):
    bench = Bench(tmp_path)
    build(bench.path, {f"{'x' * 60}{n}": "x" for n in range(30)})
    bench.point()
    build(bench.path, {"late": "x"})
    bench.point()
    before, held = everything(bench.store), sum(pack.size() for pack in bench.store.packs())
    consolidate(bench.store)
    (pack,) = bench.store.packs()
    assert everything(bench.store).items() >= before.items()
    assert pack.size() < held * 0.7
    fsck(bench.store.base)


def test_what_a_turn_stored_in_haste_is_compressed_when_nobody_waits(tmp_path):
    bench = Bench(tmp_path)
    words = {f"large{n}": f"{n} and the same again\n" * 60_000 for n in range(2)}
    build(bench.path, dict.fromkeys(words, "small") | {"bytes": "x"})
    bench.point()
    build(bench.path, words)
    (bench.path / "bytes").write_bytes(os.urandom(1_500_000))
    paths = [RelPath(os.fsencode(name)) for name in (*words, "bytes")]
    bench.recorder.take(paths, MarkSpec("manual"))
    before, held = everything(bench.store), sum(pack.size() for pack in bench.store.packs())
    assert held > 4_000_000
    consolidate(bench.store)
    (pack,) = bench.store.packs()
    assert everything(bench.store).items() >= before.items()
    assert 1_500_000 < pack.size() < 1_600_000
    fsck(bench.store.base)


def test_so_are_small_files_but_not_if_they_are_many(tmp_path):
    bench = Bench(tmp_path)
    build(bench.path, {f"{n}": "x" for n in range(40)})
    bench.point()
    held = [sum(pack.size() for pack in bench.store.packs())]
    for count in (2, 40):
        build(bench.path, {f"{n}": f"{count} words {n} and words\n" * 1_000 for n in range(count)})
        paths = [RelPath(b"%d" % n) for n in range(count)]
        bench.recorder.take(paths, MarkSpec("manual"))
        held.append(sum(pack.size() for pack in bench.store.packs()))
    assert held[1] - held[0] > 40_000
    assert held[2] - held[1] < 300_000  # of 840,000
    before = everything(bench.store)
    consolidate(bench.store)
    (pack,) = bench.store.packs()
    assert everything(bench.store).items() >= before.items()
    assert pack.size() < 30_000
    fsck(bench.store.base)


@pytest.mark.parametrize("sync", [False, True])
def test_only_where_somebody_waits_for_it_is_anything_stored_in_haste(tmp_path, sync):
    """Nobody waits for a burst, even where it is durable."""
    bench = Bench(tmp_path)
    build(bench.path, {"large": "words and words\n" * 100_000})
    bench.point()
    build(bench.path, {"large": "other words, other words\n" * 100_000})
    bench.recorder.take([RelPath(b"large")], sync=sync)
    assert sum(pack.size() for pack in bench.store.packs()) < 100_000


def test_a_wrong_tree_stored_as_it_is_keeps_no_other_from_being_consolidated(tmp_path):
    store = grown(tmp_path).store
    out = PackWriter(REAL, f"{store.base}/objects/pack")
    header = entry_header(TYPES["tree"], 9)
    out.copy(Oid(bytes(20)), (header + deflate.store(b"other tree"),))
    out.finish(REAL.sync_all)
    assert consolidate(store).packs_after == 1


def test_a_tree_of_more_than_one_stored_block_is_compressed_too():
    tree = b"40000 a\0" + bytes(20) + bytes(200_000)
    packed = recompressed("tree", hash_object("tree", tree), b"", deflate.store(tree))
    assert deflate.is_stored(deflate.store(tree))
    assert not deflate.is_stored(packed)
    assert len(packed) < 2_000


@pytest.mark.parametrize("harm", [b"other bytes", b""])
def test_a_tree_that_is_not_what_its_name_says_is_not_compressed(harm):
    stream = deflate.store(b"40000 a\0" + bytes(20))
    with pytest.raises(Damaged):
        recompressed("tree", Oid(bytes(20)), b"", deflate.store(harm) if harm else stream[:-1])


@pytest.mark.parametrize("by_name", [False, True])
def test_deltas_are_copied_with_their_bases(tmp_path, by_name):
    bench = grown(tmp_path)
    store = bench.store
    repack_with_deltas(store, by_name=by_name)
    (pack,) = store.packs()
    assert (REF_DELTA if by_name else OFS_DELTA) in types_in(pack)
    build(bench.path, {"late": "x"})
    bench.point()
    before = everything(store)
    consolidate(store)
    (pack,) = store.packs()
    assert (REF_DELTA if by_name else OFS_DELTA) in types_in(pack)
    assert everything(store).items() >= before.items()
    fsck(store.base)


@pytest.mark.parametrize("by_name", [False, True])
def test_one_delta_alone_brings_its_base(tmp_path, by_name):
    store = grown(tmp_path).store
    repack_with_deltas(store, by_name=by_name)
    (pack,) = store.packs()
    source = module.Source(pack)
    delta, base = next((o, b) for o in source.spans if (b := source.head(o)[1]) is not None)
    out = PackWriter(REAL, f"{store.base}/objects/pack")
    copy_entries(out, pack, {delta})
    assert {delta, base} <= out.entries.keys()
    fresh = Pack(REAL, out.finish(REAL.sync_all))
    assert fresh.read(delta) == pack.read(delta)
    fresh.close()


@pytest.mark.parametrize("ahead", [0, 64, 300])
def test_entries_are_the_same_however_far_it_reads_ahead(tmp_path, monkeypatch, ahead):
    store = grown(tmp_path).store
    repack_with_deltas(store, by_name=False)
    (pack,) = store.packs()
    data = Path(pack.path + ".pack").read_bytes()
    monkeypatch.setattr(module, "READ_AHEAD", ahead)
    source = module.Source(pack)
    forwards = list(source.spans)
    shuffled = random.Random(1).sample(forwards, len(forwards))
    for oid in [*forwards, *reversed(forwards), *shuffled]:
        start, end = source.spans[oid]
        assert source.raw(oid).data == data[start:end]


def test_a_damaged_entry_is_noticed_while_copying(tmp_path):
    store = grown(tmp_path, 1).store
    pack = store.packs()[0]
    path = Path(pack.path + ".pack")
    path.chmod(0o600)
    data = bytearray(path.read_bytes())
    data[40] ^= 1
    path.write_bytes(data)
    with pytest.raises(Damaged):
        module.merge(store, [pack])
    assert not [n for n in os.listdir(f"{store.base}/objects/pack") if n.startswith("writing")]


def test_a_damaged_pack_and_a_kept_one_are_left_alone(tmp_path):
    store = grown(tmp_path).store
    bad, kept = store.packs()[0].path, store.packs()[1].path
    path = Path(bad + ".pack")
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[:-1])
    Path(kept + ".keep").touch()
    consolidate(store)
    assert os.path.exists(bad + ".pack")
    assert os.path.exists(kept + ".idx")


def test_side_files_of_git_go_with_their_pack(tmp_path):
    store = grown(tmp_path).store
    stem = store.packs()[0].path
    for end in SIDE_FILES:
        if end != ".mtimes":
            Path(stem + end).touch()
    Path(store.base, "objects/pack/multi-pack-index").touch()
    consolidate(store)
    names = {os.path.splitext(n)[1] for n in os.listdir(f"{store.base}/objects/pack")}
    assert names == {".idx", ".pack"}
    fsck(store.base)


def test_it_is_wanted_above_so_many_packs_or_bytes(tmp_path, monkeypatch):
    store = grown(tmp_path).store
    assert not needed(store)
    monkeypatch.setattr(module, "MANY_PACKS", 5)
    assert needed(store)
    consolidate(store)
    assert not needed(store)
    monkeypatch.setattr(module, "SMALL_BYTES", 10)
    assert not needed(store)


def test_objects_in_a_cruft_pack_are_read_but_not_counted_on(tmp_path):
    store = grown(tmp_path, 1).store
    pack = store.packs()[0]
    oid = pack.oids()[0]
    assert store.has(oid)
    Path(pack.path + ".mtimes").touch()
    store.reload()
    assert not store.has(oid)
    assert store.read(oid)
    with store.writing() as writer:
        assert not writer.holds(oid)


def test_two_do_not_consolidate_at_once(tmp_path):
    store = grown(tmp_path, 1).store
    with Store.open(store.base).maintaining(), pytest.raises(Busy), store.maintaining(0.0):
        pass


def test_a_reader_reads_on_and_a_writer_writes_on(tmp_path):
    bench = grown(tmp_path)
    reader = Store.open(bench.store.base)
    oids = list(everything(bench.store))
    reader.packs()  # opened, and nothing of the packs themselves yet
    consolidate(Store.open(bench.store.base))
    assert all(reader.read(oid) for oid in oids)
    build(bench.path, {"late": "x"})
    assert bench.point().fresh
    fsck(bench.store.base)


# Views


def story(store: Store, view: str) -> list[bytes]:
    """The messages of a chain, newest first."""
    oid = store.refs.read(view)
    out: list[bytes] = []
    while oid is not None:
        headers, message = parse_headers(store.read(oid)[1])
        out.append(message)
        parent = headers.get(b"parent")
        oid = Oid(bytes.fromhex(parent.decode())) if parent else None
    return out


def test_the_view_tells_each_snapshot_with_its_marks(tmp_path):
    bench = grown(tmp_path, 3)
    bench.recorder.take(mark=MarkSpec("turn-begin", label="next\nline\0", session="s", turn=4))
    consolidate(bench.store)
    view = view_ref(bench.root.id)
    told = story(bench.store, view)
    assert len(told) == 3
    assert b"manual: number 2" in told[0]
    assert b"turn-begin 4: next line " in told[0]
    assert b"number 0" in told[2]
    log = git(bench.store.base, "log", "-p", "--format=%s", view)
    assert log.count("\n@@") == 4
    fsck(bench.store.base)


def test_the_view_follows_what_is_dropped_and_is_left_alone_otherwise(tmp_path):
    bench = grown(tmp_path, 4)
    store, view = bench.store, view_ref(bench.root.id)
    rebuild_views(store)
    first, packs = store.refs.read(view), len(store.packs())
    rebuild_views(store)
    assert (store.refs.read(view), len(store.packs())) == (first, packs)
    with store.exclusive():
        top = f"refs/turnmark/{bench.root.id}"
        drop_refs(store, [f"{top}/s/3", f"{top}/m/4"])
    assert store.refs.read(view) is None
    consolidate(store)
    assert len(story(store, view)) == 3


# Deaths


def test_whatever_step_it_dies_at_nothing_is_lost(tmp_path):
    bench = grown(tmp_path / "template", 2)
    bench.close()
    refs = bench.store.refs.below("refs")
    objects = everything(bench.store)
    base = tmp_path / "copy"

    def run(disk: Disk) -> None:
        consolidate(Store.open(str(base), disk))

    shutil.copytree(bench.store.base, base)
    for _ in die_at_each(run):
        store = Store.open(str(base))
        assert refs.items() <= store.refs.below("refs").items()
        assert everything(store).items() >= objects.items()
        assert verify(store).ok
        fsck(base)
        consolidate(store)
        assert len(store.packs()) == 1
        assert not os.listdir(base / "turnmark/tmp")
        shutil.rmtree(base)
        shutil.copytree(bench.store.base, base)


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 200_000])
def test_what_is_stored_in_haste_is_what_zlib_would_make_of_it(size):
    data = os.urandom(size)
    assert zlib.decompress(deflate.store(data)) == data
    assert deflate.is_stored(deflate.store(data))
