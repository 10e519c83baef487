"""A process of its own that says of directories, as it is asked, whether they are as on record.

Started by `scouting` without anything of ours, so that it is small (3 MB of its own), and ends with
whoever started it. It only looks. Imports next to nothing, and knows no records, rules or
workspaces: each question tells all that is to be compared.
"""

from __future__ import annotations

import marshal
import os
import stat
import struct
import time

from .proofs import DIRECTORY, STAMP_BYTES, Eyes, asked_again, list_names, may_come_again, stamp_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

    from .model import RelPath

    Question = tuple[RelPath, int, bytes, bytes, bytes]
    """Of a directory: its path, mode, names, stats, and stamp if it has one."""
    Start = tuple[bytes, int, int, bool]
    """Of a look: the root's path, device and inode, and whether change times are kept there."""
    Part = tuple[int, list[Question]]
    """With a number that the answer bears as well."""

HELLO = b"turnmark's scout, 1\n"
"""To be another one whenever questions or answers are: its program may be newer than ours."""
LENGTH_BYTES = 4
HIGHEST_FD = 1 << 16
HEAD = struct.Struct("<QQ")
"""Of the answers to a part: its number, and how many they are."""
ANSWER_BYTES = 1 + STAMP_BYTES
YES, NO = b"\1", bytes(ANSWER_BYTES)
"""Yes, with the stamp of a directory that was listed, if its time is to be believed; else zeros."""
NO_STAMP = bytes(STAMP_BYTES)


class Scout:
    """Owns the descriptors of the root, and of the directories on the way to the last one."""

    def __init__(self) -> None:
        self.eyes = Eyes()
        self._fds: list[int] = []
        self._names: list[bytes] = []
        self._device: int | None = None

    def begin(self, root: bytes, device: int, inode: int, keeps_times: bool) -> None:
        self.end()
        self._device = device if keeps_times else None
        try:
            self._fds = [self.eyes.open_quietly(root, DIRECTORY)]
        except OSError:
            return
        info = self.eyes.fstat(self._fds[0])
        if (info.st_dev, info.st_ino) != (device, inode):
            self.end()

    def end(self) -> None:
        self._leave(0)
        for fd in self._fds:
            self.eyes.close(fd)
        self._fds = []

    def _leave(self, depth: int) -> None:
        while len(self._names) > depth:
            self._names.pop()
            self.eyes.close(self._fds.pop())

    def answer(self, path: bytes, mode: int, names: bytes, stats: bytes, stamp: bytes) -> bytes:
        try:
            return self._answer(path, mode, names, stats, stamp)
        except OSError:
            return NO

    def _answer(self, path: bytes, mode: int, names: bytes, stats: bytes, stamp: bytes) -> bytes:
        fd = self._enter(path)
        if fd is None:
            return NO
        info = self.eyes.fstat(fd)
        if stat.S_IMODE(info.st_mode) != mode:
            return NO
        now = stamp_of(info) if info.st_dev == self._device else b""
        if now and now == stamp:
            again = asked_again(self.eyes, fd, names, stats)
            if again is None or again[0] != stats:
                return NO
            return YES + NO_STAMP if all(one.st_nlink == 1 for one in again[2]) else NO
        if may_come_again(info.st_ctime_ns, time.time_ns()):
            now = b""
        if list_names(self.eyes, fd) != (names, stats, []):
            return NO
        return YES + (now or NO_STAMP)

    def _enter(self, path: bytes) -> int | None:
        """Step by step, never through a link."""
        if not self._fds:
            return None
        names = path.split(b"/")
        known = 0
        while known < min(len(names), len(self._names)) and names[known] == self._names[known]:
            known += 1
        self._leave(known)
        for name in names[known:]:
            self._fds.append(self.eyes.open_quietly(name, DIRECTORY, self._fds[-1]))
            self._names.append(name)
        return self._fds[-1]


def run(asked: BinaryIO, answers: BinaryIO) -> None:
    """Until nobody asks any more."""
    scout = Scout()
    answers.write(HELLO)
    answers.flush()
    while length := asked.read(LENGTH_BYTES):
        what = marshal.loads(asked.read(int.from_bytes(length, "little")))
        if what is None:
            scout.end()
        elif isinstance(what[0], bytes):
            scout.begin(*what)
        else:
            number, questions = what
            found = [scout.answer(*question) for question in questions]
            answers.write(HEAD.pack(number, len(found)) + b"".join(found))
            answers.flush()


def main() -> None:
    os.closerange(3, HIGHEST_FD)  # what whoever started our sender left open
    os.chdir("/")  # keeps no disk from being unmounted
    with open(0, "rb") as asked, open(1, "wb") as answers:
        run(asked, answers)
