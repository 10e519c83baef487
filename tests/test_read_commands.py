"""show, cat, history, find and diff: what they say, to people and to programs."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import transcript
from tests.terminal import on_terminal
from tests.trees import File, build

ROOT = Path(__file__).parent.parent


@pytest.fixture
def work(tmp_path, monkeypatch):
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("TZ", "UTC")
    os.umask(0o022)
    return work


@pytest.fixture
def said(turnmark):
    """The JSON document of a command that must succeed."""

    def run(*words):
        answer = turnmark(*words, "--json")
        assert answer.code == 0, answer.err
        return json.loads(answer.out)

    return run


def test_reading_commands_say_what_the_transcript_says(turnmark, work):
    transcript.check("reading", turnmark, work)


def test_show_tells_programs_the_same(turnmark, work, said):
    build(work, {"a": "1\n", "skipped.log": "x"})
    turnmark("snapshot")
    build(work, {"b": "2\n"})
    turnmark("snapshot")
    shown = said("show", "@")
    assert shown["point"]["n"] == 1
    assert shown["workspace"]["root"] == str(work)
    assert [c["path"] for c in shown["changes"]["changes"]] == ["b"]
    assert shown["turn_changes"] is None
    assert shown["gaps"] == [{"path": "skipped.log", "reason": "excluded"}]
    assert said("show", "2")["changes"] is None


def test_cat_gives_every_byte_to_a_file_or_a_pipe(turnmark, work, nobody):
    data = bytes(range(256)) * 5000
    build(work, {"odd": data})
    turnmark("snapshot")
    (work / "odd").unlink()
    command = [sys.executable, "-m", "watcher", "cat", "@", "odd"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=work, env=env, capture_output=True, check=True)
    assert done.stdout == data


def test_cat_tells_programs_kind_mode_and_bytes(turnmark, work, said):
    build(work, {"f": File(b"\xff\n", 0o600), "d/x": "", "e/": ""})
    os.symlink("f", work / "l")
    turnmark("snapshot")
    assert said("cat", "@", "f")["mode"] == "0600"
    assert base64.b64decode(said("cat", "@", "f")["base64"]) == b"\xff\n"
    assert said("cat", "@", "l")["target"] == "f"
    assert said("cat", "@", "d")["names"] == ["x"]
    assert said("cat", "@", ".")["names"] == ["d/", "e/", "f", "l"]


def test_a_terminal_never_obeys_a_file(turnmark, work):
    build(work, {"evil": "\x1b]0;title\x07\n", "bin": b"\0\1"})
    turnmark("snapshot")
    shown, code = on_terminal(work, "cat", "@", "evil")
    assert (code, shown.strip()) == (0, "\\x1b]0;title\\x07")
    shown, _ = on_terminal(work, "cat", "@", "bin")
    assert "bin is binary, 2 B" in shown
    build(work, {"evil": "\x1b[2J\n"})
    shown, _ = on_terminal(work, "diff", env={"NO_COLOR": "1"})
    assert "\x1b" not in shown
    assert "+\\x1b[2J" in shown


def test_a_diff_on_a_terminal_is_coloured_and_capped(turnmark, work):
    build(work, {"a": "0\n"})
    turnmark("snapshot")
    build(work, {"a": "".join(f"{n}\n" for n in range(300))})
    shown, _ = on_terminal(work, "diff")
    assert "\x1b[32m+1\x1b[0m" in shown
    assert len(shown.splitlines()) == 81
    assert shown.splitlines()[-1].startswith("... 225 more lines; --full")
    full, _ = on_terminal(work, "diff", "--full")
    assert "+299" in full
    assert len(turnmark("diff").out.splitlines()) == len(full.splitlines())


def test_a_diff_can_be_applied(turnmark, work, tmp_path):
    build(work, {"a": "1\n2\n3\n", "old name": "x\n" * 30, "gone": "bye\n"})
    build(tmp_path / "copy", {"a": "1\n2\n3\n", "old name": "x\n" * 30, "gone": "bye\n"})
    turnmark("snapshot")
    build(work, {"a": "1\nzwei\n3\n", "new/näme": "x\n" * 30})
    (work / "old name").unlink()
    (work / "gone").unlink()
    patch = turnmark("diff").out
    command = ["git", "apply", "--directory=", "-"]
    subprocess.run(command, cwd=tmp_path / "copy", input=patch, text=True, check=True)
    assert (tmp_path / "copy/a").read_text() == "1\nzwei\n3\n"
    assert (tmp_path / "copy/new/näme").read_text() == "x\n" * 30
    assert not (tmp_path / "copy/gone").exists()


def test_a_diff_against_now_stores_nothing_and_needs_no_lock(turnmark, work, said):
    from core.roots import root_of
    from core.store import Store

    build(work, {"a": "1\n"})
    turnmark("snapshot")
    build(work, {"a": "2\n", "d/b": "3\n"})
    store = Store.open(os.environ["TURNMARK_HOME"] + "/store")
    objects = sum(pack.count for pack in store.packs())
    with store.workspace_lock(root_of(os.fsencode(work)).id):
        found = said("diff")
    assert [(c["path"], c["status"]) for c in found["changes"]] == [
        ("a", "modified"),
        ("d/b", "added"),
    ]
    assert sum(pack.count for pack in store.packs()) == objects


def test_diff_tells_programs_of_every_kind_of_change(turnmark, work, said):
    build(work, {"m": "1\n2\n", "r": "same\n" * 9, "t": "x", "x": "run", "b": b"\0", "e/": ""})
    turnmark("snapshot")
    for name in ("r", "t"):
        (work / name).unlink()
    (work / "e").rmdir()
    build(work, {"m": "1\nzwei\n", "r2": "same\n" * 9, "b": b"\0\0", "n": "", "p": ""})
    os.symlink("m", work / "t")
    (work / "x").chmod(0o755)
    found = said("diff")
    changes = {c["path"]: c for c in found["changes"]}
    assert {path: c["status"] for path, c in changes.items()} == {
        "b": "modified",
        "m": "modified",
        "n": "added",
        "p": "added",
        "r2": "renamed",
        "t": "retyped",
        "x": "mode",
    }
    assert (changes["m"]["insertions"], changes["m"]["deletions"]) == (1, 1)
    assert changes["r2"]["old_path"] == "r"
    assert changes["b"]["binary"]
    assert found["dirs_deleted"] == ["e"]


def test_diff_tells_of_permissions_that_git_does_not_know(turnmark, work, said):
    build(work, {"a": "x", "b": "y", "c": "z"})
    turnmark("snapshot")
    (work / "a").chmod(0o600)
    mode = {"path": "a", "old": "0644", "new": "0600", "by": ["person"]}
    assert said("diff")["modes"] == [mode]


def test_private_contents_are_shown_only_when_asked_for(turnmark, work):
    build(work, {".env": "TOKEN=1\n", "deep/server.pem": "KEY\n", "a": "open\n"})
    turnmark("snapshot")
    build(work, {".env": "TOKEN=2\n", "deep/server.pem": "KEY2\n", "a": "opened\n"})
    hidden = turnmark("diff").out
    assert "+opened" in hidden
    assert "TOKEN" not in hidden
    assert "KEY" not in hidden
    assert "b/deep/server.pem" in hidden
    assert "+TOKEN=2" in turnmark("diff", "--private").out


def test_paths_are_relative_to_the_current_directory(turnmark, work, monkeypatch, said):
    build(work, {"d/a": "1", "a": "2"})
    turnmark("snapshot")
    monkeypatch.chdir(work / "d")
    assert turnmark("cat", "@", "a").out == "1"
    assert turnmark("cat", "@", "../a").out == "2"
    assert said("history", "a")["path"] == "d/a"


def test_a_path_where_a_point_belongs_is_told_where_it_goes(turnmark, work):
    build(work, {"a": "1"})
    turnmark("snapshot")
    assert "`turnmark diff -- a`" in turnmark("diff", "a").err
    assert "`turnmark diff -- a`" in turnmark("diff", "@", "a").err
    assert "`turnmark list`" in turnmark("diff", "b").err
    said = turnmark("cat", "a")
    assert (said.code, said.out) == (65, "")
    assert "`turnmark cat @ a`" in said.err
    assert turnmark("cat", "@", "a").out == "1"


def test_another_directory_can_be_named(turnmark, work, tmp_path, monkeypatch, said):
    build(work, {"a": "1"})
    turnmark("snapshot")
    monkeypatch.chdir(tmp_path)
    assert said("show", "@", "--dir", str(work))["workspace"]["root"] == str(work)
    assert turnmark("show", "@").code == 65


def test_the_past_can_be_read_when_the_directory_is_gone(turnmark, work, tmp_path, monkeypatch):
    build(work, {"a": "1\n"})
    turnmark("snapshot")
    monkeypatch.chdir(tmp_path)
    (work / "a").unlink()
    work.rmdir()
    assert turnmark("cat", "@", str(work / "a"), "--dir", str(work)).out == "1\n"


def test_history_and_find_tell_programs_ids(turnmark, work, said):
    build(work, {"a": "x\n"})
    first = said("snapshot")["id"]
    (work / "a").unlink()
    said("snapshot")
    gone, there = said("history", "a")["versions"]
    assert (gone["present"], there["present"], there["size"]) == (False, True, 2)
    assert (there["id"], there["n"]) == (first, 2)
    (found,) = said("find", "a")["found"]
    assert (found["first"]["id"], found["last"]["id"], found["still"]) == (first, first, False)
    assert said("find", "--text", "x")["found"][0]["text"] == "x"


@pytest.mark.parametrize(
    "words", [["show", "@"], ["cat", "@", "a"], ["history", "a"], ["find", "a"], ["diff"]]
)
def test_reading_needs_a_store(turnmark, work, words):
    assert turnmark(*words).code == 10
    assert not Path(os.environ["TURNMARK_HOME"]).exists()


def test_a_listing_keeps_its_lines(turnmark, work):
    build(work, {"a\nb": "1", "c\x1b[31m": "2"})
    turnmark("snapshot")
    assert turnmark("cat", "@", ".").out == "a\\nb\nc\\x1b[31m\n"


def test_diff_knows_no_difference_of_what_was_never_held(turnmark, work):
    build(work, {"a": "1", "run.log": "2", "d/e": "3"})
    (work / "empty").mkdir()
    turnmark("snapshot")
    for path in ("a", "d", "d/e", "empty", "."):
        assert turnmark("diff", "--", path).code == 0
    gone = turnmark("diff", "--", "nowhere")
    assert (gone.code, gone.out) == (65, "")
    assert "was not there at point 1 (manual), nor now" in gone.err
    left_out = turnmark("diff", "--", "run.log")
    assert (left_out.code, left_out.out) == (65, "")
    assert "run.log is not held: excluded" in left_out.err
    build(work, {"new": ""})
    assert "b/new" in turnmark("diff", "--", "new").out


def test_a_damaged_history_is_never_called_an_empty_one(turnmark, work, store_damage, said):
    build(work, {"a": "1"})
    turnmark("snapshot")
    store_damage()
    assert said("list")["damaged"]
    for words in (["list"], ["show", "1"], ["diff"], ["history", "a"]):
        assert "turnmark store verify" in turnmark(*words).err


@pytest.fixture
def store_damage():
    def empty_packs() -> None:
        for pack in Path(os.environ["TURNMARK_HOME"]).glob("store/objects/pack/*.pack"):
            pack.chmod(0o600)
            pack.write_bytes(b"")

    return empty_packs
