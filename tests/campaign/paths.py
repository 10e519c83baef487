"""Directories, files and links that change places at full speed while turnmark looks and acts.

A small C program exchanges directories and files of a workspace with links that lead outside of
it. There, canaries lie, and the kernel (inotify) tells of whoever opens one of them, or the
directory around it, or changes it: the swapper itself only renames, so nobody may. Three uses in
turn: capture (in full and by paths), rollback, and watching with its own reader of events.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from core.errors import TurnmarkError
from core.history import MarkSpec
from core.model import RelPath
from core.objects import hash_object
from core.rollback import finish_interrupted
from core.rules import RuleSet
from core.store import Store
from tests.stores import Bench, fsck
from tests.trees import build, image
from watcher.source import Hub

from .frame import MOST_TOLD, Figures, Job, Part

SOURCE = Path(__file__).with_name("swapper.c")
SLICE_SECONDS = 2.0
BREATHS = (0, 50, 2_000, 20_000)
CANARY = b"canary: this is outside of the workspace"
OPENED, ATTRIB, MODIFIED, CREATED, DELETED = 0x20, 0x4, 0x2, 0x100, 0x200
CHANGED = ATTRIB | MODIFIED | CREATED | DELETED
WHATEVER = OPENED | CHANGED
EVENT = struct.Struct("iIII")
WITH_IGNORES = RuleSet(exclude=(), gitignore=True)


class Sentry:
    """Owns an inotify descriptor on a tree: whoever opens or changes something of it is told."""

    def __init__(self, outside: Path, mask: int = WHATEVER) -> None:
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self.libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self.names: dict[int, str] = {}
        for path in (outside, *outside.rglob("*")):
            wd = self.libc.inotify_add_watch(self.fd, os.fsencode(path), mask)
            if wd < 0:
                raise OSError(ctypes.get_errno(), "no watch on what lies outside", str(path))
            self.names[wd] = str(path.relative_to(outside.parent))

    def told(self) -> set[str]:
        out: set[str] = set()
        with suppress(BlockingIOError):
            while data := os.read(self.fd, 1 << 16):
                out |= set(self._each(data))
        return out

    def _each(self, data: bytes) -> Iterator[str]:
        at = 0
        while at < len(data):
            wd, mask, _, length = EVENT.unpack_from(data, at)
            name = data[at + 16 : at + 16 + length].rstrip(b"\0")
            at += 16 + length
            did = "opened" if mask & OPENED else "changed"
            yield f"{self.names.get(wd, '?')}/{os.fsdecode(name)} was {did}".replace("/ ", " ")

    def close(self) -> None:
        os.close(self.fd)


def compiled(scratch: Path) -> Path:
    out = scratch / "swapper"
    subprocess.run(["gcc", "-O1", "-o", str(out), str(SOURCE)], check=True)
    return out


class Place:
    """Owns one workspace, what lies outside, and the pairs that change places."""

    def __init__(self, base: Path, program: Path) -> None:
        self.base = base
        self.program = program
        self.outside = build(
            base / "outside",
            {
                "f": CANARY,
                "deep/f": CANARY,
                "deep/lower/f": CANARY,
                ".gitignore": "inside*\n",
                "deep/.gitignore": "*\n",
                "HEAD": CANARY,
            },
        )
        self.bench = Bench(base, WITH_IGNORES)
        self.path = self.bench.path
        build(
            self.path,
            {
                "d/f": "inside",
                "d/deep/f": "inside",
                "d/deep/lower/f": "inside",
                "f": "inside",
                "e/f": "inside",
                "e/g": "inside",
                "still": "inside",
                ".git/HEAD": "ref: refs/heads/main\n",
                "d/.gitignore": "*.tmp\n",
            },
        )
        tricks = base / "tricks"
        tricks.mkdir()
        self.pairs: list[tuple[Path, str, Path, str]] = []
        targets = {
            "d": "",
            "d/deep": "deep",
            "f": "f",
            "e": "",
            "d/.gitignore": ".gitignore",
            ".git": "",
            "d/deep/lower": "deep/lower",
            ".gitignore": ".gitignore",
        }
        build(self.path, {".gitignore": "*.tmp\n"})
        for number, (name, target) in enumerate(targets.items()):
            os.symlink(self.outside / target, tricks / f"t{number}")
            whole = self.path / name
            self.pairs.append((whole.parent, whole.name, tricks, f"t{number}"))
        self.pairs.append((self.path, "e", self.path, "d"))
        self.before = image(self.outside)
        self.sentry = Sentry(self.outside)
        self.swaps = 0

    def close(self) -> None:
        self.sentry.close()
        self.bench.close()

    @contextmanager
    def swapping(self, breath: int, pairs: list[tuple[Path, str, Path, str]]) -> Iterator[None]:
        counter = self.base / "counter"
        counter.write_bytes(bytes(4096))
        words = [str(word) for pair in pairs for word in pair]
        with counter.open("r+b") as file, mmap.mmap(file.fileno(), 4096) as shared:
            child = subprocess.Popen([self.program, counter, str(breath), *words])
            try:
                yield
            finally:
                shared[8] = 1
                status = child.wait(30)
                self.swaps += int.from_bytes(shared[:8], "little")
        if status:
            raise AssertionError(f"the swapper ended with {status}")

    # What is done meanwhile

    def capture(self, number: int) -> None:
        some = [RelPath(p) for p in (b"d/f", b"d/deep/f", b"f", b"d/deep/lower/f", b"e/g", b"d")]
        build(self.path, {"still": str(number)})
        self.bench.recorder.take(None if number % 2 else some, sync=False)

    def roll_back(self, number: int) -> None:
        recorder = self.bench.recorder
        point = recorder.take(mark=MarkSpec("manual"))
        scribble(self.path, number)
        with suppress(TurnmarkError):  # a fuse, or the directory is not there just now
            self.bench.back_to(point)

    # Afterwards

    def check(self) -> list[str]:
        found = sorted(self.sentry.told())
        if image(self.outside) != self.before:
            found.append("what lies outside has changed")
        self.sentry.told()  # of this look itself
        store = Store.open(self.bench.store.base)
        if store.has(hash_object("blob", CANARY)):
            found.append("a canary was read into the store")
        self.bench.reopen()
        finish_interrupted(self.bench.recorder)
        self.bench.recorder.take()
        left = [name for name in os.listdir(self.path) if name.startswith(".turnmark")]
        fsck(store.base)
        return [*found, *([f"{left} was left in the workspace"] if left else [])]


def scribble(path: Path, number: int) -> None:
    """What a rollback has to take back, written by descriptors that lead nowhere else."""
    build(path, {"still": str(number), f"extra{number % 3}/x": "x"})
    for name in ("d", "d/deep", "e"):
        fds: list[int] = []
        try:
            fds.append(os.open(path, os.O_RDONLY | os.O_DIRECTORY))
            for part in name.split("/"):
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
                fds.append(os.open(part, flags, dir_fd=fds[-1]))
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW
            fds.append(os.open(f"new{number % 2}", flags, dir_fd=fds[-1]))
        except OSError:
            continue
        finally:
            for fd in fds:
                os.close(fd)


def capture(place: Place, rng: random.Random, until: float) -> int:
    return _over_and_over(place, rng, until, place.capture)


def roll_back(place: Place, rng: random.Random, until: float) -> int:
    return _over_and_over(place, rng, until, place.roll_back)


def _over_and_over(
    place: Place, rng: random.Random, until: float, act: Callable[[int], None]
) -> int:
    pairs = rng.sample(place.pairs, rng.randint(1, len(place.pairs)))
    number = 0
    with place.swapping(rng.choice(BREATHS), pairs):
        while time.monotonic() < until:
            number += 1
            act(number)
    return number


def watch(place: Place, rng: random.Random, until: float) -> int:
    """Directories are adopted for watching, over and over: each swap is an event."""
    hub = Hub(str(place.base / "cookies"))
    pairs = rng.sample(place.pairs, rng.randint(1, len(place.pairs)))
    number = 0
    try:
        source = hub.open(place.bench.root.path, WITH_IGNORES, lambda: None)
        with place.swapping(rng.choice(BREATHS[1:]), pairs):
            while time.monotonic() < until:
                number += 1
                source.readopt()
                source.barrier(0.05)
                place.bench.recorder.take(source.take().paths(), sync=False)
        source.close()
    finally:
        hub.close()
    return number


USES = {"capture": capture, "rollback": roll_back, "watching": watch}


def run(job: Job) -> Figures:
    """Counts exchanges, not what was done meanwhile; that is in the notes."""
    figures = Figures()
    program = compiled(job.scratch)
    slices = 0
    while figures.done < job.count and len(figures.found) < MOST_TOLD:
        if time.monotonic() > job.until:
            break
        for name, use in USES.items():
            rng = job.rng("paths", slices)
            place = Place(job.scratch / f"place-{slices}", program)
            slices += 1
            try:
                seconds = SLICE_SECONDS * (0.5 + rng.random())
                figures.count(name, use(place, rng, time.monotonic() + seconds))
                figures.found += [f"{text} (while {name})" for text in place.check()]
            finally:
                place.close()
            figures.done += place.swaps
            job.keep(figures)
    return figures


PART = Part(
    "paths",
    "paths swapped for links that lead outside (exchanges)",
    run,
    {"ci": 40_000, "night": 1_000_000, "release": 1_000_000},
    needs=("gcc",),
)
