"""SIGKILL before every single system call of every command; nothing is lost, at none of them.

Each command is prepared anew at the same path, warmed up as a running service is, killed at one
call, judged, and followed by the next command. First each runs once to its end, which tells how
many calls there are: small sizes draw from those that differ on disk, the release takes them all.
"""

from __future__ import annotations

import copy
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from core.store import Store
from tests.stores import ALL
from tests.watching import PATIENT, PLENTY
from watcher.source import Hub
from watcher.workspace import Workspace

from .child import in_child, wait_for
from .frame import Figures, Job, Part
from .ground import Ground
from .kills import check_recovery
from .oracle import Judge, Wrong
from .tracer import Traced, run_until, trace_me
from .worker import Worker, at_work

PAST = ("mark", "turn begin", "turn end", "mark", "burst", "rollback", "snapshot", "rollback")
WARM = (
    *("snapshot", "burst", "mark", "turn begin", "rollback", "rollback of paths", "undo", "redo"),
    *("revert", "prune", "consolidate", "sweep"),
)
EXHAUSTIVE = 10**6
"""A count that asks for every call there is."""


@dataclass
class Template:
    """A ground with a past, kept as a copy, and put back at the same place for each death."""

    ground: Ground
    judge: Judge
    kept: Path

    def restore(self) -> Judge:
        """The root stays the directory that it is: another one would be another workspace."""
        for there, copied in self._pairs():
            clear(there, keep=self.ground.tree)
            shutil.copytree(copied, there, symlinks=True, dirs_exist_ok=True)
        fresh = copy.copy(self.judge)
        fresh.acks, fresh.words = dict(self.judge.acks), self.judge.words.copy()
        fresh.look_at_canaries()
        return fresh

    def keep(self) -> None:
        if self.kept.exists():
            shutil.rmtree(self.kept)
        for there, copied in self._pairs():
            shutil.copytree(there, copied, symlinks=True)
        self.judge.read_on()

    def _pairs(self) -> Iterator[tuple[Path, Path]]:
        yield self.ground.base, self.kept / "ground"
        yield self.ground.told, self.kept / "told"


def clear(top: Path, keep: Path) -> None:
    for path in top.iterdir() if top.exists() else ():
        if path == keep:
            clear(path, keep)
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def template(job: Job, name: str) -> Template:
    """The same past for all commands: points, turns, and rollbacks to undo and to redo."""
    place = job.scratch / name
    ground = Ground(place / "ground", place / "told").build()
    made = Template(ground, Judge(ground), place / "kept")
    assert not wait_for(in_child(partial(have_a_past, ground, job.rng("past").random())))
    made.keep()
    return made


def have_a_past(ground: Ground, seed: float) -> None:
    with at_work(ground, random.Random(seed)) as worker:
        for name in PAST:
            worker.change_tree()
            worker.do(name)


# What is traced: each function runs in a child, and calls trace_me where it begins to count


def warm(ground: Ground, seed: float, name: str) -> None:
    """As in a service that has looked at everything before."""
    with at_work(ground, random.Random(seed)) as worker:
        worker.keep_points = 1
        prepare(worker, name)
        trace_me()
        worker.do(name)


def prepare(worker: Worker, name: str) -> None:
    worker.recorder.take()
    if name == "redo":
        worker.do("undo")
    elif name != "undo":
        worker.change_tree()


def cold(ground: Ground, seed: float) -> None:
    """The whole of a command that finds what another one left."""
    trace_me()
    with at_work(ground, random.Random(seed)) as worker:
        worker.say("found", worker.image())
        worker.do("mark")


def creation(ground: Ground) -> None:
    shutil.rmtree(Path(ground.store).parent)
    trace_me()
    Store.create(ground.store)


def baseline(ground: Ground) -> None:
    """A service's first look at a workspace that it has not seen: its loop, with its threads."""
    shutil.rmtree(Path(ground.store).parent)
    Store.create(ground.store)
    place = ground.told / "service"
    place.mkdir()
    hub = Hub(str(place))
    space = Workspace(ground.store, ground.root, replace(PATIENT, rules=ALL), hub, lambda _: None)
    trace_me()
    space.start()
    assert space.ready.wait(PLENTY)
    space.stop()
    assert space.join(PLENTY)
    hub.close()


# Deaths


def syscalls(job: Job) -> Figures:
    figures = Figures()
    scenes = list(all_scenes(job))
    moments = deaths(scenes, job.rng("moments"), every=job.count >= EXHAUSTIVE)[: job.count]
    figures.notes["system calls in all"] = sum(len(scene.traced.calls) for scene in scenes)
    figures.notes["states of the disk in all"] = sum(len(s.traced.moments) for s in scenes)
    figures.wanted = len(moments)
    for _, (scene, at) in zip(job.turns(figures, len(moments)), moments, strict=False):
        try:
            scene.die(at, figures)
        except (Wrong, AssertionError) as wrong:
            figures.found.append(f"{scene.name}, killed before call {at}: {wrong}")
    return figures


def deaths(scenes: list[Scene], rng: random.Random, *, every: bool) -> list[tuple[Scene, int]]:
    """First those that differ on disk, in any order; then, if all are wanted, the others."""
    first = [(scene, at) for scene in scenes for at in scene.traced.moments]
    rng.shuffle(first)
    if not every:
        return first
    known = {(scene.name, at) for scene, at in first}
    rest = [(s, at) for s in scenes for at in range(1, len(s.traced.calls) + 1)]
    return first + [(scene, at) for scene, at in rest if (scene.name, at) not in known]


@dataclass
class Scene:
    """One command with everything before it."""

    name: str
    template: Template
    run: Callable[[], object]
    traced: Traced
    forgets: bool = False
    """The store is made anew: what was acknowledged before is not expected in it."""

    def die(self, at: int, figures: Figures) -> None:
        judge = self.template.restore()
        if self.forgets:
            judge.forget()
        ended = run_until(self.run, at)
        if ended.status != -signal.SIGKILL:
            figures.count("came to their end before")
            assert ended.status == 0, "it failed by itself"
        judge.read_on()
        judge.check_tree()
        check_recovery(judge, f"after-{at}")
        judge.check_store()


def all_scenes(job: Job) -> Iterator[Scene]:
    seed = job.rng("verbs").random()
    past = template(job, "past")
    for name in WARM:
        yield rehearsed(name, past, partial(warm, past.ground, seed, name))
    yield rehearsed("open", past, partial(cold, past.ground, seed))
    yield rehearsed("store creation", past, partial(creation, past.ground), forgets=True)
    name = "first look of a service"
    yield rehearsed(name, past, partial(baseline, past.ground), forgets=True)
    cut_short = interrupted(job, past)
    yield rehearsed("finish of a rollback", cut_short, partial(cold, cut_short.ground, seed))


def rehearsed(
    name: str, made: Template, run: Callable[[], object], *, forgets: bool = False
) -> Scene:
    """To its end, once: that it works, and how many calls it makes."""
    made.restore()
    traced = run_until(run)
    assert traced.status == 0, f"{name} failed by itself"
    assert traced.calls, f"{name} was not traced"
    print(f"{name}: {len(traced.calls)} calls, {len(traced.moments)} moments", flush=True)
    return Scene(name, made, run, traced, forgets)


def interrupted(job: Job, past: Template) -> Template:
    """A past that ends in the middle of a rollback, while it changes the tree."""
    made = template(job, "interrupted")
    run = partial(warm, made.ground, job.rng("verbs").random(), "rollback")
    made.restore()
    moments = run_until(run).moments
    made.restore()
    run_until(run, moments[len(moments) // 2])
    made.keep()
    return made


PART = Part(
    "syscalls",
    "killed before every single system call of every command",
    syscalls,
    {"ci": 200, "night": 3_000, "release": EXHAUSTIVE},
    needs=("git",),
    in_memory=True,
)
