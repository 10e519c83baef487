"""Packs in the making: seen by nobody until they are whole, on disk, and have their names.

Knows one directory of packs; not refs, locks, or which objects deserve to live.
"""

from __future__ import annotations

import errno
import hashlib
import os
import threading
import zlib
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache, partial
from typing import TYPE_CHECKING

from . import aside
from .deflate import (
    FAST,
    crc32,
    deflate,
    deflate_halves,
    store,
    stored,
    stored_more,
)
from .disk import CHUNK, Disk
from .errors import Damaged
from .model import Oid
from .objects import Kind, hash_object
from .packform import (
    HEADER_BYTES,
    TYPES,
    Entry,
    encode_index,
    entry_header,
    pack_header,
)
from .packs import HINT, SLACK, sums_of
from .spares import Spare, Spares

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

Part = bytes | memoryview
UNNAMED = Oid(b"")
"""Stands for the id of a blob that is written before its id is known."""
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
TEMPORARY = "writing-"
"""Our unfinished files start so, and not with tmp_, which a user's `git prune` would remove."""
Packed = tuple[Oid, int, bytes]
"""An object as its pack will hold it, with the check sum of that."""
NOWHERE = Entry(-1, 0)
"""Of an object that is not compressed yet; no index can be written with it."""


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


def pack_spares(disk: Disk, directory: str) -> Spares:
    """What is written once, and not again."""
    return Spares(disk, f"{directory}/{TEMPORARY}", 0o400)


class PackWriter:
    """Owns one unfinished pack; until `place` nothing of it can be seen, and `drop` undoes it."""

    def __init__(
        self, disk: Disk, directory: str, spares: Spares | None = None, *, in_haste: bool = False
    ) -> None:
        """In haste the last batch, most often the only one, is not compressed either."""
        self.disk = disk
        self.directory = directory
        self.in_haste = in_haste
        self._spares = spares or pack_spares(disk, directory)
        self.entries: dict[Oid, Entry] = {}
        self.size = HEADER_BYTES
        self._crc, self._flushed = 0, False
        self._stored: frozenset[Kind] = frozenset({"tree"})
        """What is not compressed now, but when packs are consolidated: of trees little else than
        ids would be left."""
        self._part, self._fd, _ = self._spares.take()
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
        self._out[0] = pack_header(1)
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

    def written(self) -> bytes:
        """A sealed pack, which must be a small one: others are not held."""
        return b"".join(self._written)

    def check(self) -> None:
        """Reads a sealed pack and its index back, before anybody can count on what is in them."""
        assert self._trailer is not None and self._idx is not None
        if not self._reads_back(self._idx.fd, [self.index]):
            raise Damaged("An index reads back otherwise than it was written.", HINT)
        if self._written:
            whole = self._reads_back(self._fd, self._written)
        else:
            whole = sums_of(self.disk, self._fd, self.size)[0] == self._trailer
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
        header = pack_header(len(self.entries))
        if not self._flushed:
            self._out = [b"".join((header, *self._out[1:]))]
            trailer = self._digest_of_held()
            self._write_held()
            return trailer
        self._flush()
        os.lseek(self._fd, 0, os.SEEK_SET)
        self.disk.write(self._fd, header)
        os.lseek(self._fd, 0, os.SEEK_END)
        trailer, crc = sums_of(self.disk, self._fd, self.size)
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
