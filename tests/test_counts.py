"""Counts agree with git, are computed once, and are never worth more than they cost."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys

import pytest

from core import counts as counts_module
from core.counts import CountBook
from core.model import Counts, Oid
from tests.stores import Bench
from tests.trees import File, Leaf, Link, build

OLD: dict[str | bytes, Leaf] = {
    "same": "1\n2\n",
    "edited": "".join(f"{n}\n" for n in range(50)),
    "no newline": "a\nb",
    "gone": "1\n2\n3\n",
    "d/deep/gone": "x\n",
    "binary": b"\0\1\2",
    "mode": File("1\n", 0o644),
    "was link": Link("somewhere"),
    "link": Link("old"),
    "dir/file": "1\n",
}
NEW: dict[str | bytes, Leaf] = {
    "same": "1\n2\n",
    "edited": "".join(f"{n}\n" for n in range(50) if n % 7) + "end\n",
    "no newline": "a\nb\n",
    "d/deep/come": "x\ny\n",
    "binary": b"\0\1\2\3",
    "mode": File("1\n", 0o755),
    "link": Link("new"),
    "dir": "a file now\n",
    b"not utf-8 \xff": "1\n",
}


@pytest.fixture
def bench(tmp_path):
    made = Bench(tmp_path)
    yield made
    made.close()


@pytest.fixture
def pair(bench):
    build(bench.path, OLD)
    old = bench.point().snapshot.files
    subprocess.run(["rm", "-r", *(str(p) for p in bench.path.iterdir())], check=True)
    build(bench.path, NEW)
    return old, bench.point().snapshot.files


def numstat(bench: Bench, old: Oid, new: Oid) -> Counts:
    command = ["git", f"--git-dir={bench.store.base}", "diff", "--no-renames", "--numstat", "-z"]
    done = subprocess.run([*command, old.hex(), new.hex()], capture_output=True, check=True)
    rows = [line.split(b"\t")[:2] for line in done.stdout.split(b"\0") if line]
    added, deleted = ([int(n) for n in column if n != b"-"] for column in zip(*rows, strict=True))
    return Counts(len(rows), sum(added), sum(deleted))


def test_counts_are_those_of_git_numstat(bench, pair):
    book = CountBook(bench.store)
    assert book.get(*pair) is None
    assert book.fill([pair], 5) == 1
    assert book.get(*pair) == numstat(bench, *pair)


def test_backwards_the_signs_change_places(bench, pair):
    book = CountBook(bench.store)
    book.fill([pair, pair[::-1]], 5)
    there, back = book.get(*pair), book.get(*pair[::-1])
    assert there is not None
    assert back == Counts(there.files, there.deletions, there.insertions)


def test_what_is_known_is_not_computed_again(bench, pair, monkeypatch):
    CountBook(bench.store).fill([pair], 5)
    monkeypatch.delattr(counts_module, "diff_trees")
    assert CountBook(bench.store).fill([pair], 5) == 0
    assert CountBook(bench.store).get(*pair) is not None


def test_reading_makes_no_file(bench, pair):
    book = CountBook(bench.store)
    assert book.get(*pair) is None
    assert not os.path.exists(book.path)


def test_the_file_is_private(bench, pair):
    book = CountBook(bench.store)
    book.fill([pair], 5)
    assert os.stat(book.path).st_mode & 0o777 == 0o600


def test_a_file_that_is_lost_after_it_was_missed_is_found_again(bench, pair):
    book = CountBook(bench.store)
    assert book.get(*pair) is None
    book.fill([pair], 5)
    assert book.get(*pair) is not None


@pytest.mark.parametrize(
    "damage", [b"no database at all" * 100, b"SQLite format 3\0" + bytes(5000)]
)
def test_a_damaged_file_costs_its_numbers_and_is_made_anew(bench, pair, damage):
    book = CountBook(bench.store)
    with open(book.path, "wb") as file:
        file.write(damage)
    assert book.get(*pair) is None
    assert book.fill([pair], 5) == 1
    assert CountBook(bench.store).get(*pair) == numstat(bench, *pair)


def test_a_file_of_another_layout_is_left_alone(bench, pair):
    book = CountBook(bench.store)
    with sqlite3.connect(book.path) as db:
        db.execute("CREATE TABLE counts0 (x)")
    db.close()
    assert book.get(*pair) is None
    assert book.fill([pair], 5) == 1


def test_a_file_that_another_process_holds_is_not_waited_for(bench, pair, monkeypatch):
    monkeypatch.setattr(counts_module, "_WAIT", 0.01)
    book = CountBook(bench.store)
    book.fill([], 5)
    other = sqlite3.connect(book.path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    assert CountBook(bench.store).get(*pair) is None
    assert CountBook(bench.store).fill([pair], 5) == 0
    other.close()
    assert CountBook(bench.store).fill([pair], 5) == 1


def test_without_time_the_first_pair_has_its_paths_and_the_rest_wait(bench, pair):
    book = CountBook(bench.store)
    assert book.fill([pair, pair[::-1]], 0) == 1
    assert book.get(*pair) == Counts(numstat(bench, *pair).files)
    assert book.get(*pair[::-1]) is None
    assert book.fill([pair, pair[::-1]], 5) == 1


def test_a_pair_that_did_not_have_all_the_time_waits_for_the_next(bench, pair, monkeypatch):
    ticks = iter(range(10_000))
    monkeypatch.setattr("core.counts.time.monotonic", lambda: next(ticks))
    book = CountBook(bench.store)
    files = numstat(bench, *pair).files
    assert book.fill([pair, pair[::-1]], files + 3) == 1
    assert book.get(*pair) == numstat(bench, *pair)
    assert book.get(*pair[::-1]) is None


def test_a_tree_that_the_store_lost_has_no_counts(bench, pair):
    lost = Oid(b"\1" * 20)
    book = CountBook(bench.store)
    assert book.fill([(lost, pair[1]), pair], 5) == 1
    assert book.get(lost, pair[1]) is None


def test_importing_it_does_not_import_sqlite():
    script = "import sys; import core.counts; print('sqlite3' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout == b"False\n"
