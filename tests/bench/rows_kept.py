"""What a history costs to keep, to list, to compare with and to thin, beside those who keep one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

from .bench import Bench
from .contenders import Wrong
from .measure import Result, Target, Times, rotated, seconds
from .peers import makers
from .peers.ours import Ours
from .peers.peer import Keeper, State
from .trees import Edits

CHANGED = 5
BLOCK = 512
ROUNDS = 3
OURS = Ours.name

Row = list[Result]


def kept_beside(bench: Bench) -> Iterator[Row]:
    """All keep the same states of the same tree; then each lists them, and drops the older half."""
    count, files = bench.scale.side_kept, bench.scale.small
    root = bench.copy_of(files)
    edits = Edits(root)
    label = f"{count} states of {files:,} files"
    with ExitStack() as at_end:
        keepers = _keepers(bench, root)
        for keeper in keepers.values():
            at_end.callback(keeper.remove)
        states: dict[str, list[State]] = {name: [] for name in keepers}
        for _ in range(count):
            for name, keeper in keepers.items():
                states[name].append(keeper.take())
            edits.change(CHANGED)
        ours = keepers[OURS]
        assert isinstance(ours, Ours)
        ours.settle()
        yield from _held(label, keepers)
        yield _timed(f"{label}: list", keepers, partial(_listed, count))
        differing = partial(_compared, states)
        yield _timed(f"{label}: which files differ", keepers, differing)
        ours.rest()
        yield from _held(f"{label}, after a rest", keepers)
        yield _timed(f"{label}, after a rest: which files differ", keepers, differing)
        yield _timed(f"{label}: drop half", keepers, partial(_thinned, count // 2), rounds=1)
        yield from _held(f"{label}, half dropped", keepers)


def _keepers(bench: Bench, root: str) -> dict[str, Keeper]:
    found: dict[str, Keeper] = {OURS: Ours(bench.place("store"), root)}
    for name, make in makers(first=False).items():
        peer = make(bench.place("peer"), root)
        if isinstance(peer, Keeper):
            found[name] = peer
        else:
            peer.remove()
    return found


def _listed(count: int, keeper: Keeper) -> None:
    if keeper.points() != count:
        raise Wrong(f"{keeper.name} lists {keeper.points()} of {count} states.")


def _compared(states: dict[str, list[State]], keeper: Keeper) -> None:
    """The first and the last; the edits are the same for all, so each finds as many."""
    old, new = states[keeper.name][0], states[keeper.name][-1]
    found = keeper.differ(old, new)
    if not 0 < found <= CHANGED * len(states[keeper.name]):
        raise Wrong(f"{keeper.name} finds {found} files that differ.")


def _thinned(keep: int, keeper: Keeper) -> None:
    keeper.thin(keep)
    if keeper.points() != keep:
        raise Wrong(f"{keeper.name} lists {keeper.points()} states where {keep} were to be kept.")


def _timed(
    what: str, keepers: dict[str, Keeper], act: Callable[[Keeper], None], rounds: int = ROUNDS
) -> Row:
    found: dict[str, list[float]] = {name: [] for name in keepers}
    for number in range(rounds):
        for name in rotated(number, keepers):
            found[name].append(seconds(partial(act, keepers[name])))
    ours = found.pop(OURS)
    return [Times(ours, spent).faster(what, 1.0, against=name) for name, spent in found.items()]


def _held(label: str, keepers: dict[str, Keeper]) -> Iterator[Row]:
    """Room on disk as the file system counts it, and how many files it is in."""
    found = {name: _room(keeper.place) for name, keeper in keepers.items()}
    size, files = found.pop(OURS)
    yield [
        _times_less(f"{label}: room", size / 1e6, other / 1e6, name, unit="MB")
        for name, (other, _) in found.items()
    ]
    yield [
        _times_less(f"{label}: files in the store", files, other, name, unit="")
        for name, (_, other) in found.items()
    ]


def _times_less(what: str, ours: float, other: float, name: str, *, unit: str) -> Result:
    ratio = other / ours
    target = Target(">=", 1)
    return Result(what, ours, other, name, ratio, ratio, ratio, target, "MB" if unit else "")


def _room(top: str) -> tuple[int, int]:
    blocks = files = 0
    for above, _, names in os.walk(top):
        for name in names:
            blocks += os.lstat(os.path.join(above, name)).st_blocks
            files += 1
    return blocks * BLOCK, files
