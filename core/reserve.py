"""A megabyte of a store that is nobody's: given up on a full disk, where without any room not even
old snapshots could be dropped.

Nothing depends on it: it may be there, be cut short, or be gone at any time.
"""

from __future__ import annotations

import os

from .disk import Disk

NAME = "turnmark/reserve"
BYTES = 1 << 20
PLENTY = 64 << 20
"""Where there is less than this, others need the room more."""


def keep(disk: Disk, base: str) -> None:
    """A disk that does not take it will tell whoever writes what is needed."""
    try:
        if disk.free(base) >= PLENTY:
            with disk.opened(f"{base}/{NAME}", os.O_WRONLY | os.O_CREAT) as fd:
                if disk.fstat(fd).st_size < BYTES:
                    disk.write(fd, os.urandom(BYTES))  # which no file system can keep in fewer
    except OSError:
        disk.discard(f"{base}/{NAME}")


def give_up(disk: Disk, base: str) -> None:
    """For whoever is going to make room, if he has none himself."""
    if disk.free(base) < BYTES:
        disk.discard(f"{base}/{NAME}")
