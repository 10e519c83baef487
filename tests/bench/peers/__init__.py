"""What people would use instead of turnmark, each behind the same few verbs.

`peer` is what all have in common, `here` says which of them this machine has. Knows no rows: who
asks what, how often and on which tree is none of its business.
"""

from __future__ import annotations

from collections.abc import Callable

from .archives import Borg, Restic
from .copies import Copies, Mirror
from .opencode import OpenCode, Seeded
from .peer import Peer, installed
from .shadow import PredecessorV1, PredecessorV2

Make = Callable[[str, str], Peer]

MAKERS: dict[str, Make] = {
    kind.name: kind
    for kind in (PredecessorV1, PredecessorV2, OpenCode, Seeded, Restic, Borg, Copies, Mirror)
}
PROGRAMS = {"restic": "restic", "borg": "borg", "rsync": "rsync"}
"""Those that are not on every machine; git is asked for by the tests as a whole."""
LOOKED_FOR_ONCE = {Seeded.name}
"""Differ from others in the first snapshot only."""


def missing() -> list[str]:
    return [name for name, program in PROGRAMS.items() if not installed(program)]


def makers(*, first: bool) -> dict[str, Make]:
    """Of those that this machine has; with first, also who differs only in a first snapshot."""
    out = {name: make for name, make in MAKERS.items() if name not in missing()}
    return {name: make for name, make in out.items() if first or name not in LOOKED_FOR_ONCE}


__all__ = ["MAKERS", "Make", "Peer", "makers", "missing"]
