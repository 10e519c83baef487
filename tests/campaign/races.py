"""Agents that write while a rollback, undo, redo or revert is under way.

Half of the races run freely: three agents write as fast as they can. In the other half each of the
verbs by which the rollback looks and changes is a moment at which agents do something, so that
the narrow gaps are met by count and not by luck. Afterwards every content that was in the tree
before, or that an agent wrote and did not destroy itself, is in the tree or in the store; no path
differs from the point without being named; and the next snapshot works.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from core.about import decode_about
from core.diff import diff_trees, files_of
from core.disk import REAL, Disk
from core.errors import TurnmarkError
from core.history import History, MarkSpec, read_snapshot
from core.model import Oid
from core.objects import hash_object
from core.recorder import Recorder
from core.revert import revert, wish_for
from core.rollback import (
    Request,
    Result,
    finish_interrupted,
    redo_request,
    rollback,
    undo_request,
)
from core.store import Store
from core.timeline import Timeline
from core.verify import verify
from tests.stores import Bench, fsck
from tests.trees import image

from .agents import GO, REST, STEP, Handle, names_of, read_log
from .frame import Figures, Job, Part

AGENTS = 3
RACES_PER_GROUND = 20
MOST_MOMENTS = 6
VERBS = (
    *("open", "close", "read", "write_some", "fsync", "lstat", "fstat", "scandir", "readlink"),
    *("mkdir", "rmdir", "unlink", "symlink", "link", "rename", "rename_new", "exchange", "chmod"),
    *("chown", "flock", "lease"),
)
PATIENCE = 0.02
"""An agent that opens a file under a lease waits for the verb that gives it back."""


class Stepping(Disk):
    """Owns a count of all verbs, and lets something happen before some of them."""

    def __init__(self, moments: dict[int, Callable[[], None]]) -> None:
        self.moments = moments
        self.count = 0

    def step(self) -> None:
        self.count += 1
        happen = self.moments.pop(self.count, None)
        if happen is not None:
            happen()


def _stepping(verb: str) -> Callable[..., Any]:
    real = getattr(Disk, verb)

    def method(self: Stepping, *arguments: Any, **named: Any) -> Any:
        self.step()
        return real(self, *arguments, **named)

    return method


for _verb in VERBS:
    setattr(Stepping, _verb, _stepping(_verb))


class Field:
    """Owns one workspace with its agents, and what must not be lost of it."""

    def __init__(self, base: Path, rng: random.Random, seed: str) -> None:
        self.random = rng
        self.bench = Bench(base)
        self.log = base / "log"
        self.number = 0
        self.told: set[str] = set()
        self.turn = 0
        self.verbs = 600
        """So many a rollback has; known better after each."""
        for place in ("s", *(f"d{n}" for n in range(AGENTS))):
            (self.bench.path / place).mkdir()
        self.agents = [Handle(self.bench.path, n, f"{seed}-{n}", self.log) for n in range(AGENTS)]

    def close(self) -> None:
        for agent in self.agents:
            agent.end()
        self.bench.close()

    # Before the race

    def point(self) -> Request:
        """Some state, a turn that changes it, and then some more: all contents told apart."""
        self.tidy_up()
        self.write_some(0.8)
        before = self.bench.point()
        self.turn += 1
        turn = partial(MarkSpec, session="s", turn=self.turn)
        self.bench.recorder.take(mark=turn("turn-begin"))
        self.write_some(0.5)
        self.bench.recorder.take(mark=turn("turn-end", status="ok"))
        self.write_some(0.2)
        assert before.mark is not None
        return Request(before.snapshot.id, before.mark.seq, "a point")

    def tidy_up(self) -> None:
        """What agents left of other names goes, so that trees stay small."""
        known = {name for n in range(AGENTS) for name in names_of(b"%d" % n)}
        leaves = image(self.bench.path)
        for path, leaf in sorted(leaves.items(), reverse=True):
            full = os.path.join(os.fsencode(self.bench.path), path)
            if leaf[0] == "dir":
                with suppress(OSError):
                    os.rmdir(full)
            elif path not in known and self.random.random() < 0.9:
                os.unlink(full)
        for place in ("s", *(f"d{n}" for n in range(AGENTS))):
            with suppress(FileExistsError):
                (self.bench.path / place).mkdir()

    def write_some(self, share: float) -> None:
        for name in (name for n in range(AGENTS) for name in names_of(b"%d" % n)):
            if self.random.random() < share:
                self.write(self.bench.path / os.fsdecode(name))

    def write(self, path: Path) -> None:
        self.number += 1
        drawn = self.random.random()
        word = f"driver wrote {self.number}; "
        with suppress(IsADirectoryError, FileNotFoundError, NotADirectoryError):
            if drawn < 0.15:
                path.unlink()
            elif drawn < 0.25:
                path.unlink(missing_ok=True)
                path.symlink_to(word)
            elif drawn < 0.32:
                path.unlink(missing_ok=True)
                path.mkdir()
                (path / "in").write_text(word)
            else:
                if path.is_symlink():
                    path.unlink()
                path.write_text(word * self.random.choice((1, 40, 400)))
                path.chmod(self.random.choice((0o644, 0o644, 0o755)))

    # The race

    def race(self, *, freely: bool) -> list[str]:
        target = self.point()
        act = self.choose(target)
        for agent in self.agents:
            agent.order(REST)
            agent.wait()
        must = contents(self.bench.path) | read_log(self.log)
        disk = REAL if freely else self.stepping()
        recorder = self.bench.reopen(disk)
        if freely:
            for agent in self.agents:
                agent.order(GO)
        result, trouble = attempt(act, recorder)
        for agent in self.agents:
            agent.wait()
        if isinstance(disk, Stepping):
            self.verbs = max(50, disk.count)
            disk.moments.clear()  # packs are closed by it later, when nobody may act any more
        must = (must - destroyed(self.log)) | read_log(self.log)
        found = [*trouble, *self.check(result, must)]
        return [f"{text} (race {self.number}, {'free' if freely else 'stepped'})" for text in found]

    def choose(self, target: Request) -> Callable[[Recorder], Result | None]:
        drawn = self.random.random()
        if drawn < 0.55:
            return lambda recorder: rollback(recorder, target)
        if drawn < 0.7:
            return lambda recorder: go(recorder, undo_request(recorder.store, recorder.root.id))
        if drawn < 0.78:
            return lambda recorder: go(recorder, redo_request(recorder.store, recorder.root.id))
        side = self.random.choice(("", "markers", "mine", "theirs"))
        return partial(take_out, turn=self.turn, side=side)

    def stepping(self) -> Stepping:
        """Agents act at some of the verbs, as often as not at several that follow each other."""
        moments: dict[int, Callable[[], None]] = {}
        at = self.random.randrange(1, self.verbs)
        for _ in range(self.random.randint(1, MOST_MOMENTS)):
            moments[at] = partial(self.let_act, self.random.choice(self.agents))
            at += self.random.choice((1, 1, 2, 3, 7, 40))
        return Stepping(moments)

    def let_act(self, agent: Handle) -> None:
        agent.order(STEP)
        agent.wait_a_little(PATIENCE)

    # After the race

    def check(self, result: Result | None, must: set[str]) -> list[str]:
        bench = self.bench
        recorder = bench.reopen()
        found = [] if result is None else list(unsaid(recorder, result))
        with suppress(TurnmarkError):
            finish_interrupted(recorder)
        store = Store.open(bench.store.base)
        here = contents(bench.path)
        lost = sorted(oid for oid in must - here - self.told if not holds(store, oid))
        self.told.update(lost)
        found += [f"content {oid[:12]} is lost ({story(self.log, oid)})" for oid in lost]
        left = [name for name in os.listdir(bench.path) if name.startswith(".turnmark")]
        found += [f"{left} was left in the workspace"] if left else []
        return [*found, *inexact(self.bench, recorder)]

    def check_store(self) -> list[str]:
        store = Store.open(self.bench.store.base)
        fsck(store.base)
        return [str(damage) for damage in verify(store).damaged]


def inexact(bench: Bench, recorder: Recorder) -> list[str]:
    """Where a snapshot that is taken while all agents rest is not what is there."""
    files = recorder.take().snapshot.files
    held = {bytes(path): entry.oid for path, entry in files_of(bench.store.tree, files)}
    here = {
        path: hash_object("blob", _bytes(leaf[-1]))
        for path, leaf in image(bench.path).items()
        if leaf[0] in ("file", "link")
    }
    return [
        f"{os.fsdecode(path)} is not in the next snapshot as it is"
        for path in sorted(path for path in held.keys() | here if held.get(path) != here.get(path))
    ]


def go(recorder: Recorder, request: Request | None) -> Result | None:
    return None if request is None else rollback(recorder, request)


def take_out(recorder: Recorder, turn: int, side: str) -> Result | None:
    timeline = Timeline(recorder.store, recorder.root.id)
    wish = wish_for(timeline, [f"turn:{turn}"], "s", recorder.clock())
    return revert(recorder, type(wish)(wish.turns, side))  # type: ignore[arg-type]


def attempt(
    act: Callable[[Recorder], Result | None], recorder: Recorder
) -> tuple[Result | None, list[str]]:
    """A refusal in turnmark's own words is an answer; anything else is not."""
    try:
        return act(recorder), []
    except TurnmarkError:
        return None, []
    except Exception as error:  # noqa: BLE001 - whatever it was, it is a finding
        return None, [f"{type(error).__name__}: {error}"]


