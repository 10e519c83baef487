"""The steps of a rollback where the file system, or somebody else, is in the way."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from core.disk import Disk
from core.history import MarkSpec
from tests.stores import Bench
from tests.test_races import SwappingDisk
from tests.trees import Leaf, Link, build, image

Tree = dict[str, Leaf]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


class NoExchange(Disk):
    """Like NFS: two names cannot change places in one step."""

    def exchange(self, old: bytes, new: bytes, at: int, to: int) -> None:
        raise OSError(errno.EINVAL, "not here")


def test_where_names_cannot_be_exchanged_all_comes_back_in_two_steps(bench: Bench) -> None:
    build(bench.path, Tree({"a": "1", "d/b": "2", "l": Link("a")}))
    point, before = bench.point(), image(bench.path)
    (bench.path / "l").unlink()
    build(bench.path, Tree({"a": "changed", "d/b": "changed", "l": Link("d")}))
    bench.reopen(NoExchange())
    done = bench.back_to(point)
    assert (done.outcome, done.conflicts) == ("done", ())
    assert image(bench.path) == before


def test_where_names_cannot_be_exchanged_a_writer_keeps_its_file(bench: Bench) -> None:
    build(bench.path, {"a": "1"})
    point = bench.point()
    build(bench.path, {"a": "changed"})
    bench.reopen(NoExchange())
    with open(bench.path / "a", "r+b") as file:
        done = bench.back_to(point)
        file.write(b"CH")
    assert [left.path for left in done.conflicts] == [b"a"]
    assert (bench.path / "a").read_text() == "CHanged"


class OtherSystem(Disk):
    """The directory d is a mount that has come since."""

    def rename_new(self, old: bytes, new: bytes, at: int, to: int) -> None:
        if new == b"in":
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        super().rename_new(old, new, at, to)


def test_what_cannot_be_moved_to_another_file_system_is_a_conflict_and_stops_nothing(
    bench: Bench,
) -> None:
    build(bench.path, {"d/in": "1", "a": "1", "d/stays": ""})
    point = bench.point()
    (bench.path / "d/in").unlink()
    build(bench.path, {"a": "changed"})
    bench.reopen(OtherSystem())
    done = bench.back_to(point)
    assert [(c.path, c.reason) for c in done.conflicts] == [
        (b"d/in", "lies on another file system")
    ]
    assert (bench.path / "a").read_text() == "1"
    assert not [name for name in os.listdir(bench.path) if name.startswith(".turnmark")]


def test_what_is_put_beside_its_place_takes_nobodys_name(bench: Bench) -> None:
    build(bench.path, {"link.saved-1": "the user's own"})
    point = bench.point()
    build(bench.path, Tree({"link": Link("f")}))
    bench.recorder.take(mark=MarkSpec("manual"))
    bench.reopen(SwappingDisk(bench.path, again=True))
    bench.back_to(point)
    assert (bench.path / "link.saved-1").read_text() == "the user's own"
    assert (bench.path / "link.saved-2/precious").read_text() == "not in any snapshot"


class Taken(Disk):
    """Somebody writes a third content the moment a file was displaced."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done = False

    def _third(self) -> None:
        if not self.done:
            self.done = True
            self.path.write_text("a third content")

    def exchange(self, old: bytes, new: bytes, at: int, to: int) -> None:
        super().exchange(old, new, at, to)
        self._third()

    def rename_new(self, old: bytes, new: bytes, at: int, to: int) -> None:
        super().rename_new(old, new, at, to)
        if old == b"a":
            self._third()


@pytest.mark.parametrize("then", [Tree({"a": "then"}), Tree()])
def test_who_keeps_a_displaced_file_open_loses_nothing_that_he_writes_later(
    bench: Bench, then: Tree
) -> None:
    """Found by the campaign's races: its name is another's by now, so that it cannot go back."""
    build(bench.path, Tree({"other": "x"}) | then)
    point = bench.point()
    build(bench.path, Tree({"a": "now"}))
    with open(bench.path / "a", "r+b", buffering=0) as held:
        bench.reopen(Taken(bench.path / "a"))
        bench.back_to(point)
        held.write(b"what the agent writes next")
    bench.reopen()
    kept = {leaf[-1] for leaf in image(bench.path).values()} | set(bench.every_blob())
    assert {b"a third content", b"what the agent writes next"} <= kept
    assert not [name for name in os.listdir(bench.path) if name.startswith(".turnmark")]
