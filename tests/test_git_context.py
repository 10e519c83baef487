"""A point notes where the user's own git was; nothing of git is run, followed or read at length."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from core.disk import REAL, Disk
from core.gitcontext import GitContext, git_context
from tests.stores import Bench
from tests.trees import build, image

ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    **{f"GIT_{who}_{what}": "t@t" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}


def git(path: Path, *words: str, check: bool = True) -> str:
    done = subprocess.run(
        ["git", *words], cwd=path, env=ENV, capture_output=True, text=True, check=check
    )
    return done.stdout.strip()


def commit(path: Path, text: str) -> str:
    build(path, {"f": text})
    git(path, "add", "f")
    git(path, "commit", "-qm", "x")
    return git(path, "rev-parse", "HEAD")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    build(tmp_path / "work", {})
    git(tmp_path / "work", "init", "-q", "-b", "main")
    return tmp_path / "work"


def context(path: Path) -> GitContext | None:
    return git_context(REAL, os.fsencode(path))


def test_branch_and_commit_are_read_loose_and_packed(repo: Path) -> None:
    assert context(repo) == GitContext(None, "main")
    head = commit(repo, "1")
    assert context(repo) == GitContext(head, "main")
    git(repo, "checkout", "-qb", "topic/deep")
    git(repo, "pack-refs", "--all")
    assert context(repo) == GitContext(head, "topic/deep")
    git(repo, "checkout", "-q", "--detach")
    assert context(repo) == GitContext(head, None)


def test_a_merge_and_a_rebase_under_way_are_told(repo: Path) -> None:
    commit(repo, "1\n")
    git(repo, "checkout", "-qb", "other")
    commit(repo, "2\n")
    git(repo, "checkout", "-q", "main")
    commit(repo, "3\n")
    git(repo, "merge", "-q", "other", check=False)
    found = context(repo)
    assert found is not None
    assert (found.branch, found.doing) == ("main", "merge")
    git(repo, "merge", "--abort")
    git(repo, "rebase", "-q", "other", check=False)
    found = context(repo)
    assert found is not None
    assert found.doing == "rebase"


def test_only_a_real_directory_counts(repo: Path, tmp_path: Path) -> None:
    commit(repo, "1")
    git(repo, "worktree", "add", "-q", str(tmp_path / "second"))
    assert context(tmp_path / "second") is None
    build(tmp_path / "linked", {})
    os.symlink(repo / ".git", tmp_path / "linked/.git")
    assert context(tmp_path / "linked") is None
    assert context(tmp_path / "nowhere") is None


class Watching(Disk):
    """Owns the count of bytes that were read."""

    total = 0

    def read(self, fd: int, size: int) -> bytes:
        data = super().read(fd, size)
        self.total += len(data)
        return data


@pytest.mark.parametrize(
    "head",
    [
        *("", "ref: ../../etc/passwd", "ref: refs/heads/../../config", "garbage", "ref: HEAD"),
        *("0" * 39, "ref: refs/heads/.invalid", "x" * 1_000_000),
    ],
)
def test_an_odd_head_is_no_head_and_is_not_read_at_length(tmp_path: Path, head: str) -> None:
    build(tmp_path, {".git/HEAD": head, ".git/config": "0" * 40})
    disk = Watching()
    assert git_context(disk, os.fsencode(tmp_path)) is None
    assert disk.total < 10_000


def test_links_and_fifos_are_not_followed_nor_waited_for(tmp_path: Path) -> None:
    build(tmp_path, {"id": "0" * 40, "r/.git/HEAD": "ref: refs/heads/a", "r/.git/refs/heads/": ""})
    os.symlink(tmp_path / "id", tmp_path / "r/.git/refs/heads/a")
    assert context(tmp_path / "r") == GitContext(None, "a")
    (tmp_path / "r/.git/HEAD").unlink()
    os.mkfifo(tmp_path / "r/.git/HEAD")
    assert context(tmp_path / "r") is None


def test_a_mark_keeps_it_and_git_is_not_touched(repo: Path, tmp_path: Path) -> None:
    head = commit(repo, "1")
    before = image(repo / ".git", skip=())
    bench = Bench(tmp_path)
    mark = bench.point().mark
    assert mark is not None
    assert mark.extra["git"] == {"head": head, "branch": "main", "doing": ""}
    assert image(repo / ".git", skip=()) == before


def test_show_tells_and_a_rollback_across_a_moved_head_warns(turnmark, repo, monkeypatch):
    monkeypatch.chdir(repo)
    first = commit(repo, "1")
    turnmark("snapshot")
    assert f"  git    main at {first[:10]}\n" in turnmark("show", "1").out
    build(repo, {"f": "2"})
    assert "Careful" not in turnmark("rollback", "1", "--dry-run").out
    second = commit(repo, "3")
    shown = turnmark("rollback", "1", "--dry-run").out
    assert f"git was on main at {first[:10]}, and is on main at {second[:10]}" in shown
    told = json.loads(turnmark("rollback", "1", "--dry-run", "--json").out)
    assert len(told["warnings"]) == 1
    point = json.loads(turnmark("show", "1", "--json").out)["point"]
    assert point["git"] == {"head": first, "branch": "main", "doing": ""}


def test_a_rollback_into_a_merge_of_gits_warns(turnmark, repo, monkeypatch):
    monkeypatch.chdir(repo)
    commit(repo, "1")
    turnmark("snapshot")
    theirs = git(repo, "commit-tree", "-m", "theirs", "HEAD^{tree}", "-p", "HEAD").strip()
    git(repo, "merge", "-q", "--no-ff", "--no-commit", theirs)
    build(repo, {"f": "2"})
    told = json.loads(turnmark("rollback", "1", "--dry-run", "--json").out)
    words = "a merge of git's is under way, which the rollback knows nothing of"
    assert told["warnings"] == [words]
    before = image(repo / ".git", skip=())
    assert words in turnmark("rollback", "1", "--yes").out
    assert image(repo / ".git", skip=()) == before
    turnmark("snapshot")
    build(repo, {"f": "3"})
    assert not json.loads(turnmark("rollback", "1", "--dry-run", "--json").out)["warnings"]
