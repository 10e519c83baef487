"""Freed memory goes back to the system."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

FREED = """
from tests.soak import Health
from watcher.memory import give_back
below = Health.now().memory
pins = []
for _ in range(2):
    large = []
    for _ in range(20):
        large.append(b"x" * (1 << 20))
        pins.append(b"y" * 50_000)
    large.clear()
    if sys.argv[1:]:
        give_back()
    print(Health.now().memory - below)
"""
"""The first time round glibc learns to keep what is so large; the second time it would keep it."""


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="NOT TESTED: no malloc_trim here"
)
def test_what_was_freed_is_not_held() -> None:
    assert held("give back") < 5 < 15 < held()


READY = """
import resource
from watcher.memory import have_some_ready, keep_some
keep_some()
for _ in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    file = b"x" * 3_500_000
    parts = [file[at : at + (1 << 20)] for at in range(0, len(file), 1 << 20)]
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    del file, parts
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="NOT TESTED: no mallopt here")
def test_memory_for_a_large_file_is_there_when_it_is_needed() -> None:
    """Without it such a file takes 1,700 page faults."""
    done = subprocess.run(
        [sys.executable, "-c", READY],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    assert max(map(int, done.stdout.split())) < 100


def held(*words: str) -> float:
    here = Path(__file__).parent.parent
    line = [sys.executable, "-c", "import sys" + FREED, *words]
    done = subprocess.run(line, cwd=here, capture_output=True, text=True, check=True)
    return max(map(float, done.stdout.split()))
