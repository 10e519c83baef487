"""The hidden directory in which new contents wait and displaced ones are kept, from its making to
its end.

Its end, file by file: what may still be written, or is no file, gets a name in the tree again; what
the store holds is unlinked; what it does not hold waits until the caller has stored it. Then plain
rmdir, so that what is not empty stays for the next command.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from .aside import Errands
from .beneath import Beneath
from .disk import GONE, Disk
from .model import RelPath, is_within, join, show_path
from .objects import hash_object
from .plan import OWNER_ALL, Left, Step
from .proofs import DIRECTORY
from .reading import READ, has_writer
from .rules import STAGING_PREFIX

NEW, OLD = b"new", b"old"
SPREAD = 8
"""In so many directories at most new contents wait; an ext4 is asked to keep those apart."""
FILES_PER_PART = 8
"""To make a directory apart from the others takes as long as so many files."""
SLOW_NS = 100_000
"""Of a processor's time: making a file takes a fifth of it, unless inodes are looked for."""
HELPED_FROM = 64
"""So many names are worth handing to a helper."""

Content = tuple[int, bytes]
"""What stat says of the mode, and the bytes."""
Displaced = dict[RelPath, Content]
DISPLACED = RelPath(b"displaced")
"""Where what is no step's is taken to come from."""


def name_of(number: int) -> bytes:
    """What the content of a step is called."""
    return b"%d" % number


