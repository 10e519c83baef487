"""Opening, locking and reading the one store that all workspaces share."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from core import whereabouts
from core.consolidate import consolidate
from core.disk import REAL
from core.errors import Busy, Damaged, NoStore, TurnmarkError
from core.model import EMPTY_TREE, Oid
from core.objects import hash_object
from core.packs import Pack
from core.store import MANY_PACKS, Store
from core.whereabouts import Whereabouts
from tests.stores import Bench, fsck
from tests.test_scan import powerless
from tests.trees import build

BOUND = 20.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(str(tmp_path / "store"))


def put(store: Store, *contents: bytes) -> list[Oid]:
    with store.writing() as writer:
        oids = [writer.add("blob", data) for data in contents]
        writer.settle(sync=False)
    return oids


def git(store: Store, *arguments: str, data: bytes = b"") -> str:
    done = subprocess.run(
        ["git", f"--git-dir={store.base}", *arguments], input=data, capture_output=True, check=True
    )
    return done.stdout.decode()


# Opening


def test_a_missing_store_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(NoStore) as caught:
        Store.open(str(tmp_path / "nowhere"))
    assert caught.value.hint
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("kind", ["file", "fifo"])
def test_what_is_not_a_directory_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "store"
    path.touch() if kind == "file" else os.mkfifo(path)
    for opened in (Store.open, Store.create):
        with pytest.raises(TurnmarkError, match="not a directory") as caught:
            opened(str(path))
        assert caught.value.hint


def test_a_store_of_somebody_else_is_refused(store: Store) -> None:
    try:
        os.chown(store.base, 12345, -1)
    except PermissionError:
        pytest.skip("only root with its powers can give a directory away")
    for opened in (Store.open, Store.create):
        with pytest.raises(TurnmarkError, match="belongs to user 12345"):
            opened(store.base)


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_store_that_others_may_write_is_refused(store: Store, mode: int) -> None:
    os.chmod(store.base, mode)
    for opened in (Store.open, Store.create):
        with pytest.raises(TurnmarkError, match="Others may write") as caught:
            opened(store.base)
        assert "chmod" in caught.value.hint


def test_everything_in_a_store_is_private(store: Store) -> None:
    previous = os.umask(0)
    try:
        bench = Bench(Path(store.base).parent / "b")
        build(bench.path, {"a": "1"})
        bench.point()
    finally:
        os.umask(previous)
    for top, dirs, files in os.walk(bench.store.base):
        for name in (*dirs, *files):
            assert os.lstat(os.path.join(top, name)).st_mode & 0o077 == 0, name


def write_layout(store: Store, text: str) -> None:
    Path(store.base, "turnmark/layout.json").write_text(text)


def test_a_store_that_only_newer_versions_read_is_left_alone(store: Store) -> None:
    write_layout(store, json.dumps({"layout": 9, "min_reader": 9, "min_writer": 9}))
    for opened in (Store.open, Store.create):
        with pytest.raises(TurnmarkError, match="newer turnmark"):
            opened(store.base)


def test_a_store_that_only_newer_versions_write_is_read_and_never_written(store: Store) -> None:
    (oid,) = put(store, b"x")
    write_layout(store, json.dumps({"layout": 9, "min_reader": 1, "min_writer": 9}))
    newer = Store.open(store.base)
    assert newer.blob(oid) == b"x"
    for lock in (newer.writing, newer.exclusive, newer.maintaining):
        with pytest.raises(TurnmarkError, match="newer turnmark") as caught, lock():
            pass
        assert caught.value.hint


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "7", '{"layout":1}', '{"min_reader":1,"min_writer":1}',
             '{"layout":1,"min_reader":"x","min_writer":1}', "\0" * 70,
             '{"layout":1,"min_reader":1e999,"min_writer":1}', "[" * 100_000],
)  # fmt: skip
def test_a_damaged_layout_is_said_to_be(store: Store, text: str) -> None:
    write_layout(store, text)
    with pytest.raises(Damaged) as caught:
        Store.open(store.base)
    assert caught.value.hint


def test_a_directory_full_of_other_things_is_not_made_a_store(tmp_path: Path) -> None:
    before = build(tmp_path / "mine", {"thesis.tex": "x", ".git/HEAD": "y"})
    with pytest.raises(TurnmarkError, match="not turnmark's"):
        Store.create(str(before))
    assert sorted(os.listdir(before)) == [".git", "thesis.tex"]
    with pytest.raises(NoStore):
        Store.open(str(before))


def test_an_interrupted_creation_is_not_opened_but_completed(store: Store) -> None:
    os.unlink(f"{store.base}/turnmark/layout.json")
    os.unlink(f"{store.base}/config")
    with pytest.raises(NoStore):
        Store.open(store.base)
    Store.create(store.base)
    fsck(Store.open(store.base).base)


def test_an_empty_directory_becomes_a_store_and_one_behind_a_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(0o700)
    (tmp_path / "link").symlink_to("real")
    made = Store.create(str(tmp_path / "link"))
    assert made.base == str(tmp_path / "real")
    assert Store.open(str(tmp_path / "link")).base == made.base


# Lack of power


def test_a_store_that_may_not_be_written_says_so_to_writers_and_is_read(store: Store) -> None:
    (oid,) = put(store, b"x")
    for top, dirs, files in os.walk(store.base, topdown=False):
        for name in (*dirs, *files):
            os.chmod(os.path.join(top, name), 0o500 if name in dirs else 0o400)
    os.chmod(store.base, 0o500)

    def without_power() -> None:
        readable = Store.open(store.base)
        assert readable.blob(oid) == b"x"
        for lock in (readable.writing, readable.exclusive):
            with pytest.raises(TurnmarkError, match="read-only for you") as caught, lock():
                pass
            assert caught.value.hint

    try:
        powerless(without_power)
    finally:
        os.chmod(store.base, 0o700)
        for top, dirs, _ in os.walk(store.base):
            for name in dirs:
                os.chmod(os.path.join(top, name), 0o700)


def test_a_store_below_a_closed_directory_is_an_error_with_a_hint(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    Store.create(str(closed / "store"))
    os.chmod(closed, 0)

    def without_power() -> None:
        for opened in (Store.open, Store.create):
            with pytest.raises(TurnmarkError) as caught:
                opened(str(closed / "store"))
            assert caught.value.hint

    try:
        powerless(without_power)
    finally:
        os.chmod(closed, 0o700)


# Locks


def test_a_locked_workspace_is_busy_after_the_wait_and_free_after_the_holder(store: Store) -> None:
    with store.workspace_lock("w"):
        begun = time.monotonic()
        with pytest.raises(Busy) as caught, Store.open(store.base).workspace_lock("w", wait=0.05):
            pass
        assert 0.05 <= time.monotonic() - begun < BOUND
        assert caught.value.hint
        with Store.open(store.base).workspace_lock("other", wait=0):
            pass
    with store.workspace_lock("w", wait=0):
        pass


def test_a_lock_of_a_dead_process_is_free(store: Store) -> None:
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        with store.workspace_lock("w"), store.exclusive():
            os.write(tell, b"x")
            os.read(ready, 0)
            os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    assert os.read(ready, 1) == b"x"
    os.close(ready)
    os.close(tell)
    with store.workspace_lock("w", wait=0), store.exclusive(wait=0):
        pass


def test_writers_share_the_store_and_an_exclusive_one_shuts_them_out(store: Store) -> None:
    other = Store.open(store.base)
    both = (store.writing(wait=0), other.writing(wait=0))
    with both[0], both[1], pytest.raises(Busy), other.exclusive(wait=0.02):
        pass
    with store.exclusive(wait=0), pytest.raises(Busy), other.writing(wait=0.02):
        pass
    with store.writing(wait=0):
        pass


def in_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_an_exclusive_waiter_is_let_in_before_later_writers(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.store.GATE", BOUND)
    order: list[str] = []
    with ExitStack() as first:
        first.enter_context(store.writing())

        def exclude() -> None:
            with Store.open(store.base).exclusive(BOUND):
                order.append("exclusive")

        waiter = in_thread(exclude)
        wait_until(lambda: gate_is_held(store))
        with pytest.raises(Busy), Store.open(store.base).writing(wait=0.02):
            order.append("writer")

        def write() -> None:
            with Store.open(store.base).writing(BOUND):
                order.append("writer")

        writer = in_thread(write)
        order.append("first is done")
    waiter.join(BOUND)
    writer.join(BOUND)
    assert order == ["first is done", "exclusive", "writer"]


def test_behind_a_long_writer_others_need_not_wait_for_who_waits_for_it(store: Store) -> None:
    excluded: list[bool] = []

    def exclude() -> None:
        with Store.open(store.base).exclusive(BOUND):
            excluded.append(True)

    with store.writing():
        waiter = in_thread(exclude)
        wait_until(lambda: gate_is_held(store))
        with Store.open(store.base).writing(BOUND / 2):
            assert not excluded
    waiter.join(BOUND)
    assert excluded


def gate_is_held(store: Store) -> bool:
    with REAL.opened(f"{store.base}/turnmark/locks/gate", os.O_RDWR | os.O_CREAT) as fd:
        return not REAL.lock(fd, exclusive=False, wait=0)


def wait_until(true: Callable[[], bool]) -> None:
    limit = time.monotonic() + BOUND
    while not true():
        assert time.monotonic() < limit, "waited in vain"
        os.sched_yield()


def test_an_exclusive_one_is_not_starved_by_steady_writers(store: Store) -> None:
    stop = threading.Event()

    def write() -> None:
        own = Store.open(store.base)
        while not stop.is_set():
            with own.writing(BOUND):
                pass

    writers = [in_thread(write) for _ in range(4)]
    try:
        for _ in range(5):
            with store.exclusive(BOUND / 2):
                assert not gate_is_free_for_writers(store)
    finally:
        stop.set()
        for writer in writers:
            writer.join(BOUND)


def gate_is_free_for_writers(store: Store) -> bool:
    return not gate_is_held(store)


def test_a_failed_writer_gives_its_locks_back_and_leaves_nothing(store: Store) -> None:
    def fail() -> None:
        with store.writing() as writer:
            writer.add("blob", b"never settled")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with store.exclusive(wait=0):
        assert os.listdir(f"{store.base}/objects/pack") == []
    assert not store.has(hash_object("blob", b"never settled"))


def test_locks_leak_no_descriptors(store: Store) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with store.workspace_lock("w"), store.maintaining(), store.exclusive():
            pass
        with pytest.raises(Busy), store.exclusive(), store.writing(wait=0):
            pass
    assert len(os.listdir("/proc/self/fd")) == before


# Objects


def test_equal_contents_of_two_workspaces_are_stored_once(tmp_path: Path) -> None:
    one, two = Bench(tmp_path, name="one"), Bench(tmp_path, name="two")
    for bench in (one, two):
        build(bench.path, {"d/same": "content " * 100, "own": bench.root.id})
        bench.point()
    packs = Store.open(one.store.base).packs()
    every = [oid for pack in packs for oid in pack.oids()]
    assert len(every) == len(set(every))
    assert sum(oid == hash_object("blob", b"content " * 100) for oid in every) == 1


def test_what_was_just_written_is_not_written_again(store: Store) -> None:
    put(store, b"x", b"x", b"y")
    with store.writing() as writer:
        writer.add("blob", b"x")
        assert writer.settle(sync=False) == ([], 0, 0)
    assert len(os.listdir(f"{store.base}/objects/pack")) == 2


def test_what_git_stores_meanwhile_is_not_stored_again(store: Store) -> None:
    put(store, b"when there was nothing of git's")
    git(store, "hash-object", "-w", "--stdin", data=b"by git")
    with store.writing() as writer:
        writer.add("blob", b"by git")
        assert writer.settle(sync=False) == ([], 0, 0)


@pytest.mark.parametrize("many", [5, 250])
def test_a_store_of_many_packs_knows_what_it_holds(store: Store, many: int) -> None:
    oids = [oid for n in range(20) for oid in put(store, b"%d" % n)]
    with Store.open(store.base).writing() as writer:
        for n in range(many):
            writer.add("blob", b"%d" % n)
        assert writer.settle(sync=False).objects == max(0, many - 20)
    assert [Store.open(store.base).blob(oid) for oid in oids] == [b"%d" % n for n in range(20)]


def test_loose_objects_of_git_are_read(store: Store) -> None:
    blob = git(store, "hash-object", "-w", "--stdin", data=b"by git").strip()
    line = f"100644 blob {blob}\tname\n".encode()
    tree = git(store, "mktree", data=line).strip()
    assert store.blob(Oid(bytes.fromhex(blob))) == b"by git"
    assert store.tree(Oid(bytes.fromhex(tree))).startswith(b"100644 name\0")
    assert put(store, b"by git") == [Oid(bytes.fromhex(blob))]
    fsck(store.base)


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "other"])
def test_a_damaged_loose_object_is_damaged(store: Store, damage: str) -> None:
    name = git(store, "hash-object", "-w", "--stdin", data=b"by git" * 9).strip()
    path = Path(store.base, "objects", name[:2], name[2:])
    good = path.read_bytes()
    other = git(store, "hash-object", "-w", "--stdin", data=b"other").strip()
    path.chmod(0o600)
    path.write_bytes({"cut": good[:-6], "flip": good[:9] + b"!" + good[10:], "empty": b"",
                      "other": Path(store.base, "objects", other[:2], other[2:]).read_bytes(),
                      }[damage])  # fmt: skip
    with pytest.raises(Damaged) as caught:
        store.read(Oid(bytes.fromhex(name)))
    assert caught.value.hint


def test_an_object_that_is_not_there_is_damage_and_the_empty_tree_always_is(store: Store) -> None:
    with pytest.raises(Damaged):
        store.read(Oid(bytes(20)))
    assert not store.has(Oid(bytes(20)))
    assert store.read(EMPTY_TREE) == ("tree", b"")


def test_an_object_of_the_wrong_kind_is_damaged(store: Store) -> None:
    (oid,) = put(store, b"x")
    with pytest.raises(Damaged, match="is a blob where a tree"):
        store.tree(oid)


def damage_pack(path: str) -> None:
    os.chmod(path, 0o600)
    data = bytearray(Path(path).read_bytes())
    data[14:-20] = bytes(len(data) - 34)
    Path(path).write_bytes(data)


def test_another_copy_is_read_where_one_is_damaged(store: Store) -> None:
    data = b"kept twice " * 50
    (oid,) = put(store, data)
    (pack,) = store.packs()
    git(
        store,
        "pack-objects",
        "-q",
        "--no-reuse-object",
        f"{store.base}/objects/pack/pack",
        data=oid.hex().encode(),
    )
    damage_pack(pack.path + ".pack")
    assert Store.open(store.base).blob(oid) == data


def test_of_many_packs_only_the_one_that_holds_an_object_is_asked(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    oids = []
    for number in range(2 * MANY_PACKS):
        oids += put(store, b"%d" % number)
    asked: list[Oid] = []
    real = Pack.place

    def place(pack: Pack, oid: Oid) -> int | None:
        asked.append(oid)
        return real(pack, oid)

    monkeypatch.setattr(Pack, "place", place)
    reader = Store.open(store.base)
    assert [reader.blob(oid) for oid in oids] == [b"%d" % n for n in range(len(oids))]
    assert len(asked) <= 2 * len(oids)


def test_a_loose_copy_is_read_where_the_packed_one_is_damaged(store: Store) -> None:
    data = b"kept twice " * 50
    (oid,) = put(store, data)
    (pack,) = store.packs()
    away = Path(store.base, "away")
    os.rename(Path(store.base, "objects/pack"), away)
    os.mkdir(f"{store.base}/objects/pack")
    git(store, "hash-object", "-w", "--stdin", data=data)
    os.rmdir(f"{store.base}/objects/pack")
    os.rename(away, Path(store.base, "objects/pack"))
    damage_pack(pack.path + ".pack")
    assert Store.open(store.base).blob(oid) == data


@pytest.mark.parametrize("ending", [".pack", ".idx"])
def test_one_broken_pack_costs_only_what_is_in_it(store: Store, ending: str) -> None:
    (lost,), (kept,) = put(store, b"lost"), put(store, b"kept")
    (broken,) = [pack for pack in store.packs() if pack.place(lost) is not None]
    os.chmod(broken.path + ending, 0o600)
    os.truncate(broken.path + ending, 3)
    again = Store.open(store.base)
    assert again.blob(kept) == b"kept"
    with pytest.raises(Damaged):
        again.blob(lost)
    (fresh,) = put(again, b"new")
    assert again.blob(fresh) == b"new"


def test_a_reader_keeps_reading_while_packs_are_consolidated_away(store: Store) -> None:
    contents = [b"%d " % n * 50 for n in range(60)]
    oids = [oid for data in contents for oid in put(store, data)]
    early, late = Store.open(store.base), Store.open(store.base)
    assert early.blob(oids[0]) == contents[0]
    late.packs()
    consolidate(store)
    assert len(Store.open(store.base).packs()) == 1
    assert [early.blob(oid) for oid in oids] == contents
    assert [late.blob(oid) for oid in oids] == contents
    fsck(store.base)


def test_what_a_writer_added_itself_is_no_reason_to_look_for_more(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    put(store, b"first")
    monkeypatch.setattr(store, "_load_packs", looks.append)
    for number in range(3):
        (oid,) = put(store, b"%d" % number)
        with store.writing() as writer:
            assert writer.holds(oid)
    assert not looks


def test_what_another_process_adds_while_one_writes_is_found_by_its_readers(store: Store) -> None:
    other = Store.open(store.base)
    with store.writing() as writer:
        writer.add("blob", b"mine")
        (theirs,) = put(other, b"theirs")
        writer.settle(sync=False)
    with store.writing():
        assert store.read(theirs) == ("blob", b"theirs")
    assert store.has(theirs)


def test_a_writer_believes_no_clock_where_something_was_taken_out(store: Store) -> None:
    """A directory whose time is counted in ticks may look as it was before a sweep."""
    (oid,) = put(store, b"soon to go")
    place = f"{store.base}/objects/pack"
    other = Store.open(store.base)
    assert other.has(oid)
    stamp = os.stat(place).st_mtime_ns
    for name in os.listdir(place):
        os.unlink(f"{place}/{name}")
    store.next_generation()
    os.utime(place, ns=(stamp, stamp))
    with other.writing() as writer:
        assert not writer.holds(oid)


def deleted_files_open(store: Store) -> list[str]:
    links = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    names = [os.readlink(link) for link in links if os.path.islink(link)]
    return [name for name in names if store.base in name and name.endswith(" (deleted)")]


def test_packs_that_are_gone_are_let_go_of_while_nobody_waits(store: Store) -> None:
    put(store, *(b"%d " % n * 50 for n in range(30)))
    other = Store.open(store.base)
    oid = put(store, b"once more")[0]
    assert other.blob(oid) == b"once more"
    consolidate(store)
    other.packs()
    held = deleted_files_open(store)
    other.warm_up()
    assert len(deleted_files_open(store)) < len(held)
    assert other.blob(oid) == b"once more"


SIZES = {
    "small": {},
    "large": {"SMALL": 0},
    "many asked for": {"SMALL": 0, "ASKED_MANY": 1},
    "too large": {"SMALL": 0, "MIDDLING": 0, "ASKED_MANY": 1},
}


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("ahead", [False, True], ids=["in haste", "while nobody waits"])
def test_a_writer_knows_where_things_are_after_packs_went_away(
    store: Store, monkeypatch, ahead: bool, sizes: dict[str, int]
) -> None:
    """One object in two packs of which one goes, one that goes wholly, one that is moved."""
    for name, value in sizes.items():
        monkeypatch.setattr(whereabouts, name, value)
    both, gone = put(store, b"both", b"gone")
    twice = Store.create(store.base + "-other")
    put(twice, b"both")
    for name in os.listdir(f"{twice.base}/objects/pack"):
        shutil.copy(f"{twice.base}/objects/pack/{name}", f"{store.base}/objects/pack/{name}")
    other = Store.open(store.base)
    other.warm_up()
    (pack,) = (pack for pack in other.packs() if pack.holds(gone))
    (moved,) = put(store, b"moved")
    for ending in (".pack", ".idx"):
        os.unlink(pack.path + ending)
    store.next_generation()
    other.follow()
    if ahead:
        other.warm_up()
    never = hash_object("blob", b"never")
    for _ in range(2):
        found = [other.holds(oid) for oid in (both, gone, moved, never)]
        assert found == [True, False, True, False]
    assert not other.holds_unused or not ahead


@pytest.mark.parametrize("middling", [0, whereabouts.MIDDLING], ids=["too large", "middling"])
def test_where_thousands_of_objects_are_is_known(store: Store, monkeypatch, middling: int) -> None:
    """Once nobody waits none of many large packs is asked for what it has not."""
    monkeypatch.setattr(whereabouts, "SMALL", 10)
    monkeypatch.setattr(whereabouts, "MIDDLING", middling)
    packs = [[b"%d %d" % (number, n) for n in range(400)] for number in range(5)]
    oids = [oid for contents in packs for oid in put(store, *contents)]
    others = [hash_object("blob", b"not %d" % n) for n in range(2_000)]
    asked: list[Oid] = []
    place = Pack.place

    def counted(pack: Pack, oid: Oid) -> int | None:
        asked.append(oid)
        return place(pack, oid)

    monkeypatch.setattr(Pack, "place", counted)
    other = Store.open(store.base)
    other.follow()
    other.warm_up()
    assert not any(map(other.holds, others))
    assert len(asked) < len(packs) * 10
    assert all(map(other.holds, oids))
    other.warm_up()
    assert not any(map(other.holds, others))
    assert all(map(other.holds, oids))


def test_what_many_small_changes_ask_for_has_nothing_gathered(store: Store, monkeypatch) -> None:
    """It takes 30 ms, and one of the turns would have waited for it."""
    monkeypatch.setattr(whereabouts, "SMALL", 0)
    monkeypatch.setattr(whereabouts, "ASKED_MANY", 5)
    gathered: list[bool] = []
    monkeypatch.setattr(Whereabouts, "_gather_more", lambda self: gathered.append(True))
    for turn in range(4):
        put(store, *(b"%d of %d" % (n, turn) for n in range(3)))
    assert not gathered
    put(store, *(b"%d at once" % n for n in range(9)))
    assert gathered


def test_of_a_large_pack_that_is_gone_nothing_is_known(store: Store, monkeypatch) -> None:
    monkeypatch.setattr("core.whereabouts.SMALL", 0)
    (oid,) = put(store, b"gone")
    other = Store.open(store.base)
    other.follow()
    assert other.holds(oid)
    (pack,) = other.packs()
    for ending in (".pack", ".idx"):
        os.unlink(pack.path + ending)
    store.next_generation()
    other.follow()
    assert not other.holds(oid)


def test_readers_miss_nothing_while_writers_and_consolidation_run(store: Store) -> None:
    known: list[tuple[Oid, bytes]] = []
    stop, wrong = threading.Event(), list[str]()

    def read() -> None:
        own = Store.open(store.base)
        try:
            while not stop.is_set():
                missed = [oid for oid, data in known[-20:] if own.blob(oid) != data]
                wrong.extend(oid.hex() for oid in missed)
        except (TurnmarkError, OSError) as error:
            wrong.append(str(error))

    readers = [in_thread(read) for _ in range(2)]
    for round_ in range(8):
        for n in range(6):
            data = b"%d %d" % (round_, n)
            known.extend((oid, data) for oid in put(store, data))
        consolidate(Store.open(store.base))
    stop.set()
    for reader in readers:
        reader.join(BOUND)
    assert not wrong
    fsck(store.base)


def test_more_packs_than_descriptors_are_still_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.packs.OPEN_PACKS", 8)
    contents = [b"%d" % n for n in range(60)]
    oids = [oid for data in contents for oid in put(store, data)]

    def with_few() -> None:
        most = max(map(int, os.listdir("/proc/self/fd"))) + 20
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        own = Store.open(store.base)
        assert [own.blob(oid) for oid in oids] == contents
        assert [own.blob(oid) for oid in oids] == contents

    powerless(with_few)


# Real git on it


def test_git_reads_a_store_of_ours_in_every_way(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    build(bench.path, {"a": "one\n", "d/b": "two\n", ".gitmodules": "[submodule]\n", "e/": ""})
    first = bench.point("first").snapshot
    build(bench.path, {"a": "one\nmore\n"})
    second = bench.point("second").snapshot
    consolidate(bench.store)
    fsck(bench.store.base)
    diff = git(bench.store, "diff", f"{first.id.hex()}:files", f"{second.id.hex()}:files")
    assert "+more" in diff
    log = git(bench.store, "log", "--format=%s", f"refs/turnmark/{bench.root.id}/view")
    assert log.splitlines()
    assert git(bench.store, "show", f"{second.id.hex()}:files/d/b") == "two\n"
    assert git(bench.store, "count-objects") == "0 objects, 0 kilobytes\n"


def test_a_generation_is_counted_and_a_damaged_one_starts_over(store: Store) -> None:
    assert store.generation() == 0
    store.next_generation()
    assert Store.open(store.base).generation() == 1
    Path(store.base, "turnmark/generation").write_bytes(b"\0")
    assert store.generation() == 0


def test_left_overs_of_dead_writers_are_swept_and_nothing_else(store: Store) -> None:
    (oid,) = put(store, b"x")
    Path(store.base, "objects/pack/writing-1-2").write_bytes(b"y" * 10)
    Path(store.base, "turnmark/tmp/ref-1").write_bytes(b"z" * 5)
    half, young = (Path(store.base, f"turnmark/generation.{n}.9.new") for n in (1, 2))
    for path in (half, young):
        path.write_bytes(b"1")
    os.utime(half, (0, 0))
    assert store.holds_rubbish()
    with store.exclusive():
        store.sweep_leftovers()
    assert (half.exists(), young.exists()) == (False, True)
    young.unlink()
    assert not store.holds_rubbish()
    assert len(os.listdir(f"{store.base}/objects/pack")) == 2
    assert store.blob(oid) == b"x"
