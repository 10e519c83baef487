"""The rows about taking snapshots: first ones, changes, and nothing changed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from functools import partial

from core.model import RelPath

from .bench import Bench, remove
from .contenders import check_same, python
from .limits import write_plainly
from .measure import Result, Target, Times, in_turns, seconds


class Fresh:
    """Owns the newest of several pairs of contenders that each take one first snapshot."""

    def __init__(self, bench: Bench, files: int) -> None:
        self.bench = bench
        self.files = files
        bench.edits(files)  # builds the tree, and reads the directories into memory
        self.pair = bench.empty_pair(files)
        self.used = False
        self.comparable = False

    def renew(self) -> None:
        if self.used:
            self.check()
            remove(self.pair)
            self.pair = self.bench.empty_pair(self.files)
        self.used = True

    def ours(self) -> None:
        self.pair[0].take()

    def git(self) -> None:
        self.pair[1].commit()
        self.comparable = True

    def check(self) -> None:
        if self.comparable:
            check_same(*self.pair)


def first_small(bench: Bench) -> Iterator[Result]:
    files = bench.scale.small
    yield _first(bench, files, bench.scale.firsts_small).faster(f"first snapshot, {files:,}", 4)


def first_large(bench: Bench) -> Iterator[Result]:
    files = bench.scale.large
    yield _first(bench, files, bench.scale.firsts_large).faster(f"first snapshot, {files:,}", 3)


def _first(bench: Bench, files: int, times: int) -> Times:
    fresh = Fresh(bench, files)
    found = in_turns(times, fresh.renew, fresh.ours, fresh.git)
    fresh.check()
    bench.keep_pair(files, fresh.pair)
    return found


def changed_1(bench: Bench) -> Iterator[Result]:
    yield _changed(bench, 1, 100)


def changed_20(bench: Bench) -> Iterator[Result]:
    yield _changed(bench, 20, 40)


def changed_1000(bench: Bench) -> Iterator[Result]:
    yield _changed(bench, 1_000, 5)


def _changed(bench: Bench, count: int, least: float) -> Result:
    """Durable on our side, with the dirty paths known; git has to look for them."""
    files = bench.scale.large
    edits, (ours, git) = bench.edits(files), bench.pair(files)
    paths: list[RelPath] = []

    def prepare() -> None:
        paths[:] = edits.change(count)
        ours.make_ready()

    def take() -> None:
        ours.take(paths)

    found = in_turns(bench.scale.changes, prepare, take, git.commit)
    check_same(ours, git)
    return found.faster(f"{count:,} changed in {files:,}, durable", least)


def nothing_changed(bench: Bench) -> Iterator[Result]:
    """Both look at every file; git's look ends before the commit, which it would refuse."""
    files = bench.scale.large
    ours, git = bench.pair(files)
    ours.take()
    for what, act in (("warm", ours.take), ("cold", ours.take_cold)):
        found = in_turns(bench.scale.changes, _wait, act, git.look)
        least = 0.6 if what == "warm" else None
        yield found.faster(f"nothing changed, full scan of {files:,}, {what}", least)
    check_same(ours, git)


def _wait() -> None:
    """Nothing has to be made ready."""


def memory(bench: Bench) -> Iterator[Result]:
    """The most that a process of its own needs for the first snapshot of the large tree."""
    root, base = bench.tree(bench.scale.large), bench.place("store")
    found = json.loads(python("-m", "tests.bench.peak", base, root))
    peak = found["peak_bytes"] / 1e6
    what = f"peak memory, first snapshot of {bench.scale.large:,}"
    yield Result(what, peak, None, "limit", peak, peak, peak, Target("<=", 150, " MB"), "MB")


def limits(bench: Bench) -> Iterator[Result]:
    """How far both kinds of snapshot are from merely hashing, compressing and writing."""
    files = bench.scale.large
    edits = bench.edits(files)
    fresh = Fresh(bench, files)
    target = bench.place("plain")
    found = in_turns(
        bench.scale.firsts_large,
        fresh.renew,
        fresh.ours,
        lambda: write_plainly(edits.root, edits.files, target),
    )
    remove(fresh.pair)
    yield found.costs(f"first snapshot, {files:,}, against plain writing", None, "limit")
    yield one_against_limit(bench, target, "1 changed in {:,}")
    os.unlink(target)


def one_against_limit(bench: Bench, target: str, what: str) -> Result:
    files = bench.scale.large
    edits, (ours, _) = bench.edits(files), bench.pair(files)
    found = Times([], [])
    for _ in range(3 * bench.scale.changes):
        path = edits.change(1)
        ours.make_ready()
        found.other.append(seconds(partial(write_plainly, edits.root, path, target)))
        found.ours.append(seconds(partial(ours.take, path)))
    return found.costs(f"{what.format(files)}, against plain writing", 3, "limit")
