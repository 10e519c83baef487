"""The parts in which nothing is broken but others are at work: races, attacks, hostile bytes."""

from __future__ import annotations

from .crowd import PART as CROWD
from .frame import Part
from .fuzz import PARTS as FUZZ
from .hostile import PART as HOSTILE
from .paths import PART as PATHS
from .races import PART as RACES

OWN: tuple[Part, ...] = (RACES, PATHS, CROWD, HOSTILE, *FUZZ)
