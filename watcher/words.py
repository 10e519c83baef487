"""How commands put numbers, permissions and long lists; pure."""

from __future__ import annotations

import time
from collections.abc import Sequence

from core.model import Oid, RelPath, show_path

from .output import clean

LINES_OF_A_GROUP = 20
SHORT_ID = 10


def count(number: int, one: str, many: str = "") -> str:
    """A number and its noun: `1 file`, `2,000 files`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def capped(lines: Sequence[str], *, full: bool, most: int = LINES_OF_A_GROUP) -> list[str]:
    """At most so many lines and one that says how many more; one line is never hidden alone."""
    if full or len(lines) <= most + 1:
        return list(lines)
    return [*lines[:most], f"  ... {len(lines) - most:,} more (--full shows them)"]


def named(path: RelPath) -> str:
    """A path of the workspace for people; its root has no name of its own."""
    return clean(show_path(path)) if path else "."


def octal(mode: int) -> str:
    return f"{mode:04o}"


def short(oid: Oid) -> str:
    return oid.hex()[:SHORT_ID]


def one_line(text: str, room: int) -> str:
    """Text on one line, cut where there is no room."""
    line = clean(" ".join(text.split()))
    return line if len(line) <= room else line[: max(0, room - 3)] + "..."


def left_cut(text: str, room: int) -> str:
    """A path whose end tells more than its beginning."""
    return text if len(text) <= room else "..." + text[len(text) - room + 3 :]


def local_time(time_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_ns // 1_000_000_000))
