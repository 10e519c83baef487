"""checkpoints: the predecessor's calls, without its faults (R-...: research/hermes section 4)."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import pytest

from core.disk import Disk
from core.errors import NoStore, TurnmarkError
from core.history import History
from core.roots import root_of
from core.sessions import Sessions
from core.store import Store
from tests import trees
from tests.live import Live
from tests.stores import fsck
from tests.trees import Dir, File, Link, image
from watcher.agents import checkpoints
from watcher.agents.checkpoints import CheckpointManager, format_checkpoint_list
from watcher.context import context_from


def build(root: Path, tree: dict[str, Any]) -> Path:
    """Of leaves of any kind, whose common type would have to be spelled out each time."""
    return trees.build(root, tree)


@pytest.fixture(autouse=True)
def no_other_programs(request, monkeypatch, tmp_path):
    """git is not there, and nothing else may be run either."""
    if request.node.get_closest_marker("live"):
        return

    def refuse(*words, **_):
        raise AssertionError(f"{words} was run")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.fixture
def work(tmp_path):
    return build(tmp_path / "work", {"a": "1", "src/b": "b"})


@pytest.fixture
def served(tmp_path, work, monkeypatch):
    """A service that watches the directory, and that a manager finds too."""
    live = Live(tmp_path)
    for name in ("TURNMARK_HOME", "TURNMARK_CONFIG", "TURNMARK_RUNTIME_DIR"):
        monkeypatch.setenv(name, live.env[name])
    live.up(work)
    yield live
    live.close()


@pytest.fixture
def manager():
    return CheckpointManager(enabled=True)


@pytest.fixture
def store():
    def opened():
        return Store.open(str(context_from(os.environ).store_path))

    return opened


def take(manager, work, reason="before write_file"):
    """One checkpoint of its own turn; its hash."""
    manager.new_turn()
    assert manager.ensure_checkpoint(str(work), reason), manager.consume_checkpoint_notice()
    return manager.list_checkpoints(str(work))[0]["hash"]


def restored(manager, work, commit, *words, **options):
    result = manager.restore(str(work), commit, *words, **options)
    assert result["success"], result
    return result


# The calls


def test_one_checkpoint_per_directory_and_turn(manager, work, tmp_path):
    other = build(tmp_path / "other", {"x": "1"})
    assert manager.ensure_checkpoint(str(work), "first") is True
    build(work, {"a": "2"})
    assert manager.ensure_checkpoint(str(work), "same turn") is False
    assert manager.ensure_checkpoint(str(other), "another directory") is True
    manager.new_turn()
    assert manager.ensure_checkpoint(str(work), "next turn") is True
    assert [c["reason"] for c in manager.list_checkpoints(str(work))] == ["next turn", "first"]


def test_nothing_new_is_no_checkpoint(manager, work):
    take(manager, work)
    manager.new_turn()
    assert manager.ensure_checkpoint(str(work)) is False
    assert manager.consume_checkpoint_notice() is None


def test_switched_off_it_does_nothing_and_still_lists(work):
    take(CheckpointManager(enabled=True), work)
    off = CheckpointManager()
    assert off.enabled is False
    assert off.ensure_checkpoint(str(work)) is False
    assert len(off.list_checkpoints(str(work))) == 1


def test_the_list_has_the_predecessors_keys(manager, work):
    first = take(manager, work)
    build(work, {"a": "2\n3\n", "new": "x\n"})
    take(manager, work, "before patch")
    newest, oldest = manager.list_checkpoints(str(work))
    assert list(newest) == [
        "hash", "short_hash", "timestamp", "reason", "files_changed", "insertions", "deletions",
    ]  # fmt: skip
    assert (newest["files_changed"], newest["insertions"], newest["deletions"]) == (2, 3, 1)
    assert (oldest["files_changed"], oldest["insertions"], oldest["deletions"]) == (0, 0, 0)
    assert (oldest["hash"], oldest["short_hash"]) == (first, first[:8])
    assert newest["timestamp"].endswith("Z")
    assert newest["reason"] == "before patch"


def test_all_directories_are_listed_with_their_own(manager, work, tmp_path):
    other = build(tmp_path / "other", {"x": "1"})
    take(manager, work)
    take(manager, other)
    found = manager.list_all()
    assert [one["workdir"] for one in found] == [str(other), str(work)]
    assert manager.list_all_checkpoints() == found
    assert "[other]" in manager.format_checkpoint_list(found, "all directories")


def test_the_list_for_people_is_numbered(manager, work):
    assert format_checkpoint_list([], "/w") == "No checkpoints found for /w"
    take(manager, work, "before \x1b[31mred")
    shown = format_checkpoint_list(manager.list_checkpoints(str(work)), str(work))
    assert "  1. " in shown
    assert "\x1b" not in shown
    assert "[work]" not in shown


def test_without_any_checkpoint_every_call_answers(manager, work, tmp_path):
    for directory in (str(work), str(tmp_path / "none"), "", "a\0b"):
        assert manager.list_checkpoints(directory) == []
        assert manager.diff(directory, "abcd")["success"] is False
        assert manager.restore(directory, "abcd")["success"] is False
        assert manager.session_diff(directory) == {
            "success": True, "stat": "", "diff": "", "empty": True,
        }  # fmt: skip
    assert manager.list_all() == []
    assert manager.store_status()["project_count"] == 0
    assert manager.clear_all() == {"bytes_freed": 0, "deleted": False}
    assert set(manager.prune_checkpoints().values()) == {0}
    assert not Path(os.environ["TURNMARK_HOME"]).exists()


@pytest.mark.parametrize("directory", ["/", "~", "/nonexistent/x", "", "a\0b", "/etc"])
def test_what_cannot_be_taken_is_said_once_and_never_raised(manager, directory):
    assert manager.ensure_checkpoint(directory) is False
    assert directory.replace("\0", "\\x00") in manager.consume_checkpoint_notice()
    assert manager.consume_checkpoint_notice() is None


def test_a_bug_is_not_raised_into_the_tool_either(manager, work, monkeypatch):
    monkeypatch.setattr(checkpoints, "_take", lambda *_: 1 / 0)
    assert manager.ensure_checkpoint(str(work)) is False
    assert "division" in manager.consume_checkpoint_notice()


def test_a_failed_try_does_not_use_up_the_turn(manager, work, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(checkpoints, "_take", lambda *_: 1 / 0)
        manager.ensure_checkpoint(str(work))
    assert manager.ensure_checkpoint(str(work)) is True


def test_diff_shows_what_changed_since_and_what_is_new(manager, work):
    commit = take(manager, work)
    assert manager.diff(str(work), commit) == {"success": True, "stat": "", "diff": ""}
    build(work, {"a": "2", "new": "x\n"})
    found = manager.diff(str(work), commit)
    assert found["success"] is True
    assert "+2\n" in found["diff"]
    assert "new file mode" in found["diff"]
    assert "2 files, +2 -1" in found["stat"]


def test_private_files_are_not_shown_in_a_diff(manager, work):
    commit = take(manager, work)
    build(work, {".env": "TOKEN=x"})
    found = manager.diff(str(work), commit)
    assert "TOKEN" not in found["diff"]
    assert ".env" in found["diff"]


def test_session_diff_begins_at_the_oldest(manager, work):
    oldest = take(manager, work)
    build(work, {"a": "2"})
    take(manager, work)
    build(work, {"a": "3"})
    found = manager.session_diff(str(work))
    assert found["baseline"] == oldest
    assert "-1\n" in found["diff"]
    assert "empty" not in found
    build(work, {"a": "1"})
    assert manager.session_diff(str(work))["empty"] is True


def test_restore_answers_with_the_predecessors_keys(manager, work):
    commit = take(manager, work, "the reason")
    build(work, {"a": "2", "made": "x"})
    result = restored(manager, work, commit)
    assert result["restored_to"] == commit[:8]
    assert (result["reason"], result["directory"]) == ("the reason", str(work))
    assert sorted(result["restored_files"]) == ["a", "made"]
    for key in ("skipped_user_edits", "skipped_oversize", "failed_deletes", "nested_repositories"):
        assert result[key] == []
    assert "file" not in result
    assert "error" not in result


def test_a_restore_can_be_restored_from(manager, work):
    commit = take(manager, work)
    build(work, {"a": "mine", "made": "x"})
    before = image(work)
    undo = restored(manager, work, commit)["undo"]
    restored(manager, work, undo)
    assert image(work) == before


def test_one_file_is_restored_alone(manager, work):
    commit = take(manager, work)
    build(work, {"a": "2", "src/b": "2"})
    result = restored(manager, work, commit, "src/b")
    assert (result["file"], result["restored_files"]) == ("src/b", ["src/b"])
    assert (work / "a").read_text() == "2"


def test_much_deletion_needs_the_plan_that_was_named(manager, tmp_path):
    work = tmp_path / "empty"
    work.mkdir()
    commit = take(manager, work)
    build(work, {"a": "1"})
    refused = manager.restore(str(work), commit)
    assert refused["success"] is False
    assert (work / "a").exists()
    restored(manager, work, commit, plan=refused["plan"])
    assert not (work / "a").exists()


def test_the_working_directory_of_a_path(manager, tmp_path, work, monkeypatch):
    project = build(tmp_path / "project", {"pyproject.toml": "", "deep/er/file": ""})
    assert manager.get_working_dir_for_path(str(project / "deep/er/file")) == str(project)
    assert manager.get_working_dir_for_path(str(project / "deep/new/file")) == str(project)
    assert manager.get_working_dir_for_path(str(tmp_path / "lone" / "x")) == str(tmp_path / "lone")
    home = build(Path(os.environ["HOME"]), {"Makefile": "", "plain/x": "", "p/.git/HEAD": ""})
    assert manager.get_working_dir_for_path("~/plain/x") == str(home / "plain")
    assert manager.get_working_dir_for_path("~/p/sub/x") == str(home / "p")
    take(manager, project / "deep")
    assert manager.get_working_dir_for_path(str(project / "deep/er/file")) == str(project / "deep")


def test_home_may_be_written_with_a_tilde(manager):
    work = build(Path(os.environ["HOME"]) / "w", {"a": "1"})
    commit = take(manager, "~/w")
    build(work, {"a": "2"})
    assert manager.list_checkpoints("~/w") == manager.list_checkpoints(str(work))
    restored(manager, "~/w", commit)
    assert (work / "a").read_text() == "1"


def test_the_status_names_projects_and_archives(manager, work):
    archive = build(Path(os.environ["HOME"]) / ".hermes/checkpoints/legacy-1", {"x": "12345"})
    take(manager, work)
    status = manager.store_status()
    (project,) = status["projects"]
    assert (project["workdir"], project["exists"], project["commits"]) == (str(work), True, 1)
    assert project["last_touch"] == pytest.approx(time.time(), abs=60)
    assert status["legacy_archives"][0]["name"] == archive.name
    assert status["legacy_size_bytes"] == 5
    assert status["total_size_bytes"] == status["store_size_bytes"] + 5


def test_clearing_removes_what_is_asked_for_only(manager, work):
    base = Path(os.environ["HOME"]) / ".hermes/checkpoints"
    build(base, {"legacy-1/x": "12345", "store/HEAD": "", "s1.yaml": ""})
    take(manager, work)
    assert manager.clear_legacy() == {"bytes_freed": 5, "deleted": 1}
    assert sorted(os.listdir(base)) == ["s1.yaml", "store"]
    assert manager.clear_all()["deleted"] is True
    assert manager.list_checkpoints(str(work)) == []
    assert sorted(os.listdir(base)) == ["s1.yaml", "store"]
    take(manager, work)


def test_pruning_of_orphans_is_bound_to_what_was_shown(manager, tmp_path):
    works = [build(tmp_path / name, {"a": name}) for name in ("one", "two")]
    for work in works:
        take(manager, work)
        shutil.rmtree(work)
    build(tmp_path, {"in use": ""})
    first = root_of(os.fsencode(works[0])).id
    assert manager.prune_checkpoints(orphan_allowlist=[])["deleted_orphan"] == 0
    assert manager.prune_checkpoints(delete_orphans=False)["deleted_orphan"] == 0
    assert manager.prune_checkpoints(orphan_allowlist=[first])["deleted_orphan"] == 1
    assert manager.prune_checkpoints()["deleted_orphan"] == 1
    assert manager.prune_checkpoints()["scanned"] == 0


def test_the_daily_prune_runs_once(manager, work):
    assert checkpoints.maybe_auto_prune_checkpoints()["skipped"] is True
    take(manager, work)
    assert checkpoints.maybe_auto_prune_checkpoints()["result"]["errors"] == 0
    assert checkpoints.maybe_auto_prune_checkpoints() == {"skipped": True}


def test_a_file_above_the_cap_is_left_out_and_one_of_exactly_the_cap_is_not(work):
    manager = CheckpointManager(enabled=True, max_file_size_mb=1)
    build(work, {"big": b"x" * (2**20 + 1), "exact": b"x" * 2**20})
    commit = take(manager, work)
    os.unlink(work / "exact")
    build(work, {"a": "2"})
    result = restored(manager, work, commit)
    assert sorted(result["restored_files"]) == ["a", "exact"]
    assert (work / "big").exists()


@pytest.mark.live
def test_a_service_is_asked_where_there_is_one(manager, work, served):
    assert manager.ensure_checkpoint(str(work)) is False  # its first look is a point already
    for reason in ("why", "the next"):
        manager.new_turn()
        build(work, {"a": reason})
        assert manager.ensure_checkpoint(str(work), reason) is True
        build(work, {"a": f"{reason}, written"})
        assert manager.ensure_checkpoint(str(work), "the same turn") is False
    made = [(p["kind"], p["label"], p["agent"]) for p in served.points(work)]
    assert made[:2] == [("manual", "the next", "hermes"), ("manual", "why", "hermes")]
    assert [one["reason"] for one in manager.list_checkpoints(str(work))][:2] == ["the next", "why"]


@pytest.mark.live
def test_nothing_new_is_no_checkpoint_of_the_service_either(manager, work, served):
    build(work, {"a": "2"})
    take(manager, work)
    before = served.points(work)
    manager.new_turn()
    assert manager.ensure_checkpoint(str(work)) is False
    assert manager.consume_checkpoint_notice() is None
    assert served.points(work) == before


# R-a: restore is exact


def test_r_a1_what_was_created_since_is_gone_after_a_restore(manager, work):
    commit = take(manager, work)
    before = image(work)
    build(work, {"new": "x", "dir/sub/new": "y", "empty/": Dir()})
    restored(manager, work, commit)
    assert image(work) == before


def test_r_a2_a_safe_restore_removes_what_the_agent_made_with_its_directories(manager, work):
    commit = take(manager, work)
    build(work, {"new/sub/file": "agent"})
    manager.record_agent_write(str(work / "new/sub/file"))
    restored(manager, work, commit, safe=True)
    assert not (work / "new").exists()


def test_r_a3_a_safe_restore_takes_back_what_a_shell_did(manager, work):
    commit = take(manager, work)
    manager.record_agent_write(str(work / "a"))
    before = image(work)
    build(work, {"from-shell": "x"})
    os.unlink(work / "src" / "b")
    assert restored(manager, work, commit, safe=True)["skipped_user_edits"] == []
    assert image(work) == before


def test_r_a4_what_the_agent_removed_comes_back_whatever_it_wrote_before(manager, work):
    commit = take(manager, work)
    build(work, {"a": "agent"})
    manager.record_agent_write(str(work / "a"))
    shutil.rmtree(work / "src")
    restored(manager, work, commit, safe=True)
    assert (work / "src" / "b").read_text() == "b"


def test_a_safe_restore_leaves_what_somebody_changed_after_the_agent(manager, work):
    commit = take(manager, work)
    for name in ("a", "made/x"):
        build(work, {name: "agent"})
        manager.record_agent_write(str(work / name))
    build(work, {"a": "a person", "made/x": "a person", "src/b": "agent", "made/y": "agent"})
    result = restored(manager, work, commit, safe=True)
    assert sorted(result["skipped_user_edits"]) == ["a", "made/x"]
    assert (work / "a").read_text() == (work / "made" / "x").read_text() == "a person"
    assert (work / "src" / "b").read_text() == "b"
    assert not (work / "made" / "y").exists()
    build(work, {"src/b": "b"})
    result = restored(manager, work, commit, safe=True)
    assert (result["restored_files"], len(result["skipped_user_edits"])) == ([], 2)
    restored(manager, work, commit)
    assert (work / "a").read_text() == "1"


# R-b: nested repositories


def nested(path, commits):
    real = {"HEAD": "ref: refs/heads/main\n", "config": "[core]\n", "refs/heads/main": "0" * 40}
    fill = (
        real if commits else {"HEAD": "ref: refs/heads/main\n", "refs/": Dir(), "objects/": Dir()}
    )
    build(path, {**{f".git/{name}": leaf for name, leaf in fill.items()}, "code": "theirs"})
    return path


@pytest.mark.parametrize("commits", [True, False])
def test_r_b1_b2_files_of_nested_repositories_are_kept_and_come_back(manager, work, commits):
    inner = nested(work / "inner", commits)
    commit = take(manager, work)
    os.unlink(inner / "code")
    build(work, {"a": "2"})
    assert restored(manager, work, commit)["nested_repositories"] == []
    assert (inner / "code").read_text() == "theirs"
    assert (work / "a").read_text() == "1"


def test_r_b3_the_repository_of_the_project_itself_is_never_written(manager, work):
    nested(work, True)
    commit = take(manager, work)
    build(work, {".git/HEAD": "ref: refs/heads/other\n", "code": "changed"})
    repository = image(work / ".git")
    restored(manager, work, commit)
    assert image(work / ".git") == repository
    assert (work / "code").read_text() == "theirs"


# R-c, R-d: bytes are bytes, whatever git or its user was told


@pytest.mark.parametrize(
    "attributes",
    [
        "* text eol=crlf",
        "* text=auto",
        "* ident",
        "* working-tree-encoding=UTF-16",
        "* filter=evil",
    ],
)
def test_r_c_attributes_change_no_byte(manager, work, attributes):
    build(work, {".gitattributes": attributes, "mixed": b"a\r\nb\nc\r$Id$ $Id: mine $\n\xff"})
    commit = take(manager, work)
    before = image(work)
    build(work, {"mixed": "other"})
    restored(manager, work, commit)
    assert image(work) == before


def test_r_d_nothing_of_the_users_git_is_asked(manager, work, monkeypatch):
    config = "[core]\n\tautocrlf = true\n\texcludesfile = ~/ignore\n\thooksPath = /evil\n"
    home = Path(os.environ["HOME"])
    build(home, {".gitconfig": config + "[commit]\n\tgpgsign = true\n", "ignore": "*\n"})
    for place in (home / ".config" / "git", Path(os.environ["XDG_CONFIG_HOME"]) / "git"):
        build(place, {"ignore": "*\n", "attributes": "* text eol=crlf\n"})
    for name, value in {
        "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.autocrlf", "GIT_CONFIG_VALUE_0": "true",
        "GIT_DIR": "/evil", "GIT_INDEX_FILE": "/evil", "GIT_OBJECT_DIRECTORY": "/evil",
        "GIT_EXTERNAL_DIFF": "/evil", "GIT_DEFAULT_HASH": "sha256", "GIT_TEMPLATE_DIR": "/evil",
        "GIT_LITERAL_PATHSPECS": "1", "GIT_ICASE_PATHSPECS": "1", "GIT_AUTHOR_DATE": "1 +0000",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    build(work, {"a": b"1\r\n2\n"})
    commit = take(manager, work)
    before = image(work)
    build(work, {"a": "x"})
    assert "\n-1" in manager.diff(str(work), commit)["diff"]
    restored(manager, work, commit)
    assert image(work) == before
    assert manager.list_checkpoints(str(work))[0]["timestamp"] > "2020"


# R-e: no command has to be recognised


def test_r_e2_a_later_state_of_the_same_turn_is_kept_too(manager, work, store):
    take(manager, work)
    build(work, {"a": "between"})
    assert manager.ensure_checkpoint(str(work), "before terminal: rm a") is False
    os.unlink(work / "a")
    ids = History(store(), root_of(os.fsencode(work)).id).snapshot_ids
    assert len(manager.list_checkpoints(str(work))) == 1
    restored(manager, work, ids[max(ids)].hex())
    assert (work / "a").read_text() == "between"


# R-f: what a tree can hold


def test_r_f1_empty_directories_come_back_and_special_files_stay(manager, work):
    build(work, {"empty/": Dir(0o700)})
    os.mkfifo(work / "pipe")
    commit = take(manager, work)
    before = image(work)
    os.rmdir(work / "empty")
    restored(manager, work, commit)
    assert image(work) == before


def test_r_f2_links_are_kept_exactly(manager, work):
    tree: dict[str, Any] = {
        "in": Link("a"),
        "dangling": Link("none"),
        "out": Link("/etc"),
        "dot": Link("."),
    }
    build(work, tree)
    commit = take(manager, work)
    before = image(work)
    for name in tree:
        os.unlink(work / name)
        build(work, {name: "a file"})
    restored(manager, work, commit)
    assert image(work) == before


def test_r_f3_all_permissions_come_back(manager, work):
    modes = {oct(mode): File("x", mode) for mode in (0o600, 0o640, 0o444, 0o654, 0o755, 0o4755)}
    build(work, {**modes, "d/": Dir(0o711)})
    commit = take(manager, work)
    before = image(work)
    for name in modes:
        os.chmod(work / name, 0o644)
    os.unlink(work / "0o600")
    os.chmod(work / "d", 0o755)
    restored(manager, work, commit)
    assert image(work) == before


NAMES = [
    b"caf\xe9", b"\xff\xfe", b"a\nb", b"a\tb", b"a\rb", b"\x01", b"a\"'b", b"a\\b", b"-rf",
    b"--help", b" lead", b"trail ", b"n" * 255, b":colon", b"*", b"br[1]", b"br1", b":(top)x",
    b"HEAD", "n\u0303".encode(), "\u00f1".encode(), "\u2028".encode(),
]  # fmt: skip


def test_r_f4_every_name_goes_there_and_back(manager, work):
    here = os.fsencode(work) + b"/"
    for name in NAMES:
        with open(here + name, "wb") as file:
            file.write(name)
    commit = take(manager, work)
    before = image(work)
    for name in NAMES:
        os.unlink(here + name)
    restored(manager, work, commit)
    assert image(work) == before


def test_r_f5_f6_f7_i6_a_path_means_itself(manager, work):
    here = os.fsencode(work) + b"/"
    commits = []
    for text in (b"1", b"2"):
        for name in NAMES:
            with open(here + name, "wb") as file:
                file.write(text)
        commits.append(take(manager, work))
    back: set[bytes] = set()
    for name in NAMES:
        result = restored(manager, work, commits[0], os.fsdecode(name))
        assert [os.fsencode(path) for path in result["restored_files"]] == [name]
        back.add(name)
        now = {path for path, node in image(work).items() if node[-1] == b"1"}
        assert now & set(NAMES) == back


def test_r_f8_f9_what_cannot_be_read_is_a_gap_and_stops_nothing(manager, work, monkeypatch, store):
    build(work, {"secret": "x", "closed/x": "y"})
    real = Disk.open

    def open_(self, name, flags, mode=0o600, at=None):
        if name in (b"secret", b"closed"):
            raise PermissionError(errno.EACCES, "no", name)
        return real(self, name, flags, mode, at)

    monkeypatch.setattr(Disk, "open", open_)
    commit = take(manager, work)
    assert manager.list_checkpoints(str(work))[0]["hash"] == commit
    newest = History(store(), root_of(os.fsencode(work)).id).newest()
    assert newest is not None
    assert newest.gaps == 2
    build(work, {"a": "2"})
    restored(manager, work, commit)
    assert (work / "secret").read_text() == "x"


# R-g: several at once


def in_child(run):
    """Its end is never pytest's."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            run()
            code = 0
        finally:
            if code:
                traceback.print_exc()
            os._exit(code)
    return pid


