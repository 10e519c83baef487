"""The oracle of the watcher: what is known by events equals what a full look finds, every time.

`python -m tests.fuzz --seconds 600 --seed 1 [--links] [--overflows] [--watches 40] [--dir DIR]`
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import core.beneath
import watcher.source
from core.diff import files_of
from core.errors import TurnmarkError
from core.model import EMPTY_TREE, Oid, RelPath
from core.objects import hash_object
from core.recorder import Recorder, Seen
from core.rules import RuleSet
from tests.stores import Bench
from watcher.burst import Dirty
from watcher.source import Hub, TreeSource

CHURN = os.path.join(os.path.dirname(__file__), "churn.py")
OVERFLOW = struct.pack("iIII", -1, 0x4000, 0, 0)
RULES = RuleSet(exclude=("node_modules/", "target/", "*.tmp"), protect=("kept/",))


class Writers:
    """Owns some churning processes: they work when told, and are waited for."""

    def __init__(self, root: Path, outside: Path, seed: int, count: int, *, links: bool) -> None:
        outside.mkdir(exist_ok=True)
        self.operations = 0
        self.processes = [
            subprocess.Popen(
                [
                    *(sys.executable, "-S", CHURN, str(root), str(outside)),
                    *(str(seed * 100 + number), str(int(links))),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                bufsize=1,
            )
            for number in range(count)
        ]

    def __enter__(self) -> Writers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()

    def begin(self, seconds: float) -> None:
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.write(f"{seconds}\n")

    def wait(self) -> None:
        for process in self.processes:
            assert process.stdout is not None
            self.operations += int(process.stdout.readline())


@dataclass
class Figures:
    """What a run came to."""

    rounds: int = 0
    operations: int = 0
    entries: int = 0
    looks: int = 0
    full: int = 0
    failed: int = 0
    overflows: int = 0
    unwatched: int = 0
    barriers: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        times = sorted(self.barriers) or [0.0]
        middle, longest = 1e3 * times[len(times) // 2], 1e3 * times[-1]
        return (
            f"{self.rounds} rounds, {self.operations} operations, {len(self.wrong)} WRONG; "
            f"{self.looks} looks, {self.full} of them full, {self.failed} failed; "
            f"up to {self.entries} files, {self.overflows} overflows, {self.unwatched} unwatched; "
            f"barrier p50 {middle:.2f} ms, max {longest:.1f} ms"
        )


class Fuzz:
    """Owns one workspace that is watched while others change it."""

    def __init__(self, base: Path, seed: int, *, overflows: bool = False) -> None:
        self.bench = Bench(base, RULES)
        self.random = random.Random(seed)
        self.figures = Figures()
        self.hub = Hub(str(base / "cookies"))
        if overflows:
            inject_overflows(self.hub, self.random)
        self.source: TreeSource = self.hub.open(self.bench.root.path, RULES, lambda: None)
        self.recorder: Recorder = self.bench.recorder
        self.recorder.take(sync=False)

    def close(self) -> None:
        self.source.close()
        self.hub.close()
        self.bench.close()

    def round(self, writers: Writers) -> None:
        seconds = self.random.choice((0.01, 0.03, 0.1, 0.3))
        writers.begin(seconds)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.hub.barrier(self.random.choice((0.002, 0.01, 0.05)))
            self.look(self.source.take())
        writers.wait()
        self.boundary()
        self.figures.rounds += 1
        self.figures.operations = writers.operations

    def boundary(self) -> None:
        begun = time.perf_counter()
        passed = self.source.barrier(10.0)
        self.figures.barriers.append(time.perf_counter() - begun)
        dirty = self.source.take()
        self.look(dirty)
        if not passed or self.source.trouble:
            self.figures.wrong.append(f"no barrier: {self.source.trouble} {self.hub.failure}")
        for seen, name in ((self.recorder.look(), "with records"), (self.anew(), "without")):
            self.compare(seen, name, dirty)
        self.figures.overflows = self.source.overflows
        self.figures.unwatched = max(self.figures.unwatched, len(self.source.blind()))

    def look(self, dirty: Dirty) -> None:
        paths = dirty.paths()
        if paths is not None:
            paths = self.all_names(paths, dirty)
        try:
            self.recorder.take(paths, sync=False)
        except TurnmarkError:  # a directory went away under the look; the loop tries again
            self.figures.failed += 1
            self.recorder.take(None, sync=False)
        self.figures.looks += 1
        self.figures.full += paths is None
        self.figures.entries = max(self.figures.entries, self.recorder.tree.files)

    def all_names(self, paths: list[RelPath], dirty: Dirty) -> list[RelPath] | None:
        """As the workspace does it: a new hard link needs a full look."""
        always = self.recorder.always
        for path in dirty.files - always:
            try:
                if os.lstat(self.bench.root.path + b"/" + path).st_nlink > 1:
                    return None
            except OSError:
                continue
        return sorted({*paths, *always, *self.source.blind()})

    def anew(self) -> Seen:
        """By somebody who has never looked at this workspace."""
        fresh = Recorder(self.bench.store, self.bench.root, RULES)
        try:
            fresh.tree.forget()
            fresh.tree.usual = self.recorder.tree.usual
            return fresh.look()
        finally:
            fresh.close()

    def compare(self, seen: Seen, name: str, dirty: Dirty) -> None:
        last = self.recorder.last
        assert last is not None
        if (seen.files, hash_object("blob", seen.about)) == (last.files, last.about):
            return
        differing = self.differing(seen, last.files)
        if not differing:
            old = self.bench.store.blob(last.about).splitlines()
            new = seen.about.splitlines()
            differing = [repr(line) for line in {*old} ^ {*new}]
        self.figures.wrong.append(
            f"round {self.figures.rounds}, {name}: {len(differing)} differ: {differing[:4]}; "
            f"dirty {len(dirty.files)} {len(dirty.trees)} {dirty.lost}"
        )
        self.recorder.take(None, sync=False)

    def differing(self, seen: Seen, files: Oid) -> list[str]:
        def read(oid: Oid) -> bytes:
            found = seen.trees.get(oid)
            return self.bench.store.tree(oid) if found is None else found

        now = set(files_of(read, seen.files)) if seen.files != EMPTY_TREE else set()
        then = set(files_of(read, files)) if files != EMPTY_TREE else set()
        return sorted({os.fsdecode(path) for path, _ in now ^ then})


def inject_overflows(hub: Hub, rnd: random.Random) -> None:
    """Now and then a batch of events is dropped, and the kernel's word for it put in its place."""
    reader: Any = hub.reader
    read = reader._read_event_buffer

    def dropping(size: int) -> bytes:
        found: bytes = read(size)
        return OVERFLOW if found and rnd.random() < 0.03 else found

    reader._read_event_buffer = dropping


