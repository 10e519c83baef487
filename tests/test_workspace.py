"""The loop of a workspace: when it looks, what a mark holds, and how trouble shows and ends."""

from __future__ import annotations

import itertools
import mmap
import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import watcher.source
from core.errors import BadInput, TurnmarkError
from core.model import RelPath, rfc3339
from core.recorder import Recorder, Taken
from core.rules import RuleSet
from core.store import Store
from core.worktree import WorkTree
from tests.fuzz import Writers
from tests.stores import fsck
from tests.test_source import break_reader
from tests.trees import build
from tests.watching import (
    NEVER,
    PATIENT,
    RULES,
    Live,
    bind,
    in_namespace,
    mark,
    mount,
    unmount,
    until,
)
from watcher import workspace

pytestmark = pytest.mark.live

QUICK = replace(PATIENT, quiet=0.05, longest=0.3)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(watcher.source, "MEND_SECONDS", 0.2)


# Bursts


def test_the_first_snapshot_is_what_was_found(tmp_path: Path) -> None:
    build(tmp_path / "work", {"a": "1", "d/b": "2", "node_modules/x": "3"})
    with Live(tmp_path).ready() as live:
        assert live.next_told()["changed"] == 2
        assert live.newest() == {"a": "1", "d/b": "2"}
        assert live.workspace.state == "watching"


def test_a_burst_becomes_one_snapshot_when_it_is_quiet(tmp_path: Path) -> None:
    with Live(tmp_path, replace(QUICK, quiet=0.2)).ready() as live:
        live.next_told()
        for number in range(50):
            live.write(f"d{number}/f", "x")
        assert live.next_told()["changed"] == 50
        assert len(live.newest()) == 50


def test_a_writer_that_never_pauses_gets_snapshots_all_the_same(tmp_path: Path) -> None:
    stop = threading.Event()

    def write() -> None:
        while not stop.wait(0.002):
            live.write("f", str(time.monotonic_ns()))

    with Live(tmp_path, replace(QUICK, quiet=NEVER, longest=0.1)).ready() as live:
        writer = threading.Thread(target=write)
        writer.start()
        told = [str(live.next_told()["id"]) for _ in range(5)]
        stop.set()
        writer.join()
        found = live.snapshots()
        assert told == [snapshot.id.hex() for snapshot in found[:5]]
        assert found == sorted(found, key=lambda snapshot: snapshot.time_ns)


def test_during_a_burst_events_do_not_wake_the_loop(tmp_path: Path) -> None:
    with Live(tmp_path, replace(QUICK, quiet=0.3)).ready() as live:
        loop: Any = live.workspace
        gather, gathered = loop._gather, itertools.count()
        loop._gather = lambda: (next(gathered), gather())
        for number in range(300):
            live.write("f", str(number))
        until(lambda: live.holds("f", "299"))
        assert next(gathered) < 20


def test_what_is_saved_is_folded_after_the_first_look_and_after_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.worktree.FOLD_ABOVE", 1)
    monkeypatch.setattr(workspace, "SAVE_SECONDS", 0.01)
    folded: list[str] = []
    monkeypatch.setattr("core.worktree._fold", folded.append)
    build(tmp_path / "work", {"a": "1"})
    with Live(tmp_path, QUICK).ready() as live:
        assert len(folded) == 1
        live.write("a", "2")
        until(lambda: len(folded) > 1)


def test_what_changed_and_changed_back_makes_no_snapshot(tmp_path: Path) -> None:
    with Live(tmp_path, QUICK).ready() as live:
        live.next_told()
        live.write("f")
        (live.path / "f").unlink()
        live.write("g")
        live.next_told()
        assert live.newest() == {"g": "x"}


# Asks


