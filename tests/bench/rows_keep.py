"""The rows about what is kept: space, consolidation, reading, listing, and rolling back."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from core.consolidate import consolidate
from core.deep import deep_repack
from core.history import History, MarkSpec
from core.keeping import Policy
from core.model import Oid, Snapshot
from core.retention import prune
from core.rollback import Request, rollback
from core.store import Store

from .bench import Bench
from .contenders import QUIET_GIT, REPOSITORY, Turnmark, Wrong, check_store
from .measure import Result, Target, bytes_ratio, in_turns, seconds, within
from .trees import SEED, Edits

WORKSPACES = 10
POINT_FILES = 200
BURST_EVERY, BURST_FILES = 200, 1_000
CONSOLIDATE_MS, PRUNE_MS = 2_000, 5_000
"""Both run in the background, beside snapshots that they must not keep waiting for long."""


def rolled_back(bench: Bench) -> Iterator[Result]:
    """A rollback holds a full scan, which is what it is compared with."""
    files = bench.scale.large
    edits, (ours, _) = bench.edits(files), bench.pair(files)
    targets: list[Snapshot] = []

    def prepare() -> None:
        targets.append(ours.take(mark=MarkSpec("manual")))
        edits.change(1)

    def act() -> None:
        found = rollback(ours.recorder, Request(targets[-1].id, targets[-1].seq, "bench"))
        if found.outcome != "done" or ours.tree() != targets[-1].files.hex():
            raise Wrong(f"The rollback ended as '{found.outcome}' with tree {ours.tree()}.")

    found = in_turns(bench.scale.changes, prepare, act, ours.take)
    yield found.costs(f"rollback of 1 in {files:,}", 1.5, "full scan")


def listing(bench: Bench) -> Iterator[Result]:
    """From the shell, as a person asks; the points were consolidated, as old ones are."""
    home, root = bench.place("home"), bench.copy_of(POINT_FILES)
    ours, edits = Turnmark(f"{home}/store", root, sync=False), Edits(root)
    ours.take()
    for number in range(bench.scale.points):
        ours.take(edits.change(1), MarkSpec("manual", label=f"point {number}"))
    ours.close()
    consolidate(Store.open(ours.base))
    turnmark = program(home)
    points = json.loads(shell(home, root, *turnmark, "list", "--json"))["points"]
    if len(points) != bench.scale.points:
        raise Wrong(f"list shows {len(points)} of {bench.scale.points} points")
    times = [seconds(partial(shell, home, root, *turnmark, "list")) for _ in range(9)]
    yield within(f"list {len(points):,} points, cold from the shell", times, 150)


def program(home: str) -> tuple[str, ...]:
    """The installed command, or what an installer would have written in its place."""
    installed = Path(sys.executable).with_name("turnmark")
    if installed.exists():
        return (str(installed),)
    script = Path(home, "turnmark.py")
    script.write_text(
        f"import sys\nsys.path[0] = {str(REPOSITORY)!r}\n"
        "from watcher.cli import main\nsys.exit(main())\n"
    )
    return (sys.executable, str(script))


def shell(home: str, root: str, *command: str) -> str:
    env = {"PATH": os.defpath, "HOME": home, "TURNMARK_HOME": home, "TURNMARK_RUNTIME_DIR": home}
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Wrong(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def kept(bench: Bench) -> Iterator[Result]:
    """Many snapshots: their packs as written, then consolidated, then repacked for the deltas."""
    base = _many_snapshots(bench)
    count = f"{bench.scale.kept:,} snapshots"
    before, after = bench.place("before"), bench.place("gc")
    shutil.copytree(base, before)
    spent = seconds(lambda: consolidate(Store.open(base)))
    yield within(f"{count}, time to consolidate", [spent], CONSOLIDATE_MS)
    what = f"{count}, consolidated"
    yield bytes_ratio(what, pack_bytes(base), pack_bytes(before), "packs", 1)
    yield _files_ratio(what, base, before)
    yield _reading(bench, what, base, before)
    shutil.copytree(before, after)  # git finds no deltas between objects of one and the same pack
    _gc(after)
    _deep_repack(base)
    what = f"{count}, deeply repacked"
    yield bytes_ratio(what, pack_bytes(base), pack_bytes(after), "git gc", 1.1)
    yield _reading(bench, what, base, before)
    _check_kept(base, bench.scale.kept)
    keep = Policy(max_points=0, burst_hours=0, burst_turns=0)
    spent = seconds(lambda: prune(Store.open(before), keep, time.time_ns()))
    yield within(f"{count}, time to prune all but the newest", [spent], PRUNE_MS)


def _files_ratio(what: str, base: str, before: str) -> Result:
    now, then = (sum(len(names) for _, _, names in os.walk(top)) for top in (base, before))
    ratio = now / then
    target = Target("<=", 1)
    return Result(f"{what}, files", now, then, "packs", ratio, ratio, ratio, target, "")


def _many_snapshots(bench: Bench) -> str:
    """Most changes are in a few hot files, some anywhere, and now and then there are many."""
    root = bench.copy_of(bench.scale.small)
    ours, edits = Turnmark(bench.place("store"), root, sync=False), Edits(root)
    rng, hot = random.Random(SEED), edits.files[: bench.scale.hot]
    ours.take()
    for number in range(1, bench.scale.kept):
        many = min(BURST_FILES, len(edits.files)) if number % BURST_EVERY == 0 else 0
        paths = edits.change(many or rng.randint(0, 4)) + rng.sample(hot, rng.randint(1, 16))
        for path in paths:
            edits.edit(path)
        ours.take(paths)
    ours.close()
    return ours.base


def _reading(bench: Bench, what: str, now: str, before: str) -> Result:
    oids = _some_blobs(Store.open(before), bench.scale.blobs)
    found = in_turns(5, lambda: None, partial(_read, now, oids), partial(_read, before, oids))
    return found.costs(f"{what}, read {len(oids):,} blobs", 1, "packs")


def _read(base: str, oids: list[Oid]) -> None:
    store = Store.open(base)
    for oid in oids:
        store.blob(oid)


def _some_blobs(store: Store, count: int) -> list[Oid]:
    every = sorted({oid for pack in store.packs() for oid in pack.oids()})
    random.Random(SEED).shuffle(every)
    found: list[Oid] = []
    for oid in every:
        if store.read(oid)[0] == "blob":
            found.append(oid)
        if len(found) == count:
            break
    return found


def _deep_repack(base: str) -> None:
    found = deep_repack(Store.open(base))
    if found.errors:
        raise Wrong(f"deep repack: {'; '.join(found.errors)}")


def _gc(base: str) -> None:
    subprocess.run(
        ["git", "--git-dir", base, "gc", "--quiet"], env=QUIET_GIT, capture_output=True, check=True
    )


def _check_kept(base: str, count: int) -> None:
    """Nothing is missing, for us or for git."""
    store = Store.open(base)
    for workspace in os.listdir(f"{base}/turnmark/workspaces"):
        found = list(History(store, workspace.removesuffix(".json")).snapshots())
        if len(found) != count:
            raise Wrong(f"{len(found)} of {count} snapshots are left.")
    check_store(base)


def copies(bench: Bench) -> Iterator[Result]:
    """One tree in ten workspaces; the contents are hard links, which no snapshot notices.

    They go before other rows use the tree: files with several names are looked at in each turn.
    """
    files = bench.scale.small
    base, sizes = bench.place("store"), []
    for _ in range(WORKSPACES):
        root = bench.copy_of(files, link=True)
        ours = Turnmark(base, root)
        ours.take()
        ours.close()
        shutil.rmtree(root)
        sizes.append((bytes_below(f"{base}/objects"), bytes_below(base)))
    (one, one_all), (ten, ten_all) = sizes[0], sizes[-1]
    what = f"ten workspaces with the same {files:,}"
    yield bytes_ratio(f"{what}, objects", ten, one, "one", 1.1)
    yield bytes_ratio(f"{what}, with stat caches", ten_all, one_all, "one", None)


def bytes_below(top: str) -> int:
    """The sum of the sizes of all files."""
    walk = ((above, name) for above, _, names in os.walk(top) for name in names)
    return sum(os.lstat(os.path.join(above, name)).st_size for above, name in walk)


def pack_bytes(base: str) -> int:
    """Of packs and their indexes; what git puts beside them is not held against it."""
    with os.scandir(f"{base}/objects/pack") as found:
        return sum(e.stat().st_size for e in found if e.name.endswith((".pack", ".idx")))
