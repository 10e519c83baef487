"""Power cuts: the file system of the store and of the tree goes down in the middle of everything.

A cut is the shutdown call of ext4 and xfs, in three ways: all flushed, only the log, nothing. What
was not synced is then gone, as after a real one. The user's own writes are synced before each
command, so that all of them must be there again. Half of the cuts come within a moment of an
acknowledgement: that is when a promise that was made too early shows.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

from .child import in_child, kill
from .frame import Figures, Job, Part, run_module
from .ground import Ground
from .kills import check_recovery
from .needs import MOUNTS
from .oracle import Judge, Wrong
from .volume import FLUSH_ALL, FLUSH_LOG, FLUSH_NOTHING, FileSystem, Volume, ram
from .worker import work

CUTS = {"nothing flushed": FLUSH_NOTHING, "log flushed": FLUSH_LOG, "all flushed": FLUSH_ALL}
WEIGHTS = (4, 3, 1)
NEW_VOLUME = 60
LONGEST_LIFE = 0.1
LONGEST_WAIT = 1.0


class Site:
    """Owns the volume of the moment, and the judge of what happens on it."""

    def __init__(self, kind: FileSystem, place: Path, number: int) -> None:
        options = "loop,noauto_da_alloc" if kind == "ext4" and number % 2 else "loop"
        self.volume = Volume(kind, place / f"{number}.img", place / f"{number}", options).make()
        ground = Ground(self.volume.where, place / f"{number}.told", cut=True).build()
        self.judge = Judge(ground)

    def close(self) -> None:
        self.volume.unmount()
        self.volume.image.unlink()
        shutil.rmtree(self.judge.ground.told)


def powercuts(kind: FileSystem, job: Job) -> Figures:
    figures, site = Figures(), None
    place = ram(job.scratch / "ram", 1024)
    for number in job.turns(figures):
        if site is None or number % NEW_VOLUME == 0:
            if site is not None:
                site.close()
            site = Site(kind, place, number // NEW_VOLUME + number)
        try:
            one_cut(job, site, number, figures)
        except (Wrong, AssertionError) as wrong:
            figures.found.append(f"cut {number}: {wrong}")
            site.close()
            site = None
    if site is not None:
        site.close()
    return figures


def one_cut(job: Job, site: Site, number: int, figures: Figures) -> None:
    rng = job.rng("cut", number)
    (how,) = rng.choices(list(CUTS), WEIGHTS)
    before = site.judge.words["ack"]
    cut_off(site, rng, f"{job.seed}-{number}", CUTS[how])
    site.judge.read_on()
    figures.count(how)
    figures.count("acknowledgements", site.judge.words["ack"] - before)
    site.judge.check_tree()
    site.judge.check_store()
    if rng.random() < 0.5:
        check_recovery(site.judge, f"{job.seed}-{number}-after")


def cut_off(site: Site, rng: random.Random, seed: str, flush: int) -> None:
    """Down and up again, with somebody at work; the mount brings the journal up to date."""
    pid = in_child(partial(work, site.judge.ground, seed))
    if rng.random() < 0.5:
        wait_for_ack(site.judge.ground.oracle, pid)
        time.sleep(rng.random() * 0.002)
    else:
        time.sleep(0.004 + rng.random() * LONGEST_LIFE)
    site.volume.cut(flush)
    kill(pid)
    site.volume.unmount()
    site.volume.mount()


def wait_for_ack(oracle: Path, pid: int) -> None:
    """Until the worker was given one more acknowledgement than it had."""
    offset = oracle.stat().st_size if oracle.exists() else 0
    deadline = time.monotonic() + LONGEST_WAIT
    while time.monotonic() < deadline:
        if oracle.exists():
            with oracle.open("rb") as file:
                file.seek(offset)
                if b"\nack " in file.read():
                    return
        time.sleep(0.0005)


def run_powercut(
    env: Mapping[str, str],
    patches: Sequence[str] = (),
    *,
    kind: FileSystem = "ext4",
    cuts: int = 40,
    seed: int = 1,
    scratch: Path | None = None,
) -> Figures:
    """The same, in a process whose environment or code was spoiled on purpose.

    A patch is named `module:function`, which is called before anything else. The figures should
    then have violations: a campaign that does not see what is missing proves nothing.
    """
    place = Path(tempfile.mkdtemp(prefix="spoiled-", dir=scratch))
    order = [kind, str(cuts), str(seed), str(place / "cuts"), *patches]
    return run_module("tests.campaign.powercut", order, place / "cuts", env)


def main(arguments: Sequence[str]) -> int:
    """The spoiled child: `python -m tests.campaign.powercut KIND CUTS SEED SCRATCH PATCH…`."""
    kind, cuts, seed, scratch, *patches = arguments
    for patch in patches:
        module, _, function = patch.partition(":")
        getattr(import_module(module), function)()
    path = Path(scratch)
    path.mkdir(parents=True)
    job = Job(path, int(seed), int(cuts), figures_file=path.with_suffix(".json"))
    assert kind in ("ext4", "xfs")
    job.keep(powercuts(kind, job))  # type: ignore[arg-type]
    return 0


EXT4 = Part(
    "powercut-ext4",
    "power cut on ext4, in three ways, while it runs every command",
    partial(powercuts, "ext4"),
    {"ci": 120, "night": 1_000, "release": 3_000},
    needs=(MOUNTS, "loop", "ext4", "git"),
)
XFS = Part(
    "powercut-xfs",
    "the same on xfs",
    partial(powercuts, "xfs"),
    {"ci": 60, "night": 1_000, "release": 3_000},
    needs=(MOUNTS, "loop", "xfs", "git"),
)

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
