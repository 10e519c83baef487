"""store: what it says of itself, and that nothing goes away unasked or unnamed."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from core.clear import clear
from core.errors import Busy, TurnmarkError
from core.roots import root_of
from core.store import Store
from tests import transcript
from tests.faults import FaultyDisk, failing
from tests.stores import Bench, fsck
from tests.terminal import on_terminal
from tests.trees import build


@pytest.fixture
def work(tmp_path, monkeypatch):
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


@pytest.fixture
def home():
    return Path(os.environ["TURNMARK_HOME"])


@pytest.fixture
def said(turnmark):
    """The JSON document of a command, and its exit code."""

    def run(*words):
        answer = turnmark(*words, "--json")
        return json.loads(answer.out), answer.code

    return run


@pytest.fixture
def lived_in(turnmark, work):
    """A store of two workspaces, of which one is deleted since."""
    for name in ("kept", "gone"):
        build(work / name, {"a": name})
        turnmark("snapshot", str(work / name))
        build(work / name, {"a": f"{name} again"})
        turnmark("snapshot", str(work / name))
    build(work, {"something": "else"})
    shutil.rmtree(work / "gone")
    return work


def test_store_commands_say_what_the_transcript_says(turnmark, work, home):
    def run(*words):
        answer = turnmark(*words)
        hidden = answer.out.replace(str(home), "/home"), answer.err.replace(str(home), "/home")
        return type(answer)(answer.code, *map(_usual, hidden))

    transcript.check("store", run, work)


def _usual(text):
    text = re.sub(r"\b[\d.]+ (B|KB|MB)\b", "SIZE", text)
    text = re.sub(r"^(\.\.\.|/)\S*/work ", "/work ", text, flags=re.MULTILINE)
    return re.sub(r"/\S*/copy", "/copy", text)


def test_status_tells_programs_whose_history_is_held(lived_in, said, home):
    told, code = said("store", "status")
    assert code == 0
    assert (told["base"], told["legacy"]) == (str(home / "store"), [])
    assert told["total_bytes"] > 1000
    rows = {Path(row["root"]).name: row for row in told["workspaces"]}
    assert {name: row["state"] for name, row in rows.items()} == {"kept": "live", "gone": "orphan"}
    assert rows["kept"]["id"] == root_of(os.fsencode(lived_in / "kept")).id
    assert (rows["kept"]["points"], rows["kept"]["snapshots"]) == (2, 2)
    assert rows["gone"]["last_touch"].endswith("Z")
    assert said("store")[0]["workspaces"] == told["workspaces"]
    assert len(said("store", "list", "--limit", "1")[0]["workspaces"]) == 1


@pytest.mark.parametrize("name", ["status", "list", "prune", "verify", "repair", "clear", "backup"])
def test_without_a_store_there_is_nothing_to_do(turnmark, work, home, name):
    more = ["x"] if name == "backup" else []
    assert turnmark("store", name, *more).code == 10
    assert not home.exists()


def test_a_store_may_be_read_by_a_narrow_terminal(turnmark, work, tmp_path):
    deep = tmp_path / ("a rather long name of a directory " * 3).strip()
    build(deep, {"a": ""})
    turnmark("snapshot", str(deep))
    shown, _ = on_terminal(work, "store", env={"NO_COLOR": "1"})
    row = next(line for line in shown.splitlines() if line.startswith("..."))
    assert row.split("  ")[0].endswith("name of a directory")
    assert row.rstrip().endswith("live")


# Pruning


def test_prune_asks_only_when_something_would_be_lost(turnmark, work):
    build(work, {"a": "1"})
    turnmark("snapshot")
    assert turnmark("store", "prune").code == 0


def test_prune_shows_first_and_loses_nothing_without_a_yes(turnmark, lived_in, said):
    planned, code = said("store", "prune", "--dry-run")
    assert (code, planned["dry_run"], planned["scanned"]) == (0, True, 2)
    assert [Path(one["root"]).name for one in planned["orphans"]] == ["gone"]
    assert turnmark("store", "prune").code == 64
    assert turnmark("store", "prune", "--json").code == 64
    shown, code = on_terminal(lived_in, "store", "prune", types=b"n\n")
    assert code == 1
    assert f"Orphans    1 workspace without a directory\n  {lived_in}/gone\n" in shown
    assert "Nothing was changed." in shown
    assert len(said("store")[0]["workspaces"]) == 2


def test_prune_drops_what_was_agreed_to(turnmark, lived_in, said, home):
    _, code = on_terminal(lived_in, "store", "prune", types=b"y\n")
    assert code == 0
    left = said("store")[0]["workspaces"]
    assert [Path(row["root"]).name for row in left] == ["kept"]
    fsck(home / "store")


def test_a_workspace_that_vanishes_during_the_question_survives(turnmark, lived_in, said):
    def vanish():
        shutil.rmtree(lived_in / "kept")

    _, code = on_terminal(lived_in, "store", "prune", types=b"y\n", before=vanish)
    assert code == 0
    left = said("store")[0]["workspaces"]
    assert [Path(row["root"]).name for row in left] == ["kept"]


def test_orphans_can_be_kept(turnmark, lived_in, said):
    done, code = said("store", "prune", "--keep-orphans")
    assert (code, done["orphans"]) == (0, [])
    assert len(said("store")[0]["workspaces"]) == 2


def test_options_win_over_the_configured_limits(turnmark, lived_in, said, tmp_path):
    (tmp_path / "c.yaml").write_text("store: {delete_orphans: false, max_total_size_mb: 1}\n")
    config = ("--config", str(tmp_path / "c.yaml"))
    for number in range(3):
        build(lived_in / "kept", {"big": os.urandom(1 << 20), "n": str(number)})
        turnmark(*config, "snapshot", str(lived_in / "kept"))
    planned, _ = said(*config, "store", "prune", "--dry-run")
    assert planned["orphans"] == []
    assert planned["snapshots_dropped"] > 0
    planned, _ = said(*config, "store", "prune", "--dry-run", "--max-size-mb", "0")
    assert planned["snapshots_dropped"] == 0
    done, code = said(*config, "store", "prune", "--yes", "--max-size-mb", "3")
    assert (code, done["reclaimed"] > 0) == (0, True)
    assert done["bytes_after"] < 3 << 20


# Checking


def test_verify_names_what_is_damaged_and_repair_what_was_lost(turnmark, work, said, home):
    build(work, {"a": "1"})
    turnmark("snapshot")
    build(work, {"b": "only here"})
    turnmark("snapshot")
    packs = sorted((home / "store/objects/pack").glob("*.pack"), key=lambda p: p.stat().st_mtime_ns)
    packs[-1].unlink()
    found, code = said("store", "verify")
    assert (code, found["ok"], found["snapshots"]) == (1, False, 2)
    assert found["damaged"][0]["reason"]
    assert "store repair" in turnmark("store", "verify").out
    mended, code = said("store", "repair")
    assert code == 3
    assert mended["kept"] == 1
    assert mended["dropped"][0]["root"] == str(work)
    assert said("store", "verify")[0]["ok"]
    assert (work / "b").read_text() == "only here"


def test_a_damaged_layout_file_can_be_repaired(turnmark, work, said, home):
    build(work, {"a": "1"})
    turnmark("snapshot")
    (home / "store/turnmark/layout.json").write_text("{")
    assert turnmark("show", "@").code == 1
    assert said("store", "verify")[1] == 1
    assert said("store", "repair")[1] == 0
    assert turnmark("show", "@").code == 0
    (home / "store/turnmark/layout.json").unlink()
    assert said("store", "repair")[1] == 0


def test_a_directory_that_is_no_store_is_left_alone(turnmark, work, home):
    build(home / "store", {"mine": "x"})
    (home / "store").chmod(0o700)
    for name in ("verify", "repair", "clear"):
        assert turnmark("store", name, *(["--yes"] if name == "clear" else [])).code == 10
    assert [path.name for path in (home / "store").iterdir()] == ["mine"]


def test_a_backup_is_a_store(turnmark, work, said, tmp_path, home):
    build(work, {"a": "1\n"})
    turnmark("snapshot")
    done, code = said("store", "backup", "../saved/store")
    assert (code, done["path"], done["snapshots"]) == (0, str(tmp_path / "saved/store"), 1)
    fsck(tmp_path / "saved/store")
    shutil.rmtree(home)
    assert turnmark("--home", str(tmp_path / "saved"), "cat", "@", "a").out == "1\n"


# The end


def test_clear_removes_all_of_it_and_only_that(turnmark, work, said, home):
    build(work, {"a": "1"})
    turnmark("snapshot")
    (home / "config-like").write_text("mine")
    assert turnmark("store", "clear").code == 64
    done, code = said("store", "clear", "-f")
    assert (code, done["left"]) == (0, [])
    assert done["reclaimed"] > 0
    assert [path.name for path in home.iterdir()] == ["config-like"]
    assert (work / "a").read_text() == "1"
    assert turnmark("snapshot").code == 0


def test_clear_leaves_what_is_not_ours_and_follows_no_link(turnmark, work, said, home, tmp_path):
    build(work, {"a": "1"})
    turnmark("snapshot")
    build(tmp_path / "precious", {"x": "y"})
    (home / "store/objects/way-out").symlink_to(tmp_path / "precious")
    (home / "store/notes").write_text("mine")
    done, code = said("store", "clear", "--yes")
    assert (code, done["left"]) == (3, ["notes"])
    assert (tmp_path / "precious/x").read_text() == "y"
    assert [path.name for path in (home / "store").iterdir()] == ["notes"]


def test_clear_asks_and_a_no_keeps_everything(turnmark, work, said):
    build(work, {"a": "1"})
    turnmark("snapshot")
    before = said("store", "status")[0]
    for types, ends in ((b"n\n", 1), (b"\x04", 1), (b"\x03", 130)):
        shown, code = on_terminal(work, "store", "clear", types=types)
        assert (code, "There is no way back." in shown) == (ends, True)
    assert said("store", "status")[0]["workspaces"] == before["workspaces"]
    _, code = on_terminal(work, "store", "clear", types=b"y\n")
    assert code == 0
    assert turnmark("store").code == 10


def test_clear_gives_up_when_somebody_is_writing(turnmark, work, home):
    build(work, {"a": "1"})
    turnmark("snapshot")
    store = Store.open(str(home / "store"))
    with store.workspace_lock(root_of(os.fsencode(work)).id), pytest.raises(Busy):
        clear(Store.open(str(home / "store")), wait=0.05)
    with store.writing(), pytest.raises(Busy):
        clear(Store.open(str(home / "store")), wait=0.05)
    assert turnmark("cat", "@", "a").out == "1"


def test_clear_refuses_while_a_rollback_is_unfinished(turnmark, work, home):
    build(work, {"a": "1"})
    turnmark("snapshot")
    journal = home / f"store/turnmark/journal/{root_of(os.fsencode(work)).id}.json"
    journal.write_text("{}")
    result = turnmark("store", "clear", "--yes")
    assert result.code == 1
    assert "was interrupted" in result.err
    assert turnmark("cat", "@", "a").out == "1"


def test_clear_does_not_refuse_for_a_directory_that_is_gone(tmp_path):
    bench = Bench(tmp_path)
    build(bench.path, {"a": "1"})
    bench.point()
    bench.close()
    Path(bench.store.base, f"turnmark/journal/{bench.root.id}.json").write_text("{}")
    shutil.rmtree(bench.path)
    assert clear(bench.store).left == ()
    assert not os.path.exists(bench.store.base)


def test_a_clear_that_fails_at_any_step_is_told_and_can_be_done_again(tmp_path):
    bench = Bench(tmp_path / "template")
    build(bench.path, {"a": "1"})
    bench.point()
    bench.close()
    base = tmp_path / "copy"
    for at in itertools.count(1):
        shutil.copytree(bench.store.base, base)
        disk = FaultyDisk(at, failing(errno.EIO))
        with suppress(TurnmarkError):
            clear(Store.open(str(base), disk))
            assert not base.exists()
        if not disk.struck:
            assert at > 20
            return
        if base.exists():
            clear(Store.create(str(base)))
        assert not base.exists()
