"""Forked children of a part: cheap, and nothing that they open or break stays behind."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable


def in_child(run: Callable[[], object]) -> int:
    """Forks; the child's status is 1 if it failed, and its trace is in the log of the part."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        run()
        status = 0
    except BaseException:  # noqa: BLE001 - told to the driver by the exit status
        traceback.print_exc()
    os._exit(status)


def wait_for(pid: int) -> int:
    """The exit status; of one that was killed, the signal's number below nought."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill(pid: int) -> int:
    os.kill(pid, signal.SIGKILL)
    return wait_for(pid)


def failure_of(run: Callable[[], object]) -> str:
    """Runs in a child; what it raised, in one line, or nothing."""
    read, write = os.pipe()
    pid = in_child(lambda: _tell(run, read, write))
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    status = wait_for(pid)
    return said or (f"ended with {status}" if status else "")


def _tell(run: Callable[[], object], read: int, write: int) -> None:
    os.close(read)
    try:
        run()
    except BaseException as error:
        os.write(write, f"{type(error).__name__}: {error}"[:1000].encode())
        raise
