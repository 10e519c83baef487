"""The rows about what is kept: space, consolidation, reading, listing, and rolling back."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

from .bench import Bench
from .contenders import Skipped, Turnmark
from .measure import Result, bytes_ratio

WORKSPACES = 10


def copies(bench: Bench) -> Iterator[Result]:
    """One tree in ten workspaces; the contents are hard links, which no snapshot notices."""
    files = bench.scale.small
    base, sizes = bench.place("store"), []
    for _ in range(WORKSPACES):
        root = bench.place("copy")
        shutil.copytree(bench.tree(files), root, symlinks=True, copy_function=os.link)
        ours = Turnmark(base, root)
        ours.take()
        ours.close()
        sizes.append((bytes_below(f"{base}/objects"), bytes_below(base)))
        shutil.rmtree(root)
    shutil.rmtree(base)
    (one, one_all), (ten, ten_all) = sizes[0], sizes[-1]
    what = f"ten workspaces with the same {files:,}"
    yield bytes_ratio(f"{what}, objects", ten, one, "one", 1.1)
    yield bytes_ratio(f"{what}, with stat caches", ten_all, one_all, "one", None)


def bytes_below(top: str) -> int:
    """The sum of the sizes of all files."""
    walk = ((above, name) for above, _, names in os.walk(top) for name in names)
    return sum(os.lstat(os.path.join(above, name)).st_size for above, name in walk)


def kept(bench: Bench) -> Iterator[Result]:
    yield from _skipped("core.consolidate and core.sweep are not there yet")


def listing(bench: Bench) -> Iterator[Result]:
    yield from _skipped("the command line has no list yet")


def rollback(bench: Bench) -> Iterator[Result]:
    yield from _skipped("core.rollback is not there yet")


def _skipped(why: str) -> Iterator[Result]:
    raise Skipped(why)
