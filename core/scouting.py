"""Has another process look from the far end of a large tree, and hears what is as on record there.

Only a favour: what it has not vouched for is looked at as if there were no scout, and where it is
slow, dies, or cannot be started, nothing is lost but time. The look begins with the first name of
each directory, the scout with the last; it is told of a few directories at a time, until they meet.
It stays for the next look (`scout` says what it does).
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
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import PurePath
from typing import TYPE_CHECKING

from .aside import processors, send_elsewhere
from .beneath import Beneath
from .inforce import GITIGNORE
from .listing import has_mapped
from .model import ROOT, RelPath, join
from .proofs import ROW, Stamp
from .rules import DirRules
from .scout import ANSWER_BYTES, HEAD, HELLO, LENGTH_BYTES, NO_STAMP, YES
from .worktree import Dir, WorkTree

if TYPE_CHECKING:
    from .scout import Part, Question, Start

SCOUT_ABOVE = 2_000
"""So many files take longer to look at than it takes to tell of half of them."""
START_ABOVE = 10_000
"""So many take longer than a scout takes to start (10 ms), so that it pays for a single look."""
PART_BYTES, PARTS = 12_000, 2
"""Told at a time, about 200 files: it looks at as many for a few tenths of a millisecond, and is to
have the next part by then."""
OFTEN = 8
"""After so many directories it is heard, and told of more."""
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


class Scouting:
    """Owns what the scout is asked in one look, and what it has vouched for."""

    def __init__(self, post: Post, tree: WorkTree, beneath: Beneath, keeps_times: bool) -> None:
        self.stamps: dict[RelPath, Stamp] = {}
        """Of what it has listed."""
        self._post, self._tree = post, tree
        self._root = beneath.root, *beneath.identity, keeps_times
        self._begun = False
        self._vouched: set[RelPath] = set()
        """With all below them."""
        self._spoiled: set[RelPath] = set()
        """In which something is not as on record, or is left to the look."""
        self._left = self._far_end()
        self._share = post.room // (2 * PARTS)
        """A part may be as large before its last directory, which may be as large again."""
        self._calls = 0

    def vouches_for(self, path: RelPath) -> bool:
        """Of a directory and all below it; the look has come as far as that."""
        self._calls += 1
        if self._calls % OFTEN == 0:
            self.go_on(path)
        return path in self._vouched

    def go_on(self, reached: RelPath) -> None:
        """Hears what there is to hear, and sees to it that the scout has something to do."""
        for paths, answers in self._post.hear():
            if self._begun:  # else an earlier look asked
                self._note(paths, answers)
        if self._post.gone or not self._post.greeted:
            return
        if not self._begun and self._post.told:  # it has yet to answer an earlier look
            return
        while len(self._post.told) < PARTS and (questions := self._part(reached)):
            if not self._begun:
                self._begun = True
                self._post.send_elsewhere()
                self._post.tell(self._root)
            self._post.ask(questions)
        self._post.push()

    def end(self) -> None:
        if self._begun and not self._post.gone:
            self._post.tell(None)
            self._post.push()
            self._post.gone |= self._post.unsent  # it would wait for the rest, with the root open

    def _note(self, paths: list[RelPath], answers: bytes) -> None:
        for path, at in zip(paths, range(0, len(answers), ANSWER_BYTES), strict=True):
            if not answers.startswith(YES, at) or path in self._spoiled:
                self._spoil(path)
                continue
            self._vouched.add(path)
            if (stamp := answers[at + 1 : at + ANSWER_BYTES]) != NO_STAMP:
                self.stamps[path] = stamp

    def _spoil(self, path: RelPath) -> None:
        self._spoiled.add(RelPath(path.rpartition(b"/")[0]))

    def _part(self, reached: RelPath) -> list[Question]:
        """What to ask next; nothing where the look has come to it."""
        part: list[Question] = []
        size = 0
        for path, record in self._left:
            if not part and path.split(b"/") <= reached.split(b"/"):
                self._left = iter(())
                break
            if path in self._spoiled:
                self._spoil(path)
                continue
            stamp = self._tree.stamps.get(path, b"")
            part.append((path, record.mode, record.names, record.stats, stamp))
            size += len(path) + _size(record)
            if size >= min(PART_BYTES, self._share):
                break
        return part

    def _far_end(self) -> Iterator[tuple[RelPath, Dir]]:
        """The directories on record that may be asked about, the last ones first, each after all
        that lie in it; what the look must take note of is left to it."""
        root = self._tree.root()
        assert root is not None
        waiting = [(ROOT, root, True, root.entered())]
        while waiting:
            path, record, may_be_asked, names = waiting[-1]
            if names:
                below = join(path, names.pop())
                found = self._tree.get(below)
                if found is None:
                    self._spoil(below)
                    continue
                may_be_asked = found.rules == record.rules and self._is_plain(found)
                waiting.append((below, found, may_be_asked, found.entered()))
                continue
            waiting.pop()
            if not may_be_asked:
                self._spoil(path)
            elif path != ROOT:
                yield path, record

    def _is_plain(self, record: Dir) -> bool:
        """Whether no name in it makes rules or is to be noted, and two parts with it have room."""
        small = _size(record) <= self._share
        return small and GITIGNORE not in record.names and not has_mapped(record.names)


def _size(record: Dir) -> int:
    return ROW + len(record.stats) + len(record.names)


class Station:
    """Owns the scout of this process, if there is one, and lends it to one look at a time."""

    def __init__(self, start_above: float = math.inf) -> None:
        self.start_above = start_above
        """Files of a tree for which one is started."""
        self._lent = threading.Lock()
        self._post: Post | None = None
        self._tried = 0

    def lend(self, files: int) -> Post | None:
        if not self._lent.acquire(blocking=False):
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


_STATION = Station()
atexit.register(_STATION.leave)  # where nobody else rids the system of what is left


def allow_scout(above: int) -> None:
    """Of a program of ours, for trees of so many files; whoever else imports us gets no child that
    he did not ask for."""
    _STATION.start_above = min(_STATION.start_above, above)


@contextmanager
def scout_sent(
    tree: WorkTree, beneath: Beneath, keeps_times: bool, rules: DirRules
) -> Iterator[Scouting | None]:
    """For one look. None where it would not pay, or cannot be; with other rules of the root than
    those on record it would be asked in vain."""
    root = tree.root()
    as_known = root is not None and tree.trusted and rules.fingerprint == root.rules
    worth = as_known and tree.files >= SCOUT_ABOVE and can_be_sent()
    post = _STATION.lend(tree.files) if worth else None
    if post is None:
        yield None
        return
    try:
        scouting = Scouting(post, tree, beneath, keeps_times)
        scouting.go_on(ROOT)
        yield scouting
        scouting.end()
    except BaseException:
        post.gone = True  # what was asked and answered may not agree any more
        raise
    finally:
        _STATION.take_back()


def can_be_sent() -> bool:
    """Not where the program that we are part of is no Python of its own, or has its own way with
    its children or with pipes that nobody reads: a scout that dies must be nobody's end."""
    signals = signal.getsignal(signal.SIGCHLD), signal.getsignal(signal.SIGPIPE)
    if not hasattr(os, "posix_spawn") or signals != (signal.SIG_DFL, signal.SIG_IGN):
        return False
    if not PurePath(sys.executable or "").name.startswith("python"):
        return False
    return processors() > 1
