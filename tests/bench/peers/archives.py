"""restic and borg as Debian has them, with their own defaults, but borg without encryption."""

from __future__ import annotations

import json
import os
from abc import abstractmethod
from collections.abc import Iterable
from itertools import count
from typing import ClassVar

from core.model import RelPath

from ..contenders import Wrong
from .peer import Keeper, State, run


class Archive(Keeper):
    """Restores over what is there; as the others do, it is asked to keep that first."""

    def restore(self, state: State) -> None:
        self.take()
        self.overwrite(state)

    @abstractmethod
    def overwrite(self, state: State) -> None:
        """What was there is lost."""


class Restic(Archive):
    """Owns a repository and the cache that restic keeps beside it."""

    name: ClassVar[str] = "restic"

    def __init__(self, place: str, root: str) -> None:
        super().__init__(place, root)
        self.env = {
            "RESTIC_PASSWORD": "bench",
            "RESTIC_REPOSITORY": f"{place}/repo",
            "RESTIC_CACHE_DIR": f"{place}/cache",
        }
        self._run("init")

    def _run(self, *words: str, ok: tuple[int, ...] = (0,)) -> bytes | None:
        done = run(["restic", *words], self.root, self.env, ok=ok)
        return done.stdout if done.returncode == 0 else None

    def take(self, changed: Iterable[RelPath] | None = None) -> State:
        for line in (self._run("backup", "--quiet", "--json", ".") or b"").splitlines():
            said = json.loads(line)
            if said.get("message_type") == "summary":
                return str(said["snapshot_id"])
        raise Wrong("restic says nothing of the snapshot it made.")

    def read(self, state: State, path: RelPath) -> bytes | None:
        return self._run("dump", state, "/" + os.fsdecode(path), ok=(0, 1, 2))

    def overwrite(self, state: State) -> None:
        """A link that is there already is an error to it, and stays; the rows check the files."""
        self._run("restore", state, "--target", self.root, ok=(0, 1))

    def points(self) -> int:
        return len(json.loads(self._run("snapshots", "--json") or b"[]"))

    def differ(self, old: State, new: State) -> int:
        lines = (self._run("diff", old, new) or b"").splitlines()
        return sum(line.startswith((b"M ", b"+ ", b"- ")) and line[-1:] != b"/" for line in lines)

    def thin(self, keep: int) -> None:
        self._run("forget", "--keep-last", str(keep), "--prune")


class Borg(Archive):
    """Owns a repository without encryption, and borg's own directory beside it."""

    name: ClassVar[str] = "borg"

    def __init__(self, place: str, root: str) -> None:
        super().__init__(place, root)
        self.repo = f"{place}/repo"
        self.numbers = count(1)
        self.env = {
            "BORG_BASE_DIR": f"{place}/base",
            "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "yes",
            "BORG_RELOCATED_REPO_ACCESS_IS_OK": "yes",
        }
        self._run("init", "-e", "none", self.repo)

    def _run(self, *words: str, ok: tuple[int, ...] = (0,)) -> bytes:
        return run(["borg", *words], self.root, self.env, ok=ok).stdout

    def take(self, changed: Iterable[RelPath] | None = None) -> State:
        state = f"state-{next(self.numbers)}"
        self._run("create", f"{self.repo}::{state}", ".")
        return state

    def read(self, state: State, path: RelPath) -> bytes | None:
        """A path that matches nothing is a warning, and nothing on stdout."""
        words = ["borg", "extract", "--stdout", f"{self.repo}::{state}", os.fsdecode(path)]
        done = run(words, self.root, self.env, ok=(0, 1))
        return done.stdout if done.returncode == 0 else None

    def overwrite(self, state: State) -> None:
        self._run("extract", f"{self.repo}::{state}")

    def points(self) -> int:
        return len(self._run("list", "--short", self.repo).splitlines())

    def differ(self, old: State, new: State) -> int:
        return len(self._run("diff", f"{self.repo}::{old}", new).splitlines())

    def thin(self, keep: int) -> None:
        self._run("prune", "--keep-last", str(keep), self.repo)
        self._run("compact", self.repo)
