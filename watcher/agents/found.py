"""What stands in agents' settings as they are, comments or not; only read, never written back."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from . import jsontext
from .client import MARKER
from .wishes import Block, Entries, Own, Wish


def holds(wish: Wish) -> bool:
    """Whether all that is wished for is there, whoever put it there and beside whatever."""
    if isinstance(wish, Own):
        return _read(wish.path) == wish.text.encode()
    return _within(_parsed(wish, wish.snippet()), _value(wish))


def mentions(wish: Wish) -> bool:
    """Whether anything of ours is there; in what cannot be understood, by the word alone."""
    value = _value(wish)
    if value is None:
        return MARKER.encode() in _read(wish.path)
    return any(MARKER in one for one in _strings(value))


def clients(wish: Wish) -> list[Path]:
    """The hook clients that are named, of this home or another."""
    programs = (_program(one) for one in _strings(_value(wish)) if MARKER in one)
    return [Path(one) for one in dict.fromkeys(programs) if one.endswith(f"/{MARKER}")]


def is_loose(wish: Wish) -> bool:
    """JSON but for comments and commas too many, for which some agents discard all of it."""
    try:
        jsontext.load(_read(wish.path).decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return isinstance(wish, Entries) and _value(wish) is not None
    return False


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes() if path.is_file() else b""
    except OSError:  # what may not be read cannot be judged
        return b""


def _value(wish: Wish) -> Any:
    try:
        return _parsed(wish, _read(wish.path).decode("utf-8-sig"))
    except (ValueError, RecursionError, yaml.YAMLError):
        return None


def _parsed(wish: Wish, text: str) -> Any:
    return wish.parse(text) if isinstance(wish, Block) else jsontext.lenient(text)


def _within(wanted: Any, value: Any) -> bool:
    """Numbers are time-outs and versions, which may have been changed."""
    if isinstance(wanted, dict) and isinstance(value, dict):
        return all(key in value and _within(one, value[key]) for key, one in wanted.items())
    if isinstance(wanted, list) and isinstance(value, list):
        return all(any(_within(one, other) for other in value) for one in wanted)
    return bool(wanted == value) or (isinstance(wanted, int) and isinstance(value, int))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _strings(one)


def _program(command: str) -> str:
    """The first word of a command; a list of words has it alone."""
    if command.endswith(MARKER):
        return command
    try:
        return shlex.split(command)[0]
    except ValueError:
        return ""
