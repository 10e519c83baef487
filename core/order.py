"""Contents before names, names before later names: what that order takes where a store lies.

Where a journal keeps the order, one sync at the end makes all of it durable; elsewhere each step is
synced before the next. Knows files and directories, not what they are.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from functools import cached_property

from .disk import Disk


class Order:
    """Owns the knowledge whether one file system holds some directories and keeps the order."""

    def __init__(self, disk: Disk, *places: str) -> None:
        self.disk = disk
        self.places = places

    @cached_property
    def is_kept(self) -> bool:
        return self.disk.keeps_order(self.places)

    def contents(self, fds: Sequence[int]) -> None:
        """Whatever is named from now on: these are whole by then."""
        if not self.is_kept:
            self.disk.sync_all(fds)
            return
        for wait in (False, True):
            for fd in fds:
                self.disk.write_out(fd, wait=wait)

    def names(self, directory: str) -> None:
        """Whatever is named from now on: those in this directory are durable by then."""
        if not self.is_kept:
            self.disk.sync_dir(directory)

    def directory(self, path: str, beside: str) -> None:
        """Makes one. Where no journal keeps the order its name may last before itself does, and
        then names whatever was there before; so it is made and synced under another name first."""
        if self.is_kept:
            self.disk.make_dirs(path)
            return
        part = f"{beside}/dir-{os.getpid()}-{time.monotonic_ns()}"
        self.disk.mkdir(part)
        try:
            self.disk.sync_dir(part)
            self.disk.sync_dir(beside)
            self.disk.rename(part, path)
        except OSError as error:
            self.disk.rmdir(part)
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):  # another one was first
                raise
        for place in (os.path.dirname(path), beside):
            self.disk.sync_dir(place)

    def durable(self, directories: Sequence[str]) -> None:
        """The names that were given in these directories, last in the last, and all before them."""
        self.disk.sync_dirs(directories[-1:] if self.is_kept else set(directories))
