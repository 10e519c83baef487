"""One finished git pack and its index, of which every byte that is read is checked.

Knows one file of each; not refs, locks, or which objects deserve to live.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
import zlib
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence

from .deflate import BROKEN, crc32, inflating
from .disk import CHUNK, Disk
from .errors import Damaged
from .model import Oid
from .objects import Kind, hash_object
from .packform import (
    HEADER_BYTES,
    KINDS,
    OFS_DELTA,
    OID_BYTES,
    REF_DELTA,
    TRAILER_BYTES,
    apply_delta,
    pack_header,
    parse_distance,
    parse_entry_header,
    parse_size,
    skip_size,
)

SLACK = 64
"""So much longer than its content a compressed object seldom is."""
RECENT, RECENT_BYTES = 64, 1 << 12
"""So many objects of at most so many bytes each are kept of an open pack."""
_NUMBER = struct.Struct(">I").unpack_from
FANOUT = 8
"""Where an index says, for each first byte of an id, how many have that or a lower one."""
FIRST_READ = 4096
PAGE, PAGES = FIRST_READ, 16
"""Of an open pack so many pages are kept, each with the beginning of the next one; of all of them
together 8 MB at most."""
DELTA_SIZES = 20
"""Bytes that hold both lengths at the head of any delta."""
BISECT_ABOVE = 512
MAP_ABOVE = 1 << 16
OPEN_PACKS = 64
UNREADABLE: tuple[type[Exception], ...]
UNREADABLE = (*BROKEN, OSError, OverflowError, IndexError, struct.error)
"""What reading a damaged pack may raise."""
HINT = "Run `turnmark store verify`; `turnmark store repair` keeps what is whole."


def sums_of(disk: Disk, fd: int, size: int) -> tuple[bytes, int]:
    """The digest of a file's begin, and the check sum of what follows the header of a pack."""
    digest, crc, at = hashlib.sha1(usedforsecurity=False), 0, 0
    while at < size:
        part = disk.pread(fd, min(CHUNK, size - at), at)
        if not part:
            break
        digest.update(part)
        crc = crc32(part[max(0, HEADER_BYTES - at) :], crc)
        at += len(part)
    return digest.digest(), crc


def _index_of(disk: Disk, path: str) -> bytes | mmap.mmap:
    """A map takes a descriptor for as long as it lives, so a small index is read instead."""
    with disk.opened(path + ".idx") as fd:
        size = disk.fstat(fd).st_size
        if size < 1072:
            raise Damaged(f"The index {path}.idx is cut short.", HINT)
        if size > MAP_ABOVE:
            return mmap.mmap(fd, size, prot=mmap.PROT_READ)
        data = disk.read_all(fd, size)
    if len(data) != size:
        raise Damaged("An index changed while it was read.", HINT)
    return data


