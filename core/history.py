"""Snapshots and marks as git commits and tags, and the references of one workspace.

Knows how both are written and read back; not how a tree is captured, nor which points a user sees.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from .errors import Damaged
from .model import EMPTY_TREE, FILE, TREE, Entry, Mark, MarkKind, Oid, Snapshot, Status
from .objects import encode_commit, encode_tag, encode_tree, header_oid, parse_headers
from .packs import HINT
from .refs import TOP, ref_name
from .store import Store
from .writer import Writer

VERSION = 1
FIRST_NS, BEYOND_NS = -62_135_596_800 * 10**9, 253_402_300_800 * 10**9
"""The years 1 to 9999, which are all that a calendar of Python's has."""
UNREADABLE = (ValueError, KeyError, TypeError, OverflowError, RecursionError, OSError)
"""Whatever is wrong with a record is damage: one that cannot be read hides no other."""


@dataclass(frozen=True, slots=True)
class MarkSpec:
    """A mark to be: all but its number, time and snapshot."""

    kind: MarkKind
    label: str = ""
    session: str | None = None
    turn: int | None = None
    turn_id: str | None = None
    agent: str | None = None
    status: Status | None = None
    extra: dict[str, object] = field(default_factory=dict)


def write_snapshot(writer: Writer, snapshot: Snapshot, root: str) -> Snapshot:
    """Adds the commit, whose tree holds `about` and `files`; its id is in what is returned."""
    if snapshot.files == EMPTY_TREE:
        writer.add("tree", b"", EMPTY_TREE)
    parts = {b"about": Entry(FILE, snapshot.about), b"files": Entry(TREE, snapshot.files)}
    tree = writer.add("tree", encode_tree(parts.items()))
    doc = {
        "turnmark": VERSION,
        "workspace": snapshot.workspace,
        "root": root,
        "seq": snapshot.seq,
        "time_ns": snapshot.time_ns,
        "files": snapshot.files.hex(),
        "about": snapshot.about.hex(),
        "changed": snapshot.changed,
        "gaps": snapshot.gaps,
        "total": snapshot.total,
        "note": snapshot.note,
        "partial": snapshot.partial,
        "prev": snapshot.prev.hex() if snapshot.prev else None,
    }
    message = f"snapshot {snapshot.seq}: {snapshot.changed} changed\n\n{json.dumps(doc)}\n"
    commit = encode_commit(tree, snapshot.time_ns, message.encode())
    return replace(snapshot, id=writer.add("commit", commit))


def read_snapshot(store: Store, oid: Oid) -> Snapshot:
    kind, data = store.read(oid)
    if kind != "commit":
        raise Damaged(f"{oid.hex()} is a {kind}, not a snapshot.", HINT)
    try:
        doc = _document(data, oid)
        return Snapshot(
            id=oid,
            workspace=doc["workspace"],
            seq=int(doc["seq"]),
            time_ns=_time(doc["time_ns"]),
            files=_oid(doc["files"]),
            about=_oid(doc["about"]),
            changed=int(doc["changed"]),
            gaps=int(doc["gaps"]),
            total=int(doc["total"]),
            note=doc["note"],
            partial=doc["partial"],
            prev=_oid(doc["prev"]) if doc["prev"] else None,
        )
    except UNREADABLE as error:
        raise _no_record(oid) from error


def write_mark(writer: Writer, mark: Mark) -> Mark:
    """Adds the annotated tag of a mark; its id is in what is returned."""
    doc = {
        "turnmark": VERSION,
        "workspace": mark.workspace,
        "seq": mark.seq,
        "time_ns": mark.time_ns,
        "kind": mark.kind,
        "label": mark.label,
        "session": mark.session,
        "turn": mark.turn,
        "turn_id": mark.turn_id,
        "agent": mark.agent,
        "status": mark.status,
        "gaps": mark.gaps,
        "extra": mark.extra,
        "prev": mark.prev.hex() if mark.prev else None,
    }
    name = f"turnmark-{mark.workspace}-{mark.seq}"
    message = f"{mark.kind}\n\n{json.dumps(doc)}\n"
    oid = writer.add("tag", encode_tag(mark.snapshot, name, mark.time_ns, message.encode()))
    return replace(mark, id=oid)


