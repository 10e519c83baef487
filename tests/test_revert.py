"""A revert takes out just what its turns changed, keeps what came later, and can be taken back."""

from __future__ import annotations

import errno
import os
import random
import shutil
import time
from pathlib import Path

import pytest

from core.disk import Disk
from core.errors import BadInput, TurnmarkError
from core.plan import Left
from core.recorder import Recorder, Taken
from core.revert import Wish, preview_revert, revert, wish_for
from core.rollback import Result, finish_interrupted, redo_request, undo_request
from core.rules import RuleSet
from core.store import Store
from core.timeline import Timeline
from core.turns import begin, end
from core.undo import replay
from core.without import Side
from tests import transcript
from tests.faults import die_at_each
from tests.live import Live
from tests.scribbling import scribble
from tests.stores import ALL, Bench, fsck
from tests.trees import Dir, File, Image, Leaf, Link, build, image

Tree = dict[str | bytes, Leaf]
SIDES: tuple[Side, ...] = ("", "markers", "mine", "theirs")
TEXT = "".join(f"{n}\n" for n in range(1, 21))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def turn(bench: Bench, changes: Tree, *gone: str, session: str = "s") -> None:
    begin(bench.recorder, session)
    edit(bench.path, changes, *gone)
    end(bench.recorder, session)


def edit(path: Path, changes: Tree, *gone: str) -> None:
    for name in gone:
        if (path / name).is_dir() and not (path / name).is_symlink():
            shutil.rmtree(path / name)
        else:
            (path / name).unlink()
    build(path, changes)


def wish(bench: Bench, *turns: str, session: str | None = None, side: Side = "") -> Wish:
    timeline = Timeline(bench.store, bench.root.id)
    found = wish_for(timeline, turns, session, time.time_ns())
    return Wish(found.turns, side)


def take_out(bench: Bench, *turns: str, session: str | None = None, side: Side = "") -> Result:
    """With the hash of its preview, which must have promised the same."""
    wanted = wish(bench, *turns, session=session, side=side)
    shown = preview_revert(bench.recorder, wanted)
    done = revert(bench.recorder, Wish(wanted.turns, side, shown.plan.hash))
    assert done.plan.hash == shown.plan.hash
    assert (done.conflicts, done.kept) == (shown.conflicts, shown.kept)
    return done


def replaced(text: str, **lines: str) -> str:
    """The text with some of its lines otherwise: `_3="three"`."""
    words = {name[1:]: word for name, word in lines.items()}
    return "".join(f"{words.get(line, line)}\n" for line in text.splitlines())


def reasons(left: tuple[Left, ...]) -> dict[bytes, str]:
    return {one.path: one.reason for one in left}


def test_later_turns_and_edits_by_hand_stay(bench: Bench) -> None:
    build(bench.path, {"f": TEXT, "only": "1"})
    bench.point()
    turn(bench, {"f": replaced(TEXT, _3="three"), "new": "x", "only": "2"})
    turn(bench, {"f": replaced(TEXT, _3="three", _9="nine"), "later": "y"})
    build(bench.path, {"f": replaced(TEXT, _3="three", _9="nine", _18="mine")})
    done = take_out(bench, "turn:1")
    assert done.outcome == "done"
    assert image(bench.path) == {
        b"f": ("file", 0o644, replaced(TEXT, _9="nine", _18="mine").encode()),
        b"only": ("file", 0o644, b"1"),
        b"later": ("file", 0o644, b"y"),
    }
    fsck(bench.store.base)


def test_links_modes_directories_and_kinds_go_back_as_paths(bench: Bench) -> None:
    build(
        bench.path,
        {"l": Link("a"), "m": File("m", 0o600), "d/e/": Dir(0o750), "k": "file", "t/in": "x"},
    )
    bench.point()
    before = image(bench.path)
    begin(bench.recorder, "s")
    os.chmod(bench.path / "m", 0o755)
    edit(bench.path, {}, "l", "k", "t", "d")
    build(bench.path, {"l": Link("b"), "k/in": "a directory", "t": "a file", "x/y/": Dir(0o700)})
    end(bench.recorder, "s")
    build(bench.path, {"later": "stays"})
    done = take_out(bench, "s/1")
    assert (done.outcome, done.conflicts, done.kept) == ("done", (), ())
    assert image(bench.path) == before | {b"later": ("file", 0o644, b"stays")}


