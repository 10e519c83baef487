"""A command line on a real terminal, as a person would have it."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
DEADLINE = 20
# It becomes the controlling terminal, so that a typed Ctrl-C is a signal.
START = (  # who runs the tests may have had interrupts ignored, as for jobs in the background
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "from watcher.cli import main; sys.exit(main())"
)
QUESTION = b"[y/N]"
CTRL_C = b"\x03"
PATIENCE = 0.3


def on_terminal(
    work: Path,
    *words: str,
    types: bytes | None = None,
    before: Callable[[], object] = lambda: None,
    env: Mapping[str, str] | None = None,
) -> tuple[str, int]:
    """What the terminal showed, and the exit code; at the question `before` is called, and then
    `types` is typed."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    process = subprocess.Popen(
        [sys.executable, "-c", START, *words],
        cwd=work,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", **(env or {})},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        shown = _converse(ours, types, before)
        code = process.wait(DEADLINE)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    return shown.decode("utf-8", "replace").replace("\r\n", "\n"), code


def _converse(ours: int, types: bytes | None, before: Callable[[], object]) -> bytes:
    """Types once, but Ctrl-C again and again: one that comes just before Python waits for input
    is only noticed at the next."""
    shown = b""
    typed = False
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        if not select.select([ours], [], [], PATIENCE)[0]:
            if typed and types == CTRL_C:
                os.write(ours, CTRL_C)
            continue
        try:
            part = os.read(ours, 65536)
        except OSError:  # Linux says EIO when the last program on the terminal is gone
            return shown
        shown += part
        if types is not None and not typed and QUESTION in shown:
            before()
            os.write(ours, types)
            typed = True
    raise TimeoutError(f"still running after {DEADLINE} s: {shown!r}")
