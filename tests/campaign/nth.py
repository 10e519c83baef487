"""An error at every nth call of the seam to the disk, once and for good, in every command.

EIO anywhere, ENOSPC where something grows, EMFILE where something is opened, and reads and writes
that come short. The command may refuse, or do its work all the same, or do part of a rollback and
say so; it may not acknowledge what is not so, nor lose anything, nor be in the way of the next.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from core.disk import Disk
from core.errors import TurnmarkError
from tests.faults import MUTATING, FaultyDisk, failing

from .child import in_child, wait_for
from .frame import Figures, Job, Part
from .ground import Ground
from .kills import check_recovery
from .oracle import Judge, Wrong
from .syscalls import EXHAUSTIVE, WARM, Template, prepare, template
from .worker import at_work

READING = ("read", "pread", "lstat", "fstat", "scandir", "readlink")
GROWING = (
    "create",
    "write_some",
    "fsync",
    "write_out",
    "sync_fs",
    "mkdir",
    "symlink",
    "link",
    "rename",
    "overwrite_some",
    "fdatasync",
)
SHORT = "short"
KINDS: dict[str, tuple[str, ...]] = {
    "EIO": (*READING, *MUTATING, "open", "create"),
    "ENOSPC": (*GROWING, "rename_new", "exchange"),
    "EMFILE": ("open", "create", "scandir"),
    SHORT: ("read", "pread", "write_some"),
}
"""Which calls each error comes from."""


class NthDisk(FaultyDisk):
    """Owns a count of the calls that its kind of error can come from; armed when told to be."""

    def __init__(self, kind: str, *, lasting: bool) -> None:
        super().__init__(0, _strike(kind), lasting=lasting)
        self.verbs = frozenset(KINDS[kind])
        self.short = kind == SHORT
        self.armed = False

    def arm(self, at: int) -> None:
        self.at, self.count, self.armed = at, 0, True

    def step(self, verb: str) -> None:
        if self.armed and verb in self.verbs:
            super().step(verb)

    def open(self, name: Any, flags: int, mode: int = 0o600, at: int | None = None) -> int:
        self.step("create" if flags & os.O_CREAT else "open")
        return Disk.open(self, name, flags, mode, at)

    def read(self, fd: int, size: int) -> bytes:
        return super().read(fd, self._cut("read", size))

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return super().pread(fd, self._cut("pread", size), offset)

    def write_some(self, fd: int, data: bytes | memoryview) -> int:
        return Disk.write_some(self, fd, data[: self._cut("write_some", len(data))])

    def _cut(self, verb: str, size: int) -> int:
        """A call that comes short still does something; the others are struck by an exception."""
        before = self.count
        self.step(verb)
        hit = self.count != before and (
            self.count == self.at or (self.lasting and self.count > self.at > 0)
        )
        return max(1, min(size, 1)) if self.short and hit else size


def _strike(kind: str) -> Callable[[str], None]:
    if kind == SHORT:
        return lambda verb: None
    return failing(getattr(errno, kind))


def _counted(verb: str) -> Callable[..., Any]:
    real = getattr(Disk, verb)

    def method(self: NthDisk, *arguments: Any, **options: Any) -> Any:
        self.step(verb)
        return real(self, *arguments, **options)

    return method


for _verb in READING[2:]:
    setattr(NthDisk, _verb, _counted(_verb))


@dataclass(frozen=True)
class Fault:
    """One command, one kind of error, and how often it comes."""

    verb: str
    kind: str
    lasting: bool

    def __str__(self) -> str:
        return f"{self.verb}, {self.kind} {'for good' if self.lasting else 'once'}"

    @property
    def disk(self) -> NthDisk:
        return NthDisk(self.kind, lasting=self.lasting)


def run(ground: Ground, seed: float, fault: Fault, at: int) -> None:
    """In a child: the command on a disk that fails at the nth call; with 0 it only counts."""
    disk = fault.disk
    try:
        with at_work(ground, random.Random(seed), disk) as worker:
            worker.keep_points, worker.trouble = 1, True
            prepare(worker, fault.verb)
            disk.arm(at)
            worker.do(fault.verb)
            worker.say("calls", str(disk.count))
    except (TurnmarkError, OSError):  # both are told at every edge
        if not at:
            raise


def nth(job: Job) -> Figures:
    figures, seed = Figures(), job.rng("verbs").random()
    past = template(job, "past")
    exhaustive = job.count >= EXHAUSTIVE
    points = list(all_points(past, seed))
    figures.notes["calls that could fail"] = len(points)
    if not exhaustive:
        points = job.rng("points").sample(points, min(job.count, len(points)))
    figures.wanted = len(points)
    for _, (fault, at) in zip(job.turns(figures, len(points)), points, strict=False):
        try:
            strike(past, seed, fault, at)
        except (Wrong, AssertionError) as wrong:
            figures.found.append(f"{fault} at call {at}: {wrong}")
    return figures


def all_points(past: Template, seed: float) -> Iterator[tuple[Fault, int]]:
    """Each kind of error of each command runs once without, which counts the calls."""
    for verb in WARM:
        for kind in KINDS:
            fault = Fault(verb, kind, lasting=False)
            judge = past.restore()
            assert not wait_for(in_child(partial(run, past.ground, seed, fault, 0))), fault
            judge.read_on()
            for at in range(1, judge.calls + 1):
                yield fault, at
                yield Fault(verb, kind, lasting=True), at


def strike(past: Template, seed: float, fault: Fault, at: int) -> None:
    judge = past.restore()
    if wait_for(in_child(partial(run, past.ground, seed, fault, at))):
        raise Wrong("an error that is none of ours came out")
    judge.read_on()
    check(judge, at)


def check(judge: Judge, at: int) -> None:
    judge.check_tree()
    check_recovery(judge, f"after-{at}")
    judge.check_store()


PART = Part(
    "nth-call",
    "an error at every nth call to the disk, once and for good",
    nth,
    {"ci": 150, "night": 5_000, "release": EXHAUSTIVE},
    needs=("git",),
    in_memory=True,
)
