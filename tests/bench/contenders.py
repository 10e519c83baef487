"""The two that are measured, each with a store of its own beside the same work tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from core.disk import REAL
from core.history import MarkSpec
from core.model import RelPath, Snapshot
from core.recorder import Recorder
from core.roots import check_root
from core.rules import RuleSet
from core.scouting import SCOUT_ABOVE
from core.station import allow_scout
from core.store import Store

REPOSITORY = Path(__file__).parents[2]
QUIET_GIT = {
    "PATH": os.environ.get("PATH", os.defpath),
    "HOME": "/nonexistent",
    "LC_ALL": "C",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    **{f"GIT_{who}_NAME": "bench" for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_EMAIL": "bench@localhost" for who in ("AUTHOR", "COMMITTER")},
}


class Wrong(Exception):
    """A contender gave a result that is not the right one; no time of it counts."""


class Git:
    """Owns a repository that git fills by `git add -A && git commit`, with its default settings."""

    def __init__(self, git_dir: str, root: str) -> None:
        self.git_dir = git_dir
        self.root = root
        self.env = QUIET_GIT | {"GIT_DIR": git_dir, "GIT_WORK_TREE": root}
        self.run("init", "-q")
        self.run("config", "gc.auto", "0")

    def run(self, *arguments: str, ok: tuple[int, ...] = (0,)) -> str:
        done = subprocess.run(
            ["git", *arguments],
            env=self.env,
            cwd=self.root,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode not in ok:
            raise Wrong(f"git {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout.strip()

    def commit(self) -> None:
        self.run("add", "-A")
        self.run("commit", "-q", "-m", "snapshot")

    def look(self) -> None:
        """The cheapest way to learn that there is nothing to commit."""
        self.run("add", "-A")
        self.run("diff", "--cached", "--quiet")

    def tree(self) -> str:
        return self.run("write-tree")

    def remove(self) -> None:
        shutil.rmtree(self.git_dir)


class Turnmark:
    """Owns a store with one recorder, as the service keeps it; holds the workspace's lock."""

    def __init__(self, base: str, root: str, *, sync: bool = True) -> None:
        allow_scout(SCOUT_ABOVE)
        self.base = base
        self.sync = sync
        self.store = Store.create(base)
        self.root = check_root(REAL, root, home="/nonexistent", store=self.store.base)
        self.locks = ExitStack()
        self.open()

    def open(self) -> None:
        self.store = Store.open(self.base)
        self.locks.enter_context(self.store.workspace_lock(self.root.id))
        self.recorder = Recorder(self.store, self.root, RuleSet())

    def close(self) -> None:
        self.recorder.close()
        self.locks.close()

    def make_ready(self) -> None:
        """As the service does after its first look, and once an answer is out."""
        self.store.warm_up()
        self.recorder.prepare()

    def take(
        self, paths: Iterable[RelPath] | None = None, mark: MarkSpec | None = None
    ) -> Snapshot:
        return self.recorder.take(paths, mark, sync=self.sync).snapshot

    def take_cold(self) -> None:
        """As a new process does, but for the start of the interpreter: all records are loaded."""
        self.close()
        self.open()
        self.take()

    def tree(self) -> str:
        last = self.recorder.last
        return last.files.hex() if last else ""

    def remove(self) -> None:
        self.close()
        shutil.rmtree(self.base)


def check_same(ours: Turnmark, git: Git) -> None:
    """The trees must be equal to the last bit; whoever measures must have asked both before."""
    if ours.tree() != git.tree():
        raise Wrong(f"Tree {ours.tree()} of turnmark is not git's {git.tree()}.")


def check_store(base: str) -> None:
    """Real git finds nothing wrong with the store."""
    done = subprocess.run(
        ["git", "--git-dir", base, "fsck", "--full", "--strict"],
        env=QUIET_GIT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Wrong(f"git fsck of {base}: {done.stdout}{done.stderr}")


def python(*arguments: str) -> str:
    """A fresh interpreter on a module of this package; returns what it prints."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Wrong(f"{' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout
