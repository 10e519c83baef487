"""What is relied on in watchdog and in the kernel, and that no change goes unnoticed."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import shutil
import statistics
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from watchdog.observers.inotify_c import InotifyConstants as C
from watchdog.observers.inotify_c import InotifyEvent, InotifyFD

import watcher.source as source
from core.model import RelPath
from core.rules import RuleSet
from tests import fuzz
from tests.campaign.paths import Sentry
from tests.trees import build
from tests.watching import (
    Watched,
    covers,
    in_namespace,
    mount,
    unmount,
    until,
    without_override,
)
from watcher.source import Hub, TreeSource, WatchUnavailable, event_trouble

pytestmark = pytest.mark.live


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "LIMBO_SECONDS", 0.05)


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    with Watched(tmp_path) as found:
        yield found


# What is relied on in watchdog


OVERFLOW: Any = InotifyEvent(-1, C.IN_Q_OVERFLOW, 0, b"")  # type: ignore[arg-type]


class Listener:
    """A callback that writes down what it is told."""

    def __init__(self) -> None:
        self.said: list[tuple[str, object]] = []

    def on_event(self, event: InotifyEvent) -> None:
        self.said.append(("event", event.name))

    def on_watch_deleted(self, wd: int) -> None:
        self.said.append(("deleted", wd))

    def on_queue_overflow(self) -> None:
        self.said.append(("overflow", None))


@pytest.fixture
def inotify() -> Iterator[Any]:
    found = InotifyFD()
    yield found
    found._is_reading = False  # it was never started
    found.close()


def handle(inotify: Any) -> None:
    for event in inotify.read_events():
        inotify.handle_event(event)


def test_watchdog_is_the_release_that_this_was_written_for() -> None:
    assert version("watchdog").startswith("7.1.")
    members = ("_get_or_create_watch", "_remove_callback", "_read_event_buffer", "handle_event")
    assert all(callable(getattr(InotifyFD, name)) for name in members)


def test_watchdog_tells_each_callback_once_of_an_overflow(inotify: Any, tmp_path: Path) -> None:
    build(tmp_path, {"a/": "", "b/": ""})
    one, other = Listener(), Listener()
    for name, listener in (("a", one), ("b", one), ("b", other)):
        inotify.add_callback(os.fsencode(tmp_path / name), C.IN_CREATE, listener, id(listener))
    inotify.handle_event(OVERFLOW)
    assert one.said == other.said == [("overflow", None)]


def test_watchdog_hands_over_in_the_order_of_the_queue(inotify: Any, tmp_path: Path) -> None:
    listener = Listener()
    build(tmp_path, {"a/": "", "b/": ""})
    for name in ("a", "b"):
        inotify.add_callback(os.fsencode(tmp_path / name), C.IN_CREATE, listener, 1)
    names = [f"{'ab'[n % 2]}/f{n}" for n in range(50)]
    for name in names:
        (tmp_path / name).touch()
    handle(inotify)
    assert listener.said == [("event", name[2:].encode()) for name in names]


def test_the_same_directory_has_the_same_descriptor_wherever_it_moves(
    inotify: Any, tmp_path: Path
) -> None:
    build(tmp_path, {"a/": ""})
    first = inotify.add_callback(os.fsencode(tmp_path / "a"), C.IN_CREATE, Listener(), 1)
    (tmp_path / "a").rename(tmp_path / "b")
    assert inotify._get_or_create_watch(os.fsencode(tmp_path / "b"), C.IN_CREATE).wd == first
    build(tmp_path, {"a/": ""})
    assert inotify._get_or_create_watch(os.fsencode(tmp_path / "a"), C.IN_CREATE).wd != first


def test_watchdog_is_quiet_about_watches_that_are_gone(inotify: Any, tmp_path: Path) -> None:
    listener = Listener()
    build(tmp_path, {"a/": ""})
    wd = inotify.add_callback(os.fsencode(tmp_path / "a"), C.IN_DELETE_SELF, listener, 1)
    (tmp_path / "a").rmdir()
    handle(inotify)
    assert listener.said[-1] == ("deleted", wd)
    assert wd not in inotify._watch_for_wd
    inotify.remove_callbacks([(wd, 1)])


def may_not_be_read(base: str) -> None:
    build(Path(base), {"shut/": ""})
    os.chmod(f"{base}/shut", 0)
    found: Any = InotifyFD()
    assert found._get_or_create_watch(f"{base}/shut".encode(), C.IN_CREATE).wd == -1
    os.chmod(f"{base}/shut", 0o700)


def test_watchdog_says_minus_one_for_what_may_not_be_read(tmp_path: Path) -> None:
    without_override(may_not_be_read, tmp_path)


# Pruning, and directories that come, go and change places


def make_anew(root: Path) -> None:
    shutil.rmtree(root / "d")
    build(root, {"d/e/f": ""})


def replaced(root: Path) -> None:
    shutil.rmtree(root)
    root.mkdir()


def exchange(one: Path, other: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.renameat2(-100, os.fsencode(one), -100, os.fsencode(other), 2) == 0


TREE = {"d/e/f": "1", "g/h/i": "2", "top": "3", "node_modules/x/y/z": "4", "d/target/t": "5"}


@pytest.mark.parametrize(
    ("change", "alive"),
    [
        (lambda r, o: build(r, {"n/m/l/file": "new"}), ["n/f", "n/m/l/file", "d/e/f"]),
        (lambda r, o: (r / "d").rename(r / "D"), ["D/e/f", "D/new"]),
        (lambda r, o: (r / "d").rename(r / "g/d"), ["g/d/e/f", "g/h/i"]),
        (lambda r, o: (build(o / "in", {"p/q": ""}), (o / "in").rename(r / "in")), ["in/p/q"]),
        (lambda r, o: make_anew(r), ["d/e/f", "d/x"]),
        (lambda r, o: exchange(r / "d", r / "g"), ["d/h/i", "g/e/f", "d/x", "g/x"]),
        (lambda r, o: exchange(r / "d", r / "top"), ["top/e/f", "d"]),
        (lambda r, o: (r / "node_modules").rename(r / "kept"), ["kept/x/y/z", "kept/x/new"]),
        (lambda r, o: build(r, {"d/node_modules/a/b": "", "d/target/c": ""}), ["d/e/f"]),
        (lambda r, o: (r / "d").rename(r / "d\udcff é\n"), ["d\udcff é\n/e/f"]),
        (lambda r, o: (r / "d").rename(r / "target"), ["g/h/i"]),
        (
            lambda r, o: (
                (r / "d").rename(r / "target"),
                (r / "target").rename(r / "d"),
                (r / "d").rename(r / "back"),
            ),
            ["back/e/f"],
        ),
    ],
)
def test_what_is_written_after_directories_changed_places_is_noticed(
    watched: Watched, change: Callable[[Path, Path], object], alive: list[str]
) -> None:
    build(watched.root, TREE)
    watched.settle()
    change(watched.root, watched.outside)
    for path in alive:
        assert watched.notices(path), "at once"
    watched.settle()
    for path in alive:
        assert watched.notices(path), "and later"
    assert watched.watched() == not_excluded(watched.root)


def not_excluded(root: Path) -> set[str]:
    out = {""}
    for top, dirs, _ in os.walk(root):
        dirs[:] = [name for name in dirs if name not in ("node_modules", "target")]
        out |= {os.path.relpath(os.path.join(top, name), root) for name in dirs}
    return out


def test_an_excluded_directory_costs_no_watch(tmp_path: Path) -> None:
    build(tmp_path / "root", TREE)
    with Watched(tmp_path) as watched:
        assert watched.watched() == {"", "d", "d/e", "g", "g/h"}
        (watched.root / "d").rename(watched.root / "target")
        watched.settle()
        assert watched.watched() == {"", "g", "g/h"}
        (watched.root / "target/e/f").write_text("nobody looks")
        assert not watched.dirty()


def test_a_directory_that_has_moved_out_tells_of_nothing(watched: Watched) -> None:
    build(watched.root, TREE)
    watched.settle()
    (watched.root / "d").rename(watched.outside / "d")
    assert covers(watched.dirty(), "d")
    watched.settle()
    (watched.outside / "d/e/f").write_text("elsewhere")
    assert not watched.dirty()


def test_what_happens_to_the_old_directory_says_nothing_of_the_new_one(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As builds do: the old output is moved away, made anew, and the old one is deleted."""
    monkeypatch.setattr(source, "LIMBO_SECONDS", 1.0)
    build(watched.root, {"out/x/y/f": ""})
    watched.settle()
    (watched.root / "out").rename(watched.outside / "trash")
    build(watched.root, {"out/x/y/f": ""})
    until(lambda: watched.tree.emitter and not watched.tree.emitter.todo)
    shutil.rmtree(watched.outside / "trash")
    watched.settle()
    assert watched.watched() == {"", "out", "out/x", "out/x/y"}
    assert watched.notices("out/x/y/f")


@pytest.mark.parametrize("where", ["", "g/"])
def test_a_changed_gitignore_changes_what_is_watched(watched: Watched, where: str) -> None:
    build(watched.root, {f"{where}d/e/f": "1", f"{where}h/i": "2", "g/": ""})
    watched.settle()
    ignore = watched.root / f"{where}.gitignore"
    ignore.write_text("d/\n")
    assert covers(watched.dirty(), where.rstrip("/"))
    watched.settle()
    assert not [path for path in watched.watched() if path.startswith(f"{where}d")]
    assert watched.notices(f"{where}h/i")
    ignore.unlink()
    assert covers(watched.dirty(), f"{where}d")
    assert watched.notices(f"{where}d/e/f")


def test_new_rules_change_what_is_watched(watched: Watched) -> None:
    build(watched.root, TREE)
    watched.settle()
    watched.tree.change_rules(RuleSet(exclude=("g/",)))
    assert covers(watched.dirty(), "")
    watched.settle()
    assert "node_modules/x/y" in watched.watched()
    assert "g" not in watched.watched()


def test_directories_made_in_a_tight_loop_are_all_noticed(watched: Watched) -> None:
    seen = []
    for number in range(200):
        build(watched.root, {f"{number}/b/c/f": "x"})
        seen.append(covers(watched.dirty(), f"{number}/b/c/f"))
    assert all(seen)


