"""Has another process look from the far end of a large tree, and hears what is as on record there.

Only a favour: what it has not vouched for is looked at as if there were no scout, and where it is
slow, dies, or cannot be started, nothing is lost but time. The look begins with the first name of
each directory, the scout with the last; it is told of a few directories at a time, until they meet.
It stays for the next look (`scout` says what it does).
"""

from __future__ import annotations

import marshal
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

from .aside import processors, send_elsewhere
from .beneath import Beneath
from .inforce import GITIGNORE
from .listing import has_mapped
from .model import ROOT, RelPath, join
from .proofs import ROW, Stamp
from .rules import DirRules
from .scout import ANSWER_BYTES, HELLO, LENGTH_BYTES, NO_STAMP, YES
from .worktree import Dir, WorkTree

if TYPE_CHECKING:
    from .scout import Question, Start

SCOUT_ABOVE = 2_000
"""So many files take longer to look at than it takes to tell of half of them."""
PART_BYTES, PARTS = 200 * ROW, 2
"""Of stats, that are told of at a time: it looks at as many for a few tenths of a millisecond, and
is to have the next part by then."""
LARGE_BYTES = 20_000 * ROW
"""Of stats of one directory: more would leave a small process a large one."""
OFTEN = 8
"""After so many directories it is heard, and told of more."""
TRIES = 3
"""A process in which it cannot live is not asked for another one for ever."""
PROGRAM = "import sys; sys.path.append(sys.argv[1]); from core.scout import main; main()"


class Part(NamedTuple):
    """Directories that the scout was asked about at a time, and in which look."""

    look: int
    paths: list[RelPath]