class Staging:
    """Owns the directory, and descriptors of its parts."""

    def __init__(self, beneath: Beneath, tx: str) -> None:
        self.disk = beneath.disk
        self.beneath = beneath
        self.name = STAGING_PREFIX + tx.encode()
        self.fd = -1
        self._names = [NEW, *(b"%s-%d-%s" % (NEW, n, tx.encode()) for n in range(1, SPREAD)), OLD]
        """Of all parts there may be; ext4 chooses their places by their names."""
        self._parts: dict[bytes, int] = {}
        self._new: list[int] = []
        """Those for new contents, that which is next to take one first."""
        self._where: dict[int, int] = {}

    @property
    def old(self) -> int:
        return self._parts[OLD]

    def new(self, number: int) -> int:
        """The part in which the new content of a step waits."""
        return self._where[number]

    def make(self, files: int) -> None:
        """For so many files of new content."""
        with self._writable_root():
            self.disk.mkdir(self.name, 0o700, self.beneath.fd)
        self.fd = self.disk.open(self.name, DIRECTORY, at=self.beneath.fd)
        parts = min(1 + files // FILES_PER_PART, SPREAD) if files >= 4 * FILES_PER_PART else 1
        if parts > 1:
            self.disk.spread_out(self.fd)
        for part in (OLD, *self._names[:parts]):
            if not self._make_part(part):
                break
        self._new = [fd for part, fd in self._parts.items() if part != OLD]
        if not self.disk.keeps_order([os.fsdecode(self.beneath.root)]):
            # before their names: ext4 without a journal would show what was in their blocks before
            self.disk.sync_all(list(self._parts.values()))

    def _make_part(self, part: bytes) -> bool:
        """False where no descriptor is left for one that could be done without."""
        self.disk.mkdir(part, 0o700, self.fd)
        try:
            self._parts[part] = self.disk.open(part, DIRECTORY, at=self.fd)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or part in (OLD, NEW):
                raise
            self.disk.rmdir(part, self.fd)
            return False
        return True

    @contextmanager
    def file(self, number: int) -> Iterator[int]:
        """The new content of a step, to be written. A part in which inodes have to be looked for
        (`Disk.spread_out`) is left for the next one."""
        self._where[number] = at = self._new[0]
        begun = time.thread_time_ns()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with self.disk.opened(name_of(number), flags, 0o600, at) as fd:
            if time.thread_time_ns() - begun > SLOW_NS:
                self._new.append(self._new.pop(0))
            yield fd

    def link(self, number: int, target: bytes) -> None:
        self._where[number] = at = self._new[0]
        self.disk.symlink(target, name_of(number), at)

    def open(self) -> bool:
        """Opens what an earlier process may have left; False if there is nothing."""
        try:
            self.fd = self.disk.open(self.name, DIRECTORY, at=self.beneath.fd)
        except OSError as error:
            if error.errno in GONE:
                return False
            raise
        self._open_parts()
        return True

    def _open_parts(self) -> None:
        for part in self._names:
            if part not in self._parts and self._is_dir(part):
                self._parts[part] = self.disk.open(part, DIRECTORY, at=self.fd)

    def _is_dir(self, part: bytes) -> bool:
        there = self.disk.exists(part, self.fd)
        return there and stat.S_ISDIR(self.disk.lstat(part, self.fd).st_mode)

    def names(self) -> list[tuple[int, bytes]]:
        """Everything that is in staging, be it ours or not: where it is, and its name."""
        self._open_parts()  # making them may have failed half-way: they are no strays
        out: list[tuple[int, bytes]] = []
        for at in (self.fd, *self._parts.values()):
            with self.disk.scandir(at) as found:
                names = [os.fsencode(entry.name) for entry in found]
            out += [(at, name) for name in names if at != self.fd or name not in self._parts]
        return out

    def remove(self) -> None:
        """Plain rmdir: what is not empty stays for the next command."""
        for part in self._parts:
            self.disk.rmdir(part, self.fd)
        with self._writable_root():
            self.disk.rmdir(self.name, self.beneath.fd)

    @contextmanager
    def _writable_root(self) -> Iterator[None]:
        """For one change of its names; a point may have a root that its owner cannot write to."""
        mode = stat.S_IMODE(self.disk.fstat(self.beneath.fd).st_mode)
        closed = mode & OWNER_ALL != OWNER_ALL
        if closed:
            self.disk.chmod(self.beneath.fd, mode | OWNER_ALL)
        try:
            yield
        finally:
            if closed:
                self.disk.chmod(self.beneath.fd, mode)

    def close(self) -> None:
        for fd in self._parts.values():
            self.disk.close(fd)
        self._parts = {}
        if self.fd >= 0:
            self.disk.close(self.fd)
            self.fd = -1


class Unlinking:
    """Owns names that helpers are unlinking; of few it is done in the end."""

    def __init__(self, disk: Disk, errands: Errands) -> None:
        self.disk = disk
        self._errands = errands
        self._names: list[tuple[int, bytes]] = []

    def add(self, at: int, name: bytes) -> None:
        self._names.append((at, name))
        if len(self._names) == HELPED_FROM:
            self._errands.later(partial(self.disk.unlink_each, self._names))
            self._names = []

    def end(self) -> None:
        self._errands.settle()
        self.disk.unlink_each(self._names)


@contextmanager
def unlinking(disk: Disk) -> Iterator[Unlinking]:
    """Nothing is unlinked any more when it is left, however that comes."""
    with Errands() as errands:
        names = Unlinking(disk, errands)
        yield names
        names.end()


@dataclass
class Sorted:
    """What lay in staging and must not be lost, by where it was to go, or came from."""

    given_back: list[Left] = field(default_factory=list)
    unknown: Displaced = field(default_factory=dict)
    names: list[tuple[int, bytes]] = field(default_factory=list)
    """Of the unknown."""


def sort_out(staging: Staging, steps: tuple[Step, ...]) -> Sorted:
    """Unlinks what either snapshot of the rollback holds, and says what the rest is."""
    paths = _paths(steps)
    known = {node.oid for step in steps for node in (step.old, step.new) if node is not None}
    found = Sorted()
    with unlinking(staging.disk) as names:
        for at, name in staging.names():
            content = _content_at_rest(staging.disk, at, name)
            path = paths.get(name, DISPLACED)
            if content is None:
                found.given_back.append(_give_back(staging, at, name, path))
            elif hash_object("blob", content[1]) in known:
                names.add(at, name)
            else:
                found.unknown[_free(path, found.unknown)] = content
                found.names.append((at, name))
    return found


def clear(staging: Staging, steps: tuple[Step, ...]) -> None:
    """Of a pass that has not begun to change the tree: unlinks what is a step's, and gives back
    what is not."""
    paths = _paths(steps)
    with unlinking(staging.disk) as names:
        for at, name in staging.names():
            if name in paths and _is_at_rest(staging.disk, at, name):
                names.add(at, name)
            else:
                _give_back(staging, at, name, paths.get(name, DISPLACED))


def _paths(steps: tuple[Step, ...]) -> dict[bytes, RelPath]:
    return {name_of(number): step.path for number, step in enumerate(steps)}


def _give_back(staging: Staging, at: int, name: bytes, path: RelPath) -> Left:
    """Puts what is none of ours, or is still being written, beside where it was taken.

    It got into staging because somebody swapped it in while a step was made, and could not go
    back because something else has its name by now; or put it there. What its writer adds later
    must have a name.
    """
    beside = _put_beside(staging, at, name, path)
    return Left(path, f"swapped while rolling back; now {show_path(beside)}")


def _put_beside(staging: Staging, at: int, name: bytes, path: RelPath) -> RelPath:
    head, _, last = path.rpartition(b"/")
    staging.beneath.forget()
    for number in itertools.count(1):
        beside = b"%s.saved-%d" % (last[:200], number)
        try:
            staging.disk.rename_new(name, beside, at, staging.beneath.dir(RelPath(head)))
        except FileExistsError:
            continue
        except OSError as error:
            if error.errno not in GONE or not head:
                raise
            head = b""  # its directory went away: the root is always there
            continue
        return join(RelPath(head), beside)
    raise AssertionError("unreachable")


def _free(path: RelPath, taken: Iterable[RelPath]) -> RelPath:
    """The path, or one like it, where a tree that holds what is taken has room for a file."""
    wanted = path
    for number in itertools.count(1):
        if not any(is_within(path, one) or is_within(one, path) for one in taken):
            break
        path = join(RelPath(b"displaced-%d" % number), wanted)
    return path


def _content_at_rest(disk: Disk, at: int, name: bytes) -> Content | None:
    """None for what is neither file nor link, or may still be written."""
    mode = disk.lstat(name, at).st_mode
    if stat.S_ISLNK(mode):
        return mode, disk.readlink(name, at)
    with _at_rest(disk, at, name, mode) as fd:
        return None if fd is None else (mode, disk.read_all(fd))


def _is_at_rest(disk: Disk, at: int, name: bytes) -> bool:
    mode = disk.lstat(name, at).st_mode
    if stat.S_ISLNK(mode):
        return True
    with _at_rest(disk, at, name, mode) as fd:
        return fd is not None


@contextmanager
def _at_rest(disk: Disk, at: int, name: bytes, mode: int) -> Iterator[int | None]:
    """A file that nobody writes, opened; None for another one, also where that cannot be told."""
    if not stat.S_ISREG(mode):
        yield None
        return
    try:
        fd = disk.open(name, READ, at=at)
    except PermissionError:
        yield None
        return
    try:
        yield None if has_writer(disk, fd) else fd
    finally:
        disk.close(fd)
