"""How commands put numbers, permissions, paths and long lists."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from core.model import Maker, Oid, RelPath, show_path

from .output import clean, is_terminal, width

LINES_OF_A_GROUP = 20
SHORT_ID = 10
CUT = "..."
NO_END = 1_000_000
MEANING = {
    "excluded": "left out by the exclude patterns",
    "ignored": "left out by a .gitignore",
    "oversize": "larger than max_file_size_mb",
    "unreadable": "could not be read",
    "special": "no file, directory or link",
    "torn": "kept changing while it was read",
    "nested-root": "a workspace of its own",
    "budget": "beyond max_files",
}
"""What the reasons of gaps mean."""


def why_left(reason: str) -> str:
    """Why a rollback leaves something as it is, for people."""
    gap, now, _ = reason.partition(" now")
    return f"{MEANING[gap]}{now}" if now and gap in MEANING else reason


def trouble_of(row: Mapping[str, Any]) -> str:
    """What is wrong with a workspace, behind its name; some reasons say the name themselves."""
    reason, root = str(row["reason"]).rstrip("."), f"{row['root']} "
    return f"it {reason.removeprefix(root)}" if reason.startswith(root) else reason


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


def made_by(*makers: Maker) -> str:
    """Makers for people, to whom the person is `you`."""
    names = [name for maker in makers for name in _maker_names(maker)]
    return " + ".join(dict.fromkeys(names))


def _maker_names(maker: Maker) -> tuple[str, ...]:
    if maker.who == "mixed":
        return (*maker.turns, "others")
    return maker.turns or ("you" if maker.who == "person" else maker.who,)


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
    if width(text) <= room:
        return text
    at = max(1, len(text) - room + len(CUT))
    while at < len(text) and width(text[at:]) + len(CUT) > room:
        at += 1
    return CUT + text[at:]


def path_line(before: str, path: str, after: str = "", *, full: bool = False) -> str:
    """A line about a path, which is cut where a terminal would wrap it."""
    return before + left_cut(path, columns(full=full) - width(before) - width(after)) + after


def columns(*, full: bool = False) -> int:
    """The room of a line; where there is no terminal, or all is wanted, no line is too long."""
    if full or not is_terminal(sys.stdout):
        return NO_END
    return shutil.get_terminal_size().columns


def local_time(time_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time_ns // 1_000_000_000))
