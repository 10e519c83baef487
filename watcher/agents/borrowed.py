"""An agent's own program, started for one question to it and ended again.

Knows nothing of what is asked. Whatever happens, the program and its children do not stay behind.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

LONGEST = 60.0
"""For all of it: an agent may look for updates, or be at home on a slow disk."""
GRACE = 5.0


def program(name: str, env: Mapping[str, str]) -> str:
    found = shutil.which(name, path=env.get("PATH"))
    if found is None:
        raise ValueError(f"its program '{name}' is not on the PATH")
    return os.path.abspath(found)


@contextmanager
def borrowed(
    command: Sequence[str], env: Mapping[str, str], directory: str, seconds: float = LONGEST
) -> Iterator[Borrowed]:
    """The program with its pipes; after `seconds` it is ended, and says no more."""
    process = subprocess.Popen(
        command,
        cwd=directory,
        env={**env, "PWD": directory},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    late = threading.Timer(seconds, _signal, (process, signal.SIGKILL))
    late.start()
    try:
        yield Borrowed(process)
    finally:
        late.cancel()
        late.join()
        _end(process)


class Borrowed:
    """Owns nothing: what may be said to the program, and what it says."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def say(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def lines(self) -> Iterator[bytes]:
        assert self.process.stdout is not None
        return iter(self.process.stdout)

    def dismiss(self) -> None:
        """Nobody will ask any more: some then write down what they have, and go."""
        assert self.process.stdin is not None
        with suppress(OSError, subprocess.TimeoutExpired):
            self.process.stdin.close()
            self.process.wait(GRACE)


def _end(process: subprocess.Popen[bytes]) -> None:
    _signal(process, signal.SIGTERM)
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        _signal(process, signal.SIGKILL)
        process.wait()
    for pipe in (process.stdin, process.stdout):
        with suppress(BrokenPipeError):  # what it did not read any more
            pipe.close()  # type: ignore[union-attr]


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """Its children too; until it has been waited for, the group's number is nobody else's."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
