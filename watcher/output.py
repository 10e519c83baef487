"""How answers reach people and programs: JSON documents, text that cannot harm a terminal."""

from __future__ import annotations

import json
import os
import re
import select
import sys
import time
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO

import click

from .context import Context

SCHEMA = 1

# C0, DEL, C1, line and paragraph separators, bidirectional overrides, lone surrogates: what could
# move the cursor, hide text or reorder it.
_HARMFUL = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)
_HARMFUL_IN_TEXT = re.compile(f"(?![\n\t]){_HARMFUL.pattern}")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows below headings; `right` names the columns of numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    right: Sequence[str] = ()


def answer(context: Context, data: Mapping[str, object], *blocks: str | Table) -> None:
    """Prints the document with --json, else the blocks, else with --quiet nothing."""
    if context.json:
        put(document(data) + "\n")
        return
    if not context.quiet:
        for block in blocks:
            show(block)


def document(data: Mapping[str, object]) -> str:
    # ASCII only: names that are not UTF-8 are lone surrogates here, which no stream could encode.
    return json.dumps({"schema": SCHEMA, **data}, ensure_ascii=True)


def show(block: str | Table) -> None:
    if isinstance(block, str):
        put(clean_text(block) + "\n")
    elif is_terminal(sys.stdout):
        _show_rich(block)
    else:
        put("\n".join([*plain_lines(block), ""]))


def put(data: str | bytes) -> None:
    """Writes to stdout as it is: no escaping, and no complaint when nobody reads any more."""
    if sys.stdout is None:
        return
    try:
        if isinstance(data, bytes):
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
        else:
            sys.stdout.write(data)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader's right. The command goes on to its own end and its own exit code.
        forget_stdout()


def forget_stdout() -> None:
    """Lets what is still to be written, also at the interpreter's exit, go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def drop_unwritten() -> None:
    """Forgets what stdout did not take: it would fail once more at the interpreter's exit."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        forget_stdout()


def reader_is_gone() -> bool:
    """Whether stdout is a pipe that nobody can read from any more."""
    poll = select.poll()
    poll.register(1, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def plain_lines(table: Table) -> list[str]:
    """Aligned lines of any width: what reads them is no terminal."""
    columns = zip(*(table.columns, *table.rows), strict=True)
    aligned = (
        _aligned([clean(str(cell)) for cell in column], name in table.right)
        for name, column in zip(table.columns, columns, strict=True)
    )
    return ["  ".join(row).rstrip() for row in zip(*aligned, strict=True)]


def _aligned(cells: list[str], right: bool) -> list[str]:
    room = max(map(width, cells))
    if all(map(str.isascii, cells)):
        return [cell.rjust(room) if right else cell.ljust(room) for cell in cells]
    gaps = (" " * (room - width(cell)) for cell in cells)
    return [gap + cell if right else cell + gap for gap, cell in zip(gaps, cells, strict=True)]


def _show_rich(table: Table) -> None:
    # rich costs 30 ms and is imported for a terminal only.
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    grid = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in table.columns:
        # Columns that may not wrap are left alone when the others are narrowed: a number that is
        # cut is a wrong number. Text is cut rather than wrapped, which only the cell can say.
        number = name in table.right
        grid.add_column(Text(name), justify="right" if number else "left", no_wrap=number)
    for row in table.rows:
        cells = (clean(str(cell)) for cell in row)
        grid.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in cells))
    Console().print(grid)


def fail(message: str, hint: str = "", *, as_json: bool = False) -> None:
    """Says on stderr what went wrong and what to do about it."""
    if as_json:
        print(json.dumps({"error": message, "hint": hint}), file=sys.stderr)
        return
    print(f"error: {clean_text(message)}", file=sys.stderr)
    if hint:
        print(f"hint: {clean_text(hint)}", file=sys.stderr)


def note(context: Context, text: str) -> None:
    """Says on stderr what is worth knowing but belongs to no answer."""
    if not (context.json or context.quiet):
        print(clean_text(text), file=sys.stderr)


def confirm(question: str, *, yes: bool) -> bool:
    """Whether to go on: asks on a terminal, needs --yes elsewhere; no answer is a no."""
    if yes:
        return True
    if not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise click.UsageError("Nobody can be asked here; pass --yes to go on.")
    print(f"{clean_text(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def is_terminal(stream: IO[str] | None) -> bool:
    return stream is not None and stream.isatty()


def clean(text: str) -> str:
    """One line that shows what a terminal would otherwise obey."""
    if text.isascii() and text.isprintable():
        return text
    return _HARMFUL.sub(_escape, text)


def clean_text(text: str) -> str:
    """The same for text of several lines: line ends and tabs stay."""
    return _HARMFUL_IN_TEXT.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was not UTF-8
        code -= 0xDC00
    named = {0x09: "\\t", 0x0A: "\\n", 0x0D: "\\r"}
    return named.get(code) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def width(text: str) -> int:
    """Terminal cells: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(_cells(char) for char in text)


def _cells(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def size(count: int) -> str:
    """Bytes for people: 1024 of a unit are one of the next."""
    if count < 1024:
        return f"{count} B"
    amount = float(count)
    for unit in ("KB", "MB", "GB", "TB"):
        amount /= 1024
        if round(amount) < 1000 or unit == "TB":
            break
    return f"{amount:.1f} {unit}" if amount < 9.95 else f"{amount:.0f} {unit}"


def age(time_ns: int, now_ns: int | None = None) -> str:
    """How long ago something was."""
    seconds = ((time.time_ns() if now_ns is None else now_ns) - time_ns) // 1_000_000_000
    if seconds < 1:
        return "now"
    for limit, length, unit in ((60, 1, "s"), (3600, 60, "min"), (86400, 3600, "h")):
        if seconds < limit:
            return f"{seconds // length} {unit} ago"
    days = seconds // 86400
    return f"{days} day{'s' * (days != 1)} ago"
