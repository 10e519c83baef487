"""Changes a JSON document as text: what is added or cut is all that differs afterwards.

Strict JSON only, but for `lenient`; anything else is a ValueError. Knows no file and no agent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Path = tuple[str | int, ...]

_SPACE = re.compile(r"[ \t\r\n]*")
_INDENT = re.compile(r"^([ \t]+)\S", re.MULTILINE)
_STRING = r'("(?:[^"\\]|\\.)*")'
_COMMENT = re.compile(_STRING + r"|//[^\n]*|/\*.*?\*/", re.DOTALL)
_LAST_COMMA = re.compile(_STRING + r"|,(?=\s*[\]}])", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Item:
    """A member of an object or an element of an array: where it and its value stand."""

    key: str | int
    start: int
    value: int
    end: int


def load(text: str) -> Any:
    """The document's value; no constants and no key twice, which would be lost by others."""
    return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)


def lenient(text: str) -> Any:
    """The value of a document that may have comments and commas too many, as agents read it."""
    for needless in (_COMMENT, _LAST_COMMA):
        text = needless.sub(lambda found: found[1] or " ", text)
    return json.loads(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key stands there twice")
    return dict(pairs)


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


def append(text: str, path: Path, value: object) -> str:
    """Adds a value at the end of the array at path; objects and arrays that lack are made."""
    at, depth = _space(text, 0), 0
    while depth < len(path):
        _check(text, at, "{", path[:depth])
        found = next((item for item in _items(text, at) if item.key == path[depth]), None)
        if found is None:
            whole: object = [value]
            for key in reversed(path[depth + 1 :]):
                whole = {str(key): whole}
            return _insert(text, at, depth, str(path[depth]), whole)
        at, depth = found.value, depth + 1
    _check(text, at, "[", path)
    return _insert(text, at, depth, None, value)


def _check(text: str, at: int, begins: str, path: Path) -> None:
    """What is put into anything else would be no JSON any more."""
    if text[at] != begins:
        name, what = ".".join(map(str, path)), "object" if begins == "{" else "list"
        raise ValueError(f"`{name}` is no {what}")


def member(text: str, path: Path, key: str, value: object) -> str:
    """Adds a member to the object at path, which must be there."""
    at = _space(text, 0)
    for step in path:
        at = next(item.value for item in _items(text, at) if item.key == step)
    return _insert(text, at, len(path), key, value)


def remove(text: str, path: Path) -> str:
    """Cuts out what stands at path, with the comma that it then needs no more."""
    at = _space(text, 0)
    for step in path[:-1]:
        at = next(item.value for item in _items(text, at) if item.key == step)
    items = list(_items(text, at))
    index = next(n for n, item in enumerate(items) if item.key == path[-1])
    if index:
        return text[: items[index - 1].end] + text[items[index].end :]
    if len(items) > 1:
        return text[: items[0].start] + text[items[1].start :]
    return text[: at + 1] + text[_space(text, items[0].end) :]


def find(value: Any, wanted: Callable[[Any], bool], path: Path = ()) -> Iterator[Path]:
    """Where the wanted values stand; what is below one is not looked at."""
    if wanted(value):
        yield path
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from find(inner, wanted, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from find(inner, wanted, (*path, index))


def _insert(text: str, at: int, depth: int, key: str | None, value: object) -> str:
    """As the last in the object or array that begins at `at`, in the style of its neighbours."""
    items = list(_items(text, at))
    unit, line = _indent(text), "\r\n" if "\r\n" in text else "\n"
    named = f"{json.dumps(key)}: " if key is not None else ""
    if items and "\n" not in text[at : items[0].start]:
        inline = json.dumps(value, ensure_ascii=False)
        return f"{text[: items[-1].end]}, {named}{inline}{text[items[-1].end :]}"
    margin = _margin(text, items[0].start) if items else unit * (depth + 1)
    body = json.dumps(value, indent=unit, ensure_ascii=False).replace("\n", f"\n{margin}")
    new = f"{line}{margin}{named}{body}".replace("\r\n", "\n").replace("\n", line)
    if items:
        return f"{text[: items[-1].end]},{new}{text[items[-1].end :]}"
    close = _space(text, at + 1)
    return f"{text[: at + 1]}{new}{line}{unit * depth}{text[close:]}"


def _margin(text: str, start: int) -> str:
    return text[text.rfind("\n", 0, start) + 1 : start]


def _indent(text: str) -> str:
    found = _INDENT.search(text)
    return found[1] if found else "  "


def _items(text: str, at: int) -> Iterator[Item]:
    decoder, is_object = json.JSONDecoder(), text[at] == "{"
    if text[at] not in "{[":
        raise ValueError("something else stands where an object or a list is expected")
    at, index = _space(text, at + 1), 0
    while text[at] not in "}]":
        start, key = at, index
        name: str | int = key
        if is_object:
            name, at = decoder.raw_decode(text, at)
            at = _space(text, _space(text, at) + 1)
        _, end = decoder.raw_decode(text, at)
        yield Item(name, start, at, end)
        at, index = _space(text, end), index + 1
        if text[at] == ",":
            at = _space(text, at + 1)


def _space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at