def test_a_mark_does_not_wait_for_the_burst_and_holds_all_that_was_written(tmp_path: Path) -> None:
    build(tmp_path / "work", {"f": "0"})
    with (
        Live(tmp_path).ready() as live,
        Writers(live.path, tmp_path / "outside", 7, 2, links=False) as churning,
    ):
        churning.begin(3.0)
        for number in range(150):
            deep = f"own{number % 7}/{number}/data"
            live.write(deep, f"deep {number}")
            live.write("own", str(number))
            taken: Taken = live.ask()
            held = live.contents(taken.snapshot)
            assert (held["own"], held[deep]) == (str(number), f"deep {number}")
            if number % 5 == 0:
                shutil.rmtree(live.path / f"own{number % 7}")
                assert deep not in live.contents(live.ask().snapshot)
        churning.wait()
    fsck(live.store_path)


def test_asks_are_answered_in_their_order(tmp_path: Path) -> None:
    with Live(tmp_path, begin=False) as live:
        answers = [live.workspace.ask(mark) for _ in range(20)]
        live.workspace.start()
        seqs = [answer.result(20).mark.seq for answer in answers]
        assert seqs == sorted(set(seqs))


def test_a_full_ask_looks_everywhere(tmp_path: Path) -> None:
    seen: list[list[RelPath] | None] = []
    with Live(tmp_path).ready() as live:
        live.ask(lambda recorder, paths: seen.append(paths), full=True)
        live.ask(lambda recorder, paths: seen.append(paths))
    assert seen == [None, []]


def test_an_ask_that_was_given_up_does_no_harm(tmp_path: Path) -> None:
    with Live(tmp_path, begin=False) as live:
        given_up = live.workspace.ask(mark)
        assert given_up.cancel()
        live.workspace.start()
        assert live.ask().mark.seq == 3


def test_an_error_in_a_task_is_the_askers_and_nothing_dirty_is_lost(tmp_path: Path) -> None:
    def refuse(recorder: Recorder, paths: list[RelPath] | None) -> None:
        raise BadInput("no such point")

    with Live(tmp_path).ready() as live:
        live.write("f")
        with pytest.raises(BadInput):
            live.ask(refuse)
        assert live.workspace.state == "watching"
        assert live.contents(live.ask().snapshot) == {"f": "x"}


def test_a_bug_in_a_task_leaves_the_loop_and_other_asks_alive(tmp_path: Path) -> None:
    hold = threading.Event()

    def die(recorder: Recorder, paths: list[RelPath] | None) -> None:
        hold.wait(20)
        raise ZeroDivisionError

    with Live(tmp_path).ready() as live:
        live.write("f")
        bad, good = live.workspace.ask(die), live.workspace.ask(mark)
        hold.set()
        with pytest.raises(ZeroDivisionError):
            bad.result(20)
        assert live.contents(good.result(20).snapshot) == {"f": "x"}
        assert live.workspace.state == "watching"


def test_stop_answers_what_was_asked_and_commits_what_is_pending(tmp_path: Path) -> None:
    with Live(tmp_path).ready() as live:
        hold = threading.Event()
        live.workspace.ask(lambda recorder, paths: hold.wait(20))
        asked = live.workspace.ask(mark)
        live.workspace.stop()
        hold.set()
        assert asked.result(20).mark is not None
        live.stop()
        with pytest.raises(TurnmarkError, match="no longer watches"):
            live.ask()


def test_what_was_written_just_before_the_stop_is_kept(tmp_path: Path) -> None:
    for number in range(20):
        with Live(tmp_path).ready() as live:
            live.write("f", str(number))
            live.stop()
            assert live.newest() == {"f": str(number)}


def test_status_says_what_there_is(tmp_path: Path) -> None:
    build(tmp_path / "work", {"a": "1", "b/c": "2"})
    with Live(tmp_path).ready() as live:
        live.write("d")
        taken = live.ask()
        status = live.workspace.status()
        assert status["files"] == 3
        assert status["last_snapshot"] == rfc3339(taken.snapshot.time_ns)
        assert (status["state"], status["pending"], status["overflows"]) == ("watching", 0, 0)
        assert live.workspace.progress() == (0, 2, 0)


# What events do not tell


def test_mapped_databases_are_seen_at_the_next_boundary(tmp_path: Path) -> None:
    build(tmp_path / "work", {"d/x.db": "-" * 4096})
    with (
        Live(tmp_path).ready() as live,
        open(live.path / "d/x.db", "r+b") as file,
        mmap.mmap(file.fileno(), 4096) as mapped,
    ):
        for word in (b"one", b"two"):
            live.ask()
            mapped.flush()  # the kernel stamps only the first write to a clean page
            mapped[:3] = word
            taken = live.ask()
            assert live.contents(taken.snapshot)["d/x.db"].startswith(word.decode())