def contents(tree: Path) -> set[str]:
    leaves = image(tree).values()
    return {
        hash_object("blob", _bytes(leaf[-1])).hex()
        for leaf in leaves
        if leaf[0] in ("file", "link")
    }


def _bytes(data: object) -> bytes:
    assert isinstance(data, bytes)
    return data


def destroyed(log: Path) -> set[str]:
    lines = log.read_text().splitlines() if log.exists() else []
    return {line[2:42] for line in lines if line.startswith("-")}


def story(log: Path, oid: str) -> str:
    """How it was written, as its agent told it."""
    lines = log.read_text().splitlines() if log.exists() else []
    told = [f"{line[0]}{line[43:]}" for line in lines if line[2:42] == oid]
    return ", ".join(told) or "the driver's"


def holds(store: Store, oid: str) -> bool:
    try:
        return store.read(Oid(bytes.fromhex(oid)))[0] == "blob"
    except TurnmarkError:
        return False


def unsaid(recorder: Recorder, result: Result) -> list[str]:
    """Paths of the plan that are not as the point has them, and that the result does not name.

    By what the rollback itself recorded: what came later it cannot know.
    """
    if result.outcome not in ("done", "conflicts") or result.undo is None:
        return []
    store = recorder.store
    marks = [m for m in History(store, recorder.root.id).marks() if m.kind == "rollback"]
    after = read_snapshot(store, marks[-1].snapshot)
    then = files_at(store, result.plan.target)
    said = {left.path for left in (*result.kept, *result.conflicts, *result.marked)}
    planned = {step.path for step in result.plan.steps}
    gaps = decode_about(store.blob(after.about)).gaps
    differ = {change.path for change in diff_trees(store.tree, then, after.files)}
    return [
        f"{os.fsdecode(path)} is not as the point has it, and that was not said"
        for path in sorted(differ & planned - said - gaps.keys())
    ]


def files_at(store: Store, target: Oid) -> Oid:
    """A revert's plan leads to a tree, every other to a snapshot."""
    return target if store.read(target)[0] == "tree" else read_snapshot(store, target).files


def run(job: Job) -> Figures:
    figures = Figures()
    field: Field | None = None
    with ExitStack() as stack:
        for number in job.turns(figures):
            if field is None or number % RACES_PER_GROUND == 1:
                if field is not None:
                    figures.found += field.check_store()
                    stack.close()
                base = job.scratch / f"ground-{number}"
                field = Field(base, job.rng("races", number), f"{job.seed}-{number}")
                stack.callback(field.close)
            freely = number % 2 == 0
            figures.found += field.race(freely=freely)
            figures.count("freely" if freely else "verb by verb")
        if field is not None:
            figures.found += field.check_store()
    return figures


PART = Part(
    "races",
    "agents write while files are rolled back",
    run,
    {"ci": 12, "night": 1_000, "release": 2_000},
)
