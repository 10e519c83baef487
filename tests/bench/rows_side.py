"""turnmark beside all that people would use instead: the same tree, the same work, in one run.

Each row is one piece of work; its results say how many times faster turnmark was than each peer.
It has to be ahead of whoever keeps history. The naive copies and the limit, which is what merely
hashing, compressing and writing the changed bytes takes, are there for scale.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

from core.model import RelPath
from core.rules import DEFAULT_EXCLUDE

from .bench import Bench
from .contenders import Wrong
from .limits import make_empty, write_plainly
from .measure import Act, Result, Times, one_round, rotated, seconds
from .peers import Peer, makers
from .peers.archives import Archive
from .peers.ours import Ours
from .peers.peer import State
from .trees import (
    Edits,
    build_binaries,
    build_directories,
    build_modules,
    build_packages,
    one_directory,
)

LIMIT = "limit"
OURS = Ours.name
SMALL_BELOW = 1_000_000
LARGE = "large.bin"
SMALL_ENOUGH = 2_000_000
"""Below this, no peer's rules leave a file out for its size."""
DIRECTORY_SHARE = 100
"""The directory that is deleted and moved holds one file in so many of all."""

Row = list[Result]


@dataclass(frozen=True)
class Change:
    """What was done to the tree, and how a state that holds it can be told."""

    paths: list[RelPath] = field(default_factory=list)
    told: list[RelPath] | None = None
    """What a watcher tells of it; without one, whoever wants to know has to look."""
    gone: RelPath | None = None


