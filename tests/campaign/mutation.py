"""Does the campaign see it if the safety is gone? One piece is taken out, and something must fail.

Every mutation names what ought to catch it: a small part of this campaign, power cuts, or named
tests. All of these are first run against the code as it is, where they must be well; then each in
a process that is spoiled. A mutation that nothing catches is a violation: a check is missing.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from .blocks import PLAIN
from .frame import Figures, Job, Part
from .needs import missing
from .powercut import EXT4, run_powercut

ROOT = Path(__file__).parents[2]
AS_IT_IS = "nothing_at_all"
PATIENCE = 240.0
AT_A_TIME = 2


@dataclass(frozen=True)
class Check:
    """Something small that fails if a piece of safety is gone."""

    name: str
    words: tuple[str, ...]

    def fails(self, mutation: str, scratch: Path, seed: int) -> bool:
        if self.words[0] == "power":
            patch = f"tests.campaign.spoil:{mutation}"
            count = int(self.words[1])
            return bool(run_powercut({}, [patch], cuts=count, seed=seed, scratch=scratch).found)
        more = (str(seed), str(scratch)) if self.words[0] == "part" else (f"--basetemp={scratch}",)
        apart = ("unshare", "-m") if self.words[1] == PLAIN.name else ()
        order = [*apart, sys.executable, "-m", "tests.campaign.spoil", mutation, *self.words, *more]
        with scratch.with_suffix(".log").open("wb") as log:
            child = subprocess.Popen(order, cwd=ROOT, stdout=log, stderr=log)
            try:
                return child.wait(PATIENCE) != 0
            except subprocess.TimeoutExpired:  # to hang is to fail
                child.kill()
                child.wait()
                return True

    def lacking(self) -> str:
        if self.words[1] == PLAIN.name:
            return missing(PLAIN.needs)
        return missing(EXT4.needs) if self.words[0] == "power" else ""


def part(name: str, count: int) -> Check:
    return Check(name, ("part", name, str(count)))


def tests(module: str, wanted: str) -> Check:
    return Check(f"test_{module}", ("tests", f"tests/test_{module}.py", "-k", wanted))


POWER = Check("powercut-ext4", ("power", "15"))
UNORDERED = part(PLAIN.name, 200)
RACES = part("races", 16)
PATHS = part("paths", 20_000)
CROWD = part("crowd", 60)
HOSTILE = part("hostile", 6)
ORDER = tests("recorder_faults", "synced or vouches or durable")
LIES = tests("recorder_faults", "lies or does_not_stay")
KILLED = tests("rollback_faults", "killed_at_every")
MOMENTS = tests("attacks", "replaced_after or on_no_other or claims or captured or aliases or git")

CATCHERS: dict[str, tuple[Check, ...]] = {
    "no_directory_sync": (ORDER, POWER),
    "no_file_sync": (ORDER, POWER),
    "no_contents_before_names": (POWER, tests("recorder_faults", "journal_keeps")),
    "no_rounds_of_syncs": (UNORDERED,),
    "no_sync_of_the_log": (tests("ahead", "synced_by_the_system"), POWER),
    "no_log_is_worked_off": (tests("ahead", "power_cut or several or counts_on"), POWER),
    "no_log_is_emptied_before_something_goes": (tests("ahead", "dropped"),),
    "no_doubt_of_packs": (tests("ahead", "vouched_for_before_a_log"),),
    "no_vouching": (tests("recorder_faults", "names_nothing_new or killed_has_named"),),
    "no_memory_of_what_is_unsynced": (ORDER,),
    "no_read_back": (LIES,),
    "no_other_writers_kept_out": (tests("store", "busy or waits or exclusive"), CROWD),
    "no_gate": (tests("store", "starved"),),
    "no_generation": (tests("sweep", "caches_are_told"),),
    "no_note_of_what_was_dropped": (tests("sweep", "noted"), tests("verify", "on_purpose")),
    "no_protection_of_the_newest": (tests("retention", "newest"),),
    "no_barrier": (
        tests("workspace", "boundary or two_names"),
        tests("source", "tight_loop or places"),
    ),
    "no_leases": (tests("scan", "through_a_map"),),
    "no_racy_rule": (tests("scan", "same_tick or just_written"),),
    "no_doubt_of_what_is_held": (tests("scan", "through_a_map"),),
    "a_probe_in_the_workspace": (tests("scan", "writes_nothing"),),
    "no_gaps": (tests("scan", "every_gap or never_a_deletion"),),
    "no_identity_check": (MOMENTS,),
    "no_look_at_what_was_displaced": (tests("races", "swapped_in"), RACES),
    "no_keeping_of_what_was_displaced": (tests("attacks", "displaced or number"), RACES),
    "renames_that_replace": (tests("races", "swapped_in"), RACES),
    "no_guard_of_what_was_not_captured": (tests("rollback", "captured or ignored or rule"),),
    "no_mark_that_it_is_applying": (KILLED,),
    "links_are_followed": (PATHS, tests("races", "swapped")),
    "no_git_aliases": (HOSTILE, MOMENTS),
    "a_hook_that_blocks": (tests("hook", "reaches or mean_nothing"),),
    "files_for_everybody": (tests("store", "private"),),
    "no_look_at_the_peer": (tests("server", "another_user or owner"), HOSTILE),
}
"""Each mutation, and what is to catch it."""


def each(checks: Iterator[tuple[str, Check]], job: Job) -> Iterator[tuple[str, Check, bool]]:
    """Whether each check fails under its mutation; those that need what is missing are left out."""

    def one(number: int, mutation: str, check: Check) -> tuple[str, Check, bool]:
        # Short, as tests make sockets below it; what it was about is in the file beside it.
        scratch = job.scratch / f"{mutation == AS_IT_IS:d}{number}"
        scratch.with_suffix(".about").write_text(f"{mutation}: {check.name} {check.words}\n")
        if check.words[0] == "power":
            scratch.mkdir()
        failed = check.fails(mutation, scratch, job.seed)
        shutil.rmtree(scratch, ignore_errors=True)
        return mutation, check, failed

    wanted = [(m, c) for m, c in checks if not c.lacking()]
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        yield from pool.map(lambda item: one(item[0], *item[1]), enumerate(wanted))


def can_be_spoiled(name: str, figures: Figures) -> bool:
    """A function that has moved on takes its mutation with it: that is to be mended here."""
    order = [sys.executable, "-m", "tests.campaign.spoil", name]
    done = subprocess.run(order, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        figures.found.append(f"{name} spoils nothing any more: {done.stderr[-200:]}")
    return not done.returncode


def run(job: Job) -> Figures:
    """Counts mutations; the table of what caught them is in the scratch directory, and in full in
    what is printed."""
    figures = Figures()
    names = [name for name in CATCHERS if can_be_spoiled(name, figures)]
    chosen = names if job.count >= len(names) else job.rng("mutation").sample(names, job.count)
    checks = {check: None for name in chosen for check in CATCHERS[name]}
    bad = set()
    for _, check, failed in each(((AS_IT_IS, check) for check in checks), job):
        figures.count("checks")
        if failed:
            bad.add(check)
            figures.found.append(f"{check.name} {check.words} fails with the code as it is")
    caught: dict[str, list[str]] = {name: [] for name in chosen}
    pairs = ((name, check) for name in chosen for check in CATCHERS[name] if check not in bad)
    for name, check, failed in each(pairs, job):
        caught[name] += [check.name] if failed else []
        figures.count("caught" if failed else "missed by one of several")
    for name, by in caught.items():
        print(f"{name:40} {', '.join(by) or 'NOTHING'}", flush=True)
        figures.done += 1
        if not by:
            figures.found.append(f"{name}: nothing caught it")
    job.keep(figures)
    return figures


PART = Part(
    "mutation",
    "safety taken out piece by piece: something must fail each time",
    run,
    {"ci": 1, "night": len(CATCHERS), "release": len(CATCHERS)},
    needs=("git",),
)
