"""What became of a path, a name or a text is found in every snapshot, deleted or not."""

from __future__ import annotations

import os
import random
import shutil

import pytest

from core.diff import entry_at
from core.errors import BadInput
from core.follow import history_of
from core.model import RelPath
from core.versions import find, find_text
from tests.stores import ALL, Bench
from tests.trees import Dir, File, Link, build


@pytest.fixture
def bench(tmp_path):
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def take(bench, tree=None, gone=()):
    for name in gone:
        path = bench.path / name
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    build(bench.path, tree or {})
    return bench.recorder.take().snapshot


def versions(bench, path):
    return history_of(bench.history(), RelPath(os.fsencode(path)))


def paths(sightings):
    return [os.fsdecode(one.path) for one in sightings]


def test_a_path_has_a_version_for_each_change_and_no_other(bench):
    one = take(bench, {"d/a": "1", "b": "x"})
    take(bench, {"b": "y"})
    two = take(bench, {"d/a": "2"})
    gone = take(bench, gone=["d/a"])
    take(bench, {"b": "z"})
    back = take(bench, {"d/a": "1"})
    found = versions(bench, "d/a")
    assert [v.snapshot.id for v in found] == [back.id, gone.id, two.id, one.id]
    assert [v.entry is not None for v in found] == [True, False, True, True]
    assert found[0].entry == found[3].entry


def test_a_change_of_permissions_is_a_version(bench):
    take(bench, {"a": File("x", 0o644), "b": "y", "c": "z"})
    take(bench, {"a": File("x", 0o600)})
    assert [v.mode for v in versions(bench, "a")] == [0o600, 0o644]


def test_a_path_that_was_never_there_has_no_version(bench):
    take(bench, {"a": "x"})
    assert versions(bench, "b") == []
    assert versions(bench, "a/b") == []


def test_a_path_that_came_late_begins_with_its_coming(bench):
    take(bench, {"a": "x"})
    late = take(bench, {"b": "y"})
    assert [v.snapshot.id for v in versions(bench, "b")] == [late.id]


def test_a_gap_is_a_version_with_its_reason(tmp_path):
    bench = Bench(tmp_path, type(ALL)(exclude=("*.log",), protect=()))
    take(bench, {"a.log": "x", "b": ""})
    assert [(v.entry, v.gap) for v in versions(bench, "a.log")] == [(None, "excluded")]
    bench.close()


def test_directories_have_versions_also_while_they_are_empty(bench):
    take(bench, {"d/": Dir()})
    take(bench, {"d/a": "x"})
    take(bench, gone=["d"])
    found = versions(bench, "d")
    assert [v.entry is not None for v in found] == [False, True, True]
    assert [v.mode for v in found] == [None, 0o755, 0o755]


def test_kinds_may_change_from_version_to_version(bench):
    take(bench, {"a": "x"})
    take(bench, {"a": Link("b")}, gone=["a"])
    take(bench, {"a/b": "y"}, gone=["a"])
    assert [v.entry.mode for v in versions(bench, "a")] == [0o40000, 0o120000, 0o100644]


def test_what_a_rollback_met_and_saved_is_a_version(bench):
    take(bench, {"a": "x"})
    kept = bench.recorder.keep_displaced({RelPath(b"a"): (0o100644, b"saved")}, "met")
    take(bench, {"b": "y"})
    found = versions(bench, "a")
    assert found[0].snapshot.id == kept.id
    assert len(found) == 2
    assert versions(bench, "b")[-1].entry is not None


def test_what_a_rollback_saved_is_found_and_says_nothing_of_other_paths(bench):
    first = take(bench, {"a": "x"})
    path = RelPath(b"met")
    kept = bench.recorder.keep_displaced({path: (0o100644, b"saved")}, "met")
    for found in (find(bench.history(), "met"), find_text(bench.history(), "saved")):
        assert [(one.path, one.first.id, one.still) for one in found] == [(path, kept.id, False)]
    (found_a,) = find(bench.history(), "a")
    assert (found_a.first.id, found_a.last.id, found_a.still) == (first.id, first.id, True)


def test_find_knows_deleted_files_and_directories(bench):
    first = take(bench, {"src/a.py": "1", "src/deep/b.py": "2", "c.txt": ""})
    last = take(bench, {"src/a.py": "1+"})
    take(bench, gone=["src"])
    found = find(bench.history(), "*.py")
    assert paths(found) == ["src/a.py", "src/deep/b.py"]
    assert {(one.first.id, one.last.id, one.still) for one in found} == {(first.id, last.id, False)}
    assert paths(find(bench.history(), "src")) == ["src"]
    assert paths(find(bench.history(), "deep/")) == ["src/deep"]
    assert find(bench.history(), "c.txt")[0].still


