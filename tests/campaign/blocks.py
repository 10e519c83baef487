"""Crashes between any two writes of the disk: each state that one could have left is mounted.

A worker runs commands on an ext4 whose disk writes down every block and every flush. Then, for
points of that log: everything before the point, or, of what was written since the last flush, any
part of it, in pieces of a block, as a disk with a cache may. What the oracle had been told when the
next entry came must hold in what the journal makes of it.
"""

from __future__ import annotations

import copy
import gzip
import pickle
import random
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle
from pathlib import Path

from .blocklog import NAME, Entry, Server
from .child import in_child, wait_for
from .frame import Figures, Job, Part
from .ground import Ground
from .kills import check_recovery
from .needs import MOUNTS
from .oracle import Judge, Wrong
from .volume import Volume, call, mend, ram, write_out
from .worker import at_work

MEGABYTES = 24
MAKE = ("mkfs.ext4", "-q", "-F", "-b", "4096", "-N", "2048")
WITH_JOURNAL, WITHOUT = ("-J", "size=4"), ("-O", "^has_journal")
BLOCK = 4096
STEPS, MANY = 12, 45
"""The packs of many marks need more than one block of their directory."""
POINTS_PER_LOG = 100
OTHERS = "Invalid inode number for '.'"
"""What e2fsck says of a new directory that has a name while its block is still another's, whose
entries it then shows: also of directories that have inodes of that number by now, and lose them."""


@dataclass(frozen=True)
class Point:
    """A crash after so many entries; with luck, only some of those since the last flush stay."""

    after: int
    luck: float | None = None


def blocks(options: Sequence[str], job: Job) -> Figures:
    figures, place = Figures(), ram(job.scratch / "ram", 1024)
    points: Iterator[tuple[Replay, Point]] = iter(())
    for number in job.turns(figures):
        found = next(points, None)
        if found is None:
            room = min(POINTS_PER_LOG, job.count - number + 1)
            points = fresh_points(options, job, place, number, room, figures)
            found = next(points)
        replay, point = found
        try:
            replay.check(point)
            figures.count("with directories of others", replay.judge.forgiving)
        except (Wrong, AssertionError) as wrong:
            figures.found.append(f"log {replay.number}, {point}: {wrong}")
            replay.keep(point, job.scratch)
    return figures


def fresh_points(
    options: Sequence[str], job: Job, place: Path, number: int, room: int, figures: Figures
) -> Iterator[tuple[Replay, Point]]:
    """Of a log of its own; in the order of the log, as the judge reads on."""
    with_place = place / str(number)
    with_place.mkdir()
    replay = recorded(options, with_place, number, f"{job.seed}-{number}")
    rng = job.rng("points", number)
    figures.count("logs")
    figures.count("writes", sum(not entry.is_flush for entry in replay.log))
    figures.count("flushes", sum(entry.is_flush for entry in replay.log))
    for point in sorted(drawn(replay.log, room, rng), key=lambda one: one.after):
        yield replay, point
    shutil.rmtree(with_place)


def drawn(log: Sequence[Entry], room: int, rng: random.Random) -> list[Point]:
    """First the moments before a flush, with all that it would make certain and with some of it;
    then any entry, half of them with luck."""
    flushes = [n for n, entry in enumerate(log) if entry.is_flush]
    some = min(len(flushes), room // 4)
    chosen = [Point(n) for n in rng.sample(flushes, some)]
    chosen += [Point(n, rng.random()) for n in rng.sample(flushes, some)]
    while len(chosen) < room:
        luck = rng.random() if rng.random() < 0.6 else None
        chosen.append(Point(rng.randrange(len(log) + 1), luck))
    return chosen


# Recording


def recorded(options: Sequence[str], place: Path, number: int, seed: str) -> Replay:
    """Runs the worker on the disk that writes down what is done to it."""
    volume = Volume("ext4", place / "img", place / "mnt")
    with volume.image.open("wb") as file:
        file.truncate(MEGABYTES << 20)
    call(*MAKE, *options, str(volume.image))
    volume.where.mkdir()
    volume.mount()
    ground = Ground(volume.where, place / "told", cut=True).build()
    judge = Judge(ground)
    volume.unmount()
    base = volume.image.read_bytes()
    served = place / "served"
    served.mkdir()
    server = Server(bytearray(base), ground.oracle)
    pid = in_child(partial(server.serve, served, place / "log"))
    with_log = replace(volume, image=served / NAME)
    wait_until_there(with_log.image)
    with_log.mount()
    status = wait_for(in_child(partial(script, ground, seed)))
    with_log.unmount()
    call("umount", str(served))
    assert wait_for(pid) == 0, "the disk that logs failed by itself"
    assert status == 0, f"a worker failed by itself (seed {seed})"
    log: list[Entry] = pickle.loads((place / "log").read_bytes())
    return Replay(number, volume, judge, log, bytearray(base), seed, options == WITH_JOURNAL)


def wait_until_there(path: Path) -> None:
    deadline = time.monotonic() + 10
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} does not appear"
        time.sleep(0.005)


