"""One git pack and its index: written, and read back with every byte checked.

Knows one directory of packs; not refs, locks, or which objects deserve to live.
"""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import struct
import threading
import zlib
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

from . import aside
from .deflate import (
    BROKEN,
    FAST,
    crc32,
    deflate,
    deflate_halves,
    inflating,
    store,
    stored,
    stored_more,
)
from .disk import CHUNK, Disk
from .errors import Damaged
from .model import Oid
from .objects import Kind, hash_object
from .spares import Spare, Spares

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

Part = bytes | memoryview
TYPES: dict[Kind, int] = {"commit": 1, "tree": 2, "blob": 3, "tag": 4}
KINDS: dict[int, Kind] = {number: kind for kind, number in TYPES.items()}
OFS_DELTA, REF_DELTA = 6, 7
HEADER_BYTES, TRAILER_BYTES = 12, 20
OID_BYTES = 20
UNNAMED = Oid(b"")
"""Stands for the id of a blob that is written before its id is known."""
SLACK = 64
"""So much longer than its content a compressed object seldom is."""
RECENT, RECENT_BYTES = 64, 1 << 12
"""So many objects of at most so many bytes each are kept of an open pack."""
_NUMBER = struct.Struct(">I").unpack_from
BATCH_BYTES = 1 << 18
BATCHES_AHEAD = 6
LARGE_BYTES = 1 << 20
"""An object above it is worth two threads of its own."""
WORKERS = 2
BEHIND_ABOVE = 0 if not FAST else 1 << 15
"""Mean size of the objects of a batch that are worth handing to a thread: with isal small ones are
done before the fight for the GIL is (1,000 changed files: 140 ms of CPU here, 200 ms there)."""
HELD_BYTES = 1 << 22
"""A pack that is smaller is held until it is written, and need not be read for its check sum."""
FIRST_READ = 4096
PAGE, PAGES = FIRST_READ, 16
"""Of an open pack so many pages are kept, each with the beginning of the next one; of all of them
together 8 MB at most."""
DELTA_SIZES = 20
"""Bytes that hold both lengths at the head of any delta."""
SHIFTS = [[8 * bit for bit in range(7) if bits & (1 << bit)] for bits in range(128)]
"""Of the bytes that say what a delta copies: four of the place in the base, then three of the
length."""
BISECT_ABOVE = 512
MAP_ABOVE = 1 << 16
OPEN_PACKS = 64
TEMPORARY = "writing-"
"""Our unfinished files start so, and not with tmp_, which a user's `git prune` would remove."""

UNREADABLE: tuple[type[Exception], ...]
UNREADABLE = (*BROKEN, OSError, OverflowError, IndexError, struct.error)
"""What reading a damaged pack may raise."""
HINT = "Run `turnmark store verify`; `turnmark store repair` keeps what is whole."


Packed = tuple[Oid, int, bytes]
"""An object as its pack will hold it, with the check sum of that."""


class Entry(NamedTuple):
    """Where an object lies in a pack, and the check sum of its bytes there."""

    offset: int
    crc: int


NOWHERE = Entry(-1, 0)
"""Of an object that is not compressed yet; no index can be written with it."""


def entry_header(number: int, size: int) -> bytes:
    byte = (number << 4) | (size & 15)
    size >>= 4
    out = bytearray()
    while size:
        out.append(byte | 0x80)
        byte = size & 0x7F
        size >>= 7
    out.append(byte)
    return bytes(out)


def parse_entry_header(data: bytes) -> tuple[int, int, int]:
    """Type number, inflated size, and the header's length."""
    byte, at, shift = data[0], 1, 4
    number, size = (byte >> 4) & 7, byte & 15
    while byte & 0x80:
        byte = data[at]
        size |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return number, size, at


def encode_distance(distance: int) -> bytes:
    """How far before a delta its base lies, in git's offset encoding."""
    out = [distance & 0x7F]
    while distance := distance >> 7:
        distance -= 1
        out.append(0x80 | (distance & 0x7F))
    return bytes(out[::-1])


