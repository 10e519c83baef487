"""Packs that git accepts, git's packs read right, and a damaged byte never read as a good one."""

from __future__ import annotations

import errno
import os
import random
import shutil
import struct
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.disk import REAL, Disk
from core.errors import Damaged
from core.model import EMPTY_TREE, FILE, TREE, Entry, Oid
from core.objects import Kind, encode_commit, encode_tree, hash_object
from core.packform import Entry as Place
from core.packform import (
    apply_delta,
    encode_distance,
    encode_index,
    entry_header,
    parse_distance,
    parse_entry_header,
)
from core.packing import Alone, PackWriter
from core.packs import RECENT, Pack
from core.spares import Spares
from core.store import Store
from core.writer import Stored, Writer
from tests.stores import fsck, held_below

Objects = dict[Oid, tuple[Kind, bytes]]


def blobs(*contents: bytes) -> Objects:
    return {hash_object("blob", data): ("blob", data) for data in contents}


def write(directory: Path, objects: Objects) -> Pack:
    directory.mkdir(parents=True, exist_ok=True)
    writer = PackWriter(REAL, str(directory))
    for oid, (kind, data) in objects.items():
        writer.add(kind, oid, data)
    return Pack(REAL, writer.finish(REAL.sync_all))


def content(pack: Pack) -> Objects:
    return {oid: read for oid in pack.oids() if (read := pack.read(oid)) is not None}


def git(*arguments: str, cwd: Path, data: bytes = b"") -> bytes:
    done = subprocess.run(["git", *arguments], cwd=cwd, input=data, capture_output=True, check=True)
    return done.stdout


def every_kind() -> Objects:
    """A history with one of each kind, that is whole in itself."""
    out = blobs(b"", b"x", b"text\n" * 5000, random.Random(1).randbytes(300_000), bytes(400_000))
    names = [(b"f%d" % n, Entry(FILE, oid)) for n, oid in enumerate(out)]
    tree = encode_tree([*names, (b"none", Entry(TREE, EMPTY_TREE))])
    commit = encode_commit(hash_object("tree", tree), 10**18, b"all\n")
    parts: list[tuple[Kind, bytes]] = [("tree", b""), ("tree", tree), ("commit", commit)]
    return out | {hash_object(kind, data): (kind, data) for kind, data in parts}


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    objects = every_kind()
    assert content(write(tmp_path, objects)) == objects


def test_git_accepts_what_was_written(tmp_path: Path) -> None:
    store = Store.create(str(tmp_path / "store"))
    pack = write(tmp_path / "store/objects/pack", every_kind())
    pack.check()
    copy = str(tmp_path / "copy.pack")
    shutil.copy(pack.path + ".pack", copy)
    git("index-pack", "--strict", copy, cwd=tmp_path)
    assert (tmp_path / "copy.idx").read_bytes() == Path(pack.path + ".idx").read_bytes()
    git("verify-pack", "-v", pack.path + ".idx", cwd=tmp_path)
    fsck(store.base)


def test_an_empty_pack_is_a_pack(tmp_path: Path) -> None:
    pack = write(tmp_path, {})
    pack.check()
    assert pack.oids() == []
    assert pack.read(EMPTY_TREE) is None


@given(st.lists(st.binary(max_size=3000), max_size=30))
def test_any_contents_come_back(
    tmp_path_factory: pytest.TempPathFactory, contents: list[bytes]
) -> None:
    objects = blobs(*contents)
    pack = write(tmp_path_factory.mktemp("any"), objects)
    assert content(pack) == objects
    pack.close()


def test_bytes_that_do_not_shrink_are_kept_and_take_no_more_room(tmp_path: Path) -> None:
    data = random.Random(2).randbytes(3_000_000)
    pack = write(tmp_path, blobs(data))
    assert content(pack) == blobs(data)
    assert pack.size() < len(data) * 1.001 + 100


