"""Directories below a root are reached in one step or in several, and never through a link."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from core import disk
from core.beneath import OPEN_DIRS, Beneath
from core.disk import Disk
from core.model import RelPath
from tests.stores import held_below
from tests.trees import build

KERNEL = tuple(map(int, re.findall(r"\d+", os.uname().release)[:2]))
DEEP = RelPath(b"a/b/c/d")


class Counting(Disk):
    """Owns a count of the directories that were opened one step at a time."""

    def __init__(self) -> None:
        self.steps = 0

    def open(self, name: bytes | str, flags: int, mode: int = 0o600, at: int | None = None) -> int:
        self.steps += at is not None
        return super().open(name, flags, mode, at)


@pytest.fixture(params=["one step", "step by step"])
def real(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Counting:
    if request.param == "step by step":
        monkeypatch.setattr(disk, "_openat2", lambda: None)
    return Counting()


@pytest.fixture
def beneath(real: Counting, tmp_path: Path) -> Iterator[Beneath]:
    build(tmp_path / "root", {"a/b/c/d/f": "x", "other/b/c/d/f": "not this one"})
    with Beneath(real, os.fsencode(tmp_path / "root")) as found:
        yield found
    assert held_below(tmp_path) == 0


def is_at(fd: int, path: Path) -> bool:
    return os.fstat(fd).st_ino == path.stat().st_ino


def test_a_deep_directory_is_reached(beneath: Beneath, tmp_path: Path) -> None:
    assert is_at(beneath.dir(DEEP), tmp_path / "root/a/b/c/d")
    assert is_at(beneath.dir(RelPath(b"a/b")), tmp_path / "root/a/b")


@pytest.mark.skipif(KERNEL < (5, 6), reason="there is no openat2")
def test_most_often_in_one_step(tmp_path: Path) -> None:
    build(tmp_path / "root", {"a/b/c/d/f": "x"})
    counting = Counting()
    with Beneath(counting, os.fsencode(tmp_path / "root")) as beneath:
        beneath.dir(DEEP)
        assert counting.steps == 0


@pytest.mark.parametrize("at", ["a", "a/b", "a/b/c", "a/b/c/d"])
@pytest.mark.parametrize("to", ["absolute", "relative"])
def test_a_link_on_the_way_is_an_error(beneath: Beneath, tmp_path: Path, at: str, to: str) -> None:
    root = tmp_path / "root"
    (root / at).rename(tmp_path / "moved")
    other = root / "other" / at.partition("/")[2]
    (root / at).symlink_to(other if to == "absolute" else os.path.relpath(other, root / at / ".."))
    with pytest.raises(NotADirectoryError):
        beneath.dir(DEEP)


def test_dots_lead_nowhere_else(beneath: Beneath) -> None:
    """No name on record is one of these (`objects.is_name`); if one were, not out of the root."""
    with pytest.raises(OSError, match=r"."):
        beneath.disk.open_below(b"a/../../..", beneath.fd)


def test_what_is_not_there_is_said_as_ever(beneath: Beneath) -> None:
    with pytest.raises(FileNotFoundError):
        beneath.dir(RelPath(b"a/b/none/d"))
    with pytest.raises(NotADirectoryError):
        beneath.dir(RelPath(b"a/b/c/d/f"))


def test_no_path_is_too_long(beneath: Beneath, tmp_path: Path) -> None:
    name, at = b"n" * 200, beneath.dir(RelPath(b"a"))
    for _ in range(30):
        os.mkdir(name, dir_fd=at)
        inner = os.open(name, os.O_RDONLY, dir_fd=at)
        if at != beneath.dir(RelPath(b"a")):
            os.close(at)
        at = inner
    assert os.fstat(beneath.dir(RelPath(b"/".join([b"a"] + 30 * [name])))).st_ino == (
        os.fstat(at).st_ino
    )
    os.close(at)


def test_only_so_many_stay_open(beneath: Beneath, tmp_path: Path) -> None:
    for number in range(2 * OPEN_DIRS):
        build(tmp_path / "root", {f"many/{number}/deep/f": "x"})
        assert is_at(
            beneath.dir(RelPath(b"many/%d/deep" % number)), tmp_path / f"root/many/{number}/deep"
        )
    assert held_below(tmp_path) <= OPEN_DIRS + 1


def test_without_descriptors_it_is_said(beneath: Beneath, monkeypatch: pytest.MonkeyPatch) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            beneath.dir(DEEP)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