def read_mark(store: Store, oid: Oid) -> Mark:
    kind, data = store.read(oid)
    if kind != "tag":
        raise Damaged(f"{oid.hex()} is a {kind}, not a mark.", HINT)
    try:
        doc = _document(data, oid)
        return Mark(
            id=oid,
            workspace=doc["workspace"],
            seq=int(doc["seq"]),
            time_ns=_time(doc["time_ns"]),
            kind=doc["kind"],
            snapshot=header_oid(parse_headers(data)[0], b"object"),
            label=doc["label"],
            session=doc["session"],
            turn=doc["turn"],
            turn_id=doc["turn_id"],
            agent=doc["agent"],
            status=doc["status"],
            gaps=int(doc["gaps"]),
            extra=dict(doc["extra"]),
            prev=_oid(doc["prev"]) if doc["prev"] else None,
        )
    except UNREADABLE as error:
        raise _no_record(oid) from error


def _no_record(oid: Oid) -> Damaged:
    return Damaged(f"{oid.hex()} carries no record of turnmark's.", HINT)


def _document(data: bytes, oid: Oid) -> Any:
    """The JSON that every message of ours ends with."""
    _, _, text = data.partition(b"\n\n")[2].partition(b"\n\n")
    doc = json.loads(text.decode())  # of bytes it would have to guess how they are encoded
    if doc["turnmark"] > VERSION:
        raise Damaged(f"{oid.hex()} was written by a newer turnmark.", "Update turnmark.")
    return doc


def _time(value: Any) -> int:
    """One that no calendar has would stop whoever wants to show it among others."""
    time_ns = int(value)
    if not FIRST_NS <= time_ns < BEYOND_NS:
        raise ValueError(value)
    return time_ns


def _oid(text: str) -> Oid:
    oid = bytes.fromhex(text)
    if len(oid) != 20:
        raise ValueError(text)
    return Oid(oid)


class History:
    """The references of one workspace, read once: snapshots and marks by number, and pins."""

    def __init__(self, store: Store, workspace: str) -> None:
        self.store = store
        self.workspace = workspace
        self.snapshot_ids: dict[int, Oid] = {}
        self.mark_ids: dict[int, Oid] = {}
        self.pins: set[Oid] = set()
        self.damage: list[str] = []
        self._unread: set[int] = set()
        self.reload()

    def reload(self) -> None:
        self.snapshot_ids, self.mark_ids, self.pins = {}, {}, set()
        damaged: list[str] = []
        refs = self.store.refs.below(f"{TOP}/{self.workspace}", damaged)
        self.damage += [f"The reference {name} is damaged." for name in damaged]
        self._unread = {int(n) for name in damaged if (n := name.rpartition("/")[2]).isdecimal()}
        for name, oid in refs.items():
            _, _, _, kind, last = (*name.split("/", 4), "", "")[:5]
            if kind == "s" and last.isdecimal():
                self.snapshot_ids[int(last)] = oid
            elif kind == "m" and last.isdecimal():
                self.mark_ids[int(last)] = oid
            elif kind == "p":
                self.pins.add(oid)

    def snapshots(self) -> Iterator[Snapshot]:
        """Oldest first; one that cannot be read is counted as damage and does not hide the rest."""
        for seq in sorted(self.snapshot_ids):
            try:
                yield read_snapshot(self.store, self.snapshot_ids[seq])
            except Damaged as error:
                self.damage.append(error.message)

    def marks(self) -> Iterator[Mark]:
        """Oldest first, as snapshots() gives them."""
        for seq in sorted(self.mark_ids):
            try:
                yield read_mark(self.store, self.mark_ids[seq])
            except Damaged as error:
                self.damage.append(error.message)

    def newest(self) -> Snapshot | None:
        """The newest complete snapshot."""
        for seq in sorted(self.snapshot_ids, reverse=True):
            try:
                found = read_snapshot(self.store, self.snapshot_ids[seq])
            except Damaged as error:
                self.damage.append(error.message)
                continue
            if not found.partial:
                return found
        return None

    def last_seq(self) -> int:
        """The highest number in use, be its reference readable or not."""
        return max((*self.snapshot_ids, *self.mark_ids, *self._unread), default=0)


def is_called(store: Store, name: str, oid: Oid) -> bool:
    """Whether an object is the snapshot or mark that the name of a reference says."""
    try:
        if "/m/" in name:
            return mark_ref(read_mark(store, oid)) == name
        return snapshot_ref(read_snapshot(store, oid)) == name
    except Damaged:
        return False


def snapshot_ref(snapshot: Snapshot) -> str:
    return ref_name(snapshot.workspace, "s", snapshot.seq)


def mark_ref(mark: Mark) -> str:
    return ref_name(mark.workspace, "m", mark.seq)


def pin_ref(workspace: str, oid: Oid) -> str:
    return ref_name(workspace, "p", oid.hex())


def workspaces(store: Store) -> list[str]:
    """The ids of all workspaces that have a reference."""
    return sorted({name.split("/")[2] for name in store.refs.names(TOP)})
