"""The command: chooses rows, prints the tables, and fails if any result was wrong."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TypeVar

from core.errors import TurnmarkError

from . import rows_growth, rows_side
from .apart import Failed, apart
from .bench import QUICK, Bench, Scale
from .chart import chart
from .contenders import Wrong
from .measure import Result, settle_with
from .report import compared, read_run, side, side_head, single, single_head
from .rows_journal import NotHere, journal
from .rows_keep import copies, kept, listing, rolled_back
from .rows_kept import kept_beside
from .rows_revert import previewed, reverted
from .rows_service import service, service_burst
from .rows_undo import history
from .rows_write import (
    changed_1,
    changed_20,
    changed_1000,
    first_large,
    first_small,
    limits,
    memory,
    nothing_changed,
)

Row = Callable[[Bench], Iterator[Result]]
SideRow = Callable[[Bench], Iterator[list[Result]]]

ROWS: dict[str, Row] = {
    "first-small": first_small,
    "first-large": first_large,
    "changed-1": changed_1,
    "changed-20": changed_20,
    "changed-1000": changed_1000,
    "nothing": nothing_changed,
    "rollback": rolled_back,
    "revert": reverted,
    "preview": previewed,
    "limits": limits,
    "journal": journal,
    "memory": memory,
    "list": listing,
    "history": history,
    "kept": kept,
    "copies": copies,
    "service": service,
    "service-burst": service_burst,
    "growth-files": rows_growth.with_files,
    "growth-changes": rows_growth.with_changes,
    "growth-snapshots": rows_growth.with_snapshots,
    "growth-workspaces": rows_growth.with_workspaces,
}
SIDES: dict[str, SideRow] = {
    "side-small": rows_side.small,
    "side-large": rows_side.large,
    "side-kept": kept_beside,
    "side-tiny": rows_side.tiny,
    "side-packages": rows_side.packages,
    "side-directories": rows_side.directories,
    "side-binaries": rows_side.binaries,
    "side-modules": rows_side.modules,
}
MILLION = 1_000_000
MINUTES = 120
T = TypeVar("T", Result, list[Result])


def main() -> int:
    parser = _parser()
    arguments = parser.parse_args()
    every = [*ROWS, *SIDES]
    asked = arguments.rows.split(",") if arguments.rows else every
    if unknown := [name for name in asked if name not in every]:
        print(f"No such row: {', '.join(unknown)}. There are: {', '.join(every)}.", file=sys.stderr)
        return 64
    names = [name for name in every if name in asked]  # in their order: some share a tree
    older = read_run(arguments.compare) if arguments.compare else None
    with tempfile.TemporaryDirectory(prefix="turnmark-bench-") as own:
        scratch = arguments.scratch or own
        os.makedirs(scratch, exist_ok=True)
        with closing(Bench(scratch, _scale(arguments))) as bench:
            run = Run(bench, judge=not arguments.quick, minutes=arguments.minutes)
            run.sides([name for name in names if name in SIDES])
            run.singles([name for name in names if name in ROWS])
    _write(arguments, run, bench.scale)
    for line in compared(older, run.results) if older is not None else ():
        print(line)
    return 1 if run.wrong else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="also write the results there")
    parser.add_argument("--chart", metavar="FILE.svg", help="also draw the largest tree's rows")
    parser.add_argument("--compare", metavar="OLD.json", help="say what changed since that run")
    parser.add_argument("--quick", action="store_true", help="small trees: checks results only")
    parser.add_argument("--growth", action="store_true", help="growth also to a million files")
    parser.add_argument(
        "--minutes",
        type=float,
        default=MINUTES,
        help="begin no row after so many; default %(default)s",
    )
    parser.add_argument("--rows", metavar="NAME,...", help=f"of {', '.join([*ROWS, *SIDES])}")
    parser.add_argument("--scratch", metavar="DIR", help="keeps the trees there between runs")
    return parser


def _scale(arguments: argparse.Namespace) -> Scale:
    if arguments.quick:
        settle_with(None)
        return QUICK
    scale = Scale()
    if arguments.growth:
        scale = dataclasses.replace(scale, growth=(*scale.growth, MILLION))
    return scale


class Run:
    """Owns what was measured, row by row, and what went wrong."""

    def __init__(self, bench: Bench, *, judge: bool, minutes: float) -> None:
        self.bench = bench
        self.judge = judge
        self.end = time.monotonic() + 60 * minutes
        self.results: list[Result] = []
        self.beside: list[list[Result]] = []
        self.wrong: list[str] = []
        self.not_run: list[str] = []
        self.seconds: dict[str, float] = {}

    def singles(self, names: list[str]) -> None:
        if names:
            _say(single_head())
        for name in names:
            self._each(name, ROWS[name], self._single)

    def _single(self, result: Result) -> None:
        self.results.append(result)
        _say(single(result, judge=self.judge))

    def sides(self, names: list[str]) -> None:
        if names:
            _say(f"\n{side_head()}")
        for name in names:
            self._each(name, partial(apart, SIDES[name]), self._side)

    def _side(self, row: list[Result]) -> None:
        self.results += row
        self.beside.append(row)
        _say(side(row, judge=self.judge))

    def _each(
        self, name: str, rows: Callable[[Bench], Iterator[T]], each: Callable[[T], None]
    ) -> None:
        """One that goes wrong says so, and does not cost the others theirs."""
        begun = time.monotonic()
        if begun > self.end:
            self.not_run.append(name)
            return
        try:
            for found in rows(self.bench):
                each(found)
        except NotHere as lack:
            _say(f"NOT RUN: {name}: {lack}")
        except (Wrong, TurnmarkError, Failed) as error:
            self.wrong.append(f"{name}: {error}")
            _say(f"WRONG {self.wrong[-1]}")
        self.seconds[name] = time.monotonic() - begun


def _say(line: str) -> None:
    print(line, flush=True)


def _write(arguments: argparse.Namespace, run: Run, scale: Scale) -> None:
    """What the run was asked to leave behind."""
    spent = ", ".join(f"{name} {seconds:.0f}" for name, seconds in run.seconds.items())
    _say(f"\nseconds: {spent}; {sum(run.seconds.values()):.0f} in all")
    if run.not_run:
        _say(f"NOT RUN, since the time was over: {', '.join(run.not_run)}")
    if arguments.json:
        _save(arguments.json, run, quick=arguments.quick)
    if arguments.chart:
        _draw(arguments.chart, run, f"{scale.large:,} files")


def _draw(path: str, run: Run, label: str) -> None:
    rows = [row for row in run.beside if row[0].what.startswith(f"{label}: ")]
    if rows:
        Path(path).write_text(chart(rows, label), encoding="utf-8")
    else:
        _say(f"No chart was drawn: no row of the tree with {label} was run (side-large).")


def _save(path: str, run: Run, *, quick: bool) -> None:
    doc = {
        "schema": 1,
        "quick": quick,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "seconds": run.seconds,
        "rows": [result.to_json(judge=not quick) for result in run.results],
        "wrong": run.wrong,
        "not_run": run.not_run,
    }
    Path(path).write_text(json.dumps(doc, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
