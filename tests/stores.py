"""Stores and workspaces in scratch directories, and what must be true of every store."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from core.disk import REAL, Disk
from core.history import History, MarkSpec
from core.model import Oid
from core.recorder import Recorder, Taken
from core.rollback import Request, Result, finish_interrupted, preview, rollback
from core.roots import Root, check_root
from core.rules import RuleSet
from core.store import Store

ALL = RuleSet(exclude=(), gitignore=False)
"""Rules that leave nothing out but .git."""


class Unsynced(Disk):
    """For tests in which no power fails: they need not wait for what that would cost. What could
    not be synced is an error all the same."""

    def fsync(self, fd: int) -> None:
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_PATH:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def fdatasync(self, fd: int) -> None:
        self.fsync(fd)

    def sync_fs(self, fd: int) -> None:
        self.fsync(fd)

    def write_out(self, fd: int, *, wait: bool) -> None:
        self.fsync(fd)


UNSYNCED = Unsynced()


class Bench:
    """Owns one store, one workspace in it, and the recorder of the moment."""

    def __init__(self, base: Path, rules: RuleSet = ALL, *, name: str = "work") -> None:
        self.base = base
        self.rules = rules
        self.path = base / name
        self.path.mkdir(parents=True, exist_ok=True)
        self.home = base / "home"
        self.store = Store.create(f"{self.home}/store", UNSYNCED)
        self.root: Root = check_root(
            REAL, str(self.path), home=str(base / "nobody"), store=self.store.base
        )
        self._recorder: Recorder | None = None

    @property
    def recorder(self) -> Recorder:
        if self._recorder is None:
            self._recorder = Recorder(self.store, self.root, self.rules)
        return self._recorder

    def reopen(self, disk: Disk = UNSYNCED) -> Recorder:
        """As a new process would."""
        self.close()
        self.store = Store.open(self.store.base, disk)
        self._recorder = Recorder(self.store, self.root, self.rules)
        return self._recorder

    def close(self) -> None:
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None

    def point(self, label: str = "") -> Taken:
        return self.recorder.take(mark=MarkSpec("manual", label=label))

    def back_to(self, taken: Taken, **changes: object) -> Result:
        """Rolls back with the hash of a preview, so that no fuse is in the way."""
        assert taken.mark is not None
        request = Request(taken.snapshot.id, taken.mark.seq, "a point", **changes)  # type: ignore[arg-type]
        return self.go(request)

    def go_plan(self, request: Request) -> str:
        return preview(self.recorder, request).plan.hash

    def go(self, request: Request | None) -> Result:
        assert request is not None
        return rollback(self.recorder, replace(request, plan=self.go_plan(request)))

    def finish(self) -> Result | None:
        return finish_interrupted(self.recorder)

    def history(self) -> History:
        return History(self.store, self.root.id)

    def every_blob(self, but: Collection[Oid] = ()) -> set[bytes]:
        """All contents that the store can give, also where some are damaged."""
        found = set()
        for pack in self.store.packs():
            for oid in set(pack.oids()).difference(but):
                kind, data = self.store.read(oid)
                if kind == "blob":
                    found.add(data)
        return found


def held_below(path: str | os.PathLike[str]) -> int:
    """Descriptors of this process for what lies there; those of other tests come and go."""
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing itself
            found += os.readlink(f"/proc/self/fd/{fd}").startswith(f"{path}/")
    return found


def fsck(base: str | os.PathLike[str]) -> None:
    """Real git finds nothing wrong with a store of ours."""
    git = shutil.which("git")
    assert git is not None, "the tests need git to check every store"
    found = subprocess.run(
        [git, f"--git-dir={base}", "fsck", "--full", "--strict"],
        capture_output=True,
        text=True,
        cwd="/",
        env={"PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1", "HOME": "/nonexistent"},
        check=False,
    )
    said = (found.stdout + found.stderr).splitlines()
    lines = [line for line in said if not line.startswith(("dangling", "notice"))]
    assert found.returncode == 0, lines
    assert not lines, lines