def parse_distance(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    distance = byte & 0x7F
    while byte & 0x80:
        at += 1
        byte = data[at]
        distance = ((distance + 1) << 7) | (byte & 0x7F)
    return distance, at + 1


def apply_delta(base: bytes, delta: bytes) -> bytes:
    """What is copied from the base says by its bits which bytes of place and length follow."""
    at = _skip_size(delta, _skip_size(delta, 0))
    out: list[bytes] = []
    while at < len(delta):
        command = delta[at]
        at += 1
        if not command & 0x80:
            out.append(delta[at : at + command])
            at += command
            continue
        numbers = 0
        for shift in SHIFTS[command & 0x7F]:
            numbers |= delta[at] << shift
            at += 1
        offset, size = numbers & 0xFFFFFFFF, numbers >> 32
        out.append(base[offset : offset + (size or 0x10000)])
    return b"".join(out)


def _skip_size(data: bytes, at: int) -> int:
    while data[at] & 0x80:
        at += 1
    return at + 1


def parse_size(data: bytes, at: int) -> int:
    """A number at the head of a delta: seven bits a byte, the lowest first."""
    size = shift = 0
    while data[at] & 0x80:
        size |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return size | data[at] << shift


def encode_index(entries: dict[Oid, Entry], trailer: bytes) -> bytes:
    """A version 2 index of a pack."""
    oids = sorted(entries)
    fanout = [0] * 256
    for oid in oids:
        fanout[oid[0]] += 1
    for place in range(1, 256):
        fanout[place] += fanout[place - 1]
    small, large = _offsets([entries[oid].offset for oid in oids])
    body = b"".join(
        (
            b"\xfftOc\0\0\0\2",
            struct.pack(">256I", *fanout),
            b"".join(oids),
            struct.pack(f">{len(oids)}I", *(entries[oid].crc for oid in oids)),
            small,
            large,
            trailer,
        )
    )
    return body + hashlib.sha1(body, usedforsecurity=False).digest()


def _offsets(offsets: list[int]) -> tuple[bytes, bytes]:
    large = [offset for offset in offsets if offset >= 1 << 31]
    place = {offset: number for number, offset in enumerate(large)}
    small = [0x80000000 | place[o] if o >= 1 << 31 else o for o in offsets]
    return struct.pack(f">{len(small)}I", *small), struct.pack(f">{len(large)}Q", *large)


@cache
def _workers(process: int) -> ThreadPoolExecutor:
    """Of this process, for all its packs: threads do not come along when it forks."""
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(WORKERS, thread_name_prefix="turnmark-deflate")


@cache
def _awake(process: int) -> None:
    for _ in range(WORKERS):
        _workers(process).submit(int)


def wake_workers() -> None:
    """To start them takes milliseconds, once."""
    _awake(os.getpid())
    aside.wake()


class PackWriter:
    """Owns one unfinished pack; until `place` nothing of it can be seen, and `drop` undoes it."""

    def __init__(
        self, disk: Disk, directory: str, spares: Spares | None = None, *, in_haste: bool = False
    ) -> None:
        """In haste the last batch, most often the only one, is not compressed either."""
        self.disk = disk
        self.directory = directory
        self.in_haste = in_haste
        self._spares = spares or Spares(disk, f"{directory}/{TEMPORARY}")
        self.entries: dict[Oid, Entry] = {}
        self.size = HEADER_BYTES
        self._crc, self._flushed = 0, False
        self._stored: frozenset[Kind] = frozenset({"tree"})
        """What is not compressed now, but when packs are consolidated: of trees little else than
        ids would be left."""
        self._part, self._fd = self._spares.take()
        self._trailer: bytes | None = None
        self._idx: Spare | None = None
        self.index = b""
        self._out: list[Part] = [bytes(HEADER_BYTES)]
        self._written: list[bytes] = []
        """All of a sealed pack, to compare with what is read back; of a large one nothing."""
        self._buffered = 0
        self._batch: list[tuple[Kind, Oid, bytes]] = []
        self._batch_bytes = 0
        self._ahead: deque[Callable[[], list[Packed]]] = deque()
        self._adding = threading.Lock()

    def __contains__(self, oid: Oid) -> bool:
        return oid in self.entries

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, kind: Kind, oid: Oid, data: bytes) -> None:
        """Compresses batch by batch, in the background where that pays."""
        with self._adding:
            if oid in self.entries:
                return
            self.entries[oid] = NOWHERE
            if len(data) >= LARGE_BYTES:
                self._compress_large(kind, oid, data)
                return
            if len(data) >= BATCH_BYTES:
                self._compress_behind([(kind, oid, data)])
                return
            self._batch.append((kind, oid, data))
            self._batch_bytes += len(data)
            if self._batch_bytes >= BATCH_BYTES:
                self._compress()

    def put_alone(self, data: bytes) -> None:
        """One blob and nothing else, as it is; it is on its way to the disk while the digest of the
        pack is made. What its id is, `name_it` says later."""
        self._out[0] = _pack_header(1)
        head = entry_header(TYPES["blob"], len(data))
        self.copy(UNNAMED, (head, *stored(data)))
        self._write_held()
        self.disk.write_out(self._fd, wait=False)
        self._trailer = self._digest_of_held()
        self._write_held()

    def name_it(self, oid: Oid) -> None:
        self.entries = {oid: self.entries[UNNAMED]}

    def copy(self, oid: Oid, parts: Iterable[Part]) -> int:
        """Appends an entry whose bytes are already as the pack wants them; returns its offset."""
        crc = 0
        offset = self.size
        for part in parts:
            crc = crc32(part, crc)
            self._append(part)
        self.entries[oid] = Entry(offset, crc)
        return offset

    def finish(self, settle: Callable[[Sequence[int]], None]) -> str:
        """Puts pack and index in place, once they are settled; to read them back is left."""
        settle(self.seal())
        return self.place()

    def seal(self) -> Sequence[int]:
        """Writes what is left, and the index; returns what is to be settled before it is placed."""
        if self._trailer is None:
            self._settle()
            self._trailer = self._seal()
        self._idx = self._spares.take()
        self.index = encode_index(self.entries, self._trailer)
        self.disk.write(self._idx.fd, self.index)
        return self._fd, self._idx.fd

    def check(self) -> None:
        """Reads a sealed pack and its index back, before anybody can count on what is in them."""
        assert self._trailer is not None and self._idx is not None
        if not self._reads_back(self._idx.fd, [self.index]):
            raise Damaged("An index reads back otherwise than it was written.", HINT)
        if self._written:
            whole = self._reads_back(self._fd, self._written)
        else:
            whole = _sums_of(self.disk, self._fd, self.size)[0] == self._trailer
        if not whole:
            raise Damaged("A pack reads back otherwise than it was written.", HINT)

    def _reads_back(self, fd: int, written: Iterable[bytes]) -> bool:
        """All of it, and nothing behind it."""
        at = 0
        for part in written:
            if self.disk.pread_exactly(fd, len(part), at) != part:
                return False
            at += len(part)
        return self.disk.fstat(fd).st_size == at

    def place(self) -> str:
        """Gives a sealed pack and its index their names, of which it returns the common path;
        syncing the directory is left."""
        assert self._trailer is not None and self._idx is not None
        path = f"{self.directory}/pack-{self._trailer.hex()}"
        for fd in (self._fd, self._idx.fd):
            self.disk.chmod(fd, 0o400)
        self.disk.rename(self._part, path + ".pack")
        self.disk.rename(self._idx.path, path + ".idx")
        self._close()
        return path

    def drop(self) -> None:
        """Forgets the pack; what cannot be unlinked now is swept up with other left-overs later."""
        parts = [self._part, *([self._idx.path] if self._idx else [])]
        try:
            self._close()
        finally:
            for part in parts:
                self.disk.discard(part)

    def _compress(self) -> None:
        batch, size = self._batch, self._batch_bytes
        self._batch, self._batch_bytes = [], 0
        if size <= BEHIND_ABOVE * len(batch):
            self._write_entries(_compress_all(batch, stored=self._stored))
        else:
            self._compress_behind(batch)

    def _compress_large(self, kind: Kind, oid: Oid, data: bytes) -> None:
        head = entry_header(TYPES[kind], len(data))
        halves = deflate_halves(data, _workers(os.getpid()))
        self._later(lambda: [_packed(oid, head + halves())])

    def _compress_behind(self, batch: list[tuple[Kind, Oid, bytes]]) -> None:
        work = partial(_compress_all, batch, stored=self._stored)
        self._later(_workers(os.getpid()).submit(work).result)

    def _later(self, result: Callable[[], list[Packed]]) -> None:
        self._ahead.append(result)
        while len(self._ahead) > BATCHES_AHEAD:
            self._write_entries(self._ahead.popleft()())

    def _settle(self) -> None:
        rest = _compress_all(self._batch, stored=TYPES if self.in_haste else self._stored)
        self._batch, self._batch_bytes = [], 0
        while self._ahead:
            self._write_entries(self._ahead.popleft()())
        self._write_entries(rest)

    def _write_entries(self, entries: list[Packed]) -> None:
        for oid, crc, data in entries:
            self.entries[oid] = Entry(self.size, crc)
            self._append(data)

    def _append(self, data: Part) -> None:
        self._out.append(data)
        self.size += len(data)
        self._buffered += len(data)
        if self._buffered >= (CHUNK if self._flushed else HELD_BYTES):
            self._flush()

    def _flush(self) -> None:
        """From now on nothing is held."""
        self._write_held()
        for place, part in enumerate(self._written):
            begin = HEADER_BYTES if place == 0 and not self._flushed else 0
            self._crc = crc32(memoryview(part)[begin:], self._crc)
        self._flushed, self._buffered, self._written = True, 0, []
        self._stored = frozenset()

    def _write_held(self) -> None:
        for part in _gathered(self._out):
            self.disk.write(self._fd, part)
            self._written.append(part)
        self._out = []

    def _seal(self) -> bytes:
        """Writes the header, now that the count is known, and the trailer over everything."""
        header = _pack_header(len(self.entries))
        if not self._flushed:
            self._out = [b"".join((header, *self._out[1:]))]
            trailer = self._digest_of_held()
            self._write_held()
            return trailer
        self._flush()
        os.lseek(self._fd, 0, os.SEEK_SET)
        self.disk.write(self._fd, header)
        os.lseek(self._fd, 0, os.SEEK_END)
        trailer, crc = _sums_of(self.disk, self._fd, self.size)
        if crc != self._crc:
            raise OSError(errno.EIO, "other bytes were read back than were written", self._part)
        self.disk.write(self._fd, trailer)
        return trailer

    def _digest_of_held(self) -> bytes:
        """Of all of a pack that is held, which it then ends."""
        digest = hashlib.sha1(usedforsecurity=False)
        for part in (*self._written, *self._out):
            digest.update(part)
        self._out.append(digest.digest())
        return digest.digest()

    def _close(self) -> None:
        fds = [self._fd, *([self._idx.fd] if self._idx else [])]
        self._fd, self._idx = -1, None  # before an error: the next file may get their numbers
        with ExitStack() as left:
            for fd in fds:
                if fd >= 0:
                    left.callback(self.disk.close, fd)


