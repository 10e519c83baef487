"""Speaks to the service: a thin client, also for an agent that wants to call turnmark itself.

    from watcher.client import connect

    client = connect()                      # None where no service runs
    if client:
        with client:
            client.call("turn.begin", dirs=["/work/site"], session="s1", prompt="fix the form")
            ...                             # the agent works
            client.call("turn.end", session="s1", status="ok")
            for event in client.events():   # as they come, until the service ends
                print(event["event"], event["workspace"])

`call` raises what the service raised: the classes of core.errors, and `Unavailable` when it does
not answer in time or goes away. The methods are in the docstring of watcher.protocol. One thread
uses a client at a time; a service that was started anew is reached again by itself.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from core import errors
from core.errors import TurnmarkError

from .address import sockets
from .protocol import (
    MAX_ANSWER,
    VERSIONS,
    Fault,
    ProtocolError,
    Request,
    Response,
    decode_answer,
    encode_request,
)

if TYPE_CHECKING:
    from .context import Context

TIMEOUT = 10.0
PATIENCE = 600.0
PART = 1 << 16


class NotWatched(TurnmarkError):
    """The service runs, and does not watch this directory."""


def connect(context: Context | None = None, timeout: float = TIMEOUT) -> Client | None:
    """A connection to the service of the context's store; None if there is no service."""
    if context is None:
        from .context import context_from

        context = context_from(os.environ)
    for path in sockets(context.env, str(context.store_path)):
        client = connect_to(path, timeout)
        if client is not None:
            return client
    return None


def connect_to(path: str, timeout: float = TIMEOUT) -> Client | None:
    link = _dial(path, timeout)
    return Client(path, link, timeout) if link is not None else None


def _dial(path: str, timeout: float) -> socket.socket | None:
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.settimeout(timeout)
    try:
        link.connect(os.fsencode(path))
        if peer(link)[1] in (os.geteuid(), 0):
            return link
    except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
        pass
    except OSError as error:
        link.close()
        raise _unavailable(f"The service at {path} cannot be reached: {error}.") from error
    link.close()
    return None


def peer(link: socket.socket) -> tuple[int, int]:
    """The process and the user at the other end, as the kernel knows them."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:  # macOS: LOCAL_PEERPID; LOCAL_PEERCRED answers version, uid, groups
        pid, uid = link.getsockopt(0, 2), struct.unpack_from("2i", link.getsockopt(0, 1, 76))[1]
    else:
        pid, uid, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, option, 12))
    return int(pid), int(uid)


def has_ended(link: socket.socket) -> bool:
    """Whether the other side has closed the connection; takes nothing from it."""
    poll = select.poll()
    poll.register(link, select.POLLIN)
    if not poll.poll(0):
        return False
    try:
        return not link.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


class Client:
    """Owns one connection; answers come in the order of the calls."""

    def __init__(self, path: str, link: socket.socket, timeout: float = TIMEOUT) -> None:
        self.path = path
        self.timeout = timeout
        self._link = link
        self._unread = bytearray()
        self._number = 0
        self._waiting: list[dict[str, Any]] = []
        self._following = False

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._link.close()

    def hello(self) -> dict[str, Any]:
        """Who answers, and in which version of the protocol."""
        from . import __version__

        return self.call("hello", protocol=list(VERSIONS), client_version=__version__)

    def call(self, method: str, /, patience: float | None = None, **params: Any) -> dict[str, Any]:
        """The result of one request, waited for as long as `patience` (or the timeout) says."""
        self._renew()
        self._number += 1
        until = time.monotonic() + (self.timeout if patience is None else patience)
        self._send(encode_request(Request(method, params, self._number)), until)
        while True:
            answer = self._next(until)
            if isinstance(answer, Request):
                self._waiting.append(dict(answer.params))
            elif answer.id is None or answer.id == self._number:
                return _result(answer)

    def events(self, timeout: float | None = None) -> Iterator[dict[str, Any]]:
        """Events from now on; ends with the service, or after a time-out without any."""
        if not self._following:
            self.call("subscribe")
            self._following = True
        while True:
            yield from self._waiting
            self._waiting.clear()
            try:
                answer = self._next(None if timeout is None else time.monotonic() + timeout)
            except TurnmarkError:
                return
            if isinstance(answer, Request):
                yield dict(answer.params)

    def _renew(self) -> None:
        """Nothing of this call was sent yet, so a connection that ended meanwhile is made anew."""
        if not self._following and has_ended(self._link):
            again = _dial(self.path, self.timeout)
            if again is None:
                raise _unavailable("The service has ended.")
            self._link.close()
            self._link, self._unread = again, bytearray()

    def _send(self, line: bytes, until: float) -> None:
        try:
            self._link.settimeout(max(0.001, until - time.monotonic()))
            self._link.sendall(line)
        except OSError as error:
            raise self._lost(error) from error

    def _next(self, until: float | None) -> Request | Response:
        try:
            return decode_answer(self._line(until))
        except OSError as error:
            raise self._lost(error) from error
        except ProtocolError as error:
            raise _unavailable(f"The service at {self.path} is not understood: {error}") from error

    def _line(self, until: float | None) -> bytes:
        start = 0
        while (end := self._unread.find(b"\n", start)) < 0:
            start = len(self._unread)
            self._link.settimeout(None if until is None else max(0.001, until - time.monotonic()))
            part = self._link.recv(PART)
            if not part or start > MAX_ANSWER:
                raise ConnectionResetError(0, "it closed the connection")
            self._unread += part
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        return line

    def _lost(self, error: OSError) -> TurnmarkError:
        """After a time-out an answer may still come, for a question nobody has in mind any more."""
        late = isinstance(error, TimeoutError)
        pid = peer(self._link)[0] if late else 0
        self._link.close()
        self._link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        if not late:
            return _unavailable("The service went away.")
        return _unavailable(
            f"The service (process {pid}) did not answer in time.",
            f"If it answers nobody: `kill -9 {pid}`, at no loss, and `turnmark up`.",
        )


def _result(answer: Response) -> dict[str, Any]:
    if answer.fault is not None:
        raise raised(answer.fault)
    return dict(answer.result or {})


def raised(fault: Fault) -> TurnmarkError:
    """The error that the service raised, of the same class."""
    if fault.kind == "NotWatched":
        return NotWatched(fault.message, fault.hint)
    found = getattr(errors, fault.kind, None)
    if isinstance(found, type) and issubclass(found, TurnmarkError):
        return found(fault.message, fault.hint)
    if fault.kind == "Unavailable":
        return _unavailable(fault.message, fault.hint)
    return TurnmarkError(fault.message, fault.hint)


def _unavailable(message: str, hint: str = "See `turnmark status`.") -> TurnmarkError:
    from .context import Unavailable

    return Unavailable(message, hint)
