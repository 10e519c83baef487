"""What the bench says of its results: comparison with an older run, tables, and the chart.

And that each peer really keeps what it is given, so that a time of it counts for something.
"""

from __future__ import annotations

import os
from pathlib import Path
from xml.etree import ElementTree

import pytest

from core.model import RelPath

from .bench.chart import chart
from .bench.measure import Result, Target, Times, one_round, rotated
from .bench.peers import MAKERS, Make, makers
from .bench.peers.ours import Ours
from .bench.peers.peer import Keeper
from .bench.report import NOT_INSTALLED, compared, side, side_head
from .bench.trees import Edits, build, one_directory

FILES = 12


def result(ratio: float, spread: float = 0.0, *, costs: bool = False) -> Result:
    target = Target("<=" if costs else ">=", 1)
    return Result("row", 1.0, ratio, "git", ratio, ratio - spread, ratio + spread, target)


def said(old: Result, new: Result) -> list[str]:
    return [line.split()[0] for line in compared([old.to_json(judge=True)], [new])]


def test_a_run_is_compared_by_what_lies_beyond_both_spreads() -> None:
    assert said(result(10, 1), result(20, 1)) == ["better"]
    assert said(result(20, 1), result(10, 1)) == ["WORSE"]
    assert said(result(10, 1), result(10.5)) == []
    assert said(result(10), result(11, 2)) == []


def test_where_less_is_better_a_smaller_ratio_is_better() -> None:
    assert said(result(2, costs=True), result(1, costs=True)) == ["better"]
    assert said(result(1, costs=True), result(2, costs=True)) == ["WORSE"]


def test_rows_that_only_one_run_has_are_named() -> None:
    assert [line.split()[0] for line in compared([], [result(1)])] == ["new"]
    assert list(compared([result(1).to_json(judge=True)], [])) == ["not run  row, against git"]


def test_in_each_round_another_one_is_first() -> None:
    seen: list[str] = []
    acts = {name: lambda name=name: seen.append(name) for name in "abc"}
    for number in range(3):
        assert one_round(number, acts, lambda name: None).keys() == acts.keys()
    assert "".join(seen) == "abcbcacab"
    assert rotated(4, "abc") == ["b", "c", "a"]


def test_a_row_names_who_was_ahead_of_turnmark() -> None:
    row = [
        Times([2.0, 2.0], [4.0, 6.0]).faster("1 file: work", 1, against="borg"),
        Times([2.0, 2.0], [1.0, 1.0]).faster("1 file: work", 1, against="restic"),
        Times([2.0, 2.0], [1.0, 1.0]).faster("1 file: work", None, against="limit"),
    ]
    assert side(row, judge=True).endswith("MISSED: restic")
    assert "2.5 (2-3)" in side(row, judge=True)


def test_a_peer_that_is_missing_is_named_and_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert {"restic", "borg", "rsync"}.isdisjoint(makers(first=True))
    assert side_head().count(NOT_INSTALLED) == 3


def test_the_chart_is_well_formed_and_has_a_bar_for_each() -> None:
    times = {"a<b": 0.4, "slow": 1000.0}
    row = [Times([0.002], [t]).faster("9 files: 1 changed", 1, name) for name, t in times.items()]
    tree = ElementTree.fromstring(chart([row], "9 files"))
    texts = ["".join(node.itertext()) for node in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert {"1 changed", "turnmark", "a<b", "2 ms", "400 ms", "1,000 s"} <= set(texts)
    with pytest.raises(ValueError, match="No row"):
        chart([row], "10 files")


def test_the_directory_nearest_in_size_is_chosen(tmp_path: Path) -> None:
    for name, count in (("a", 1), ("b/c", 4), ("d", 9)):
        (tmp_path / name).mkdir(parents=True)
        for number in range(count):
            (tmp_path / name / str(number)).touch()
    assert one_directory(str(tmp_path), 5) == str(tmp_path / "b")


BACKUPS = {"restic", "borg"}
"""Take a second for each call; `python -m tests.bench --quick` checks them in the same way."""


@pytest.mark.parametrize("name", [Ours.name, *(name for name in MAKERS if name not in BACKUPS)])
def test_a_peer_keeps_what_it_is_given(name: str, tmp_path: Path) -> None:
    make: Make | None = Ours if name == Ours.name else makers(first=True).get(name)
    if make is None:
        pytest.skip(f"{name} is not installed")
    root = str(tmp_path / "work")
    build(root, FILES)
    edits = Edits(root)
    peer = make(str(tmp_path / "place"), root)
    old = peer.take()
    (path,) = edits.change(1)
    before = peer.read(old, path)
    peer.make_ready()
    new = peer.take()
    assert peer.read(new, path) == Path(root, os.fsdecode(path)).read_bytes() != before
    assert peer.read(new, RelPath(b"no/such")) is None
    assert (peer.read(old, path) == before) == peer.keeps
    if isinstance(peer, Keeper):
        assert (peer.points(), peer.differ(old, new)) == (2, 1)
    peer.restore(old)
    wanted = before if peer.keeps else peer.read(new, path)
    assert Path(root, os.fsdecode(path)).read_bytes() == wanted
    if isinstance(peer, Keeper):
        peer.take()
        peer.thin(1)
        assert peer.points() == 1
    peer.remove()
    assert not Path(peer.place).exists()