@pytest.mark.parametrize("shrinks", [True, False])
def test_git_reads_an_object_that_two_threads_compressed(tmp_path: Path, shrinks: bool) -> None:
    data = random.Random(3).randbytes(700_001)
    data = data.hex().encode() if shrinks else data
    pack = write(tmp_path, blobs(data, b"small"))
    assert content(pack) == blobs(data, b"small")
    assert pack.size() < len(data) * (0.7 if shrinks else 1.001) + 100
    git("index-pack", "--strict", "-o", "copy.idx", pack.path + ".pack", cwd=tmp_path)
    assert (tmp_path / "copy.idx").read_bytes() == Path(pack.path + ".idx").read_bytes()


class Forgetful(Disk):
    """Writes one bit otherwise than it was told, once."""

    def __init__(self, at: int) -> None:
        self.at = at

    def write_some(self, fd: int, data: bytes | memoryview) -> int:
        before, self.at = self.at, self.at - len(data)
        if 0 <= before < len(data):
            wrong = bytearray(data)
            wrong[before] ^= 4
            return super().write_some(fd, memoryview(wrong))
        return super().write_some(fd, data)


@pytest.mark.parametrize("at", [0, 12, 13, 700_000, 4_200_000, 6_300_000])
def test_a_large_pack_that_the_disk_holds_otherwise_is_not_finished(
    tmp_path: Path, at: int
) -> None:
    writer = PackWriter(Forgetful(at), str(tmp_path))
    for seed in range(6):
        data = random.Random(seed).randbytes(1_200_000)
        writer.add("blob", hash_object("blob", data), data)
    if at < 12:  # the header is written anew
        Pack(REAL, writer.finish(REAL.sync_all)).check()
        return
    with pytest.raises(OSError, match="read back"):
        writer.finish(REAL.sync_all)
    writer.drop()
    assert list(tmp_path.iterdir()) == []


def test_many_batches_keep_every_object(tmp_path: Path) -> None:
    objects = blobs(*(b"%d " % n * 20_000 for n in range(60)))
    pack = write(tmp_path, objects)
    pack.check()
    assert content(pack) == objects


def test_an_unfinished_pack_leaves_nothing_when_dropped(tmp_path: Path) -> None:
    writer = PackWriter(REAL, str(tmp_path))
    writer.add("blob", Oid(bytes(20)), bytes(1 << 20))
    writer.drop()
    assert os.listdir(tmp_path) == []


