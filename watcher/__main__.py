"""`python -EP -m watcher`, and the installed `turnmark`: the command line, loaded with care."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130


def main() -> int:
    """Runs the command line, and ends the process: to take down what it read, name by name, would
    take a tenth as long as a long answer itself."""
    code = _interruptible()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):  # closed, or full: the interpreter's to tell
        return code
    atexit._run_exitfuncs()
    os._exit(code)


def _interruptible() -> int:
    """While modules are loaded nothing is under way yet: Ctrl-C may end it without a word."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return _run()  # whoever ignores it, or has a handler of their own, knows why
    signal.signal(signal.SIGINT, _leave)
    from . import cli

    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return cli.main()
    except KeyboardInterrupt:  # before or after what the command line itself catches
        return INTERRUPTED


def _run() -> int:
    from .cli import main

    return main()


def _leave(_number: int, _frame: FrameType | None) -> None:
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