class Alone:
    """Owns a pack of one blob, which another thread writes while the id of the blob is found out.

    For a large file that somebody waits for: to compress it would take as long as all else.
    """

    def __init__(self, disk: Disk, directory: str, spares: Spares, data: bytes) -> None:
        self.data = data
        self.oid: Oid | None = None
        """None for as long as nobody wants it stored."""
        self._pack = PackWriter(disk, directory, spares)
        self._writing = aside.begin(partial(self._pack.put_alone, data))

    @staticmethod
    def suits(size: int, others: int) -> bool:
        """Whether a file is worth it, and memory will hold it beside so many bytes of others."""
        return LARGE_BYTES <= size < HELD_BYTES - others - stored_more(size) - SLACK

    def pack_of(self, oid: Oid) -> PackWriter:
        """The pack, written but not sealed."""
        self._writing.result()
        self._pack.name_it(oid)
        return self._pack

    def drop(self) -> None:
        try:
            self._writing.wait()
        finally:
            self._pack.drop()


def _pack_header(count: int) -> bytes:
    return b"PACK" + struct.pack(">II", 2, count)


def _gathered(parts: Iterable[Part]) -> Iterator[bytes]:
    """A megabyte at a time: less takes longer to write, more to find the memory for."""
    some: list[Part] = []
    size = 0
    for part in parts:
        some.append(part)
        size += len(part)
        if size >= CHUNK:
            yield b"".join(some)
            some, size = [], 0
    if some:
        yield b"".join(some)


