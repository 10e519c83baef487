"""The command: chooses rows, prints the table, and fails if any result was wrong."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from core.errors import TurnmarkError

from .bench import QUICK, Bench, Scale
from .contenders import Wrong
from .measure import Result
from .rows_keep import copies, kept, listing, rolled_back
from .rows_service import service, service_burst
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

ROWS: dict[str, Row] = {
    "first-small": first_small,
    "first-large": first_large,
    "changed-1": changed_1,
    "changed-20": changed_20,
    "changed-1000": changed_1000,
    "nothing": nothing_changed,
    "rollback": rolled_back,
    "limits": limits,
    "memory": memory,
    "list": listing,
    "kept": kept,
    "copies": copies,
    "service": service,
    "service-burst": service_burst,
}
HEAD = ("what", "turnmark", "other", "against", "ratio", "spread", "target", "")
WIDTHS = (52, 11, 11, 10, 9, 15, 10, 6)


def main() -> int:
    arguments = _parser().parse_args()
    names = arguments.rows.split(",") if arguments.rows else list(ROWS)
    if unknown := [name for name in names if name not in ROWS]:
        print(f"No such row: {', '.join(unknown)}. There are: {', '.join(ROWS)}.", file=sys.stderr)
        return 64
    with tempfile.TemporaryDirectory(prefix="turnmark-bench-") as own:
        scratch = arguments.scratch or own
        os.makedirs(scratch, exist_ok=True)
        with closing(Bench(scratch, QUICK if arguments.quick else Scale())) as bench:
            results, wrong = _measure(bench, names, judge=not arguments.quick)
    if arguments.json:
        _save(arguments.json, results, wrong, quick=arguments.quick)
    return 1 if wrong else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="also write the results there")
    parser.add_argument("--quick", action="store_true", help="small trees: checks results only")
    parser.add_argument("--rows", metavar="NAME,...", help=f"of {', '.join(ROWS)}")
    parser.add_argument("--scratch", metavar="DIR", help="keeps the trees there between runs")
    return parser


def _measure(bench: Bench, names: list[str], judge: bool) -> tuple[list[Result], list[str]]:
    results: list[Result] = []
    wrong: list[str] = []
    _print(HEAD)
    for name in names:
        try:
            for result in ROWS[name](bench):
                results.append(result)
                _print(_cells(result, judge))
        except (Wrong, TurnmarkError) as error:
            wrong.append(f"{name}: {error}")
            print(f"WRONG {wrong[-1]}", flush=True)
    return results, wrong


def _print(cells: tuple[str, ...]) -> None:
    first, *rest = zip(cells, WIDTHS, strict=True)
    line = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]
    print(" ".join(line), flush=True)


def _cells(result: Result, judge: bool) -> tuple[str, ...]:
    return (
        result.what,
        _amount(result.ours, result.unit),
        "-" if result.other is None else _amount(result.other, result.unit),
        result.against,
        f"{result.ratio:.3g}",
        f"{result.low:.3g}-{result.high:.3g}",
        str(result.target or "-"),
        result.verdict if judge else "",
    )


def _amount(value: float, unit: str) -> str:
    if unit == "s" and value < 1:
        return f"{value * 1000:.2f} ms"
    return f"{value:.2f} {unit}"


def _save(path: str, results: list[Result], wrong: list[str], *, quick: bool) -> None:
    doc = {
        "schema": 1,
        "quick": quick,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "rows": [result.to_json(judge=not quick) for result in results],
        "wrong": wrong,
    }
    Path(path).write_text(json.dumps(doc, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
