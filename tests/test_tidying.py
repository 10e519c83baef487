"""What a service leaves to a process of its own: it gets done, and may be killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from core import deep
from core.counts import CountBook
from core.store import Store
from core.timeline import Timeline
from core.verify import verify
from tests.live import is_running, until
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


# While nothing happens


def outgrow(bench: Bench) -> None:
    """As much as makes a deep repack worth while."""
    text = "".join(f"{number} {number * number}\n" for number in range(40_000))
    for turn in range(4):
        (bench.path / "long").write_text(f"{turn}\n{text}{os.urandom(300_000).hex()}")
        bench.point(f"{turn}")


def packed(store: Store) -> int:
    return sum(pack.size() for pack in store.packs())


def test_in_a_long_rest_packs_become_small(context: Context, bench: Bench) -> None:
    outgrow(bench)
    before = packed(bench.store)
    upkeep = Upkeep(context)
    upkeep.start_deep()
    until_done(upkeep)
    store = Store.open(bench.store.base)
    assert len(store.packs()) == 1
    assert packed(store) < before
    assert verify(store).ok
    fsck(store.base)


def test_not_where_nobody_wants_to_be_cleaned_up(make_context, bench: Bench, tmp_path) -> None:
    outgrow(bench)
    config = tmp_path / "config.yaml"
    config.write_text("store: {auto_prune: false}\n")
    context = make_context(home=bench.home, config_path=config, config_named=True)
    before = packed(bench.store)
    upkeep = Upkeep(context)
    upkeep.start_deep()
    until_done(upkeep)
    assert packed(Store.open(bench.store.base)) == before


HANGING = """#!/bin/sh
sleep 600 &
echo $! >{said}
mv {said} {pid}
wait
"""


@pytest.mark.parametrize("end", ["give_way", "stop"])
def test_who_works_again_is_given_way_to(
    context: Context, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    outgrow(bench)
    before = packed(bench.store)
    pid = tmp_path / "pid"
    slow = tmp_path / "bin/git"
    slow.parent.mkdir()
    slow.write_text(HANGING.format(said=tmp_path / "said", pid=pid))
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    upkeep = Upkeep(context)
    upkeep.start_deep()
    until(pid.exists)
    for _ in range(40):  # as many as ask at once for something
        getattr(upkeep, end)()
        assert upkeep.process is not None
        upkeep.process.terminate()
    until_done(upkeep)
    until(lambda: not is_running(int(pid.read_text())))
    assert os.listdir(f"{bench.store.base}/turnmark/tmp") == []
    assert packed(Store.open(bench.store.base)) == before
    monkeypatch.undo()
    upkeep.start_deep()
    until_done(upkeep)
    assert packed(Store.open(bench.store.base)) < before


@pytest.mark.skipif(
    "setpriv" not in " ".join(deep._unhurried()), reason="needs a setpriv that knows --pdeathsig"
)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP])
def test_git_does_not_outlive_who_started_it(
    context: Context, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    outgrow(bench)
    pid, slow = tmp_path / "pid", tmp_path / "bin/git"
    slow.parent.mkdir()
    slow.write_text(
        f"#!/bin/sh\necho $$ >{tmp_path}/said\nmv {tmp_path}/said {pid}\nexec sleep 600\n"
    )
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    upkeep = Upkeep(context)
    upkeep.start_deep()
    until(pid.exists)
    assert upkeep.process is not None
    upkeep.process.send_signal(number)
    try:
        until_done(upkeep)
        until(lambda: not is_running(int(pid.read_text())))
    finally:
        upkeep.stop()


def test_a_usual_upkeep_goes_on_when_somebody_works(context: Context, bench: Bench) -> None:
    fill(bench)
    upkeep = Upkeep(context)
    upkeep.start([bench.root])
    upkeep.give_way()
    until_done(upkeep)
    assert len(Store.open(bench.store.base).packs()) == 1
