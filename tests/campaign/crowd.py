"""Eight processes on one store: snapshots and marks, prunes, sweeps, consolidations, readers.

Two workspaces with two writers each; one process prunes, one consolidates, two read all that is
there as it comes and goes. Now and then one of them is killed and another takes its place. The
oracle is a pipe: each acknowledgement with the content that its snapshot must hold. What is
counted are acknowledgements and clean-ups; histories that were read from end to end are noted.
"""

from __future__ import annotations

import os
import random
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from core.consolidate import consolidate
from core.diff import files_of
from core.errors import Busy, Damaged
from core.history import History, MarkSpec, read_snapshot
from core.keeping import Policy
from core.model import Oid, RelPath, Snapshot
from core.objects import hash_object
from core.recorder import Recorder
from core.retention import prune
from core.roots import Root, root_of
from core.store import Store
from core.sweep import sweep
from core.verify import verify
from tests.stores import ALL, fsck
from tests.trees import build

from .agents import die_with_parent
from .frame import Figures, Job, Part

POINTS = 40
"""Fewer are never left by a prune."""
KILL_EVERY = 15
PATIENCE = 60.0
WAIT = 30.0


@dataclass(frozen=True)
class Scene:
    """What all of the crowd know: the store, the workspaces, and where to tell."""

    store: str
    roots: tuple[Root, ...]
    tell: int

    def say(self, *words: str) -> None:
        os.write(self.tell, (" ".join(words) + "\n").encode())


Role = Callable[[Scene, random.Random, int], NoReturn]


def writer(scene: Scene, rng: random.Random, number: int) -> NoReturn:
    root = scene.roots[number % 2]
    count = 0
    while True:
        count += 1
        data = f"{os.getpid()} {count} ".encode() * rng.randrange(1, 400)
        name = f"{number}/{count % 7}"
        Path(os.fsdecode(root.path), name).write_bytes(data)
        store = Store.open(scene.store)
        with store.workspace_lock(root.id, wait=WAIT):
            recorder = Recorder(store, root, ALL)
            spec = MarkSpec("manual", name) if count % 3 else None
            taken = recorder.take(mark=spec, sync=count % 4 == 0)
            recorder.close()
        blob = hash_object("blob", data).hex()
        scene.say("ack", root.id, taken.snapshot.id.hex(), name, blob, "m" if spec else "b")


def pruner(scene: Scene, rng: random.Random, number: int) -> NoReturn:
    while True:
        time.sleep(rng.random() * 0.05)
        store = Store.open(scene.store)
        try:
            if rng.random() < 0.3:
                sweep(store, 0.0)
            else:
                policy = Policy(max_points=POINTS, burst_hours=0, burst_turns=0)
                pruned = prune(store, policy, time.time_ns())
                if pruned.errors:
                    scene.say("wrong", *" ".join(pruned.errors).split())
        except Busy:
            continue
        scene.say("tidied")


def consolidator(scene: Scene, rng: random.Random, number: int) -> NoReturn:
    while True:
        time.sleep(rng.random() * 0.05)
        try:
            consolidate(Store.open(scene.store))
        except Busy:
            continue
        scene.say("tidied")


def reader(scene: Scene, rng: random.Random, number: int) -> NoReturn:
    """Reads each snapshot whole; what is damaged while it is still referenced is wrong."""
    store = Store.open(scene.store)
    while True:
        root = rng.choice(scene.roots)
        for seq, oid in sorted(History(store, root.id).snapshot_ids.items()):
            try:
                read_whole(store, read_snapshot(store, oid))
            except Damaged as error:
                if History(Store.open(scene.store), root.id).snapshot_ids.get(seq) == oid:
                    scene.say("wrong", *error.message.split())
        scene.say("read")
        time.sleep(rng.random() * 0.02)


def read_whole(store: Store, snapshot: Snapshot) -> None:
    store.blob(snapshot.about)
    for _, entry in files_of(store.tree, snapshot.files):
        store.blob(entry.oid)


ROLES: tuple[Role, ...] = (writer,) * 4 + (pruner, consolidator, reader, reader)


