"""What a service stands on is pulled away: roots that go, clocks that jump, holders that stop.

A root that is watched is unmounted, covered by another directory, moved away, and has file systems
mounted inside it: a mark is exact or refused, and no empty mount point becomes "all deleted". A
process is stopped while it holds the locks: others are told so in time, and readers do not wait. A
clock jumps by years: the order stays that of the numbers, and no clean-up takes the newest point.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from core import store as stores
from core.disk import REAL
from core.errors import Busy, TurnmarkError
from core.history import History, MarkSpec, pin_ref
from core.keeping import Policy
from core.recorder import Recorder
from core.retention import prune
from core.roots import root_of
from core.store import Store
from core.timeline import Timeline
from tests.stores import ALL, fsck
from tests.trees import Image, image
from tests.watching import PATIENT, PLENTY, Live, bind, mount, unmount
from watcher import workspace

from .child import failure_of, in_child, kill
from .frame import Figures, Job, Part
from .gitreader import Reader, references
from .ground import Ground, digest
from .kills import check_recovery
from .needs import MOUNTS
from .oracle import Judge
from .worker import change, work

EVENTS = 8
YEAR_NS = 365 * 24 * 3600 * 10**9
JUMPS = (-YEAR_NS, -3600 * 10**9, -1, 0, 1, 10**9, 40 * 24 * 3600 * 10**9, 10 * YEAR_NS)
WAIT = 0.2
LONGEST_WAIT = 2 * stores.WAIT
"""What a writer waits for the store and for its gate, together."""
PATIENCE = 5.0
"""So much longer than its wait a refusal may take on a busy machine."""


def roots(job: Job) -> Figures:
    figures = Figures()
    for number in job.turns(figures):
        rng = job.rng("roots", number)
        name = rng.choice(list(SCENES))
        place = job.scratch / str(number)
        place.mkdir()
        said = failure_of(partial(SCENES[name], place, rng))
        if said:
            figures.found.append(f"{name} {number}: {said}")
        else:
            shutil.rmtree(place)
        figures.count(name)
    return figures


# A root that comes and goes


class Watched:
    """Owns a live workspace, and every state that was ever to be seen at its path."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self.states: set[str] = set()
        self.acks: dict[str, str] = {}
        self.saw()

    def saw(self) -> None:
        self.states.add(digest(self.image()))

    def image(self) -> Image:
        return image(self.live.path)

    def change(self, rng: random.Random) -> None:
        for _ in range(rng.randint(1, 5)):
            change(self.live.path, rng)
        self.saw()

    def mark(self) -> None:
        """A refusal that passes is asked again: the root has just come back."""
        deadline = time.monotonic() + PLENTY
        while True:
            try:
                taken = self.live.ask()
            except TurnmarkError:
                assert time.monotonic() < deadline, "a root that is back is not taken up again"
                threading.Event().wait(0.02)
                continue
            self.acks[taken.snapshot.id.hex()] = digest(self.image())
            return

    def refused(self) -> None:
        try:
            self.live.ask()
        except TurnmarkError:
            return
        raise AssertionError("a mark of a root that is not there was acknowledged")

    def check(self) -> None:
        store = self.live.store_path
        fsck(store)
        seen: dict[str, str] = {}
        with Reader(store) as reader:
            for name, oid in references(store).items():
                if "/s/" in name:
                    seen[oid] = digest(reader.snapshot(oid) or {})
        unheard_of = set(seen.values()) - self.states
        assert not unheard_of, f"{len(unheard_of)} snapshots are of states that never were"
        wrong = [oid for oid, wanted in self.acks.items() if seen.get(oid) != wanted]
        assert not wrong, f"{len(wrong)} acknowledged snapshots are not exact"


def mounted(place: Path, rng: random.Random) -> None:
    """In the mount namespace of the part."""
    workspace.RETRY_SECONDS = 0.05
    real, other, work = place / "real", place / "other", place / "work"
    for path in (real, other, work):
        path.mkdir()
        (path / "first").write_text(path.name)
    (work / "first").unlink()
    bind(real, work)
    try:
        with Live(place, _settings()).ready() as live:
            watched = Watched(live)
            watched.mark()
            for _ in range(EVENTS):
                rng.choice((_unmounted, _covered, _inside, _changed, _changed))(watched, rng, place)
                watched.mark()
            watched.check()
    finally:
        unmount(work, "-l")


def _settings() -> workspace.Settings:
    return replace(PATIENT, rules=ALL)


def _changed(watched: Watched, rng: random.Random, place: Path) -> None:
    watched.change(rng)


def _unmounted(watched: Watched, rng: random.Random, place: Path) -> None:
    unmount(watched.live.path, "-l")
    watched.refused()
    bind(place / "real", watched.live.path)


def _covered(watched: Watched, rng: random.Random, place: Path) -> None:
    """Another directory is mounted over it: a state of its own, once it is looked at."""
    bind(place / "other", watched.live.path)
    watched.saw()
    if rng.random() < 0.5:
        watched.mark()
    unmount(watched.live.path, "-l")