def test_a_directory_that_holds_later_files_stays(bench: Bench) -> None:
    build(bench.path, {"a": "1"})
    bench.point()
    turn(bench, {"pkg/one": "1", "pkg/sub/two": "2"})
    build(bench.path, {"pkg/mine": "3"})
    assert take_out(bench, "turn:1").outcome == "done"
    assert set(image(bench.path)) == {b"a", b"pkg", b"pkg/mine"}


def test_a_file_comes_back_into_a_directory_that_went_later(bench: Bench) -> None:
    build(bench.path, {"d/": Dir(0o700), "d/f": "1", "d/g": "2"})
    bench.point()
    turn(bench, {}, "d/f")
    shutil.rmtree(bench.path / "d")
    assert take_out(bench, "turn:1").outcome == "done"
    assert image(bench.path) == {b"d": ("dir", 0o700), b"d/f": ("file", 0o644, b"1")}


CONFLICTS: dict[str, tuple[Tree, Tree, Tree, str]] = {
    "text": ({"f": TEXT}, {"f": replaced(TEXT, _3="x")}, {"f": replaced(TEXT, _3="y")}, "same"),
    "binary": ({"f": b"\0a"}, {"f": b"\0b"}, {"f": b"\0c"}, "no text"),
    "made": ({}, {"f": "made"}, {"f": "made, and edited"}, "changed since"),
    "link": ({"f": Link("a")}, {"f": Link("b")}, {"f": Link("c")}, "changed since"),
    "mode": ({"f": File("", 0o600)}, {"f": File("", 0o644)}, {"f": File("", 0o755)}, "permission"),
}


@pytest.mark.parametrize("case", CONFLICTS)
def test_a_conflict_is_shown_and_nothing_is_half_done(bench: Bench, case: str) -> None:
    old, by_turn, later, reason = CONFLICTS[case]
    build(bench.path, {**old, "other": "1"})
    bench.point()
    turn(bench, {**by_turn, "other": "2"}, *map(os.fsdecode, old))
    edit(bench.path, later, "f")
    before = image(bench.path)
    done = take_out(bench, "turn:1")
    assert done.outcome == "conflicts"
    assert reason in reasons(done.conflicts)[b"f"]
    assert image(bench.path) == before
    assert not [m for m in bench.history().marks() if m.kind == "rollback"]


@pytest.mark.parametrize("case", CONFLICTS)
def test_a_side_settles_every_conflict(bench: Bench, case: str) -> None:
    old, by_turn, later, _ = CONFLICTS[case]
    build(bench.path, {**old, "other": "1"})
    bench.point()
    start = image(bench.path)
    turn(bench, {**by_turn, "other": "2"}, *map(os.fsdecode, old))
    edit(bench.path, later, "f")
    before = image(bench.path)
    assert b"f" in reasons(take_out(bench, "turn:1", side="mine").kept)
    assert image(bench.path) == before | {b"other": start[b"other"]}
    bench.go(undo_request(bench.store, bench.root.id))
    assert image(bench.path) == before
    assert take_out(bench, "turn:1", side="theirs").outcome == "done"
    assert image(bench.path) == start


def test_markers_are_written_where_both_changed_and_can_be_taken_back(bench: Bench) -> None:
    build(bench.path, {"f": TEXT})
    bench.point()
    turn(bench, {"f": replaced(TEXT, _3="turn", _17="turn")})
    build(bench.path, {"f": replaced(TEXT, _3="mine", _17="turn")})
    before = image(bench.path)
    done = take_out(bench, "turn:1", side="markers")
    assert (done.outcome, list(reasons(done.marked))) == ("done", [b"f"])
    marks = "<<<<<<< now\nmine\n=======\n3\n>>>>>>> before turn s/1"
    assert (bench.path / "f").read_text() == replaced(TEXT, _3=marks)
    bench.go(undo_request(bench.store, bench.root.id))
    assert image(bench.path) == before


