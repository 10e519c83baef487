"""That a soak, which finds what grows, does not grow itself."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

from watcher.source import Hub

from .soak import Figures, Health, places

MANY = 10_000


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
