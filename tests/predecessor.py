"""The predecessor's stores, made by the git calls with which it makes them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path

EXCLUDES = ("node_modules/", "build/", ".env", ".env.*", "*.log", ".git/")


def name_of(work: Path) -> str:
    return hashlib.sha256(str(work).encode()).hexdigest()[:16]


def git(git_dir: Path, work: Path, *words: str, when: int = 0, index: Path | None = None) -> str:
    env = {
        "PATH": os.environ["PATH"],
        "GIT_DIR": str(git_dir),
        "GIT_WORK_TREE": str(work),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        "GIT_AUTHOR_DATE": f"{when} +0200",
        "GIT_COMMITTER_DATE": f"{when + 5} +0200",
        **({"GIT_INDEX_FILE": str(index)} if index else {}),
    }
    done = subprocess.run(
        ["git", *words], env=env, cwd=work, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def _configure(git_dir: Path, work: Path) -> None:
    for key, value in (("user.email", "hermes@local"), ("user.name", "Hermes Checkpoint")):
        git(git_dir, work, "config", key, value)
    (git_dir / "info").mkdir(exist_ok=True)
    (git_dir / "info" / "exclude").write_text("\n".join(EXCLUDES) + "\n")


class V1:
    """One shadow repository for one directory."""

    def __init__(self, base: Path, work: Path) -> None:
        self.work = work
        self.git_dir = base / name_of(work)
        self.git_dir.mkdir(parents=True)
        git(self.git_dir, work, "init", "-q")
        _configure(self.git_dir, work)
        (self.git_dir / "HERMES_WORKDIR").write_text(f"{work}\n")

    def take(self, reason: str, when: int) -> str:
        git(self.git_dir, self.work, "add", "-A")
        words = ("commit", "-q", "-m", reason, "--allow-empty-message", "--no-gpg-sign")
        git(self.git_dir, self.work, *words, when=when)
        return git(self.git_dir, self.work, "rev-parse", "HEAD")


class V2:
    """The bare store that all directories share."""

    def __init__(self, base: Path) -> None:
        self.store = base / "store"
        self.store.mkdir(parents=True)
        words = ["git", "init", "-q", "--bare", str(self.store)]
        subprocess.run(words, check=True, env={"PATH": os.environ["PATH"]}, cwd="/")
        for name in ("indexes", "projects"):
            (self.store / name).mkdir()
        _configure(self.store, base)

    def take(self, work: Path, reason: str, when: int) -> str:
        name = name_of(work)
        ref, index = f"refs/hermes/{name}", self.store / "indexes" / name
        parent = self.tip(work)
        if parent:
            git(self.store, work, "read-tree", parent, index=index)
        git(self.store, work, "add", "-A", index=index)
        tree = git(self.store, work, "write-tree", index=index)
        above = ("-p", parent) if parent else ()
        words = ("commit-tree", tree, *above, "-m", reason, "--no-gpg-sign")
        commit = git(self.store, work, *words, when=when)
        git(self.store, work, "update-ref", ref, commit, *([parent] if parent else []))
        meta = {"workdir": str(work), "created_at": 1.0, "last_touch": float(when)}
        (self.store / "projects" / f"{name}.json").write_text(json.dumps(meta))
        return commit

    def tip(self, work: Path) -> str:
        try:
            return git(
                self.store, work, "rev-parse", "-q", "--verify", f"refs/hermes/{name_of(work)}"
            )
        except subprocess.CalledProcessError:
            return ""


def everything(top: Path) -> dict[str, tuple[object, ...]]:
    """All files below with their contents and times, to see that none was touched."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(top.rglob("*")):
        info = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        found[str(path)] = (info.st_mode, info.st_mtime_ns, info.st_ino, data)
    return found
