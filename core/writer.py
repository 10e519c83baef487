"""The objects of one change, on their way into the store: unseen until they are in place.

Knows packs and references in the making; not what a workspace's tree looks like.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, NamedTuple

from .errors import explain
from .model import Oid
from .objects import Kind, hash_object
from .packing import Alone, PackWriter
from .packs import Pack
from .refs import Ready

if TYPE_CHECKING:
    from .ahead import Ahead
    from .store import Store

PACK_BYTES = 100_000_000
PACK_OBJECTS = 20_000


class Stored(NamedTuple):
    """What one write left on disk."""

    packs: list[str]
    objects: int
    bytes: int


class Writer:
    """Owns the new objects of one change, which count once `publish` has named them, or `settle`
    has them in a log; the store's shared lock is held meanwhile."""

    def __init__(self, store: Store, *, in_haste: bool = False) -> None:
        self.store = store
        self.log: Ahead | None = None
        self.in_haste = in_haste
        self.objects = 0
        self.size = 0
        self._pack: PackWriter | None = None
        self._alone: list[Alone] = []
        self._finished: list[Pack] = []
        self._placed: list[Pack] = []
        self._written: set[Oid] = set()
        self._ready: list[Ready] = []
        self._is_sure = True
        """Whether all that this change counts on, and does not write, is durable."""
        self._logged = False
        self._open = ExitStack()
        store.follow()  # the lock is held: what is there now stays until it is given back
        self._loose = store.may_have_loose()

    def add(self, kind: Kind, data: bytes, oid: Oid | None = None) -> Oid:
        """Stores an object unless the store, or this change, holds it."""
        oid = oid or hash_object(kind, data)
        try:
            if not self.holds(oid):
                if self._is_ahead(data, oid):
                    return oid
                pack = self._open_pack()
                pack.add(kind, oid, data)
                self.objects += 1
                if pack.size > PACK_BYTES or len(pack) >= PACK_OBJECTS:
                    self._finish_pack()  # memory stays flat, an interruption cheap
        except OSError as error:
            raise explain(error, "write to the store", self.store.base) from error
        return oid

    def blob_id(self, data: bytes, *, is_new: bool = True) -> Oid:
        """Of what is new by all signs, and so added next; if it is large and somebody waits, it is
        written meanwhile."""
        if is_new and self.in_haste:
            self._write_ahead(data)
        return hash_object("blob", data)

    def _write_ahead(self, data: bytes) -> None:
        """A favour: what fails here fails again where it is added, and is told of there."""
        if Alone.suits(len(data), sum(len(alone.data) for alone in self._alone)):
            store = self.store
            with suppress(OSError):
                self._alone.append(Alone(store.disk, store.packs_in, store.spares, data))

    def _is_ahead(self, data: bytes, oid: Oid) -> bool:
        """Whether it is being written already."""
        if not self._alone or self._alone[-1].data is not data:
            return False
        self._alone[-1].oid = oid
        self._written.add(oid)
        self.objects += 1
        return True

    def holds(self, oid: Oid) -> bool:
        if oid in self._written or (self._pack is not None and oid in self._pack):
            return True
        pack = self.store.holder(oid)
        held = pack is not None or (self._loose and self.store.has_loose(oid))
        if held and not (pack is not None and pack.lasts):
            self._is_sure = False
        return held

    def _open_pack(self) -> PackWriter:
        if self._pack is None:
            store = self.store
            self._pack = PackWriter(
                store.disk, store.packs_in, store.spares, in_haste=self.in_haste
            )
        return self._pack

    def _finish_pack(self) -> None:
        """Where more are to come."""
        if self._pack is not None:
            self._place([self._pack])
            self._pack = None

    def _finish_all(self, along: Sequence[int]) -> None:
        packs = [*self._written_ahead(), *([self._pack] if self._pack is not None else [])]
        self._place(packs, along)
        self._alone, self._pack = [], None

    def _written_ahead(self) -> list[PackWriter]:
        """What nobody wanted after all leaves first, as there may be little room; what could not be
        written by itself goes the way of the others, where it is compressed."""
        wanted = [alone for alone in self._alone if alone.oid is not None]
        for alone in [alone for alone in self._alone if alone.oid is None]:
            self._alone.remove(alone)
            alone.drop()
        packs = []
        for alone in wanted:
            assert alone.oid is not None
            try:
                packs.append(alone.pack_of(alone.oid))
            except OSError:
                self._alone.remove(alone)
                alone.drop()
                self._open_pack().add("blob", alone.oid, alone.data)
        return packs

    def _place(self, packs: Sequence[PackWriter], along: Sequence[int] = ()) -> None:
        """Always in a log, or in order, and read back first: of an object that is seen, another
        writer may make a durable point."""
        fds = [fd for pack in packs for fd in pack.seal()]
        self._logged = self.log is not None and self._log(self.log, packs)
        if not self._logged:
            self.store.order.contents([*fds, *along])
            for pack in packs:
                pack.check()
        for pack in packs:
            self._finished.append(self.store.open_pack(pack.place(), pack.index))
            self.size += pack.size
            self._written.update(pack.entries)

    def settle(
        self, *, sync: bool, refs: Iterable[tuple[str, Oid]] = (), log: Ahead | None = None
    ) -> Stored:
        """Reads back what was added and puts it in place, in order; only then may a reference be
        made.

        The references that are to be published then are written already, but for their names.
        Without `sync` the references may be lost in a power cut: the last changes then are, whole.
        A log is given where what the workspace holds is durable, but for what is in the log.
        """
        for name, oid in refs:
            self._ready.append(self._open.enter_context(self.store.refs.ready(name, oid)))
        along = [one.fd for one in self._ready]
        if sync and self._is_sure and self._ready and not self._finished:
            self.log = log
        self._finish_all(along)
        if self._finished and not self._logged:
            self.store.order.names(self.store.packs_in)
        if not sync:
            self.store.note_unsynced()
        elif not self._logged:  # where there is a log, nothing of the workspace is unsynced
            self.store.sync_unsynced()
        finished, self._finished = self._finished, []
        self.store.add_packs(finished)
        self._placed += finished
        return Stored([pack.path for pack in finished], self.objects, self.size)

    def _log(self, log: Ahead, packs: Sequence[PackWriter]) -> bool:
        """Whether one sync of the workspace's log did for all of it: then all else can wait."""
        if log.is_lost:
            self.store.sync_everything()
        if not log.takes(sum(pack.size + len(pack.index) for pack in packs)):
            return False
        placed = [(pack.written(), pack.index) for pack in packs]
        return log.keep(placed, {one.name: one.oid for one in self._ready})

    def _take_back(self) -> None:
        refs = self.store.refs
        assert self.log is not None
        self.log.take_back({o.name: o.oid for o in self._ready if refs.may_hold(o.name, o.oid)})

    def publish(self, *, sync: bool) -> None:
        """Makes the references that were made ready."""
        self.store.refs.place(self._ready)
        if not self._logged:
            self.store.refs.settle(self._ready, sync=sync)
        # where a journal keeps the order, what no name was given after is in no sync
        lasts = sync and (bool(self._ready) or not self.store.order.is_kept)
        for pack in self._placed:
            pack.lasts = lasts
        self._logged = False
        self._open.close()
        self._ready = []

    def drop(self) -> None:
        """Lets go of what was not settled; finished packs stay, harmless and unreferenced."""
        with ExitStack() as unfinished:
            if self._logged:
                unfinished.callback(self._take_back)
            unfinished.callback(self._open.close)
            if self._pack is not None:
                unfinished.callback(self._pack.drop)
            for alone in self._alone:
                unfinished.callback(alone.drop)
            self._alone, self._pack = [], None
