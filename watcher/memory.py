"""What the C library does with freed memory, where it is glibc.

By default it gives a file's worth back at once, and to ask for it again takes longer than to hash
the file (a turn with one of 3 MB: 11 ms instead of 8.5); and it keeps small pieces for good, in an
arena for each thread (20 MB after 20,000 turns).
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8
KEPT_BYTES = 1 << 24
TOUCHED_BYTES = 1 << 23


@cache
def _known(name: str) -> Any:
    """None where the C library does not know it."""
    return getattr(ctypes.CDLL(None), name, None)


def keep_some() -> None:
    """For a process that is to answer quickly; before it has threads."""
    if (mallopt := _known("mallopt")) is not None:
        for what, much in (
            (ARENA_MAX, 2),
            (MMAP_THRESHOLD, KEPT_BYTES),
            (TRIM_THRESHOLD, KEPT_BYTES),
        ):
            mallopt(what, much)
        _touch()


def give_back() -> None:
    """Takes milliseconds, in which other threads wait for memory."""
    if (trim := _known("malloc_trim")) is not None:
        trim(0)
        _touch()


def _touch() -> None:
    """Lets what is kept be there before it is needed."""
    b"\1" * TOUCHED_BYTES
