"""OpenCode's snapshots: a git tree without a commit, after the git calls of its published module.

It works only in a user's git repository and borrows from it. That repository lies beside the tree
here: empty for OpenCode, and with the whole tree committed for Seeded, whose first snapshot then
has nothing left to hash. Files above 2 MB are left out until somebody tracks them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from core.model import RelPath

from ..contenders import QUIET_GIT, Wrong
from .peer import Peer, State, run

LARGE = 2 * 1024 * 1024
CORE = ("-c", "core.longpaths=true", "-c", "core.symlinks=true")
PLAIN = ("-c", "core.autocrlf=false", *CORE)
QUOTED = (*PLAIN, "-c", "core.quotepath=false")
BATCH = 100
SETTINGS = (
    *(("core.autocrlf", "false"), ("core.longpaths", "true"), ("core.symlinks", "true")),
    *(("core.fsmonitor", "false"), ("feature.manyFiles", "true"), ("index.version", "4")),
    *(("index.threads", "true"), ("core.untrackedCache", "true")),
)


class OpenCode(Peer):
    """Owns a shadow repository, and the user's, which it asks what is ignored."""

    name: ClassVar[str] = "opencode"
    takes_large: ClassVar[bool] = False

    def __init__(self, place: str, root: str) -> None:
        super().__init__(place, root)
        self.git_dir = f"{place}/snapshot"
        self.users = f"{place}/user"
        env = {"GIT_DIR": self.users, "GIT_WORK_TREE": root}
        run(["git", "init", "-q"], root, env)
        self._prepare_user(env)

    def _prepare_user(self, env: dict[str, str]) -> None:
        """Nothing is committed in it."""

    def git(
        self,
        *words: str,
        options: tuple[str, ...] = (),
        stdin: bytes = b"",
        ok: tuple[int, ...] = (0,),
    ) -> bytes:
        return run([*self._words(options), *words], self.root, stdin=stdin, ok=ok).stdout

    def _words(self, options: tuple[str, ...]) -> list[str]:
        return ["git", *options, "--git-dir", self.git_dir, "--work-tree", self.root]

    def take(self, changed: Iterable[RelPath] | None = None) -> State:
        if not os.path.exists(self.git_dir):
            self._begin()
        self._add()
        return os.fsdecode(self.git("write-tree").strip())

    def _begin(self) -> None:
        run(["git", "init", "-q"], self.root, {"GIT_DIR": self.git_dir, "GIT_WORK_TREE": self.root})
        for name, value in SETTINGS:
            run(["git", "--git-dir", self.git_dir, "config", name, value], self.root)
        info = Path(self.git_dir, "objects/info")
        info.mkdir(exist_ok=True)
        (info / "alternates").write_text(f"{self.users}/objects\n")
        if os.path.exists(f"{self.users}/index"):
            shutil.copyfile(f"{self.users}/index", f"{self.git_dir}/index")

    def _add(self) -> None:
        changed, new = self._candidates()
        every = list(dict.fromkeys([*changed, *new]))
        if not every:
            return
        ignored = self._ignored(every)
        allowed = [path for path in every if path not in ignored]
        large = {path for path in allowed if _size(os.path.join(self.root, path)) > LARGE}
        left_out = large & set(new)
        self._exclude(left_out)
        self._stage([path for path in allowed if path not in left_out])

    def _candidates(self) -> tuple[list[str], list[str]]:
        """Both questions at the same time, as it asks them."""
        asked = (
            ["diff-files", "--name-only", "-z", "--", "."],
            ["ls-files", "--full-name", "--others", "--exclude-standard", "-z", "--", "."],
        )
        running = [
            subprocess.Popen(
                [*self._words(QUOTED), *words],
                cwd=self.root,
                env=QUIET_GIT,
                stdout=subprocess.PIPE,
                stdin=subprocess.DEVNULL,
            )
            for words in asked
        ]
        said = [_names(process.communicate()[0]) for process in running]
        if any(process.returncode for process in running):
            raise Wrong("OpenCode's git cannot list what changed.")
        return said[0], said[1]

    def _ignored(self, paths: list[str]) -> set[str]:
        words = ["git", *QUOTED, "--git-dir", self.users, "--work-tree", self.root]
        words += ["check-ignore", "--no-index", "--stdin", "-z"]
        return set(_names(run(words, self.root, stdin=_joined(paths), ok=(0, 1)).stdout))

    def _exclude(self, paths: set[str]) -> None:
        text = "".join(f"/{path}\n" for path in sorted(paths))
        Path(self.git_dir, "info/exclude").write_text(text)

    def _stage(self, paths: list[str]) -> None:
        if paths:
            self.git(
                *("add", "--all", "--sparse", "--pathspec-from-file=-", "--pathspec-file-nul"),
                options=PLAIN,
                stdin=_joined([f":(top,literal){path}" for path in paths]),
            )

    def read(self, state: State, path: RelPath) -> bytes | None:
        words = [*self._words(()), "cat-file", "blob", f"{state}:{os.fsdecode(path)}"]
        done = run(words, self.root, ok=(0, 128))
        return done.stdout if done.returncode == 0 else None

    def restore(self, state: State) -> None:
        """`/undo`: the state before is kept, then what differs is fetched, a hundred at a time."""
        self.take()
        differ = _names(self.git("diff", "--cached", "--name-only", "-z", state, "--", "."))
        for at in range(0, len(differ), BATCH):
            some = differ[at : at + BATCH]
            listed = self.git("ls-tree", "--name-only", "-z", state, "--", *some, options=CORE)
            there = set(_names(listed))
            if there:
                self.git("checkout", state, "--", *sorted(there), options=CORE)
            for path in set(some) - there:
                os.unlink(os.path.join(self.root, path))


class Seeded(OpenCode):
    """In a repository where the user has committed all there is. Then it stores nothing: it names
    objects of that repository, and has lost them when the user prunes it. For scale."""

    name: ClassVar[str] = "opencode, committed"
    borrows: ClassVar[bool] = True

    def take(self, changed: Iterable[RelPath] | None = None) -> State:
        """That the first state of what was committed stores nothing is made sure of."""
        is_first = not os.path.exists(self.git_dir)
        state = super().take(changed)
        if is_first and (stored := set(os.listdir(f"{self.git_dir}/objects")) - {"info", "pack"}):
            raise Wrong(f"{self.name} has stored something after all: {sorted(stored)[:3]}.")
        return state

    def _prepare_user(self, env: dict[str, str]) -> None:
        run(["git", "add", "-A"], self.root, env)
        run(["git", "commit", "-q", "-m", "all"], self.root, env)


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _names(listed: bytes) -> list[str]:
    return [os.fsdecode(name) for name in listed.split(b"\0") if name]


def _joined(paths: list[str]) -> bytes:
    return b"".join(os.fsencode(path) + b"\0" for path in paths)
