"""YAML as nodes that know their place, and typed readers of them; knows none of turnmark's keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import yaml
from yaml.error import Mark
from yaml.reader import ReaderError

from core.errors import ConfigError

Reader = Callable[[yaml.Node], Any]

MAX_BYTES = 1 << 20
MAX_DEPTH = 16
YAML = "tag:yaml.org,2002:"
KINDS = {
    f"{YAML}bool": "true or false",
    f"{YAML}int": "a number",
    f"{YAML}float": "a number",
    f"{YAML}null": "nothing at all",
    f"{YAML}timestamp": "a date",
}
HINTS = (
    ("scanning an alias", "Quote text that starts with '*': \"*.log\"."),
    ("scanning an anchor", "Quote text that starts with '&'."),
    ("'\\t'", "Indent with spaces; YAML takes no tabs."),
    ("cannot start any token", "Quote text that starts with a special character."),
    ("mapping values", "Check the indentation, and quote text that holds ': '."),
    ("another document", "Keep one document in the file; remove the '---' line."),
)


class _Loader(yaml.SafeLoader):
    """Composes nodes; stops at what could make a small file large or deep."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        mark: Mark = event.start_mark
        if isinstance(event, yaml.AliasEvent):
            raise mistake(mark, "Aliases are not read.", "Write the value out.")
        if self.depth >= MAX_DEPTH:
            raise mistake(mark, f"This is nested more than {MAX_DEPTH} deep.")
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


def mistake(at: yaml.Node | Mark, text: str, hint: str = "") -> ConfigError:
    mark = at if isinstance(at, Mark) else at.start_mark
    return ConfigError(f"{mark.name}:{mark.line + 1}:{mark.column + 1}: {text}", hint)


def parse(data: bytes, name: str) -> yaml.Node | None:
    """The root node of a YAML file, None if it holds nothing but comments."""
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{name}:1:1: The file is larger than {MAX_BYTES >> 10} KB.")
    text = _decode(data, name)
    try:
        loader = _Loader(text)
        loader.name = name
        return loader.get_single_node()
    except ReaderError as error:
        place = _place(text[: error.position])
        raise ConfigError(f"{name}:{place}: There is a control character here.") from error
    except yaml.MarkedYAMLError as error:
        raise _syntax(error) from error


def _decode(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        place = _place(data[: error.start].decode("utf-8", "replace"))
        raise ConfigError(f"{name}:{place}: This is not UTF-8.", "Save it as UTF-8.") from error


def _place(before: str) -> str:
    return f"{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"


def _syntax(error: yaml.MarkedYAMLError) -> ConfigError:
    mark = error.problem_mark or error.context_mark
    assert mark is not None
    text = ", ".join(part for part in (error.context, error.problem) if part)
    hint = next((hint for part, hint in HINTS if part in text), "")
    return mistake(mark, f"This is not YAML: {text}.", hint)


def is_empty(node: yaml.Node) -> bool:
    """Whether a key was written without a value."""
    return isinstance(node, yaml.ScalarNode) and node.tag == f"{YAML}null" and not node.value


def fields(
    node: yaml.Node, readers: Mapping[str, Reader], hints: Mapping[str, str]
) -> dict[str, Any]:
    """A mapping's values, each by its own reader; every key at most once and known."""
    values: dict[str, Any] = {}
    for key, value in pairs(node):
        if key.value not in readers:
            raise mistake(key, f"Unknown key '{key.value}'.", _advice(key.value, readers, hints))
        values[key.value] = readers[key.value](value)
    return values


def pairs(node: yaml.Node) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
    if is_empty(node):
        return
    if not isinstance(node, yaml.MappingNode):
        raise mistake(node, f"Expected `key: value` lines, found {_found(node)}.")
    lines: dict[str, int] = {}
    for key, value in node.value:
        name = key.value if key.tag == f"{YAML}merge" else text(key)
        if name in lines:
            raise mistake(key, f"'{name}' is here twice, first on line {lines[name]}.", "Keep one.")
        lines[name] = key.start_mark.line + 1
        yield key, value


def _advice(key: str, known: Iterable[str], hints: Mapping[str, str]) -> str:
    return hints.get(key) or closest(key, known) or f"Known here: {', '.join(known)}."


def closest(word: str, known: Iterable[str]) -> str:
    import difflib

    near = difflib.get_close_matches(word, list(known), 1)
    return f"Did you mean '{near[0]}'?" if near else ""


def text(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode) or is_empty(node):
        raise mistake(node, f"Expected a text, found {_found(node)}.")
    if node.tag == f"{YAML}str":
        return _sayable(node)
    if node.tag not in KINDS:
        tag = node.tag.replace(YAML, "!!")
        raise mistake(node, f"The tag {tag} is not read.", "Remove it.")
    raise mistake(
        node,
        f"YAML reads {node.value} as {KINDS[node.tag]}, not as text.",
        f'Quote it: "{node.value}".',
    )


def _sayable(node: yaml.ScalarNode) -> str:
    """What stands for bytes is text; half of a pair of surrogates is nothing."""
    value = str(node.value)
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        half = f"\\u{ord(value[error.start]):04x}"
        raise mistake(node, f"{half} is no character.", "Write the character itself.") from error
    return value


def flag(node: yaml.Node) -> bool:
    word = str(node.value).lower() if isinstance(node, yaml.ScalarNode) else ""
    if node.tag == f"{YAML}bool" and word in ("true", "false"):
        return word == "true"
    meant = {"yes": "true", "on": "true", "no": "false", "off": "false"}.get(word, word)
    hint = f"Write {meant}, without quotes." if meant in ("true", "false") else ""
    raise mistake(node, f"Expected true or false, found {_found(node)}.", hint)


def number(low: int, high: int) -> Reader:
    """Reads whole numbers from low to high, in plain decimal digits only."""

    def read(node: yaml.Node) -> int:
        plain = isinstance(node, yaml.ScalarNode) and node.style is None
        if not plain or not re.fullmatch(r"-?(0|[1-9][0-9]{0,17})", str(node.value)):
            raise mistake(node, f"Expected a whole number, found {_found(node)}.", _digits(node))
        value = int(node.value)
        if not low <= value <= high:
            raise mistake(node, f"{value} is out of range: {low} to {high}.")
        return value

    return read


def _digits(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode):
        return ""
    if node.style is not None:
        return "Remove the quotes."
    # YAML 1.1 reads 010 as 8, 1:30 as 90 and 1_000 as 1000: never guess which was meant.
    return "Write plain decimal digits." if node.tag == f"{YAML}int" else ""


def choice(*names: str) -> Reader:
    def read(node: yaml.Node) -> str:
        if isinstance(node, yaml.ScalarNode) and node.value in names:
            return str(node.value)
        hint = closest(str(node.value), names) if isinstance(node, yaml.ScalarNode) else ""
        raise mistake(node, f"Expected one of {', '.join(names)}, found {_found(node)}.", hint)

    return read


def items(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.SequenceNode):
        return list(node.value)
    hint = "Write [] for an empty list." if is_empty(node) else "Begin each line with '- '."
    raise mistake(node, f"Expected a list, found {_found(node)}.", hint)


def _found(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "`key: value` lines"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    return "nothing" if is_empty(node) else f"'{node.value}'"
