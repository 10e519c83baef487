"""The records of a workspace on disk: saved piece by piece, believed only when they are whole."""

from __future__ import annotations

import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from core import worktree
from core.model import ROOT, RelPath
from core.worktree import SAVED_AT_ONCE, WorkTree
from tests.stores import Bench
from tests.trees import build

DIRS = 3 * SAVED_AT_ONCE


def workspace(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path)
    build(bench.path, {f"d{n}/f": "1" for n in range(DIRS)})
    bench.point()
    bench.recorder.tree.save()
    build(bench.path, {f"d{n}/f": "2" for n in range(DIRS)})
    bench.point()
    return bench


def in_file(bench: Bench) -> bytes | None:
    """The root's tree, as the next process would find it."""
    records = WorkTree(bench.recorder.tree.path)
    root = records.root()
    base = records.base
    records.close()
    assert (root is None) == (base is None)
    return root.oid if root is not None else None


def test_a_save_that_is_broken_off_counts_only_when_it_was_finished(tmp_path: Path) -> None:
    bench = workspace(tmp_path)
    tree, before = bench.recorder.tree, in_file(bench)
    answers = iter([False, True])
    tree.save(lambda: next(answers))
    assert tree.is_unsaved()
    assert in_file(bench) == before
    tree.save(lambda: False)
    assert not tree.is_unsaved()
    root = tree.get(ROOT)
    assert root is not None
    assert in_file(bench) == root.oid != before


def test_what_changes_while_a_save_is_broken_off_is_saved_as_it_is_then(tmp_path: Path) -> None:
    bench = workspace(tmp_path)
    answers = iter([False, False, True])
    bench.recorder.tree.save(lambda: next(answers))
    build(bench.path, {f"d{n}/f": "three" for n in range(DIRS)})
    last = bench.point().snapshot
    bench.close()
    again = bench.reopen()
    assert again.tree.base == last.id
    taken = again.take()
    assert (taken.fresh, taken.changed) == (False, 0)


def test_a_save_that_is_never_finished_leaves_the_records_of_before(tmp_path: Path) -> None:
    bench = workspace(tmp_path)
    before = in_file(bench)
    answers = iter([False, True])
    bench.recorder.tree.save(lambda: next(answers))
    bench.recorder.tree._disconnect()  # as a death does
    assert in_file(bench) == before
    assert not bench.reopen().take().fresh


def test_what_was_saved_is_in_the_log_until_it_is_folded_by_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = workspace(tmp_path)
    tree = bench.recorder.tree
    tree.save()
    before = os.stat(tree.path).st_size
    tree.fold()  # so little is not worth it
    assert not [thread for thread in threading.enumerate() if thread.name == "turnmark-fold"]
    monkeypatch.setattr(worktree, "FOLD_ABOVE", 1)
    tree.fold()
    folding = tree._folding
    assert folding is not None
    folding.join()
    assert os.stat(tree.path).st_size > before
    with closing(sqlite3.connect(f"file:{tree.path}?immutable=1", uri=True)) as alone:
        assert alone.execute("SELECT count(*) FROM dirs").fetchone() == (DIRS + 1,)
    tree.close()
    assert not os.path.exists(tree.path + "-wal")


def test_without_a_thread_to_be_had_the_log_is_folded_by_whoever_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    bench = workspace(tmp_path)
    monkeypatch.setattr(worktree, "FOLD_ABOVE", 1)
    monkeypatch.setattr(threading.Thread, "start", start)
    bench.recorder.tree.save()
    bench.recorder.tree.fold()
    bench.recorder.tree.close()
    assert not os.path.exists(bench.recorder.tree.path + "-wal")
    assert in_file(bench) is not None


def test_the_log_of_a_wide_directory_is_folded_as_it_grows(tmp_path: Path) -> None:
    """Found by a reviewer: counted by records it grew by gigabytes."""
    bench = Bench(tmp_path)
    build(bench.path, {f"{'n' * 200}{n}": "" for n in range(1_000)})
    bench.point()
    for number in range(60):
        build(bench.path, {"f": str(number)})
        bench.recorder.take([RelPath(b"f")])
        bench.recorder.tree.save()
        bench.recorder.tree.fold()
        folding = bench.recorder.tree._folding
        if folding is not None:
            folding.join()
    assert os.stat(bench.recorder.tree.path + "-wal").st_size < 3 * worktree.FOLD_ABOVE


def test_a_log_that_was_long_shrinks_when_it_is_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worktree, "LOG_BYTES", 50_000)
    monkeypatch.setattr(worktree, "FOLD_ABOVE", 1)
    bench = workspace(tmp_path)
    tree = bench.recorder.tree
    build(bench.path, {f"wide/{'n' * 200}{n}": "" for n in range(1_000)})
    bench.point()
    for number in range(2):
        tree.save()
        assert (os.stat(tree.path + "-wal").st_size > 100_000) is (number == 0)
        tree.fold()
        assert tree._folding is not None
        tree._folding.join()
        build(bench.path, {"d1/f": f"again {number}"})
        bench.recorder.take([RelPath(b"d1/f")])
    tree.close()


def test_to_fold_makes_no_file(tmp_path: Path) -> None:
    worktree._fold(str(tmp_path / "none"))
    assert not list(tmp_path.iterdir())
