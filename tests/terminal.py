"""A command line on a real terminal, as a person would have it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent
DEADLINE = 20
# It becomes the controlling terminal, so that a typed Ctrl-C is a signal.
START = (
    "import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "from watcher.cli import main; sys.exit(main())"
)
QUESTION = b"[y/N]"


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
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # Linux says EIO when the last program on the terminal is gone
            return shown
        if not part:
            return shown
        shown += part
        if types is not None and QUESTION in shown:
            before()
            os.write(ours, types)
            types = None
