"""The scout's process: started where it pays, kept, and lent to one look at a time.

Knows bytes that go to it and come back in turn, and no records or trees.
"""

from __future__ import annotations

import atexit
import fcntl
import marshal
import math
import os
import signal
import sys
import threading
import time
from collections import deque
from contextlib import ExitStack, suppress
from pathlib import PurePath
from typing import TYPE_CHECKING

from .aside import processors, send_elsewhere
from .model import RelPath
from .scout import ANSWER_BYTES, HEAD, HELLO, LENGTH_BYTES

if TYPE_CHECKING:
    from .scout import Part, Question, Start

START_ABOVE = 10_000
"""So many take longer than a scout takes to start (10 ms), so that it pays for a single look."""
TRIES = 3
"""A process in which it cannot live is not asked for another one for ever; and one that is silent
for so many looks is let go."""
PIPE_BYTES, ROOM_BYTES = 1 << 16, 1 << 20
DEATH_SECONDS = 0.1
PROGRAM = "import sys; sys.path.append(sys.argv[1]); from core.scout import main; main()"


class Post:
    """Owns a scout's process and the pipes to and from it; never waits for what it says."""

    def __init__(self) -> None:
        """Raises OSError where no process can be started."""
        with ExitStack() as its, ExitStack() as ours:
            asked, self._ask = _pipe(its, ours)
            self._answers, said = _pipe(ours, its)
            self.process = _start(asked, said)
            ours.pop_all()
        os.set_blocking(self._ask, False)
        os.set_blocking(self._answers, False)
        self.room = _widened(self._ask)
        self.sender = os.getpid()
        self.greeted = self.gone = False
        self.silent = 0
        """Looks in a row that began before it had answered the one before."""
        self._heard = b""
        self._unsent: deque[memoryview] = deque()
        self.told: deque[tuple[int, list[RelPath]]] = deque()
        """The parts, by their numbers, to which no answer has come yet."""
        self._asked = 0

    def ask(self, questions: list[Question]) -> None:
        self._asked += 1
        self.told.append((self._asked, [question[0] for question in questions]))
        self.tell((self._asked, questions))

    def tell(self, what: Start | Part | None) -> None:
        data = marshal.dumps(what)
        self._unsent.append(memoryview(len(data).to_bytes(LENGTH_BYTES, "little") + data))

    @property
    def unsent(self) -> bool:
        return bool(self._unsent)

    def push(self) -> None:
        """As much as there is room for."""
        try:
            while self._unsent:
                left = self._unsent[0][os.write(self._ask, self._unsent[0]) :]
                if left:
                    self._unsent[0] = left
                else:
                    self._unsent.popleft()
        except BlockingIOError:
            return
        except OSError:
            self.gone = True

    def hear(self) -> list[tuple[list[RelPath], bytes]]:
        """Answers that have come, each with what was asked."""
        try:
            while not self.gone:
                found = os.read(self._answers, 1 << 16)
                self.gone = not found
                self._heard += found
        except BlockingIOError:
            return self._understood()
        except OSError:
            self.gone = True
        return []

    def _understood(self) -> list[tuple[list[RelPath], bytes]]:
        if not self.greeted:
            if not self._heard.startswith(HELLO):
                self.gone = not HELLO.startswith(self._heard)  # another program than ours
                return []
            self.greeted, self._heard = True, self._heard[len(HELLO) :]
        found = []
        while len(self._heard) >= HEAD.size:
            number, paths = self.told[0] if self.told else (0, [])
            if HEAD.unpack_from(self._heard) != (number, len(paths)):
                self.gone = True  # an exception may have come between two steps of ours
                return []
            end = HEAD.size + len(paths) * ANSWER_BYTES
            if len(self._heard) < end:
                break
            found.append((paths, self._heard[HEAD.size : end]))
            self._heard = self._heard[end:]
            self.told.popleft()
        return found

    def close(self) -> None:
        """Ends it; where we are a fork of its sender, only our ends."""
        for fd in (self._ask, self._answers):
            with suppress(OSError):  # somebody has closed all there was
                os.close(fd)
        if self.sender != os.getpid():
            return
        with suppress(OSError):  # somebody else has waited for it
            os.waitid(os.P_PID, self.process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            os.kill(self.process, signal.SIGKILL)
            until = time.monotonic() + DEATH_SECONDS
            while time.monotonic() < until:
                if os.waitid(os.P_PID, self.process, os.WEXITED | os.WNOHANG) is not None:
                    return
                time.sleep(0.001)

    def send_elsewhere(self) -> None:
        """If it is our child still: else its number may be another's."""
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, self.process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            send_elsewhere(self.process)


def _widened(pipe: int) -> int:
    """How much it holds, after it was asked to hold more: whoever looks has no time to wait until
    there is room again, and what is begun must be told to its end."""
    if not hasattr(fcntl, "F_SETPIPE_SZ"):
        return PIPE_BYTES
    with suppress(OSError):  # too much for this user
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, ROOM_BYTES)
    return fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)