def _inside(watched: Watched, rng: random.Random, place: Path) -> None:
    """A file system of its own below the root, and its files."""
    inner = watched.live.path / "volume"
    inner.mkdir(exist_ok=True)
    watched.saw()
    mount("tmpfs", inner)
    (inner / "f").write_text(str(rng.random()))
    watched.saw()
    taken = watched.live.ask()
    with Reader(watched.live.store_path) as reader:
        seen, gaps = reader.snapshot(taken.snapshot.id.hex()), reader.gaps(taken.snapshot.id.hex())
    assert b"volume" in gaps or b"volume/f" in (seen or {}), "a volume vanished without a word"
    watched.states.add(digest(seen or {}))
    unmount(inner, "-l")
    inner.rmdir()
    watched.saw()


def moved(place: Path, rng: random.Random) -> None:
    """Away and back, with nothing, an empty directory, or a link in its place meanwhile."""
    workspace.RETRY_SECONDS = 0.05
    (place / "work").mkdir()
    (place / "work" / "first").write_text("1")
    with Live(place, _settings()).ready() as live:
        watched = Watched(live)
        for _ in range(EVENTS):
            watched.change(rng)
            watched.mark()
            live.path.rename(place / "elsewhere")
            instead = rng.choice(("nothing", "directory", "link"))
            if instead == "directory":
                live.path.mkdir()
            elif instead == "link":
                live.path.symlink_to(place)
            watched.refused()
            if instead == "directory":
                live.path.rmdir()
            elif instead == "link":
                live.path.unlink()
            (place / "elsewhere").rename(live.path)
        watched.mark()
        watched.check()


# A holder that stops


def stopped(place: Path, rng: random.Random) -> None:
    ground = Ground(place / "ground", place / "told").build()
    (ground.base / "another").mkdir()
    judge = Judge(ground)
    pid = in_child(partial(work, ground, str(rng.random())))
    try:
        for _ in range(EVENTS):
            time.sleep(0.02 + rng.random() * 0.1)
            os.kill(pid, signal.SIGSTOP)
            _others_go_on(ground)
            os.kill(pid, signal.SIGCONT)
    finally:
        kill(pid)
    judge.read_on()
    judge.check_tree()
    check_recovery(judge, "after")
    judge.check_store()


def _others_go_on(ground: Ground) -> None:
    store = Store.open(ground.store)
    begun = time.monotonic()
    list(History(store, ground.root.id).marks())
    _busy_or_done(partial(_locked, store, ground.root.id))
    _busy_or_done(partial(_take_elsewhere, store, ground.base / "another"))
    took = time.monotonic() - begun
    assert took < LONGEST_WAIT + PATIENCE, f"others were held up for {took:.1f} s"


def _busy_or_done(run: Callable[[], None]) -> None:
    """Either is an answer; to wait for ever is none."""
    with suppress(Busy):
        run()


def _locked(store: Store, workspace_id: str) -> None:
    with store.workspace_lock(workspace_id, wait=WAIT):
        return


def _take_elsewhere(store: Store, path: Path) -> None:
    (path / "f").write_text(str(time.monotonic_ns()))
    root = root_of(os.fsencode(path.resolve()))
    with store.workspace_lock(root.id, wait=WAIT):
        recorder = Recorder(store, root, ALL)
        try:
            recorder.take(mark=MarkSpec("manual"))
        finally:
            recorder.close()


# A clock that jumps


def jumping(place: Path, rng: random.Random) -> None:
    ground = Ground(place / "ground", place / "told").build()
    now = time.time_ns()
    store, root = Store.open(ground.store, REAL), ground.root
    acks: list[tuple[str, str]] = []
    with store.workspace_lock(root.id):
        for number in range(12):
            now = max(10**18, now + rng.choice(JUMPS))
            clock = partial(int, now)
            recorder = Recorder(store, root, ALL, clock)
            (ground.tree / "f").write_text(str(number))
            taken = recorder.take(mark=MarkSpec("manual", label=str(number)))
            acks.append((taken.snapshot.id.hex(), digest(ground.image())))
            if number == 3:
                store.refs.create(pin_ref(root.id, taken.snapshot.id), taken.snapshot.id, sync=True)
            recorder.close()
            _check_order(store, root.id, acks)
    prune(store, Policy(max_points=4), now + rng.choice(JUMPS))
    left = set(references(ground.store).values())
    for wanted in (acks[-1], acks[3]):
        assert wanted[0] in left, "the newest or a pinned point was pruned"
    with Reader(ground.store) as reader:
        for commit, seen in acks:
            if commit in left:
                assert digest(reader.snapshot(commit) or {}) == seen, f"{commit} is not exact"


def _check_order(store: Store, workspace_id: str, acks: list[tuple[str, str]]) -> None:
    history = History(store, workspace_id)
    in_order = [history.snapshot_ids[seq].hex() for seq in sorted(history.snapshot_ids)]
    assert in_order == [commit for commit, _ in acks], "the order is not that of the numbers"
    newest = Timeline(store, workspace_id).resolve("@", time.time_ns()).point
    assert newest is not None
    assert newest.id.hex() == acks[-1][0], "the newest point is not the last one"


SCENES: dict[str, Callable[[Path, random.Random], None]] = {
    "roots mounted": mounted,
    "roots moved": moved,
    "holders stopped": stopped,
    "clocks jumping": jumping,
}

PART = Part(
    "roots",
    "its root unmounted, covered, moved; lock holders stopped; clocks that jump",
    roots,
    {"ci": 12, "night": 500, "release": 1_000},
    needs=(MOUNTS, "git"),
)
