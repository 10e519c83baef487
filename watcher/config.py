"""The configuration file as frozen values; reads YAML, and knows nothing of who uses them."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import yaml

from core.errors import ConfigError
from core.gitignore import parse_patterns
from core.model import RelPath
from core.rules import DEFAULT_EXCLUDE, DEFAULT_PROTECT, RuleSet

from .readers import (
    MAX_BYTES,
    Reader,
    choice,
    closest,
    fields,
    flag,
    is_empty,
    items,
    mistake,
    number,
    pairs,
    parse,
    text,
)

Observer = Literal["auto", "events", "scan"]
Durability = Literal["turns", "all", "none"]
Level = Literal["debug", "info", "warning", "error"]

MB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Rules:
    """How one directory is watched and what of it is captured; a cap of 0 means none."""

    exclude: tuple[str, ...] = DEFAULT_EXCLUDE
    protect: tuple[str, ...] = DEFAULT_PROTECT
    private: tuple[str, ...] = (".env", ".env.*", "*.pem", "id_*")
    gitignore: bool = True
    max_file_size_mb: int = 10
    max_files: int = RuleSet.max_files
    quiet_ms: int = 200
    longest_ms: int = 2000
    observer: Observer = "auto"


@dataclass(frozen=True, slots=True)
class Watch:
    """One entry of the watch list: an absolute path, or a glob for several."""

    path: str
    rules: Rules = Rules()

    @property
    def is_glob(self) -> bool:
        """A path that is there is meant as it is, whatever characters it has."""
        return glob.has_magic(self.path) and not os.path.lexists(self.path)

    def roots(self) -> list[bytes]:
        """The directories it names, resolved; a plain path also where nothing is yet."""
        if not self.is_glob:
            return [os.fsencode(os.path.realpath(self.path))]
        found = (path for path in glob.glob(self.path) if os.path.isdir(path))
        return sorted({os.fsencode(os.path.realpath(path)) for path in found})


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """What the store keeps; 0 turns a limit off."""

    max_points: int = 100
    burst_hours: int = 24
    burst_turns: int = 10
    max_total_size_mb: int = 1000
    retention_days: int = 14
    auto_prune: bool = True
    min_interval_hours: int = 24
    delete_orphans: bool = True


@dataclass(frozen=True, slots=True)
class Agents:
    auto_watch: bool = True
    labels: bool = True


@dataclass(frozen=True, slots=True)
class Log:
    level: Level = "info"
    max_size_mb: int = 5
    keep: int = 3


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration; Config() are the defaults."""

    enabled: bool = True
    defaults: Rules = Rules()
    watch: tuple[Watch, ...] = ()
    store: StoreLimits = StoreLimits()
    durability: Durability = "turns"
    agents: Agents = Agents()
    log: Log = field(default=Log())

    def listed(self) -> Listed:
        """An entry of a directory's own wins over a glob, a later one over those before."""
        found = [(entry.is_glob, entry.roots(), entry.rules) for entry in self.watch]
        rules: dict[bytes, Rules] = {root: self.defaults for _, roots, _ in found for root in roots}
        for globs in (True, False):
            for is_glob, roots, theirs in found:
                if is_glob == globs:
                    rules.update(dict.fromkeys(roots, theirs))
        return Listed(rules, self.defaults)


@dataclass(frozen=True, slots=True)
class Listed:
    """The directories that a watch list names at one moment, in its order, and their rules.

    Asked of the file system once for all of them: each look takes as long as the list.
    """

    rules: dict[bytes, Rules]
    defaults: Rules

    def rules_of(self, root: bytes) -> Rules:
        """Of a directory, also of one that is not named."""
        return self.rules.get(root, self.defaults)

    def captured_by(self, root: bytes) -> RuleSet:
        """What core needs to know to capture a directory."""
        rules = self.rules_of(root)
        top = root.rstrip(b"/") + b"/"
        nested = (other for other in self.rules if other.startswith(top))
        return RuleSet(
            exclude=rules.exclude,
            protect=rules.protect,
            gitignore=rules.gitignore,
            max_file_size=rules.max_file_size_mb * MB,
            max_files=rules.max_files,
            nested=frozenset(RelPath(other.removeprefix(top)) for other in nested if other != top),
        )


