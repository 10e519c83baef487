"""That a soak, which finds what grows, does not grow itself."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from watcher.source import Hub

from .soak import Figures, Health, places

MANY = 10_000
FREED = """
from tests.soak import Health, give_back
give_back()
below = Health.now().memory
pins = []
for _ in range(2):
    large = []
    for _ in range(20):
        large.append(b"x" * (1 << 20))
        pins.append(b"y" * 50_000)
    large.clear()
    print(Health.now().memory - below)
"""
"""The first time round glibc learns to keep what is so large; the second time it would keep it."""


def test_nothing_is_kept_of_what_the_workspaces_of_a_soak_tell(tmp_path: Path) -> None:
    hub = Hub(str(tmp_path / "cookies"))
    lives = places(tmp_path, hub, str(tmp_path / "store"))
    for live in lives:
        live.write("a")
        assert live.ask().fresh
        live.stop()
    hub.close()
    assert all(live.told.empty() for live in lives)


def test_a_soak_keeps_little_of_each_turn() -> None:
    figures = Figures()
    tracemalloc.start()
    for number in range(MANY):
        figures.latencies.append(number / 7)
        figures.health.append(Health(number / 7, 20, 11))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 112 * MANY


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="NOT TESTED: no glibc")
def test_a_soak_holds_no_memory_that_was_freed() -> None:
    here = Path(__file__).parent.parent
    words = [sys.executable, "-c", FREED]
    done = subprocess.run(words, cwd=here, capture_output=True, text=True, check=True)
    assert max(map(float, done.stdout.split())) < 5
