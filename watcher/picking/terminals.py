"""What a terminal can do, as its name and the terminfo database say."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.util import find_spec

from ..output import is_terminal

CANNOT_DRAW = ("", "dumb", "unknown")
COLOURS = 8


def is_drawable(env: Mapping[str, str]) -> bool:
    """Whether a person is at a terminal whose cursor can be moved."""
    there = all(map(is_terminal, (sys.stdin, sys.stdout, sys.stderr)))
    return there and env.get("TERM", "") not in CANNOT_DRAW


def is_installed() -> bool:
    """Whether the optional part that draws is there; nothing is imported."""
    return find_spec("prompt_toolkit") is not None


def has_colour(env: Mapping[str, str]) -> bool:
    """A terminal that the database does not know is taken for a usual one."""
    return not env.get("NO_COLOR") and _colours(env.get("TERM", "")) >= COLOURS


def _colours(name: str) -> int:
    try:
        import curses

        curses.setupterm(name, sys.__stdout__.fileno() if sys.__stdout__ else 1)
    except (ImportError, curses.error):
        return COLOURS
    return curses.tigetnum("colors")
