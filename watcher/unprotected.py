"""What a snapshot does not hold, with the sizes it has on disk, so that nobody has to guess.

Looks at names and sizes only; knows nothing of why a rule leaves something out.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from core.beneath import Beneath
from core.disk import REAL
from core.errors import BadInput
from core.model import Gap, GapReason, RelPath, join

from .output import size
from .words import count, left_cut, named

LOOKS = 50_000
"""Entries that are looked at for sizes, about a quarter of a second; what is left is a minimum."""


@dataclass(frozen=True, slots=True)
class Unprotected:
    """A gap and the bytes found in it; `whole` unless the looking stopped before its end."""

    path: RelPath
    reason: GapReason
    bytes: int
    whole: bool
    is_dir: bool


class _Budget:
    """Owns the looks that are left."""

    def __init__(self, looks: int) -> None:
        self.left = looks

    def take(self) -> bool:
        self.left -= 1
        return self.left >= 0


def measure(root: bytes, gaps: Iterable[Gap], looks: int = LOOKS) -> list[Unprotected]:
    """Every gap that is still there, the biggest first; nothing of a root that is away."""
    budget = _Budget(looks)
    try:
        with Beneath(REAL, root) as beneath:
            found = list(filter(None, [_measure_one(beneath, gap, budget) for gap in gaps]))
    except BadInput:
        return []
    return sorted(found, key=lambda one: (-one.bytes, one.path))


def _measure_one(beneath: Beneath, gap: Gap, budget: _Budget) -> Unprotected | None:
    try:
        info = beneath.lstat(gap.path)
    except OSError:
        return None
    if info is None:
        return None  # gone since, so there is nothing to protect
    is_dir = stat.S_ISDIR(info.st_mode)
    total = sum(_sizes(beneath, gap.path, budget)) if is_dir else info.st_size
    return Unprotected(gap.path, gap.reason, total, not is_dir or budget.left >= 0, is_dir)


def _sizes(beneath: Beneath, directory: RelPath, budget: _Budget) -> Iterator[int]:
    """Links are not followed; what cannot be looked into has no size that we could tell."""
    waiting = [directory]
    while waiting:
        path = waiting.pop()
        try:
            with os.scandir(beneath.dir(path)) as found:
                for entry in found:
                    if not budget.take():
                        return
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(join(path, os.fsencode(entry.name)))
                    else:
                        yield entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue


def lines(found: list[Unprotected], most: int) -> list[str]:
    """At most so many lines: a heading, the biggest, and how many more there are."""
    if not found:
        return []
    total = size(sum(one.bytes for one in found))
    least = "" if all(one.whole for one in found) else "at least "
    head = f"Not protected: {count(len(found), 'path')}, {least}{total}"
    shown = found if len(found) < most else found[: most - 2]
    rows = [_line(one) for one in shown]
    rest = found[len(shown) :]
    if rest:
        rows.append(f"  ... {len(rest):,} more, {size(sum(one.bytes for one in rest))}")
    return [head, *rows]


def _line(one: Unprotected) -> str:
    name = left_cut(named(one.path), 44) + "/" * one.is_dir
    amount = size(one.bytes) + ("" if one.whole else "+")
    return f"  {amount:>8}  {one.reason:<11}  {name}"
