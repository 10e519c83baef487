"""What is said of results: one line each, one line beside all peers, and against an older run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .measure import Result
from .peers import MAKERS, missing

HEAD = ("what", "turnmark", "other", "against", "ratio", "spread", "target", "")
WIDTHS = (58, 11, 11, 13, 9, 15, 10, 6)
SIDE_NAMES = (*MAKERS, "limit")
SIDE_WIDTH = 17
NOT_INSTALLED = "not installed"


def single_head() -> str:
    return _line(HEAD, WIDTHS)


def single(result: Result, *, judge: bool) -> str:
    cells = (
        result.what,
        amount(result.ours, result.unit),
        "-" if result.other is None else amount(result.other, result.unit),
        result.against,
        _short(result.ratio),
        f"{_short(result.low)}-{_short(result.high)}",
        str(result.target or "-"),
        result.verdict if judge else "",
    )
    return _line(cells, WIDTHS)


def side_head() -> str:
    """How many times what turnmark takes; the names of those that are not here say so."""
    widths = (WIDTHS[0], WIDTHS[1], *[SIDE_WIDTH] * len(SIDE_NAMES))
    names = [f"{NOT_INSTALLED}" if name in missing() else "" for name in SIDE_NAMES]
    head = _line(("how many times what turnmark takes", "turnmark", *SIDE_NAMES), widths)
    return f"{head}\n{_line(('', '', *names), widths)}".rstrip() if any(names) else head


def side(row: Sequence[Result], *, judge: bool) -> str:
    """One piece of work beside all who did it, and who was faster than turnmark at it."""
    by_name = {result.against: result for result in row}
    cells = [_side_cell(by_name.get(name)) for name in SIDE_NAMES]
    widths = (WIDTHS[0], WIDTHS[1], *[SIDE_WIDTH] * len(cells))
    line = _line((row[0].what, amount(row[0].ours, row[0].unit), *cells), widths)
    ahead = [result.against for result in row if result.verdict == "MISSED"]
    return f"{line}  MISSED: {', '.join(ahead)}" if judge and ahead else line


def _side_cell(result: Result | None) -> str:
    if result is None:
        return "-"
    if result.low == result.high:
        return _short(result.ratio)
    return f"{_short(result.ratio)} ({_short(result.low)}-{_short(result.high)})"


def _line(cells: Iterable[str], widths: Iterable[int]) -> str:
    first, *rest = zip(cells, widths, strict=True)
    return " ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)])


def _short(value: float) -> str:
    """Three digits that tell something, and never an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def amount(value: float, unit: str) -> str:
    if unit == "s" and value < 1:
        return f"{value * 1000:.2f} ms"
    if unit == "" and value == int(value):
        return f"{value:,.0f}"
    return f"{value:.2f} {unit}"


# Against an older run


def read_run(path: str) -> list[dict[str, Any]]:
    doc = json.loads(Path(path).read_text(encoding="utf-8"))
    return [row for row in doc["rows"] if isinstance(row, dict)]


def compared(old_rows: Iterable[dict[str, Any]], results: Iterable[Result]) -> Iterator[str]:
    """What got better or worse by more than both runs vary; ratios only, machines differ."""
    old = {(row["what"], row["against"]): row for row in old_rows}
    for result in results:
        was = old.pop((result.what, result.against), None)
        if was is None:
            yield f"new      {result.what}, against {result.against}: {_short(result.ratio)}"
        elif _apart(was, result):
            better = (result.ratio < was["ratio"]) == result.less_is_better
            yield (
                f"{'better' if better else 'WORSE '}   {result.what}, against {result.against}: "
                f"{_short(was['ratio'])} ({_short(was['low'])}-{_short(was['high'])}) -> "
                f"{_short(result.ratio)} ({_short(result.low)}-{_short(result.high)})"
            )
    for what, against in old:
        yield f"not run  {what}, against {against}"


def _apart(was: dict[str, Any], now: Result) -> bool:
    """Each median lies outside of what the other run has seen."""
    outside_old = not was["low"] <= now.ratio <= was["high"]
    return outside_old and not now.low <= was["ratio"] <= now.high