class Found:
    """Owns the seconds of each, round by round."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    def add(self, found: dict[str, float]) -> None:
        for name, spent in found.items():
            self.seconds.setdefault(name, []).append(spent)

    def add_all(self, name: str, other: Found) -> None:
        self.seconds[name] = list(other.seconds[name])


class Field:
    """Owns the peers that keep states of one tree, and the large binary put into it for them."""

    def __init__(self, bench: Bench, root: str, label: str) -> None:
        self.bench = bench
        self.root = root
        self.label = label
        self.edits = Edits(root)
        self.edits.files = [path for path in self.edits.files if not _is_left_out(path)]
        self.small = [path for path in self.edits.files if self._is_small(path)]
        self.large = Path(root, LARGE)
        self.large.write_bytes(self.edits.rng.randbytes(bench.scale.large_binary))
        self.plain = bench.place("plain")
        self.peers: dict[str, Peer] = {}
        self.states: dict[str, str] = {}
        self.change = Change()

    def _is_small(self, path: RelPath) -> bool:
        """Whether all peers keep it: OpenCode leaves out what is large."""
        return os.lstat(os.path.join(self.edits.root, path)).st_size < SMALL_BELOW

    def close(self) -> None:
        self._clear()
        self.large.unlink()

    def _clear(self) -> None:
        for peer in self.peers.values():
            peer.remove()
        self.peers.clear()

    def _fill(self) -> None:
        """New stores for all, with nothing in them."""
        self._clear()
        self.states.clear()
        self.peers[OURS] = Ours(self.bench.place("store"), self.root)
        for name, make in makers(first=True).items():
            self.peers[name] = make(self.bench.place("peer"), self.root)

    # Work

    def first(self, times: int) -> Row:
        """The whole tree, with empty stores."""
        every = Change([*self.edits.files, RelPath(LARGE.encode())])
        found = Found()
        for number in range(times):
            self._fill()
            self.change = every
            found.add(self._round(number))
            self._check(every)
        self._drop_those_of_first_snapshots_only()
        return self._row("first snapshot", found)

    def _drop_those_of_first_snapshots_only(self) -> None:
        for name in set(self.peers) - set(makers(first=False)) - {OURS}:
            self.peers.pop(name).remove()
            del self.states[name]

    def changed(self, count: int, times: int) -> Row:
        def edit() -> Change:
            paths = self.edits.change(count)
            return Change(paths, paths)

        return self._work(f"{count:,} changed", times, edit)

    def nothing(self, times: int) -> Row:
        """All look at every file, turnmark too: as if nobody had watched."""
        return self._work("nothing changed, full look", times, Change)

    def large_changed(self, times: int) -> Row:
        """Not by peers whose rules leave so large a file out."""
        path = RelPath(LARGE.encode())

        def overwrite() -> Change:
            with open(self.large, "r+b") as file:
                file.seek(self.bench.scale.large_binary // 2)
                file.write(self.edits.rng.randbytes(64))
            return Change([path], [path])

        row = self._work(f"{LARGE} changed a little", times, overwrite)
        return [one for one in row if one.against == LIMIT or self.peers[one.against].takes_large]

    def directory(self, times: int) -> Iterator[Row]:
        """One directory is deleted, comes back under another name, and gets its own again."""
        home = one_directory(self.root, len(self.edits.files) // DIRECTORY_SHARE)
        count, held = sum(len(names) for _, _, names in os.walk(home)), _first_file(home)
        away = self.bench.place("away")
        steps = (
            ("deleted", home, away),
            ("comes back", away, f"{home}_moved"),
            ("moved", f"{home}_moved", home),
        )
        found = {what: Found() for what, _, _ in steps}
        try:
            for number in range(times):
                for what, old, new in steps:
                    self.change = self._move(old, new, held)
                    found[what].add(self._round(number))
                    self._check(self.change)
        finally:
            _bring_back(home, [new for _, _, new in steps])
        for what, times_of in found.items():
            yield self._row(f"directory of {count:,} {what}", times_of)

    def _move(self, old: str, new: str, held: str) -> Change:
        os.rename(old, new)
        inside = [path for path in (old, new) if path.startswith(self.root + "/")]
        there = [self._path(f"{new}/{held}")] if new in inside else []
        gone = self._path(f"{old}/{held}") if old in inside else None
        return Change(there, [self._path(path) for path in inside], gone)

    def _path(self, path: str) -> RelPath:
        return RelPath(os.fsencode(path[len(self.root) + 1 :]))

    def rolled_back(self, count: int, times: int) -> Iterator[Row]:
        """Each in its turn brings back so many files; the stat caches of all are warm.

        Whoever keeps states keeps what is there first: without that nobody can go back again. What
        those take that would as well overwrite it is there for scale.
        """
        found, losing = Found(), Found()
        for number in range(times):
            for name in rotated(number, self.peers):
                peer = self.peers[name]
                found.add({name: self._one_rollback(peer, count, peer.restore)})
                if isinstance(peer, Archive):
                    losing.add({name: self._one_rollback(peer, count, peer.overwrite)})
        losing.add_all(OURS, found)
        yield self._row(f"rollback of {count:,}", found)
        if losing.seconds.keys() != {OURS}:
            yield self._row(f"rollback of {count:,}, the others keep nothing", losing, judge=False)

    def _one_rollback(self, peer: Peer, count: int, restore: Callable[[State], None]) -> float:
        peer.make_ready()
        state = peer.take()
        paths = self.edits.rng.sample(self.small, count)
        before = {path: self._content(path) for path in paths}
        for path in paths:
            self.edits.edit(path)
        spent = seconds(lambda: restore(state))
        for path, data in before.items():
            if self._content(path) != data:
                raise Wrong(f"{peer.name} did not bring back {os.fsdecode(path)}.")
        return spent

    # Timing, and whether it was right

    def _work(self, what: str, times: int, prepare: Callable[[], Change]) -> Row:
        found = Found()
        for number in range(times):
            self.change = prepare()
            found.add(self._round(number))
        self._check(self.change)
        return self._row(what, found)

    def _round(self, number: int) -> dict[str, float]:
        acts: dict[str, Act] = {name: partial(self._take, name) for name in self.peers}
        if number == 0:
            make_empty(self.plain)
        if self.change.paths:
            acts[LIMIT] = self._write_plainly
        return one_round(number, acts, self._make_ready)

    def _make_ready(self, name: str) -> None:
        if name in self.peers:
            self.peers[name].make_ready()

    def _take(self, name: str) -> None:
        """What a watcher tells helps only whoever has a state to start from."""
        told = self.change.told if name in self.states else None
        self.states[name] = self.peers[name].take(told)

    def _write_plainly(self) -> None:
        write_plainly(os.fsencode(self.root), self.change.paths, self.plain)

    def _check(self, change: Change) -> None:
        """All hold what is there, and not what is gone."""
        there = next((path for path in change.paths if self._is_taken_by_all(path)), None)
        for name, peer in self.peers.items():
            state = self.states[name]
            if there is not None and peer.read(state, there) != self._content(there):
                raise Wrong(f"{name} does not hold {os.fsdecode(there)} as it is.")
            if change.gone is not None and peer.read(state, change.gone) is not None:
                raise Wrong(f"{name} still holds {os.fsdecode(change.gone)}.")

    def _is_taken_by_all(self, path: RelPath) -> bool:
        return os.lstat(os.path.join(os.fsencode(self.root), path)).st_size < SMALL_ENOUGH

    def _content(self, path: RelPath) -> bytes:
        with open(os.path.join(os.fsencode(self.root), path), "rb") as file:
            return file.read()

    def _row(self, what: str, found: Found, *, judge: bool = True) -> Row:
        ours = found.seconds.pop(OURS)
        return [
            Times(ours, spent).faster(
                f"{self.label}: {what}", self._goal(name) if judge else None, against=name
            )
            for name, spent in found.seconds.items()
        ]

    def _goal(self, name: str) -> float | None:
        peer = self.peers.get(name)
        return 1.0 if peer is not None and peer.keeps and not peer.borrows else None


def _is_left_out(path: RelPath) -> bool:
    """By turnmark's rules, and most of it by those of others: nobody is asked for such a file."""
    *above, name = os.fsdecode(path).split("/")
    return any(
        pattern.removesuffix("/") in above if pattern.endswith("/") else fnmatch(name, pattern)
        for pattern in DEFAULT_EXCLUDE
    )


