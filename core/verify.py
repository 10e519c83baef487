"""Whether a store holds what its references promise.

Knows packs, references and the files of the layout; not workspaces' trees on disk, and changes
nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

from .consolidate import PATIENCE, Source
from .disk import Disk
from .errors import Damaged, NoStore
from .history import is_called, read_mark, read_snapshot
from .model import EMPTY_TREE, TREE, Mark, Oid, Snapshot, parse_path, show_path
from .objects import Kind, parse_tree, references
from .packform import KINDS
from .refs import TOP, Refs, ref_name
from .roots import root_of
from .store import CONFIG, Store, registry_path
from .sweep import dropped, parse_dropped

HEAD = b"ref: refs/heads/main\n"
DIRECTORIES = (
    *("objects/pack", "objects/info", "refs/heads", "refs/turnmark"),
    *(f"turnmark/{name}" for name in ("tmp", "locks", "workspaces", "cache", "journal")),
)
NAMED_PATHS = 50
"""So many lost paths of one snapshot are named."""

_PACKED_LINE = re.compile(rb"([0-9a-f]{40}) (refs/[^\s\x00-\x1f\x7f~^:?*\[\\]+)")
PIN_LINE = re.compile(rf"(?m)^([0-9a-f]{{40}}) {TOP}/([0-9a-f]{{16}})/p/".encode())
_PEELED_LINE = re.compile(rb"\^[0-9a-f]{40}")
_OUR_REF = re.compile(rf"{TOP}/([0-9a-f]{{16}})/(?:(s|m)/([1-9][0-9]*)|p/([0-9a-f]{{40}})|(view))")


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is not as it should be, and of which workspace and number."""

    what: str
    workspace: str | None
    seq: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class Verified:
    ok: bool
    snapshots: int
    damaged: list[Damage]


def verify(store: Store, *, full: bool = True) -> Verified:
    """Reads everything; without full, the contents of files are only looked for."""
    if not store.disk.exists(store.base):
        raise NoStore(f"There is no store at {store.base}.", "`turnmark snapshot` makes one.")
    with _undisturbed(store):
        store.reload()
        found = [*_layout(store), *_packs(store), *_loose_objects(store)]
        found += [Damage("log", w, None, reason) for w, reason in store.unfinished.items()]
        refs, bad = read_refs(store)
        found += bad
        found += _registers(store, refs)
        found += _referenced(store, refs, Wholeness(store, full=full))
        lost = lost_references(store, refs)
        found += [_lost(name) for name in lost.certain]
    snapshots = sum(1 for name in refs if parts_of(name)[1] == "s")
    return Verified(not found, snapshots, found)


def _undisturbed(store: Store) -> AbstractContextManager[None]:
    """No pack is unlinked meanwhile; where there can be no lock, nobody else can work either."""
    locks = store.disk.exists(f"{store.base}/turnmark/locks") and not store.readable_only
    return store.maintaining(PATIENCE) if locks else nullcontext()


def _layout(store: Store) -> Iterator[Damage]:
    for name in DIRECTORIES:
        if not is_directory(store.disk, f"{store.base}/{name}"):
            yield Damage("layout", None, None, f"The directory {name} is missing.")
    for name, is_right in FILES.items():
        if not is_right(content_of(store, name)):
            yield Damage("layout", None, None, f"The file {name} is missing or damaged.")


def is_directory(disk: Disk, path: str) -> bool:
    try:
        return stat.S_ISDIR(disk.lstat(path).st_mode)
    except OSError:
        return False


def content_of(store: Store, name: str) -> bytes | None:
    try:
        return store.disk.read_file(f"{store.base}/{name}")
    except OSError:
        return None


def _right_head(data: bytes | None) -> bool:
    return data == HEAD


def _right_config(data: bytes | None) -> bool:
    """All that we set is there; what a user has added is his."""
    lines = {line.strip() for line in (data or b"").splitlines()}
    return lines >= {line.strip() for line in CONFIG.encode().splitlines()}


def right_layout(data: bytes | None) -> bool:
    numbers = layout_numbers(data)
    return numbers is not None and 1 <= numbers[1] <= numbers[2] <= numbers[0]


def layout_numbers(data: bytes | None) -> tuple[int, int, int] | None:
    try:
        doc = json.loads(data or b"")
        return int(doc["layout"]), int(doc["min_reader"]), int(doc["min_writer"])
    except (ValueError, KeyError, TypeError):
        return None


def _right_generation(data: bytes | None) -> bool:
    return data is None or data.strip().isdigit()


