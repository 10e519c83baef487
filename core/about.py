"""What a git tree cannot say of a workspace: full modes, empty directories, gaps, rules in force.

Pure. The blob `about` is one header line and one line per directory that has something to say,
each of them JSON, so that a directory's line can be kept and reused while others change.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple, get_args

from .errors import Damaged
from .model import (
    EXEC,
    FILE,
    ROOT,
    Gap,
    GapReason,
    RelPath,
    join,
    nearest_in,
    parse_path,
    show_path,
)
from .objects import is_inside, is_name
from .rules import RuleSet

Coverage = Literal["full", "displaced"]
REASONS = frozenset(get_args(GapReason))
MODES = range(0o10000)
DAMAGE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


class Usual(NamedTuple):
    """The permissions that most entries of a workspace have; only others are written down."""

    file: int = 0o644
    exec: int = 0o755
    dir: int = 0o755

    def of(self, git_mode: int) -> int:
        if git_mode == FILE:
            return self.file
        return self.exec if git_mode == EXEC else self.dir


@dataclass(frozen=True)
class About:
    """The decoded blob."""

    usual: Usual = field(default_factory=Usual)
    rules: RuleSet = field(default_factory=RuleSet)
    coverage: Coverage = "full"
    modes: Mapping[RelPath, int] = field(default_factory=dict)
    empty: frozenset[RelPath] = frozenset()
    gaps: Mapping[RelPath, GapReason] = field(default_factory=dict)

    def mode(self, path: RelPath, git_mode: int) -> int:
        """The full permissions of a captured path."""
        return self.modes.get(path, self.usual.of(git_mode))

    def gap_at(self, path: RelPath) -> GapReason | None:
        """Why a path, or a directory above it, was not captured."""
        top = nearest_in(self.gaps, path)
        return None if top is None else self.gaps[top]

    def gap_list(self) -> list[Gap]:
        return [Gap(path, reason) for path, reason in sorted(self.gaps.items())]


def note(
    path: RelPath,
    mode: int | None,
    empty: bool,
    perms: Mapping[bytes, int],
    gaps: Mapping[bytes, GapReason],
) -> bytes:
    """A directory's line; nothing for an ordinary directory full of ordinary files."""
    doc: dict[str, object] = {}
    if mode is not None:
        doc["mode"] = mode
    if empty:
        doc["empty"] = True
    if perms:
        doc["modes"] = {show_path(name): perms[name] for name in sorted(perms)}
    if gaps:
        doc["gaps"] = {show_path(name): gaps[name] for name in sorted(gaps)}
    if not doc:
        return b""
    return json.dumps({"dir": show_path(path), **doc}, separators=(",", ":")).encode() + b"\n"


def encode_about(
    usual: Usual, rules: RuleSet, notes: Mapping[RelPath, bytes], coverage: Coverage = "full"
) -> bytes:
    return b"".join([_head(usual, rules, coverage), *(notes[path] for path in sorted(notes))])


@lru_cache(maxsize=8)
def _head(usual: Usual, rules: RuleSet, coverage: Coverage) -> bytes:
    """Which seldom changes, and is asked for with every snapshot."""
    head = {"about": 1, "coverage": coverage, "usual": list(usual), "rules": rules.to_json()}
    return json.dumps(head).encode() + b"\n"


def notes_of(about: About) -> dict[RelPath, bytes]:
    """The lines of a record, which read back as the same one; a look may split them otherwise."""
    perms: dict[RelPath, dict[bytes, int]] = {}
    gaps: dict[RelPath, dict[bytes, GapReason]] = {}
    for path, mode in about.modes.items():
        head, _, name = path.rpartition(b"/")
        perms.setdefault(RelPath(head), {})[name] = mode
    for path, reason in about.gaps.items():
        head, _, name = path.rpartition(b"/")
        gaps.setdefault(RelPath(head), {})[name] = reason
    top = perms.get(ROOT, {}).pop(b"", None)
    return {
        path: note(
            path,
            top if path == ROOT else None,
            path in about.empty,
            perms.get(path, {}),
            gaps.get(path, {}),
        )
        for path in perms.keys() | gaps.keys() | about.empty | {ROOT}
    }


def decode_about(data: bytes) -> About:
    head, _, rest = data.partition(b"\n")
    try:
        header = json.loads(head)
        usual = Usual(*map(_mode, header["usual"]))
        rules, coverage = RuleSet.from_json(header["rules"]), header["coverage"]
        lines = [json.loads(line) for line in rest.splitlines()]
        modes, empty, gaps = _gather(lines)
    except DAMAGE as error:
        raise Damaged(
            "The record of modes and gaps of a snapshot is damaged.",
            "Run `turnmark store verify`.",
        ) from error
    return About(usual, rules, coverage, modes, frozenset(empty), gaps)


def _gather(
    lines: Iterable[dict[str, Any]],
) -> tuple[dict[RelPath, int], set[RelPath], dict[RelPath, GapReason]]:
    modes: dict[RelPath, int] = {}
    empty: set[RelPath] = set()
    gaps: dict[RelPath, GapReason] = {}
    for line in lines:
        path = RelPath(parse_path(line["dir"]))
        if not is_inside(path):
            raise ValueError(path)
        if "mode" in line:
            modes[path] = _mode(line["mode"])
        if line.get("empty"):
            empty.add(path)
        for name, mode in line.get("modes", {}).items():
            modes[join(path, _name(name))] = _mode(mode)
        for name, reason in line.get("gaps", {}).items():
            if reason in REASONS:
                gaps[join(path, _name(name))] = reason
    return modes, empty, gaps


def _name(text: str) -> bytes:
    name = parse_path(text)
    if not is_name(name):
        raise ValueError(text)
    return name


def _mode(value: Any) -> int:
    if value not in MODES:
        raise ValueError(value)
    return int(value)


def read_note(line: bytes) -> tuple[dict[bytes, int], dict[bytes, GapReason]]:
    """The names with unusual modes and the gaps of one directory's line."""
    doc = json.loads(line) if line else {}
    perms = {parse_path(name): int(mode) for name, mode in doc.get("modes", {}).items()}
    return perms, {parse_path(name): reason for name, reason in doc.get("gaps", {}).items()}