# What git wrote


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository whose contents make deltas of deltas."""
    path = tmp_path_factory.mktemp("repo")
    git("init", "-q", ".", cwd=path)
    rng = random.Random(3)
    lines = [b"%d %d\n" % (n, rng.randrange(10**9)) for n in range(6000)]
    for number in range(12):
        for _ in range(5):
            lines[rng.randrange(len(lines))] = b"changed in %d\n" % number
        (path / "file").write_bytes(b"".join(lines))
        (path / f"only{number}").write_bytes(rng.randbytes(2000))
        git("add", ".", cwd=path)
        who = ("-c", "user.name=n", "-c", "user.email=e@e")
        git(*who, "commit", "-q", "-m", str(number), cwd=path)
        git(*who, "tag", "-a", "-m", "t", f"t{number}", cwd=path)
    return path


def as_git_reads(repository: Path) -> Objects:
    out: Objects = {}
    listed = git("cat-file", "--batch-check", "--batch-all-objects", cwd=repository)
    for line in listed.decode().splitlines():
        name, kind, _ = line.split()
        out[Oid(bytes.fromhex(name))] = (kind, git("cat-file", kind, name, cwd=repository))  # type: ignore[assignment]
    return out


def test_every_object_of_a_repacked_repository_is_read(versions: Path) -> None:
    expected = as_git_reads(versions)
    git("repack", "-adf", "--depth=50", "--window=50", cwd=versions)
    (path,) = (versions / ".git/objects/pack").glob("*.pack")
    chains = git("verify-pack", "-v", str(path.with_suffix(".idx")), cwd=versions)
    assert b"chain length = 2" in chains
    pack = Pack(REAL, str(path.with_suffix("")))
    pack.check()
    assert content(pack) == expected


def test_what_was_read_a_moment_ago_need_not_be_read_for_what_is_based_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, lines = random.Random(4), [b"line %d\n" % n for n in range(100)]
    versions = []
    for number in range(3 * RECENT):
        lines[rng.randrange(len(lines))] = b"changed in %d\n" % number
        versions.append(b"".join(lines))
    expected = blobs(*versions)
    git("init", "-q", ".", cwd=tmp_path)
    for data in versions:
        git("hash-object", "-w", "--stdin", cwd=tmp_path, data=data)
    wanted = b"".join(oid.hex().encode() + b" file\n" for oid in expected)
    git("pack-objects", "-q", "--depth=10", "pack", cwd=tmp_path, data=wanted)
    (path,) = tmp_path.glob("pack-*.pack")
    pack = Pack(REAL, str(path.with_suffix("")))
    for order in (list(expected), sorted(expected), rng.choices(list(expected), k=500)):
        for oid in order:
            assert pack.read(oid) == expected[oid]
            assert len(pack._recent) <= RECENT
    last = list(expected)[-1]
    pack.read(last)
    monkeypatch.setattr(pack, "_inflate", lambda *_: pytest.fail("it was read again"))
    assert pack.read(last) == expected[last]
    pack.rest()
    assert not pack._recent
    with monkeypatch.context() as harm:
        harm.setattr(pack, "_inflate", lambda *given: b"x" * given[3])
        with pytest.raises(Damaged):
            pack.read(last)
    monkeypatch.undo()
    assert pack.read(last) == expected[last]


@pytest.mark.parametrize("size", [100, 3_000, 100_000])
def test_a_bad_read_is_not_remembered(tmp_path: Path, size: int) -> None:
    """Neither as the page that it is in, nor as an object."""

    class Glitch(Disk):
        broken = False

        def pread(self, fd: int, size: int, offset: int) -> bytes:
            data = super().pread(fd, size, offset)
            return bytes(byte ^ 0xFF for byte in data) if self.broken else data

    disk, data = Glitch(), random.Random(1).randbytes(size)
    oid = hash_object("blob", data)
    pack = Pack(disk, write(tmp_path, blobs(data)).path)
    disk.broken = True
    for _ in range(2):
        with pytest.raises(Damaged):
            pack.read(oid)
    disk.broken = False
    assert pack.read(oid) == ("blob", data)


def test_every_object_of_a_pack_with_named_bases_is_read(versions: Path, tmp_path: Path) -> None:
    expected = as_git_reads(versions)
    wanted = b"".join(oid.hex().encode() + b"\n" for oid in expected)
    named = str(tmp_path / "pack")
    git("-c", "repack.useDeltaBaseOffset=false", "pack-objects", "-q", "--no-reuse-delta", named,
        cwd=versions, data=wanted)  # fmt: skip
    (path,) = tmp_path.glob("*.pack")
    pack = Pack(REAL, str(path.with_suffix("")))
    types = {parse_entry_header(path.read_bytes()[start:])[0] for _, start, _ in pack.spans()}
    assert 7 in types
    assert 6 not in types
    assert content(pack) == expected


@given(st.binary(max_size=300), st.integers(1, 1 << 40))
def test_headers_and_distances_are_read_as_they_were_written(rest: bytes, number: int) -> None:
    head = entry_header(3, number)
    assert parse_entry_header(head + rest) == (3, number, len(head))
    distance = encode_distance(number)
    assert parse_distance(distance + rest, 0) == (number, len(distance))


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_any_delta_gives_bytes_or_an_index_error(base: bytes, delta: bytes) -> None:
    try:
        assert isinstance(apply_delta(base, delta), bytes)
    except IndexError:
        return


# Large packs and odd ids, by the index alone


def index_only(directory: Path, entries: dict[Oid, Place]) -> Pack:
    (directory / "big.idx").write_bytes(encode_index(entries, bytes(20)))
    return Pack(REAL, str(directory / "big"))


def test_offsets_above_two_and_four_gigabytes_are_kept(tmp_path: Path) -> None:
    offsets = [12, (1 << 31) - 1, 1 << 31, (1 << 31) + 7, 1 << 32, 5 << 32, 12345]
    rng = random.Random(4)
    entries = {Oid(rng.randbytes(20)): Place(offset, offset % 1000) for offset in offsets}
    pack = index_only(tmp_path, entries)
    for oid, placed in entries.items():
        place = pack.place(oid)
        assert place is not None
        assert (pack.offset(place), pack.crcs()[oid]) == placed
    index = Path(pack.path + ".idx").read_bytes()
    said = git("show-index", cwd=tmp_path, data=index).decode()
    listed = {line.split()[1]: int(line.split()[0]) for line in said.splitlines()}
    assert listed == {oid.hex(): placed.offset for oid, placed in entries.items()}


def test_an_id_that_straddles_two_others_is_not_found(tmp_path: Path) -> None:
    first, second = b"\x01" * 19 + b"\x02", b"\x01" * 18 + b"\x02\x03"
    pack = index_only(tmp_path, {Oid(o): Place(12, 0) for o in (first, second)})
    both = b"".join(sorted([first, second]))
    for shift in range(1, 20):
        between = Oid(both[shift : shift + 20])
        assert (pack.place(between) is None) == (between not in (first, second))


def test_an_id_is_found_behind_one_that_straddles(tmp_path: Path) -> None:
    wanted = b"\x05" * 20
    pack = index_only(tmp_path, {Oid(o): Place(12, 0) for o in (b"\x05" * 19 + b"\x04", wanted)})
    place = pack.place(Oid(wanted))
    assert place is not None
    assert pack.oid(place) == wanted


@pytest.mark.parametrize("count", [300, 3000])
def test_every_id_is_found_and_no_other(tmp_path: Path, count: int) -> None:
    rng = random.Random(count)
    ids = [Oid(bytes([rng.choice([0, 7, 255])]) + rng.randbytes(19)) for _ in range(count)]
    pack = index_only(tmp_path, {oid: Place(12, 0) for oid in ids})
    assert all((place := pack.place(oid)) is not None and pack.oid(place) == oid for oid in ids)
    others = (Oid(oid[:19] + bytes([oid[19] ^ 1])) for oid in ids)
    assert all(pack.place(oid) is None for oid in others if oid not in ids)
    assert all(pack.place(Oid(bytes([first]) * 20)) is None for first in range(256))


# Damage


def deltified(directory: Path) -> tuple[Path, Objects]:
    """A small pack of git's with deltas in it, and what it holds."""
    git("init", "-q", "--bare", ".", cwd=directory)
    lines = [b"line %d of some text\n" % n for n in range(40)]
    objects = blobs(b"".join(lines), b"".join(lines[:30]), b"".join(lines[5:]), b"x", b"")
    for _, data in objects.values():
        git("hash-object", "-w", "--stdin", cwd=directory, data=data)
    wanted = b"".join(oid.hex().encode() + b"\n" for oid in objects)
    git("pack-objects", "-q", "--delta-base-offset", "p", cwd=directory, data=wanted)
    (path,) = directory.glob("p-*.pack")
    return path.with_suffix(""), objects


