"""Whether a store holds what its references promise, and what can be made of one that does not.

Knows packs, references and the files of the layout; not workspaces' trees on disk.

`repair` adds before it removes, and removes by renaming into turnmark/damaged. Its order, and what
is true if the process dies after each step (running it again goes on from any of them):
1. directories and the files of the layout; 2. an index for each whole pack that lacks one, a new
pack of the whole objects of each damaged one, durable and read back; 3. only then the damaged
packs are put aside; 4. unreadable references are put aside and made anew from what they named;
5. references of what is not whole are dropped, and named; 6. caches go, the generation moves.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
import stat
import time
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .consolidate import PATIENCE, Source, check_pack, is_whole, rebuild_views
from .disk import CHUNK, Disk
from .errors import Damaged, NoStore, TurnmarkError
from .history import read_mark, read_snapshot
from .model import EMPTY_TREE, TREE, Mark, Oid, Snapshot, parse_path, rfc3339, show_path
from .objects import Kind, hash_object, parse_tree, references
from .packs import (
    KINDS,
    OFS_DELTA,
    REF_DELTA,
    Entry,
    Pack,
    PackWriter,
    apply_delta,
    encode_index,
    parse_distance,
    parse_entry_header,
)
from .recorder import registry_path
from .refs import HEADER, TOP, Refs, ref_name
from .roots import root_of
from .store import CONFIG, LAYOUT, Store
from .sweep import drop_refs, dropped, halves, parse_dropped

HEAD = b"ref: refs/heads/main\n"
DIRECTORIES = (
    *("objects/pack", "objects/info", "refs/heads", "refs/turnmark"),
    *(f"turnmark/{name}" for name in ("tmp", "locks", "workspaces", "cache", "journal")),
)
NAMED_PATHS = 50
"""So many lost paths of one snapshot are named."""

_PACKED_LINE = re.compile(rb"([0-9a-f]{40}) (refs/[^\s\x00-\x1f\x7f~^:?*\[\\]+)")
_PIN_LINE = re.compile(rf"(?m)^([0-9a-f]{{40}}) {TOP}/([0-9a-f]{{16}})/p/".encode())
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


@dataclass(frozen=True, slots=True)
class Dropped:
    """A reference whose object is not whole, with what is known of it; time 0 if nothing is."""

    name: str
    workspace: str
    root: str
    seq: int
    time_ns: int
    lost: tuple[str, ...]

    def sentence(self) -> str:
        when = rfc3339(self.time_ns) if self.time_ns else "an unknown time"
        what = ", ".join(self.lost[:5]) or "itself"
        return f"{self.root or self.workspace}, number {self.seq} of {when}: lost {what}"


@dataclass(frozen=True, slots=True)
class Repaired:
    """What was lost for good, how many snapshots are whole, and what was done."""

    dropped: list[Dropped]
    kept: int
    notes: list[str]


# Looking


def verify(store: Store, *, full: bool = True) -> Verified:
    """Reads everything; without full, the contents of files are only looked for."""
    if not store.disk.exists(store.base):
        raise NoStore(f"There is no store at {store.base}.", "`turnmark snapshot` makes one.")
    with _undisturbed(store):
        store.reload()
        found = [*_layout(store), *_packs(store), *_loose_objects(store)]
        refs, bad = read_refs(store)
        found += bad
        found += _registers(store, refs)
        found += _referenced(store, refs, Wholeness(store, full=full))
        lost = lost_references(store, refs)
        found += [_lost(name) for name in lost.certain]
    snapshots = sum(1 for name in refs if _parts(name)[1] == "s")
    return Verified(not found, snapshots, found)


def _undisturbed(store: Store) -> AbstractContextManager[None]:
    """No pack is unlinked meanwhile; where there can be no lock, nobody else can work either."""
    locks = store.disk.exists(f"{store.base}/turnmark/locks") and not store.readable_only
    return store.maintaining(PATIENCE) if locks else nullcontext()


def _layout(store: Store) -> Iterator[Damage]:
    for name in DIRECTORIES:
        if not _is_directory(store.disk, f"{store.base}/{name}"):
            yield Damage("layout", None, None, f"The directory {name} is missing.")
    for name, is_right in FILES.items():
        if not is_right(_content(store, name)):
            yield Damage("layout", None, None, f"The file {name} is missing or damaged.")


def _is_directory(disk: Disk, path: str) -> bool:
    try:
        return stat.S_ISDIR(disk.lstat(path).st_mode)
    except OSError:
        return False


def _content(store: Store, name: str) -> bytes | None:
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


def _right_layout(data: bytes | None) -> bool:
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
    "turnmark/layout.json": _right_layout,
    "turnmark/generation": _right_generation,
    "turnmark/dropped": _right_dropped,
}


def _packs(store: Store) -> Iterator[Damage]:
    if not _is_directory(store.disk, f"{store.base}/objects/pack"):
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
        if not _is_whole_file(store.disk, path):
            yield Damage("object", None, None, f"The loose object {path} is damaged.")


def loose_objects(store: Store) -> Iterator[str]:
    top = f"{store.base}/objects"
    for name in _listed(store.disk, top):
        if re.fullmatch("[0-9a-f]{2}", name):
            yield from (f"{top}/{name}/{rest}" for rest in _listed(store.disk, f"{top}/{name}"))


def _listed(disk: Disk, path: str) -> list[str]:
    try:
        with disk.scandir(path) as found:
            return sorted(entry.name for entry in found)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_whole_file(disk: Disk, path: str) -> bool:
    try:
        raw = zlib.decompress(disk.read_file(path))
    except (OSError, zlib.error):
        return False
    name = path[-41:].replace("/", "")
    return hashlib.sha1(raw, usedforsecurity=False).hexdigest() == name


# References


def read_refs(store: Store) -> tuple[Refs, list[Damage]]:
    """What can be read of them, and what cannot."""
    packed, found = parse_packed_strictly(_content(store, "packed-refs"))
    refs = dict(packed)
    for name in _loose_names(store.disk, store.base, "refs"):
        data = _content(store, name) or b""
        if re.fullmatch(rb"[0-9a-fA-F]{40}\s*", data) and is_possible(name):
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
    for name in _listed(disk, f"{base}/{top}"):
        below = f"{top}/{name}"
        out += (
            _loose_names(disk, base, below) if _is_directory(disk, f"{base}/{below}") else [below]
        )
    return out


def is_possible(name: str) -> bool:
    """Below our part of the references every name is one that we give."""
    return not name.startswith(f"{TOP}/") or _OUR_REF.fullmatch(name) is not None


def _parts(name: str) -> tuple[str | None, str, int | None]:
    """Workspace, kind and number of one of our references."""
    match = _OUR_REF.fullmatch(name)
    if match is None:
        return None, "", None
    workspace, kind, seq, pin, _ = match.groups()
    return workspace, kind or ("p" if pin else "view"), int(seq) if seq else None


def _bad_ref(name: str, why: str) -> Damage:
    workspace, _, seq = _parts(name)
    return Damage("reference", workspace, seq, f"The reference {name} is damaged: {why}.")


def _lost(name: str) -> Damage:
    workspace, _, seq = _parts(name)
    return Damage("reference", workspace, seq, f"The reference {name} is missing.")


def _registers(store: Store, refs: Refs) -> Iterator[Damage]:
    for workspace in sorted({w for w, _, _ in map(_parts, refs) if w is not None}):
        if not register_is_right(store, workspace):
            reason = f"The register of {workspace} is missing or damaged."
            yield Damage("register", workspace, None, reason)


def register_is_right(store: Store, workspace: str) -> bool:
    try:
        doc = json.loads(store.disk.read_file(registry_path(store, workspace)))
        _, where = int(doc["created_ns"]), doc["parent"]
        known = where is None or (len(where) == 2 and all(isinstance(n, int) for n in where))
        return known and root_of(parse_path(doc["root"])).id == workspace
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _referenced(store: Store, refs: Refs, wholeness: Wholeness) -> Iterator[Damage]:
    for name in sorted(refs):
        workspace, kind, seq = _parts(name)
        what = {"s": "snapshot", "m": "mark"}.get(kind, "reference")
        mismatch = not wholeness.damaged(refs[name]) and not is_what_it_says(store, name, refs)
        if mismatch:
            yield _bad_ref(name, "it names another object than it should")
        elif wholeness.damaged(refs[name]):
            reason = wholeness.reason(refs[name])
            yield Damage(what, workspace, seq, reason)


def is_what_it_says(store: Store, name: str, refs: Refs) -> bool:
    """Whether the name of a reference of ours fits the object; of others nothing is known."""
    workspace, kind, seq = _parts(name)
    oid = refs[name]
    try:
        if kind == "p":
            return name.endswith(oid.hex())
        if kind == "s":
            found = read_snapshot(store, oid)
            return (found.workspace, found.seq) == (workspace, seq)
        if kind == "m":
            mark = read_mark(store, oid)
            return (mark.workspace, mark.seq) == (workspace, seq)
    except Damaged:
        return False
    return True


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
    has the numbers that come next may also be the newest, lost.
    """
    taken = {(w, seq) for w, _, seq in map(_parts, refs)}
    known = set(refs.values()) | _dropped_or_nothing(store)
    last: dict[str, int] = {}
    for workspace, _, seq in map(_parts, refs):
        if workspace is not None and seq is not None:
            last[workspace] = max(last.get(workspace, 0), seq)
    documents = sorted(_documents(store), key=lambda item: item.time_ns)
    published = {item.prev for item in documents}
    certain: dict[str, Oid] = {}
    possible: dict[str, Oid] = {}
    for item in documents:
        if item.id in known or (item.workspace, item.seq) in taken:
            continue
        kind, slack = ("s", 1) if isinstance(item, Snapshot) else ("m", 2)
        name = ref_name(item.workspace, kind, item.seq)
        if item.id in published:
            certain[name] = item.id
        elif 0 < item.seq - last.get(item.workspace, 0) <= slack:
            possible[name] = item.id
    for name, oid in _unreferenced_snapshots(store, refs).items():
        certain[name] = oid
    return Lost(certain, {n: o for n, o in possible.items() if n not in certain})


