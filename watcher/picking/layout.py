"""A moment of the picker as lines of a screen of any size; pure: knows no terminal.

A line is pieces of text, each with the name of its style. All text is safe to show already, but
for what the user types. No line is wider than the screen, and there are never more than it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..commands.list import COLUMNS, WHOLE
from ..output import clean, width
from ..words import CUT, left_cut
from .choices import Choice, Picker

Line = list[tuple[str, str]]

PROMPT = "Roll back to: "
LOOKING = "looking ..."
NOTHING_FITS = "No point fits what is typed."
WAYS = (
    "Up/Down choose   Enter go on, asks first   Esc leave   ^F ^B scroll the preview",
    "Up/Down choose   Enter go on   Esc leave   ^F ^B preview",
    "Enter go on   Esc leave   ^F ^B",
    "Enter go on   Esc leave",
    "Esc leaves",
)
"""The keys; the first that has room is shown."""
FIRST_TO_GO = (("ID",), ("KIND",), ("+", "-"), ("FILES",), ("AGE",))
LEAST_OF_WHAT = 16
MOST_OF_KIND = 18
GAP = "  "


@dataclass(frozen=True, slots=True)
class Rooms:
    """How many lines each part has; what a small screen has no room for has none."""

    filter: int
    heading: int
    rows: int
    rule: int
    preview: int
    ways: int


def rooms(height: int, choices: int) -> Rooms:
    """The rows matter most; then the filter, headings, the keys, and the preview."""
    filter_, heading, ways = int(height >= 2), int(height >= 5), int(height >= 6)
    left = max(1, height - filter_ - heading - ways)
    if left < 9:
        return Rooms(filter_, heading, left, 0, 0, ways)
    rows = min(choices, max(4, (left - 1) * 2 // 5))
    return Rooms(filter_, heading, rows, 1, left - 1 - rows, ways)


@dataclass(frozen=True)
class Screen:
    """What is to be seen, and where the cursor is."""

    lines: list[Line]
    cursor: tuple[int, int]
    page: int
    preview_page: int
    last_scroll: int
    """The scroll at which the preview's last line is seen."""


def screen(picker: Picker, preview: Sequence[Line] | None, columns: int, height: int) -> Screen:
    """The preview is that of the chosen point; None while it is looked for."""
    room = rooms(height, len(picker.choices))
    filter_, cursor = _filter_line(picker, columns)
    table = _table(picker.choices, columns)
    last = max(0, len(preview or ()) - room.preview)
    lines = [
        *[filter_][: room.filter],
        *[_heading(table)][: room.heading],
        *_rows(picker, table, room.rows, columns),
        *[_rule(picker, columns)][: room.rule],
        *_preview_lines(picker, preview, room.preview, last),
        *[[("class:ways", _ways(columns))]][: room.ways],
    ]
    lines = [cut_line(line, columns) for line in lines]
    at = (cursor if room.filter else 0, 0)
    return Screen(lines, at, max(1, room.rows - 1), max(1, room.preview - 1), last)


# The filter


def _filter_line(picker: Picker, columns: int) -> tuple[Line, int]:
    """And the column of the cursor; how many fit is at the right."""
    tally = f"{len(picker.shown):,} of {len(picker.choices):,}"
    prompt = PROMPT if columns >= 30 else "> "
    room = columns - width(prompt) - 1
    beside = room - len(tally) - len(GAP) >= 8
    room -= (len(tally) + len(GAP)) * beside
    typed = left_cut(clean(picker.typed), max(room, 1))[-max(room, 1) :]
    hint = "type to filter" if not picker.typed and room > 16 else ""
    rest = padded(hint, room + 1 - width(typed))
    line = [("class:prompt", prompt), ("", typed), ("class:hint", rest)]
    if beside:
        line.append(("", GAP + tally))
    return line, min(width(prompt + typed), max(0, columns - 1))


# The list