def test_a_file_that_a_writer_held_when_it_was_read_is_looked_at_at_each_boundary(
    tmp_path: Path,
) -> None:
    build(tmp_path / "work", {"d/output": "-" * 4096})
    with (
        Live(tmp_path).ready() as live,
        open(live.path / "d/output", "r+b", buffering=0) as file,
        mmap.mmap(file.fileno(), 4096) as mapped,
    ):
        file.write(b"begun")
        live.ask()
        for word in (b"one", b"two"):
            mapped[:3] = word
            taken = live.ask()
            assert live.contents(taken.snapshot)["d/output"].startswith(word.decode())


def test_a_file_with_two_names_changes_under_both(tmp_path: Path) -> None:
    build(tmp_path / "work", {"a/one": "1", "b/": ""})
    os.link(tmp_path / "work/a/one", tmp_path / "work/b/two")
    with Live(tmp_path).ready() as live:
        live.write("b/two", "changed")
        assert live.contents(live.ask().snapshot) == {"a/one": "changed", "b/two": "changed"}


@pytest.mark.parametrize("between", [False, True])
def test_a_file_that_gets_a_second_name_later_does_too(tmp_path: Path, between: bool) -> None:
    build(tmp_path / "work", {"a/one": "1", "b/": ""})
    with Live(tmp_path).ready() as live:
        os.link(live.path / "a/one", live.path / "b/two")
        if between:
            live.ask()
        live.write("b/two", "changed")
        assert live.contents(live.ask().snapshot) == {"a/one": "changed", "b/two": "changed"}


def test_an_audit_finds_and_counts_what_came_without_events(tmp_path: Path) -> None:
    build(tmp_path / "work", {"plain": "-" * 4096})
    with Live(tmp_path, replace(PATIENT, audit=0.1)).ready() as live:
        with open(live.path / "plain", "r+b") as file, mmap.mmap(file.fileno(), 4096) as mapped:
            mapped[:3] = b"one"
            until(lambda: live.workspace.audit_findings == 1)
        assert live.newest()["plain"].startswith("one")


def test_an_audit_does_not_count_what_events_told_of(tmp_path: Path) -> None:
    with Live(tmp_path, replace(PATIENT, audit=0.02)).ready() as live:
        for number in range(300):
            live.write(f"d/{number % 10}", str(number))
        until(lambda: live.holds("d/9", "299"))
        assert live.workspace.audit_findings == 0


def test_without_events_it_scans_at_boundaries_and_on_a_timer(tmp_path: Path) -> None:
    settings = replace(PATIENT, observer="scan")
    with Live(tmp_path, settings).ready() as live:
        assert (live.workspace.state, live.workspace.reason) == (
            "scan-only",
            "events are switched off",
        )
        live.write("f", "1")
        assert live.contents(live.ask().snapshot) == {"f": "1"}
        live.change(scan=0.05)
        live.write("f", "2")
        until(lambda: live.holds("f", "2"))
        live.change(observer="auto")
        live.comes_to("watching")


def few_watches(base: str) -> None:
    build(Path(base) / "work", {f"d{n}/f": "0" for n in range(40)})
    with Live(Path(base), replace(PATIENT, scan=0.05)).ready() as live:
        live.comes_to("degraded", "max_user_watches")
        for number in range(40):
            live.write(f"d{number}/f", "1")
        assert set(live.contents(live.ask().snapshot).values()) == {"1"}
        live.write("d0/f", "by timer")
        live.write("d39/f", "by timer")
        until(lambda: live.holds("d0/f", "by timer") and live.holds("d39/f", "by timer"))
        assert live.workspace.audit_findings == 0


def test_with_too_few_watches_the_rest_is_scanned(tmp_path: Path) -> None:
    in_namespace(few_watches, tmp_path, user_limit=20)


# The watcher fails