def readable(path: Path, objects: Objects) -> Iterator[bool]:
    """Whether each object is still given; a wrong answer, or another exception, fails the test."""
    try:
        pack = Pack(REAL, str(path))
    except Damaged:
        return
    for oid, expected in objects.items():
        try:
            found = pack.read(oid)
        except Damaged:
            found = None
        assert found in (None, expected)
        yield found is not None
    pack.close()


def is_whole(path: Path) -> bool:
    try:
        pack = Pack(REAL, str(path))
        pack.check()
    except Damaged:
        return False
    return True


@pytest.mark.parametrize("ending", [".pack", ".idx"])
@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_any_flipped_byte_is_found_by_the_check_and_never_read_as_good(
    tmp_path: Path, ending: str, flip: int
) -> None:
    path, objects = deltified(tmp_path)
    file = path.with_suffix(ending)
    good = file.read_bytes()
    file.chmod(0o600)
    for at in range(len(good)):
        file.write_bytes(good[:at] + bytes([good[at] ^ flip]) + good[at + 1 :])
        assert not is_whole(path)
        list(readable(path, objects))
    file.write_bytes(good)
    assert all(readable(path, objects))


@pytest.mark.parametrize("value", [0x00, 0x60, 0x70, 0x7F, 0xEF])
def test_any_byte_replaced_is_never_read_as_good_and_never_hangs(
    tmp_path: Path, value: int
) -> None:
    path, objects = deltified(tmp_path)
    file = path.with_suffix(".pack")
    good = file.read_bytes()
    file.chmod(0o600)
    for at in range(len(good)):
        file.write_bytes(good[:at] + bytes([value]) + good[at + 1 :])
        list(readable(path, objects))


