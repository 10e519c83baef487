"""The whole objects of a pack whose index cannot be trusted, found by reading the pack itself.

Knows the bytes of one pack; not what its objects are good for.
"""

from __future__ import annotations

import hashlib
import mmap
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from .disk import CHUNK, Disk
from .errors import Damaged
from .model import Oid
from .objects import Kind, hash_object
from .packform import (
    KINDS,
    OFS_DELTA,
    REF_DELTA,
    Entry,
    apply_delta,
    parse_distance,
    parse_entry_header,
)
from .packs import Pack


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


def whole_objects(disk: Disk, path: str) -> Iterator[tuple[Kind, Oid, bytes]]:
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