@dataclass(frozen=True)
class Table:
    """The columns that there is room for, by their place in a row, and how wide they are."""

    widths: dict[int, int]


def _table(choices: Sequence[Choice], columns: int) -> Table:
    """The same whatever the filter, so that nothing jumps about."""
    rows = [COLUMNS, *(one.cells for one in choices)]
    wide = {name: max(width(row[n]) for row in rows) for n, name in enumerate(COLUMNS)}
    wide["KIND"] = min(wide["KIND"], MOST_OF_KIND)
    wanted, left = wide.pop("WHAT"), columns - 2
    for names in FIRST_TO_GO:
        if left - _taken(wide) >= min(wanted, LEAST_OF_WHAT):
            break
        for name in names:
            del wide[name]
    wide["WHAT"] = min(wanted, max(1, left - _taken(wide)))
    return Table({n: wide[name] for n, name in enumerate(COLUMNS) if name in wide})


def _taken(widths: dict[str, int]) -> int:
    return sum(one + len(GAP) for one in widths.values())


def _row_text(table: Table, cells: Sequence[str]) -> str:
    return GAP.join(
        padded(cells[n], room, right=COLUMNS[n] in WHOLE) for n, room in table.widths.items()
    )


def _heading(table: Table) -> Line:
    return [("class:heading", GAP + _row_text(table, COLUMNS))]


def _rows(picker: Picker, table: Table, room: int, columns: int) -> list[Line]:
    """The chosen one in the middle, but at the ends."""
    shown = picker.shown
    first = max(0, min(picker.at - room // 2, len(shown) - room))
    lines = [
        _row(table, shown[n], n == picker.at, columns)
        for n in range(first, min(first + room, len(shown)))
    ]
    if not shown:
        lines = [[("", GAP + NOTHING_FITS)]]
    return [*lines, *_blank(room - len(lines))]


def _blank(lines: int) -> list[Line]:
    return [[("", "")] for _ in range(lines)]


def _row(table: Table, choice: Choice, is_chosen: bool, columns: int) -> Line:
    text = ("> " if is_chosen else "  ") + _row_text(table, choice.cells)
    return [("class:chosen", padded(text, columns))] if is_chosen else [("", text)]


# The preview


def _rule(picker: Picker, columns: int) -> Line:
    chosen = picker.chosen
    title = f"--- what `turnmark rollback {chosen.point.n}` would do now " if chosen else ""
    return [("class:rule", (title + "-" * columns)[:columns])]


def _preview_lines(
    picker: Picker, preview: Sequence[Line] | None, room: int, last: int
) -> list[Line]:
    if preview is None:
        preview = [[("", LOOKING)]] if picker.chosen else []
    first = min(picker.scroll, last)
    seen = list(preview[first : first + room])
    below = len(preview) - first - len(seen)
    if below and room > 1:
        seen[-1] = [("class:hint", f"... {below + 1:,} more lines: ^F")]
    return [*seen, *_blank(room - len(seen))]


def _ways(columns: int) -> str:
    return next((ways for ways in WAYS if len(ways) <= columns), "")


# Cells


def cut(text: str, room: int) -> str:
    """At most so many cells of it; three dots say that there was more."""
    room = max(0, room)
    if width(text) <= room:
        return text
    dots = CUT if room > len(CUT) else ""
    kept = text[: max(0, room - len(dots))]
    while width(kept) > room - len(dots):
        kept = kept[:-1]
    return kept + dots


def padded(text: str, room: int, *, right: bool = False) -> str:
    """Exactly so many cells."""
    text = cut(text, room)
    gap = " " * (room - width(text))
    return gap + text if right else text + gap


def cut_line(line: Line, columns: int) -> Line:
    out: Line = []
    for style, text in line:
        out.append((style, cut(text, columns)))
        columns -= width(out[-1][1])
        if out[-1][1] != text:
            break
    return out
