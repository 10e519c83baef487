"""What a part of the campaign is, and how one is run: in a process of its own, with its figures.

Knows no part. The process of a part writes its figures into a file, also while it is at work, so
that one which hangs or dies still tells how far it came; both are violations. A part that needs
mounts gets a mount namespace of its own: what it mounted goes when it goes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from .needs import MOUNTS, missing
from .volume import ram

Size = Literal["ci", "night", "release"]
SIZES: tuple[Size, ...] = ("ci", "night", "release")
SOFT_MINUTES: Mapping[Size, float] = {"ci": 4, "night": 110, "release": 24 * 60}
"""After so long a part begins nothing new; what it did not come to is seen in the table."""
PATIENCE = 150.0
"""So many seconds later it counts as hanging."""
MOST_TOLD = 20
MEMORY_MB = 2048


@dataclass
class Figures:
    """What a part did, what it found wrong (nothing, when all is well), what else it counted."""

    done: int = 0
    found: list[str] = field(default_factory=list)
    notes: dict[str, int] = field(default_factory=dict)
    wanted: int | None = None
    """How much there turned out to be, where a part does all there is."""

    def count(self, what: str, more: int = 1) -> None:
        self.notes[what] = self.notes.get(what, 0) + more


@dataclass(frozen=True)
class Job:
    """Where a part works, what it draws its luck from, and how much is wanted of it."""

    scratch: Path
    seed: int
    count: int
    until: float = float("inf")
    """On the monotonic clock: after it, nothing new is begun."""
    figures_file: Path | None = None

    def rng(self, *what: object) -> random.Random:
        return random.Random("-".join(map(str, (self.seed, *what))))

    def turns(self, figures: Figures, count: int | None = None) -> Iterator[int]:
        """1, 2, … until the count is reached, time is up, or enough was found wrong.

        The figures so far are kept before each; what was done is counted by whoever asks for more.
        """
        for number in range(1, (self.count if count is None else count) + 1):
            if time.monotonic() > self.until or len(figures.found) >= MOST_TOLD:
                return
            yield number
            figures.done += 1
            self.keep(figures)

    def keep(self, figures: Figures) -> None:
        """Leaves the figures where they are found if this process does not come to its end."""
        if self.figures_file is not None:
            fresh = self.figures_file.with_suffix(".new")
            fresh.write_text(json.dumps(asdict(figures)))
            fresh.rename(self.figures_file)


@dataclass(frozen=True)
class Part:
    """One kind of fault: its name, what it shows, how to run it, how much of it in each size."""

    name: str
    title: str
    run: Callable[[Job], Figures]
    counts: Mapping[Size, int]
    needs: tuple[str, ...] = ()
    in_memory: bool = False
    """Its scratch is memory, where mounts can be had: it is about calls, not about a disk."""


@dataclass(frozen=True)
class Row:
    """What became of a part: one line of the table."""

    name: str
    title: str
    wanted: int
    figures: Figures
    seconds: float
    not_run: str = ""
    """Why, if it was not."""


def run_part(part: Part, job: Job, limit: float) -> Row:
    """In a child, under a limit; whatever happens to the child, there is a row."""
    lacking = missing(part.needs)
    if lacking:
        return Row(part.name, part.title, job.count, Figures(), 0.0, lacking)
    if not job.count:
        return Row(part.name, part.title, 0, Figures(), 0.0, "not in this size")
    begun = time.monotonic()
    job.scratch.mkdir(parents=True)
    ended = _child(part, job, limit)
    figures = _read_figures(_figures_path(job.scratch))
    if ended:
        figures.found.append(f"{ended}; see {_log_path(job.scratch)}")
    wanted = job.count if figures.wanted is None else figures.wanted
    return Row(part.name, part.title, wanted, figures, time.monotonic() - begun)


def _child(part: Part, job: Job, limit: float) -> str:
    """Runs the part; returns what was wrong with the way it ended."""
    apart = MOUNTS in part.needs or _in_memory(part)
    private = ("unshare", "-m") if apart else ()
    order = [part.name, str(job.seed), str(job.count), str(limit), str(job.scratch)]
    with _log_path(job.scratch).open("wb") as log:
        child = subprocess.Popen(
            [*private, sys.executable, "-m", "tests.campaign.frame", *order],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            status = child.wait(limit + PATIENCE)
        except BaseException as error:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            return f"hung: not at its end {PATIENCE:.0f} s after its time was up"
    return f"ended by itself with {status}" if status else ""


def _in_memory(part: Part) -> bool:
    return part.in_memory and not missing((MOUNTS,))


def _log_path(scratch: Path) -> Path:
    return scratch.with_name(scratch.name + ".log")


def _figures_path(scratch: Path) -> Path:
    return scratch.with_name(scratch.name + ".json")


def _read_figures(path: Path) -> Figures:
    return Figures(**json.loads(path.read_text())) if path.exists() else Figures()


def run_module(module: str, order: Sequence[str], scratch: Path, env: Mapping[str, str]) -> Figures:
    """A part of a part, in a process and a mount namespace of its own, with its environment."""
    done = subprocess.run(
        ["unshare", "-m", sys.executable, "-m", module, *order],
        stdin=subprocess.DEVNULL,
        env={**os.environ, **env},
        check=False,
    )
    figures = _read_figures(_figures_path(scratch))
    if done.returncode:
        figures.found.append(f"{module} {' '.join(order)} ended by itself with {done.returncode}")
    return figures


def summary(row: Row) -> str:
    if row.not_run:
        return f"{row.name}: not run: {row.not_run}"
    notes = ", ".join(f"{count:,} {what}" for what, count in sorted(row.figures.notes.items()))
    verdict = f"{len(row.figures.found)} VIOLATIONS" if row.figures.found else "all well"
    done = f"{row.name}: {row.figures.done:,} of {row.wanted:,} in {row.seconds:.0f} s: {verdict}"
    return f"{done} ({notes})" if notes else done


def repeated(found: list[str]) -> list[str]:
    """Each violation once, with how often it came."""
    return [
        f"{text} ({times} times)" if times > 1 else text for text, times in Counter(found).items()
    ]


def main(arguments: list[str]) -> int:
    """The child: `python -m tests.campaign.frame NAME SEED COUNT SECONDS SCRATCH`."""
    from .parts import PARTS

    name, seed, count, seconds, scratch = arguments
    (part,) = (one for one in PARTS if one.name == name)
    path = _figures_path(Path(scratch))
    until = time.monotonic() + float(seconds)
    job = Job(Path(scratch), int(seed), int(count), until, path)
    if _in_memory(part):
        ram(job.scratch, MEMORY_MB)
    try:
        figures = part.run(job)
    except BaseException:  # noqa: BLE001 - whatever it was, it is told as a violation
        traceback.print_exc()
        _keep_for_a_look(part, job)
        return 1
    job.keep(figures)
    if figures.found:
        _keep_for_a_look(part, job)
    return 0


def _keep_for_a_look(part: Part, job: Job) -> None:
    """What lies in memory goes with this process."""
    if _in_memory(part):
        with tarfile.open(job.scratch.with_suffix(".tar"), "w") as kept:
            kept.add(job.scratch, arcname=part.name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