def test_a_chmod_of_a_directory_is_noticed(watched: Watched) -> None:
    build(watched.root, {"d/": ""})
    watched.settle()
    (watched.root / "d").chmod(0o700)
    assert covers(watched.dirty(), "d")
    watched.root.chmod(0o700)
    assert watched.dirty().lost


# Roots that overlap


def test_roots_may_overlap_and_each_sees_its_own(watched: Watched) -> None:
    build(watched.root, {"in/ner/f": "1", "g": "2"})
    watched.settle()
    inner = watched.open(watched.root / "in")
    assert watched.notices("in/ner/f")
    assert covers(inner.take(), "ner/f")
    assert watched.notices("g")
    assert not inner.take()
    (watched.root / "in/.gitignore").write_text("ner/\n")
    watched.settle()
    until(lambda: inner.watched() == 1)
    assert watched.watched() == {"", "in"}
    inner.close()
    assert watched.notices("in/f")


@pytest.mark.parametrize("outer_last", [False, True])
def test_of_overlapping_roots_the_one_that_is_left_goes_on(
    tmp_path: Path, outer_last: bool
) -> None:
    build(tmp_path, {"root/in/f": "1"})
    with Watched(tmp_path) as watched:
        inner = watched.open(watched.root / "in")
        left, gone = (watched.tree, inner) if outer_last else (inner, watched.tree)
        gone.close()
        (watched.root / "in/f").write_text("x")
        assert watched.hub.barrier(5)
        assert covers(left.take(), "in/f" if outer_last else "f")
        left.close()
        assert list(watched.hub.reader._watch_for_wd) == [1]
        assert not watched.hub.reader.owners


# What may go wrong


