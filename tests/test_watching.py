"""Which workspaces are watched, while others come and go."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from core.store import Store
from tests.watching import until
from watcher.config import Config
from watcher.context import context_from
from watcher.watching import Watching


@pytest.fixture
def watching(tmp_path: Path):
    home = tmp_path / "home"
    context = context_from({"HOME": str(tmp_path / "user"), "TURNMARK_HOME": str(home)})
    Store.create(str(context.store_path))
    made = Watching(context, None, "no events here", lambda _: None)
    made.apply(Config())
    yield made
    made.stop(10)


@pytest.mark.parametrize("way", ["release", "unwatch"])
def test_a_workspace_that_is_slow_to_end_holds_up_nobody_else(watching, tmp_path, way):
    """Found by a review: a session that was closed during its baseline stopped all turns."""
    slow, other = tmp_path / "slow", tmp_path / "other"
    slow.mkdir()
    other.mkdir()
    looks, leave = threading.Event(), threading.Event()

    def looked(recorder) -> None:
        if recorder.root.shown == str(slow):
            looks.set()
            assert leave.wait(10)

    watching.looked = looked
    first = watching.watch(str(slow), "session:s")
    assert looks.wait(10)
    away = {"release": "session:s", "unwatch": str(slow)}[way]
    closing = threading.Thread(target=getattr(watching, way), args=(away,))
    again = threading.Thread(target=watching.watch, args=(str(slow), "session:t"))
    try:
        closing.start()
        until(lambda: not watching.all())
        again.start()
        watched = watching.watch(str(other), "session:t")
        assert watched.ready.wait(10)
        assert closing.is_alive()
        assert again.is_alive()
        assert [workspace.root.shown for workspace in watching.all()] == [str(other)]
    finally:
        leave.set()
        closing.join(10)
        again.join(10)
    assert first.join(10)
    until(lambda: len(watching.all()) == 2)
    assert watching.find(str(slow)) is not first
