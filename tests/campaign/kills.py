"""SIGKILL at random instants of a process that runs every command; nothing is lost, ever.

After each death the judge looks. Half of the time the next command is then run to its end; else
the next life begins at once, and may be killed while it finishes what the last one left.
"""

from __future__ import annotations

import time
from functools import partial

from .child import in_child, kill, wait_for
from .frame import Figures, Job, Part
from .ground import Ground
from .oracle import Judge, Wrong
from .worker import recover, work

CHECK_EVERY = 25
LONGEST_LIFE = 0.12
NEW_GROUND = 500


def kills(job: Job) -> Figures:
    figures = Figures()
    judge = None
    for number in job.turns(figures):
        if judge is None or number % NEW_GROUND == 0:
            judge = Judge(Ground(job.scratch / f"g{number}", job.scratch / f"t{number}").build())
        try:
            one_death(job, judge, number, figures)
        except (Wrong, AssertionError) as wrong:
            figures.found.append(f"kill {number}: {wrong}")
            judge = None
    return figures


def one_death(job: Job, judge: Judge, number: int, figures: Figures) -> None:
    rng = job.rng("life", number)
    die_after(judge.ground, f"{job.seed}-{number}", 0.004 + rng.random() * LONGEST_LIFE)
    before = judge.words.copy()
    judge.read_on()
    judge.check_tree()
    figures.count(f"in {judge.verb or 'between commands'}")
    if rng.random() < 0.5:
        check_recovery(judge, f"{job.seed}-{number}-after")
    if number % CHECK_EVERY == 0 or number == job.count:
        figures.notes["snapshots checked"] = judge.check_store()
    figures.count("acknowledgements", judge.words["ack"] - before["ack"])


def die_after(ground: Ground, seed: str, seconds: float) -> None:
    pid = in_child(partial(work, ground, seed))
    time.sleep(seconds)
    if kill(pid) >= 0:
        raise Wrong(f"a worker failed by itself (seed {seed})")


def check_recovery(judge: Judge, seed: str) -> None:
    """The next command works, with no manual step, and leaves nothing in between."""
    pid = in_child(partial(recover, judge.ground, seed))
    if wait_for(pid):
        raise Wrong(f"the command after a death in {judge.verb} failed (seed {seed})")
    judge.read_on()
    judge.check_tree()


PART = Part(
    "kills",
    "killed at a random instant while it runs every command",
    kills,
    {"ci": 300, "night": 3_000, "release": 10_000},
    needs=("git",),
    in_memory=True,
)
