"""Takes what no reference reaches out of the store, and never anything that one does.

Knows references and packs; not why a reference was dropped (`retention`).

Order of a sweep, and what is true if the process dies after each step:
1. without a lock: all that is reachable is walked. Nothing has changed;
2. without a lock: reachable entries of packs with much dead in them go into a new pack, durable and
   read back: they are there twice, a later sweep or consolidation removes one of them;
3. exclusive lock, for which every writer has made its reference: references are listed again, and
   what they reach since is copied too; only now the generation moves, and old packs are hidden and
   then unlinked (see `consolidate`). Whatever a reference reaches is in a pack that was put in
   place in order (see `order`) and read back.
Where a reachable commit, tree or tag cannot be read, what lies below it is unknown: then nothing is
dropped at all, until `verify.repair` has named what is lost. A pack that fails its check stays.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Collection, Iterable, Sequence, Set
from dataclasses import dataclass, field

from .consolidate import (
    PATIENCE,
    Source,
    bytes_used,
    fold,
    hide_packs,
    is_kept,
    is_whole,
    merge,
    pack_names,
    rebuild_views,
    unlink_hidden,
)
from .errors import NO_SPACE, Damaged, TurnmarkError, explain
from .model import EMPTY_TREE, Oid
from .objects import references
from .packs import Pack
from .refs import TOP
from .reserve import NAME as RESERVE
from .store import STALE_SECONDS, Store

DEAD_SHARE = 0.1
"""A pack with no more dead bytes than this is not worth copying."""


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep did; with errors it did less than it could have, and lost nothing."""

    packs_before: int
    packs_after: int
    bytes_freed: int
    errors: tuple[str, ...] = ()


class Reach:
    """Owns what a walk from references has met so far, and what it could not read.

    What is known already is not met again.
    """

    def __init__(self, store: Store, known: Set[Oid] = frozenset()) -> None:
        self.store = store
        self.known = known
        self.oids: set[Oid] = set()
        self.damage: list[str] = []

    def walk(self, roots: Iterable[Oid]) -> None:
        """Each object once; blobs are counted and not read."""
        waiting = list(roots)
        while waiting:
            oid = waiting.pop()
            if oid in self.oids or oid in self.known:
                continue
            self.oids.add(oid)
            try:
                found = list(references(*self.store.read(oid)))
            except Damaged as error:
                self.damage.append(error.message)
                continue
            for kind, below in found:
                if kind != "blob":
                    waiting.append(below)
                elif below not in self.known:
                    self.oids.add(below)

    def absent(self) -> set[Oid]:
        """What is reachable and in no pack; a store in order has none of it."""
        left = self.oids - {EMPTY_TREE}
        for pack in self.store.packs():
            left.difference_update(pack.oids())
        return {oid for oid in left if not self.store.has(oid)}


def roots(store: Store) -> set[Oid]:
    """What keeps objects alive: every reference, also one that a user made with git."""
    return set(store.refs.below("refs").values())


def sweep(store: Store, dead_share: float = DEAD_SHARE) -> Swept:
    with store.maintaining():
        return reclaim(store, dead_share)


def reclaim(store: Store, dead_share: float = DEAD_SHARE) -> Swept:
    """As `sweep`; the caller is `maintaining` the store."""
    work = Sweep(store)
    work.refresh_views()
    if not work.walk():
        return work.result()
    work.note_absent()
    work.choose(dead_share)
    fresh = work.copy_living()
    work.retire(fresh)
    return work.result()


