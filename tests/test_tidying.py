"""What a service leaves to a process of its own: it gets done, and may be killed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from core.counts import CountBook
from core.store import Store
from core.timeline import Timeline
from tests.stores import Bench, fsck
from watcher.context import Context
from watcher.tidying import Upkeep

PATIENCE = 60.0
MANY = 70


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def context(make_context: Callable[..., Context], bench: Bench) -> Context:
    return make_context(home=bench.home)


def fill(bench: Bench) -> None:
    for number in range(MANY):
        (bench.path / "a").write_text(f"{number}\n" * number)
        bench.point(f"{number}")


def until_done(upkeep: Upkeep) -> None:
    limit = time.monotonic() + PATIENCE
    while upkeep.is_busy():
        assert time.monotonic() < limit, "it takes too long"
        time.sleep(0.01)


def test_what_listings_show_is_counted_and_packs_become_few(context: Context, bench: Bench) -> None:
    fill(bench)
    before = len(bench.store.packs())
    upkeep = Upkeep(context)
    upkeep.start([bench.root])
    until_done(upkeep)
    store = Store.open(bench.store.base)
    assert (before, len(store.packs())) == (MANY, 1)
    pairs = Timeline(store, bench.root.id).pairs()
    book = CountBook(store)
    assert len(pairs) > MANY // 2
    assert all(book.get(old, new) for old, new in pairs)
    fsck(store.base)


def test_it_is_killed_without_harm(context: Context, bench: Bench) -> None:
    fill(bench)
    upkeep = Upkeep(context)
    for _ in range(3):
        upkeep.start([bench.root])
        upkeep.stop()
        assert not upkeep.is_busy()
    bench.point("after all")
    upkeep.start([bench.root])
    until_done(upkeep)
    fsck(bench.store.base)
    assert len(list(bench.history().marks())) == MANY + 1


def test_what_it_says_of_trouble_is_seen(context: Context, bench: Bench, capfd) -> None:
    fill(bench)
    Path(bench.store.base, "packed-refs").write_bytes(b"not a line")
    upkeep = Upkeep(context)
    upkeep.start([bench.root])
    until_done(upkeep)
    assert "packed-refs is damaged" in capfd.readouterr().err
