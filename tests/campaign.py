"""`python -m tests.campaign`: kills a working process at random instants, and checks everything.

The oracle is a file written by the worker and read by the driver, outside the system under test:
every acknowledgement with what the tree held at that moment, and before each rollback every
content that must not be lost. One seed per run, printed; the same seed draws the same work.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from core.about import decode_about
from core.consolidate import consolidate
from core.diff import files_of
from core.disk import REAL
from core.errors import Busy
from core.history import History, MarkSpec, read_snapshot
from core.model import LINK, RelPath
from core.recorder import Recorder
from core.retention import Policy, prune
from core.rollback import (
    Request,
    finish_interrupted,
    preview,
    redo_request,
    rollback,
    undo_request,
)
from core.roots import check_root
from core.store import Store
from core.verify import verify
from tests.stores import ALL, fsck
from tests.trees import image

SIZES = {"ci": 300, "night": 3_000, "release": 10_000}
CHECK_EVERY = 25
LONGEST_LIFE = 0.12
NAMES = ["a", "b", "c/d", "c/e/f", "g", "h/i", "j"]


@dataclass
class Ground:
    """Where one campaign takes place."""

    base: Path
    tree: Path = field(init=False)
    store: str = field(init=False)
    oracle: Path = field(init=False)

    def __post_init__(self) -> None:
        self.tree = self.base / "work"
        self.tree.mkdir()
        self.store = f"{self.base}/home/store"
        self.oracle = self.base / "oracle"
        Store.create(self.store)


# The worker


def work(ground: Ground, seed: str) -> None:
    """Changes, snapshots, rolls back, tidies up, until somebody kills it."""
    rng = random.Random(seed)
    log = os.open(ground.oracle, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    store = Store.open(ground.store)
    root = check_root(REAL, str(ground.tree), home="/nonexistent", store=store.base)
    with store.workspace_lock(root.id, wait=0):
        recorder = Recorder(store, root, ALL)
        finish_interrupted(recorder)
        say(log, "kept")
        while True:
            step(ground, recorder, rng, log)


def step(ground: Ground, recorder: Recorder, rng: random.Random, log: int) -> None:
    for _ in range(rng.randint(1, 6)):
        change(ground.tree, rng)
    say(log, "try")
    drawn = rng.random()
    if drawn < 0.6:
        taken = recorder.take(mark=MarkSpec("manual") if drawn < 0.45 else None)
        say(log, "ack", taken.snapshot.id.hex(), digest(ground.tree))
    elif drawn < 0.93:
        go_back(ground, recorder, rng, log)
    else:
        tidy(recorder, rng, log)


def change(tree: Path, rng: random.Random) -> None:
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
        elif not path.is_symlink():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(rng.randbytes(rng.choice([3, 200, 9_000])))
            path.chmod(rng.choice([0o644, 0o600, 0o755]))


def go_back(ground: Ground, recorder: Recorder, rng: random.Random, log: int) -> None:
    request = some_request(recorder, rng)
    if request is None:
        return
    say(log, "keep", *contents(ground.tree))
    shown = preview(recorder, request)
    done = rollback(
        recorder,
        Request(request.target, request.seq, request.label, request.op, (), shown.plan.hash),
    )
    assert done.outcome in ("done", "nothing"), done
    assert not done.conflicts, done.conflicts
    if done.outcome == "done":
        assert recorder.last is not None
        say(log, "ack", recorder.last.id.hex(), digest(ground.tree))
    say(log, "kept")


def some_request(recorder: Recorder, rng: random.Random) -> Request | None:
    drawn = rng.random()
    if drawn < 0.25:
        return undo_request(recorder.store, recorder.root.id)
    if drawn < 0.4:
        return redo_request(recorder.store, recorder.root.id)
    marks = list(History(recorder.store, recorder.root.id).marks())
    if not marks:
        return None
    mark = rng.choice(marks)
    return Request(mark.snapshot, mark.seq, "a point")


def tidy(recorder: Recorder, rng: random.Random, log: int) -> None:
    say(log, "prune")
    with suppress(Busy):
        if rng.random() < 0.5:
            consolidate(recorder.store)
        else:
            prune(recorder.store, Policy(max_points=30), time.time_ns())


def say(log: int, *words: str) -> None:
    os.write(log, (" ".join(words) + "\n").encode())


def contents(tree: Path) -> list[str]:
    leaves = image(tree).values()
    return [sha(leaf[-1]) for leaf in leaves if leaf[0] in ("file", "link")]


def digest(tree: Path) -> str:
    return sha(repr(sorted(image(tree).items())).encode())


def sha(data: object) -> str:
    assert isinstance(data, bytes)
    return hashlib.sha256(data).hexdigest()


# The driver


@dataclass
class Told:
    """What the oracle says."""

    acks: dict[str, tuple[int, str]] = field(default_factory=dict)
    must_keep: list[str] = field(default_factory=list)
    last_prune: int = -1
    words: Counter[str] = field(default_factory=Counter)


def read_oracle(path: Path) -> Told:
    told = Told()
    lines = path.read_text().splitlines() if path.exists() else []
    for number, line in enumerate(lines):
        word, *rest = line.split(" ")
        told.words[word] += 1
        if word == "ack":
            told.acks[rest[0]] = (number, rest[1])
        elif word == "prune":
            told.last_prune = number
        elif word == "keep":
            told.must_keep = rest
        elif word == "kept":
            told.must_keep = []
    return told


def check_nothing_lost(ground: Ground, told: Told) -> None:
    """Every content that was there before a rollback is in the tree, in staging or in the store."""
    if not told.must_keep:
        return
    store = Store.open(ground.store)
    have = set(contents(ground.tree))
    for pack in store.packs():
        for oid in pack.oids():
            kind, data = store.read(oid)
            if kind == "blob":
                have.add(sha(data))
    lost = set(told.must_keep) - have
    assert not lost, f"{len(lost)} contents were lost in a rollback"


def check_all(ground: Ground, told: Told) -> int:
    """Every acknowledged snapshot that no prune may have dropped is exact; nothing is damaged."""
    store = Store.open(ground.store)
    root = check_root(REAL, str(ground.tree), home="/nonexistent", store=store.base)
    there = {oid.hex() for oid in History(store, root.id).snapshot_ids.values()}
    for commit, (number, expected) in told.acks.items():
        if commit in there:
            assert stored_digest(store, commit) == expected, f"snapshot {commit} is not exact"
        else:
            assert number < told.last_prune, f"the acknowledged snapshot {commit} is gone"
    found = verify(store)
    assert found.ok, found.damaged
    fsck(store.base)
    return len(there)


def stored_digest(store: Store, commit: str) -> str:
    """The image of a snapshot, as `tests.trees.image` would give it of its tree."""
    snapshot = read_snapshot(store, bytes.fromhex(commit))  # type: ignore[arg-type]
    about = decode_about(store.blob(snapshot.about))
    out: dict[bytes, tuple[object, ...]] = {}
    for path, entry in files_of(store.tree, snapshot.files):
        data = store.blob(entry.oid)
        mode = about.mode(path, entry.mode)
        out[path] = ("link", data) if entry.mode == LINK else ("file", mode, data)
        for above in _above(path):
            out[above] = ("dir", about.mode(above, 0o40000))
    for path in about.empty:
        out[path] = ("dir", about.mode(path, 0o40000))
    return sha(repr(sorted(out.items())).encode())


def _above(path: RelPath) -> list[RelPath]:
    parts = path.split(b"/")
    return [RelPath(b"/".join(parts[:n])) for n in range(1, len(parts))]


def one_life(ground: Ground, seed: str, seconds: float) -> None:
    """A worker that is killed after a while; it never ends by itself."""
    pid = os.fork()
    if pid == 0:
        try:
            work(ground, seed)
        except BaseException:  # noqa: BLE001 - told to the driver by the exit status
            traceback.print_exc()
        os._exit(1)
    time.sleep(seconds)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), f"a worker failed by itself (seed {seed})"


def campaign(ground: Ground, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    begun = time.monotonic()
    for number in range(1, kills + 1):
        one_life(ground, f"{seed}-{number}", 0.004 + rng.random() * LONGEST_LIFE)
        told = read_oracle(ground.oracle)
        check_nothing_lost(ground, told)
        if number % CHECK_EVERY == 0 or number == kills:
            left = check_all(ground, told)
            print(
                f"{number} kills: {len(told.acks)} acknowledged, {left} snapshots held,"
                f" {told.words['keep']} rollbacks, {told.words['prune']} clean-ups, all well"
                f" ({time.monotonic() - begun:.0f} s)",
                flush=True,
            )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--size", choices=SIZES, default="ci")
    parser.add_argument("--kills", type=int, help="instead of what the size says")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    options = parser.parse_args()
    kills = options.kills or SIZES[options.size]
    print(f"campaign: {kills} kills, seed {options.seed}", flush=True)
    base = Path(tempfile.mkdtemp(prefix="turnmark-campaign-"))
    try:
        campaign(Ground(base), kills, options.seed)
    except AssertionError as error:
        print(f"FAILED with seed {options.seed}: {error}; kept for a look: {base}", file=sys.stderr)
        return 1
    shutil.rmtree(base)
    return 0


if __name__ == "__main__":
    sys.exit(main())
