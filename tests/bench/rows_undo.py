"""The row about one file through a long history, as a person asks for it from the shell."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import partial

from core.consolidate import consolidate
from core.history import MarkSpec
from core.model import RelPath, show_path
from core.store import Store

from .bench import Bench
from .contenders import Turnmark, Wrong
from .measure import Result, seconds, within
from .rows_keep import program, shell
from .trees import SEED, Edits

FEW_FILES = 100
FEW_CHANGES = 10
POINT_EVERY = 20
MOST = 200


def history(bench: Bench) -> Iterator[Result]:
    """Of a file of middling depth, which changed seldom, or in every snapshot there is."""
    for files in (FEW_FILES, bench.scale.small):
        for changes in (FEW_CHANGES, bench.scale.kept):
            yield _asked(bench, files, changes)


def _asked(bench: Bench, files: int, changes: int) -> Result:
    home, root = bench.place("home"), bench.copy_of(files)
    edits = Edits(root)
    path = sorted(edits.files, key=lambda one: (one.count(b"/"), one))[len(edits.files) // 2]
    _take(bench, Turnmark(f"{home}/store", root, sync=False), edits, path, changes)
    words = (*program(home), "history", show_path(path))
    found = json.loads(shell(home, root, *words, "--json"))["versions"]
    if len(found) != changes:
        raise Wrong(f"history shows {len(found)} of {changes} versions of {show_path(path)}")
    times = [seconds(partial(shell, home, root, *words)) for _ in range(9)]
    what = f"history of 1 of {files:,}, {changes:,} of {bench.scale.kept:,} snapshots"
    return within(f"{what}, cold", times, MOST)


def _take(bench: Bench, ours: Turnmark, edits: Edits, path: RelPath, changes: int) -> None:
    """The first snapshot has the file as it was; the packs are consolidated, as old ones are."""
    rng, others = random.Random(SEED), [one for one in edits.files if one != path]
    turns = {number * bench.scale.kept // changes for number in range(changes)}
    for number in range(bench.scale.kept):
        changed = path if number in turns else rng.choice(others)
        if number:
            edits.edit(changed)
        mark = MarkSpec("manual") if number % POINT_EVERY == 0 else None
        ours.take([changed] if number else None, mark)
    ours.close()
    consolidate(Store.open(ours.base))