@dataclass
class Sweep:
    """Owns the state of one sweep: what is reachable, which packs stay and which go."""

    store: Store
    errors: list[str] = field(default_factory=list)
    going: list[Pack] = field(default_factory=list)
    covered: set[Oid] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.reach = Reach(self.store)
        self.before = pack_names(self.store)
        self.used = bytes_used(self.store.disk, self.before.values())

    def result(self, errors: Iterable[str] = ()) -> Swept:
        self.store.reload()
        after = pack_names(self.store)
        freed = self.used - bytes_used(self.store.disk, after.values())
        return Swept(len(self.before), len(after), max(0, freed), (*self.errors, *errors))

    def refresh_views(self) -> None:
        """A view must not keep alive what was dropped."""
        try:
            rebuild_views(self.store)
        except OSError as error:
            self.errors.append(explain(error, "rebuild the views", self.store.base).message)
        except TurnmarkError as error:
            self.errors.append(error.message)

    def walk(self) -> bool:
        """Meets what is reachable now; False if some of it is unknown, so that all must stay."""
        try:
            self.reach.walk(roots(self.store))
        except Damaged as error:
            self.reach.damage.append(error.message)
        if self.reach.damage:
            advice = "Nothing was reclaimed: run `turnmark store repair` first."
            self.errors += [*self.reach.damage, advice]
        return not self.reach.damage

    def note_absent(self) -> None:
        absent = self.reach.absent()
        if absent:
            self.errors.append(
                f"{len(absent)} objects that snapshots need are missing, {min(absent).hex()} first;"
                " `turnmark store verify` names the snapshots."
            )

    def usable(self) -> list[Pack]:
        """The packs that can be relied on, largest first; of the others it is said why not."""
        found = [pack for pack in self.store.packs() if is_whole(pack)]
        whole = {pack.path for pack in found}
        self.errors += [
            f"The pack {path} is damaged and was left as it is."
            for path in self.before.values()
            if path not in whole and self.store.disk.exists(path + ".idx")
        ]
        return sorted(found, key=lambda pack: pack.size(), reverse=True)

    def choose(self, dead_share: float) -> None:
        for pack in self.usable():
            if is_kept(pack) or not self._worthwhile(pack, dead_share):
                self.rely_on(pack)
            else:
                self.going.append(pack)

    def rely_on(self, pack: Pack) -> None:
        """Makes sure of a pack that may have been written without syncing, and counts on it."""
        sync_pack(self.store, pack.path)
        self.covered.update(pack.oids())

    def _worthwhile(self, pack: Pack, dead_share: float) -> bool:
        source = Source(pack)
        wanted = _with_bases(source, self.reach.oids, self.covered)
        dead = sum(source.size(oid) for oid in source.spans if oid not in wanted)
        return dead > dead_share * pack.size() or (not wanted and pack.count > 0)

    def copy_living(self) -> list[str]:
        """The new packs; on a full disk only what is dead as a whole goes, which needs no space."""
        wanted = self.reach.oids - self.covered
        try:
            return self._merge(wanted)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            self.errors.append(explain(error, "compact the store", self.store.base).message)
            self.going = [p for p in self.going if wanted.isdisjoint(p.oids())]
            return []

    def _merge(self, wanted: set[Oid]) -> list[str]:
        sources = [pack for pack in self.going if not wanted.isdisjoint(pack.oids())]
        return [merge(self.store, sources, wanted)] if sources else []

    def retire(self, fresh: Iterable[str]) -> None:
        """Hides and unlinks what goes, once everything that any reference reaches is elsewhere.

        What came meanwhile is caught up with before the lock is taken, for which everybody waits.
        """
        store = self.store
        fold(store)
        kept = list(fresh)
        self.cover(kept)
        if not self._catch_up(kept):
            return
        with store.exclusive(PATIENCE):
            if not self._catch_up(kept):
                return
            left = self._uncovered()
            if left:
                raise Damaged(f"{len(left)} objects could not be copied; nothing was removed.")
            gone = [pack.path for pack in self.going if pack.path not in kept]
            self._hide(gone)
        unlink_hidden(store, gone)

    def _catch_up(self, kept: list[str]) -> bool:
        """Copies what is reachable since; False where that is not known."""
        self.store.reload()
        if not self.walk():
            return False
        more = self._merge(self._uncovered())
        self.cover(more)
        kept += more
        return True

    def cover(self, paths: Iterable[str]) -> None:
        for path in paths:
            pack = Pack(self.store.disk, path)
            self.covered.update(pack.oids())
            pack.close()

    def _uncovered(self) -> set[Oid]:
        held = {oid for pack in self.going for oid in pack.oids()}
        return (held & self.reach.oids) - self.covered

    def _hide(self, paths: Sequence[str]) -> None:
        """What nobody but the holder of the exclusive lock may take away."""
        store = self.store
        store.sweep_leftovers()
        if not self.errors:
            _unlink_halves(store)
        _unlink_foreign(store)
        if paths:
            store.next_generation()
            hide_packs(store, paths)
        store.reload()
        trim_dropped(store)


def _with_bases(source: Source, reached: set[Oid], covered: set[Oid]) -> set[Oid]:
    """What must stay of a pack: the reachable that is not safe elsewhere, and bases of deltas."""
    wanted: set[Oid] = set()
    for oid in source.spans:
        at: Oid | None = oid if oid in reached and oid not in covered else None
        while at is not None and at not in wanted:
            wanted.add(at)
            at = source.head(at)[1]
    return wanted


