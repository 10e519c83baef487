"""Brings the service up: exactly one for a store, detached from whoever needed it first.

Two locks beside the socket, flock both: `.lock` is held by the service as long as it lives, and
says that a socket without it is stale; `.start` is held by whoever is starting it.
"""

from __future__ import annotations

import json
import os
import select
import site
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from core.disk import REAL
from core.errors import TurnmarkError

from .address import place_for_socket
from .client import Client, connect, connect_to
from .context import Context, Unavailable
from .logs import log_path

READY_SECONDS = 20.0
STOP_SECONDS = 20.0
LOCK_SECONDS = 15.0
RUN_FROM = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from watcher.cli import main; sys.exit(main())"
)


def ensure_service(context: Context, idle: int | None = None) -> tuple[Client, bool]:
    """A connection to the service, and whether it had to be started."""
    client = connect(context)
    if client is not None:
        return client, False
    path = place_for_socket(context.env, str(context.store_path))
    with _flock(f"{path}.start", READY_SECONDS, "Another process is starting the service."):
        client = connect(context)
        if client is not None:
            return client, False
        _spawn(context, idle)
        client = connect(context)
    if client is None:
        raise Unavailable("The service has ended at once.", f"See {log_path(context.home)}.")
    return client, True


@contextmanager
def holding(path: str) -> Iterator[None]:
    """The service's own lock, for its whole life; a service that is just ending is waited for."""
    running = "A service of this store runs already."
    client = connect_to(path)
    if client is not None:
        client.close()
        raise Unavailable(running, "See `turnmark status`.")
    with _flock(f"{path}.lock", LOCK_SECONDS, running):
        yield


def wait_until_free(path: str, seconds: float = STOP_SECONDS) -> bool:
    """Whether the service that held the lock has ended in time."""
    try:
        with _flock(f"{path}.lock", seconds, ""):
            return True
    except Unavailable:
        return False


@contextmanager
def _flock(path: str, wait: float, busy: str) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if not REAL.lock(fd, exclusive=True, wait=wait):
            raise Unavailable(busy, "See `turnmark status`.")
        yield
    finally:
        os.close(fd)


def own_command() -> list[str]:
    """How to run turnmark again, by absolute paths and without looking at PYTHON* variables."""
    place = str(Path(__file__).resolve().parent.parent)
    start = [sys.executable, "-EP"]
    if place in _installed():
        return [*start, "-m", "watcher"]
    return [*start, "-c", RUN_FROM, place]


@cache
def _installed() -> set[str]:
    """Where the interpreter finds packages without being told; it takes milliseconds to ask."""
    found = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    with suppress(AttributeError, KeyError):
        found.add(site.getusersitepackages())
    return {os.path.realpath(path) for path in found}


def again(context: Context) -> list[str]:
    """The same turnmark for the same store; what it is to do is to be added."""
    config = ["--config", str(context.config_path)] if context.config_named else []
    return [*own_command(), "--home", str(context.home), *config]


def daemon_command(context: Context, *more: str) -> list[str]:
    return [*again(context), "up", "--foreground", *more]


def _spawn(context: Context, idle: int | None) -> None:
    """Returns when the service listens; raises what kept it from doing so."""
    ready, told = os.pipe()
    more = ["--ready-fd", str(told), *(["--idle", str(idle)] if idle is not None else [])]
    try:
        process = _start_detached(context, daemon_command(context, *more), told)
    finally:
        os.close(told)
    try:
        _check_ready(_read_all(ready), process, context)
    finally:
        os.close(ready)
        # The service is nobody's child to wait for; without this Python warns of it.
        process.returncode = 0 if process.poll() is None else process.returncode


def _start_detached(context: Context, command: Sequence[str], told: int) -> subprocess.Popen[bytes]:
    log = log_path(context.home)
    try:
        for folder in (context.home, log.parent):  # `parents` would leave these open to others
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError as error:
        raise TurnmarkError(
            f"The log {log} cannot be written: {error.strerror}.", "Name another place with --home."
        ) from error
    try:
        return subprocess.Popen(
            command,
            cwd="/",
            env=_environment(context),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[told],
            start_new_session=True,
        )
    finally:
        os.close(output)


def _environment(context: Context) -> dict[str, str]:
    """That of whoever needed the service first, without what is only theirs."""
    mine = ("TURNMARK_SESSION", "NOTIFY_SOCKET", "JOURNAL_STREAM", "WATCHDOG_USEC")
    env = {name: value for name, value in context.env.items() if name not in mine}
    if env.get("TURNMARK_RUNTIME_DIR"):
        env["TURNMARK_RUNTIME_DIR"] = os.path.abspath(env["TURNMARK_RUNTIME_DIR"])
    return env


def _read_all(fd: int) -> bytes:
    """What the service says of its start, until it closes the pipe."""
    said, until = b"", time.monotonic() + READY_SECONDS
    while (left := until - time.monotonic()) > 0:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        if poll.poll(left * 1000):
            part = os.read(fd, 4096)
            if not part:
                break
            said += part
    return said


def _check_ready(said: bytes, process: subprocess.Popen[bytes], context: Context) -> None:
    if said == b"ready\n":
        return
    try:
        error = json.loads(said)
    except ValueError:
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
        raise Unavailable(
            "The service did not start.", f"See {log_path(context.home)}, or `turnmark up -f`."
        ) from None
    raise TurnmarkError(error["error"], error["hint"])


class Readiness:
    """Owns the pipe on which whoever started the service waits."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd
        if fd is not None:
            os.set_inheritable(fd, False)

    def ready(self) -> None:
        self._say(b"ready\n")

    def failed(self, error: TurnmarkError) -> None:
        self._say(json.dumps({"error": error.message, "hint": error.hint}).encode())

    def _say(self, data: bytes) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            with suppress(BrokenPipeError):
                os.write(fd, data)
            os.close(fd)
