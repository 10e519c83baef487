"""A file system that is really full, of bytes or of inodes, under the store and the tree.

Each time the room is a little more than what is used: at some command it ends. That command may
refuse; what it was told to do is then as far as it says, and once there is room again the next one
works. The user's own writes fail as well meanwhile, which is his to see, and not ours to lose.
"""

from __future__ import annotations

import os
import random
from functools import partial
from pathlib import Path

from core.errors import TurnmarkError

from .child import in_child, wait_for
from .frame import Figures, Job, Part
from .ground import Ground
from .kills import check_recovery
from .needs import MOUNTS
from .oracle import Judge, Wrong
from .volume import call
from .worker import at_work

LIVES_PER_GROUND = 40
STEPS = 12
PAGE = 4096
PLENTY_PAGES, PLENTY_INODES = 32_768, 100_000


def full(job: Job) -> Figures:
    figures, judge = Figures(), None
    for number in job.turns(figures):
        if judge is None or number % LIVES_PER_GROUND == 0:
            judge = on_memory(job.scratch / str(number))
        try:
            one_filling(job, judge, number, figures)
        except (Wrong, AssertionError) as wrong:
            figures.found.append(f"filling {number}: {wrong}")
            judge = None
    return figures


def on_memory(place: Path) -> Judge:
    place.mkdir()
    call("mount", "-t", "tmpfs", "turnmark-campaign", str(place))
    room(place, PLENTY_PAGES, PLENTY_INODES)
    return Judge(Ground(place / "ground", place.with_name(place.name + ".told")).build())


def room(place: Path, pages: int, inodes: int) -> None:
    options = f"remount,size={pages * PAGE},nr_inodes={inodes}"
    call("mount", "-o", options, str(place))


def one_filling(job: Job, judge: Judge, number: int, figures: Figures) -> None:
    rng, place = job.rng("full", number), judge.ground.base.parent
    used = os.statvfs(place)
    pages, inodes = used.f_blocks - used.f_bfree, used.f_files - used.f_ffree
    if rng.random() < 0.5:
        room(place, pages + rng.randint(1, 40), PLENTY_INODES)
    else:
        room(place, PLENTY_PAGES, inodes + rng.randint(1, 40))
    status = wait_for(in_child(partial(fill, judge.ground, f"{job.seed}-{number}")))
    if status:
        raise Wrong("an error that is none of ours came out")
    before = judge.words["refused"]
    judge.read_on()
    figures.count("refusals", judge.words["refused"] - before)
    judge.check_tree()
    room(place, PLENTY_PAGES, PLENTY_INODES)
    check_recovery(judge, f"{job.seed}-{number}-after")
    judge.check_store()


def fill(ground: Ground, seed: str) -> None:
    """One command after the other, until one refuses."""
    try:
        with at_work(ground, random.Random(seed)) as worker:
            worker.trouble = True
            worker.say("found", worker.image())
            try:
                for _ in range(STEPS):
                    worker.change_tree()
                    worker.step()
            except (TurnmarkError, OSError):
                worker.say("refused")
    except (TurnmarkError, OSError):
        return  # not even opened: there is nothing to tell


PART = Part(
    "full",
    "no room left, of bytes or of inodes, in the middle of any command",
    full,
    {"ci": 20, "night": 500, "release": 2_000},
    needs=(MOUNTS, "git"),
)