def test_something_else_in_the_place_of_its_directory_is_a_conflict(bench: Bench) -> None:
    build(bench.path, {"d/f": "1", "d/g": "1"})
    bench.point()
    turn(bench, {}, "d/f")
    edit(bench.path, {"d": "now a file"}, "d")
    before = image(bench.path)
    done = take_out(bench, "turn:1")
    assert (done.outcome, list(reasons(done.conflicts))) == ("conflicts", [b"d/f"])
    assert image(bench.path) == before


def test_a_turn_that_is_out_already_is_nothing_to_do(bench: Bench) -> None:
    build(bench.path, {"a": "1"})
    bench.point()
    turn(bench, {"a": "2"})
    assert take_out(bench, "turn:1").outcome == "done"
    assert take_out(bench, "turn:1").outcome == "nothing"


def test_only_turns_can_be_taken_out(bench: Bench) -> None:
    build(bench.path, {"a": "1"})
    bench.point()
    turn(bench, {"a": "2"})
    for specs, session in ((("2",), None), ((), "nobody"), (("s/1",), "other")):
        with pytest.raises(BadInput):
            wish(bench, *specs, session=session)


def test_undo_and_redo_of_a_revert_are_exact_and_the_turn_stands_again(bench: Bench) -> None:
    build(bench.path, {"a": "1", "d/": Dir(0o700)})
    bench.point()
    turn(bench, {"a": "2", "b": "2"}, "d")
    turn(bench, {"c": "3"})
    states = [image(bench.path)]
    take_out(bench, "turn:1")
    states.append(image(bench.path))
    standing = [mark.turn for mark in replay(bench.history().marks()).now]
    assert standing == [2]
    bench.go(undo_request(bench.store, bench.root.id))
    assert image(bench.path) == states[0]
    assert [mark.turn for mark in replay(bench.history().marks()).now] == [1, 2]
    bench.go(redo_request(bench.store, bench.root.id))
    assert image(bench.path) == states[1]
    assert [mark.turn for mark in replay(bench.history().marks()).now] == [2]


def test_what_a_revert_was_to_lead_to_is_in_no_list(bench: Bench) -> None:
    build(bench.path, {"f": TEXT})
    bench.point()
    turn(bench, {"f": replaced(TEXT, _3="x")})
    build(bench.path, {"f": replaced(TEXT, _3="x", _9="y")})
    take_out(bench, "turn:1")
    points = Timeline(bench.store, bench.root.id).points(everything=True)
    assert not [point for point in points if "planned" in point.label]
    assert bench.history().newest() == bench.recorder.take().snapshot


# Generated histories


@pytest.mark.parametrize("seed", range(12))
def test_all_turns_taken_out_newest_first_are_a_rollback_to_the_first(
    tmp_path: Path, seed: int
) -> None:
    bench, dice = Bench(tmp_path), random.Random(seed)
    for _ in range(4):
        scribble(dice, bench.path)
    bench.point()
    first = image(bench.path)
    states = [first]
    for _ in range(5):
        begin(bench.recorder, "s")
        scribble(dice, bench.path)
        end(bench.recorder, "s")
        states.append(image(bench.path))
    at_once = dice.random() < 0.5
    if at_once:
        take_out(bench, session="s")
    for number in () if at_once else (5, 4, 3, 2, 1):
        done = take_out(bench, f"turn:{number}")
        assert not done.conflicts
        assert image(bench.path) == states[number - 1]
    assert image(bench.path) == first
    while request := undo_request(bench.store, bench.root.id):
        bench.go(request)
    assert image(bench.path) == states[-1]
    bench.close()
    fsck(bench.store.base)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happened_since_nothing_is_lost_and_the_undo_is_exact(
    tmp_path: Path, seed: int
) -> None:
    bench, dice = Bench(tmp_path), random.Random(100 + seed)
    for number in range(6):
        scribble(dice, bench.path)  # by hand
        begin(bench.recorder, f"s{number % 2}")
        scribble(dice, bench.path)
        end(bench.recorder, f"s{number % 2}")
    scribble(dice, bench.path)
    for _ in range(4):
        before = image(bench.path)
        spec = f"s{dice.randrange(2)}/{dice.randint(1, 3)}"
        side: Side = dice.choice(SIDES)
        done = take_out(bench, spec, side=side)
        assert done.outcome in ("done", "nothing", "conflicts")
        if done.outcome == "done":
            assert not done.conflicts
            bench.go(undo_request(bench.store, bench.root.id))
            assert image(bench.path) == before
            bench.go(redo_request(bench.store, bench.root.id))
        else:
            assert image(bench.path) == before


