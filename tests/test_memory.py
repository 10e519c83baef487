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


def held(*words: str) -> float:
    here = Path(__file__).parent.parent
    line = [sys.executable, "-c", "import sys" + FREED, *words]
    done = subprocess.run(line, cwd=here, capture_output=True, text=True, check=True)
    return max(map(float, done.stdout.split()))