def _right_dropped(data: bytes | None) -> bool:
    if data is None:
        return True
    try:
        return all(len(oid) == 20 for oid in parse_dropped(data))
    except Damaged:
        return False


FILES = {
    "HEAD": _right_head,
    "config": _right_config,
    "turnmark/layout.json": right_layout,
    "turnmark/generation": _right_generation,
    "turnmark/dropped": _right_dropped,
}


def _packs(store: Store) -> Iterator[Damage]:
    if not is_directory(store.disk, f"{store.base}/objects/pack"):
        return
    for pack in store.packs():
        try:
            pack.check()
        except (Damaged, OSError) as error:
            yield Damage("pack", None, None, str(error))
    for reason in store.broken.values():
        yield Damage("pack", None, None, reason)


def _loose_objects(store: Store) -> Iterator[Damage]:
    """Only a user's git writes any."""
    for path in loose_objects(store):
        if not is_whole_file(store.disk, path):
            yield Damage("object", None, None, f"The loose object {path} is damaged.")


def loose_objects(store: Store) -> Iterator[str]:
    top = f"{store.base}/objects"
    for name in listed(store.disk, top):
        if re.fullmatch("[0-9a-f]{2}", name):
            yield from (f"{top}/{name}/{rest}" for rest in listed(store.disk, f"{top}/{name}"))


def listed(disk: Disk, path: str) -> list[str]:
    try:
        with disk.scandir(path) as found:
            return sorted(entry.name for entry in found)
    except (FileNotFoundError, NotADirectoryError):
        return []


def is_whole_file(disk: Disk, path: str) -> bool:
    try:
        raw = zlib.decompress(disk.read_file(path))
    except (OSError, zlib.error):
        return False
    name = path[-41:].replace("/", "")
    return hashlib.sha1(raw, usedforsecurity=False).hexdigest() == name


# References


def read_refs(store: Store) -> tuple[Refs, list[Damage]]:
    """What can be read of them, and what cannot."""
    packed, found = parse_packed_strictly(content_of(store, "packed-refs"))
    refs = dict(packed)
    for name in _loose_names(store.disk, store.base, "refs"):
        data = content_of(store, name) or b""
        if re.fullmatch(rb"[0-9a-fA-F]{40}\n?", data) and is_possible(name):
            refs[name] = Oid(bytes.fromhex(data.decode("ascii")))
        else:
            refs.pop(name, None)
            found.append(_bad_ref(name, "its file is damaged"))
    return refs, found


def parse_packed_strictly(data: bytes | None) -> tuple[Refs, list[Damage]]:
    """Every line has to be as git and we write it: one that is not has lost a reference."""
    if data is None:
        return {}, []
    refs: Refs = {}
    found: list[Damage] = []
    lines = data.split(b"\n")
    if not lines[0].startswith(b"# pack-refs with:") or lines.pop():
        found.append(Damage("reference", None, None, "packed-refs is cut short."))
    for line in lines[1:] if lines[:1] and lines[0].startswith(b"#") else lines:
        match = _PACKED_LINE.fullmatch(line)
        if match and is_possible(os.fsdecode(match[2])):
            refs[os.fsdecode(match[2])] = Oid(bytes.fromhex(match[1].decode("ascii")))
        elif not _PEELED_LINE.fullmatch(line):
            found.append(Damage("reference", None, None, f"packed-refs has a bad line: {line!r}."))
    if list(refs) != sorted(refs):
        found.append(Damage("reference", None, None, "packed-refs is not sorted."))
    return refs, found


def _loose_names(disk: Disk, base: str, top: str) -> list[str]:
    out: list[str] = []
    for name in listed(disk, f"{base}/{top}"):
        below = f"{top}/{name}"
        out += _loose_names(disk, base, below) if is_directory(disk, f"{base}/{below}") else [below]
    return out


def is_possible(name: str) -> bool:
    """Below our part of the references every name is one that we give."""
    return not name.startswith(f"{TOP}/") or _OUR_REF.fullmatch(name) is not None


def parts_of(name: str) -> tuple[str | None, str, int | None]:
    """Workspace, kind and number of one of our references."""
    match = _OUR_REF.fullmatch(name)
    if match is None:
        return None, "", None
    workspace, kind, seq, pin, _ = match.groups()
    return workspace, kind or ("p" if pin else "view"), int(seq) if seq else None


def _bad_ref(name: str, why: str) -> Damage:
    workspace, _, seq = parts_of(name)
    return Damage("reference", workspace, seq, f"The reference {name} is damaged: {why}.")