class Pack:
    """Owns the open files of one finished pack; its reads are checked against the ids asked for."""

    lasts = False
    """Whether its name, too, is known to be durable, or will be by somebody's log."""

    def __init__(
        self, disk: Disk, path: str, opened: deque[Pack] | None = None, index: bytes = b""
    ) -> None:
        """Who has just written the index, and read it back, need not have it read once more."""
        self._fd = -1
        self._pages: dict[int, bytes] = {}
        self._recent: dict[int, tuple[Kind, bytes]] = {}
        self.disk = disk
        self.path = path
        self._opened = deque[Pack]() if opened is None else opened
        self._idx = index if 0 < len(index) <= MAP_ABOVE else _index_of(disk, path)
        size = len(self._idx)
        self.count: int = _NUMBER(self._idx, FANOUT + 4 * 255)[0]
        if self._idx[:8] != b"\xfftOc\0\0\0\2" or size < 1072 + 28 * self.count:
            raise Damaged(f"The index {path}.idx is damaged.", HINT)
        self._crcs = 1032 + 20 * self.count
        self._small = self._crcs + 4 * self.count
        self._large = self._small + 4 * self.count

    def close(self) -> None:
        if isinstance(self._idx, mmap.mmap):
            self._idx.close()
        self.rest()

    def __del__(self) -> None:
        """A store that is let go of must not keep descriptors."""
        self.rest()

    def rest(self) -> None:
        """Gives the descriptor back until the next read."""
        if self._fd >= 0:
            self.disk.close(self._fd)
            self._fd = -1
            self.forget()

    def forget(self) -> None:
        """What was read may have been read wrong, or be otherwise by now."""
        self._pages.clear()
        self._recent.clear()

    @property
    def fd(self) -> int:
        """Opened when first needed; of the packs of one store only so many stay open."""
        if self._fd < 0:
            self._fd = self.disk.open(self.path + ".pack", os.O_RDONLY)
            self._opened.append(self)
            if len(self._opened) > OPEN_PACKS:
                self._opened.popleft().rest()
        return self._fd

    def size(self) -> int:
        return self.disk.fstat(self.fd).st_size

    def oid(self, place: int) -> Oid:
        return Oid(self._idx[1032 + 20 * place : 1052 + 20 * place])

    def oids(self) -> list[Oid]:
        raw = self._idx[1032 : self._crcs]
        return [Oid(raw[at : at + 20]) for at in range(0, len(raw), 20)]

    def heads(self, count: int) -> list[bytes]:
        """The first bytes of all ids, then their second ones, and so on."""
        raw = self._idx[1032 : self._crcs]
        return [raw[at::20] for at in range(count)]

    def holds(self, oid: Oid) -> bool:
        return self.place(oid) is not None

    def place(self, oid: Oid) -> int | None:
        """Where in the index the object stands."""
        first = _NUMBER(self._idx, FANOUT - 4 + 4 * oid[0])[0] if oid[0] else 0
        last = _NUMBER(self._idx, FANOUT + 4 * oid[0])[0]
        if last - first > BISECT_ABOVE:
            at = bisect_left(range(first, last), oid, key=self.oid) + first
            return at if at < last and self.oid(at) == oid else None
        stop = 1032 + 20 * last
        at = self._idx.find(oid, 1032 + 20 * first, stop)
        while at >= 0 and (at - 1032) % 20:  # a hit that straddles two ids
            at = self._idx.find(oid, at + 1, stop)
        return (at - 1032) // 20 if at >= 0 else None

    def offset(self, place: int) -> int:
        (offset,) = _NUMBER(self._idx, self._small + 4 * place)
        if offset & 0x80000000:
            at = self._large + 8 * (offset & 0x7FFFFFFF)
            try:
                (offset,) = struct.unpack_from(">Q", self._idx, at)
            except struct.error as error:
                raise Damaged(f"{self.path}.idx points outside itself.", HINT) from error
        return offset  # type: ignore[no-any-return]

    def read(self, oid: Oid) -> tuple[Kind, bytes] | None:
        """The object, hash verified; None if the pack does not hold it."""
        place = self.place(oid)
        if place is None:
            return None
        try:
            kind, data = self._at(self.offset(place))
        except UNREADABLE as error:
            self.forget()
            raise Damaged(f"{self.path}.pack cannot give {oid.hex()}: {error}.", HINT) from error
        if hash_object(kind, data) != oid:
            self.forget()
            raise Damaged(f"{self.path}.pack holds other bytes for {oid.hex()}.", HINT)
        return kind, data

    def size_of(self, oid: Oid) -> int | None:
        """How long the object is, as the pack says; its content is neither read nor checked."""
        place = self.place(oid)
        if place is None:
            return None
        try:
            return self._size_at(self.offset(place))
        except UNREADABLE as error:
            self.forget()
            raise Damaged(f"{self.path}.pack cannot give {oid.hex()}: {error}.", HINT) from error

    def _head(self, offset: int) -> bytes:
        """The first bytes at a place, of the page that it is in: what was written with it is often
        read next, before or behind it."""
        number, at = divmod(offset, PAGE)
        page = self._pages.get(number)
        if page is None:
            if len(self._pages) >= PAGES:
                self._pages.clear()
            page = self._pages[number] = self.disk.pread(self.fd, PAGE + FIRST_READ, offset - at)
        return page[at : at + FIRST_READ]

    def _size_at(self, offset: int) -> int:
        """Of a delta by the second number in it: the first is the length of its base."""
        head = self._head(offset)
        number, size, at = parse_entry_header(head)
        if number in KINDS:
            return size
        _, at = self._base(number, offset, head, at)
        begun = zlib.decompressobj().decompress(head[at:], DELTA_SIZES)
        return parse_size(begun, skip_size(begun, 0))

    def _at(self, offset: int) -> tuple[Kind, bytes]:
        """Follows a chain of deltas down to its base, then applies it from there."""
        deltas: list[tuple[int, bytes]] = []
        while len(deltas) <= self.count:
            found = self._recent.get(offset)
            if found is not None:
                break
            head = self._head(offset)
            number, size, at = parse_entry_header(head)
            if number in KINDS:
                found = KINDS[number], self._inflate(offset, head, at, size)
                self._remember(offset, found)
                break
            base, at = self._base(number, offset, head, at)
            deltas.append((offset, self._inflate(offset, head, at, size)))
            offset = base
        else:
            raise Damaged(f"{self.path}.pack holds deltas that go in a circle.", HINT)
        for offset, delta in reversed(deltas):
            found = found[0], apply_delta(found[1], delta)
            self._remember(offset, found)
        return found

    def _remember(self, offset: int, found: tuple[Kind, bytes]) -> None:
        """What was read a moment ago is often the base of what is read next."""
        if len(found[1]) <= RECENT_BYTES:
            if len(self._recent) >= RECENT:
                self._recent.clear()
            self._recent[offset] = found

    def _base(self, number: int, offset: int, head: bytes, at: int) -> tuple[int, int]:
        if number == OFS_DELTA:
            distance, at = parse_distance(head, at)
            if not 0 < distance < offset:
                raise Damaged(f"{self.path}.pack holds a delta to nothing.", HINT)
            return offset - distance, at
        if number != REF_DELTA:
            raise Damaged(f"{self.path}.pack holds an entry of unknown type {number}.", HINT)
        place = self.place(Oid(head[at : at + 20]))
        if place is None:
            raise Damaged(f"{self.path}.pack lacks the base of a delta.", HINT)
        return self.offset(place), at + 20

    def _inflate(self, offset: int, head: bytes, at: int, size: int) -> bytes:
        stream = inflating(size)
        likely = at + size + SLACK  # seldom longer; what is given beside a stream would be copied
        data: bytes = stream.decompress(head[at:likely])
        if stream.eof and len(data) == size:
            return data
        parts, offset = [data, stream.decompress(head[likely:])], offset + len(head)
        while not stream.eof:
            more = self.disk.pread(self.fd, CHUNK, offset)
            if not more:
                raise Damaged(f"{self.path}.pack is cut short.", HINT)
            parts.append(stream.decompress(more))
            offset += len(more)
        data = b"".join(parts)
        if len(data) != size:
            raise Damaged(f"{self.path}.pack holds an object of the wrong size.", HINT)
        return data

    def check(self) -> None:
        """Reads the whole pack and its index back and compares both trailers."""
        index = self._idx[:]
        if hashlib.sha1(index[:-20], usedforsecurity=False).digest() != index[-20:]:
            raise Damaged(f"The index {self.path}.idx does not match its check sum.", HINT)
        with self.disk.opened(self.path + ".pack") as fd:
            size = self.disk.fstat(fd).st_size
            head = self.disk.pread(fd, 12, 0)
            if size < 32 or head != pack_header(self.count):
                raise Damaged(f"{self.path}.pack does not match its index.", HINT)
            trailer = self.disk.pread(fd, 20, size - 20)
            if trailer != index[-40:-20] or sums_of(self.disk, fd, size - 20)[0] != trailer:
                raise Damaged(f"{self.path}.pack does not match its check sum.", HINT)

    def spans(self) -> Iterator[tuple[Oid, int, int]]:
        """Every entry in the order of the file: its id, and where its bytes begin and end."""
        order = sorted(zip(self._offsets(), self.oids(), strict=True))
        ends = [offset for offset, _ in order[1:]] + [self.size() - TRAILER_BYTES]
        for (start, oid), end in zip(order, ends, strict=True):
            yield oid, start, end

    def _offsets(self) -> Sequence[int]:
        found = struct.unpack_from(f">{self.count}I", self._idx, self._small)
        if self._large == len(self._idx) - 2 * OID_BYTES:  # none is beyond two gigabytes
            return found
        return [self.offset(place) for place in range(self.count)]

    def crcs(self) -> dict[Oid, int]:
        """The check sum of each entry's bytes."""
        found = struct.unpack_from(f">{self.count}I", self._idx, self._crcs)
        return dict(zip(self.oids(), found, strict=True))
