"""Compression as git wants it (zlib streams), by isal where it is installed."""

from __future__ import annotations

import zlib
from collections.abc import Callable

Compress = Callable[[bytes], bytes]

LEVEL = 1
STORE_ABOVE = 0.95
PROBE = 1 << 16

try:
    from isal import isal_zlib
except ImportError:  # no wheel for this machine: slower, and just as right
    FAST = False

    def _compress(data: bytes) -> bytes:
        return zlib.compress(data, LEVEL)

else:
    FAST = True

    def _compress(data: bytes) -> bytes:
        return isal_zlib.compress(data, LEVEL)


def deflate(data: bytes) -> bytes:
    """A zlib stream; bytes that will not shrink are stored as they are."""
    if len(data) > 2 * PROBE and len(_compress(data[:PROBE])) > PROBE * STORE_ABOVE:
        return zlib.compress(data, 0)
    return _compress(data)
