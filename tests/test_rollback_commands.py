"""rollback, undo and redo: previews, questions, exit codes, and what programs are told."""

from __future__ import annotations

import json
import os
import shutil
import subprocess

import pytest

from tests import transcript
from tests.terminal import on_terminal
from tests.trees import Dir, File, Link, build, image


@pytest.fixture
def work(tmp_path, monkeypatch):
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    os.umask(0o022)
    return work


@pytest.fixture
def said(turnmark):
    """The JSON document of a command, and its exit code."""

    def run(*words):
        answer = turnmark(*words, "--json")
        return json.loads(answer.out), answer.code

    return run


def test_rollback_commands_say_what_the_transcript_says(turnmark, work):
    transcript.check("rollback", turnmark, work)


def test_programs_are_told_what_became_of_each_path(turnmark, work, said):
    build(work, {"same": "s", "edited": "1", "gone/a": "x", "link": Link("a"), "mode": "m"})
    turnmark("snapshot")
    for name in ("gone/a", "link"):
        (work / name).unlink()
    (work / "gone").rmdir()
    (work / "mode").chmod(0o600)
    build(work, {"edited": "2", "new/b": "y", "link": "a file now", "empty/": Dir()})
    done, code = said("rollback", "1", "--yes")
    assert (code, done["outcome"], done["schema"]) == (0, "done", 1)
    assert done["created"] == ["gone", "gone/a"]
    assert done["replaced"] == ["edited", "link"]
    assert done["deleted"] == ["empty", "new", "new/b"]
    assert done["modes"] == ["mode"]
    assert done["kept"] == done["conflicts"] == done["turns_undone"] == done["fuses"] == []
    assert len(done["plan"]) == 16
    assert len(done["undo"]) == 40


def test_what_no_point_held_and_is_gone_is_said(turnmark, work, said):
    """Found by a new user: an agent had deleted what the rules leave out, and nothing said so."""
    build(
        work,
        {"src/build/core.py": "x", "src/main.py": "y", "env/prod.sh": "z"},
    )
    turnmark("snapshot")
    shutil.rmtree(work / "src")
    shutil.rmtree(work / "env")
    lost = [{"path": "env", "reason": "excluded"}, {"path": "src/build", "reason": "excluded"}]
    planned, _ = said("rollback", "--dry-run")
    assert planned["gone"] == lost
    assert planned["created"] == ["src", "src/main.py"]
    shown = turnmark("rollback", "--yes").out
    assert shown.splitlines()[-3:] == [
        "Gone, and not held by that point, 2 paths:",
        "  env  (excluded)",
        "  src/build  (excluded)",
    ]
    first = json.loads(turnmark("list", "--json").out)["points"][-1]["id"]
    again = turnmark("rollback", first, "--yes").out
    assert again.startswith("Nothing to do: all that it held is as it was then.")
    assert "src/build  (excluded)" in again
    build(work, {"env/prod.sh": "made again"})
    assert said("rollback", first, "--yes", "src/main.py")[0]["gone"] == []
    assert said("rollback", first, "--dry-run")[0]["gone"] == lost[1:]


def test_a_dry_run_says_the_same_and_changes_nothing(turnmark, work, said):
    build(work, {"a": "1", "b/c": "2"})
    turnmark("snapshot")
    build(work, {"a": "2"})
    before = image(work)
    planned, code = said("rollback", "--dry-run")
    assert (code, planned["outcome"], planned["undo"]) == (0, "planned", None)
    assert image(work) == before
    assert len(json.loads(turnmark("list", "--all", "--json").out)["points"]) == 1
    done, _ = said("rollback", "--yes", "--plan", planned["plan"])
    assert (done["plan"], done["replaced"]) == (planned["plan"], planned["replaced"])


def test_a_rollback_names_the_turns_that_it_takes_back(turnmark, work, said):
    build(work, {"a": "0"})
    turnmark("snapshot")
    for number in (1, 2):
        begin = ("turn", "begin", "--session", "s", "--prompt", f"p{number}")
        turnmark(*begin, "--messages", str(10 * number))
        build(work, {"a": str(number)})
        turnmark("turn", "end", "--session", "s")
    done, _ = said("rollback", "turn:1", "--yes")
    assert done["turns_undone"] == [
        {"session": "s", "turn": 1, "label": "p1", "messages": 10},
        {"session": "s", "turn": 2, "label": "p2", "messages": 20},
    ]
    assert (work / "a").read_text() == "0"


