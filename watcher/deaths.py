"""Tells when processes that others named have ended; knows nothing of what they were."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable

POLL_MS = 2000


class Deaths:
    """Owns a thread that waits for processes: by pidfd, or by asking now and then without it."""

    def __init__(self, on_death: Callable[[int], None]) -> None:
        self.on_death = on_death
        self._lock = threading.Lock()
        self._fds: dict[int, int] = {}
        self._polled: set[int] = set()
        self._wake_read, self._wake_write = os.pipe()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="turnmark-deaths", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def watch(self, pid: int) -> None:
        """One that is dead already is told at once, as all are from the thread."""
        with self._lock:
            if pid in self._fds.values() or pid in self._polled:
                return
            fd = _open(pid)
            if fd is None:
                self._polled.add(pid)
            else:
                self._fds[fd] = pid
        os.write(self._wake_write, b"x")

    def stop(self) -> None:
        self._stopping = True
        os.write(self._wake_write, b"x")
        self._thread.join()
        for fd in (*self._fds, self._wake_read, self._wake_write):
            os.close(fd)

    def _run(self) -> None:
        while not self._stopping:
            for pid in self._wait():
                self.on_death(pid)

    def _wait(self) -> list[int]:
        poll = select.poll()
        with self._lock:
            fds, polled = dict(self._fds), set(self._polled)
        for fd in (*fds, self._wake_read):
            poll.register(fd, select.POLLIN)
        ready = [fd for fd, _ in poll.poll(POLL_MS if polled else None)]
        if self._wake_read in ready:
            os.read(self._wake_read, 4096)
        ended = [fd for fd in ready if fd in fds]
        gone = {pid for pid in polled if not is_alive(pid)}
        with self._lock:
            self._polled -= gone
            for fd in ended:
                del self._fds[fd]
                os.close(fd)
        return [*(fds[fd] for fd in ended), *gone]


def _open(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (OSError, OverflowError, AttributeError):  # gone, not allowed here, or not Linux
        return None


def is_alive(pid: int, since_ns: int | None = None) -> bool:
    """Whether the process runs; with `since_ns`, whether it ran then already: numbers come back."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # no process has such a number
        return False
    except OSError:
        return True
    started = _started_ns(pid)
    return since_ns is None or started is None or started <= since_ns + 2_000_000_000


def _started_ns(pid: int) -> int | None:
    """When a process began, by the wall clock as it is now."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        with open("/proc/stat", "rb") as file:
            boot = next(int(line.split()[1]) for line in file if line.startswith(b"btime"))
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    return (boot * 1_000_000_000) + ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
