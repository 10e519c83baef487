"""The format of git packs and their indexes, to bytes and back; pure."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import NamedTuple

from .model import Oid
from .objects import Kind

TYPES: dict[Kind, int] = {"commit": 1, "tree": 2, "blob": 3, "tag": 4}
KINDS: dict[int, Kind] = {number: kind for kind, number in TYPES.items()}
OFS_DELTA, REF_DELTA = 6, 7
HEADER_BYTES, TRAILER_BYTES = 12, 20
OID_BYTES = 20
SHIFTS = [[8 * bit for bit in range(7) if bits & (1 << bit)] for bits in range(128)]
"""Of the bytes that say what a delta copies: four of the place in the base, then three of the
length."""


class Entry(NamedTuple):
    """Where an object lies in a pack, and the check sum of its bytes there."""

    offset: int
    crc: int


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
    at = skip_size(delta, skip_size(delta, 0))
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


def skip_size(data: bytes, at: int) -> int:
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
    small, large = _offsets([entries[oid].offset for oid in oids])
    body = b"".join(
        (
            b"\xfftOc\0\0\0\2",
            _fanout(oids),
            b"".join(oids),
            struct.pack(f">{len(oids)}I", *(entries[oid].crc for oid in oids)),
            small,
            large,
            trailer,
        )
    )
    return body + hashlib.sha1(body, usedforsecurity=False).digest()


def _fanout(oids: Sequence[Oid]) -> bytes:
    """For each first byte of an id, how many have that or a lower one."""
    runs, filled = [], 0
    for before, oid in enumerate(oids):
        if oid[0] > filled:
            runs.append(before.to_bytes(4, "big") * (oid[0] - filled))
            filled = oid[0]
    runs.append(len(oids).to_bytes(4, "big") * (256 - filled))
    return b"".join(runs)


def _offsets(offsets: list[int]) -> tuple[bytes, bytes]:
    large = [offset for offset in offsets if offset >= 1 << 31]
    place = {offset: number for number, offset in enumerate(large)}
    small = [0x80000000 | place[o] if o >= 1 << 31 else o for o in offsets]
    return struct.pack(f">{len(small)}I", *small), struct.pack(f">{len(large)}Q", *large)


def pack_header(count: int) -> bytes:
    return b"PACK" + struct.pack(">II", 2, count)
