"""The row about a disk such as most have: ext4 with a journal, on a loop device of its own."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import closing

from ..campaign.needs import MOUNTS, missing
from ..campaign.volume import call
from .apart import apart
from .bench import Bench
from .contenders import Wrong
from .measure import Result
from .rows_write import one_against_limit

NEEDS = (MOUNTS, "loop", "ext4")
BYTES = 8 << 30
"""Holes, but for what is written."""
INODES = 1 << 20
CLONE_NEWNS = 0x20000


class NotHere(Exception):
    """This machine lacks something that a row cannot do without."""


def journal(bench: Bench) -> Iterator[Result]:
    """One changed file, as in the row about limits."""
    if lack := missing(NEEDS):
        raise NotHere(lack)
    yield from apart(_on_a_disk_of_its_own, Bench(bench.scratch, bench.scale))


def _on_a_disk_of_its_own(bench: Bench) -> Iterator[Result]:
    """In a process that ends with it, and with which its mounts go."""
    image, where = bench.place("disk"), bench.place("mounted")
    with open(image, "wb") as file:
        file.truncate(BYTES)
    call("mkfs.ext4", "-q", "-F", "-N", str(INODES), image)
    os.mkdir(where)
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) < 0:
        raise OSError(ctypes.get_errno(), "no mount namespace of its own")
    call("mount", "--make-rprivate", "/")
    call("mount", "-o", "loop", image, where)
    try:
        with closing(Bench(where, bench.scale)) as inner:
            if not inner.pair(inner.scale.large)[0].store.order.is_kept:
                raise Wrong("ext4 with a journal is not known as what it is.")
            target = inner.place("plain")
            yield one_against_limit(inner, target, "1 changed in {:,}, ext4 with a journal")
    finally:
        call("umount", where)
        os.rmdir(where)
        os.unlink(image)