@dataclass
class Crowd:
    """Owns the eight, and what they said."""

    scene: Scene
    listen: int
    rng: random.Random
    pids: dict[int, int] = field(default_factory=dict)
    acks: list[tuple[str, str, str, str, str]] = field(default_factory=list)
    figures: Figures = field(default_factory=Figures)
    _rest: bytes = b""

    def start(self, place: int) -> None:
        seed = self.rng.random()
        pid = os.fork()
        if pid == 0:
            die_with_parent()
            os.close(self.listen)
            try:
                ROLES[place](self.scene, random.Random(seed), place)
            except BaseException as error:  # noqa: BLE001 - told to the driver
                traceback.print_exc()
                name = ROLES[place].__name__
                self.scene.say("wrong", name, "failed:", type(error).__name__, *str(error).split())
            os._exit(1)
        self.pids[place] = pid

    def kill(self, place: int) -> None:
        os.kill(self.pids[place], signal.SIGKILL)
        os.waitpid(self.pids.pop(place), 0)

    def hear(self) -> int:
        """Takes in what was said; returns how much of it is work done."""
        *lines, self._rest = (self._rest + os.read(self.listen, 1 << 16)).split(b"\n")
        return sum(self._note(*line.decode().split(" ")) for line in lines)

    def _note(self, word: str, *rest: str) -> bool:
        if word == "wrong":
            self.figures.found.append(" ".join(rest))
            return False
        if word == "ack":
            workspace, commit, name, blob, kind = rest
            self.acks.append((workspace, commit, name, blob, kind))
        self.figures.count({"ack": "acknowledged", "read": "histories read"}.get(word, word))
        return word != "read"


def check(crowd: Crowd) -> list[str]:
    """Every acknowledged snapshot that a prune had to leave is exact, nothing is damaged."""
    store = Store.open(crowd.scene.store)
    found = [] if (told := verify(store)).ok else [str(one) for one in told.damaged]
    for root in crowd.scene.roots:
        history = History(store, root.id)
        there = {oid.hex() for oid in history.snapshot_ids.values()}
        numbers = [*history.snapshot_ids, *history.mark_ids]
        if len(numbers) != len(set(numbers)):
            found.append("a number was given twice")
        mine = [ack for ack in crowd.acks if ack[0] == root.id]
        newest = [ack[1] for ack in mine if ack[4] == "m"][-POINTS // 2 :]
        found += [f"{one[:12]} is gone, and no prune may drop it" for one in set(newest) - there]
        for _, commit, name, blob, _ in mine:
            if commit in there and not is_exact(store, commit, name, blob):
                found.append(f"{commit[:12]} does not hold what was acknowledged")
        recorder = Recorder(store, root, ALL)
        recorder.take()
        recorder.close()
    fsck(store.base)
    return found


def is_exact(store: Store, commit: str, name: str, blob: str) -> bool:
    snapshot = read_snapshot(store, Oid(bytes.fromhex(commit)))
    entry = dict(files_of(store.tree, snapshot.files)).get(RelPath(name.encode()))
    return entry is not None and entry.oid.hex() == blob and bool(store.read(entry.oid))


def run(job: Job) -> Figures:
    store = Store.create(str(job.scratch / "store"))
    tops = [build(job.scratch / f"w{n}", {f"{p}/": "" for p in range(4)}) for n in range(2)]
    roots = tuple(root_of(os.fsencode(top)) for top in tops)
    listen, tell = os.pipe()
    crowd = Crowd(Scene(store.base, roots, tell), listen, job.rng("crowd"))
    figures = crowd.figures
    for place in range(len(ROLES)):
        crowd.start(place)
    heard = time.monotonic()
    try:
        while figures.done < job.count and not figures.found and time.monotonic() < job.until:
            if time.monotonic() - heard > PATIENCE:
                figures.found.append(f"nothing was done for {PATIENCE:.0f} s")
            before = figures.done
            figures.done += crowd.hear()
            heard = time.monotonic() if figures.done > before else heard
            job.keep(figures)
            if figures.done // KILL_EVERY > before // KILL_EVERY:
                place = crowd.rng.randrange(len(ROLES))
                crowd.kill(place)
                figures.count("killed")
                crowd.start(place)
    finally:
        for place in list(crowd.pids):
            crowd.kill(place)
    os.close(tell)
    while figures_left(crowd):
        continue
    os.close(listen)
    figures.found += check(crowd)
    return figures


def figures_left(crowd: Crowd) -> bool:
    """What was said before the end counts too: it was acknowledged."""
    before = len(crowd.acks)
    crowd.figures.done += crowd.hear()
    return len(crowd.acks) > before


PART = Part(
    "crowd",
    "eight processes on one store, some of them killed",
    run,
    {"ci": 60, "night": 5_000, "release": 20_000},
)
