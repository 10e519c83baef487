"""Snapshots and marks come back as they were written; a damaged one hides no other."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import Damaged
from core.history import (
    History,
    MarkSpec,
    mark_ref,
    pin_ref,
    read_mark,
    read_snapshot,
    snapshot_ref,
    workspaces,
    write_mark,
    write_snapshot,
)
from core.model import EMPTY_TREE, Mark, Oid, Snapshot
from core.objects import encode_commit, encode_tag
from core.store import Store
from tests.stores import Bench, fsck
from tests.trees import build

WORK = "0123456789abcdef"
Doc = dict[str, Any]
Wrong = Callable[[Doc], object]

texts = st.text(max_size=30) | st.sampled_from(["", "\n\n{}", "\udcff\x1b[0m", "ü\0€𝄞"])
optional = st.none() | texts
numbers = st.integers(0, 2**40)
SNAPSHOT_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("seq", "changed", "gaps", "total"), numbers),
    "time_ns": st.integers(-(10**18), 2**62),
    "note": texts,
    "partial": st.booleans(),
}
MARK_FIELDS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("seq", "time_ns", "gaps"), numbers),
    **dict.fromkeys(("session", "turn_id", "agent"), optional),
    "kind": st.sampled_from(["manual", "turn-end"]),
    "label": texts,
    "turn": st.none() | numbers,
    "status": st.sampled_from([None, "ok", "late"]),
    "extra": st.dictionaries(texts, texts | numbers | st.none(), max_size=3),
}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store.create(str(tmp_path_factory.mktemp("history") / "store"))


def plain_snapshot(about: Oid, **changes: Any) -> Snapshot:
    return replace(Snapshot(Oid(b""), WORK, 1, 10**18, EMPTY_TREE, about), **changes)


@given(st.fixed_dictionaries(SNAPSHOT_FIELDS), texts)
def test_a_snapshot_is_read_back_as_it_was_written(
    shared: Store, fields: dict[str, Any], root: str
) -> None:
    with shared.writing() as writer:
        made = write_snapshot(
            writer, plain_snapshot(writer.add("blob", b"about"), **fields), "/" + root
        )
        writer.settle(sync=False)
    assert read_snapshot(shared, made.id) == made


@given(st.fixed_dictionaries(MARK_FIELDS))
def test_a_mark_is_read_back_as_it_was_written(shared: Store, fields: dict[str, Any]) -> None:
    with shared.writing() as writer:
        commit = writer.add("commit", encode_commit(EMPTY_TREE, 0, b"x"))
        made = write_mark(writer, Mark(id=Oid(b""), workspace=WORK, snapshot=commit, **fields))
        writer.settle(sync=False)
    read = read_mark(shared, made.id)
    assert (read, read.extra) == (made, made.extra)


def test_everything_that_was_written_is_good_in_the_eyes_of_git(shared: Store) -> None:
    with shared.writing() as writer:
        writer.add("tree", b"", EMPTY_TREE)
        writer.settle(sync=False)
    fsck(shared.base)


# Damage


def points(bench: Bench, count: int) -> list[Snapshot]:
    out = []
    for number in range(count):
        build(bench.path, {"f": str(number)})
        out.append(bench.point(str(number)).snapshot)
    return out


def put(store: Store, kind: Any, data: bytes) -> Oid:
    with store.writing() as writer:
        oid = writer.add(kind, data)
        writer.settle(sync=False)
    return oid


def point_at(bench: Bench, name: str, oid: Oid) -> None:
    Path(bench.store.base, name).write_text(oid.hex() + "\n")


def snapshot_doc(snapshot: Snapshot) -> Doc:
    places = {"files": snapshot.files.hex(), "about": snapshot.about.hex()}
    numbers = dict.fromkeys(("changed", "gaps", "total"), 0)
    said = {"turnmark": 1, "workspace": WORK, "root": "/", "seq": 2, "time_ns": 1, "note": ""}
    return {**said, **places, **numbers, "partial": False}


MARK_DOC: Doc = {
    "turnmark": 1,
    "workspace": WORK,
    "seq": 2,
    "time_ns": 1,
    "kind": "manual",
    "label": "",
    **dict.fromkeys(("session", "turn", "turn_id", "agent", "status")),
    "gaps": 0,
    "extra": {},
}


def without(key: str) -> Wrong:
    return lambda doc: {k: v for k, v in doc.items() if k != key}


def with_text(key: str) -> Wrong:
    return lambda doc: doc | {key: "x"}


WRONG: dict[str, Wrong] = {
    "no JSON": lambda doc: "",
    "a list": lambda doc: [1],
    "no version": lambda doc: doc | {"turnmark": None},
    "deep": lambda doc: None,
    **{f"no {key}": without(key) for key in ("seq", "workspace", "time_ns", "gaps")},
    **{f"{key} is no number": with_text(key) for key in ("seq", "gaps")},
}
WRONG_SNAPSHOT: dict[str, Wrong] = WRONG | {
    "files are no id": lambda doc: doc | {"files": "zz"},
    "files are a short id": lambda doc: doc | {"files": "abcd"},
    "about is null": lambda doc: doc | {"about": None},
}
WRONG_MARK: dict[str, Wrong] = WRONG | {
    "extra is a number": lambda doc: doc | {"extra": 7},
}


def text_of(doc: object) -> bytes:
    text = "[" * 100_000 if doc is None else json.dumps(doc)
    return b"title\n\n" + text.encode() + b"\n"


@pytest.mark.parametrize("wrong", WRONG_SNAPSHOT.values(), ids=WRONG_SNAPSHOT.keys())
def test_a_malformed_snapshot_is_damage_and_does_not_hide_the_rest(
    bench: Bench, wrong: Wrong
) -> None:
    one, two, three = points(bench, 3)
    data = encode_commit(EMPTY_TREE, 1, text_of(wrong(snapshot_doc(two))))
    oid = put(bench.store, "commit", data)
    with pytest.raises(Damaged):
        read_snapshot(bench.store, oid)
    point_at(bench, snapshot_ref(two), oid)
    history = bench.history()
    assert list(history.snapshots()) == [one, three]
    assert len(history.damage) == 1


@pytest.mark.parametrize("wrong", WRONG_MARK.values(), ids=WRONG_MARK.keys())
def test_a_malformed_mark_is_damage_and_does_not_hide_the_rest(bench: Bench, wrong: Wrong) -> None:
    points(bench, 3)
    one, two, three = bench.history().marks()
    oid = put(bench.store, "tag", encode_tag(one.snapshot, "n", 1, text_of(wrong(MARK_DOC))))
    with pytest.raises(Damaged):
        read_mark(bench.store, oid)
    point_at(bench, mark_ref(two), oid)
    history = bench.history()
    assert list(history.marks()) == [one, three]
    assert len(history.damage) == 1


@pytest.mark.parametrize("kind", ["blob", "tree", "missing", "swapped"])
def test_a_reference_to_the_wrong_thing_is_damage_and_does_not_hide_the_rest(
    bench: Bench, kind: str
) -> None:
    one, two, three = points(bench, 3)
    first, second, third = bench.history().marks()
    wrong = {"blob": put(bench.store, "blob", b"x"), "tree": one.files, "missing": Oid(bytes(20))}
    point_at(bench, snapshot_ref(two), wrong.get(kind, second.id))
    point_at(bench, mark_ref(second), wrong.get(kind, two.id))
    history = bench.history()
    assert list(history.snapshots()) == [one, three]
    assert list(history.marks()) == [first, third]
    assert len(history.damage) == 2


@pytest.mark.parametrize("text", ["", "\0" * 41, "0123"])
def test_a_reference_that_a_power_cut_emptied_does_not_hide_the_rest_nor_stop_the_next(
    bench: Bench, text: str
) -> None:
    one, two, three = points(bench, 3)
    last = list(bench.history().marks())[-1]
    Path(bench.store.base, snapshot_ref(two)).write_text(text)
    Path(bench.store.base, mark_ref(last)).write_text(text)
    history = bench.history()
    assert list(history.snapshots()) == [one, three]
    assert (len(history.damage), history.last_seq()) == (2, last.seq)
    build(bench.path, {"f": "goes on"})
    bench.reopen()
    assert bench.point().snapshot.seq == last.seq + 1
    assert bench.history().newest() != three


def test_the_newest_snapshot_is_the_newest_that_can_be_read_and_is_complete(bench: Bench) -> None:
    one, two, three = points(bench, 3)
    assert bench.history().newest() == three
    point_at(bench, snapshot_ref(three), Oid(bytes(20)))
    assert bench.history().newest() == two
    bench.reopen().keep_displaced({}, "a partial one is not the state of the tree")
    assert bench.history().newest() == two
    assert one in bench.history().snapshots()
    build(bench.path, {"f": "next"})
    assert bench.point().snapshot.seq == bench.history().last_seq() - 1


def test_a_newer_record_is_refused_with_the_way_out(bench: Bench) -> None:
    (one,) = points(bench, 1)
    doc = snapshot_doc(one) | {"turnmark": 2}
    snapshot = put(bench.store, "commit", encode_commit(EMPTY_TREE, 1, text_of(doc)))
    mark = put(bench.store, "tag", encode_tag(one.id, "n", 1, text_of(MARK_DOC | {"turnmark": 9})))
    for read, oid in ((read_snapshot, snapshot), (read_mark, mark)):
        with pytest.raises(Damaged, match="newer turnmark") as caught:
            read(bench.store, oid)
        assert caught.value.hint == "Update turnmark."


@given(st.binary(max_size=300))
def test_any_message_is_a_record_or_damage(shared: Store, message: bytes) -> None:
    oid = put(shared, "commit", encode_commit(EMPTY_TREE, 1, b"t\n\n" + message))
    with pytest.raises(Damaged):
        read_snapshot(shared, oid)


# The references of one workspace


def test_references_of_other_kinds_and_workspaces_are_passed_over(bench: Bench) -> None:
    (one,) = points(bench, 1)
    own = f"refs/turnmark/{bench.root.id}"
    others = (f"{own}/view", f"{own}/s/x", f"{own}/s/-1", f"{own}/m/1/2", f"{own}/z/9")
    for name in (*others, f"refs/turnmark/{WORK}/s/77", pin_ref(bench.root.id, one.id)):
        bench.store.refs.create(name, one.id, sync=False)
    history = bench.history()
    assert [s.id for s in history.snapshots()] == [one.id]
    assert (history.last_seq(), history.pins) == (2, {one.id})
    assert workspaces(bench.store) == sorted([WORK, bench.root.id])


def test_order_is_by_number_whatever_the_names_sort_like(bench: Bench) -> None:
    taken = points(bench, 12)
    bench.store.refs.fold()
    assert list(History(bench.store, bench.root.id).snapshots()) == taken
    assert [m.label for m in bench.history().marks()] == [str(n) for n in range(12)]


def test_two_marks_may_share_a_snapshot(bench: Bench) -> None:
    build(bench.path, {"f": "1"})
    first, second = bench.point("a"), bench.recorder.take(mark=MarkSpec("manual", "b"))
    assert first.snapshot == second.snapshot
    assert [m.label for m in bench.history().marks()] == ["a", "b"]
