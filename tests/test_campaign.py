"""The campaign's judge sees what it is there for, and its table hides nothing."""

from __future__ import annotations

import json
import platform
import random
import sys
from pathlib import Path

import pytest

from tests.campaign import needs
from tests.campaign.blocklog import Entry
from tests.campaign.frame import Figures, Job, Part, Row, run_part
from tests.campaign.ground import Ground
from tests.campaign.oracle import Judge, Wrong
from tests.campaign.report import save, section, table
from tests.campaign.tracer import run_until, trace_me
from tests.campaign.worker import at_work


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    """Of a ground with two points, and a rollback that is said to be under way."""
    ground = Ground(tmp_path / "ground", tmp_path / "told").build()
    judge = Judge(ground)
    with at_work(ground, random.Random(1)) as worker:
        for text in ("one", "two"):
            worker.say("changing")
            (ground.tree / "a").write_text(text)
            worker.say("tree", worker.image())
            worker.do("mark")
    judge.read_on()
    return judge


def test_nothing_is_said_of_what_is_well(judge):
    judge.check_tree()
    assert judge.check_store()


def test_a_changed_tree_is_seen(judge):
    (judge.ground.tree / "a").write_text("three")
    with pytest.raises(Wrong, match="changed the tree"):
        judge.check_tree()


def test_a_lost_content_is_seen(judge):
    judge.may_be = []
    judge.must_keep = {b"x": ("file", 0o644, b"never stored")}
    with pytest.raises(Wrong, match="1 contents were lost"):
        judge.check_tree()


def test_a_touched_canary_is_seen(judge):
    (judge.ground.tree / ".git/config").write_text("[core]\n")
    with pytest.raises(Wrong, match="something outside"):
        judge.check_tree()


def test_a_lost_or_wrong_acknowledgement_is_seen(judge):
    (first, second) = judge.acks
    judge.acks["0" * 40] = judge.acks[first]
    with pytest.raises(Wrong, match="is gone"):
        judge.check_store()
    del judge.acks["0" * 40]
    judge.acks[first] = judge.acks[second]
    with pytest.raises(Wrong, match="is not exact"):
        judge.check_store()


def test_a_rollback_that_missed_its_target_is_seen(judge):
    target, image = next((commit, ack[1]) for commit, ack in judge.acks.items())
    other = [ack[1] for ack in judge.acks.values()][-1]
    for lines, wrong in ((f"done {image} whole", False), (f"done {other} whole", True)):
        told = judge.ground.told / f"oracle-{wrong}"
        told.write_text(f"tree {other}\nverb rollback\naim {target}\n{lines}\n")
        judge.begin_anew(told.name)
        if wrong:
            with pytest.raises(Wrong, match="another tree than its target"):
                judge.read_on()
        else:
            judge.read_on()


@pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"),
    reason="NOT TESTED: the numbers of system calls are those of Linux on x86-64",
)
def test_a_process_is_stopped_before_the_call_that_was_asked_for(tmp_path):
    names = [tmp_path / str(n) for n in range(3)]

    def run() -> None:
        trace_me()
        for name in names:
            name.mkdir()

    whole = run_until(run)
    assert whole.status == 0
    for name in names:
        name.rmdir()
    second = whole.moments[1]
    assert run_until(run, second).status == -9
    assert [name.exists() for name in names] == [True, False, False]


def test_a_part_whose_needs_are_not_met_counts_as_not_run(tmp_path, monkeypatch):
    monkeypatch.setitem(needs.NEEDS, "luck", lambda: "a lot of luck")
    part = Part("p", "a title", lambda job: Figures(), {"ci": 5}, needs=("luck",))
    assert run_part(part, Job(tmp_path / "p", 1, 5), 1.0).not_run == "needs a lot of luck"


def test_the_table_and_the_files_show_violations_and_what_was_not_run(tmp_path):
    bad = Row("bad", "Bad", 10, Figures(7, ["it broke", "it broke"]), 1.0)
    none = Row("none", "None", 3, Figures(), 0.0, "needs luck")
    shown = table([bad, none])
    assert "bad       10        7           2        1" in shown
    assert "bad: it broke (2 times)" in shown
    assert "none: not run: needs luck" in shown
    kept = tmp_path / "kept.json"
    save(kept, [bad, none], "ci", 1)
    save(kept, [Row("bad", "Bad", 10, Figures(10), 1.0)], "night", 2)
    records = json.loads(kept.read_text())["parts"]
    lines = section(records, ["bad", "none"]).splitlines()
    assert lines[2].startswith("| Bad | 10 | 0 | night, ")
    assert lines[3] == "| None | not run: needs luck | | |"


def test_a_flush_is_an_entry_without_data():
    assert Entry(0, 0, b"").is_flush
    assert not Entry(0, 0, b"x").is_flush
