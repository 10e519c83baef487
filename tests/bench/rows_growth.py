"""How each cost grows: with the files of a tree, with changes, snapshots kept and workspaces."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Literal

from core.consolidate import consolidate
from core.history import MarkSpec
from core.store import Store
from core.timeline import Timeline

from .bench import Bench
from .contenders import Turnmark, Wrong
from .limits import write_plainly
from .measure import Act, Result, Target, Times, rotated, seconds
from .rows_service import WAIT_FOR_ASKS, Service, begin, idle_share, serving
from .trees import Edits, build

LOOKS = 5
SAME = 1.5
"""So much dearer may be what does not depend on the size: paths are longer in larger trees."""
FIND = 2.5
OF_A_WORKSPACE = 20
OF_A_HISTORY = 200
POINT_EVERY = 10
UPKEEP_EVERY = 500

Costs = dict[int, list[float]]


def with_files(bench: Bench) -> Iterator[Result]:
    """One changed file, a look at everything, and a turn through the service, on each tree."""
    sizes = bench.scale.growth
    with ExitStack() as at_end:
        every = {size: Turnmark(bench.place("store"), bench.tree(size)) for size in sizes}
        for ours in every.values():
            at_end.callback(ours.remove)
            ours.take()
            ours.recorder.store.warm_up()  # as a service does before anybody asks
        acts = {size: partial(_change_one, bench, size, ours) for size, ours in every.items()}
        yield from _grown(
            "1 changed in {:,}, durable", _costs(bench.scale.growth_turns, acts), SAME
        )
        for size, ours in every.items():
            yield _against_find(size, ours)
    yield from _turns(bench, sizes)


def _change_one(bench: Bench, size: int, ours: Turnmark) -> float:
    paths = bench.edits(size).change(1)
    ours.make_ready()
    return seconds(partial(ours.take, paths))


def _against_find(size: int, ours: Turnmark) -> Result:
    """Both print or compare kind, inode, size and times of every name; none reads a file."""
    words = ["find", ours.root.shown, "-printf", r"%m %i %s %T@ %C@ %p\0"]
    found = Times([], [])
    for number in range(LOOKS):
        acts: dict[str, Act] = {"ours": ours.take, "find": partial(_quietly, words)}
        for name in rotated(number, acts):
            (found.ours if name == "ours" else found.other).append(seconds(acts[name]))
    return found.costs(f"full look at {size:,}, nothing changed", FIND, "find")


def _quietly(words: list[str]) -> None:
    subprocess.run(words, stdout=subprocess.DEVNULL, check=True)


def _turns(bench: Bench, sizes: Iterable[int]) -> Iterator[Result]:
    """One service watches all the trees, and a turn begins in each by turns."""
    roots = {size: bench.tree(size) for size in sizes}
    with serving(bench, list(roots.values()), WAIT_FOR_ASKS) as running:
        acts = {size: partial(_turn, bench, running, size, root) for size, root in roots.items()}
        costs = _costs(bench.scale.growth_turns, acts)
    yield from _grown("turn begin, 1 pending in {:,}", costs, SAME)


def _turn(bench: Bench, running: Service, size: int, root: str) -> float:
    paths = bench.edits(size).change(1)
    session = f"bench-{size}"  # a turn begins wherever its session has been
    spent = seconds(partial(begin, running, root, 0, paths, session))
    running.call("turn.end", session=session, status="ok")
    return spent


def with_changes(bench: Bench) -> Iterator[Result]:
    """The distance from merely writing the changed bytes, as the changes become more."""
    files = bench.scale.small
    edits, (ours, _) = bench.edits(files), bench.pair(files)
    plain = bench.place("plain")
    for count in bench.scale.growth_changes:
        found = Times([], [])
        for _ in range(LOOKS):
            paths = edits.change(min(count, len(edits.files)))
            ours.make_ready()
            found.other.append(seconds(partial(write_plainly, edits.root, paths, plain)))
            found.ours.append(seconds(partial(ours.take, paths)))
        yield found.costs(f"{count:,} changed in {files:,}, durable", None, "limit")


def with_snapshots(bench: Bench) -> Iterator[Result]:
    """One more snapshot, and the list of points, beside what is there already."""
    stages = bench.scale.growth_kept
    takes: Costs = {}
    lists: Costs = {}
    with ExitStack() as at_end:
        every = {stage: _history(bench, stage) for stage in stages}
        for ours, _ in every.values():
            at_end.callback(ours.remove)
        takes = _costs(
            bench.scale.growth_turns,
            {stage: partial(_one_more, ours, edits) for stage, (ours, edits) in every.items()},
        )
        lists = _costs(
            LOOKS, {stage: partial(_list, stage, ours) for stage, (ours, _) in every.items()}
        )
    yield from _grown("1 changed, {:,} snapshots kept", takes, SAME)
    yield from _grown("points of {:,} snapshots, read anew", lists, None)


def _history(bench: Bench, count: int) -> tuple[Turnmark, Edits]:
    """A workspace with that many snapshots, every tenth of them a point; the packs are merged."""
    root = bench.place("history")
    build(root, OF_A_HISTORY)
    ours, edits = Turnmark(bench.place("store"), root, sync=False), Edits(root)
    for number in range(count):
        ours.take(edits.change(1), None if number % POINT_EVERY else MarkSpec("manual"))
        if number % UPKEEP_EVERY == 0:  # a directory that once held a great many packs stays slow
            consolidate(Store.open(ours.base))
    consolidate(Store.open(ours.base))
    ours.sync = True
    return ours, edits


def _one_more(ours: Turnmark, edits: Edits) -> float:
    paths = edits.change(1)
    ours.make_ready()
    return seconds(partial(ours.take, paths))


def _list(stage: int, ours: Turnmark) -> float:
    def act() -> None:
        found = Timeline(Store.open(ours.base), ours.root.id).points()
        if len(found) != -(-stage // POINT_EVERY):
            raise Wrong(f"{len(found)} points of {stage} snapshots.")

    return seconds(act)


def with_workspaces(bench: Bench) -> Iterator[Result]:
    """Services that watch more and more directories: a turn in one, memory, and idling."""
    counts = bench.scale.growth_workspaces
    with ExitStack() as at_end:
        every = {
            count: at_end.enter_context(serving(bench, _many(bench, count), WAIT_FOR_ASKS))
            for count in counts
        }
        acts = {
            count: partial(_turn_in_first, running, Edits(str(running.roots[0])))
            for count, running in every.items()
        }
        yield from _grown(
            "turn begin, {:,} workspaces", _costs(bench.scale.growth_turns, acts), SAME
        )
        for count, running in every.items():
            what = f"{count:,} workspaces"
            held = running.megabytes("RssAnon")
            yield _figure(f"memory of the service, {what}, anonymous", held, "MB", 200)
            share = idle_share(running, bench.scale.idle / len(counts))
            yield _figure(f"idle CPU, {what}", share, "%", 0.1)


def _many(bench: Bench, count: int) -> list[str]:
    roots = [bench.place("workspace") for _ in range(count)]
    for root in roots:
        build(root, OF_A_WORKSPACE)
    return roots


def _turn_in_first(running: Service, edits: Edits) -> float:
    paths = edits.change(1)
    spent = seconds(partial(begin, running, os.fsdecode(edits.root), 0, paths))
    running.call("turn.end", session="bench", status="ok")
    return spent


def _figure(what: str, found: float, unit: Literal["MB", "%"], most: float) -> Result:
    target = Target("<=", most, f" {unit}")
    return Result(what, found, None, "limit", found, found, found, target, unit)


def _costs(rounds: int, acts: Mapping[int, partial[float]]) -> Costs:
    """Each act says itself what it took; in every round another one is first."""
    found: Costs = {size: [] for size in acts}
    by_name = {str(size): size for size in acts}
    for number in range(rounds):
        for name in rotated(number, by_name):
            found[by_name[name]].append(acts[by_name[name]]())
    return found


def _grown(what: str, costs: Costs, most: float | None) -> Iterator[Result]:
    """Each against the smallest; the spread is that of the middle half of the rounds."""
    least, *more = costs
    yield _only(what.format(least), costs[least])
    for size in more:
        low, high = _quartiles([a / b for a, b in zip(costs[size], costs[least], strict=True)])
        ours, other = median(costs[size]), median(costs[least])
        target = None if most is None else Target("<=", most)
        yield Result(
            *(what.format(size), ours, other, f"at {least:,}", ours / other, low, high, target),
            less_is_better=True,
        )


def _only(what: str, spent: list[float]) -> Result:
    milliseconds = [1000 * value for value in spent]
    low, high = _quartiles(milliseconds)
    middle = median(milliseconds)
    return Result(what, median(spent), None, "ms", middle, low, high, None, less_is_better=True)


def _quartiles(values: list[float]) -> tuple[float, float]:
    ordered = sorted(values)
    return ordered[len(ordered) // 4], ordered[-1 - len(ordered) // 4]
