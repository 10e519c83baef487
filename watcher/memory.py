"""What the C library does with freed memory, where it is glibc.

By default it gives that of a large file back at once, and to ask for it again takes longer than to
hash the file; and it keeps what is small for good, in an arena for each thread (20 MB after 20,000
turns).
"""

from __future__ import annotations

from core.libc import function

TRIM_THRESHOLD, MMAP_THRESHOLD, ARENA_MAX = -1, -3, -8
KEPT_BYTES = 1 << 24
READY_BYTES = 10 << 20
"""A file of four megabytes, what is made of it, and what is read back of that at a time."""


def keep_some() -> None:
    """For a process that is to answer quickly; before it has threads, which then share it all."""
    if (mallopt := function("mallopt")) is not None:
        mallopt(ARENA_MAX, 1)
        mallopt(MMAP_THRESHOLD, KEPT_BYTES)
        mallopt(TRIM_THRESHOLD, KEPT_BYTES)
    have_some_ready()


def have_some_ready() -> None:
    """Written to and freed, so that it is there when somebody waits."""
    bytes(b"\1" * READY_BYTES)


def give_back() -> None:
    """Takes milliseconds, in which other threads wait for memory."""
    if (trim := function("malloc_trim")) is not None:
        trim(0)