def all_well(pids):
    return all(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0 for pid in pids)


def test_r_g1_g2_two_processes_take_of_the_same_directory(manager, work):
    def takes(who):
        def run():
            mine = CheckpointManager(enabled=True, max_snapshots=5)
            for number in range(8):
                build(work, {f"{who}-{number}": str(number)})
                mine.new_turn()
                mine.ensure_checkpoint(str(work), f"{who} {number}")
                assert mine.consume_checkpoint_notice() is None

        return run

    assert all_well([in_child(takes("one")), in_child(takes("two"))])
    found = CheckpointManager(max_snapshots=50).list_checkpoints(str(work))
    assert 8 <= len(found) <= 16
    assert len(CheckpointManager(max_snapshots=5).list_checkpoints(str(work))) == 5


def test_r_g3_two_directories_at_once_with_pruning(tmp_path, store):
    works = [build(tmp_path / name, {"a": ""}) for name in ("one", "two")]

    def takes(work):
        def run():
            mine = CheckpointManager(enabled=True)
            for number in range(6):
                build(work, {"a": str(number)})
                take(mine, work)
                assert mine.prune_checkpoints(retention_days=0)["scanned"] >= 1

        return run

    assert all_well([in_child(takes(work)) for work in works])
    assert [len(CheckpointManager().list_checkpoints(str(work))) for work in works] == [6, 6]


