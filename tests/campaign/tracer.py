"""Runs a function in a child and stops it, for good, before its nth system call.

By ptrace, from Python: no fault is missed because it goes around the seam in `core.disk`, as those
of SQLite and of the interpreter do. The calls of all its threads are counted as one.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
from collections.abc import Callable
from dataclasses import dataclass

from .child import in_child

TRACEME, SYSCALL, SETOPTIONS, GET_INFO = 0, 24, 0x4200, 0x420E
SYSGOOD, CLONE, EXITKILL = 1, 8, 1 << 20
AT_SYSCALL = signal.SIGTRAP | 0x80
OURS = (AT_SYSCALL, signal.SIGTRAP, signal.SIGSTOP)
ENTRY = 1
WALL = 0x40000000

_WITH_FLAGS = {2: 1, 257: 2}
CHANGING = frozenset(
    {1, 18, 20, 74, 75, 76, 77, 82, 83, 84, 85, 86, 87, 88, 90, 91, 92, 93, 133, 162, 258, 259}
    | {260, 263, 264, 265, 266, 268, 277, 285, 296, 306, 316, 326, 328, 40, 275, *_WITH_FLAGS}
)
"""The numbers, on x86-64, of all that can change a file or directory, or put it on disk."""


class _Info(ctypes.Structure):
    _fields_ = (
        ("op", ctypes.c_uint8),
        ("pad", ctypes.c_uint8 * 3),
        ("arch", ctypes.c_uint32),
        ("ip", ctypes.c_uint64),
        ("sp", ctypes.c_uint64),
        ("number", ctypes.c_uint64),
        ("arguments", ctypes.c_uint64 * 6),
        ("more", ctypes.c_uint64 * 4),
    )


_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.restype = ctypes.c_long
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)


@dataclass(frozen=True)
class Traced:
    """What a run did: for each of its calls whether it changes anything; how it ended."""

    calls: list[bool]
    status: int

    @property
    def moments(self) -> list[int]:
        """One for each state of the disk: before every call that changes something, and at the end.

        A kill before a call that only reads leaves what one before the next that writes leaves.
        """
        changing = [number for number, changes in enumerate(self.calls, 1) if changes]
        return [*changing, len(self.calls)]


def trace_me() -> None:
    """In the child: from the next call on, the calls count."""
    assert _libc.ptrace(TRACEME, 0, None, None) == 0, os.strerror(ctypes.get_errno())
    os.kill(os.getpid(), signal.SIGSTOP)


def run_until(run: Callable[[], object], at: int = 0) -> Traced:
    """The function has to call `trace_me`; with 0 it runs to its end. Never leaves a child."""
    pid = in_child(run)
    _, status = os.waitpid(pid, WALL)
    if not os.WIFSTOPPED(status):
        return Traced([], os.waitstatus_to_exitcode(status))
    options = SYSGOOD | CLONE | EXITKILL
    assert _libc.ptrace(SETOPTIONS, pid, None, options) == 0
    return _follow(pid, at)


def _follow(pid: int, at: int) -> Traced:
    calls: list[bool] = []
    _resume(pid)
    while True:
        thread, status = os.waitpid(-1, WALL)
        if os.WIFSTOPPED(status):
            what = os.WSTOPSIG(status)
            if what == AT_SYSCALL:
                _count(thread, calls)
                if len(calls) == at:
                    os.kill(pid, signal.SIGKILL)
            _resume(thread, 0 if what in OURS else what)
        elif thread == pid:
            return Traced(calls, os.waitstatus_to_exitcode(status))


def _resume(thread: int, signal_too: int = 0) -> None:
    """To the next system call's begin or end; a thread that was killed meanwhile does not mind."""
    _libc.ptrace(SYSCALL, thread, None, signal_too)


def _count(thread: int, calls: list[bool]) -> None:
    info = _Info()
    size = ctypes.sizeof(info)
    _libc.ptrace(GET_INFO, thread, size, ctypes.byref(info))
    if info.op == ENTRY:
        calls.append(_changes(info.number, info.arguments))


def _changes(number: int, arguments: ctypes.Array[ctypes.c_uint64]) -> bool:
    if platform.machine() != "x86_64":
        return True
    if number in _WITH_FLAGS:
        return bool(arguments[_WITH_FLAGS[number]] & (os.O_CREAT | os.O_TRUNC))
    return number in CHANGING
