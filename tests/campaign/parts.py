"""The list of all parts, in the order of the table."""

from __future__ import annotations

from .blocks import JOURNALED, PLAIN
from .damage import PART as DAMAGE
from .frame import Part
from .full import PART as FULL
from .kills import PART as KILLS
from .mutation import PART as MUTATION
from .nth import PART as NTH
from .own import OWN
from .powercut import EXT4, XFS
from .roots import PART as ROOTS
from .service import PART as SERVICE
from .syscalls import PART as SYSCALLS
from .unsynced import PART as UNSYNCED

PARTS: tuple[Part, ...] = (
    KILLS,
    SERVICE,
    SYSCALLS,
    EXT4,
    XFS,
    JOURNALED,
    PLAIN,
    NTH,
    FULL,
    DAMAGE,
    ROOTS,
    UNSYNCED,
    *OWN,
    MUTATION,
)
