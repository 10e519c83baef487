"""The campaign must be able to fail: with syncs that do nothing, power cuts have to show losses.

A library of our own, preloaded, answers every fsync, fdatasync, sync, syncfs and msync with success
and does nothing. The user's files are synced by the bare system call all the same: whatever is
lost is turnmark's. No violation in enough cuts is the violation here.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from .frame import Figures, Job, Part, run_module
from .needs import MOUNTS
from .powercut import run_powercut

LIBRARY = """
#include <stddef.h>
int fsync(int fd) { return 0; }
int fdatasync(int fd) { return 0; }
int syncfs(int fd) { return 0; }
int msync(void *start, size_t length, int flags) { return 0; }
int sync_file_range(int fd, long long from, long long bytes, unsigned flags) { return 0; }
void sync(void) {}
"""
CUTS = 40
BETWEEN_WRITES = {"blocks": "between writes", "blocks-plain": "between those without a journal"}


def build(place: Path) -> Path:
    source, library = place / "unsynced.c", place / "unsynced.so"
    source.write_text(LIBRARY)
    order = ["gcc", "-shared", "-fPIC", "-w", "-o", str(library), str(source)]
    subprocess.run(order, check=True)
    return library


def unsynced(job: Job) -> Figures:
    """Counts the cuts made; what they found is noted, and is wrong only if it is nothing."""
    figures = Figures()
    env = {"LD_PRELOAD": str(build(job.scratch))}
    for number in job.turns(figures):
        seed = job.seed + number
        found = run_powercut(env, cuts=CUTS, seed=seed, scratch=job.scratch).found
        expected(figures, "by cuts", found)
        for name, how in BETWEEN_WRITES.items():
            place = job.scratch / f"{name}-{number}"
            place.mkdir()
            order = [name, str(seed), str(CUTS), "600", str(place)]
            found = run_module("tests.campaign.frame", order, place, env).found
            expected(figures, how, found)
    return figures


def expected(figures: Figures, how: str, found: list[str]) -> None:
    """Only losses count: a part that broke down has seen nothing."""
    losses = [text for text in found if "ended by itself" not in text]
    figures.count(f"losses seen {how}", len(losses))
    if not losses:
        figures.found.append(f"no loss was seen {how} without any sync, in {CUTS}: {found}")


PART = Part(
    "unsynced",
    "power cuts with every sync made a lie: losses must be seen",
    unsynced,
    {"ci": 1, "night": 5, "release": 10},
    needs=(MOUNTS, "loop", "fuse", "ext4", "git", "gcc"),
)