def _pipe(read_by: ExitStack, written_by: ExitStack) -> tuple[int, int]:
    read, write = os.pipe()
    read_by.callback(os.close, read)
    written_by.callback(os.close, write)
    return read, write


def _start(asked: int, said: int) -> int:
    """In a group of its own, which no Ctrl-C reaches, with nothing else open, nor any of the
    user's environment."""
    ours = str(PurePath(__file__).parents[1])
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", "-c", PROGRAM, ours, "turnmark's scout"],
        {},
        file_actions=[
            (os.POSIX_SPAWN_DUP2, asked, 0),
            (os.POSIX_SPAWN_DUP2, said, 1),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ],
        setpgroup=0,
        setsigmask=[],
    )


class Station:
    """Owns the scout of this process, if there is one, and lends it to one look at a time."""

    def __init__(self, start_above: float = math.inf) -> None:
        self.start_above = start_above
        """Files of a tree for which one is started."""
        self._lent = threading.Lock()
        self._post: Post | None = None
        self._tried = 0

    def lend(self, files: int) -> Post | None:
        """None where one cannot be, or does not pay, or is lent."""
        if not can_be_sent() or not self._lent.acquire(blocking=False):
            return None
        try:
            post = self._at_hand(files)
        except BaseException:
            self._lent.release()
            raise
        if post is None:
            self._lent.release()
        return post

    def take_back(self) -> None:
        try:
            if self._post is not None and self._post.gone:
                self.close()
        finally:
            self._lent.release()

    def leave(self) -> None:
        """For good; not while a look still writes to what would be closed."""
        if self._lent.acquire(blocking=False):
            self.close()

    def close(self) -> None:
        post, self._post = self._post, None
        if post is not None:
            post.close()

    def _at_hand(self, files: int) -> Post | None:
        post = self._post
        if post is not None and not self._is_fit(post):
            self.close()
        if self._post is None and files >= self.start_above and self._tried < TRIES:
            self._tried += 1
            with suppress(OSError):  # no process more for this user, or a sandbox
                self._post = Post()
        return self._post

    def _is_fit(self, post: Post) -> bool:
        if post.sender != os.getpid():
            return False
        post.hear()  # what an earlier look did not wait for, or that it is gone
        if post.greeted:
            self._tried = 0
        post.silent = post.silent + 1 if post.told else 0
        return not post.gone and post.silent <= TRIES


STATION = Station()
atexit.register(STATION.leave)  # where nobody else rids the system of what is left


def allow_scout(above: int) -> None:
    """Of a program of ours, for trees of so many files; whoever else imports us gets no child that
    he did not ask for."""
    STATION.start_above = min(STATION.start_above, above)


def can_be_sent() -> bool:
    """Not where the program that we are part of is no Python of its own, or has its own way with
    its children or with pipes that nobody reads: a scout that dies must be nobody's end."""
    signals = signal.getsignal(signal.SIGCHLD), signal.getsignal(signal.SIGPIPE)
    if not hasattr(os, "posix_spawn") or signals != (signal.SIG_DFL, signal.SIG_IGN):
        return False
    if not PurePath(sys.executable or "").name.startswith("python"):
        return False
    return processors() > 1