@contextmanager
def hurried(open_dirs: int) -> Iterator[None]:
    """Lost watches are tried again soon, and few directories are kept open by a look."""
    old = watcher.source.RETRY_SECONDS, core.beneath.OPEN_DIRS
    watcher.source.RETRY_SECONDS, core.beneath.OPEN_DIRS = 0.1, open_dirs
    try:
        yield
    finally:
        watcher.source.RETRY_SECONDS, core.beneath.OPEN_DIRS = old


def run(
    base: Path,
    seed: int,
    *,
    seconds: float = 0.0,
    rounds: int = 0,
    writers: int = 3,
    links: bool = False,
    overflows: bool = False,
    verbose: bool = False,
) -> Figures:
    """Rounds until the time is over, or that many of them."""
    fuzz = Fuzz(base, seed, overflows=overflows)
    until = time.monotonic() + seconds
    root, outside = fuzz.bench.path, base / "outside"
    try:
        with hurried(4 + seed % 60), Writers(root, outside, seed, writers, links=links) as churning:
            while fuzz.figures.rounds < rounds or time.monotonic() < until:
                known = len(fuzz.figures.wrong)
                fuzz.round(churning)
                if verbose:
                    for line in fuzz.figures.wrong[known:]:
                        print(line, flush=True)
    finally:
        fuzz.close()
    return fuzz.figures


def limited(watches: int, arguments: list[str]) -> list[str]:
    """A command line that runs this with so many watches, in a user namespace of its own."""
    script = f'echo {watches} > /proc/sys/user/max_inotify_watches && exec "$@"'
    return ["unshare", "-Ur", "sh", "-c", script, "sh", sys.executable, *arguments]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--writers", type=int, default=3)
    parser.add_argument("--links", action="store_true")
    parser.add_argument("--overflows", action="store_true")
    parser.add_argument("--watches", type=int, default=0)
    parser.add_argument("--dir", default=tempfile.gettempdir())
    options = parser.parse_args()
    if options.watches:
        rest = ["--watches", "0"]
        command = limited(options.watches, ["-m", "tests.fuzz", *sys.argv[1:], *rest])
        return subprocess.run(command, check=False).returncode
    base = Path(tempfile.mkdtemp(prefix="turnmark-fuzz-", dir=options.dir))
    try:
        figures = run(
            base,
            options.seed,
            seconds=options.seconds,
            writers=options.writers,
            links=options.links,
            overflows=options.overflows,
            verbose=True,
        )
    finally:
        shutil.rmtree(base, ignore_errors=True)
    print(f"seed {options.seed}: {figures}")
    return 1 if figures.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
