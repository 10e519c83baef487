"""The rows about the service: marks through the socket, and what watching costs meanwhile."""

from __future__ import annotations

import os
import resource
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from core.history import History
from core.model import RelPath
from core.roots import root_of
from core.store import Store
from watcher.workspace import SAVE_SECONDS

from ..live import Live, until
from .bench import Bench
from .contenders import Git, Turnmark, Wrong
from .measure import Act, Result, Target, Times, seconds

PATIENCE = 600.0
WAIT_FOR_ASKS = "defaults: {quiet_ms: 60000, longest_ms: 600000}\n"
"""No burst ends by itself, so that what was changed is still pending when the turn begins."""
LEFT_OUT = "node_modules/left/out"
BURSTS = 3
AUDITS_APART = 600


class Service:
    """A real detached service of its own, and what the kernel says of its process."""

    def __init__(self, bench: Bench, roots: list[str], config: str = "") -> None:
        self.live = Live(Path(bench.place("live")))
        self.roots = [Path(root) for root in roots]
        self.live.watch_list(*self.roots)
        self.live.config.write_text(self.live.config.read_text() + config)
        self.pid = int(self.live.ask("up")["pid"])
        until(self._watches_all, PATIENCE)
        self.client = self.live.client()

    def _watches_all(self) -> bool:
        rows = self.live.rows()
        return len(rows) == len(self.roots) and all(row["state"] == "watching" for row in rows)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        return self.client.call(method, patience=PATIENCE, **params)

    def tree(self, root: str) -> str:
        store = Store.open(str(self.live.context.store_path))
        last = History(store, root_of(os.fsencode(root)).id).newest()
        return last.files.hex() if last else ""

    def cpu(self) -> float:
        """Seconds of all its threads, of ended ones too, and of its scout's."""
        return sum(map(_cpu_of_process, _with_scout(self.pid)))

    def megabytes(self, field: str) -> float:
        return sum(_megabytes(pid, field) for pid in _with_scout(self.pid))

    def watches(self) -> int:
        """Those of all inotify descriptors, one of which is for the barrier's cookies."""
        infos = [path.read_text() for path in Path(f"/proc/{self.pid}/fdinfo").iterdir()]
        return sum(info.count("inotify wd:") for info in infos) - 1

    def close(self) -> None:
        self.client.close()
        with suppress(Exception):
            self.live.run("down")
        self.live.close()


def _with_scout(pid: int) -> list[int]:
    """A process, and the one that helps with its looks, if there is."""
    told = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    children = [int(child) for line in told for child in line.split()]
    return [pid, *(child for child in children if _is_scout(child))]


def _is_scout(pid: int) -> bool:
    try:
        return b"core.scout" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended meanwhile
        return False


def _cpu_of_process(pid: int) -> float:
    return time.clock_gettime((~pid << 3) | 2)  # as clock_getcpuclockid(3) makes it


def _megabytes(pid: int, field: str) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    lines = dict(line.split(":", 1) for line in status.splitlines())
    return int(lines[field].split()[0]) * 1024 / 1e6


@contextmanager
def serving(bench: Bench, roots: list[str], config: str = "") -> Iterator[Service]:
    service = Service(bench, roots, config)
    try:
        yield service
    finally:
        service.close()


def service(bench: Bench) -> Iterator[Result]:
    """One service on the large tree: its turns, then its memory, watches, and what idling costs."""
    files = bench.scale.large
    root, (ours, git) = bench.tree(files), bench.pair(files)
    bench.edits(files)
    os.makedirs(f"{root}/{LEFT_OUT}")
    try:
        with serving(bench, [root], WAIT_FOR_ASKS) as running:
            for pending in (1, 20):
                yield from _turns(bench, running, git, pending)
            yield from _held(running, files)
            yield _watches(running, root)
            yield _idle(bench, running)
        ours.take()  # also for the rows that follow
        yield _audit(ours, files)
    finally:
        shutil.rmtree(f"{root}/{LEFT_OUT.split('/')[0]}")


def _turns(bench: Bench, running: Service, git: Git, pending: int) -> Iterator[Result]:
    """Git is asked for the very changes of every turn: its slow ones count as ours do."""
    found, edits = Times([], []), bench.edits(bench.scale.large)
    git.run("add", "-A")
    git.run("commit", "-q", "--allow-empty", "-m", "what it has missed")
    for number in range(bench.scale.turns):
        os.sync()  # what git left to be written some time is not for the turn to wait for
        paths = edits.change(pending)
        found.ours.append(seconds(partial(begin, running, git.root, number, paths)))
        running.call("turn.end", session="bench", status="ok")
        found.other.append(seconds(git.commit))
    _check_tree(running, git)
    what = f"turn begin, {pending} pending in {bench.scale.large:,}"
    yield _against_git(f"{what}, median", found, median)
    yield _against_git(f"{what}, p99", found, p99)


