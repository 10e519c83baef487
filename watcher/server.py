"""Answers on the service's socket: one thread for each connection, bounded in every way.

Knows the protocol, not what the methods mean: those it is given as one function. What a client does
wrong costs that client its connection and nobody else anything.
"""

from __future__ import annotations

import logging
import os
import queue
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from core.errors import TurnmarkError

from .client import has_ended, peer
from .protocol import (
    CLOSED,
    INTERNAL,
    LINE_SECONDS,
    MAX_REQUEST,
    NO_METHOD,
    PARSE,
    SAYS_NO,
    Fault,
    ProtocolError,
    Request,
    Response,
    decode_request,
    encode_event,
    encode_response,
)

log = logging.getLogger(__name__)

MOST_CONNECTIONS = 64
MOST_EVENTS = 1000
SEND_SECONDS = 10.0
BREATH_SECONDS = 0.2
PART = 1 << 16
STOP, LOOK_AGAIN = b"s", b"a"

Handle = Callable[["Connection", str, Mapping[str, Any]], Mapping[str, Any]]


class UnknownMethod(Exception):
    """The handler knows no such method."""


class Connection:
    """Owns one client's socket, and the events that wait for it."""

    def __init__(self, link: socket.socket, line_seconds: float = LINE_SECONDS) -> None:
        self.link = link
        self.line_seconds = line_seconds
        self.busy = False
        self.last = time.monotonic()
        self._unread = bytearray()
        self._sending = threading.Lock()
        self._events: queue.Queue[bytes] | None = None

    @property
    def following(self) -> bool:
        return self._events is not None

    def gone(self) -> bool:
        """Whether the client has given up waiting for its answer."""
        return has_ended(self.link)

    def line(self) -> bytes | None:
        """The next request as it came; None at the end. Waits for a first byte as long as it takes,
        for the rest of the line not."""
        until = None if not self._unread else time.monotonic() + self.line_seconds
        start = 0
        while (end := self._unread.find(b"\n", start)) < 0:
            start = len(self._unread)
            if start > MAX_REQUEST:
                raise ProtocolError(CLOSED, f"A request has at most {MAX_REQUEST} bytes.")
            part = self._receive(until)
            if not part:
                return None
            until = until or time.monotonic() + self.line_seconds
            self._unread += part
        line = bytes(self._unread[:end])
        del self._unread[: end + 1]
        if len(line) > MAX_REQUEST:
            raise ProtocolError(CLOSED, f"A request has at most {MAX_REQUEST} bytes.")
        return line

    def _receive(self, until: float | None) -> bytes:
        poll = select.poll()
        poll.register(self.link, select.POLLIN)
        left = None if until is None else max(0.0, until - time.monotonic()) * 1000
        if not poll.poll(left):
            raise ProtocolError(CLOSED, f"The line was not ended in {self.line_seconds:g} s.")
        return self.link.recv(PART)

    def send(self, line: bytes) -> None:
        with self._sending:
            self.link.settimeout(SEND_SECONDS)
            self.link.sendall(line)

    def follow(self) -> None:
        """Sends events from now on, by a thread of its own, so that nobody waits for a reader."""
        if self._events is None:
            self._events = queue.Queue(MOST_EVENTS)
            threading.Thread(target=self._send_events, name="turnmark-events", daemon=True).start()

    def offer(self, line: bytes) -> None:
        """One more event; a follower that is too far behind is let go."""
        events = self._events
        if events is None:
            return
        try:
            events.put_nowait(line)
        except queue.Full:
            log.warning("a follower does not read its events; it is let go")
            self.shut()

    def _send_events(self) -> None:
        events = self._events
        if events is None:  # closed before this thread began
            return
        try:
            while line := events.get():
                self.send(line)
        except OSError:
            self.shut()

    def shut(self) -> None:
        """Ends the connection from any thread; its own closes it."""
        try:
            self.link.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def close(self) -> None:
        if self._events is not None:
            events, self._events = self._events, None
            while not events.empty():
                events.get_nowait()
            events.put(b"")
        self.shut()
        self.link.close()


class Server:
    """Owns the listening socket, its file, and the connections."""

    def __init__(
        self,
        path: str,
        handle: Handle,
        *,
        most: int = MOST_CONNECTIONS,
        line_seconds: float = LINE_SECONDS,
    ) -> None:
        """Takes the place of a stale socket: the caller holds the lock that says it is stale."""
        self.path = path
        self.handle = handle
        self.most = most
        self.line_seconds = line_seconds
        self.connections: set[Connection] = set()
        self._lock = threading.Lock()
        self._stop_read, self._stop_write = os.pipe()
        self._listener = _listen(path)
        self._identity = _identity(path)
        self._thread = threading.Thread(target=self._accept_all, name="turnmark-accept")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """No new connections; those that wait for an answer still get it."""
        os.write(self._stop_write, STOP)
        self._thread.join()
        self._listener.close()
        if _identity(self.path) == self._identity:
            os.unlink(self.path)

    def close(self) -> None:
        for connection in self._all():
            connection.shut()

    def lost(self) -> bool:
        """Whether the socket's file is no longer ours: removed, or another's."""
        return _identity(self.path) != self._identity

    def rebind(self) -> None:
        """A new socket in the place of one that is lost; connections stay."""
        old, self._listener = self._listener, _listen(self.path)
        self._identity = _identity(self.path)
        os.write(self._stop_write, LOOK_AGAIN)
        old.close()

    def waiting(self) -> int:
        """How many connections wait for an answer."""
        return sum(connection.busy for connection in self._all())

    def publish(self, event: Mapping[str, Any]) -> None:
        followers = [connection for connection in self._all() if connection.following]
        if followers:
            line = encode_event(event)
            for connection in followers:
                connection.offer(line)

    def _all(self) -> list[Connection]:
        with self._lock:
            return list(self.connections)

    def _accept_all(self) -> None:
        while not self._called():
            try:
                link, _ = self._listener.accept()
            except OSError as error:  # out of descriptors: those who wait must not make us spin
                log.warning("no connection could be accepted: %s", error)
                time.sleep(BREATH_SECONDS)
                continue
            self._admit(link)
        os.close(self._stop_read)
        os.close(self._stop_write)

    def _called(self) -> bool:
        """Waits for somebody to connect; True if it is time to stop instead."""
        while True:
            poll = select.poll()
            poll.register(self._listener, select.POLLIN)
            poll.register(self._stop_read, select.POLLIN)
            ready = {fd for fd, _ in poll.poll()}
            if self._stop_read not in ready:
                return False
            if os.read(self._stop_read, 1) == STOP:
                return True

    def _admit(self, link: socket.socket) -> None:
        connection = Connection(link, self.line_seconds)
        try:
            uid = peer(link)[1]
            if uid not in (os.geteuid(), 0):
                log.warning("user %d tried to connect", uid)
                link.close()
            elif self._has_room():
                self._begin(connection)
            else:
                self._refuse(connection, "Too many connections.")
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread could be started
            log.warning("a connection failed at once: %s", error)
            self._end(connection)

    def _begin(self, connection: Connection) -> None:
        with self._lock:
            self.connections.add(connection)
        threading.Thread(
            target=self._serve, args=(connection,), name="turnmark-client", daemon=True
        ).start()

    def _has_room(self) -> bool:
        """Where there is none, the one that has said nothing for longest gives way."""
        with self._lock:
            if len(self.connections) < self.most:
                return True
            idle = [c for c in self.connections if not (c.busy or c.following)]
            if not idle:
                return False
            oldest = min(idle, key=lambda connection: connection.last)
            self.connections.discard(oldest)
        oldest.shut()
        return True

    def _refuse(self, connection: Connection, message: str) -> None:
        connection.link.setblocking(False)
        try:
            connection.link.send(encode_response(Response(None, fault=Fault(CLOSED, message))))
        finally:
            connection.link.close()

    def _serve(self, connection: Connection) -> None:
        try:
            while (line := connection.line()) is not None:
                if line.strip():
                    self._serve_line(connection, line)
        except ProtocolError as error:
            self._say_goodbye(connection, error)
        except OSError:
            log.debug("a client went away")
        finally:
            self._end(connection)

    def _say_goodbye(self, connection: Connection, error: ProtocolError) -> None:
        log.warning("a connection was closed: %s", error)
        fault = Fault(error.code, error.message)
        try:
            connection.send(encode_response(Response(error.request, fault=fault)))
        except OSError:
            log.debug("nobody was there to be told")

    def _end(self, connection: Connection) -> None:
        with self._lock:
            self.connections.discard(connection)
        connection.close()

    def _serve_line(self, connection: Connection, line: bytes) -> None:
        connection.busy = True
        try:
            response = self._answer(connection, line)
            if response is not None:
                connection.send(encode_response(response))
        finally:
            connection.busy, connection.last = False, time.monotonic()

    def _answer(self, connection: Connection, line: bytes) -> Response | None:
        """A line that is no JSON ends the connection: what follows it could be anything."""
        try:
            request = decode_request(line)
        except ProtocolError as error:
            if error.code == PARSE:
                raise
            return Response(error.request, fault=Fault(error.code, error.message))
        response = self._respond(connection, request)
        return response if request.answered else None

    def _respond(self, connection: Connection, request: Request) -> Response:
        try:
            return Response(request.id, self.handle(connection, request.method, request.params))
        except ProtocolError as error:
            fault = Fault(error.code, error.message)
        except UnknownMethod:
            fault = Fault(NO_METHOD, f"There is no method '{request.method[:100]}'.")
        except TurnmarkError as error:
            fault = Fault(SAYS_NO, error.message, type(error).__name__, error.hint)
        except OSError as error:
            fault = Fault(SAYS_NO, f"{error.strerror or error}: {error.filename or ''}")
        except Exception as error:  # one request's bug must not end the service
            log.exception("%s failed", request.method[:100])
            fault = Fault(INTERNAL, f"A bug in turnmark: {error!r}", hint="See the service's log.")
        return Response(request.id, fault=fault)


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if os.path.lexists(path):
            os.unlink(path)
        listener.bind(os.fsencode(path))
        os.chmod(path, 0o600)
        listener.listen(128)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def _identity(path: str) -> tuple[int, int] | None:
    try:
        info = os.lstat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino
