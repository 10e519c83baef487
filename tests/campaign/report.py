"""What people see of a campaign: the table, the JSON, and the section of README made of it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .frame import Row, Size, repeated

HERE = Path(__file__).parent
LAST = HERE / "last.json"
README = HERE.parent.parent / "README.md"
BEGIN = "<!-- campaign figures: written by `python -m tests.campaign --write-readme` -->"
END = "<!-- end of campaign figures -->"
HEADINGS = ("part", "wanted", "done", "violations", "seconds")


def table(rows: Sequence[Row]) -> str:
    """One line per part; reasons and violations below."""
    cells = [HEADINGS, *(_cells(row) for row in rows)]
    widths = [max(len(line[n]) for line in cells) for n in range(len(HEADINGS))]
    lines = [
        "  ".join(cell.rjust(width) if n else cell.ljust(width) for n, (cell, width) in pairs)
        for line in cells
        for pairs in [list(enumerate(zip(line, widths, strict=True)))]
    ]
    lines += [f"{row.name}: not run: {row.not_run}" for row in rows if row.not_run]
    lines += [f"{row.name}: {text}" for row in rows for text in repeated(row.figures.found)]
    return "\n".join(lines)


def _cells(row: Row) -> tuple[str, str, str, str, str]:
    wanted = f"{row.wanted:,}"
    if row.not_run:
        return row.name, wanted, "not run", "", ""
    figures = row.figures
    return row.name, wanted, f"{figures.done:,}", str(len(figures.found)), f"{row.seconds:.0f}"


def save(path: Path, rows: Iterable[Row], size: Size, seed: int) -> None:
    """Adds the rows to those of earlier runs; the newer one of a part stays."""
    records = load(path)
    about = {"size": size, "seed": seed, "date": _today(), "version": _version()}
    records.update({row.name: asdict(row) | about for row in rows if not row.not_run})
    missed = {row.name: asdict(row) | about for row in rows if row.not_run}
    text = json.dumps({"parts": missed | records}, indent=1) + "\n"
    path.write_text(text)


def load(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    parts: dict[str, Any] = json.loads(path.read_text())["parts"]
    return parts


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _version() -> str:
    """What was tested: the commit, with a + where the checkout differs from it."""
    asked = ["git", "-C", str(HERE), "describe", "--always", "--dirty=+"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    found = subprocess.run(asked, capture_output=True, text=True, env=clean, check=False)
    return found.stdout.strip()


def write_readme(order: Sequence[str]) -> None:
    """Puts the figures of the last run between the two markers of README."""
    text = README.read_text()
    before, found, rest = text.partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not found or not closed:
        raise SystemExit(f"{README} has not both markers:\n{BEGIN}\n{END}")
    README.write_text(f"{before}{BEGIN}\n{section(load(LAST), order)}\n{END}{after}")


def section(records: dict[str, Any], order: Sequence[str]) -> str:
    lines = ["| what is done to it | times | violations | run |", "|---|---|---|---|"]
    for name in order:
        if name in records:
            lines.append(_readme_line(records[name]))
    return "\n".join(lines)


def _readme_line(record: dict[str, Any]) -> str:
    if record["not_run"]:
        return f"| {record['title']} | not run: {record['not_run']} | | |"
    done, wanted = record["figures"]["done"], record["wanted"]
    times = f"{done:,}" if done >= wanted else f"{done:,} of {wanted:,}"
    run = f"{record['size']}, {record['date']}"
    return f"| {record['title']} | {times} | {len(record['figures']['found'])} | {run} |"