def test_an_overflow_makes_everything_dirty_and_lets_waiters_go(watched: Watched) -> None:
    build(watched.root, TREE)
    watched.settle()
    reader: Any = watched.hub.reader
    read, dropped = reader._read_event_buffer, threading.Event()

    def losing(size: int) -> bytes:
        read(size)
        dropped.set()
        reader._read_event_buffer = read
        return fuzz.OVERFLOW

    reader._read_event_buffer = losing
    (watched.root / "top").write_text("wakes the reader")  # its next read is the losing one
    build(watched.root, {"n/m/f": "unseen"})
    for _ in range(3):
        assert watched.hub.barrier(5)
        if dropped.is_set():
            break
    assert watched.tree.take().lost
    assert watched.tree.overflows == 1
    watched.settle()
    assert watched.notices("n/m/f")


def test_on_an_overflow_trees_are_dirty_before_the_barrier_returns(watched: Watched) -> None:
    """watchdog tells the cookie directory first, since its watch is the oldest."""
    hub: Any = watched.hub
    release = hub._release
    seen: list[bool] = []

    def look_then_release(*, good: bool) -> None:
        seen.append(watched.tree.take().lost)
        release(good=good)

    hub._release = look_then_release
    hub.reader.handle_event(OVERFLOW)
    assert seen == [True]


class Gate:
    """Holds the reader back until it is opened."""

    def __init__(self, hub: Any) -> None:
        self.open, self.waiting = threading.Event(), threading.Event()
        self.reader = hub.reader
        self.handle = self.reader._handle_batch
        self.reader._handle_batch = self.wait

    def wait(self, buffer: bytes) -> None:
        self.waiting.set()
        assert self.open.wait(60)
        self.handle(buffer)


A_READ = 3000
"""More events than the reader may have taken before it was held back."""


def limit_of_queue() -> int:
    return int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())