def test_a_dead_reader_costs_scans_and_is_restarted(tmp_path: Path) -> None:
    with Live(tmp_path).ready() as live:
        break_reader(live.hub)
        live.write("f", "1")
        assert live.contents(live.ask().snapshot) == {"f": "1"}
        live.comes_to("watching")
        live.write("f", "2")
        assert live.contents(live.ask().snapshot) == {"f": "2"}
        assert live.workspace.audit_findings == 0


def test_a_barrier_that_does_not_come_back_costs_a_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "BARRIER_SECONDS", 0.02)
    stuck = threading.Event()
    with Live(tmp_path).ready() as live:
        reader: Any = live.hub.reader
        handle = reader._handle_batch
        reader._handle_batch = lambda buffer: (stuck.wait(20), handle(buffer))
        live.write("f", "1")
        assert live.contents(live.ask().snapshot) == {"f": "1"}
        assert live.workspace.state == "degraded"
        stuck.set()
        live.comes_to("watching")


# The root goes


def test_a_root_that_is_moved_away_pauses_and_is_never_all_deleted(tmp_path: Path) -> None:
    build(tmp_path / "work", {"a": "1"})
    with Live(tmp_path, QUICK).ready() as live:
        live.path.rename(tmp_path / "elsewhere")
        live.comes_to("paused", "cannot be reached")
        with pytest.raises(TurnmarkError, match="is paused: its directory"):
            live.ask()
        (tmp_path / "elsewhere").rename(live.path)
        live.comes_to("watching")
        live.write("a", "2")
        until(lambda: live.holds("a", "2"))
        assert [found.total for found in live.snapshots()] == [1, 1]


def test_an_ask_finds_out_about_the_root_itself(tmp_path: Path) -> None:
    build(tmp_path / "work", {"a": "1"})
    with Live(tmp_path).ready() as live:
        shutil.rmtree(live.path)
        with pytest.raises(TurnmarkError, match="is paused"):
            live.ask()
        live.path.mkdir()
        live.comes_to("paused", "is a disk not mounted")
        with pytest.raises(TurnmarkError, match="is a disk not mounted"):
            live.ask()
        live.write("new", "2")
        live.comes_to("watching")
        assert live.newest() == {"new": "2"}
        assert [found.total for found in live.snapshots()] == [1, 1]


def test_an_emptied_root_is_not_all_deleted_though_its_number_be_the_same(tmp_path: Path) -> None:
    """ext4 gives a new directory the inode number of the one just deleted."""
    build(tmp_path / "work", {"a": "1"})
    with Live(tmp_path).ready() as live:
        shutil.rmtree(live.path)
        live.path.mkdir()
        with pytest.raises(TurnmarkError, match="is paused"):
            live.ask()
        live.comes_to("paused", "is a disk not mounted")
        assert live.newest() == {"a": "1"}
        live.write("b", "2")
        live.comes_to("watching")
        assert live.newest() == {"b": "2"}


def test_a_root_that_goes_before_the_stop_is_not_all_deleted(tmp_path: Path) -> None:
    build(tmp_path / "work", {"a": "1"})
    with Live(tmp_path).ready() as live:
        live.path.rename(tmp_path / "elsewhere")
        live.path.mkdir()
        live.stop()
        assert live.newest() == {"a": "1"}


def test_another_directory_in_its_place_is_looked_at_anew(tmp_path: Path) -> None:
    build(tmp_path / "work", {"a": "1"})
    build(tmp_path / "other", {"b/c": "2"})
    with Live(tmp_path, QUICK).ready() as live:
        live.path.rename(tmp_path / "elsewhere")
        (tmp_path / "other").rename(live.path)
        until(lambda: live.newest() == {"b/c": "2"})
        live.comes_to("watching")
        live.write("b/c", "3")
        until(lambda: live.holds("b/c", "3"))


def unmounted(base: str) -> None:
    workspace.RETRY_SECONDS = 0.05
    real, work = Path(base) / "real", Path(base) / "work"
    build(real, {"a": "1"})
    work.mkdir()
    bind(real, work)
    with Live(Path(base)).ready() as live:
        live.write("a", "2")
        unmount(work, "-l")
        with pytest.raises(TurnmarkError, match="paused"):
            live.ask()
        live.comes_to("paused", "is a disk not mounted")
        bind(real, work)
        live.comes_to("watching")
        assert live.newest() == {"a": "2"}
        assert [found.total for found in live.snapshots()] == [1, 1]


