"""A copy of a live store that is whole at every moment it can be seen.

Knows files and references, not what they mean. Caches and locks are not copied.

Order, and what is true if the process dies after each step (no pack is removed meanwhile, because
this holds the upkeep's lock; writers go on):
1. the references and the packs are listed, while none can be folded, dropped or removed, again and
   again until nothing was published in between: the packs hold what the references reach, and at
   most the one snapshot that each writer is about to publish;
2. these packs are copied beside the target;
3. the references are written as packed-refs, the copy is verified and synced;
4. renamed to the target. Until then there is no target, and what was copied may be thrown away.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from .consolidate import PATIENCE
from .disk import CHUNK, Disk
from .errors import BadInput, Busy, Damaged, explain
from .refs import Refs
from .repair import write_packed
from .store import Store
from .verify import Verified, loose_objects, verify

PACKS = "objects/pack"
COPIED_ENDS = (".pack", ".idx", ".keep")
LOOKS = 100


@dataclass(frozen=True, slots=True)
class BackedUp:
    path: str
    snapshots: int
    packs: int
    bytes: int


def backup(store: Store, target: str) -> BackedUp:
    """Copies the store to a directory that does not exist yet, or is empty."""
    target = os.path.abspath(target)
    _check_target(store, target)
    part = f"{target}.partial-{os.getpid()}-{time.monotonic_ns()}"
    try:
        with store.maintaining(PATIENCE):
            refs, names = _moment(store)
            copy = Store.create(part, store.disk)
            packs, size = _copy_objects(store, copy, names)
            _copy_records(store, copy)
        write_packed(copy, refs)
        found = _verified(copy, refs)
        _sync_tree(store.disk, part)
        store.disk.rename(part, target)
        store.disk.sync_dir(os.path.dirname(target))
    except OSError as error:
        raise explain(error, f"back up to {target}", part) from error
    return BackedUp(target, found.snapshots, packs, size)


def _check_target(store: Store, target: str) -> None:
    if f"{os.path.realpath(target)}/".startswith(f"{store.base}/"):
        raise BadInput(f"{target} lies in the store itself.", "Name a directory elsewhere.")
    if not store.disk.exists(target):
        store.disk.make_dirs(os.path.dirname(target))
        return
    try:
        with store.disk.scandir(target) as found:
            empty = next(found, None) is None
    except NotADirectoryError as error:
        raise BadInput(f"{target} is not a directory.", "Name a new one.") from error
    if not empty:
        raise BadInput(f"{target} is not empty.", "Name a new directory; a backup is always whole.")


def _moment(store: Store) -> tuple[Refs, set[str]]:
    """The references, and the files of packs, as they were at one time."""
    with store.writing(PATIENCE):
        refs = store.refs.below("refs")
        for _ in range(LOOKS):
            with store.disk.scandir(f"{store.base}/{PACKS}") as found:
                names = {entry.name for entry in found if entry.name.startswith("pack-")}
            before, refs = refs, store.refs.below("refs")
            if refs == before:
                return refs, names
    raise Busy("The store is written to without a pause.", "Try again when less is going on.")


def _copy_objects(store: Store, copy: Store, names: set[str]) -> tuple[int, int]:
    """Packs and their bytes; an index is copied after its pack."""
    stems = sorted(name[:-4] for name in names if name.endswith(".idx"))
    size = 0
    for stem in stems:
        for end in COPIED_ENDS:
            if stem + end in names:
                size += _copy_file(store, copy, f"{PACKS}/{stem}{end}")
    for path in loose_objects(store):
        name = os.path.relpath(path, store.base)
        copy.disk.make_dirs(os.path.dirname(f"{copy.base}/{name}"))
        size += _copy_file(store, copy, name)
    return len(stems), size


def _copy_records(store: Store, copy: Store) -> None:
    """What the store knows beside objects: where workspaces lie, what was dropped, settings."""
    names = ["config", "turnmark/layout.json", "turnmark/generation", "turnmark/dropped"]
    with store.disk.scandir(f"{store.base}/turnmark/workspaces") as found:
        names += [f"turnmark/workspaces/{e.name}" for e in found if e.name.endswith(".json")]
    for name in names:
        if store.disk.exists(f"{store.base}/{name}"):
            copy.disk.discard(f"{copy.base}/{name}")
            _copy_file(store, copy, name)


def _copy_file(store: Store, copy: Store, name: str) -> int:
    disk = store.disk
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    size = 0
    with disk.opened(f"{store.base}/{name}") as source:
        mode = disk.fstat(source).st_mode & 0o700
        with disk.opened(f"{copy.base}/{name}", flags, 0o600) as target:
            while part := disk.read(source, CHUNK):
                disk.write(target, part)
                size += len(part)
            disk.chmod(target, mode)
            disk.fsync(target)
    return size


def _verified(copy: Store, refs: Refs) -> Verified:
    found = verify(copy)
    if not found.ok or copy.refs.below("refs") != refs:
        first = found.damaged[0].reason if found.damaged else "its references differ"
        raise Damaged(
            f"The copy {copy.base} is not whole: {first}",
            "Run `turnmark store verify` on the store itself; the copy may be removed.",
        )
    return found


def _sync_tree(disk: Disk, top: str) -> None:
    waiting = [top]
    while waiting:
        path = waiting.pop()
        with disk.scandir(path) as found:
            waiting += [entry.path for entry in found if entry.is_dir(follow_symlinks=False)]
        disk.sync_dir(path)