def script(ground: Ground, seed: str) -> None:
    """Some commands, one after the other, to their end; every other time while the system writes
    out whatever there is, as it does by and by."""
    rng = random.Random(seed)
    with writing_out(ground, rng) if rng.random() < 0.5 else nullcontext():
        commands(ground, rng)


@contextmanager
def writing_out(ground: Ground, rng: random.Random) -> Iterator[None]:
    ended, pauses = threading.Event(), [0.03 * rng.random() for _ in range(100)]

    def work() -> None:
        for pause in cycle(pauses):
            if ended.wait(pause):
                return
            write_out(ground.base)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def commands(ground: Ground, rng: random.Random) -> None:
    with at_work(ground, rng) as worker:
        worker.keep_points = 4
        worker.say("found", worker.image())
        crowded = rng.random() < 0.1
        for _ in range(MANY if crowded else STEPS):
            worker.change_tree()
            if crowded:
                worker.do("mark")
            else:
                worker.step()


# Crashing


@dataclass
class Replay:
    """Owns one log, the disk as it was after part of it, and the judge who reads along."""

    number: int
    volume: Volume
    judge: Judge
    log: list[Entry]
    disk: bytearray
    seed: str
    has_journal: bool
    _done: int = 0
    _since_flush: list[Entry] = field(default_factory=list)

    def check(self, point: Point) -> None:
        """The points have to come in the order of the log."""
        self._go_to(point.after)
        self.volume.image.write_bytes(self._crashed(point))
        if not self.has_journal:
            self.judge.forgiving = OTHERS in mend(self.volume.image)
        self.volume.mount()
        try:
            self._judge(point)
        finally:
            self.volume.unmount()

    def keep(self, point: Point, where: Path) -> None:
        """The disk as the crash left it, for a look."""
        name = f"log-{self.number}-after-{point.after}-{point.luck}.img.gz"
        with gzip.open(where / name, "wb", 1) as file:
            file.write(self._crashed(point))

    def _go_to(self, after: int) -> None:
        """The disk is what the last flush made certain; what came since is kept apart."""
        for entry in self.log[self._done : after]:
            if entry.is_flush:
                for written in self._since_flush:
                    put(self.disk, written.offset, written.data)
                self._since_flush = []
            else:
                self._since_flush.append(entry)
        self._done = after

    def _crashed(self, point: Point) -> bytes:
        image = bytearray(self.disk)
        rng = random.Random(f"{self.seed}-{point}")
        for entry in self._since_flush:
            for at in range(0, len(entry.data), BLOCK):
                if point.luck is None or rng.random() < point.luck:
                    put(image, entry.offset + at, entry.data[at : at + BLOCK])
        return bytes(image)

    def _judge(self, point: Point) -> None:
        told = self.log[point.after].told if point.after < len(self.log) else None
        self.judge.read_on(told)
        self.judge.check_tree()
        self.judge.check_store()
        if random.Random(f"{self.seed}-{point}-after").random() < 0.3:
            after = copy.copy(self.judge)
            after.acks, after.words = dict(self.judge.acks), self.judge.words.copy()
            after.begin_anew(f"oracle-{point.after}-{point.luck}")
            check_recovery(after, f"{self.seed}-after")


def put(image: bytearray, offset: int, data: bytes) -> None:
    image[offset : offset + len(data)] = data


JOURNALED = Part(
    "blocks",
    "crashed between any two writes of the disk, with any part of its cache lost",
    partial(blocks, WITH_JOURNAL),
    {"ci": 120, "night": 3_000, "release": 20_000},
    needs=(MOUNTS, "loop", "fuse", "ext4", "git"),
)
PLAIN = Part(
    "blocks-plain",
    "the same on ext4 without a journal, mended by e2fsck as at a boot",
    partial(blocks, WITHOUT),
    {"ci": 80, "night": 3_000, "release": 20_000},
    needs=(MOUNTS, "loop", "fuse", "ext4", "git"),
)