def _lost(name: str) -> Damage:
    workspace, _, seq = parts_of(name)
    return Damage("reference", workspace, seq, f"The reference {name} is missing.")


def _registers(store: Store, refs: Refs) -> Iterator[Damage]:
    for workspace in sorted({w for w, _, _ in map(parts_of, refs) if w is not None}):
        if not register_is_right(store, workspace):
            reason = f"The register of {workspace} is missing or damaged."
            yield Damage("register", workspace, None, reason)


def register_is_right(store: Store, workspace: str) -> bool:
    try:
        doc = json.loads(store.disk.read_file(registry_path(store, workspace)))
        _, where = int(doc["created_ns"]), doc.get("parent")  # of imports it is not known
        known = where is None or (len(where) == 2 and all(isinstance(n, int) for n in where))
        return known and root_of(parse_path(doc["root"])).id == workspace
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _referenced(store: Store, refs: Refs, wholeness: Wholeness) -> Iterator[Damage]:
    for name in sorted(refs):
        workspace, kind, seq = parts_of(name)
        what = {"s": "snapshot", "m": "mark"}.get(kind, "reference")
        mismatch = not wholeness.damaged(refs[name]) and not is_what_it_says(store, name, refs)
        if mismatch:
            yield _bad_ref(name, "it names another object than it should")
        elif wholeness.damaged(refs[name]):
            reason = wholeness.reason(refs[name])
            yield Damage(what, workspace, seq, reason)


def is_what_it_says(store: Store, name: str, refs: Refs) -> bool:
    """Whether the name of a reference of ours fits the object; of others nothing is known."""
    _, kind, _ = parts_of(name)
    if kind == "p":
        return name.endswith(refs[name].hex())
    return kind not in ("s", "m") or is_called(store, name, refs[name])


class Wholeness:
    """Owns what is known of objects being whole with everything below them."""

    def __init__(self, store: Store, *, full: bool) -> None:
        self.store = store
        self.full = full
        self._whole: dict[Oid, bool] = {EMPTY_TREE: True}
        self._below: dict[Oid, list[tuple[Kind, Oid]] | None] = {}
        self._present: set[Oid] | None = None

    def damaged(self, oid: Oid, kind: Kind | None = None) -> bool:
        """Depth first, without recursion: trees may be deep."""
        waiting: list[tuple[Kind | None, Oid]] = [(kind, oid)]
        while waiting:
            expected, here = waiting[-1]
            below = self._children(expected, here) if here not in self._whole else []
            if below and (left := [one for one in below if one[1] not in self._whole]):
                waiting += left
                continue
            waiting.pop()
            if here not in self._whole:
                self._whole[here] = below is not None and all(self._whole[o] for _, o in below)
            self._below.pop(here, None)
        return not self._whole[oid]

    def _children(self, kind: Kind | None, oid: Oid) -> list[tuple[Kind, Oid]] | None:
        if kind == "blob" and not self.full:
            return [] if oid in self._known() else None
        if oid not in self._below:
            self._below[oid] = self._read(kind, oid)
        return self._below[oid]

    def _read(self, kind: Kind | None, oid: Oid) -> list[tuple[Kind, Oid]] | None:
        try:
            found, data = self.store.read(oid)
            return list(references(found, data)) if kind in (None, found) else None
        except (Damaged, OSError):
            return None

    def _known(self) -> set[Oid]:
        if self._present is None:
            self._present = {oid for pack in self.store.packs() for oid in pack.oids()}
            names = (path[-41:].replace("/", "") for path in loose_objects(self.store))
            self._present |= {Oid(bytes.fromhex(n)) for n in names if len(n) == 40}
        return self._present

    def reason(self, oid: Oid) -> str:
        lost = self.lost_paths(oid)
        if not lost:
            return f"The object {oid.hex()} is missing or damaged."
        more = f" and {len(lost) - 5} more" if len(lost) > 5 else ""
        return f"Of {oid.hex()} these cannot be read: {', '.join(lost[:5])}{more}."

    def lost_paths(self, oid: Oid) -> tuple[str, ...]:
        """What a damaged commit or tag has lost; nothing if it is itself what is lost."""
        tree = self._tree_of(oid)
        return tuple(self._lost_in(tree)) if tree is not None else ()

    def _tree_of(self, oid: Oid) -> Oid | None:
        try:
            kind, data = self.store.read(oid)
            while kind in ("tag", "commit"):
                oid = next(iter(references(kind, data)))[1]
                if kind == "commit":
                    return oid
                kind, data = self.store.read(oid)
        except (Damaged, OSError, StopIteration):
            return None
        return None

    def _lost_in(self, tree: Oid) -> list[str]:
        out: list[str] = []
        waiting: list[tuple[bytes, Oid]] = [(b"", tree)]
        while waiting and len(out) < NAMED_PATHS:
            path, oid = waiting.pop()
            try:
                entries = parse_tree(self.store.tree(oid))
            except (Damaged, OSError):
                out.append(_shown(path) + "/")
                continue
            for name, entry in entries.items():
                kind: Kind = "tree" if entry.mode == TREE else "blob"
                if not self.damaged(entry.oid, kind):
                    continue
                below = path + b"/" + name if path else name
                if kind == "tree":
                    waiting.append((below, entry.oid))
                else:
                    out.append(_shown(below))
        return sorted(out)


def _shown(path: bytes) -> str:
    """As the user knows the path; `about` is our own record of modes and gaps."""
    return show_path(path.removeprefix(b"files/"))


# Snapshots and marks that have lost their reference


class Lost(NamedTuple):
    """References to make: those that have certainly been there, and those that may not have."""

    certain: dict[str, Oid]
    possible: dict[str, Oid]


def lost_references(store: Store, refs: Refs) -> Lost:
    """What lies in packs without a reference, and was not dropped on purpose.

    What a later snapshot or mark names as the one before it had been published, and is lost for
    certain. Anything else may be what a writer that died left, which nobody was told of; only what
    has the numbers that come next may also be the newest, lost. So may the snapshot of a mark: both
    get their names at once, and a power cut may leave either.
    """
    taken = {(w, seq) for w, _, seq in map(parts_of, refs)}
    known = set(refs.values()) | _dropped_or_nothing(store)
    last: dict[str, int] = {}
    for workspace, _, seq in map(parts_of, refs):
        if workspace is not None and seq is not None:
            last[workspace] = max(last.get(workspace, 0), seq)
    every = sorted(documents(store), key=lambda item: item.time_ns)
    published = {item.prev for item in every}
    certain: dict[str, Oid] = {}
    possible: dict[str, Oid] = {}
    for item in every:
        if item.id in known or (item.workspace, item.seq) in taken:
            continue
        kind, slack = ("s", 1) if isinstance(item, Snapshot) else ("m", 2)
        name = ref_name(item.workspace, kind, item.seq)
        if item.id in published:
            certain[name] = item.id
        elif 0 < item.seq - last.get(item.workspace, 0) <= slack:
            possible[name] = item.id
    for snapshot in _unreferenced_snapshots(store, refs):
        name = ref_name(snapshot.workspace, "s", snapshot.seq)
        (certain if snapshot.id in published else possible)[name] = snapshot.id
    return Lost(certain, {n: o for n, o in possible.items() if n not in certain})


def _dropped_or_nothing(store: Store) -> set[Oid]:
    try:
        return dropped(store)
    except Damaged:
        return set()


def documents(store: Store) -> Iterator[Snapshot | Mark]:
    """Every snapshot and mark in the packs, referenced or not."""
    for kind, oid in _commits_and_tags(store):
        try:
            yield read_snapshot(store, oid) if kind == "commit" else read_mark(store, oid)
        except (Damaged, OSError, KeyError, ValueError):  # a view's commit, or a user's
            continue


def _commits_and_tags(store: Store) -> Iterator[tuple[Kind, Oid]]:
    seen: set[Oid] = set()
    for pack in store.packs():
        try:
            source = Source(pack)
            found = [(_kind_in(source, oid), oid) for oid in source.spans if oid not in seen]
        except (Damaged, OSError, IndexError, KeyError):
            continue
        yield from ((kind, oid) for kind, oid in found if kind in ("commit", "tag"))
        seen.update(oid for _, oid in found)


def _kind_in(source: Source, oid: Oid) -> Kind:
    number, base = source.head(oid)
    while base is not None:
        number, base = source.head(base)
    return KINDS[number]


def _unreferenced_snapshots(store: Store, refs: Refs) -> Iterator[Snapshot]:
    """A mark that stays has its snapshot stay: one without reference has lost it."""
    there = set(refs.values())
    purpose = _dropped_or_nothing(store)
    for name, oid in refs.items():
        if parts_of(name)[1] != "m":
            continue
        try:
            snapshot = read_snapshot(store, read_mark(store, oid).snapshot)
        except (Damaged, OSError):
            continue
        if snapshot.id not in there and snapshot.id not in purpose:
            yield snapshot