@pytest.mark.parametrize("ending", [".pack", ".idx"])
def test_a_pack_cut_short_anywhere_is_found_by_the_check_and_never_read_as_good(
    tmp_path: Path, ending: str
) -> None:
    path, objects = deltified(tmp_path)
    file = path.with_suffix(ending)
    file.chmod(0o600)
    for size in reversed(range(file.stat().st_size)):
        os.truncate(file, size)
        assert not is_whole(path)
        list(readable(path, objects))


def test_deltas_that_go_in_a_circle_are_damaged(tmp_path: Path) -> None:
    one, other = Oid(b"\x01" * 20), Oid(b"\x02" * 20)
    body = b"x\x9c\x03\x00\x00\x00\x00\x01"
    entries = [entry_header(7, 0) + base + body for base in (other, one)]
    (tmp_path / "c.pack").write_bytes(b"PACK" + struct.pack(">II", 2, 2) + b"".join(entries))
    places = {one: Place(12, 0), other: Place(12 + len(entries[0]), 0)}
    (tmp_path / "c.idx").write_bytes(encode_index(places, bytes(20)))
    with pytest.raises(Damaged):
        Pack(REAL, str(tmp_path / "c")).read(one)


def test_an_offset_beyond_everything_is_damaged(tmp_path: Path) -> None:
    oid = Oid(b"\x01" * 20)
    (tmp_path / "big.pack").write_bytes(b"PACK")
    for offset in ((1 << 64) - 1, 1 << 63, 1 << 62, 3):
        with pytest.raises(Damaged):
            index_only(tmp_path, {oid: Place(offset, 0)}).read(oid)


# Threads