def test_an_unmounted_root_pauses_until_it_is_back(tmp_path: Path) -> None:
    in_namespace(unmounted, tmp_path)


# The store is in the way


def test_a_busy_workspace_waits_for_its_turn(tmp_path: Path) -> None:
    build(tmp_path / "work", {"a": "1"})
    with Live(tmp_path, begin=False) as live:
        store = Store.create(live.store_path)
        with store.workspace_lock(live.root.id):
            live.workspace.start()
            live.comes_to("paused", "another turnmark process")
            with pytest.raises(TurnmarkError, match="another turnmark process"):
                live.ask()
        live.comes_to("watching")
        assert live.newest() == {"a": "1"}


def full_store(base: str) -> None:
    workspace.RETRY_SECONDS = 0.05
    home = Path(base) / "home"
    home.mkdir()
    mount("tmpfs", home, "-o", "size=4m")
    settings = replace(QUICK, durable=True)
    with Live(Path(base), settings, store=str(home / "store")).ready() as live:
        with pytest.raises(OSError, match="No space"):
            (home / "filler").write_bytes(bytes(4 << 20))
        live.write("f", os.urandom(100_000).hex())
        live.comes_to("degraded", "full")
        with pytest.raises(TurnmarkError, match="full"):
            live.ask()
        (home / "filler").unlink()
        until(lambda: live.newest().get("f"))
        live.comes_to("watching")
    fsck(live.store_path)


def test_a_full_disk_is_shown_and_survived(tmp_path: Path) -> None:
    in_namespace(full_store, tmp_path)


def test_a_store_that_is_taken_away_is_made_anew(tmp_path: Path) -> None:
    build(tmp_path / "work", {"a": "1"})
    with Live(tmp_path, QUICK).ready() as live:
        shutil.rmtree(live.store_path)
        live.write("b", "2")
        until(lambda: live.workspace.state != "watching")
        live.comes_to("watching")
        until(lambda: live.newest() == {"a": "1", "b": "2"})


def test_a_look_that_fails_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take, asked, failures = Recorder.take, [], iter(range(3))

    def failing(self: Recorder, paths: Any = None, *args: Any, **more: Any) -> Taken:
        asked.append(paths)
        if next(failures, None) is not None:
            raise TurnmarkError("no luck")
        return take(self, paths, *args, **more)

    with Live(tmp_path, QUICK).ready() as live:
        monkeypatch.setattr(Recorder, "take", failing)
        live.write("f", "1")
        until(lambda: live.holds("f", "1"))
        live.comes_to("watching")
    assert asked[:4] == [[b"f"]] * 4


def test_one_workspace_in_trouble_leaves_the_others_running(tmp_path: Path) -> None:
    with (
        Live(tmp_path / "one", QUICK).ready() as one,
        Live(tmp_path / "two", QUICK, hub=one.hub).ready() as two,
    ):
        shutil.rmtree(two.path)
        two.comes_to("paused")
        one.write("f")
        until(lambda: one.holds("f", "x"))
        break_reader(one.hub)
        one.comes_to("watching")
        two.path.mkdir()
        two.comes_to("watching")
        two.write("g")
        assert two.contents(two.ask().snapshot) == {"g": "x"}


def test_bursts_carry_the_note_of_what_is_going_on(tmp_path: Path) -> None:
    with Live(tmp_path, QUICK).ready() as live:
        live.workspace.because("before Bash")
        live.write("f")
        until(lambda: live.holds("f", "x"))
        assert live.snapshots()[-1].note == "before Bash"


# New settings


def test_new_rules_hold_from_the_next_snapshot_on(tmp_path: Path) -> None:
    build(tmp_path / "work", {"a/b": "1", "c/d": "2"})
    with Live(tmp_path).ready() as live:
        live.change(rules=RuleSet(exclude=("a/",)))
        until(lambda: live.newest() == {"c/d": "2"})
        until(lambda: live.workspace.progress()[1] == 2)
        live.write("a/b", "3")
        live.change(rules=RULES)
        until(lambda: live.newest() == {"a/b": "3", "c/d": "2"})