@pytest.mark.parametrize("seed", range(8))
def test_in_any_order_undos_go_back_exactly_and_as_many_redos_forward_again(
    tmp_path: Path, seed: int
) -> None:
    """Agents, a person, reverts and rollbacks; every content that ever was can still be had."""
    bench, dice = Bench(tmp_path), random.Random(200 + seed)
    scribble(dice, bench.path)
    points, ever, undos = [bench.point()], contents(bench), list[Image]()
    for _ in range(12):
        before = image(bench.path)
        if step(bench, dice, points):
            undos.append(before)
        ever |= contents(bench)
    states = [image(bench.path)]
    while request := undo_request(bench.store, bench.root.id):
        bench.go(request)
        states.append(image(bench.path))
        assert states[-1] == undos.pop()
    assert not undos
    for state in states[-2::-1]:
        bench.go(redo_request(bench.store, bench.root.id))
        assert image(bench.path) == state
    assert ever <= bench.every_blob()
    bench.close()
    fsck(bench.store.base)


def step(bench: Bench, dice: random.Random, points: list[Taken]) -> bool:
    """Somebody does something; whether it was a revert or a rollback that did anything."""
    kind = dice.choice(("hand", "turn", "turn", "revert", "revert", "back"))
    if kind == "back":
        return bench.back_to(dice.choice(points)).outcome == "done"
    if kind == "revert":
        number = some_turn(bench, dice)
        side = dice.choice(SIDES)
        return bool(number) and take_out(bench, number, side=side).outcome == "done"
    if kind == "turn":
        begin(bench.recorder, "s")
    scribble(dice, bench.path)
    points.append(end(bench.recorder, "s") if kind == "turn" else bench.point())
    return False


def some_turn(bench: Bench, dice: random.Random) -> str:
    turns = [m.turn for m in bench.history().marks() if m.kind == "turn-begin"]
    return f"s/{dice.choice(turns)}" if turns else ""


def contents(bench: Bench) -> set[bytes]:
    found = image(bench.path).values()
    return {bytes(leaf[2]) for leaf in found if leaf[0] == "file"}  # type: ignore[call-overload]


# Death


def three_states(base: Path) -> tuple[Bench, Wish, Image, Image]:
    bench = Bench(base)
    build(bench.path, {"f": TEXT, "gone": "back", "d/e/": Dir(0o700)})
    bench.point()
    turn(bench, {"f": replaced(TEXT, _3="x"), "made/new": "n"}, "gone", "d")
    build(bench.path, {"f": replaced(TEXT, _3="x", _9="mine"), "later": "l"})
    before = image(bench.path)
    return (
        bench,
        wish(bench, "turn:1"),
        before,
        {
            b"f": ("file", 0o644, replaced(TEXT, _9="mine").encode()),
            b"gone": ("file", 0o644, b"back"),
            b"d": ("dir", 0o755),
            b"d/e": ("dir", 0o700),
            b"later": ("file", 0o644, b"l"),
        },
    )


def run_revert(bench: Bench, wanted: Wish, disk: Disk) -> None:
    recorder = Recorder(Store.open(bench.store.base, disk), bench.root, ALL)
    with recorder.store.workspace_lock(bench.root.id):
        finish_interrupted(recorder)
        revert(recorder, wanted)
    recorder.close()


LARGE = "x" * 5000