def test_find_reads_patterns_as_a_gitignore_does(bench):
    take(bench, {"a": "", "x/a": "", "x/y/a": "", "#b": "", "!c": "", "x/only": ""})
    history = bench.history()
    assert paths(find(history, "a")) == ["a", "x/a", "x/y/a"]
    assert paths(find(history, "/a")) == ["a"]
    assert paths(find(history, "x/*a")) == ["x/a"]
    assert paths(find(history, "x/**")) == ["x/a", "x/only", "x/y", "x/y/a"]
    assert paths(find(history, "#b")) == ["#b"]
    assert paths(find(history, "!c")) == ["!c"]
    with pytest.raises(BadInput):
        find(history, "[")


def test_find_sees_empty_directories_come_and_go(bench):
    first = take(bench, {"cache/": Dir(), "a": ""})
    filled = take(bench, {"cache/x": "1"})
    take(bench, gone=["cache"])
    (found,) = find(bench.history(), "cache")
    assert (found.first.id, found.last.id, found.still) == (first.id, filled.id, False)


def test_what_came_back_is_still_there(bench):
    first = take(bench, {"a": "1"})
    take(bench, gone=["a"])
    again = take(bench, {"a": "2"})
    (found,) = find(bench.history(), "a")
    assert (found.first.id, found.last.id, found.still) == (first.id, again.id, True)


def test_names_that_are_not_utf_8_are_found(bench):
    take(bench, {b"caf\xe9": "x"})
    assert [one.path for one in find(bench.history(), "caf?")] == [b"caf\xe9"]
    assert len(versions(bench, b"caf\xe9")) == 1


def test_find_text_names_the_line_and_the_snapshots_that_have_it(bench):
    take(bench, {"a": "one\n", "b": "two\n"})
    came = take(bench, {"a": "one\nneedle here\n"})
    moved = take(bench, {"a": "a line\none\nneedle here"})
    take(bench, {"a": "one\n"})
    (found,) = find_text(bench.history(), "needle")
    assert (found.first.id, found.last.id, found.still) == (came.id, moved.id, False)
    assert found.line is not None
    assert (found.line.number, found.line.text) == (3, b"needle here")


def test_find_text_skips_binary_files_and_link_targets(bench):
    take(bench, {"bin": b"needle\0", "link": Link("needle"), "text": "needle"})
    assert paths(find_text(bench.history(), "needle")) == ["text"]


def test_find_text_needs_a_text(bench):
    with pytest.raises(BadInput):
        find_text(bench.history(), "")


def test_each_content_is_read_once(bench, monkeypatch):
    take(bench, {f"d{n}/f": "the same" for n in range(20)})
    for n in range(20):
        take(bench, {f"d{n}/g": f"{n}"})
    history = bench.history()
    reads = []
    real = history.store.blob

    def blob(oid):
        reads.append(oid)
        return real(oid)

    monkeypatch.setattr(history.store, "blob", blob)
    assert len(find_text(history, "same")) == 20
    assert len(reads) == len(set(reads))


def test_damage_in_one_snapshot_does_not_hide_the_others(bench, monkeypatch):
    take(bench, {"a": "1"})
    broken = take(bench, {"a": "2"})
    take(bench, {"a": "3"})
    history = bench.history()
    real = history.store.tree

    def tree(oid):
        return real(type(oid)(b"\1" * 20) if oid == broken.files else oid)

    monkeypatch.setattr(history.store, "tree", tree)
    assert len(history_of(history, RelPath(b"a"))) == 2
    assert len(find(history, "a")) == 1
    assert history.damage


def test_versions_are_those_of_a_plain_walk_over_all_snapshots(bench):
    chance = random.Random(7)
    for _ in range(40):
        name = chance.choice(["a", "d/a", "d/e/a"])
        if chance.random() < 0.3 and (bench.path / name).exists():
            (bench.path / name).unlink()
        else:
            build(bench.path, {name: str(chance.randrange(3))})
        bench.recorder.take()
    store, history = bench.store, bench.history()
    for path in map(RelPath, (b"a", b"d/a", b"d/e/a")):
        plain = [entry_at(store.tree, s.files, path) for s in history.snapshots()]
        changes = [e for at, e in enumerate(plain) if e != (plain[at - 1] if at else None)]
        assert [v.entry for v in history_of(history, path)] == changes[::-1]


def test_other_workspaces_do_not_show(bench, tmp_path):
    take(bench, {"mine": "x"})
    other = Bench(tmp_path, name="other")
    take(other, {"theirs": "x"})
    assert paths(find(bench.history(), "*")) == ["mine"]
    other.close()