def test_what_stays_different_is_named_and_exits_with_3(turnmark, work, said):
    build(work, {"a": "1", "big": "small"})
    turnmark("snapshot")
    build(work, {"a": "2", "big": b"x" * (11 << 20)})
    done, code = said("rollback", "--yes")
    assert (code, done["outcome"]) == (3, "done")
    assert done["kept"] == [{"path": "big", "reason": "oversize now"}]
    assert (work / "big").stat().st_size == 11 << 20


def test_nothing_to_do_is_no_failure(turnmark, work, said):
    build(work, {"a": "1"})
    turnmark("snapshot")
    done, code = said("rollback", "--yes")
    assert (code, done["outcome"], done["undo"]) == (0, "nothing", None)
    done, code = said("undo", "--yes")
    assert (code, done["outcome"]) == (0, "nothing")
    done, code = said("redo", "--yes")
    assert (code, done["outcome"]) == (0, "nothing")


def test_a_blown_fuse_refuses_until_the_hash_is_given(turnmark, work, said):
    build(work, {"a": "1"})
    turnmark("snapshot")
    build(work, {f"d/{n}": "x" for n in range(150)})
    refused, code = said("rollback", "--yes")
    assert (code, refused["outcome"]) == (1, "refused")
    assert refused["fuses"]
    assert len(list((work / "d").iterdir())) == 150
    told = turnmark("rollback", "1", "--yes")
    assert (told.code, told.out) == (1, "")
    assert f"turnmark rollback 1 --plan {refused['plan']}" in told.err
    done, code = said("rollback", "--plan", refused["plan"])
    assert (code, done["outcome"]) == (0, "done")
    assert not (work / "d").exists()


def test_a_plan_that_is_no_longer_true_is_refused(turnmark, work, said):
    build(work, {"a": "1"})
    turnmark("snapshot")
    build(work, {"a": "2"})
    plan = said("rollback", "--dry-run")[0]["plan"]
    build(work, {"b": "new"})
    refused, code = said("rollback", "--plan", plan)
    assert (code, refused["outcome"]) == (1, "refused")
    assert "changed since" in refused["reason"]
    assert (work / "a").read_text() == "2"


def test_nobody_to_ask_is_a_usage_error_and_nothing_happens(turnmark, work):
    build(work, {"a": "1"})
    turnmark("snapshot")
    build(work, {"a": "2"})
    for words in (["rollback"], ["rollback", "@"], ["undo", "--json"], ["rollback", "--json"]):
        refused = turnmark(*words)
        assert (refused.code, "--yes" in refused.err) == (64, True)
    assert (work / "a").read_text() == "2"
    assert "which point" in turnmark("rollback").err


def test_what_is_wrong_with_what_was_named_comes_before_who_is_asked(turnmark, work):
    build(work, {"a": "1"})
    turnmark("snapshot")
    refused = turnmark("rollback", "99")
    assert (refused.code, "99" in refused.err, "asked" in refused.err) == (65, True, False)
    assert turnmark("undo").out == turnmark("undo", "--yes").out


@pytest.mark.parametrize("path", ["src/gone.py", "gone.txt", "there"])
def test_who_names_only_a_path_is_told_that_the_point_comes_first(turnmark, work, path):
    build(work, {"there": "1", "src/gone.py": "1", "gone.txt": "1"})
    turnmark("snapshot")
    (work / "src/gone.py").unlink()
    (work / "gone.txt").unlink()
    turnmark("snapshot")
    refused = turnmark("rollback", path)
    assert (refused.code, f"`turnmark rollback @ {path}`" in refused.err) == (65, True)
    refused = turnmark("rollback", path, "--dir", ".")
    assert f"`turnmark rollback --dir . @ {path}`" in refused.err
    for other in ("nobody", "s/9", "turn:9.end", "no/such.py"):
        assert "point comes first" not in turnmark("rollback", other).err


@pytest.mark.parametrize(("types", "exact"), [(b"y\n", True), (b"yes\n", True), (b"n\n", False)])
def test_a_person_sees_the_preview_and_decides(turnmark, work, types, exact):
    build(work, {"a": "1"})
    turnmark("snapshot")
    build(work, {"a": "2"})
    shown, code = on_terminal(work, "rollback", "@", types=types)
    own = "Takes back 1 edit of your own (--mine-stays keeps it).\n"
    preview = f"Rollback to point 1 (manual)\nPut back 1 path:\n  a\n{own}Go on? [y/N]"
    assert shown.startswith(preview)
    assert (work / "a").read_text() == ("1" if exact else "2")
    assert code == (0 if exact else 1)
    assert ("`turnmark undo` takes this back" if exact else "Nothing was changed.") in shown


