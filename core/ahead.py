"""What somebody waits for, in a log that one sync makes durable, until it is so where it belongs.

Each workspace has one, written only by a process that holds the workspace's lock. The order of a
change that is logged, and what is true if the process dies, or the power fails, after each step:
1. packs and references are written to files that nobody sees: nothing yet;
2. the log has them too, synced and read back: from here on they count, as whoever takes the
   workspace's lock next puts them in place, answered or not;
3. they are given their names, unsynced, and there is an answer: after a death they are there; after
   a power cut any of them may be, or others' bytes in their places, which the log puts right;
4. later, while nobody waits: what is in place is compared with the log, mended and synced;
5. the beginning of the log is overwritten, durably: it holds nothing any more.
Whoever is about to take something out of the store works off all logs first, with everybody else
locked out, so that none brings back what was dropped.

Knows bytes, names and ids; not what they mean, nor who holds which lock.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import NamedTuple

from .deflate import crc32
from .disk import Disk
from .errors import NO_SPACE
from .model import Oid
from .packform import TRAILER_BYTES
from .packing import TEMPORARY
from .refs import Refs, RefStore
from .reserve import give_up

MAGIC = b"tmahead1"
HEAD = struct.Struct(">8sIIIII")
"""The format; which filling of the log, and which record of it; how long the words are, and all
that follows; the check sum of everything else."""
FILLING = struct.Struct(">8sI")
"""The begin of it."""
CHECKED = HEAD.size - 4
OID_LETTERS = 40
BLOCK = 4096
"""A record begins in a block of its own: a torn write spoils none before it."""
BYTES = 1 << 19
NOTHING = bytes(BLOCK)
WORKSPACE = re.compile(r"[0-9a-f]{16}")
ROOM = 8 * BYTES
"""Where there is less than this, others need it more."""


Answers = Callable[[str, Oid], bool]
"""Whether an object is the point that the name of a reference says."""
Placed = tuple[bytes, bytes]
"""A pack and its index."""


class Record(NamedTuple):
    """What is to be in place; of each change first the packs, then the references."""

    refs: Refs
    packs: Sequence[Placed]


def encode(record: Record, filling: int, number: int) -> bytes:
    lines = [b"%d %d\n" % (len(pack), len(index)) for pack, index in record.packs]
    lines += [b"%s %s\n" % (oid.hex().encode(), n.encode()) for n, oid in record.refs.items()]
    words = b"".join(lines)
    body = b"".join([words, *(part for pair in record.packs for part in pair)])
    head = HEAD.pack(MAGIC, filling, number, len(words), len(body), 0)[:CHECKED]
    whole = b"".join((head, crc32(body, crc32(head)).to_bytes(4, "big"), body))
    return whole + bytes(-len(whole) % BLOCK)


def records(data: bytes) -> Iterator[Record]:
    """Those of one filling, up to the first that is not whole."""
    at, number, first = 0, 0, 0
    while at + HEAD.size <= len(data):
        magic, filling, count, words, size, crc = HEAD.unpack_from(data, at)
        body = data[at + HEAD.size : at + HEAD.size + size]
        first = first or filling
        if (magic, filling, count, len(body)) != (MAGIC, first, number, size):
            return
        if crc32(body, crc32(data[at : at + CHECKED])) != crc:
            return
        yield _decode(body, words)
        at += HEAD.size + size
        at, number = at + -at % BLOCK, number + 1


def _decode(body: bytes, words: int) -> Record:
    refs: Refs = {}
    packs, at = [], words
    for line in body[:words].splitlines():
        one, _, other = line.decode().partition(" ")
        if len(one) == OID_LETTERS:
            refs[other] = Oid(bytes.fromhex(one))
            continue
        between, end = at + int(one), at + int(one) + int(other)
        packs.append((body[at:between], body[between:end]))
        at = end
    return Record(refs, packs)


def claims(data: bytes, name: str) -> bool:
    """Whether a snapshot or mark says of itself, in the words of `history`, that it is the one of
    that name."""
    _, _, workspace, _, seq = name.encode().split(b"/")
    return b'"workspace": "%s", ' % workspace in data and b', "seq": %s, ' % seq in data


class Ahead:
    """Owns the log of one workspace, whose lock its process holds."""

    def __init__(self, disk: Disk, path: str) -> None:
        """A new one, in the place of an empty one or of none."""
        self.disk = disk
        self.path = path
        self._process = os.getpid()
        self._filling = 0
        self._ends = [0]
        """Where each record ends, and the next one begins."""
        self._broken = False
        """A record may not be whole: none behind it would be found."""
        disk.discard(path)
        self._fd = disk.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            disk.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._inode = disk.fstat(self._fd).st_ino
            disk.write(self._fd, bytes(BYTES))  # for what is overwritten no room need be made
            disk.fsync(self._fd)
            disk.sync_dir(os.path.dirname(path))
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Once it is empty: should its name come back, it still is."""
        if self._process == os.getpid():
            self.disk.discard(self.path)
        self.close()

    def begin_anew(self) -> None:
        """It was worked off."""
        self._ends, self._broken = [0], False

    @property
    def may_hold(self) -> bool:
        return self._broken or len(self._ends) > 1

    def close(self) -> None:
        """As it is, for whoever takes the lock next."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            self.disk.close(fd)

    @property
    def is_usable(self) -> bool:
        """Whether it is this process', and where it was."""
        if self._process != os.getpid() or self._fd < 0:
            return False
        try:
            return self.disk.lstat(self.path).st_ino == self._inode
        except OSError:
            return False

    @property
    def is_lost(self) -> bool:
        """Whether what it held may be nowhere durable: somebody has taken it away."""
        return len(self._ends) > 1 and not self.is_usable

    def takes(self, size: int) -> bool:
        """Whether there is room for so many bytes of packs."""
        return not self._broken and self._ends[-1] + size + BLOCK < BYTES and self.is_usable

    def keep(self, packs: Sequence[Placed], refs: Refs) -> bool:
        """Makes a change durable, unless that cannot be done here: then it goes another way."""
        try:
            self._begin()
        except OSError:
            self._broken = True
            return False
        both = [self._next(Record({}, packs), 0), self._next(Record(refs, ()), 1)]
        data, at = b"".join(both), self._ends[-1]
        if at + len(data) > BYTES:
            return False
        self._ends += [at + len(both[0]), at + len(data)]
        self._broken = True
        try:
            self._overwrite(data, at)
            kept = self.disk.pread_exactly(self._fd, len(data), at) == data
        except OSError:
            kept = False
        except BaseException:
            self.take_back({})
            raise
        if kept:
            self._broken = False
        else:
            self.take_back({})
        return kept

    def take_back(self, but: Refs) -> None:
        """The last references, except those that are in place: whoever asked is told of a failure.
        What the packs hold may be counted on by others already, and stays.

        Where the disk takes that no more either, they may come all the same, and are whole.
        """
        self._ends.pop()
        data = self._next(Record(but, ()), 0)
        try:
            self._overwrite(data, self._ends[-1])
        except OSError:
            self._broken = True
        self._ends.append(self._ends[-1] + len(data))

    def _next(self, record: Record, later: int) -> bytes:
        return encode(record, self._filling, len(self._ends) - 1 + later)

    def _begin(self) -> None:
        """Anew, unless what was kept here is there still: somebody may have worked it off."""
        head = FILLING.pack(MAGIC, self._filling)
        used = len(self._ends) > 1
        if not (used and self.disk.pread_exactly(self._fd, len(head), 0) == head):
            self._filling, self._ends = self._filling + 1, [0]

    def _overwrite(self, data: bytes, at: int) -> None:
        self.disk.overwrite(self._fd, data, at)
        self.disk.fdatasync(self._fd)