def _dropped_or_nothing(store: Store) -> set[Oid]:
    try:
        return dropped(store)
    except Damaged:
        return set()


def _documents(store: Store) -> Iterator[Snapshot | Mark]:
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


def _unreferenced_snapshots(store: Store, refs: Refs) -> dict[str, Oid]:
    """A mark that stays has its snapshot stay: one without reference has lost it."""
    there = set(refs.values())
    purpose = _dropped_or_nothing(store)
    out: dict[str, Oid] = {}
    for name, oid in refs.items():
        if _parts(name)[1] != "m":
            continue
        try:
            snapshot = read_snapshot(store, read_mark(store, oid).snapshot)
        except (Damaged, OSError):
            continue
        if snapshot.id not in there and snapshot.id not in purpose:
            out[ref_name(snapshot.workspace, "s", snapshot.seq)] = snapshot.id
    return out


# Mending


def repair(store: Store) -> Repaired:
    """Makes of a damaged store one that is in order, and says what it could not save."""
    if not store.disk.exists(store.base):
        raise NoStore(f"There is no store at {store.base}.", "`turnmark snapshot` makes one.")
    _refuse_newer(store)
    work = _Repair(store)
    work.layout()
    with store.maintaining(PATIENCE), store.exclusive(PATIENCE):
        store.reload()
        work.packs()
        work.loose_objects()
        work.references()
        work.adopt()
        work.drop()
        work.registers()
        work.caches()
        store.reload()
    rebuild_views(store)
    return Repaired(work.dropped, work.kept, work.notes)