@pytest.mark.parametrize(
    ("types", "ends"), [(b"\x03", 130), (b"\x04", 1), (b"\n", 1), (b"what?\n", 1)]
)
def test_anything_else_than_yes_is_a_no(turnmark, work, types, ends):
    build(work, {"a": "1"})
    turnmark("snapshot")
    build(work, {"a": "2"})
    shown, code = on_terminal(work, "rollback", "@", types=types)
    assert (code, (work / "a").read_text()) == (ends, "2")
    assert "Nothing was changed." in shown
    assert "Traceback" not in shown


def test_a_yes_on_a_terminal_also_answers_for_the_fuses_shown(turnmark, work):
    build(work, {"a": "1"})
    turnmark("snapshot")
    build(work, {f"d/{n}": "x" for n in range(150)})
    shown, code = on_terminal(work, "rollback", "@", types=b"y\n")
    assert "Careful: " in shown
    assert (code, (work / "d").exists()) == (0, False)


def test_a_workspace_that_moves_while_somebody_thinks_is_not_rolled_back(turnmark, work):
    build(work, {"a": "1"})
    turnmark("snapshot")
    build(work, {"a": "2"})
    # What the shell writes after the preview stands for an agent that goes on.
    shown, code = on_terminal(
        work, "rollback", "@", types=b"y\n", before=lambda: build(work, {"late": "by the agent"})
    )
    assert code == 1
    assert "changed since" in shown
    assert (work / "late").exists()
    assert (work / "a").read_text() == "2"


def test_undo_and_redo_walk_any_number_of_steps(turnmark, work):
    images, ids = [], []
    for number in range(4):
        build(work, {"a": str(number), f"only{number}": File("x", 0o600)})
        ids.append(json.loads(turnmark("snapshot", "--json").out)["id"])
        images.append(image(work))
    for number in (2, 0, 1):
        assert turnmark("rollback", ids[number], "--yes").code == 0
        assert image(work) == images[number]
    states = [image(work)]
    for _ in range(3):
        assert turnmark("undo", "--yes").code == 0
        states.append(image(work))
    assert states[-1] == images[3]
    for state in states[-2::-1]:
        assert turnmark("redo", "--yes").code == 0
        assert image(work) == state


def test_paths_limit_a_rollback_and_are_taken_literally(turnmark, work, said, monkeypatch):
    build(work, {"d/a": "1", "d/*": "star", "b": "1"})
    first = json.loads(turnmark("snapshot", "--json").out)["id"]
    build(work, {"d/a": "2", "d/*": "changed", "b": "2"})
    monkeypatch.chdir(work / "d")
    done, _ = said("rollback", "@", "*", "--yes")
    assert done["replaced"] == ["d/*"]
    done, _ = said("rollback", first, str(work / "b"), "--yes")
    assert (done["replaced"], (work / "d/a").read_text()) == (["b"], "2")


def test_a_rollback_of_paths_is_called_so_in_the_history(turnmark, work):
    build(work, {"a": "1", "b": "1", "c": "1"})
    turnmark("mark", "-m", "one")
    for paths, named in ((["a"], "a"), (["b", "c"], "b and 1 more")):
        build(work, {"a": "2", "b": "2", "c": "2"})
        first = turnmark("list").out.count("\n") - 1
        assert turnmark("rollback", str(first), *paths, "--yes").code == 0
        assert f"rollback of {named} to snapshot" in turnmark("list").out
        assert f"before rollback of {named} to" in turnmark("undo", "--yes").out


def test_nobody_to_ask_where_a_fuse_is_up_is_told_of_the_plan(turnmark, work):
    build(work, {"made": "1"})
    turnmark("snapshot")
    (work / "made").unlink()
    turnmark("snapshot")
    build(work, {"made": "2"})
    refused = turnmark("rollback", "1")
    assert refused.code == 64
    plan = refused.err.split("--plan ")[1].split(",")[0]
    assert turnmark("rollback", "1", "--plan", plan).code == 0


def test_a_directory_that_is_not_there_is_said_to_be_none(turnmark, work):
    build(work, {"a": "1"})
    turnmark("snapshot")
    assert f"{work}/nope is not there; this is of {work}." in turnmark("list", "nope").err
    assert "is not there" not in turnmark("list", str(work)).err


def test_an_open_turn_is_said(turnmark, work, said):
    build(work, {"a": "1"})
    turnmark("turn", "begin", "--session", "s")
    build(work, {"a": "2"})
    assert said("rollback", "--dry-run")[0]["open_turns"] == ["s/1"]
    assert "Turn s/1 is still open" in turnmark("rollback", "--dry-run").out


