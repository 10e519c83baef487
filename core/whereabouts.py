"""Which of a store's packs holds an object, without asking each of them.

Knows packs by their names and ids; nothing of how they came or where they go.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from .model import Oid
from .packs import Pack

SMALL = 5_000
MIDDLING = 20_000
ASKED_MANY = 500
"""By one change: to gather the ids of a hundred thousand objects takes 30 ms."""
HEAD_BYTES = 1 << 21
"""A bit for each first three bytes of an id: of a million objects one in fifteen is taken."""


class Whereabouts:
    """Owns what is known of the packs that it was told of last."""

    def __init__(self) -> None:
        self._packs: Mapping[str, Pack] = {}
        self._small: dict[Oid, Pack] = {}
        """Where the objects of all small packs are: to ask each pack costs a microsecond."""
        self._many = False
        """Also those of middling ones, which many were asked for."""
        self._large: list[Pack] = []
        self._noted: list[Pack] = []
        """Large ones that need not be asked for an object of which no head is among `_heads`."""
        self._heads = bytearray()
        self._gone: set[Pack] = set()
        """Packs that are no more, of which objects are known still."""
        self._asked = 0

    def tell(self, packs: Mapping[str, Pack]) -> None:
        """Adds what is new; what was known of packs that are gone is passed over until there is
        time to gather all anew: a turn may be waiting."""
        self._asked = 0
        gone = {pack for name, pack in self._packs.items() if packs.get(name) is not pack}
        if gone:
            self._gone |= gone
            self._large = [pack for pack in self._large if pack not in gone]
            self._noted = [pack for pack in self._noted if pack not in gone]
        for name, pack in packs.items():
            if self._packs.get(name) is not pack:
                self._add(pack)
        self._packs = packs

    def find(self, oid: Oid) -> Pack | None:
        """A pack that holds the object; None if none does."""
        found = self._small.get(oid)
        if found is not None and found not in self._gone:
            return found
        rest = self._likely(oid) if found is None else self._packs.values()
        if not rest:
            return None
        self._asked += 1
        if self._asked == ASKED_MANY:
            self._gather_more()
        return next((pack for pack in rest if pack.place(oid) is not None), None)

    def known(self, oid: Oid) -> Pack | None:
        """A pack that holds the object, if that costs nothing to find out."""
        found = self._small.get(oid)
        return None if found in self._gone else found

    def warm_up(self) -> None:
        """What the next change would have to wait for, done while nobody waits."""
        if self._gone or self._many:
            self._small, self._gone, self._many = {}, set(), False
            for pack in self._packs.values():
                if pack.count <= SMALL:
                    self._gather(pack)
                elif pack not in self._noted and pack not in self._large:
                    self._large.append(pack)
        for pack in self._large:
            self._note(pack)
        self._noted, self._large = self._noted + self._large, []

    def _add(self, pack: Pack) -> None:
        if pack.count > SMALL:
            self._large.append(pack)
        else:
            self._gather(pack)

    def _gather(self, pack: Pack) -> None:
        self._small.update(dict.fromkeys(pack.oids(), pack))

    def _gather_more(self) -> None:
        """Where many objects are asked for, the ids of middling packs are gathered as well."""
        middling = [p for p in (*self._large, *self._noted) if p.count <= MIDDLING]
        for pack in middling:
            self._gather(pack)
        self._many = bool(middling)
        self._large = [pack for pack in self._large if pack.count > MIDDLING]
        self._noted = [pack for pack in self._noted if pack.count > MIDDLING]

    def _likely(self, oid: Oid) -> Collection[Pack]:
        """The large packs that may hold an object."""
        head = oid[0] << 16 | oid[1] << 8 | oid[2]
        if self._noted and self._heads[head >> 3] & 1 << (head & 7):
            return [*self._large, *self._noted]
        return self._large

    def _note(self, pack: Pack) -> None:
        """Those of packs that are gone stay noted, which costs a question now and then."""
        heads = self._heads = self._heads or bytearray(HEAD_BYTES)
        for first, second, third in zip(*pack.heads(3), strict=True):
            heads[first << 13 | second << 5 | third >> 3] |= 1 << (third & 7)