def _first_file(top: str) -> str:
    """A regular file somewhere below, relative to it."""
    for above, _, names in os.walk(top):
        for name in sorted(names):
            path = f"{above}/{name}"
            if not os.path.islink(path):
                return path[len(top) + 1 :]
    raise Wrong(f"There is no file below {top}.")


def _bring_back(home: str, places: list[str]) -> None:
    """The tree is as it was also where a peer has failed in between."""
    for place in places:
        if place != home and os.path.exists(place):
            os.rename(place, home)


# The rows: one tree each

SideRow = Callable[[Bench], Iterator[Row]]


def tiny(bench: Bench) -> Iterator[Row]:
    files = bench.scale.tiny
    yield from _all_work(bench, bench.tree(files), f"{files:,} files")


def small(bench: Bench) -> Iterator[Row]:
    files = bench.scale.small
    yield from _all_work(bench, bench.tree(files), f"{files:,} files")


def _all_work(bench: Bench, root: str, label: str) -> Iterator[Row]:
    scale = bench.scale
    with closing(Field(bench, root, label)) as here:
        yield here.first(scale.side_firsts)
        for count in (1, 20, min(1_000, len(here.edits.files))):
            yield here.changed(count, scale.side_changes)
        yield here.nothing(scale.side_looks)
        yield here.large_changed(scale.side_changes)
        yield from here.directory(scale.side_changes)
        every = len(here.small)
        for count in sorted({1, min(1_000, every), every}):
            yield from here.rolled_back(count, scale.side_firsts)


def large(bench: Bench) -> Iterator[Row]:
    """Less work and fewer rounds, since the backups and the copies take seconds for each."""
    files, scale = bench.scale.large, bench.scale
    with closing(Field(bench, bench.tree(files), f"{files:,} files")) as here:
        yield here.first(scale.side_firsts_large)
        for count in (1, 1_000):
            yield here.changed(count, scale.side_changes_large)
        yield here.nothing(scale.side_changes_large)


def packages(bench: Bench) -> Iterator[Row]:
    most = bench.scale.packages
    root = bench.built(f"packages-{most}", partial(build_packages, most=most))
    yield from _some_work(bench, root, "site-packages")


def directories(bench: Bench) -> Iterator[Row]:
    count = bench.scale.directories
    root = bench.built(f"directories-{count}", partial(build_directories, count=count))
    yield from _some_work(bench, root, f"{count:,} directories")


def binaries(bench: Bench) -> Iterator[Row]:
    size = bench.scale.binary_bytes
    root = bench.built(f"binaries-{size}", partial(build_binaries, size=size))
    yield from _some_work(bench, root, f"{size // 1_000_000} MB of binaries")


def modules(bench: Bench) -> Iterator[Row]:
    """Whoever follows rules leaves the packages out; backups and copies take them."""
    files = bench.scale.modules
    root = bench.built(f"modules-{files}", partial(build_modules, files=files))
    yield from _some_work(bench, root, "with node_modules")


def _some_work(bench: Bench, root: str, label: str) -> Iterator[Row]:
    scale = bench.scale
    with closing(Field(bench, root, label)) as here:
        yield here.first(scale.side_firsts)
        yield here.changed(1, scale.side_changes_large)
        yield here.changed(min(20, len(here.edits.files)), scale.side_changes_large)
        yield here.nothing(scale.side_looks)