def test_a_turn_whose_maker_is_no_more_is_not_said_to_go_on(turnmark, work, said):
    """Found by a new user: an agent had deleted its own directory, and could not end its turn."""
    build(work, {"a": "1"})
    process = subprocess.Popen(["sleep", "600"])
    turnmark("turn", "begin", "--session", "s", "--pid", str(process.pid))
    build(work, {"a": "2"})
    assert said("rollback", "--dry-run")[0]["open_turns"] == ["s/1"]
    process.kill()
    process.wait()
    assert said("rollback", "--dry-run")[0]["open_turns"] == []
    assert said("rollback", "--yes")[0]["open_turns"] == []


def test_a_preview_folds_whole_directories_and_long_lists(turnmark, work):
    build(work, {"a": "", **{f"d/{n}": "x" for n in range(50)}})
    turnmark("snapshot")
    for path in (work / "d").iterdir():
        path.unlink()
    (work / "d").rmdir()
    build(work, {f"new{n:02}": "x" for n in range(30)})
    shown = turnmark("rollback", "--dry-run").out
    assert "  d/  (50 files)\n" in shown
    assert "  new19\n  ... 10 more (--full shows them)\n" in shown
    assert "  new29\n" in turnmark("rollback", "--dry-run", "--full").out


def test_a_path_that_was_left_out_is_not_called_missing(turnmark, work):
    build(work, {"a": "1", "node_modules/x": "2"})
    turnmark("snapshot")
    refused = turnmark("rollback", "@", "node_modules", "--yes")
    assert refused.code == 65
    assert "node_modules is not held by point 1 (manual): excluded" in refused.err
    assert "nowhere is neither in" in turnmark("rollback", "@", "nowhere", "--yes").err


def test_a_directory_that_is_gone_can_be_made_and_filled(turnmark, work, tmp_path, monkeypatch):
    build(work, {"d/a": "1"})
    turnmark("snapshot")
    monkeypatch.chdir(tmp_path)
    shutil.rmtree(work)
    for path in ([], [str(work / "d")]):
        refused = turnmark("rollback", "1", *path, "--dir", str(work), "--yes")
        assert refused.code == 65
        assert f"mkdir -p {work}; turnmark rollback 1" in refused.err
    work.mkdir()
    assert turnmark("rollback", "1", "--dir", str(work), "--yes").code == 0
    assert (work / "d/a").read_text() == "1"


def test_what_cannot_be_put_back_is_no_success_and_one_line(turnmark, work, home_config, said):
    build(work, {"a": "1", **{f"in/{n}": "x" for n in range(30)}})
    turnmark("snapshot")
    home_config(f"watch: [{work}, {work}/in]\n")
    for path in (work / "in").iterdir():
        path.unlink()
    shown = turnmark("rollback", "@", "--dry-run").out
    assert "Nothing can be put back: what differs stays.\n" in shown
    assert "Nothing to do" not in shown
    assert "  in  (a workspace of its own now, with 30 below it)\n" in shown
    assert "in/1 " not in shown
    assert (
        "in/1  (a workspace of its own now)" in turnmark("rollback", "@", "--dry-run", "--full").out
    )


@pytest.fixture
def home_config(tmp_path, monkeypatch):
    def write(text: str) -> None:
        (tmp_path / "conf.yaml").write_text(text)
        monkeypatch.setenv("TURNMARK_CONFIG", str(tmp_path / "conf.yaml"))

    return write


def begin_and_end(turnmark, work, session, **files):
    turnmark("turn", "begin", "--session", session)
    build(work, files)
    turnmark("turn", "end", "--session", session)


def test_undo_and_redo_name_the_turns_that_they_take_back(turnmark, work, said):
    """Also those that began after the rollback which an undo takes back."""
    build(work, {"a": "0"})
    turnmark("snapshot")
    begin_and_end(turnmark, work, "one", a="1")
    said("rollback", "turn:1", "--yes")
    begin_and_end(turnmark, work, "two", b="2")
    undone, _ = said("undo", "--yes")
    assert [turn["session"] for turn in undone["turns_undone"]] == ["two"]
    assert image(work).keys() == {b"a"}
    redone, _ = said("redo", "--yes")
    assert [turn["session"] for turn in redone["turns_undone"]] == ["one"]
    assert image(work).keys() == {b"a", b"b"}