def load_config(
    path: Path,
    *,
    named: bool = True,
    home: str | None = None,
    env: Mapping[str, str] | None = None,
) -> Config:
    """The configuration in a file; only a file that nobody named may be missing."""
    if not named and not os.path.lexists(path):
        return Config()
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"{path}:1:1: The configuration cannot be read: {error.strerror}.",
            "`turnmark config show --example` prints one to start from.",
        ) from error
    env = os.environ if env is None else env
    return parse_config(data, str(path), home=home or os.path.expanduser("~"), env=env)


def parse_config(data: bytes, name: str, *, home: str, env: Mapping[str, str]) -> Config:
    root = parse(data, name)
    if root is None:
        return Config()
    defaults = next((value for key, value in pairs(root) if key.value == "defaults"), None)
    rules = Rules() if defaults is None else _rules(Rules())(defaults)
    readers: dict[str, Reader] = {
        "enabled": flag,
        "defaults": lambda _: rules,
        "watch": _watch_list(rules, partial(expand_path, home=home, env=env)),
        "store": _store,
        "durability": choice("turns", "all", "none"),
        "agents": _agents,
        "log": _log,
    }
    return Config(**fields(root, readers, _HINTS))


def expand_path(path: str, home: str, env: Mapping[str, str]) -> str:
    """Resolves ~ and $NAME; ValueError says what is wrong with the path."""
    keep = glob.escape if glob.has_magic(path) else str
    if path.startswith("~") and path[1:2] not in ("", "/"):
        raise ValueError("Only your own home can be written with ~.")

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if not env.get(name):
            raise ValueError(f"The environment has no {name}.")
        return keep(env[name])

    tail = re.sub(r"\$(?:(\w+)|\{(\w+)\})", value, path.removeprefix("~"))
    whole = keep(home) + tail if path.startswith("~") else tail
    if not whole.startswith("/") or "\0" in whole:
        raise ValueError("The path must begin with /, ~ or a variable that does.")
    # POSIX lets two leading slashes mean another place; normpath keeps them, no user means them.
    return os.path.normpath("/" + whole.lstrip("/"))


_RULE_READERS: dict[str, Reader] = {
    "gitignore": flag,
    "max_file_size_mb": number(0, 1_000_000),
    "max_files": number(0, 100_000_000),
    "quiet_ms": number(10, 60_000),
    "longest_ms": number(50, 600_000),
    "observer": choice("auto", "events", "scan"),
}
_STORE_READERS: dict[str, Reader] = {
    "max_points": number(1, 1_000_000),
    "burst_hours": number(0, 87_600),
    "burst_turns": number(0, 1_000_000),
    "max_total_size_mb": number(0, 100_000_000),
    "retention_days": number(0, 36_500),
    "auto_prune": flag,
    "min_interval_hours": number(0, 87_600),
    "delete_orphans": flag,
}
# What a key is called elsewhere, or where it belongs, for those who come from there.
_HINTS = {
    "checkpoints": "The keys of 'checkpoints' are under 'store' and 'defaults' here.",
    "max_snapshots": "Here it is called 'max_points', under 'store'.",
    "excludes": "Did you mean 'exclude', under 'defaults' or an entry of 'watch'?",
    **{name: f"'{name}' belongs under 'store'." for name in _STORE_READERS},
    **{
        name: f"'{name}' belongs under 'defaults' or an entry of 'watch'."
        for name in asdict(Rules())
    },
}


def _rules(base: Rules) -> Reader:
    """Reads rules that say only where they differ from base."""

    def read(node: yaml.Node) -> Rules:
        return _differing(base, node, fields(node, _rule_readers(base), _HINTS))

    return read


def _rule_readers(base: Rules) -> dict[str, Reader]:
    lists = ("exclude", "protect", "private")
    return {**{name: _patterns(getattr(base, name)) for name in lists}, **_RULE_READERS}


def _differing(base: Rules, node: yaml.Node, values: dict[str, Any]) -> Rules:
    rules = replace(base, **values)
    if rules.quiet_ms > rules.longest_ms:
        raise mistake(
            node, f"quiet_ms ({rules.quiet_ms}) is more than longest_ms ({rules.longest_ms})."
        )
    return rules


