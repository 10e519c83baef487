"""References are created once, never missing while they are folded, and never guessed."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.disk import REAL
from core.errors import Damaged, TurnmarkError
from core.model import Oid
from core.refs import TOP, RefStore, parse_packed, ref_name
from core.store import Store

WORK = "0123456789abcdef"


def oid(number: int) -> Oid:
    return Oid(number.to_bytes(20, "big"))


def name(number: int, kind: str = "s", workspace: str = WORK) -> str:
    return ref_name(workspace, kind, number)


@pytest.fixture
def refs(tmp_path: Path) -> RefStore:
    return Store.create(str(tmp_path / "store")).refs


def again(refs: RefStore) -> RefStore:
    """As another process sees them."""
    return RefStore(REAL, refs.base)


def test_a_reference_is_created_once(refs: RefStore) -> None:
    refs.create(name(1), oid(1), sync=True)
    with pytest.raises(TurnmarkError, match="exists already"):
        refs.create(name(1), oid(2), sync=True)
    assert again(refs).read(name(1)) == oid(1)
    assert os.listdir(f"{refs.base}/turnmark/tmp") == []


def test_what_does_not_exist_reads_as_nothing(refs: RefStore) -> None:
    assert refs.read(name(1)) is None
    assert refs.below(TOP) == {}
    refs.create(name(1), oid(1), sync=False)
    assert refs.read(f"{TOP}/{WORK}") is None
    assert refs.read(f"{TOP}/{WORK}/s") is None
    assert refs.read(f"{name(1)}/below") is None


def test_packed_and_loose_are_read_as_one(refs: RefStore) -> None:
    for number in range(5):
        refs.create(name(number), oid(number + 1), sync=False)
    assert refs.fold() == 5
    refs.create(name(9), oid(9), sync=False)
    refs.create(name(1, workspace="other"), oid(7), sync=False)
    expected = {name(n): oid(n + 1) for n in range(5)} | {name(9): oid(9)}
    assert again(refs).below(f"{TOP}/{WORK}") == expected
    assert again(refs).names(f"{TOP}/{WORK}") == expected.keys()
    assert again(refs).read(name(3)) == oid(4)


def test_a_loose_reference_wins_over_the_packed_one_of_that_name(refs: RefStore) -> None:
    refs.create(name(1), oid(1), sync=False)
    refs.fold()
    Path(refs.base, name(1)).write_text(oid(2).hex() + "\n")
    assert refs.read(name(1)) == oid(2)
    assert refs.below(TOP) == {name(1): oid(2)}


def test_a_workspace_is_not_taken_for_one_whose_name_begins_the_same(refs: RefStore) -> None:
    refs.create(name(1, workspace="ab"), oid(1), sync=False)
    refs.create(name(1, workspace="abc"), oid(2), sync=False)
    for _ in range(2):
        assert refs.below(f"{TOP}/ab") == {name(1, workspace="ab"): oid(1)}
        refs.fold()


def test_deleted_references_are_gone_loose_or_packed_and_the_others_stay(refs: RefStore) -> None:
    for number in range(6):
        refs.create(name(number), oid(number + 1), sync=False)
        if number == 3:
            refs.fold()
    refs.delete([name(0), name(5), name(77)])
    assert sorted(again(refs).below(TOP)) == [name(n) for n in range(1, 5)]
    refs.create(name(5), oid(8), sync=False)
    assert again(refs).read(name(5)) == oid(8)


def test_git_sees_the_same_references(refs: RefStore) -> None:
    store = Store.open(refs.base)
    with store.writing() as writer:
        blob = writer.add("blob", b"x")
        writer.settle(sync=False)
    for number in range(4):
        refs.create(name(number), blob, sync=False)
        if number == 1:
            refs.fold()
    done = subprocess.run(
        ["git", f"--git-dir={refs.base}", "for-each-ref"], capture_output=True, check=True
    )
    listed = {line.split()[2]: line.split()[0] for line in done.stdout.decode().splitlines()}
    assert listed == {name(n): blob.hex() for n in range(4)}


def test_folding_hides_no_reference_from_a_reader(refs: RefStore) -> None:
    expected: set[str] = set()
    stop, wrong = threading.Event(), []

    def look() -> None:
        reader = again(refs)
        while not stop.is_set():
            must = set(expected)
            seen = reader.below(TOP).keys() if len(must) % 2 else reader.names(TOP)
            single = next((n for n in must if reader.read(n) is None), None)
            wrong.extend([*(must - seen), *([single] if single else [])])

    readers = [threading.Thread(target=look) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(150):
        refs.create(name(number), oid(number + 1), sync=False)
        expected.add(name(number))
        if number % 3 == 0:
            refs.fold()
    stop.set()
    for reader in readers:
        reader.join()
    assert not wrong


# Damage


@pytest.mark.parametrize(
    "text", ["", "\n", "0" * 39, "0" * 41, "g" * 40, "00 " * 20, "ref: refs/x", "\xff" * 40]
)
def test_a_damaged_reference_is_said_to_be(refs: RefStore, text: str) -> None:
    refs.create(name(1), oid(1), sync=False)
    Path(refs.base, name(1)).write_bytes(text.encode("latin-1"))
    with pytest.raises(Damaged) as caught:
        refs.read(name(1))
    assert caught.value.hint


def test_a_damaged_loose_reference_does_not_get_folded_away(refs: RefStore) -> None:
    refs.create(name(1), oid(1), sync=False)
    refs.create(name(2), oid(2), sync=False)
    Path(refs.base, name(1)).write_bytes(b"")
    assert refs.fold() == 1
    assert Path(refs.base, name(1)).exists()
    assert refs.read(name(2)) == oid(2)


def test_a_lock_that_git_left_behind_is_no_reference(refs: RefStore) -> None:
    refs.create(name(1), oid(1), sync=False)
    Path(refs.base, name(1) + ".lock").write_bytes(b"")
    assert refs.below(TOP) == {name(1): oid(1)}
    assert refs.names(TOP) == {name(1)}
    refs.create(name(2), oid(2), sync=False)
    assert refs.fold() == 2


def packed_of(refs: RefStore) -> Path:
    for number in range(3):
        refs.create(name(number), oid(number + 1), sync=False)
    refs.fold()
    return Path(refs.base, "packed-refs")


def test_packed_refs_cut_short_anywhere_are_damaged_or_whole_lines(refs: RefStore) -> None:
    file = packed_of(refs)
    good = file.read_bytes()
    for size in range(1, len(good)):
        file.write_bytes(good[:size])
        try:
            seen = again(refs).below(TOP)
        except Damaged:
            continue
        assert good[size - 1 : size] == b"\n"
        assert seen.items() <= {name(n): oid(n + 1) for n in range(3)}.items()


@pytest.mark.parametrize(
    "line",
    [
        b"0123 " + name(1).encode(),
        b"g" * 40 + b" " + name(1).encode(),
        b"\t" * 40 + b" " + name(1).encode(),
        b"0" * 40,
        b"0" * 40 + b" ",
        b"\0" * 60,
        b"\xff" * 40 + b" " + name(1).encode(),
    ],
)
def test_a_damaged_line_of_packed_refs_is_not_skipped(refs: RefStore, line: bytes) -> None:
    file = packed_of(refs)
    file.write_bytes(file.read_bytes() + line + b"\n")
    for read in (refs.packed, again(refs).packed, lambda: again(refs).read(name(1, "m"))):
        with pytest.raises(Damaged):
            read()


def test_peeled_lines_and_comments_of_git_are_read_over() -> None:
    data = b"# pack-refs with: peeled fully-peeled sorted \n%s refs/t\n^%s\n" % (
        b"a" * 40,
        b"b" * 40,
    )
    assert parse_packed(data) == {"refs/t": Oid(b"\xaa" * 20)}


@given(st.binary(max_size=200))
def test_any_bytes_are_packed_refs_or_a_value_error(data: bytes) -> None:
    try:
        found = parse_packed(data)
    except ValueError:
        return
    assert all(len(value) == 20 and key for key, value in found.items())
