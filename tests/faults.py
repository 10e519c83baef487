"""Disks that fail, or kill their process, at the nth verb that changes something."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from core.disk import Disk
from tests.stores import Unsynced

MUTATING = (
    *("write_some", "fsync", "write_out", "sync_fs", "mkdir", "rmdir", "unlink", "symlink"),
    *("link", "rename", "rename_new", "exchange", "chmod", "chown"),
    *("overwrite_some", "fdatasync"),
)
"""And `open` where it creates."""


class FaultyDisk(Unsynced):
    """Owns a count of the changing verbs, and does what it is told at one of them.

    Syncs are counted, and not waited for: processes die and calls fail here, but no power.
    """

    def __init__(
        self,
        at: int,
        strike: Callable[[str], None],
        *,
        lasting: bool = False,
        in_order: bool | None = None,
    ) -> None:
        """`in_order` tells of a journal that keeps the order; by default the real one is asked."""
        self.at = at
        self.in_order = in_order
        self.strike = strike
        self.lasting = lasting
        self.count = 0
        self.struck = False
        self._counting = threading.Lock()

    def step(self, verb: str) -> None:
        """Files are synced side by side: which of them is the nth may differ, how many not."""
        with self._counting:
            self.count += 1
            if self.count != self.at and not (self.lasting and self.count > self.at):
                return
            self.struck = True
        self.strike(verb)

    def keeps_order(self, paths: Iterable[str]) -> bool:
        return super().keeps_order(paths) if self.in_order is None else self.in_order

    def open(self, name: Any, flags: int, mode: int = 0o600, at: int | None = None) -> int:
        if flags & os.O_CREAT:
            self.step("open")
        return super().open(name, flags, mode, at)


def _counted(verb: str) -> Callable[..., Any]:
    real = getattr(Unsynced, verb)

    def method(self: FaultyDisk, *arguments: Any, **options: Any) -> Any:
        self.step(verb)
        return real(self, *arguments, **options)

    return method


for _verb in MUTATING:
    setattr(FaultyDisk, _verb, _counted(_verb))


class ShortDisk(Disk):
    """Writes a few bytes at a time and reads fewer than asked for."""

    def write_some(self, fd: int, data: bytes | memoryview) -> int:
        return super().write_some(fd, bytes(data[:7]))

    def overwrite_some(self, fd: int, data: bytes | memoryview, offset: int) -> int:
        return super().overwrite_some(fd, bytes(data[:1000]), offset)

    def read(self, fd: int, size: int) -> bytes:
        return super().read(fd, min(size, 11))


def failing(number: int) -> Callable[[str], None]:
    """A strike that raises the system error of that number."""

    def strike(verb: str) -> None:
        raise OSError(number, os.strerror(number), verb)

    return strike


def killing(verb: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dies(run: Callable[[Disk], object], at: int, *, in_order: bool | None = None) -> bool:
    """Runs in a child that dies at its nth changing verb; False if it came to its end before."""
    pid = os.fork()
    if pid == 0:
        _child(run, FaultyDisk(at, killing, in_order=in_order))
    _, status = os.waitpid(pid, 0)
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0, "the child failed before it was killed"
        return False
    assert os.WTERMSIG(status) == signal.SIGKILL
    return True


def die_at_each(run: Callable[[Disk], object]) -> Iterator[int]:
    """Dies at the 1st, 2nd, ... changing verb; yields after each death, until a run survives."""
    return itertools.takewhile(lambda at: dies(run, at), itertools.count(1))


def _child(run: Callable[[Disk], object], disk: Disk) -> None:
    """Never returns: what pytest would do at exit is not this child's business."""
    try:
        run(disk)
    except BaseException:  # noqa: BLE001 - whatever it was, the parent must see it
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