@pytest.mark.parametrize(
    ("did", "gone", "since", "path"),
    [
        ({"a": "2"}, (), {"a": LARGE}, b"a"),
        ({"b": TEXT}, ("a",), {"b": LARGE}, b"b"),
        ({"new": "2"}, (), {"new": LARGE}, b"new"),
        ({}, ("a",), {"a": LARGE}, b"a"),
    ],
    ids=["changed", "renamed", "made", "deleted"],
)
def test_what_is_not_captured_now_is_left_alone(
    tmp_path: Path, did: Tree, gone: tuple[str, ...], since: Tree, path: bytes
) -> None:
    bench = Bench(tmp_path, RuleSet(max_file_size=len(LARGE) - 1))
    build(bench.path, {"a": TEXT, "other": "1"})
    turn(bench, did | {"other": "2"}, *gone)
    build(bench.path, since)
    large = image(bench.path)[path]
    done = take_out(bench, "turn:1")
    assert (path, "oversize now") in [(left.path, left.reason) for left in done.kept]
    assert image(bench.path)[path] == large
    assert image(bench.path)[b"other"] == ("file", 0o644, b"1")


class Unemptying(Disk):
    """Fails when staging is to be emptied."""

    def unlink(self, name: bytes | str, at: int | None = None) -> None:
        if name == b"0":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().unlink(name, at)


def test_an_interrupted_revert_is_finished_around_what_no_snapshot_holds(tmp_path: Path) -> None:
    bench = Bench(tmp_path, RuleSet(max_file_size=100))
    build(bench.path, {".gitignore": "data/\n", "data/f": "1", "d/big": "b" * 500, "a": "1"})
    turn(bench, {"a": "2"})
    edit(bench.path, {"later": "kept"})
    after = image(bench.path) | {b"a": ("file", 0o644, b"1")}
    bench.reopen(Unemptying())
    with pytest.raises(TurnmarkError, match="finish the rollback"):
        take_out(bench, "turn:1")
    bench.reopen()
    done = bench.finish()
    assert done is not None
    assert (done.kept, done.conflicts) == ((), ())
    assert image(bench.path) == after


def test_killed_at_every_step_it_is_finished_or_was_never_begun(tmp_path: Path) -> None:
    states = [three_states(tmp_path / "0")]

    def run(disk: Disk) -> None:
        run_revert(*states[-1][:2], disk)

    for at in die_at_each(run):
        bench, _, before, after = states[-1]
        bench.reopen()
        bench.finish()
        assert image(bench.path) in (before, after), f"neither state after death {at}"
        assert not bench.finish()
        bench.recorder.take()
        assert not [n for n in os.listdir(bench.path) if n.startswith(".turnmark")]
        bench.close()
        if at % 10 == 0:
            fsck(bench.store.base)
        states.append(three_states(tmp_path / str(at)))
    bench, _, _, after = states[-1]
    assert image(bench.path) == after
    assert len(states) > 40


# The command


@pytest.mark.live
def test_a_running_service_takes_a_turn_out_and_puts_it_in_again(tmp_path):
    live = Live(tmp_path)
    try:
        work = live.workspace(a="1\n2\n3\n4\n5\n")
        live.up(work)
        live.ask("turn", "begin", "--session", "s", cwd=work)
        build(work, {"a": "one\n2\n3\n4\n5\n", "b": "b"})
        live.ask("turn", "end", "--session", "s", cwd=work)
        build(work, {"a": "one\n2\n3\n4\nfive\n"})
        shown = live.ask("revert", "turn:1", "--dry-run", cwd=work)
        assert (shown["outcome"], shown["deleted"]) == ("planned", ["b"])
        done = live.ask("revert", "turn:1", "--plan", shown["plan"], cwd=work)
        assert (done["outcome"], (work / "a").read_text()) == ("done", "1\n2\n3\n4\nfive\n")
        assert live.ask("undo", "--yes", cwd=work)["outcome"] == "done"
        assert (work / "a").read_text() == "one\n2\n3\n4\nfive\n"
    finally:
        live.close()


def test_the_command_says_what_the_transcript_says(turnmark, tmp_path, monkeypatch):
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    os.umask(0o022)
    transcript.check("revert", turnmark, work)