def _compress_all(batch: list[tuple[Kind, Oid, bytes]], stored: Container[Kind]) -> list[Packed]:
    """But for the kinds that are stored as they are."""
    return [
        _packed(
            oid,
            entry_header(TYPES[kind], len(data))
            + (store(data) if kind in stored else deflate(data)),
        )
        for kind, oid, data in batch
    ]


def recompressed(kind: Kind, oid: Oid, header: bytes, stream: bytes) -> bytes:
    """The entry of what was stored in haste, as small as it can be."""
    try:
        data = zlib.decompress(stream)
    except zlib.error as error:
        raise Damaged(f"A pack cannot give {oid.hex()}: {error}.", HINT) from error
    if hash_object(kind, data) != oid:
        raise Damaged(f"A pack holds other bytes for {oid.hex()}.", HINT)
    return header + deflate(data)


def _packed(oid: Oid, entry: bytes) -> Packed:
    return oid, crc32(entry), entry


def _sums_of(disk: Disk, fd: int, size: int) -> tuple[bytes, int]:
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
        self._fanout = struct.unpack_from(">256I", self._idx, 8)
        self.count = self._fanout[255]
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
        first = self._fanout[oid[0] - 1] if oid[0] else 0
        last = self._fanout[oid[0]]
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
        return parse_size(begun, _skip_size(begun, 0))

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
            if size < 32 or head != b"PACK" + struct.pack(">II", 2, self.count):
                raise Damaged(f"{self.path}.pack does not match its index.", HINT)
            trailer = self.disk.pread(fd, 20, size - 20)
            if trailer != index[-40:-20] or _sums_of(self.disk, fd, size - 20)[0] != trailer:
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
