"""The predecessor's two algorithms, as research/hermes.md and its published source describe them.

The same git calls in the same order, and the same Python around them: the walk that counts
entries, and for the second a stat of every file for the size cap. Two things are kinder than the
original: its refusal of more than 50,000 entries is lifted (the walk still ends there), and nothing
is pruned at the twentieth snapshot, where the second starts to rewrite its history.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from abc import abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from core.model import RelPath

from .peer import Keeper, State, run

MOST_ENTRIES = 50_000
CAP = 10 * 1024 * 1024
EXCLUDES = (
    *("node_modules/", "dist/", "build/", "__pycache__/", "*.pyc", "*.pyo", ".cache/"),
    *(".next/", ".nuxt/", "coverage/", ".pytest_cache/", ".venv/", "venv/", ".git/"),
    *(".env", ".env.*", ".DS_Store", "*.log"),
)


class Shadow(Keeper):
    """What both have in common: git beside the tree, with an environment of its own."""

    def __init__(self, place: str, root: str) -> None:
        super().__init__(place, root)
        self.git_dir = self._git_dir()
        os.makedirs(self.git_dir)
        self.env = {"GIT_DIR": self.git_dir, "GIT_WORK_TREE": root}

    @abstractmethod
    def _git_dir(self) -> str: ...

    def git(self, *words: str, ok: tuple[int, ...] = (0,)) -> tuple[int, bytes]:
        done = run(["git", *words], self.root, self.env, ok=ok)
        return done.returncode, done.stdout.strip()

    def text(self, *words: str, ok: tuple[int, ...] = (0,)) -> str:
        return os.fsdecode(self.git(*words, ok=ok)[1])

    def configure(self) -> None:
        for name, value in (
            ("user.email", "hermes@local"),
            ("user.name", "Hermes Checkpoint"),
            ("commit.gpgsign", "false"),
            ("gc.auto", "0"),
        ):
            self.git("config", name, value)
        info = Path(self.git_dir, "info")
        info.mkdir(exist_ok=True)
        (info / "exclude").write_text("\n".join(EXCLUDES) + "\n")

    def count_entries(self) -> int:
        """Every name is looked at, up to the most it accepts."""
        count = 0
        for _ in Path(self.root).rglob("*"):
            count += 1
            if count > MOST_ENTRIES:
                break
        return count

    def read(self, state: State, path: RelPath) -> bytes | None:
        done = run(
            ["git", "cat-file", "blob", f"{state}:{os.fsdecode(path)}"],
            self.root,
            self.env,
            ok=(0, 128),
        )
        return done.stdout if done.returncode == 0 else None

    def restore(self, state: State) -> None:
        """Adds and overwrites, never deletes; the state before is kept first."""
        self.git("cat-file", "-t", state)
        self.take()
        self.git("checkout", state, "--", ".")
        self.git("log", "--format=%s", "-1", state)

    def points(self) -> int:
        """As `/rollback` lists them: one process for the log, and one for each line of it."""
        lines = self.text("log", self.tip(), "--format=%H|%h|%aI|%s").splitlines()
        for line in lines:
            commit = line.partition("|")[0]
            self.git("diff", "--shortstat", f"{commit}~1", commit, ok=(0, 128))
        return len(lines)

    def tip(self) -> str:
        return "HEAD"

    def differ(self, old: State, new: State) -> int:
        return len(self.git("diff", "--name-only", old, new)[1].splitlines())

    def thin(self, keep: int) -> None:
        """Rebuilds the newest as a chain of their own, since a chain is all that it has."""
        commits = self.text("rev-list", "--reverse", self.tip()).splitlines()[-keep:]
        parent = ""
        for commit in commits:
            words = ("-p", parent) if parent else ()
            reason = self.text("log", "--format=%B", "-1", commit)
            parent = self.text("commit-tree", f"{commit}^{{tree}}", *words, "-m", reason)
        self.git("update-ref", self.tip(), parent)
        self.git("reflog", "expire", "--expire=now", "--all")
        self.git("gc", "--prune=now", "--quiet")


class PredecessorV1(Shadow):
    """One shadow repository for each directory."""

    name: ClassVar[str] = "predecessor 1"

    def __init__(self, place: str, root: str) -> None:
        super().__init__(place, root)
        self.git("init", "-q")
        self.configure()

    def _git_dir(self) -> str:
        return f"{self.place}/{_name_of(self.root)}"

    def take(self, changed: Iterable[RelPath] | None = None) -> State:
        self.count_entries()
        self.git("add", "-A")
        unchanged, _ = self.git("diff", "--cached", "--quiet", ok=(0, 1))
        if unchanged == 0:
            return self.text("rev-parse", "HEAD")
        self.git(
            "commit", "-q", "-m", "before write_file", "--allow-empty-message", "--no-gpg-sign"
        )
        self.git("rev-list", "--count", "HEAD")
        return self.text("rev-parse", "HEAD")


class PredecessorV2(Shadow):
    """One bare store for all directories, with an index and a reference for each."""

    name: ClassVar[str] = "predecessor 2"

    def __init__(self, place: str, root: str) -> None:
        super().__init__(place, root)
        run(["git", "init", "-q", "--bare", self.git_dir], "/")
        for room in ("indexes", "projects"):
            os.mkdir(f"{self.git_dir}/{room}")
        self.configure()
        self.id = _name_of(root)
        self.ref = f"refs/hermes/{self.id}"
        self.env["GIT_INDEX_FILE"] = f"{self.git_dir}/indexes/{self.id}"

    def _git_dir(self) -> str:
        return f"{self.place}/store"

    def take(self, changed: Iterable[RelPath] | None = None) -> State:
        self._touch()
        self.count_entries()
        if tip := self._commit():
            self.git("read-tree", tip)
        self.git("add", "-A")
        self._drop_oversize()
        tip = self._commit()
        if tip and self.git("diff-index", "--cached", "--quiet", tip, ok=(0, 1))[0] == 0:
            return tip
        tree = self.text("write-tree")
        above = ("-p", tip) if tip else ()
        made = self.text("commit-tree", tree, *above, "-m", "before write_file", "--no-gpg-sign")
        self.git("update-ref", self.ref, made, *([tip] if tip else []))
        self.git("rev-list", "--count", self.ref)
        return made

    def _touch(self) -> None:
        doc = {"workdir": self.root, "created_at": 1.0, "last_touch": time.time()}
        Path(f"{self.git_dir}/projects/{self.id}.json").write_text(json.dumps(doc))

    def _commit(self) -> str:
        return self.text("rev-parse", "--verify", "-q", f"{self.ref}^{{commit}}", ok=(0, 1, 128))

    def _drop_oversize(self) -> None:
        listed = self.git("ls-files", "--cached", "-z")[1]
        top = Path(self.root)
        paths = [os.fsdecode(name) for name in listed.split(b"\0") if name]
        large = [path for path in paths if _size(top / path) > CAP]
        for at in range(0, len(large), 200):
            self.git("rm", "--cached", "--quiet", "--", *large[at : at + 200])

    def tip(self) -> str:
        return self.ref


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _name_of(root: str) -> str:
    return hashlib.sha256(root.encode()).hexdigest()[:16]