def _refuse_newer(store: Store) -> None:
    data = _content(store, "turnmark/layout.json")
    numbers = layout_numbers(data)
    if numbers is not None and _right_layout(data) and numbers[2] > LAYOUT:
        raise TurnmarkError(
            f"The store {store.base} was made by a newer turnmark (layout {numbers[0]}).",
            "Update turnmark; this version must not repair it.",
        )


@dataclass
class _Repair:
    """Owns the course of one repair and what there is to say of it."""

    store: Store
    dropped: list[Dropped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    kept: int = 0

    @property
    def disk(self) -> Disk:
        return self.store.disk

    def put_aside(self, name: str) -> None:
        """Renames a file of the store into turnmark/damaged."""
        target = self._place_aside(name)
        self.disk.rename(f"{self.store.base}/{name}", target)
        self._sync(name, target)
        self.notes.append(f"{name} was damaged; it is now {target}.")

    def link_aside(self, name: str) -> None:
        """As put_aside, but the name stays until something better is renamed over it."""
        target = self._place_aside(name)
        self.disk.link(f"{self.store.base}/{name}", target)
        self._sync(name, target)
        self.notes.append(f"{name} was damaged and made anew; what it was is {target}.")

    def _place_aside(self, name: str) -> str:
        directory = f"{self.store.base}/turnmark/damaged"
        self.disk.make_dirs(directory)
        return f"{directory}/{name.replace('/', '-')}.{time.time_ns()}"

    def _sync(self, *names: str) -> None:
        for name in names:
            self.disk.sync_dir(os.path.dirname(os.path.join(self.store.base, name)))

    # 1

    def layout(self) -> None:
        store = self.store
        for name in DIRECTORIES:
            self._make_directory(name)
        for name, is_right in FILES.items():
            data = _content(store, name)
            if data is not None and not is_right(data):
                self.put_aside(name)
            elif data is None and not is_right(None):
                self.notes.append(f"{name} was missing and was made anew.")
        Store.create(store.base, store.disk)

    def _make_directory(self, name: str) -> None:
        path = self.store.base
        for part in name.split("/"):
            path = f"{path}/{part}"
            if self.disk.exists(path) and not _is_directory(self.disk, path):
                self.put_aside(os.path.relpath(path, self.store.base))
            if not self.disk.exists(path):
                self.disk.mkdir(path, 0o700)
                self.notes.append(f"The directory {path} was missing and was made anew.")

    # 2 and 3

    def packs(self) -> None:
        directory = f"{self.store.base}/objects/pack"
        whole = {pack.path for pack in self.store.packs() if is_whole(pack)}
        names = {name[:-5] for name in _listed(self.disk, directory) if name.endswith(".pack")}
        paths = sorted({f"{directory}/{name}" for name in names} - whole)
        damaged = [path for path in paths if not self._index(path)]
        self.store.reload()
        fresh = self._rescue(damaged)
        for path in damaged:
            if path != fresh:
                self._put_pack_aside(path)
        for path in halves(self.store):
            self.put_aside(os.path.relpath(path, self.store.base))
        self.store.reload()

    def _index(self, path: str) -> bool:
        """A new index for a pack whose check sum is right."""
        found = RawPack(self.disk, path)
        try:
            entries = found.index()
            trailer = found.trailer()
        except Damaged:
            return False
        finally:
            found.close()
        part = f"{self.store.base}/turnmark/tmp/index-{os.getpid()}-{time.monotonic_ns()}"
        self.disk.create(part, encode_index(entries, trailer), sync=True, mode=0o400)
        name = os.path.relpath(path + ".idx", self.store.base)
        if self.disk.exists(path + ".idx"):
            self.put_aside(name)
        self.store.reload()
        self.store.packs()  # lets go of the old index, which has the same name
        self.disk.rename(part, path + ".idx")
        self.disk.sync_dir(os.path.dirname(path))
        check_pack(self.disk, path)
        self.notes.append(f"{name} was made anew.")
        return True

    def _rescue(self, paths: list[str]) -> str | None:
        """A new pack of what is whole in damaged ones and in no other."""
        safe = {oid for p in self.store.packs() if p.path not in paths for oid in p.oids()}
        out = PackWriter(self.disk, f"{self.store.base}/objects/pack")
        try:
            for path in paths:
                for kind, oid, data in _whole_objects(self.disk, path):
                    if oid not in safe:
                        out.add(kind, oid, data)
            if not len(out):
                return None
            count, fresh = len(out), out.finish(sync=True)
        finally:
            out.drop()
        self.disk.sync_dir(f"{self.store.base}/objects/pack")
        check_pack(self.disk, fresh)
        self.notes.append(f"{count} whole objects of damaged packs are now in {fresh}.pack.")
        return fresh

    def _put_pack_aside(self, path: str) -> None:
        for end in (".idx", ".pack"):
            if self.disk.exists(path + end):
                self.put_aside(os.path.relpath(path + end, self.store.base))

    def loose_objects(self) -> None:
        for path in list(loose_objects(self.store)):
            if not _is_whole_file(self.disk, path):
                self.put_aside(os.path.relpath(path, self.store.base))

    # 4

    def references(self) -> None:
        """Puts aside what cannot be read; `adopt`, and the names of pins, bring back the rest."""
        store = self.store
        packed, bad = parse_packed_strictly(_content(store, "packed-refs"))
        if bad:
            pins = _PIN_LINE.findall(_content(store, "packed-refs") or b"")
            self.link_aside("packed-refs")
            write_packed(store, packed)
            for oid, workspace in pins:
                self._restore_pin(ref_name(workspace.decode(), "p", oid.decode()))
        _, found = read_refs(store)
        broken = {damage.reason.split()[2] for damage in found}
        for name in sorted(broken):
            self.put_aside(name)
            self._restore_pin(name)

    def _restore_pin(self, name: str) -> None:
        if _parts(name)[1] == "p":
            oid = Oid(bytes.fromhex(name[-40:]))
            if self.store.has(oid) and self.store.refs.read(name) is None:
                self.store.refs.create(name, oid, sync=True)

    def adopt(self) -> None:
        """Makes the references again of snapshots and marks that have lost them."""
        refs, _ = read_refs(self.store)
        wrong = [name for name in refs if self._points_elsewhere(name, refs)]
        for name in wrong:
            self.notes.append(f"The reference {name} pointed at {refs[name].hex()}.")
        if wrong:
            self.store.refs.delete(wrong)
            refs = {name: oid for name, oid in refs.items() if name not in wrong}
        lost = lost_references(self.store, refs)
        wholeness = Wholeness(self.store, full=True)
        for name, oid in {**lost.possible, **lost.certain}.items():
            if not wholeness.damaged(oid):
                self.store.refs.create(name, oid, sync=True)
                self.notes.append(f"The reference {name} was missing and was made anew.")

    def _points_elsewhere(self, name: str, refs: Refs) -> bool:
        """At an object that is there, but is not what the name says."""
        return self.store.has(refs[name]) and not is_what_it_says(self.store, name, refs)

    # 5

    def drop(self) -> None:
        store = self.store
        refs, _ = read_refs(store)
        wholeness = Wholeness(store, full=True)
        gone = sorted(name for name, oid in refs.items() if wholeness.damaged(oid))
        for name in gone:
            if _parts(name)[1] == "view":
                continue
            self.dropped.append(self._describe(name, refs[name], wholeness))
            self.notes.append(f"{name} {refs[name].hex()} was dropped.")
        drop_refs(store, gone)
        self.kept = sum(1 for name in refs if name not in gone and _parts(name)[1] == "s")

    def _describe(self, name: str, oid: Oid, wholeness: Wholeness) -> Dropped:
        workspace, kind, seq = _parts(name)
        time_ns = 0
        try:
            read = read_mark if kind == "m" else read_snapshot
            time_ns = read(self.store, oid).time_ns
        except (Damaged, OSError):
            pass
        root = _root_name(self.store, workspace or "")
        return Dropped(name, workspace or "", root, seq or 0, time_ns, wholeness.lost_paths(oid))

    # 6

    def registers(self) -> None:
        refs, _ = read_refs(self.store)
        for workspace in sorted({w for w, _, _ in map(_parts, refs) if w is not None}):
            if register_is_right(self.store, workspace):
                continue
            path = registry_path(self.store, workspace)
            if self.disk.exists(path):
                self.put_aside(os.path.relpath(path, self.store.base))
            doc = _register_from(self.store, workspace, refs)
            if doc is not None:
                self.disk.replace(path, json.dumps(doc).encode() + b"\n")
                self.notes.append(f"The register of {workspace} was made anew.")

    def caches(self) -> None:
        directory = f"{self.store.base}/turnmark/cache"
        self.store.next_generation()
        for name in _listed(self.disk, directory):
            self.disk.discard(f"{directory}/{name}")


def write_packed(store: Store, refs: Refs) -> None:
    lines = [b"%s %s\n" % (refs[n].hex().encode(), os.fsencode(n)) for n in sorted(refs)]
    store.disk.replace(f"{store.base}/packed-refs", HEADER + b"".join(lines))


def _root_name(store: Store, workspace: str) -> str:
    try:
        return str(json.loads(store.disk.read_file(registry_path(store, workspace)))["root"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _register_from(store: Store, workspace: str, refs: Refs) -> dict[str, Any] | None:
    """As the snapshots tell it; where the root is there, its parent is taken for what it was."""
    for name in sorted(refs):
        if not name.startswith(ref_name(workspace, "s", "")):
            continue
        try:
            message = store.read(refs[name])[1].partition(b"\n\n")[2].partition(b"\n\n")[2]
            root, created = json.loads(message)["root"], read_snapshot(store, refs[name]).time_ns
        except (Damaged, ValueError, KeyError, TypeError):
            continue
        doc: dict[str, Any] = {"root": root, "created_ns": created, "parent": None}
        if _is_directory(store.disk, os.fsdecode(parse_path(root))):
            parent = store.disk.lstat(os.path.dirname(parse_path(root)) or b"/")
            doc["parent"] = [parent.st_dev, parent.st_ino]
        return doc
    return None


# Packs without a trustworthy index


class RawEntry(NamedTuple):
    end: int
    number: int
    body: int
    size: int
    base: int | Oid | None


class RawPack:
    """Owns a mapped pack that is read from front to end, as far as it can be read."""

    def __init__(self, disk: Disk, path: str) -> None:
        self.path = path
        with disk.opened(path + ".pack") as fd:
            size = disk.fstat(fd).st_size
            self.data = mmap.mmap(fd, size, prot=mmap.PROT_READ) if size else b""
        self.entries: dict[int, RawEntry] = {}
        self._oids: dict[Oid, int] = {}

    def close(self) -> None:
        if isinstance(self.data, mmap.mmap):
            self.data.close()

    def trailer(self) -> bytes:
        return self.data[-20:]

    def index(self) -> dict[Oid, Entry]:
        """Where each object is; only if the whole pack is as it was written."""
        if len(self.data) < 32 or self._digest() != self.trailer():
            raise Damaged(f"{self.path}.pack does not match its check sum.")
        found = {oid: offset for offset, _, oid, _ in self.objects()}
        if len(found) != int.from_bytes(self.data[8:12]) or self._end() != len(self.data) - 20:
            raise Damaged(f"{self.path}.pack cannot be read to its end.")
        return {
            oid: Entry(offset, zlib.crc32(self.data[offset : self.entries[offset].end]))
            for oid, offset in found.items()
        }

    def _digest(self) -> bytes:
        digest = hashlib.sha1(usedforsecurity=False)
        end = len(self.data) - 20
        for at in range(0, end, CHUNK):
            digest.update(self.data[at : min(at + CHUNK, end)])
        return digest.digest()

    def _end(self) -> int:
        return max((entry.end for entry in self.entries.values()), default=12)

    def objects(self) -> Iterator[tuple[int, Kind, Oid, bytes]]:
        """Every object that can be read; a delta after the base that it names by id."""
        self._scan()
        waiting = list(self.entries)
        while waiting:
            later: list[int] = []
            for offset in waiting:
                try:
                    kind, data = self._content(offset)
                except KeyError:
                    later.append(offset)
                    continue
                except (Damaged, IndexError, zlib.error):
                    continue
                oid = hash_object(kind, data)
                self._oids[oid] = offset
                yield offset, kind, oid, data
            if len(later) == len(waiting):
                return
            waiting = later

    def _scan(self) -> None:
        """Finds where entries begin and end, up to the first that cannot be inflated."""
        offset, end = 12, len(self.data) - 20
        while offset < end:
            try:
                self.entries[offset] = found = self._parse(offset)
            except (Damaged, IndexError, zlib.error):
                return
            offset = found.end

    def _parse(self, offset: int) -> RawEntry:
        head = self.data[offset : offset + 64]
        number, size, at = parse_entry_header(head)
        base: int | Oid | None = None
        if number == OFS_DELTA:
            distance, at = parse_distance(head, at)
            base = offset - distance
        elif number == REF_DELTA:
            base, at = Oid(head[at : at + 20]), at + 20
        elif number not in KINDS:
            raise Damaged(f"{self.path}.pack holds an entry of unknown type {number}.")
        data, end = self._inflate(offset + at)
        if len(data) != size:
            raise Damaged(f"{self.path}.pack holds an object of the wrong size.")
        return RawEntry(end, number, offset + at, size, base)

    def _inflate(self, at: int) -> tuple[bytes, int]:
        stream = zlib.decompressobj()
        parts: list[bytes] = []
        while not stream.eof:
            chunk = self.data[at : at + (1 << 16)]
            if not chunk:
                raise Damaged(f"{self.path}.pack is cut short.")
            parts.append(stream.decompress(chunk))
            at += len(chunk)
        return b"".join(parts), at - len(stream.unused_data)

    def _content(self, offset: int) -> tuple[Kind, bytes]:
        deltas: list[bytes] = []
        while True:
            entry = self.entries[offset]
            data, _ = self._inflate(entry.body)
            if entry.base is None:
                break
            deltas.append(data)
            offset = entry.base if isinstance(entry.base, int) else self._oids[entry.base]
        for delta in reversed(deltas):
            data = apply_delta(data, delta)
        return KINDS[entry.number], data


def _whole_objects(disk: Disk, path: str) -> Iterator[tuple[Kind, Oid, bytes]]:
    """What the index leads to and reads back as its id, and what can be read from the front."""
    seen: set[Oid] = set()
    for kind, oid, data in _by_index(disk, path):
        seen.add(oid)
        yield kind, oid, data
    found = RawPack(disk, path)
    try:
        for _, kind, oid, data in found.objects():
            if oid not in seen:
                yield kind, oid, data
    finally:
        found.close()


def _by_index(disk: Disk, path: str) -> Iterator[tuple[Kind, Oid, bytes]]:
    try:
        pack = Pack(disk, path)
    except (Damaged, OSError, ValueError):
        return
    try:
        for oid in pack.oids():
            try:
                found = pack.read(oid)
            except (Damaged, OverflowError):
                continue
            if found is not None:
                yield found[0], oid, found[1]
    finally:
        pack.close()