def test_r_g4_a_workspace_in_use_holds_up_neither_readers_nor_others(
    manager, work, tmp_path, store
):
    commit = take(manager, work)
    other = build(tmp_path / "other", {"x": "1"})
    with store().workspace_lock(root_of(os.fsencode(work)).id):
        assert len(manager.list_checkpoints(str(work))) == 1
        assert manager.diff(str(work), commit)["success"] is True
        take(manager, other)


def test_r_g5_no_record_of_writes_is_lost(manager, work):
    for number in range(120):
        build(work, {f"f{number}": str(number)})
        manager.record_agent_write(str(work / f"f{number}"))
    assert len(manager._written) == 120


def test_r_h_a_killed_take_leaves_nothing_in_the_way(manager, work, store):
    take(manager, work)

    def killed_at(verb):
        def run():
            setattr(Disk, verb, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
            CheckpointManager(enabled=True).ensure_checkpoint(str(work))

        return run

    for number, verb in enumerate(("write_some", "fsync", "rename", "link")):
        build(work, {"a": f"new {number}"})
        _, status = os.waitpid(in_child(killed_at(verb)), 0)
        assert os.WTERMSIG(status) == signal.SIGKILL, verb
        take(manager, work)
    assert len(manager.list_checkpoints(str(work))) == 5


# R-i: what may be named


NO_HASHES = [
    *(
        "--help",
        "-n",
        "-p",
        "--patch",
        "--output=/tmp/x",
        "HEAD",
        "master",
        "@{0}",
        "@",
        "1",
        "abc",
    ),
    *("", " ", "abc; rm -rf /", "abc&def", "g" * 40, "a" * 65, "turn:1", "15m", "ab\n", "abcd\n"),
]


def test_r_i1_i2_only_a_hash_is_a_hash(manager, work):
    take(manager, work)
    build(work, {"a": "2"})
    for name in NO_HASHES:
        for result in (manager.restore(str(work), name), manager.diff(str(work), name)):
            assert (result["success"], "Invalid commit hash" in result["error"]) == (False, True)
    assert (work / "a").read_text() == "2"


def test_r_i3_a_short_hash_in_either_case_will_do(manager, work):
    commit = take(manager, work)
    build(work, {"a": "2"})
    restored(manager, work, commit[:4].upper())
    assert (work / "a").read_text() == "1"


def test_r_i4_a_hash_belongs_to_one_directory(manager, work, tmp_path, store):
    other = build(tmp_path / "other", {"secret": "x"})
    commit, foreign = take(manager, work), take(manager, other)
    newest = History(store(), root_of(os.fsencode(work)).id).newest()
    assert newest is not None
    for name in (foreign, newest.files.hex()):
        for result in (manager.restore(str(work), name), manager.diff(str(work), name)):
            assert (result["success"], "not found" in result["error"]) == (False, True)
    assert not (work / "secret").exists()
    assert manager.diff(str(work), commit)["success"] is True


NO_PATHS = [
    *("../x", "/etc/passwd", "src/../../x", "", ".", "./", "sub/..", "a\0b", "src/../a", "none"),
    *(":/", ":(top)*", ":!a", "s*"),
]


def test_r_i5_i6_i7_a_path_that_is_not_one_restores_nothing(manager, work):
    commit = take(manager, work)
    build(work, {"a": "2", "src/b": "2"})
    before = image(work)
    for path in NO_PATHS:
        result = manager.restore(str(work), commit, path)
        assert (result["success"], bool(result["error"])) == (False, True), path
    assert image(work) == before


@pytest.mark.parametrize("path", [None, "src/b"])
def test_r_i8_a_directory_that_became_a_link_is_not_followed(manager, work, tmp_path, path):
    outside = build(tmp_path / "outside", {"b": "theirs"})
    commit = take(manager, work)
    shutil.rmtree(work / "src")
    os.symlink(outside, work / "src")
    manager.restore(str(work), commit, path)
    assert image(outside) == image(build(tmp_path / "like", {"b": "theirs"}))
    if path is None:
        assert not (work / "src").is_symlink()
        assert (work / "src" / "b").read_text() == "b"


def test_r_i9_a_link_that_points_outside_can_be_restored_alone(manager, work):
    build(work, {"out": Link("/etc/passwd")})
    commit = take(manager, work)
    os.unlink(work / "out")
    restored(manager, work, commit, "out")
    build(work, {"a": "2"})
    assert os.readlink(work / "out") == "/etc/passwd"
    restored(manager, work, commit, "out")


# R-j: changes of type


def test_r_j_every_change_of_type_is_taken_back(manager, work):
    build(work, {"file": "x", "dir/in": "y", "link": Link("file"), "Case": "1"})
    commit = take(manager, work)
    before = image(work)
    for name in ("file", "link"):
        os.unlink(work / name)
    shutil.rmtree(work / "dir")
    build(work, {"file/now/dir": "1", "dir": Link("a"), "link/now": "2"})
    os.rename(work / "Case", work / "case")
    os.chmod(work / "a", 0o755)
    restored(manager, work, commit)
    assert image(work) == before


def test_r_j2_ignored_files_in_the_place_of_a_file_are_not_destroyed(manager, work):
    build(work, {".gitignore": "*.local\n", "p": "a file"})
    commit = take(manager, work)
    os.unlink(work / "p")
    build(work, {"p/data.local": "precious"})
    result = manager.restore(str(work), commit)
    assert (work / "p" / "data.local").read_text() == "precious"
    assert result["success"] is False
    assert "p" in result["error"]


# R-k: writers at work


def test_r_k_writers_neither_stop_a_take_nor_get_torn_bytes_into_it(manager, work, store):
    stop = threading.Event()
    build(work, {f"f{number}": b"\0" * 100_000 for number in range(10)})

    def write():
        byte = 0
        while not stop.is_set():
            byte = (byte + 1) % 250
            for number in range(10):
                with open(work / f"f{number}", "r+b") as file:
                    file.write(bytes([byte]) * 50_000)
                    file.flush()
                    file.write(bytes([byte]) * 50_000)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(4):
            manager.new_turn()
            manager.ensure_checkpoint(str(work))
            assert manager.consume_checkpoint_notice() is None
    finally:
        stop.set()
        writer.join()
    opened = store()
    for pack in opened.packs():
        for oid in pack.oids():
            kind, data = opened.read(oid)
            if kind == "blob" and len(data) == 100_000:
                assert len(set(data)) == 1


# R-l: limits


def test_r_l1_l2_l3_limits_reached_rename_nothing_and_lose_no_target(work):
    manager = CheckpointManager(enabled=True, max_snapshots=3)
    commits = []
    for number in range(5):
        build(work, {"a": str(number)})
        commits.append(take(manager, work, f"number {number}"))
    before = manager.list_checkpoints(str(work))
    assert [one["hash"] for one in before] == commits[:1:-1]
    manager.prune_checkpoints()
    assert manager.list_checkpoints(str(work)) == before
    for commit, text in zip(commits[2:], "234", strict=True):
        restored(manager, work, commit)
        assert (work / "a").read_text() == text


# R-m: full disks


def test_r_m1_a_full_disk_is_said_and_forgotten_when_there_is_room(
    manager, work, monkeypatch, store
):
    commit = take(manager, work)
    build(work, {"a": os.urandom(100_000)})

    def full(self, fd, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(Disk, "write_some", full)
        manager.new_turn()
        assert manager.ensure_checkpoint(str(work)) is False
        assert "full" in manager.consume_checkpoint_notice()
        assert "full" in manager.restore(str(work), commit)["error"]
        assert len((work / "a").read_bytes()) == 100_000
    assert not any("tmp" in name for name in os.listdir(f"{store().base}/objects/pack"))
    take(manager, work)
    restored(manager, work, commit)


def test_r_m2_a_disk_that_fills_up_while_restoring_costs_no_file(manager, work, monkeypatch):
    build(work, {f"f{number}": "old" * 1000 for number in range(20)})
    commit = take(manager, work)
    build(work, {f"f{number}": "new" for number in range(20)})
    before = image(work)
    real = Disk.write_some

    def full(self, fd, data):
        if bytes(data[:6]) == b"oldold":
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(self, fd, data)

    with monkeypatch.context() as broken:
        broken.setattr(Disk, "write_some", full)
        assert "full" in manager.restore(str(work), commit)["error"]
    assert image(work) == before
    restored(manager, work, commit)
    assert (work / "f3").read_text() == "old" * 1000


# R-n: and the rest


def fails(*_):
    raise TurnmarkError("no snapshot")


def test_r_n1_without_a_snapshot_of_what_is_there_nothing_is_overwritten(
    manager, work, monkeypatch
):
    commit = take(manager, work)
    build(work, {"a": "only here"})
    with monkeypatch.context() as broken:
        broken.setattr("core.recorder.write_snapshot", fails)
        assert manager.restore(str(work), commit)["error"] == "no snapshot"
    assert (work / "a").read_text() == "only here"


def test_r_n2_what_is_excluded_does_not_count_as_size(manager, work):
    modules = build(work / "node_modules", {})
    at = os.open(modules, os.O_DIRECTORY)
    os.close(os.open("0", os.O_CREAT | os.O_WRONLY, dir_fd=at))
    for number in range(1, 50_001):
        if number % 30_000 == 0:  # a file system may have a limit to the links of one file
            os.close(os.open(str(number), os.O_CREAT | os.O_WRONLY, dir_fd=at))
        else:
            os.link(str(number // 30_000 * 30_000), str(number), src_dir_fd=at, dst_dir_fd=at)
    os.close(at)
    take(manager, work)


def test_r_n3_secrets_are_kept_and_what_protects_is_stronger_than_gitignore(manager, work):
    build(work, {".gitignore": ".env\nfoo.local\n!secret.log\n", ".env": "T=1", "secret.log": "x"})
    commit = take(manager, work)
    os.unlink(work / ".env")
    restored(manager, work, commit)
    assert (work / ".env").read_text() == "T=1"


def test_r_n4_what_is_excluded_is_named_and_can_be_included(manager, work, tmp_path, monkeypatch):
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps({"defaults": {"exclude": {"remove": ["build/", "out/", "env/"]}}}))
    monkeypatch.setenv("TURNMARK_CONFIG", str(config))
    build(work, {"build/source.py": "x", "env/y": "z"})
    commit = take(manager, work)
    shutil.rmtree(work / "build")
    restored(manager, work, commit)
    assert (work / "build" / "source.py").read_text() == "x"


def test_r_n5_an_oversize_file_is_never_written_to_the_store(manager, work, store):
    for number in range(3):
        build(work, {"a": str(number), "big": os.urandom(11 * 2**20)})
        take(manager, work)
    size = manager.store_status()["store_size_bytes"]
    assert size < 2**20


def test_r_n6_a_file_that_crossed_the_cap_is_not_called_restored(work):
    manager = CheckpointManager(enabled=True, max_file_size_mb=1)
    build(work, {"grows": "small", "was-big": b"x" * 2_000_000})
    commit = take(manager, work)
    build(work, {"grows": b"y" * 2_000_000, "a": "2"})
    result = manager.restore(str(work), commit)
    assert result["success"] is False
    assert result["skipped_oversize"] == ["grows"]
    assert "grows" in result["error"]
    assert (work / "grows").stat().st_size == 2_000_000
    assert (work / "a").read_text() == "1"


def test_r_n7_one_directorys_size_costs_no_other_its_history(tmp_path):
    manager = CheckpointManager(enabled=True, max_total_size_mb=1)
    small, large = (build(tmp_path / name, {"a": ""}) for name in ("small", "large"))
    for number in range(5):
        build(small, {"a": str(number)})
        take(manager, small)
    for _ in range(3):
        build(large, {"a": os.urandom(700_000)})
        take(manager, large)
    manager.prune_checkpoints(retention_days=0)
    assert len(manager.list_checkpoints(str(small))) == 5
    assert len(manager.list_checkpoints(str(large))) >= 1


def test_r_n8_an_empty_directory_is_a_state_too(manager, tmp_path):
    work = build(tmp_path / "empty", {})
    commit = take(manager, work)
    build(work, {"made": "x"})
    plan = manager.restore(str(work), commit)["plan"]
    restored(manager, work, commit, plan=plan)
    assert os.listdir(work) == []


def test_r_n9_a_directory_that_holds_the_store_is_refused(manager, monkeypatch, tmp_path):
    monkeypatch.setenv("TURNMARK_HOME", str(tmp_path / "outer" / "home"))
    work = build(tmp_path / "outer", {"a": "1"})
    take(manager, build(tmp_path / "other", {"x": "1"}))
    manager.new_turn()
    assert manager.ensure_checkpoint(str(work)) is False
    assert "store" in manager.consume_checkpoint_notice()


def test_r_n10_a_store_whose_making_was_interrupted_is_completed(manager, work):
    build(Path(os.environ["TURNMARK_HOME"]) / "store" / "turnmark" / "locks", {})
    take(manager, work)


def test_r_n11_lost_references_stop_no_project(manager, work, store):
    take(manager, work)
    shutil.rmtree(f"{store().base}/refs")
    build(work, {"a": "2"})
    commit = take(manager, work)
    build(work, {"a": "3"})
    restored(manager, work, commit)
    assert (work / "a").read_text() == "2"


def test_r_n12_session_states_are_nobody_elses_business(manager, work):
    sessions = Sessions(f"{os.environ['TURNMARK_HOME']}/sessions")
    sessions.write({"session_id": "s1"})
    take(manager, work)
    manager.clear_legacy()
    manager.clear_all()
    assert sessions.read("s1") is not None


def test_r_n13_a_pruned_directory_leaves_no_trace(manager, work, store):
    take(manager, work)
    shutil.rmtree(work)
    build(work.parent, {"in use": ""})
    manager.prune_checkpoints()
    workspace = root_of(os.fsencode(work)).id
    left = [path for path in Path(store().base).rglob("*") if workspace in str(path)]
    assert [path for path in left if path.parent.name != "locks" and path.is_file()] == []


def test_r_n14_nonsense_in_a_register_stops_no_prune(manager, work, store):
    take(manager, work)
    workspace = root_of(os.fsencode(work)).id
    for text in ("{", '{"root": 7, "created_ns": "yesterday"}', "[]", '"last tuesday"'):
        Path(store().base, "turnmark", "workspaces", f"{workspace}.json").write_text(text)
        assert manager.prune_checkpoints()["errors"] == 0
    assert len(manager.list_checkpoints(str(work))) == 1


def test_r_n15_a_diff_of_latin_1_is_whole(manager, work):
    build(work, {"latin": b"caf\xe9\n"})
    commit = take(manager, work)
    build(work, {"latin": b"th\xe9\n"})
    assert "-caf\\xe9\n+th\\xe9\n" in manager.diff(str(work), commit)["diff"]


def test_r_n16_a_directory_may_have_any_name(manager, tmp_path):
    work = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9\n"))
    build(work, {"a": "1"})
    commit = take(manager, work)
    build(work, {"a": "2"})
    restored(manager, work, commit)
    assert manager.list_all()[0]["workdir"] == str(work)
    assert manager.store_status()["projects"][0]["exists"] is True


def test_r_n17_a_reason_is_never_cut_at_odd_characters(manager, work):
    take(manager, work, "one\u2028two\x0bthree\x0cfour\nfive|six")
    assert manager.list_checkpoints(str(work))[0]["reason"] == "one two three four five|six"


def test_r_n18_what_a_killed_write_left_is_swept(manager, work, store):
    from core.packing import TEMPORARY

    take(manager, work)
    left = Path(store().base, "objects", "pack", f"{TEMPORARY}left")
    left.write_bytes(b"x" * 1000)
    assert manager.prune_checkpoints()["errors"] == 0
    assert not left.exists()


def test_r_n19_a_list_runs_no_process_and_reads_what_was_counted(manager, work):
    for number in range(20):
        build(work, {"a": str(number)})
        take(manager, work)
    first = manager.list_checkpoints(str(work))
    began = time.perf_counter()
    assert manager.list_checkpoints(str(work)) == first
    assert time.perf_counter() - began < 1
    assert {one["files_changed"] for one in first[:-1]} == {1}


def test_r_n20_unchanged_files_are_not_touched(manager, work):
    commit = take(manager, work)
    before = os.stat(work / "src" / "b")
    build(work, {"a": "2"})
    restored(manager, work, commit)
    after = os.stat(work / "src" / "b")
    assert (after.st_mtime_ns, after.st_ino) == (before.st_mtime_ns, before.st_ino)


def test_r_y_session_states_stay_inside_and_collecting_never_raises(tmp_path):
    sessions = Sessions(str(tmp_path / "sessions"))
    for name in ("../evil", "/abs"):
        with pytest.raises(Exception, match="cannot be the id"):
            sessions.write({"session_id": name})
    sessions.write({"session_id": "ok"})
    build(
        tmp_path / "sessions",
        {"aware.yaml": "updated: 2020-01-01T00:00:00+02:00\n", "bad.yaml": b"\xe9: ["},
    )
    done = sessions.garbage_collect()
    assert (done.removed, done.aside, done.errors) == (("aware",), ("bad.damaged-1.yaml",), ())


def test_the_store_is_sound_after_all_of_it(manager, work, store, monkeypatch):
    for number in range(4):
        build(work, {"a": str(number)})
        restored(manager, work, take(manager, work))
    base = store().base
    monkeypatch.undo()
    fsck(base)


def test_no_store_is_made_by_looking(manager, work, store):
    manager.list_checkpoints(str(work))
    manager.diff(str(work), "abcd")
    with pytest.raises(NoStore):
        store()