def sync_pack(store: Store, path: str) -> None:
    for end in (".pack", ".idx"):
        with store.disk.opened(path + end) as fd:
            store.disk.fsync(fd)


def halves(store: Store) -> list[str]:
    """Packs without an index and indexes without a pack: what a death half-way leaves."""
    directory = f"{store.base}/objects/pack"
    with store.disk.scandir(directory) as found:
        names = {entry.name for entry in found}
    stems = [os.path.splitext(name) for name in names if name.startswith("pack-")]
    other = {".pack": ".idx", ".idx": ".pack"}
    return sorted(
        f"{directory}/{stem}{end}"
        for stem, end in stems
        if end in other
        if stem + other[end] not in names
    )


def _unlink_halves(store: Store) -> None:
    """Only where nothing is missing: otherwise they may be what it can be rebuilt from."""
    for path in halves(store):
        store.disk.unlink(path)


def _unlink_foreign(store: Store) -> None:
    """What a killed git left in the store, or noted about commits that may be gone now."""
    directory = f"{store.base}/objects/pack"
    with store.disk.scandir(directory) as found:
        names = [entry.name for entry in found if entry.name.startswith("tmp_")]
    for name in names:
        if time.time() - store.disk.lstat(f"{directory}/{name}").st_mtime > STALE_SECONDS:
            store.disk.discard(f"{directory}/{name}")
    if store.disk.exists(f"{store.base}/objects/info/commit-graph"):
        store.disk.discard(f"{store.base}/objects/info/commit-graph")


# References that were dropped on purpose


def drop_refs(store: Store, names: Collection[str]) -> None:
    """Removes references under the caller's exclusive lock, and notes what they pointed at.

    The note comes first: `verify` takes a snapshot without reference and without note for lost.
    Then they are folded, so that one replacement of packed-refs drops all of them or none.
    The views of the workspaces go too; the next sweep or consolidation makes them anew.
    """
    refs = store.refs
    gone = {name: oid for name in names if (oid := refs.read(name)) is not None}
    if not gone:
        return
    tops = {name.rsplit("/", 2)[0] for name in gone if name.startswith(f"{TOP}/")}
    write_dropped(store, dropped(store) | set(gone.values()))
    store.next_generation()
    for top in sorted(tops):
        refs.fold(top)
    refs.delete(gone.keys() | {f"{top}/view" for top in tops})


def dropped(store: Store) -> set[Oid]:
    """The objects whose references were dropped on purpose and that may still be in a pack."""
    try:
        return parse_dropped(store.disk.read_file(_dropped_path(store)))
    except FileNotFoundError:
        return set()


def parse_dropped(data: bytes) -> set[Oid]:
    """A line for each, and a last one that says that none was cut off."""
    *lines, last = data.split() or [b""]
    try:
        if last != b"end" or any(len(line) != 40 for line in lines):
            raise ValueError(last)
        return {Oid(bytes.fromhex(line.decode("ascii"))) for line in lines}
    except ValueError as error:
        raise Damaged(
            "The list of dropped snapshots is damaged.", "Run `turnmark store repair`."
        ) from error


def write_dropped(store: Store, oids: Iterable[Oid]) -> None:
    lines = [b"%s\n" % oid.hex().encode() for oid in sorted(oids)]
    store.disk.replace(_dropped_path(store), b"".join(lines) + b"end\n")


def trim_dropped(store: Store) -> None:
    """Forgets what is in no pack any more."""
    try:
        known = dropped(store)
    except Damaged:
        return
    left = {oid for oid in known if any(p.place(oid) is not None for p in store.packs())}
    if left != known:
        write_dropped(store, left)


def _dropped_path(store: Store) -> str:
    return f"{store.base}/turnmark/dropped"


# Sizes


def size_on_disk(store: Store) -> int:
    """What the store takes of the disk: objects, references, caches, directories; not its reserve,
    its logs, nor the room for the names of packs, of which nothing can be dropped."""
    total = 0
    waiting, kept = [store.base], {f"{store.base}/{RESERVE}", store.packs_in}
    while waiting:
        path = waiting.pop()
        if path == store.logs.place:
            continue
        try:
            info = store.disk.lstat(path)
            if stat.S_ISDIR(info.st_mode):
                with store.disk.scandir(path) as found:
                    waiting += [entry.path for entry in found]
        except FileNotFoundError:  # a temporary file of a writer
            continue
        if path not in kept:
            total += max(info.st_blocks * 512, info.st_size)
    return total
