"""Two agents at work for as long as it takes: every mark equals the tree at its barrier.

`python -m tests.soak --seconds N [--seed S]`; ends with 1 if anything was wrong, leaked or grew.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import sys
import tempfile
import threading
import time
from array import array
from dataclasses import dataclass, field, replace
from pathlib import Path

from core.consolidate import consolidate, needed
from core.deep import repack_when_due
from core.diff import files_of
from core.history import MarkSpec
from core.keeping import Policy
from core.model import EXEC, FILE, LINK, RelPath
from core.recorder import Recorder, Taken
from core.retention import auto_prune
from core.rules import RuleSet
from core.store import Store
from tests.fuzz import Writers
from tests.stores import fsck
from tests.watching import PATIENT, Live
from watcher.memory import give_back
from watcher.source import Hub

RULES = RuleSet(exclude=("node_modules/", "target/"), protect=(), gitignore=False)
LEFT_OUT = frozenset((b"node_modules", b"target", b".git"))
SETTINGS = replace(PATIENT, rules=RULES, quiet=0.05, longest=0.3, audit=5.0, durable=False)
AGENTS = 2
WARM = 0.25
GROWTH_MB = 24.0
FEW = 10
PRUNING = Policy(min_interval_hours=1 / 120)
REPACKING_NS = 20 * 1_000_000_000
"""As the service prunes by default, but more often than once a day."""

Leaves = dict[bytes, tuple[int, bytes]]


def copy_of(root: bytes) -> Leaves:
    """The tree as it is, by the shortest program that can tell."""
    out: Leaves = {}
    for top, dirs, files in os.walk(root):
        dirs[:] = [name for name in dirs if name not in LEFT_OUT]
        links = [name for name in dirs if os.path.islink(os.path.join(top, name))]
        for name in (*files, *links):
            if name not in LEFT_OUT or not os.path.isdir(os.path.join(top, name)):
                path = os.path.join(top, name)
                out[os.path.relpath(path, root)] = leaf(path)
    return {path: found for path, found in out.items() if path.split(b"/")[-1] != b".git"}


def leaf(path: bytes) -> tuple[int, bytes]:
    if os.path.islink(path):
        return LINK, os.readlink(path)
    with open(path, "rb") as file:
        return (EXEC if os.fstat(file.fileno()).st_mode & 0o100 else FILE), file.read()


def held_by(store: Store, taken: Taken) -> Leaves:
    found = files_of(store.tree, taken.snapshot.files)
    return {path: (entry.mode, store.blob(entry.oid)) for path, entry in found}


@dataclass(frozen=True, slots=True)
class Health:
    """What must not grow."""

    memory: float
    descriptors: int
    threads: int

    @classmethod
    def now(cls) -> Health:
        status = Path("/proc/self/status").read_text()
        memory = int(status.partition("RssAnon:")[2].split()[0]) / 1024  # without mapped packs
        descriptors = sum(map(is_lasting, os.listdir("/proc/self/fd")))
        return cls(memory, descriptors, threading.active_count())


def is_lasting(descriptor: str) -> bool:
    """Not one of a pack, which come with snapshots and go with consolidation."""
    try:
        return "/objects/pack/" not in os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return False


@dataclass
class Figures:
    """What a soak came to."""

    turns: int = 0
    running: int = 0
    operations: int = 0
    snapshots: int = 0
    overflows: int = 0
    findings: int = 0
    wrong: list[str] = field(default_factory=list)
    latencies: array[float] = field(default_factory=lambda: array("d"))
    health: list[Health] = field(default_factory=list)

    def judge(self) -> None:
        """The last measure is held against the one after warming up."""
        before, after = self.health[int(len(self.health) * WARM)], self.health[-1]
        if after.memory > before.memory + GROWTH_MB:
            self.wrong.append(f"memory grew from {before.memory:.1f} to {after.memory:.1f} MB")
        early = self.health[int(len(self.health) * WARM) :][:FEW]
        late = self.health[-FEW:]  # a loop may be at work just then
        for what in ("descriptors", "threads"):
            if min(getattr(h, what) for h in late) > max(getattr(h, what) for h in early):
                self.wrong.append(f"{what} grew: {before} {after}")

    def __str__(self) -> str:
        times = sorted(self.latencies) or [0.0]
        first, last = self.health[int(len(self.health) * WARM)], self.health[-1]
        return (
            f"{self.turns} turns compared, {self.running} marks while agents ran, "
            f"{self.operations} operations, {self.snapshots} snapshots, "
            f"{self.overflows} overflows, {self.findings} audit findings, "
            f"{len(self.wrong)} WRONG; mark p50 {1e3 * statistics.median(times):.1f} ms, "
            f"p99 {1e3 * times[len(times) * 99 // 100]:.1f} ms; "
            f"memory {first.memory:.1f} -> {last.memory:.1f} MB, "
            f"fds {first.descriptors} -> {last.descriptors}, "
            f"threads {first.threads} -> {last.threads}"
        )


class Agent:
    """Owns one agent's turns in a workspace: writers that pause at its boundaries."""

    def __init__(self, live: Live, writers: Writers, number: int, figures: Figures) -> None:
        self.live = live
        self.writers = writers
        self.session = f"agent-{number}"
        self.figures = figures
        self.turn = 0

    def mark(self, kind: str) -> Taken:
        spec = MarkSpec(kind, session=self.session, turn=self.turn)  # type: ignore[arg-type]

        def task(recorder: Recorder, paths: list[RelPath] | None) -> Taken:
            return recorder.take(paths, spec, sync=False)

        begun = time.perf_counter()
        taken: Taken = self.live.ask(task)
        self.figures.latencies.append(time.perf_counter() - begun)
        return taken

    def turns(self, seconds: float, rnd: random.Random) -> None:
        """One turn at work, with a mark in the middle of it, and one compared at its end."""
        self.turn += 1
        self.compare(self.mark("turn-begin"), "begin")
        self.writers.begin(seconds)
        for _ in range(rnd.randint(0, 2)):
            self.mark("manual")
            self.figures.running += 1
        self.writers.wait()
        self.compare(self.mark("turn-end"), "end")

    def compare(self, taken: Taken, which: str) -> None:
        there, held = copy_of(self.live.root.path), held_by(self.live.store(), taken)
        self.figures.turns += 1
        if there != held:
            differing = [p for p in there.keys() | held.keys() if there.get(p) != held.get(p)]
            where = f"{self.session} turn {self.turn} {which}"
            self.figures.wrong.append(f"{where}: {len(differing)} differ, {sorted(differing)[:4]}")


