"""What can be made of a store that does not hold what its references promise.

Adds before it removes, and removes by renaming into turnmark/damaged. The order, and what is true
if the process dies after each step (running it again goes on from any of them):
1. directories and the files of the layout; 2. an index for each whole pack that lacks one, a new
pack of the whole objects of each damaged one, durable and read back; 3. only then the damaged
packs are put aside, and small trees that were lost with them written anew from what names their
parts; 4. unreadable references are put aside and made anew from what they named;
5. references of what is not whole are dropped, and named; 6. caches go, the generation moves.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from typing import Any

from .consolidate import PATIENCE, check_pack, is_whole, rebuild_views
from .disk import Disk
from .errors import Damaged, NoStore, TurnmarkError
from .history import read_mark, read_snapshot
from .model import FILE, TREE, Entry, Oid, Snapshot, parse_path, rfc3339
from .objects import encode_tree, hash_object
from .packform import encode_index
from .packing import PackWriter
from .refs import HEADER, Refs, ref_name
from .rescue import RawPack, whole_objects
from .roots import place_of
from .store import LAYOUT, Store, registry_path
from .sweep import drop_refs, halves
from .verify import (
    DIRECTORIES,
    FILES,
    PIN_LINE,
    Wholeness,
    content_of,
    documents,
    is_directory,
    is_what_it_says,
    is_whole_file,
    layout_numbers,
    listed,
    loose_objects,
    lost_references,
    parse_packed_strictly,
    parts_of,
    read_refs,
    register_is_right,
    right_layout,
)


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


def repair(store: Store) -> Repaired:
    """Makes of a damaged store one that is in order, and says what it could not save."""
    if not store.disk.exists(store.base):
        raise NoStore(f"There is no store at {store.base}.", "`turnmark snapshot` makes one.")
    _refuse_newer(store)
    work = _Repair(store)
    work.layout()
    with store.maintaining(PATIENCE), store.exclusive(PATIENCE, work.log_aside):
        store.reload()
        work.packs()
        work.loose_objects()
        work.tops()
        work.references()
        work.adopt()
        work.drop()
        work.registers()
        work.caches()
        store.reload()
    rebuild_views(store)
    return Repaired(work.dropped, work.kept, work.notes)


def _refuse_newer(store: Store) -> None:
    data = content_of(store, "turnmark/layout.json")
    numbers = layout_numbers(data)
    if numbers is not None and right_layout(data) and numbers[2] > LAYOUT:
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

    def log_aside(self, path: str) -> None:
        self.put_aside(os.path.relpath(path, self.store.base))

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
            data = content_of(store, name)
            if data is not None and not is_right(data):
                self.put_aside(name)
            elif data is None and not is_right(None):
                self.notes.append(f"{name} was missing and was made anew.")
        Store.create(store.base, store.disk)

    def _make_directory(self, name: str) -> None:
        path = self.store.base
        for part in name.split("/"):
            path = f"{path}/{part}"
            if self.disk.exists(path) and not is_directory(self.disk, path):
                self.put_aside(os.path.relpath(path, self.store.base))
            if not self.disk.exists(path):
                self.disk.mkdir(path, 0o700)
                self.notes.append(f"The directory {path} was missing and was made anew.")

    # 2 and 3

    def packs(self) -> None:
        directory = f"{self.store.base}/objects/pack"
        whole = {pack.path for pack in self.store.packs() if is_whole(pack)}
        names = {name[:-5] for name in listed(self.disk, directory) if name.endswith(".pack")}
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
                for kind, oid, data in whole_objects(self.disk, path):
                    if oid not in safe:
                        out.add(kind, oid, data)
            if not len(out):
                return None
            count, fresh = len(out), out.finish(self.disk.sync_all)
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
            if not is_whole_file(self.disk, path):
                self.put_aside(os.path.relpath(path, self.store.base))

    def tops(self) -> None:
        """The tree that holds `files` and `about` of a snapshot is told by its record as well."""
        out = PackWriter(self.disk, f"{self.store.base}/objects/pack")
        try:
            for one in documents(self.store):
                if isinstance(one, Snapshot):
                    parts = {b"about": Entry(FILE, one.about), b"files": Entry(TREE, one.files)}
                    data = encode_tree(parts.items())
                    if not self.store.has(oid := hash_object("tree", data)):
                        out.add("tree", oid, data)
            if not len(out):
                return
            fresh = out.finish(self.disk.sync_all)
        finally:
            out.drop()
        self.disk.sync_dir(f"{self.store.base}/objects/pack")
        check_pack(self.disk, fresh)
        self.store.reload()
        self.notes.append(f"Trees of snapshots that were lost were made anew in {fresh}.pack.")

    # 4

    def references(self) -> None:
        """Puts aside what cannot be read; `adopt`, and the names of pins, bring back the rest."""
        store = self.store
        packed, bad = parse_packed_strictly(content_of(store, "packed-refs"))
        if bad:
            pins = PIN_LINE.findall(content_of(store, "packed-refs") or b"")
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
        if parts_of(name)[1] == "p":
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
        nowhere = {name for name, oid in refs.items() if not self.store.has(oid)}
        lost = lost_references(self.store, {n: o for n, o in refs.items() if n not in nowhere})
        wholeness = Wholeness(self.store, full=True)
        for name, oid in {**lost.possible, **lost.certain}.items():
            whole = not wholeness.damaged(oid)
            if whole or name in lost.certain:  # what is not whole `drop` will name, and drop
                if name in nowhere:  # one digit of it may have been another
                    self.store.refs.delete([name])
                self.store.refs.create(name, oid, sync=True)
            if whole:
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
            if parts_of(name)[1] == "view":
                continue
            self.dropped.append(self._describe(name, refs[name], wholeness))
            self.notes.append(f"{name} {refs[name].hex()} was dropped.")
        drop_refs(store, gone)
        self.kept = sum(1 for name in refs if name not in gone and parts_of(name)[1] == "s")

    def _describe(self, name: str, oid: Oid, wholeness: Wholeness) -> Dropped:
        workspace, kind, seq = parts_of(name)
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
        for workspace in sorted({w for w, _, _ in map(parts_of, refs) if w is not None}):
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
        for name in listed(self.disk, directory):
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
        if is_directory(store.disk, os.fsdecode(parse_path(root))):
            doc |= place_of(store.disk, parse_path(root))
        return doc
    return None