class Post:
    """Owns a scout's process and the pipes to and from it; never waits for it."""

    def __init__(self) -> None:
        """Raises OSError where no process can be started."""
        with ExitStack() as its, ExitStack() as ours:
            asked, self._ask = _pipe(its, ours)
            self._answers, said = _pipe(ours, its)
            self.process = _start(asked, said)
            ours.pop_all()
        os.set_blocking(self._ask, False)
        os.set_blocking(self._answers, False)
        self.sender = os.getpid()
        self.greeted = self.gone = False
        self._heard = b""
        self._unsent: deque[memoryview] = deque()
        self.looks = 0
        self.told: deque[Part] = deque()
        """Of what no answer has come yet."""

    def tell(self, what: Start | list[Question] | None) -> None:
        data = marshal.dumps(what)
        self._unsent.append(memoryview(len(data).to_bytes(LENGTH_BYTES, "little") + data))

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

    def hear(self) -> list[tuple[Part, bytes]]:
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

    def _understood(self) -> list[tuple[Part, bytes]]:
        if not self.greeted:
            if not self._heard.startswith(HELLO):
                self.gone = not HELLO.startswith(self._heard)  # another program than ours
                return []
            self.greeted, self._heard = True, self._heard[len(HELLO) :]
        found = []
        while self.told and len(self._heard) >= (size := len(self.told[0].paths) * ANSWER_BYTES):
            found.append((self.told.popleft(), self._heard[:size]))
            self._heard = self._heard[size:]
        return found

    def close(self) -> None:
        """For one that is gone; where we are a fork of its sender, only of our ends."""
        os.close(self._ask)
        os.close(self._answers)
        if self.sender != os.getpid():
            return
        with suppress(OSError):  # somebody else has waited for it
            os.waitid(os.P_PID, self.process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            os.kill(self.process, signal.SIGKILL)
            os.waitid(os.P_PID, self.process, os.WEXITED)

    def send_elsewhere(self) -> None:
        """If it is our child still: else its number may be another's."""
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, self.process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            send_elsewhere(self.process)


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
        post.looks += 1
        self._look = post.looks
        self._root = beneath.root, *beneath.identity, keeps_times
        self._begun = False
        self._vouched: set[RelPath] = set()
        """With all below them."""
        self._spoiled: set[RelPath] = set()
        """In which something is not as on record, or is left to the look."""
        self._left = self._far_end()
        self._calls = 0

    def vouches_for(self, path: RelPath) -> bool:
        """Of a directory and all below it; the look has come as far as that."""
        self._calls += 1
        if self._calls % OFTEN == 0:
            self.go_on(path)
        return path in self._vouched

    def go_on(self, reached: RelPath) -> None:
        """Hears what there is to hear, and sees to it that the scout has something to do."""
        for part, answers in self._post.hear():
            if part.look == self._look:
                self._note(part.paths, answers)
        if not self._post.greeted or not (self._begun or self._begins()):
            return
        while len(self._post.told) < PARTS and (questions := self._part(reached)):
            self._post.tell(questions)
            self._post.told.append(Part(self._look, [question[0] for question in questions]))
        self._post.push()

    def _begins(self) -> bool:
        """Once it has answered what an earlier look asked."""
        if self._post.told:
            return False
        self._post.send_elsewhere()
        self._post.tell(self._root)
        self._begun = True
        return True

    def end(self) -> None:
        if self._begun:
            self._post.tell(None)
            self._post.push()

    def _note(self, paths: list[RelPath], answers: bytes) -> None:
        for path, at in zip(paths, range(0, len(answers), ANSWER_BYTES), strict=True):
            if answers[at] != YES or path in self._spoiled:
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
        weight = 0
        for path, record in self._left:
            if not part and path.split(b"/") <= reached.split(b"/"):
                self._left = iter(())
                break
            if path in self._spoiled:
                self._spoil(path)
                continue
            stamp = self._tree.stamps.get(path, b"")
            part.append((path, record.mode, record.names, record.stats, stamp))
            weight += ROW + len(record.stats)
            if weight >= PART_BYTES:
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
                may_be_asked = found.rules == record.rules and _is_plain(found)
                waiting.append((below, found, may_be_asked, found.entered()))
                continue
            waiting.pop()
            if not may_be_asked:
                self._spoil(path)
            elif path != ROOT:
                yield path, record


def _is_plain(record: Dir) -> bool:
    """Whether its rules are those above it, and no name in it is to be noted."""
    small = len(record.stats) < LARGE_BYTES
    return small and GITIGNORE not in record.names and not has_mapped(record.names)


class Station:
    """Owns the scout of this process, if there is one, and lends it to one look at a time."""

    def __init__(self) -> None:
        self._lent = threading.Lock()
        self._post: Post | None = None
        self._tried = 0

    def lend(self) -> Post | None:
        if not self._lent.acquire(blocking=False):
            return None
        try:
            post = self._post = self._at_hand()
        except BaseException:
            self._lent.release()
            raise
        if post is None:
            self._lent.release()
        return post

    def take_back(self) -> None:
        self._lent.release()

    def _at_hand(self) -> Post | None:
        post = self._post
        if post is not None and post.sender == os.getpid():
            post.hear()  # what an earlier look did not wait for, or that it is gone
        if post is not None and (post.gone or post.sender != os.getpid()):
            post.close()
            post = None
        if post is not None and post.greeted:
            self._tried = 0
        if post is None and self._tried < TRIES:
            self._tried += 1
            with suppress(OSError):  # no process more for this user, or a sandbox
                return Post()
        return post


_STATION = Station()


@contextmanager
def scout_sent(
    tree: WorkTree, beneath: Beneath, keeps_times: bool, rules: DirRules
) -> Iterator[Scouting | None]:
    """For one look. None where it would not pay, or cannot be; `rules` are those of the root."""
    root = tree.root()
    as_known = root is not None and tree.trusted and rules.fingerprint == root.rules
    post = _STATION.lend() if as_known and tree.files >= SCOUT_ABOVE and can_be_sent() else None
    if post is None:
        yield None
        return
    scouting = Scouting(post, tree, beneath, keeps_times)
    try:
        scouting.go_on(ROOT)
        yield scouting
    finally:
        scouting.end()
        _STATION.take_back()


def can_be_sent() -> bool:
    """Not where the program that we are part of is no Python of its own, or has its own way with
    its children: ours would not be ours to wait for."""
    if not hasattr(os, "posix_spawn") or signal.getsignal(signal.SIGCHLD) is not signal.SIG_DFL:
        return False
    if not PurePath(sys.executable or "").name.startswith("python"):
        return False
    return processors() > 1