def test_settings_that_come_while_it_is_paused_are_not_forgotten(tmp_path: Path) -> None:
    build(tmp_path / "work", {"a/b": "1", "c/d": "2"})
    with Live(tmp_path).ready() as live:
        live.path.rename(tmp_path / "elsewhere")
        with pytest.raises(TurnmarkError):
            live.ask()
        live.change(rules=RuleSet(exclude=("a/",)))
        (tmp_path / "elsewhere").rename(live.path)
        live.comes_to("watching")
        until(lambda: live.newest() == {"c/d": "2"})


def test_a_new_pace_is_kept_at_once(tmp_path: Path) -> None:
    with Live(tmp_path).ready() as live:
        live.write("f")
        live.change(quiet=0.01, longest=0.1)
        until(lambda: live.holds("f", "x"))


def test_many_asks_and_changes_at_once_are_all_answered(tmp_path: Path) -> None:
    answers: list[Future[Any]] = []
    with Live(tmp_path, QUICK).ready() as live:

        def ask(number: int) -> None:
            for turn in range(20):
                live.write(f"{number}/{turn}")
                answers.append(live.workspace.ask(mark))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        live.change(rules=RuleSet(exclude=("nothing/",)))
        for thread in threads:
            thread.join()
        seqs = {answer.result(20).mark.seq for answer in answers}
        assert len(seqs) == len(answers) == 80
        assert len(live.contents(live.ask().snapshot)) == 80


def test_new_settings_count_for_whoever_asks_after_them(tmp_path: Path) -> None:
    """Found by a reviewer: asks that waited already went before a change that had been answered."""
    begun, go_on = threading.Event(), threading.Event()

    def hold(recorder: Recorder, paths: list[RelPath] | None) -> Taken:
        begun.set()
        go_on.wait(20)
        return recorder.take(paths, sync=False)

    with Live(tmp_path, replace(QUICK, quiet=NEVER)).ready() as live:
        live.write("kept", "1")
        live.write("later/left/out", "1")
        held = live.workspace.ask(hold)
        assert begun.wait(20)
        rules = replace(RULES, exclude=(*RULES.exclude, "later/"))
        live.workspace.change(replace(live.workspace.settings, rules=rules))
        asked = live.workspace.ask(mark)
        go_on.set()
        assert set(live.contents(held.result(20).snapshot)) == {"kept", "later/left/out"}
        assert set(live.contents(asked.result(20).snapshot)) == {"kept"}


# Saving what was seen


def test_a_save_gives_way_to_who_waits_and_goes_on_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "SAVE_SECONDS", 0.05)
    real, asked = WorkTree.save, []

    def save(tree: WorkTree, enough: Callable[[], bool] | None = None) -> None:
        if enough is None:
            real(tree)
            return
        asked.append(enough)
        real(tree, (lambda: True) if len(asked) == 1 else enough)

    monkeypatch.setattr(WorkTree, "save", save)
    with Live(tmp_path, replace(QUICK, quiet=NEVER)).ready() as live:
        assert live.workspace.recorder is not None
        live.write("f", "1")
        live.ask()
        records = live.workspace.recorder.tree
        until(lambda: len(asked) > 1 and not records.is_unsaved())
        with live.workspace._bell:
            live.workspace._changed = True
            assert asked[-1]()
            live.workspace._changed = False


def test_that_nothing_can_be_saved_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(workspace, "SAVE_SECONDS", 0.05)
    with Live(tmp_path, replace(QUICK, quiet=NEVER)).ready() as live:
        assert live.workspace.recorder is not None
        assert live.workspace.recorder.tree._db is not None
        live.workspace.recorder.tree._db.execute("DROP TABLE meta")
        live.write("f", "1")
        live.ask()
        until(lambda: "is not kept for the next start" in caplog.text)
        live.write("f", "2")
        assert live.ask().changed == 1