def begin(
    running: Service, root: str, number: int, paths: list[RelPath], session: str = "bench"
) -> None:
    answer = running.call("turn.begin", dirs=[root], session=session, prompt=f"turn {number}")
    (mark,) = answer["marks"]
    if not mark["durable"] or mark["changed"] != len(paths):
        raise Wrong(f"The mark of {len(paths)} changes says {mark}.")


def _against_git(what: str, found: Times, of: Any) -> Result:
    ours, other = of(found.ours), of(found.other)
    ratios = [theirs / one for one, theirs in zip(found.ours, found.other, strict=True)]
    target = Target(">=", 50)
    return Result(what, ours, other, "git", other / ours, min(ratios), max(ratios), target)


def p99(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * 99 // 100) - 1)]


def _check_tree(running: Service, git: Git) -> None:
    if running.tree(git.root) != git.tree():
        raise Wrong(f"Tree {running.tree(git.root)} of the service is not git's {git.tree()}.")


def _held(running: Service, files: int) -> Iterator[Result]:
    for name, field in (("peak", "VmHWM"), ("anonymous", "RssAnon")):
        found, most = running.megabytes(field), Target("<=", 200, " MB")
        what = f"memory of the service, {files:,} files, {name}"
        yield Result(what, found, None, "limit", found, found, found, most, "MB")


def _watches(running: Service, root: str) -> Result:
    """The tree has nothing that is left out but what was put there for this."""
    there = sum("node_modules" not in above.split("/") for above, _, _ in os.walk(root))
    held = running.watches()
    if held != there:
        raise Wrong(f"{held} watches for {there} directories that are not excluded.")
    ratio = held / there
    what = "watches, for directories not excluded"
    return Result(what, held, there, "dirs", ratio, ratio, ratio, Target("<=", 1), "")


def _idle(bench: Bench, running: Service) -> Result:
    share = idle_share(running, bench.scale.idle)
    what = f"idle CPU over {bench.scale.idle} s, {bench.scale.large:,} files"
    return Result(what, share, None, "limit", share, share, share, Target("<=", 0.1, " %"), "%")


def idle_share(running: Service, period: float) -> float:
    """Percent of a core while nothing happens."""
    _until_quiet(running)
    begun, before = time.monotonic(), running.cpu()
    time.sleep(period)
    return 100 * (running.cpu() - before) / (time.monotonic() - begun)


def _audit(ours: Turnmark, files: int) -> Result:
    """What the service does every ten minutes, done here, where nothing else is done with it."""
    spent = sorted(_cpu_of(ours.take) for _ in range(5))
    low, middle, high = (100 * spent[place] / AUDITS_APART for place in (0, 2, 4))
    what = f"CPU of an audit, {files:,} files; % of ten minutes"
    return Result(what, spent[2], None, "ten min.", middle, low, high, None)


def _cpu_of(act: Act) -> float:
    """Also of the scout."""
    before = sum(map(_cpu_of_process, _with_scout(os.getpid())))
    act()
    return sum(map(_cpu_of_process, _with_scout(os.getpid()))) - before


def _until_quiet(running: Service) -> None:
    """What is put off until nobody waits, as the saving of records, is not idling."""

    def quiet() -> bool:
        before = running.cpu()
        time.sleep(SAVE_SECONDS + 0.5)
        return running.cpu() - before < 0.01

    until(quiet, PATIENCE)


def service_burst(bench: Bench) -> Iterator[Result]:
    """Thousands of files appear in an empty workspace; git looks only once all are there."""
    roots = [bench.place("burst") for _ in range(BURSTS)]
    for root in roots:
        os.mkdir(root)
    source, files = bench.tree(bench.scale.large), bench.edits(bench.scale.large).files
    some = files[: bench.scale.burst]
    found = Times([], [])
    with serving(bench, roots) as running:
        for root in roots:
            before = running.cpu()
            _copy(source, root, some)
            until(partial(_has_all, running, root, len(some)), PATIENCE)
            found.ours.append((running.cpu() - before) / len(some))
            found.other.append(_git_cpu(running, bench, root) / len(some))
    what = f"CPU per file, burst of {len(some):,}, against add -A"
    yield found.costs(what, None, "git")


def _copy(source: str, root: str, paths: list[RelPath]) -> None:
    for path in map(os.fsdecode, paths):
        os.makedirs(os.path.dirname(f"{root}/{path}"), exist_ok=True)
        shutil.copyfile(f"{source}/{path}", f"{root}/{path}")


def _has_all(running: Service, root: str, count: int) -> bool:
    """Asked seldom: an answer costs the service what is being measured."""
    time.sleep(0.5)
    row = next(row for row in running.call("status")["workspaces"] if row["root"] == root)
    return bool(row["files"] == count and row["pending"] == 0)


def _git_cpu(running: Service, bench: Bench, root: str) -> float:
    git = Git(bench.place("git"), root)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    git.run("add", "-A")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    _check_tree(running, git)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