class Logs:
    """Owns the directory of all workspaces' logs."""

    def __init__(self, disk: Disk, base: str, refs: RefStore) -> None:
        self.disk = disk
        self.base = base
        self.refs = refs
        self.place = f"{base}/turnmark/ahead"

    def path(self, workspace: str) -> str:
        return f"{self.place}/{workspace}"

    def names(self) -> list[str]:
        """The workspaces that have one."""
        try:
            with self.disk.scandir(self.place) as found:
                return [e.name for e in found if WORKSPACE.fullmatch(e.name) and is_file(e)]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def is_there(self, workspace: str) -> bool:
        return self.disk.exists(self.path(workspace))

    def is_left(self, workspace: str) -> bool:
        """Whether it holds something, and no living process writes it."""
        try:
            with self.disk.opened(self.path(workspace)) as fd:
                holds = self.disk.pread_exactly(fd, len(MAGIC), 0) == MAGIC
                return holds and self.disk.lock(fd, exclusive=False, wait=0.0)
        except FileNotFoundError:
            return False

    def new(self, workspace: str) -> Ahead | None:
        """For the holder of the workspace's lock, who has worked off the old one; None where others
        need the room more."""
        if self.disk.free(self.base) < ROOM:
            return None
        if not self.disk.exists(self.place):
            self.refs.order.directory(self.place, f"{self.base}/turnmark/tmp")
        self.disk.sync_dir(f"{self.base}/turnmark")  # whoever made it may have been killed
        return Ahead(self.disk, self.path(workspace))

    def work_off(self, workspace: str, answers_to: Answers) -> None:
        """Under the workspace's lock and the shared one, or under the exclusive one. On a full disk
        with what nobody depends on given up."""
        for make_room in (give_up, drop_caches, None):
            try:
                with suppress(FileNotFoundError):  # another one has worked it off
                    self._work_off(self.path(workspace), answers_to)
                return
            except OSError as error:
                if make_room is None or error.errno not in NO_SPACE:
                    raise
                make_room(self.disk, self.base)

    def work_off_all(self, answers_to: Answers, aside: Callable[[str], None] | None) -> None:
        """Under the exclusive lock. Those that nobody writes go; those that cannot be worked off
        must be put aside, or nothing may be dropped."""
        for workspace in self.names():
            try:
                self.work_off(workspace, answers_to)
            except OSError:
                if aside is None:
                    raise
                aside(self.path(workspace))
            self._discard_unowned(self.path(workspace))
        if self.disk.exists(self.place):
            self.disk.sync_dir(self.place)

    def _discard_unowned(self, path: str) -> None:
        with suppress(FileNotFoundError), self.disk.opened(path) as fd:
            if self.disk.lock(fd, exclusive=False, wait=0.0):
                self.disk.discard(path)

    def _work_off(self, path: str, answers_to: Answers) -> None:
        """To the end, also if it seems empty: what emptied it may not have lasted."""
        with self.disk.opened(path, os.O_RDWR) as log:
            if self.disk.pread_exactly(log, len(MAGIC), 0) == MAGIC:
                self._put_right(together(records(self.disk.read_all(log))), answers_to)
            try:
                self.disk.overwrite(log, NOTHING, 0)
                self.disk.fdatasync(log)
            except OSError:
                self.disk.unlink(path)
                self.disk.sync_dir(self.place)

    def _put_right(self, record: Record, answers_to: Answers) -> None:
        try:
            put_right(self.disk, record, self.refs, answers_to)
        except OSError as error:
            if error.errno in NO_SPACE:
                raise
            # what could not be synced may be taken for synced the next time
            put_right(self.disk, record, self.refs, answers_to, anew=True)