def places(base: Path, hub: Hub, store: str) -> list[Live]:
    """Nobody listens to them: what they tell would be kept, 13 MB in an hour."""
    return [
        Live(base / f"a{n}", SETTINGS, hub=hub, store=store, notify=lambda _: None).ready()
        for n in range(AGENTS)
    ]


def soak(base: Path, seed: int, seconds: float) -> Figures:
    figures, rnd = Figures(), random.Random(seed)
    hub, store = Hub(str(base / "cookies")), str(base / "store")
    lives = places(base, hub, store)
    pens = [
        Writers(live.path, live.base / "outside", seed + n, 2, links=n == 1)
        for n, live in enumerate(lives)
    ]
    agents = [Agent(*pair, n, figures) for n, pair in enumerate(zip(lives, pens, strict=True))]
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            together(agents, rnd)
            upkeep(Store.open(store))
            figures.health.append(Health.now())
    finally:
        for pen in pens:
            pen.__exit__(None, None, None)
            figures.operations += pen.operations
        for live in lives:
            figures.findings += live.workspace.audit_findings
            figures.overflows += int(str(live.workspace.status()["overflows"]))
            live.stop()
            figures.snapshots += len(live.snapshots())
        hub.close()
    fsck(store)
    figures.judge()
    return figures


def together(agents: list[Agent], rnd: random.Random) -> None:
    """All agents take a turn at the same time."""
    seconds = rnd.choice((0.01, 0.05, 0.2, 0.5))
    seeds = [random.Random(rnd.random()) for _ in agents]
    threads = [
        threading.Thread(target=agent.turns, args=(seconds, own))
        for agent, own in zip(agents, seeds, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def upkeep(store: Store) -> None:
    """As the service does in the background."""
    if needed(store):
        consolidate(store)
        give_back()
    auto_prune(store, PRUNING, time.time_ns())
    done = repack_when_due(store, time.time_ns(), REPACKING_NS)
    assert done is None or not done.errors, done


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="turnmark-soak-"))
    try:
        figures = soak(base, options.seed, options.seconds)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    for line in figures.wrong:
        print(line)
    print(f"seed {options.seed}: {figures}")
    return 1 if figures.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
