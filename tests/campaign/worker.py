"""A process that changes files and runs every command, until somebody kills it.

It tells the oracle what it is about to do and what it was answered; see `oracle` for the words.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import core.apply
import core.staging
from core import turns
from core.backup import backup
from core.consolidate import consolidate
from core.deep import deep_repack
from core.disk import REAL, Disk
from core.errors import Busy, TurnmarkError
from core.history import History, MarkSpec
from core.keeping import Policy
from core.model import RelPath
from core.recorder import Recorder, Taken
from core.retention import prune
from core.revert import Wish, preview_revert, revert, wish_for
from core.rollback import (
    Request,
    Result,
    finish_interrupted,
    preview,
    redo_request,
    rollback,
    undo_request,
)
from core.store import Store
from core.sweep import sweep
from core.timeline import Timeline
from tests.stores import ALL

from .ground import Ground
from .oracle import STAGING

NAMES = ["a", "b", "c/d", "c/e/f", "g", "h/i", "j", "wide/n0", "wide/n1", "wide/n2"]
TOPMOST = sorted({name.partition("/")[0] for name in NAMES})
LARGE = 1_100_000
"""Bytes of a file that another thread writes where a turn waits for what a watcher told of."""
SESSION = "campaign"


@dataclass
class Worker:
    """Owns the descriptor of the oracle's file, and the recorder of one life."""

    ground: Ground
    rng: random.Random
    recorder: Recorder
    log: int
    keep_points: int = 30
    ready: bool = False
    """It prepares for the next point as a service does."""
    trouble: bool = False
    """The disk fails on purpose: a rollback may do less than it was asked to, and say so."""

    def say(self, *words: str) -> None:
        os.write(self.log, (" ".join(words) + "\n").encode())

    def image(self) -> str:
        return self.ground.keep_image(self.ground.image())

    # The user's own programs

    def change_tree(self) -> None:
        self.say("changing")
        for _ in range(self.rng.randint(1, 6)):
            change(self.ground.tree, self.rng)
        self.ground.settle()
        self.say("tree", self.image())

    # Commands

    def step(self) -> None:
        names = list(VERBS)
        (name,) = self.rng.choices(names, [VERBS[one][1] for one in names])
        self.do(name)

    def do(self, name: str) -> None:
        self.say("verb", name)
        if self.ready and self.rng.random() < 0.7:
            with suppress(OSError, TurnmarkError):  # a favour
                self.recorder.prepare()
        VERBS[name][0](self)

    def answered(self, taken: Taken) -> None:
        word = "ack" if taken.durable else "soft"
        self.say(word, taken.snapshot.id.hex(), self.image())

    def snapshot(self) -> None:
        self.answered(self.recorder.take())

    def burst(self) -> None:
        self.answered(self.recorder.take(sync=False))

    def mark(self) -> None:
        self.answered(self.recorder.take(mark=MarkSpec("manual", label="a point")))

    def mark_told(self) -> None:
        paths = [RelPath(os.fsencode(name)) for name in TOPMOST]
        self.answered(self.recorder.take(paths, MarkSpec("manual", label="a point")))

    def begin(self) -> None:
        self.answered(turns.begin(self.recorder, SESSION, prompt="do it"))

    def end(self) -> None:
        if any(row.end is None for row in Timeline(self.recorder.store, self.id).rows):
            with suppress_no_turn():
                self.answered(turns.end(self.recorder, SESSION))

    @property
    def id(self) -> str:
        return self.recorder.root.id

    def go_back(self) -> None:
        marks = list(History(self.recorder.store, self.id).marks())
        if marks:
            mark = self.rng.choice(marks)
            self._go(Request(mark.snapshot, mark.seq, "a point"))

    def go_back_in_part(self) -> None:
        marks = list(History(self.recorder.store, self.id).marks())
        if marks:
            mark = self.rng.choice(marks)
            whole = preview(self.recorder, Request(mark.snapshot, mark.seq, "a point")).plan
            paths = [step.path for step in whole.steps if step.action in ("create", "replace")]
            if paths:
                chosen = (self.rng.choice(paths),)
                self._go(Request(mark.snapshot, mark.seq, "a point", paths=chosen))

    def undo(self) -> None:
        self._go(undo_request(self.recorder.store, self.id))

    def redo(self) -> None:
        self._go(redo_request(self.recorder.store, self.id))

    def _go(self, request: Request | None) -> None:
        if request is None:
            return
        plan = preview(self.recorder, request).plan
        self.say("aim", request.target.hex())
        done = rollback(self.recorder, replace(request, plan=plan.hash))
        self._gone(done, whole=not request.paths)

    def _gone(self, done: Result, *, whole: bool) -> None:
        well = done.outcome in ("done", "nothing") and not done.conflicts
        assert well or self.trouble, done
        image = self.image()
        self.say("done", image, extent(done, whole=whole, well=well))
        if done.outcome == "done":
            assert self.recorder.last is not None
            self.say("ack", self.recorder.last.id.hex(), image)

    def revert(self) -> None:
        store = self.recorder.store
        timeline = Timeline(store, self.id)
        found = [p for p in timeline.points(everything=True) if p.kind == "turn" and p.turn]
        if not found:
            return
        point = self.rng.choice(found)
        wish = wish_for(timeline, [f"turn:{point.turn}"], point.session, time.time_ns())
        shown = preview_revert(self.recorder, wish)
        if shown.outcome == "planned":
            self.say("astray")
            done = revert(self.recorder, Wish(wish.turns, wish.side, shown.plan.hash))
            self._gone(done, whole=False)

    # Upkeep

    def prune(self) -> None:
        self.say("prune")
        with suppress(Busy):
            prune(self.recorder.store, Policy(max_points=self.keep_points), time.time_ns())

    def consolidate(self) -> None:
        with suppress(Busy):
            consolidate(self.recorder.store)

    def sweep(self) -> None:
        with suppress(Busy):
            sweep(self.recorder.store, 0.0)

    def repack(self) -> None:
        with suppress(Busy):
            deep_repack(self.recorder.store)

    def backup(self) -> None:
        target = self.ground.base / f"copy-{os.getpid()}"
        with suppress(Busy):
            backup(self.recorder.store, str(target))
        shutil.rmtree(target, ignore_errors=True)


VERBS: dict[str, tuple[Callable[[Worker], None], int]] = {
    "snapshot": (Worker.snapshot, 14),
    "burst": (Worker.burst, 8),
    "mark": (Worker.mark, 8),
    "mark of what was told": (Worker.mark_told, 8),
    "turn begin": (Worker.begin, 8),
    "turn end": (Worker.end, 8),
    "rollback": (Worker.go_back, 16),
    "rollback of paths": (Worker.go_back_in_part, 6),
    "undo": (Worker.undo, 8),
    "redo": (Worker.redo, 5),
    "revert": (Worker.revert, 7),
    "prune": (Worker.prune, 3),
    "consolidate": (Worker.consolidate, 4),
    "sweep": (Worker.sweep, 2),
    "repack": (Worker.repack, 1),
    "backup": (Worker.backup, 1),
}
"""What is done, and how often of a hundred or so."""


def extent(done: Result, *, whole: bool, well: bool) -> str:
    """What the result says of itself: all is as the aim, or a part, or that there was trouble."""
    if not well:
        return "troubled"
    return "whole" if whole and not done.kept else "partly"


@contextmanager
def suppress_no_turn() -> Iterator[None]:
    """That the session's turn is over is an answer as well: another life may have closed it."""
    try:
        yield
    except TurnmarkError as error:
        if "no open turn" not in error.message:
            raise


def change(tree: Path, rng: random.Random) -> None:
    """One thing that an agent may do to a tree."""
    path = tree / rng.choice(NAMES)
    drawn = rng.random()
    with suppress(OSError):
        if drawn < 0.2:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        elif drawn < 0.3:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(rng.choice(NAMES))
        elif drawn < 0.4:
            path.mkdir(parents=True)
        elif drawn < 0.45:
            path.chmod(rng.choice([0o700, 0o755, 0o640]))
        elif not path.is_symlink():
            path.parent.mkdir(parents=True, exist_ok=True)
            (size,) = rng.choices((3, 200, 9_000, LARGE), (12, 12, 12, 1))
            path.write_bytes((rng.randbytes(min(size, 9_000)) * (1 + size // 9_000))[:size])
            path.chmod(rng.choice([0o644, 0o600, 0o755]))


@contextmanager
def at_work(ground: Ground, rng: random.Random, disk: Disk = REAL) -> Iterator[Worker]:
    """As every command does: opens, locks, and finishes what a killed one left."""
    log = os.open(ground.oracle, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        store = Store.create(ground.store, disk)
        with store.workspace_lock(ground.root.id, wait=5):
            recorder = Recorder(store, ground.root, ALL)
            worker = Worker(ground, rng, recorder, log, ready=rng.random() < 0.5)
            finish_interrupted(recorder)
            left = [name for name in os.listdir(ground.tree) if name.startswith(STAGING.decode())]
            assert not left, f"a finished rollback left {left}"
            yield worker
            recorder.close()
    finally:
        os.close(log)


def helped(rng: random.Random) -> None:
    """In every other process helpers write what a rollback brings and unlink what it took away, as
    otherwise only of many files."""
    if rng.random() < 0.5:
        core.apply.SYNC_EACH_BELOW, core.apply.TOGETHER, core.staging.HELPED_FROM = 2, 2, 1


def work(ground: Ground, seed: str) -> None:
    """Until killed."""
    rng = random.Random(seed)
    helped(rng)
    with at_work(ground, rng) as worker:
        worker.say("found", worker.image())
        while True:
            worker.change_tree()
            worker.step()


def recover(ground: Ground, seed: str) -> None:
    """What the next command does, to its end; and the snapshot after it just works."""
    rng = random.Random(seed)
    helped(rng)
    with at_work(ground, rng) as worker:
        worker.say("found", worker.image())
        worker.do("mark")
