"""The naive floor: the tree copied as a whole, and the tree copied over its last copy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from typing import ClassVar

from core.model import RelPath

from .peer import Peer, State, read_below, run


class Copies(Peer):
    """Owns the newest copy; the one before goes when the next is asked for, so disks suffice."""

    name: ClassVar[str] = "cp -a"
    keeps: ClassVar[bool] = False

    def __init__(self, place: str, root: str) -> None:
        super().__init__(place, root)
        self.newest = f"{place}/copy"

    def make_ready(self) -> None:
        """Deleting the copy before is not a part of making the next one."""
        shutil.rmtree(self.newest, ignore_errors=True)

    def take(self, changed: Iterable[RelPath] | None = None) -> State:
        run(["cp", "-a", "--reflink=auto", self.root, self.newest], "/")
        return self.newest

    def read(self, state: State, path: RelPath) -> bytes | None:
        return read_below(state, path)

    def restore(self, state: State) -> None:
        run(["cp", "-a", "--reflink=auto", f"{state}/.", self.root], "/")


class Mirror(Peer):
    """Owns one copy that rsync keeps up to date."""

    name: ClassVar[str] = "rsync"
    keeps: ClassVar[bool] = False

    def __init__(self, place: str, root: str) -> None:
        super().__init__(place, root)
        self.copy = f"{place}/copy"
        os.makedirs(self.copy)

    def take(self, changed: Iterable[RelPath] | None = None) -> State:
        run(["rsync", "-a", "--delete", f"{self.root}/", f"{self.copy}/"], "/")
        return self.copy

    def read(self, state: State, path: RelPath) -> bytes | None:
        return read_below(state, path)

    def restore(self, state: State) -> None:
        run(["rsync", "-a", "--delete", f"{state}/", f"{self.root}/"], "/")