def test_two_threads_adding_lose_nothing(tmp_path: Path) -> None:
    writer = PackWriter(REAL, str(tmp_path))
    parts = [blobs(*(b"%d %d " % (n, side) * 3000 for n in range(150))) for side in range(2)]
    start = threading.Barrier(2)

    def add(objects: Objects) -> None:
        start.wait()
        for oid, (kind, data) in objects.items():
            writer.add(kind, oid, data)

    threads = [threading.Thread(target=add, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pack = Pack(REAL, writer.finish(REAL.sync_all))
    pack.check()
    assert content(pack) == parts[0] | parts[1]


# In haste

LETTERS = b"some words that shrink well, again and again\n"


def alone(directory: Path, data: bytes, disk: Disk = REAL) -> Alone:
    return Alone(disk, str(directory), Spares(disk, f"{directory}/spare-"), data)


def of_size(size: int) -> bytes:
    return random.Random(size).randbytes(50) + (LETTERS * (1 + size // 44))[: size - 50]


@pytest.mark.parametrize("size", [1 << 20, 3_000_001, 4_193_913])
def test_a_large_file_in_haste_is_stored_as_it_is(tmp_path: Path, size: int) -> None:
    (oid, (_, data)), *_ = blobs(of_size(size)).items()
    assert Alone.suits(size, 0)
    writer = alone(tmp_path, data).pack_of(oid)
    REAL.sync_all(writer.seal())
    writer.check()
    pack = Pack(REAL, writer.place())
    pack.check()
    assert content(pack) == {oid: ("blob", data)}
    assert size < pack.size() < 1 << 22
    git("index-pack", "--verify", pack.path + ".pack", cwd=tmp_path)


@pytest.mark.parametrize(
    ("size", "others"),
    [((1 << 20) - 1, 0), (4_193_914, 0), (1 << 20, 1 << 22), (2_500_000, 2_500_000)],
)
def test_only_what_is_large_and_can_be_held_is_stored_as_it_is(size: int, others: int) -> None:
    assert not Alone.suits(size, others)


def test_of_what_nobody_wanted_stored_nothing_is_left(tmp_path: Path) -> None:
    alone(tmp_path, of_size(1 << 20)).drop()
    assert os.listdir(tmp_path) == []


def test_of_what_could_not_be_written_nothing_is_left(tmp_path: Path) -> None:
    class Full(Disk):
        def write_some(self, fd: int, data: bytes | memoryview) -> int:
            raise OSError(errno.ENOSPC, "full")

    full = alone(tmp_path, of_size(1 << 20), Full())
    with pytest.raises(OSError, match="full"):
        full.pack_of(Oid(bytes(20)))
    full.drop()
    assert os.listdir(tmp_path) == []


def test_a_byte_that_changes_after_it_was_written_ahead_is_found(tmp_path: Path) -> None:
    class Forgetful(Disk):
        def write_some(self, fd: int, data: bytes | memoryview) -> int:
            if len(data) >= 1 << 20:
                data = b"?" + bytes(data[1:])
            return super().write_some(fd, data)

    data = LETTERS * 50_000
    writer = alone(tmp_path, data, Forgetful()).pack_of(hash_object("blob", data))
    writer.seal()
    with pytest.raises(Damaged):
        writer.check()


@pytest.mark.parametrize("which", ["pack", "index"])
@pytest.mark.parametrize("by", [-1, 1])
def test_a_file_of_another_length_than_was_written_is_found(
    tmp_path: Path, which: str, by: int
) -> None:
    writer = PackWriter(REAL, str(tmp_path))
    writer.add("blob", hash_object("blob", b"x"), b"x")
    pack, index = writer.seal()
    fd = index if which == "index" else pack
    os.ftruncate(fd, os.fstat(fd).st_size + by)
    with pytest.raises(Damaged, match="reads back"):
        writer.check()
    writer.drop()


def added_in_haste(store: Store, *contents: bytes) -> Stored:
    with store.writing(in_haste=True) as writer:
        for data in contents:
            writer.add("blob", data, writer.blob_id(data))
        return writer.settle(sync=True)


@pytest.mark.parametrize(
    ("sizes", "packs"),
    [
        ((1 << 20,), 1),
        (((1 << 20) - 1, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 5), 4),
        ((4_190_000, 3, 2_000_000), 2),
        (((1 << 22) + 1, 1 << 21), 2),
        ((3_000_000, 1_100_000, 70_000, 70_001), 3),
    ],
)
def test_whatever_comes_in_haste_is_read_back(
    tmp_path: Path, sizes: tuple[int, ...], packs: int
) -> None:
    store = Store.create(str(tmp_path / "store"))
    contents = [of_size(size) + bytes([place]) for place, size in enumerate(sizes)]
    stored = added_in_haste(store, *contents)
    assert (len(stored.packs), stored.objects) == (packs, len(sizes))
    assert stored.bytes >= sum(pack.size() for pack in store.packs()) - 20 * packs
    fresh = Store.open(store.base)
    assert [fresh.blob(hash_object("blob", data)) for data in contents] == contents
    fsck(store.base)


def test_what_is_there_already_is_not_stored_again_in_haste(tmp_path: Path) -> None:
    store, data = Store.create(str(tmp_path / "store")), of_size(1_300_000)
    assert added_in_haste(store, data, bytes(bytearray(data))).objects == 1
    assert added_in_haste(store, bytes(bytearray(data))).packs == []
    assert len(os.listdir(store.packs_in)) == 2


def test_what_turns_out_not_to_be_new_leaves_nothing_behind(tmp_path: Path) -> None:
    store, data = Store.create(str(tmp_path / "store")), of_size(1_300_000)
    with store.writing(in_haste=True) as writer:
        assert writer.blob_id(data) == hash_object("blob", data)
        assert writer.settle(sync=True).packs == []
    assert os.listdir(store.packs_in) == []


def test_what_turns_out_not_to_be_new_has_left_before_anything_else_needs_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, data = Store.create(str(tmp_path / "store")), of_size(1_300_000)
    sizes: list[int] = []

    def contents(fds: object) -> None:
        sizes.extend(path.stat().st_size for path in Path(store.packs_in).iterdir())

    monkeypatch.setattr(store.order, "contents", contents)
    with store.writing(in_haste=True) as writer:
        writer.blob_id(data)
        writer.add("blob", b"small")
        assert writer.settle(sync=True).objects == 1
    assert sizes
    assert max(sizes) < 2_000


def test_all_that_gets_a_name_was_settled_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.create(str(tmp_path / "store"))
    settled: set[int] = set()

    def contents(fds: Sequence[int]) -> None:
        assert not list(Path(store.packs_in).glob("pack-*"))
        settled.update(os.fstat(fd).st_ino for fd in fds)

    monkeypatch.setattr(store.order, "contents", contents)
    added_in_haste(store, of_size(1_300_000), of_size(1_400_000), b"small")
    named = {path.stat().st_ino for path in Path(store.packs_in).glob("pack-*")}
    assert len(named) == 6
    assert named <= settled


def test_what_does_not_seem_to_be_new_is_not_written_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.writer.Alone", None)
    store, data = Store.create(str(tmp_path / "store")), of_size(1_300_000)
    with store.writing(in_haste=True) as writer:
        assert writer.blob_id(data, is_new=False) == hash_object("blob", data)


def test_what_cannot_be_written_by_itself_goes_with_the_others(tmp_path: Path) -> None:
    class Nearly(Disk):
        """Full, but for what is compressed."""

        def write_some(self, fd: int, data: bytes | memoryview) -> int:
            if len(data) >= 1 << 20:
                raise OSError(errno.ENOSPC, "full")
            return super().write_some(fd, data)

    store, data = Store.create(str(tmp_path / "store"), Nearly()), LETTERS * 50_000
    stored = added_in_haste(store, data, b"small")
    assert (len(stored.packs), stored.objects) == (1, 2)
    assert Store.open(store.base).blob(hash_object("blob", data)) == data
    assert len(os.listdir(store.packs_in)) == 2


def test_one_that_cannot_be_dropped_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.create(str(tmp_path / "store"))
    failed: list[int] = []
    real = Disk.close

    def close(self: Disk, fd: int) -> None:
        ours = os.readlink(f"/proc/self/fd/{fd}").startswith(store.base)  # not what goes unused
        real(self, fd)
        if ours and not failed:
            failed.append(fd)
            raise OSError(errno.EDQUOT, "no quota left")

    before = held_below(tmp_path)
    writer = Writer(store, in_haste=True)
    for size in (1 << 20, (1 << 20) + 1):
        writer.blob_id(of_size(size))
    writer.add("blob", b"small")
    monkeypatch.setattr(Disk, "close", close)
    with pytest.raises(OSError, match="quota"):
        writer.drop()
    assert os.listdir(store.packs_in) == []
    assert held_below(tmp_path) == before


# Splitting


def test_a_change_of_many_objects_is_split_and_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.writer.PACK_OBJECTS", 10)
    store = Store.create(str(tmp_path / "store"))
    objects = blobs(*(b"%d" % n for n in range(45)))
    with store.writing() as writer:
        for oid, (kind, data) in [*objects.items(), *objects.items()]:
            writer.add(kind, data, oid)
        stored = writer.settle(sync=True)
    assert (len(stored.packs), stored.objects) == (5, 45)
    assert {oid: store.read(oid) for oid in objects} == objects
    fsck(store.base)


def test_a_change_of_many_bytes_is_split_and_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.writer.PACK_BYTES", 2_000_000)
    store = Store.create(str(tmp_path / "store"))
    rng = random.Random(5)
    objects = blobs(*(rng.randbytes(300_000) for _ in range(30)))
    with store.writing() as writer:
        for kind, data in objects.values():
            writer.add(kind, data)
        assert len(writer.settle(sync=False).packs) > 1
    assert {oid: store.read(oid) for oid in objects} == objects
