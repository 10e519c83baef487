"""Bars for the README: what each takes for the same work, on a scale of tens. Writes plain SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from .measure import Result

WIDTH = 860
NAMES, RIGHT = 150, 80
BAR, GAP, GROUP_GAP, TOP = 14, 4, 34, 84
FONT = "font-family='system-ui, sans-serif'"
COLOURS = {"turnmark": "#1a7f5a", "limit": "#9aa4af"}
OTHERS = "#c2cad3"
GREY = "#57606a"
NOTE = (
    "limit: the changed bytes merely hashed, compressed and written; "
    "cp and rsync keep no older state; what git made is not durable when it answers"
)
WORTH_SHOWING = ("first snapshot", "1 changed", "1,000 changed", "nothing changed", "rollback of 1")

Row = Sequence[Result]


def chart(rows: Iterable[Row], label: str) -> str:
    """The rows of the tree with that label; nothing of the others."""
    groups = [row for row in rows if _is_shown(row[0].what, label)]
    if not groups:
        raise ValueError(f"No row of {label!r} was run.")
    times = [seconds for row in groups for _, seconds in _bars(row)]
    low = math.floor(math.log10(min(times)))
    high = math.ceil(math.log10(max(times)))
    height = TOP + sum(_height(row) for row in groups) + 12
    return "\n".join(
        [
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' "
            f"width='{WIDTH}' height='{height}' {FONT}>",
            f"<rect width='{WIDTH}' height='{height}' fill='#ffffff'/>",
            _text(16, 26, f"{label}: shorter is better, each step is ten times as long", 15, "600"),
            _text(16, 46, NOTE, 11, fill=GREY),
            *_grid(low, high, height),
            *_groups(groups, low, high),
            "</svg>\n",
        ]
    )


def _is_shown(what: str, label: str) -> bool:
    tree, _, work = what.partition(": ")
    return tree == label and any(
        work == kind or work.startswith(f"{kind},") for kind in WORTH_SHOWING
    )


def _bars(row: Row) -> list[tuple[str, float]]:
    """The fastest first."""
    others = [(result.against, result.other) for result in row if result.other]
    return sorted([("turnmark", row[0].ours), *others], key=lambda bar: bar[1])


def _height(row: Row) -> int:
    return GROUP_GAP + len(_bars(row)) * (BAR + GAP)


def _grid(low: int, high: int, height: int) -> Iterator[str]:
    for power in range(low, high + 1):
        x = _place(10.0**power, low, high)
        yield f"<line x1='{x:.0f}' y1='{TOP - 8}' x2='{x:.0f}' y2='{height - 8}' stroke='#e6e9ed'/>"
        yield _text(x, TOP - 14, _time(10.0**power), 11, anchor="middle", fill=GREY)


def _groups(groups: Iterable[Row], low: int, high: int) -> Iterator[str]:
    y = TOP
    for row in groups:
        yield _text(16, y + 18, row[0].what.partition(": ")[2], 13, "600")
        y += GROUP_GAP - 8
        for name, seconds in _bars(row):
            yield from _bar(y, name, seconds, _place(seconds, low, high))
            y += BAR + GAP
        y += 8


def _bar(y: int, name: str, seconds: float, end: float) -> Iterator[str]:
    middle, weight = y + BAR - 3, "600" if name == "turnmark" else "400"
    yield _text(NAMES - 8, middle, name, 11, weight, anchor="end")
    colour = COLOURS.get(name, OTHERS)
    width = max(2, end - NAMES)
    yield f"<rect x='{NAMES}' y='{y}' width='{width:.1f}' height='{BAR}' rx='2' fill='{colour}'/>"
    yield _text(NAMES + width + 6, middle, _time(seconds), 11, weight)


def _place(seconds: float, low: int, high: int) -> float:
    share = (math.log10(seconds) - low) / max(1, high - low)
    return NAMES + share * (WIDTH - NAMES - RIGHT)


def _time(seconds: float) -> str:
    if seconds >= 100:
        return f"{seconds:,.0f} s"
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1000:.3g} ms"


def _text(
    x: float,
    y: float,
    text: str,
    size: int,
    weight: str = "400",
    *,
    anchor: str = "start",
    fill: str = "#1f2328",
) -> str:
    return (
        f"<text x='{x:.0f}' y='{y:.0f}' font-size='{size}' font-weight='{weight}' "
        f"text-anchor='{anchor}' fill='{fill}'>{escape(text)}</text>"
    )
