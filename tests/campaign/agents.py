"""Agents that write while others snapshot and roll back, and tell what of it has to be somewhere.

Each is a process with paths of its own. To a log outside of the system it tells each content that
it has written whole, and each that it has itself destroyed; no other process writes to its paths,
but for the rollback, which must not destroy anything. Knows nothing of turnmark but its hashes.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import random
import select
import signal
import stat
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from core.objects import hash_object

GO, STEP, REST, END = b"g", b"s", b"r", b"e"
LENGTH = 4096
LONGEST_BREATH = 0.003
HELD = 2
"""The first of an agent's paths: one file stays open, one is mapped, through whole races."""
MISSED = frozenset(
    {errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENOTEMPTY}
)
"""What an agent meets whose path a rollback has just made something else of."""


class Agent:
    """Owns its paths, a log, the file that it keeps open and the one that it has mapped."""

    def __init__(self, root: Path, number: int, seed: str, log: Path) -> None:
        self.root = os.fsencode(root)
        self.number = number
        self.random = random.Random(seed)
        self.log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.count = 0
        self.made = 0
        self.doing = b""
        self.open_fd = -1
        self.map: mmap.mmap | None = None
        self.held: set[tuple[int, int]] = set()
        self.ways: list[Callable[[bytes], None]] = [
            *(self.in_place, self.in_place, self.by_rename, self.by_rename, self.append),
            *(self.remove, self.move, self.link, self.make, self.permit, self.move_directory),
        ]

    def paths(self) -> list[bytes]:
        mine = b"%d" % self.number
        return [self.root + b"/" + p for p in names_of(mine)]

    # Telling

    def tell(self, *, made: bytes | None = None, destroyed: bytes | None = None) -> None:
        lines = b""
        if destroyed is not None:
            lines += b"- %s %s\n" % (hash_object("blob", destroyed).hex().encode(), self.doing)
        if made is not None:
            lines += b"+ %s %s\n" % (hash_object("blob", made).hex().encode(), self.doing)
        os.write(self.log, lines)

    def fresh(self, length: int = 0) -> bytes:
        self.count += 1
        word = b"agent %d wrote %d; " % (self.number, self.count)
        if length:
            return (word * (length // len(word) + 1))[:length]
        return word * self.random.choice((1, 5, 300))

    # The ways to write

    def act(self) -> None:
        self.made += 1
        drawn = self.random.random()
        try:
            if drawn < 0.15 and self.open_fd >= 0:
                self.doing = b"through the open file"
                self.through_the_open_file()
            elif drawn < 0.3 and self.map is not None:
                self.doing = b"through the map"
                self.through_the_map()
            elif drawn < 0.4:
                self.doing = b"beside what is held"
                self.beside_what_is_held(self.random.choice(self.paths()[:HELD]))
            else:
                way = self.random.choice(self.ways)
                self.doing = way.__name__.encode()
                way(self.random.choice(self.paths()[HELD:]))
        except OSError as error:
            if error.errno not in MISSED:
                raise

    def in_place(self, path: bytes) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        try:
            old, data = _content(fd), self.fresh()
            self.tell(destroyed=old)
            os.ftruncate(fd, 0)
            os.pwrite(fd, data, 0)
            self.tell(made=data)
        finally:
            os.close(fd)

    def append(self, path: bytes) -> None:
        fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW)
        try:
            old, data = _content(fd), self.fresh()
            self.tell(destroyed=old)
            os.write(fd, data)
            self.tell(made=old + data)
        finally:
            os.close(fd)

    def by_rename(self, path: bytes) -> None:
        part, data = path + b".part%d" % self.count, self.fresh()
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        os.write(fd, data)
        os.close(fd)
        self.tell(made=data)
        self.over(path, lambda: os.rename(part, path))

    def link(self, path: bytes) -> None:
        part, target = path + b".part%d" % self.count, self.fresh()[:200]
        os.symlink(target, part)
        self.tell(made=target)
        self.over(path, lambda: os.rename(part, path))

    def remove(self, path: bytes) -> None:
        self.over(path, lambda: os.unlink(path))

    def over(self, path: bytes, change: Callable[[], None]) -> None:
        """Does what takes the path's name from what has it; it was destroyed by us if it has no
        name left at all."""
        held = -1
        with suppress(FileNotFoundError):
            held = os.open(path, os.O_PATH | os.O_NOFOLLOW)
        try:
            old = _held_content(held) if held >= 0 else None
            change()
            if old is not None and os.fstat(held).st_nlink == 0:
                self.tell(destroyed=old)
        finally:
            if held >= 0:
                os.close(held)

    def move(self, path: bytes) -> None:
        os.rename(path, path + b".moved%d" % self.made)

    def make(self, path: bytes) -> None:
        place = path + b".dir%d" % (self.made % 5)
        os.makedirs(place + b"/inner", exist_ok=True)
        data = self.fresh()
        fd = os.open(place + b"/inner/%d" % self.made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        os.write(fd, data)
        os.close(fd)
        self.tell(made=data)

    def permit(self, path: bytes) -> None:
        if stat.S_ISREG(os.lstat(path).st_mode):
            os.chmod(path, self.random.choice((0o600, 0o644, 0o755)))

    def move_directory(self, _: bytes) -> None:
        here = self.root + b"/d%d" % self.number
        os.rename(here, here + b"-away")
        os.rename(here + b"-away", here)

    # The file that stays open, and the map

    def beside_what_is_held(self, path: bytes) -> None:
        """Writes to the name of a held file if that is another file by now, or away."""
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            self.in_place(path)
            return
        if (found.st_dev, found.st_ino) not in self.held:
            self.in_place(path)

    def open_both(self) -> None:
        self.doing = b"opening"
        """Of the present files, at the beginning of a race; nothing where there are none."""
        self.let_go()
        for name in self.paths()[:HELD]:
            with suppress(OSError):
                fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW)
                self._hold(fd)

    def _hold(self, fd: int) -> None:
        old, data = _content(fd), self.fresh(LENGTH)
        self.tell(destroyed=old)
        os.ftruncate(fd, 0)
        os.pwrite(fd, data, 0)
        self.tell(made=data)
        info = os.fstat(fd)
        self.held.add((info.st_dev, info.st_ino))
        if self.open_fd < 0:
            self.open_fd = fd
            return
        self.map = mmap.mmap(fd, LENGTH)
        os.close(fd)

    def through_the_open_file(self) -> None:
        old, data = _content(self.open_fd), self.fresh(LENGTH)
        self.tell(destroyed=old)
        os.ftruncate(self.open_fd, 0)
        os.pwrite(self.open_fd, data, 0)
        self.tell(made=data)

    def through_the_map(self) -> None:
        assert self.map is not None
        data = self.fresh(LENGTH)
        self.tell(destroyed=self.map[:])
        self.map[:] = data
        self.tell(made=data)

    def let_go(self) -> None:
        self.held.clear()
        if self.open_fd >= 0:
            os.close(self.open_fd)
            self.open_fd = -1
        if self.map is not None:
            self.map.close()
            self.map = None


def names_of(agent: bytes) -> list[bytes]:
    """The paths of one agent, the HELD ones first."""
    return [
        *(b"f%s-%d" % (agent, n) for n in range(6)),
        *(b"d%s/g%d" % (agent, n) for n in range(3)),
        *(b"s/%s-%d" % (agent, n) for n in range(3)),
    ]


def _content(fd: int) -> bytes:
    parts: list[bytes] = []
    at = 0
    while part := os.pread(fd, 1 << 16, at):
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def _held_content(held: int) -> bytes | None:
    mode = os.fstat(held).st_mode
    if stat.S_ISLNK(mode):
        return os.readlink(b"", dir_fd=held)
    if not stat.S_ISREG(mode):
        return None
    fd = os.open(f"/proc/self/fd/{held}", os.O_RDONLY | os.O_NONBLOCK)
    try:
        return _content(fd)
    finally:
        os.close(fd)


class Handle:
    """Owns an agent's process: it works on command, and says when it is done."""

    def __init__(self, root: Path, number: int, seed: str, log: Path) -> None:
        self.running = mmap.mmap(-1, 4096)
        self._told, self._tell = os.pipe()
        self._heard, self._say = os.pipe()
        self._owed = 0
        self.pid = os.fork()
        if self.pid == 0:
            self._live(Agent(root, number, seed, log))
        os.close(self._told)
        os.close(self._say)

    def _live(self, agent: Agent) -> None:
        """In the child; never returns."""
        die_with_parent()
        os.close(self._tell)
        os.close(self._heard)
        try:
            while (order := os.read(self._told, 1)) not in (END, b""):
                self._obey(agent, order)
                os.write(self._say, b".")
        except BaseException:  # noqa: BLE001 - the driver sees that the agent is gone
            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    def _obey(self, agent: Agent, order: bytes) -> None:
        if order == REST:
            agent.open_both()
        elif order == STEP:
            agent.act()
        while order == GO and self.running[0]:
            agent.act()
            time.sleep(agent.random.random() * LONGEST_BREATH)

    def order(self, order: bytes) -> None:
        self.running[0] = order == GO
        os.write(self._tell, order)
        self._owed += 1

    def wait(self) -> None:
        """Until all that was ordered is done."""
        self.running[0] = 0
        while self._owed:
            if not os.read(self._heard, 1):
                raise AssertionError("an agent failed by itself")
            self._owed -= 1

    def wait_a_little(self, seconds: float) -> None:
        """Less than all of it where the agent waits for something itself."""
        while self._owed and select.select([self._heard], [], [], seconds)[0]:
            if not os.read(self._heard, 1):
                raise AssertionError("an agent failed by itself")
            self._owed -= 1

    def end(self) -> None:
        with suppress(BrokenPipeError):
            os.write(self._tell, END)
        os.waitpid(self.pid, 0)
        for fd in (self._tell, self._heard):
            os.close(fd)
        self.running.close()


def die_with_parent() -> None:
    """So that a driver that is killed leaves nobody behind."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def read_log(log: Path) -> set[str]:
    """The contents that were written and that no agent has destroyed since."""
    must: set[str] = set()
    for line in log.read_text().splitlines() if log.exists() else []:
        sign, oid = line.split(" ")[:2]
        (must.add if sign == "+" else must.discard)(oid)
    return must