def _patterns(base: tuple[str, ...]) -> Reader:
    """Reads a list in place of base, or what to add to it and remove from it."""

    def read(node: yaml.Node) -> tuple[str, ...]:
        if not isinstance(node, yaml.MappingNode):
            return tuple(_pattern(item) for item in items(node))
        edits = fields(node, {"add": items, "remove": items}, {})
        gone = {_removed(item, base) for item in edits.get("remove", [])}
        more = [_pattern(item) for item in edits.get("add", [])]
        return tuple(dict.fromkeys([*(one for one in base if one not in gone), *more]))

    return read


def _pattern(node: yaml.Node) -> str:
    pattern = text(node)
    if not parse_patterns((pattern,)):
        raise mistake(node, f"'{pattern}' matches nothing.", "It is read like a .gitignore line.")
    return pattern


def _removed(node: yaml.Node, base: Sequence[str]) -> str:
    pattern = text(node)
    if pattern not in base:
        hint = closest(pattern, base) or "`turnmark config show` prints the list."
        raise mistake(node, f"'{pattern}' is not in the list, so it cannot be removed.", hint)
    return pattern


def _watch_list(base: Rules, expand: partial[str]) -> Reader:
    def read(node: yaml.Node) -> tuple[Watch, ...]:
        entries: dict[str, Watch] = {}
        for item in [] if is_empty(node) else items(node):
            entry = _watch(item, base, expand)
            if entry.path in entries:
                raise mistake(item, f"'{entry.path}' is watched twice.", "Keep one entry.")
            entries[entry.path] = entry
        return tuple(entries.values())

    return read


def _watch(node: yaml.Node, base: Rules, expand: partial[str]) -> Watch:
    if not isinstance(node, yaml.MappingNode):
        return Watch(_path(node, expand), base)
    readers: dict[str, Reader] = {"path": partial(_path, expand=expand), **_rule_readers(base)}
    values = fields(node, readers, {})
    if "path" not in values:
        raise mistake(node, "This entry of the watch list has no 'path'.")
    return Watch(values.pop("path"), _differing(base, node, values))


def _path(node: yaml.Node, expand: partial[str]) -> str:
    written = text(node)
    try:
        return expand(written)
    except ValueError as error:
        raise mistake(node, f"'{written}' cannot be watched. {error}") from error


def _store(node: yaml.Node) -> StoreLimits:
    return StoreLimits(**fields(node, _STORE_READERS, _HINTS))


def _agents(node: yaml.Node) -> Agents:
    return Agents(**fields(node, {"auto_watch": flag, "labels": flag}, _HINTS))


def _log(node: yaml.Node) -> Log:
    readers = {
        "level": choice("debug", "info", "warning", "error"),
        "max_size_mb": number(1, 10_000),
        "keep": number(0, 1000),
    }
    return Log(**fields(node, readers, _HINTS))


def as_plain(config: Config) -> dict[str, Any]:
    """The configuration as the YAML file would say it; entries of watch only where they differ."""
    plain: dict[str, Any] = _plain(asdict(config))
    plain["watch"] = [_entry(entry, plain["defaults"]) for entry in config.watch]
    return plain


def _entry(entry: Watch, defaults: Mapping[str, Any]) -> dict[str, Any]:
    rules: dict[str, Any] = _plain(asdict(entry.rules))
    return {"path": entry.path, **{k: v for k, v in rules.items() if v != defaults[k]}}


def _plain(value: Any) -> Any:
    """Tuples as lists, which is what YAML and JSON know."""
    if isinstance(value, dict):
        return {key: _plain(below) for key, below in value.items()}
    return [_plain(below) for below in value] if isinstance(value, list | tuple) else value


def example_text() -> str:
    """config.example.yaml, from the wheel or from beside a checkout's packages."""
    package = Path(__file__).parent
    for folder in (package, package.parent):
        if (folder / "config.example.yaml").is_file():
            return (folder / "config.example.yaml").read_text(encoding="utf-8")
    raise FileNotFoundError(2, "No such file", str(package / "config.example.yaml"))