def test_a_turn_that_was_under_way_at_the_point_is_said(turnmark, work):
    build(work, {"a": "0"})
    turnmark("turn", "begin", "--session", "long")
    build(work, {"a": "1"})
    begin_and_end(turnmark, work, "short", b="1")
    build(work, {"a": "2"})
    turnmark("turn", "end", "--session", "long")
    careful = "Careful: turn long/1 was under way then; what it did since goes too."
    assert careful in turnmark("rollback", "short/1", "--dry-run").out
    assert careful in turnmark("rollback", "short/1", "--yes").out
    assert "under way" not in turnmark("rollback", "long/1", "--dry-run").out


def test_a_directory_that_is_watched_on_its_own_is_said_to_stay(turnmark, work, home_config):
    home_config(f"watch: [{work}, {work}/inner]\n")
    build(work, {"a": "0", "b": "0", "inner/c": "0"})
    turnmark("snapshot")
    build(work, {"a": "1", "b": "1", "inner/c": "1"})
    stays = "Careful: inner is watched on its own, and stays as it is.\n"
    assert stays in turnmark("rollback", "@", "--dry-run").out
    assert stays not in turnmark("rollback", "@", "a", "--dry-run").out
    assert stays in turnmark("rollback", "@", "--yes").out
    assert ((work / "a").read_text(), (work / "inner/c").read_text()) == ("0", "1")


def test_what_was_never_held_and_is_gone_is_not_said_to_stay(turnmark, work, said):
    """Found by a new user: of a large file that was deleted it said «Stays as it is»."""
    build(work, {"a": "1"})
    (work / "huge").write_bytes(bytes(11 << 20))
    os.mkfifo(work / "fifo")
    turnmark("snapshot")
    (work / "huge").unlink()
    (work / "fifo").unlink()
    build(work, {"a": "2"})
    shown = turnmark("rollback", "@", "--dry-run").out
    assert "Gone, and not held by that point, 2 paths:\n  fifo  (special)\n  huge  (overs" in shown
    assert "Stays" not in shown
    done, code = said("rollback", "@", "--yes")
    assert code == 3
    assert [one["path"] for one in done["gone"]] == ["fifo", "huge"]


def test_what_becomes_a_file_again_is_not_shown_as_a_directory(turnmark, work):
    build(work, {"f": "1", "d/x": "1"})
    turnmark("snapshot")
    shutil.rmtree(work / "d")
    (work / "f").unlink()
    build(work, {"f/y": "2", "d": "2"})
    lines = turnmark("rollback", "@", "--dry-run").out.splitlines()
    assert lines[1:4] == ["Create 3 paths:", "  d/  (1 file)", "  f"]
    assert lines[4:7] == ["Delete 3 paths:", "  d", "  f/  (1 file)"]


def test_the_way_back_names_the_directory_that_is_not_the_one_of_here(turnmark, work, tmp_path):
    build(work, {"a": "1"})
    turnmark("snapshot")
    build(work, {"a": "2"})
    os.chdir(tmp_path)
    shown = turnmark("rollback", "@", "--dir", str(work), "--yes").out
    assert f"`turnmark undo --dir {work}` takes this back." in shown
    assert turnmark("undo", "--dir", str(work), "--yes").code == 0


@pytest.mark.parametrize(
    ("way", "turns"),
    [
        (["turn:2", "turn:3.end", "turn:2"], [[2, 3], [], [2, 3]]),
        (["turn:1", "turn:2", "turn:1"], [[1, 2, 3], [], [1]]),
        (["turn:1.end", "turn:3", "turn:2.end", "turn:1"], [[2, 3], [], [], [1, 2]]),
    ],
)
def test_forward_and_back_again_names_the_turns_that_stand(turnmark, work, said, way, turns):
    """Found by a reviewer: after a rollback forward the turns that came back counted as gone."""
    build(work, {"f": "0"})
    turnmark("snapshot")
    for number in "123":
        begin_and_end(turnmark, work, "s", f=number)
    told = [said("rollback", point, "--yes")[0]["turns_undone"] for point in way]
    assert [[turn["turn"] for turn in some] for some in told] == turns


def test_what_a_gitignore_of_now_keeps_back_comes_the_second_time(turnmark, work, said):
    build(work, {"shown": "good"})
    turnmark("snapshot")
    point = json.loads(turnmark("list", "--json").out)["points"][0]["id"]
    build(work, {"shown": "bad", ".gitignore": "shown\n"})
    first = turnmark("rollback", point, "--yes")
    assert first.code == 3
    assert "leaves out that changes now comes back by going there once more." in first.out
    assert (work / "shown").read_text() == "bad"
    assert said("rollback", point, "--yes")[1] == 0
    assert image(work).keys() == {b"shown"}
    assert (work / "shown").read_text() == "good"
