"""Compression as git wants it (zlib streams), by isal where it is installed."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from concurrent.futures import Executor

LEVEL = 1
STORE_ABOVE = 0.95
PROBE = 1 << 16
HEAD = b"\x78\x01"
ONE_BLOCK = 0xFFFF
FASTER_FROM = 2_000
"""So many bytes isal inflates faster than zlib does, in the end twice as fast; fewer, slower."""

_stream: Callable[[int, int, int], Any]
_inflate: Callable[[], Any]
BROKEN: tuple[type[Exception], ...]
"""What is raised by a stream that is none."""
crc32: Callable[..., int]
try:
    from isal import isal_zlib
    from isal.igzip_lib import IsalError
except ImportError:  # no wheel for this machine: slower, and just as right
    FAST = False
    _compress, _stream, _check = zlib.compress, zlib.compressobj, zlib.adler32
    _inflate, BROKEN = zlib.decompressobj, (zlib.error,)
    crc32 = zlib.crc32
else:
    FAST = True
    _compress, _stream, _check = isal_zlib.compress, isal_zlib.compressobj, isal_zlib.adler32
    _inflate, BROKEN = isal_zlib.decompressobj, (zlib.error, cast(type[Exception], IsalError))
    crc32 = isal_zlib.crc32


def deflate(data: bytes) -> bytes:
    """A zlib stream; bytes that will not shrink are stored as they are."""
    if len(data) > 2 * PROBE and _will_not_shrink(data):
        return store(data)
    return _compress(data, LEVEL)


def inflating(size: int) -> Any:
    """What takes a zlib stream of so many bytes apart; it may raise one of BROKEN."""
    return _inflate() if size >= FASTER_FROM else zlib.decompressobj()


def store(data: bytes) -> bytes:
    """A zlib stream of the bytes as they are: a tenth of the time."""
    if len(data) > ONE_BLOCK:
        return b"".join(stored(data))
    return HEAD + _block(len(data), last=True) + data + _check(data).to_bytes(4, "big")


def stored(data: bytes) -> list[bytes | memoryview]:
    """The same, its parts not yet copied to one place, which takes longer than to write them.

    Put together here: zlib would prepare its tables for it first.
    """
    view = memoryview(data)
    parts: list[bytes | memoryview] = [HEAD]
    for at in range(0, len(data), ONE_BLOCK):
        part = view[at : at + ONE_BLOCK]
        parts += (_block(len(part), last=at + ONE_BLOCK >= len(data)), part)
    return [*parts, _check(data).to_bytes(4, "big")]


def stored_more(size: int) -> int:
    """So many bytes at most are added to what is stored as it is."""
    return 5 * (size // ONE_BLOCK + 1) + 6


def _block(size: int, *, last: bool) -> bytes:
    """What stands before bytes that are stored as they are."""
    return struct.pack("<BHH", last, size, size ^ ONE_BLOCK)


def is_stored(stream: bytes) -> bool:
    """Whether a stream begins as what `store` makes: with a block that is not compressed."""
    return stream.startswith(HEAD) and not stream[2] & 0b110


def deflate_halves(data: bytes, pool: Executor) -> Callable[[], bytes]:
    """Begins to make a zlib stream, both halves at a time; what is returned waits for them."""
    if _will_not_shrink(data):
        return pool.submit(store, data).result
    view, middle = memoryview(data), len(data) // 2
    halves = (
        pool.submit(_part, view[:middle], zlib.Z_SYNC_FLUSH),
        pool.submit(_part, view[middle:], zlib.Z_FINISH),
    )
    check = _check(data).to_bytes(4, "big")
    return lambda: b"".join([HEAD, *(half.result() for half in halves), check])


def _part(data: memoryview, end: int) -> bytes:
    """Raw, and ending on a whole byte, so that another may follow."""
    stream = _stream(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return b"".join((stream.compress(data), stream.flush(end)))


def _will_not_shrink(data: bytes) -> bool:
    return len(_compress(data[:PROBE], LEVEL)) > PROBE * STORE_ABOVE