def test_a_stalled_reader_overflows_for_real_and_nothing_is_missed(watched: Watched) -> None:
    build(watched.root, {"a/f": ""})
    watched.settle()
    gate = Gate(watched.hub)
    for number in range(limit_of_queue() // 2 + A_READ):
        fd = os.open(watched.root / f"a/{number}", os.O_CREAT | os.O_WRONLY)
        os.close(fd)
    build(watched.root, {"late/deep/f": "after the queue was full"})
    gate.open.set()
    assert watched.dirty().lost
    assert watched.tree.overflows
    watched.settle()
    assert watched.notices("late/deep/f")


def few_watches(base: str) -> None:
    build(Path(base) / "root", {f"d{n}/e{n}/f": "" for n in range(20)})
    source.RETRY_SECONDS = 0.05
    with Watched(Path(base)) as watched:
        tree = watched.tree
        assert tree.watched() < 31
        assert "raise fs.inotify.max_user_watches" in tree.degraded()
        blind = tree.blind()
        assert all(blind_or_watched(watched, f"d{n}/e{n}") for n in range(20))
        assert blind
        for number in range(15):
            shutil.rmtree(watched.root / f"d{number}")
        until(lambda: not tree.degraded())
        watched.settle()
        assert not tree.blind()
        assert watched.notices("d19/e19/f")


def blind_or_watched(watched: Watched, path: str) -> bool:
    blind = {os.fsdecode(found) for found in watched.tree.blind()}
    return path in watched.watched() or bool({path, path.partition("/")[0]} & blind)


def test_too_few_watches_are_shown_survived_and_healed(tmp_path: Path) -> None:
    in_namespace(few_watches, tmp_path, user_limit=30)


def no_watches(base: str) -> None:
    with pytest.raises(WatchUnavailable, match="limit of inotify watches"):
        Watched(Path(base))


def test_no_watch_at_all_is_said_at_once(tmp_path: Path) -> None:
    in_namespace(no_watches, tmp_path, user_limit=1)


def test_a_root_that_cannot_be_watched_leaves_nothing_behind(watched: Watched) -> None:
    with pytest.raises(WatchUnavailable):
        watched.open(watched.root / "missing")
    assert watched.hub._trees == {watched.tree}
    assert watched.hub.barrier(5)


def shut_and_opened(base: str) -> None:
    build(Path(base) / "root", {"shut/in/f": "1", "d/f": "2"})
    (Path(base) / "root/shut").chmod(0)
    with Watched(Path(base)) as watched:
        assert watched.tree.blind() == {b"shut"}
        assert not watched.tree.degraded()
        (watched.root / "shut").chmod(0o700)
        assert covers(watched.dirty(), "shut")
        watched.settle()
        assert watched.notices("shut/in/f")
        assert not watched.tree.blind()


def test_a_directory_that_becomes_readable_is_watched(tmp_path: Path) -> None:
    without_override(shut_and_opened, tmp_path)


def deeper_than_a_path(base: str) -> None:
    root = Path(base) / "root"
    root.mkdir()
    fd = os.open(root, os.O_RDONLY)
    for _ in range(40):
        os.mkdir("d" * 200, dir_fd=fd)
        fd = os.open("d" * 200, os.O_RDONLY, dir_fd=fd)
    with Watched(Path(base)) as watched:
        assert not watched.tree.blind()
        os.close(os.open("f", os.O_WRONLY | os.O_CREAT, dir_fd=fd))
        assert covers(watched.dirty(), "/".join(["d" * 200] * 40 + ["f"]))


def test_what_lies_deeper_than_any_path_is_watched(tmp_path: Path) -> None:
    in_namespace(deeper_than_a_path, tmp_path)


def test_a_directory_swapped_for_a_link_while_it_is_adopted_leads_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    build(root, {"d/deep/f": "inside"})
    build(outside, {"deep/f": "outside"})
    watch = source._Reader.watch

    def swapping(self: Any, path: bytes, emitter: Any, known_as: RelPath) -> int:
        if known_as == b"d/deep" and not (root / "d").is_symlink():
            (root / "d").rename(tmp_path / "away")
            (root / "d").symlink_to(outside)
        return watch(self, path, emitter, known_as)

    monkeypatch.setattr(source._Reader, "watch", swapping)
    sentry = Sentry(outside)
    with Watched(tmp_path) as watched:
        assert (root / "d").is_symlink()
        watched.settle()
    assert not sentry.told()
    sentry.close()


def unmounted_root(base: str) -> None:
    root = Path(base) / "root"
    root.mkdir()
    mount("tmpfs", root)
    build(root, {"a/f": "1"})
    with Watched(Path(base)) as watched:
        unmount(root, "-l")
        until(lambda: watched.tree.root_gone)
        assert watched.dirty().lost


def mounted_below(base: str) -> None:
    build(Path(base) / "root", {"m/sub/f": "under", "d/f": ""})
    with Watched(Path(base)) as watched:
        mount("tmpfs", watched.root / "m")
        assert covers(watched.dirty(), "m")
        build(watched.root, {"m/new/f": "on the mount"})
        watched.settle()
        assert watched.notices("m/new/f")
        unmount(watched.root / "m")
        assert covers(watched.dirty(), "m")
        watched.settle()
        assert watched.notices("m/sub/f")
        assert watched.watched() == {"", "d", "m", "m/sub"}


@pytest.mark.parametrize("scenario", [unmounted_root, mounted_below])
def test_mounts_come_and_go(tmp_path: Path, scenario: Callable[[str], None]) -> None:
    in_namespace(scenario, tmp_path)


def test_mounts_without_events_are_looked_at_each_time(watched: Watched) -> None:
    watched.tree.remount({RelPath(b"nfs"): (b"1", "nfs4"), RelPath(b"t"): (b"2", "tmpfs")})
    assert watched.tree.blind() == {b"nfs"}
    assert covers(watched.dirty(), "")


@pytest.mark.parametrize(
    "change",
    [
        shutil.rmtree,
        lambda root: root.rename(root.with_name("elsewhere")),
        lambda root: (root.rename(root.with_name("elsewhere")), root.mkdir()),
        replaced,
    ],
)
def test_a_root_that_goes_is_noticed(watched: Watched, change: Callable[[Path], object]) -> None:
    change(watched.root)
    assert watched.dirty().lost
    assert watched.tree.root_gone


def test_after_a_fork_the_child_does_no_harm(watched: Watched) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        passed = watched.hub.barrier(1)
        watched.hub.restart()
        watched.tree.close()
        watched.hub.close()
        os._exit(int(passed))
    assert os.waitpid(pid, 0)[1] == 0
    build(watched.root, {"f": ""})
    assert watched.notices("f")


def test_the_descriptor_of_events_is_not_inherited(watched: Watched) -> None:
    assert not os.get_inheritable(watched.hub.reader._inotify_fd)


class Broken(Exception):
    pass


def break_reader(hub: Hub) -> None:
    reader: Any = hub.reader

    def fail(buffer: bytes) -> None:
        raise Broken

    reader._handle_batch = fail
    assert not hub.barrier(5)
    until(lambda: hub.failure)


def test_a_reader_that_dies_is_seen_and_can_be_restarted(watched: Watched) -> None:
    other = watched.open(watched.outside)
    build(watched.root, TREE)
    watched.settle()
    fds = open_fds()
    break_reader(watched.hub)
    assert "reader of events failed" in watched.tree.trouble == other.trouble
    assert watched.tree.take().lost
    assert other.take().lost
    assert not watched.hub.barrier(1)
    (watched.root / "top").write_text("while it was dead")
    watched.hub.mend()
    assert watched.tree.take().lost
    assert other.take().lost
    assert (watched.tree.trouble, watched.hub.failure) == ("", "")
    watched.settle()
    assert watched.notices("d/e/f")
    assert open_fds() == fds
    other.close()


def test_a_restart_goes_on_when_one_root_is_gone(watched: Watched) -> None:
    gone = watched.open(watched.outside)
    build(watched.root, {"a/f": ""})
    shutil.rmtree(watched.outside)
    watched.hub.restart()
    assert gone.trouble
    assert gone.take().lost
    watched.settle()
    assert watched.notices("a/f")


def test_a_watcher_that_was_only_late_is_believed_again(watched: Watched) -> None:
    reader, watched.tree.trouble = watched.hub.reader, "late"
    watched.hub.mend()
    assert watched.hub.reader is reader
    assert watched.tree.trouble == ""
    assert covers(watched.dirty(), "anything")


def test_a_cookie_directory_that_was_cleaned_away_is_mended(watched: Watched) -> None:
    shutil.rmtree(watched.base / "cookies")
    assert not watched.hub.barrier(0.2)
    watched.hub.mend()
    assert watched.notices("f")


def test_an_adopter_that_fails_is_seen(watched: Watched) -> None:
    emitter: Any = watched.tree.emitter

    def fail(top: RelPath) -> None:
        raise Broken

    emitter._adopt = fail
    build(watched.root, {"n/f": ""})
    until(lambda: watched.tree.trouble)
    assert watched.tree.take().lost
    del emitter._adopt
    watched.hub.mend()
    watched.settle()
    assert watched.notices("n/f")


def open_fds() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def test_two_hundred_openings_leave_no_descriptor_thread_or_watch(tmp_path: Path) -> None:
    build(tmp_path / "root", TREE)
    fds, threads = open_fds(), threading.active_count()
    with Watched(tmp_path) as watched:
        for _ in range(200):
            tree: TreeSource = watched.open(watched.root / "d")
            tree.close()
        reader = watched.hub.reader
        assert len(reader._watch_for_wd) == len(reader.owners) + 1 == watched.tree.watched() + 1
    assert (open_fds(), threading.active_count()) == (fds, threads)


def test_directories_that_come_and_go_leave_nothing_in_memory(watched: Watched) -> None:
    for number in range(300):
        build(watched.root, {f"d{number}/e/f": ""})
        if number % 3:
            (watched.root / f"d{number}").rename(watched.root / f"r{number}")
            shutil.rmtree(watched.root / f"r{number}")
        else:
            shutil.rmtree(watched.root / f"d{number}")
    watched.settle()
    emitter = watched.tree.emitter
    assert emitter is not None
    maps = emitter.maps
    assert [len(found) for found in (maps.path_of, maps.wd_of, maps.inside)] == [1, 1, 0]
    assert len(watched.hub.reader.owners) == 1


def test_a_quiet_tree_of_many_directories_costs_nothing(tmp_path: Path) -> None:
    for number in range(5000):
        os.makedirs(tmp_path / f"root/{number % 50}/{number}")
    with Watched(tmp_path) as watched:
        assert watched.tree.watched() == 5051
        assert not watched.dirty()
        assert (watched.tree.overflows, watched.rings) == (0, 0)


def test_the_barrier_is_quick_behind_a_thousand_events(
    watched: Watched, capsys: pytest.CaptureFixture[str]
) -> None:
    build(watched.root, {f"d/{n}": "" for n in range(500)})
    idle, behind = [], []
    for _ in range(20):
        watched.dirty()
        idle.append(timed(watched))
        gate = Gate(watched.hub)
        for number in range(500):
            os.utime(watched.root / f"d/{number}")
            os.truncate(watched.root / f"d/{number}", 1)
        gate.open.set()
        gate.reader._handle_batch = gate.handle
        behind.append(timed(watched))
    with capsys.disabled():
        print(f"\nbarrier p50: idle {spread(idle)}, behind 1,000 events {spread(behind)}")
    assert statistics.median(behind) < 0.1


def timed(watched: Watched) -> float:
    begun = time.perf_counter()
    assert watched.hub.barrier(10)
    return time.perf_counter() - begun


def spread(times: list[float]) -> str:
    return f"{1e3 * statistics.median(times):.2f} ms (max {1e3 * max(times):.1f})"


# By file system

MOUNTS = """\
20 1 8:1 / / rw - ext4 /dev/a rw
21 20 0:30 / /net rw,relatime shared:1 - nfs4 server:/x rw
22 20 0:31 / /net/local rw - xfs /dev/b rw
23 20 0:32 / /with\\040space rw - fuse.sshfs x rw
24 20 0:33 / /twice rw - 9p x rw
25 24 0:34 / /twice rw - btrfs /dev/c rw
26 20 0:35 / /odd rw shared:1 master:2 - virtiofs x rw
"""


@pytest.mark.parametrize(
    ("root", "kind"),
    [
        (b"/home/x", ""),
        (b"/", ""),
        (b"/net/proj", "nfs4"),
        (b"/net", "nfs4"),
        (b"/network", ""),
        (b"/net/local/proj", ""),
        (b"/with space/p", "fuse.sshfs"),
        (b"/twice/p", ""),
        (b"/odd/p", "virtiofs"),
    ],
)
def test_events_are_believed_by_file_system(tmp_path: Path, root: bytes, kind: str) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS)
    trouble = event_trouble(root, str(tmp_path / "mountinfo"))
    assert trouble == (f"{kind} does not tell of all changes" if kind else "")


def test_without_a_word_on_mounts_events_are_not_believed(tmp_path: Path) -> None:
    assert event_trouble(b"/x", str(tmp_path / "none"))


def test_too_many_instances_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> int:
        ctypes.set_errno(errno.EMFILE)
        return -1

    monkeypatch.setattr("watchdog.observers.inotify_c.inotify_init", full)
    with pytest.raises(WatchUnavailable, match="instances"):
        Hub(str(tmp_path / "cookies"))


# The oracle


@pytest.mark.parametrize(
    ("seed", "links", "overflows"),
    [(1, False, False), (2, True, False), (3, False, True)],
)
def test_what_events_tell_equals_a_full_look(
    tmp_path: Path, seed: int, links: bool, overflows: bool
) -> None:
    figures = fuzz.run(tmp_path, seed, rounds=20, links=links, overflows=overflows)
    assert not figures.wrong, figures.wrong
    assert figures.rounds == 20


def few_watches_fuzzed(base: str) -> None:
    figures = fuzz.run(Path(base), 4, rounds=15)
    assert figures.unwatched
    assert not figures.wrong, figures.wrong


def test_and_with_too_few_watches(tmp_path: Path) -> None:
    in_namespace(few_watches_fuzzed, tmp_path, user_limit=20)
