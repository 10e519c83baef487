"""The words of turnmark as frozen values; they know nothing of disks, packs or clocks."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal, NamedTuple, NewType

Oid = NewType("Oid", bytes)
"""Twenty raw bytes of SHA-1."""

RelPath = NewType("RelPath", bytes)
"""A path below a workspace's root: no leading, trailing or double slash; b"" is the root."""

GapReason = Literal[
    "excluded", "ignored", "oversize", "unreadable", "special", "torn", "nested-root", "budget"
]
MarkKind = Literal[
    "baseline", "turn-begin", "turn-end", "manual", "rollback", "before-rollback", "import"
]
PointKind = Literal["baseline", "turn", "manual", "rollback", "before-rollback", "import", "burst"]
Status = Literal["ok", "error", "interrupted", "unknown", "late"]
Who = Literal["turn", "shared", "person", "rollback", "found", "unknown", "mixed"]

FILE, EXEC, LINK, TREE = 0o100644, 0o100755, 0o120000, 0o40000
"""The four modes a git tree holds here; submodule links are never written."""

EMPTY_TREE = Oid(bytes.fromhex("4b825dc642cb6eb9a060e54bf8d69288fbee4904"))
ROOT = RelPath(b"")
LABEL_CHARS = 200
PLANNED = "planned: "
"""How the note of a snapshot begins that is where a revert is to lead: it was never on disk."""


class Entry(NamedTuple):
    """One name in a git tree: git's mode and the object it points at."""

    mode: int
    oid: Oid


@dataclass(frozen=True, slots=True)
class Gap:
    """A path that a snapshot looked at and did not capture."""

    path: RelPath
    reason: GapReason
    size: int = 0


@dataclass(frozen=True, slots=True)
class Counts:
    """What lies between two snapshots: paths, and lines as `git diff --numstat` counts them."""

    files: int
    insertions: int | None = None
    deletions: int | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An immutable commit of one workspace."""

    id: Oid
    workspace: str
    seq: int
    time_ns: int
    files: Oid
    about: Oid
    changed: int = 0
    gaps: int = 0
    total: int = 0
    note: str = ""
    partial: bool = False
    prev: Oid | None = None
    """The newest snapshot before it: proof that that one was published."""

    @property
    def is_planned(self) -> bool:
        return self.partial and self.note.startswith(PLANNED)


@dataclass(frozen=True, slots=True)
class Mark:
    """A boundary that points at a snapshot and makes it a rollback point."""

    id: Oid
    workspace: str
    seq: int
    time_ns: int
    kind: MarkKind
    snapshot: Oid
    label: str = ""
    session: str | None = None
    turn: int | None = None
    turn_id: str | None = None
    agent: str | None = None
    status: Status | None = None
    gaps: int = 0
    extra: dict[str, object] = field(default_factory=dict, compare=False)
    prev: Oid | None = None
    """The newest mark before it, likewise."""


@dataclass(frozen=True, slots=True)
class Maker:
    """Who it was; of turns also which, each as SESSION/TURN."""

    who: Who
    turns: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """For people: the turn itself where it was one alone."""
        return self.turns[0] if self.who == "turn" else self.who

    @property
    def is_agent(self) -> bool:
        return self.who in ("turn", "shared")

    @property
    def may_be_person(self) -> bool:
        """What nobody can tell any more is treated as the person's: that is dearer."""
        return self.who in ("person", "unknown")


@dataclass(frozen=True, slots=True)
class Point:
    """One row of `list`: what the user sees and rolls back to."""

    n: int | None
    id: Oid
    seq: int
    time_ns: int
    kind: PointKind
    label: str = ""
    session: str | None = None
    turn: int | None = None
    turn_id: str | None = None
    agent: str | None = None
    status: Status | None = None
    end: Oid | None = None
    counts: Counts | None = None
    gaps: int = 0
    pinned: bool = False
    extra: dict[str, object] = field(default_factory=dict, compare=False)
    by: Maker | None = field(default=None, compare=False)
    """Who made what its counts count; None where nothing changed."""


@dataclass(frozen=True, slots=True)
class Change:
    """One path that differs between two trees; None stands for absent."""

    path: RelPath
    old: Entry | None
    new: Entry | None


def show_path(path: bytes) -> str:
    """Any path as text, and back again with encode("utf-8", "surrogateescape")."""
    return path.decode("utf-8", "surrogateescape")


def parse_path(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def join(parent: bytes, name: bytes) -> RelPath:
    return RelPath(parent + b"/" + name if parent else name)


def parents(path: bytes) -> list[RelPath]:
    """The directories above a path, nearest first, the root last; the root has none."""
    out: list[RelPath] = []
    while path:
        path = path.rpartition(b"/")[0]
        out.append(RelPath(path))
    return out


def nearest_in(known: Container[RelPath], path: RelPath) -> RelPath | None:
    """The path, or else the nearest directory above it, that is among those known."""
    while path not in known:
        if not path:
            return None
        path = RelPath(path.rpartition(b"/")[0])
    return path


def is_within(path: bytes, top: bytes) -> bool:
    """Whether path is top or lies below it."""
    return not top or path == top or path.startswith(top + b"/")


def rfc3339(time_ns: int) -> str:
    seconds, rest = divmod(time_ns, 1_000_000_000)
    stamp = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{stamp}.{rest // 1_000_000:03d}Z"


def label_of(prompt: str) -> str:
    """A prompt on one line, cut."""
    line = " ".join(prompt.split())
    return line if len(line) <= LABEL_CHARS else line[: LABEL_CHARS - 1] + "…"