def is_file(entry: os.DirEntry[str]) -> bool:
    return entry.is_file(follow_symlinks=False)


def drop_caches(disk: Disk, base: str) -> None:
    """They cost time, never truth."""
    for name in disk.names(f"{base}/turnmark/cache"):
        disk.discard(f"{base}/turnmark/cache/{name}")


def together(found: Iterable[Record]) -> Record:
    """As one: all packs before any reference, each kind synced at once."""
    refs: Refs = {}
    packs: list[Placed] = []
    for record in found:
        refs |= record.refs
        packs += record.packs
    return Record(refs, packs)


def put_right(
    disk: Disk,
    record: Record,
    refs: RefStore,
    answers_to: Answers,
    *,
    anew: bool = False,
) -> None:
    """Makes what a record names durable, and whole where it is not.

    A record that names a reference which is there, but is another one, was never answered: whoever
    made that one had the lock after its writer died, and could not know of it.
    """
    packs_in = f"{refs.base}/objects/pack"
    files = {path: data for pair in record.packs for path, data in _files(packs_in, pair)}
    with ExitStack() as held:
        whole = []
        for path, data in files.items():
            fd = None if anew else _if_whole(disk, path, data, held)
            if fd is None:
                _bring(disk, path, data)
            else:
                whole.append(fd)
        disk.sync_all(whole)
    if files:
        disk.sync_dir(packs_in)
    for name, oid in record.refs.items():
        refs.put_right(name, oid, partial(answers_to, name), anew=anew)
    disk.sync_dirs({os.path.dirname(f"{refs.base}/{name}") for name in record.refs})


def _files(packs_in: str, pair: Placed) -> Iterator[tuple[str, bytes]]:
    pack, index = pair
    path = f"{packs_in}/pack-{pack[-TRAILER_BYTES:].hex()}"
    yield path + ".pack", pack
    yield path + ".idx", index


def _if_whole(disk: Disk, path: str, data: bytes, held: ExitStack) -> int | None:
    try:
        fd = held.enter_context(disk.opened(path))
    except FileNotFoundError:
        return None
    return fd if disk.read_all(fd, len(data)) == data else None


def _bring(disk: Disk, path: str, data: bytes) -> None:
    fresh = f"{os.path.dirname(path)}/{TEMPORARY}{os.getpid()}-{time.monotonic_ns()}"
    try:
        disk.create(fresh, data, sync=True, mode=0o400)
        disk.put_in_place(fresh, path)
    except BaseException:
        disk.discard(fresh)
        raise
