"""The directories of one root, reached from its open descriptor and never through a link.

Knows nothing of rules or stores. The kernel is asked to follow a path if there is no link in it;
where it will not, the path is walked component by component with O_NOFOLLOW, so a directory that
somebody swaps for a link is an error and not a way out, and no path is too long.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from types import TracebackType

from .disk import GONE, Disk
from .errors import BadInput
from .model import ROOT, RelPath, join
from .proofs import DIRECTORY

OPEN_DIRS = 64


class Beneath:
    """Owns the descriptor of a root and of the directories last used below it."""

    def __init__(self, disk: Disk, root: bytes) -> None:
        self.disk = disk
        self.root = root
        self._open: OrderedDict[RelPath, int] = OrderedDict()
        try:
            self.fd = disk.open_quietly(root, DIRECTORY)
        except OSError as error:
            raise BadInput(
                f"The workspace {os.fsdecode(root)} cannot be opened: {error.strerror}.",
                "Check that it still exists, is a directory and may be read by you.",
            ) from error
        info = disk.fstat(self.fd)
        self.identity = info.st_dev, info.st_ino

    def __enter__(self) -> Beneath:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self.forget()
        self.disk.close(self.fd)

    def forget(self) -> None:
        """Closes what is kept open, so that the next walk starts from the root."""
        while self._open:
            self.disk.close(self._open.popitem()[1])

    def dir(self, path: RelPath) -> int:
        """A descriptor of the directory; ours to close, good until many others were asked for."""
        known, missing = self._nearest(path)
        fd = self.fd if known == ROOT else self._open[known]
        if len(missing) > 1 and (below := self._in_one_step(missing, fd)) is not None:
            return self._keep(path, below)
        for name in missing:
            known = join(known, name)
            fd = self._keep(known, self.disk.open_quietly(name, DIRECTORY, at=fd))
        return fd

    def _in_one_step(self, names: list[bytes], fd: int) -> int | None:
        """None for whatever reason: whoever goes step by step is told at which name, and why."""
        try:
            return self.disk.open_below(b"/".join(names), fd)
        except OSError:
            return None

    def _keep(self, path: RelPath, fd: int) -> int:
        self._open[path] = fd
        if len(self._open) > OPEN_DIRS:
            self.disk.close(self._open.popitem(last=False)[1])
        return fd

    def _nearest(self, path: RelPath) -> tuple[RelPath, list[bytes]]:
        missing: list[bytes] = []
        while path and path not in self._open:
            head, _, name = path.rpartition(b"/")
            missing.append(name)
            path = RelPath(head)
        if path:
            self._open.move_to_end(path)
        return path, missing[::-1]

    def parent(self, path: RelPath) -> tuple[int, bytes]:
        """The directory that holds a path, and the path's name in it."""
        head, _, name = path.rpartition(b"/")
        return self.dir(RelPath(head)), name

    def lstat(self, path: RelPath) -> os.stat_result | None:
        """What is at the path, or None if nothing (or something above it is no directory)."""
        if path == ROOT:
            return self.disk.fstat(self.fd)
        try:
            at, name = self.parent(path)
            return self.disk.lstat(name, at)
        except OSError as error:
            if error.errno in GONE:
                return None
            raise
