"""Carries out the steps of a plan in a user's tree: staged, swapped in, deletions last.

Order of operations, and what is true if the process dies after each:
1. journal written, durably: the tree is untouched; the next command discards the transaction
   (and, if it was to finish a killed one, begins it anew);
2. staging directory made inside the root, every new content written there and synced: as after 1;
3. the marker `applying` made durable: from here on the next command finishes the rollback;
4. steps, each one rename: a path is in its old or its new state, and what was displaced lies in
   staging, where it stays until the store is known to hold it;
5. touched directories synced; the result is recorded as a snapshot (by the caller);
6. staging emptied: what the store holds is unlinked, the rest when that is stored as well; the
   directory is gone, durably, before
7. journal removed: done. A marker without a journal means nothing.

No byte is ever unlinked, truncated or overwritten in place. Whatever turns out not to be what the
plan expected goes back to where it was and is reported as a conflict. So does what made room for
something that then could not be brought: directories are made again, topmost first, and the files
come back out of staging, each by one rename. Who dies meanwhile has died in 4: what is back already
is in its old state, the rest lies in staging, and the next command finishes the rollback.
"""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial

from .aside import Errands
from .beneath import Beneath
from .disk import CHUNK, GONE, UNSUPPORTED, Disk
from .errors import Damaged
from .model import ROOT, Oid, RelPath, nearest_in, parents, show_path
from .objects import hash_object
from .plan import OWNER_ALL, Left, Node, ReadBlob, Step
from .proofs import DIRECTORY
from .reading import READ, has_writer
from .staging import Staging, name_of

Bringing = tuple[int, Step, bytes]
"""The number of a step, itself, and the content that it brings."""
SYNC_EACH_BELOW = 32
TOGETHER, TOGETHER_BYTES = 64, 1 << 20
"""So many contents, or so many bytes of them, are read before another thread writes them."""
BRINGING = ("mkdir", "create", "replace")


class Transaction:
    """Owns one rollback's staging while its steps are made."""

    def __init__(self, beneath: Beneath, tx: str, steps: tuple[Step, ...]) -> None:
        self.disk = beneath.disk
        self.beneath = beneath
        self.steps = steps
        self.staging = Staging(beneath, tx)
        self.conflicts: list[Left] = []
        self._places = {s.path for s in steps if s.action in BRINGING and s.old is not None}
        self._room: dict[RelPath, list[int]] = {}
        """For what is to take a place: the steps that removed what is in its way, as made."""
        self._standing: dict[RelPath, Node] = {}
        """Directories that were to go and are there after all, more open than they were."""
        self._verbs: dict[str, Callable[[int, Step], str | None]] = {
            "open": self._open,
            "clear": self._delete,
            "mkdir": self._mkdir,
            "create": self._create,
            "replace": self._replace,
            "delete": self._delete,
            "rmdir": self._rmdir,
            "chmod": self._chmod,
        }

    # Staging

    def stage(self, read_blob: ReadBlob) -> None:
        """Writes every new content beside the tree; a full disk stops here, harmlessly."""
        staged = [(n, s) for n, s in enumerate(self.steps) if s.action in ("create", "replace")]
        self.staging.make(len(staged))
        contents = ((n, s, _content(s, read_blob)) for n, s in staged)
        if len(staged) < SYNC_EACH_BELOW:
            for number, step, data in contents:
                self._stage_one(number, step, data, sync=True)
            return
        self._stage_meanwhile(contents)
        self.disk.sync_fs(self.staging.fd)

    def _stage_meanwhile(self, contents: Iterator[Bringing]) -> None:
        """Another thread writes while this one reads; of large files few are held at a time."""
        with Errands() as errands:
            for some in _some_together(contents):
                errands.begin(partial(self._stage_some, some))
                errands.settle(left=1)
            errands.settle()

    def _stage_some(self, contents: list[Bringing]) -> None:
        for number, step, data in contents:
            self._stage_one(number, step, data, sync=False)

    def _stage_one(self, number: int, step: Step, data: bytes, *, sync: bool) -> None:
        assert step.new is not None
        if step.new.kind == "link":
            if not data or b"\0" in data:
                raise Damaged(f"The link {show_path(step.path)} of the point leads nowhere.")
            self.staging.link(number, data)
            return
        with self.staging.file(number) as fd:
            self.disk.write(fd, data)
            self._own(fd, itertools.chain((step.path,), parents(step.path)))
            self.disk.chmod(fd, 0o600 if step.new.mode is None else step.new.mode)
            if sync:
                self.disk.fsync(fd)

    def _own(self, fd: int, like: Iterable[RelPath]) -> None:
        """Root gives a file to the owner of what it replaces, or of the directory it comes to."""
        if os.geteuid() != 0:
            return
        for path in like:
            info = self.beneath.lstat(path)
            if info is not None:
                self.disk.chown(fd, info.st_uid, info.st_gid)
                return

    # Applying

    def run(self) -> None:
        """Makes every step; one that cannot be made is a conflict and does not stop the others."""
        for number, step in enumerate(self.steps):
            if step.action == "chmod":  # all others are done; it may close what is above
                self._close_standing()
            trouble = self._try(self._verbs[step.action], number, step)
            if trouble is not None:
                self._put_back(step.path)
                self.conflicts.append(Left(step.path, trouble))
            elif step.action in BRINGING:
                self._room.pop(step.path, None)
        self._close_standing()
        self._sync_touched()

    def _try(self, verb: Callable[[int, Step], str | None], number: int, step: Step) -> str | None:
        self.beneath.forget()  # so that a directory moved meanwhile is not followed
        try:
            return verb(number, step)
        except OSError as error:
            return _trouble(error)

    def _open(self, number: int, step: Step) -> str | None:
        assert step.old is not None and step.old.mode is not None
        with self._opened_dir(step.path) as fd:
            self.disk.chmod(fd, step.old.mode | 0o700)
        return None

    def _mkdir(self, number: int, step: Step) -> str | None:
        try:
            self._make_dir(step.path)
        except FileExistsError:
            return "something else appeared in its place"
        return None

    def _make_dir(self, path: RelPath) -> bool:
        """False if a directory is there already."""
        at, name = self.beneath.parent(path)
        try:
            self.disk.mkdir(name, 0o700, at)
        except FileExistsError:
            if not stat.S_ISDIR(self.disk.lstat(name, at).st_mode):
                raise
            return False
        with self._opened_dir(path) as fd:
            self._own(fd, parents(path))
            self._sync_alone(fd)
        return True

    def _create(self, number: int, step: Step) -> str | None:
        at, name = self.beneath.parent(step.path)
        try:
            self.disk.rename_new(name_of(number), name, self.staging.new(number), at)
        except FileExistsError:
            return "appeared since"
        return None

    def _replace(self, number: int, step: Step) -> str | None:
        assert step.old is not None and step.new is not None
        at, name = self.beneath.parent(step.path)
        if not self._is_kind(at, name, step.old):
            return "changed since"
        staged, waiting = name_of(number), self.staging.new(number)
        try:
            self.disk.exchange(staged, name, waiting, at)
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            return self._replace_in_two(number, step, at, name)
        if self._is_still(waiting, staged, step.old):
            return None
        self.disk.exchange(staged, name, waiting, at)
        if not self._is_still(waiting, staged, step.new):
            # meanwhile somebody put a third content there: the newest one belongs into the tree
            self.disk.exchange(staged, name, waiting, at)
        return "changed since"

    def _replace_in_two(self, number: int, step: Step, at: int, name: bytes) -> str | None:
        """Where names cannot be exchanged: out of the way first, then in."""
        assert step.old is not None
        trouble = self._displace(number, step, at, name)
        return trouble or self._create(number, step)

    def _delete(self, number: int, step: Step) -> str | None:
        at, name = self.beneath.parent(step.path)
        return self._displace(number, step, at, name)

    def _displace(self, number: int, step: Step, at: int, name: bytes) -> str | None:
        """Moves a file into staging if it is what the plan expects, and back if it is not."""
        assert step.old is not None
        if not self._is_kind(at, name, step.old):
            return None if not self.disk.exists(name, at) else "changed since"
        self.disk.rename_new(name, name_of(number), at, self.staging.old)
        self._made_room(number, step.path)
        if self._is_still(self.staging.old, name_of(number), step.old):
            return None
        try:
            self.disk.rename_new(name_of(number), name, self.staging.old, at)
        except FileExistsError:
            return "changed since, and another took its place"
        self._room[self._place_of(step.path)].pop()
        return "changed since"

    def _rmdir(self, number: int, step: Step) -> str | None:
        assert step.old is not None and step.old.mode is not None
        at, name = self.beneath.parent(step.path)
        try:
            self.disk.rmdir(name, at)
        except FileNotFoundError:
            return None
        except OSError as error:
            if step.old.mode & OWNER_ALL != OWNER_ALL:  # it was opened for what had to go
                self._standing[step.path] = step.old
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return "not empty: something appeared in it"
            raise
        self._made_room(number, step.path)
        return None

    def _chmod(self, number: int, step: Step) -> str | None:
        assert step.old is not None and step.new is not None and step.new.mode is not None
        if step.new.kind == "dir":
            with self._opened_dir(step.path) as fd:
                self._set_mode(fd, step.new.mode)
            return None
        at, name = self.beneath.parent(step.path)
        with self.disk.opened(name, READ, at=at) as fd:
            mode = self.disk.fstat(fd).st_mode
            if not stat.S_ISREG(mode) or stat.S_IMODE(mode) != step.old.mode:
                return "changed since"
            if _hash(self.disk, fd) != step.old.oid:  # it may be a name of a file elsewhere by now
                return "changed since"
            if self.disk.fstat(fd).st_nlink == 1:
                self._set_mode(fd, step.new.mode)
                return None
            self.disk.seek_start(fd)
            data = self.disk.read_all(fd)
        return self._chmod_of_its_own(number, step, data)

    def _set_mode(self, fd: int, mode: int) -> None:
        self.disk.chmod(fd, mode)
        self._sync_alone(fd)

    def _sync_alone(self, fd: int) -> None:
        """What the sync of the directory above leaves out."""
        if not (self._has_journal or self._is_synced_whole):
            self.disk.fsync(fd)

    def _chmod_of_its_own(self, number: int, step: Step, data: bytes) -> str | None:
        """A file with several names has one mode for all of them, also for those outside the root
        or in no step: this name gets a file of its own, swapped in like any other content."""
        self._stage_one(number, step, data, sync=True)
        return self._replace(number, step)

    # What made room for something that did not come

    def _made_room(self, number: int, path: RelPath) -> None:
        self._room.setdefault(self._place_of(path), []).append(number)

    def _place_of(self, path: RelPath) -> RelPath:
        """What is to come here, or above, in the place of what is there; else the path itself."""
        found = nearest_in(self._places, path)
        return path if found is None else found

    def _put_back(self, place: RelPath) -> None:
        """The last removed first; whatever has a name by now keeps it."""
        for number in reversed(self._room.pop(place, [])):
            path = self.steps[number].path
            self.beneath.forget()
            try:
                self._bring_back(number, path)
            except FileExistsError:
                continue
            except OSError as error:
                self.conflicts.append(Left(path, f"could not be put back: {_trouble(error)}"))
            else:
                if path != place:  # of which it is said why it could not be brought
                    reason = f"put back, as {show_path(place)} could not be brought"
                    self.conflicts.append(Left(path, reason))

    def _bring_back(self, number: int, path: RelPath) -> None:
        old = self.steps[number].old
        assert old is not None
        if old.kind != "dir":
            at, name = self.beneath.parent(path)
            self.disk.rename_new(name_of(number), name, self.staging.old, at)
        elif self._make_dir(path):
            self._standing[path] = old

    def _close_standing(self) -> None:
        """Deepest first: what is closed may not let anybody in."""
        for path, node in sorted(self._standing.items(), reverse=True):
            trouble = self._try(self._chmod, 0, Step("chmod", path, node, node))
            if trouble is not None:
                self.conflicts.append(Left(path, trouble))
        self._standing.clear()

    @contextmanager
    def _opened_dir(self, path: RelPath) -> Iterator[int]:
        if path == ROOT:
            yield self.beneath.fd
            return
        at, name = self.beneath.parent(path)
        with self.disk.opened(name, DIRECTORY, at=at) as fd:
            yield fd

    def _is_kind(self, at: int, name: bytes, node: Node) -> bool:
        """Cheap, before anything moves: the certain look comes when the file is out of reach."""
        try:
            mode = self.disk.lstat(name, at).st_mode
        except FileNotFoundError:
            return False
        return stat.S_ISLNK(mode) if node.kind == "link" else stat.S_ISREG(mode)

    def _is_still(self, at: int, name: bytes, node: Node) -> bool:
        """Whether a displaced file is what the safety snapshot holds, with no writer left.

        What cannot be read as that (a directory that was swapped in, say) is something else.
        """
        try:
            if node.kind == "link":
                return hash_object("blob", self.disk.readlink(name, at)) == node.oid
            with self.disk.opened(name, READ, at=at) as fd:
                if has_writer(self.disk, fd):
                    return False
                info = self.disk.fstat(fd)
                return stat.S_IMODE(info.st_mode) == node.mode and _hash(self.disk, fd) == node.oid
        except OSError:
            return False

    @cached_property
    def _has_journal(self) -> bool:
        """Whether the sync of a directory makes modes and links in it durable as well."""
        return self.disk.keeps_order([os.fsdecode(self.beneath.root)])

    @cached_property
    def _touched(self) -> set[RelPath]:
        return {RelPath(step.path.rpartition(b"/")[0]) for step in self.steps}

    @cached_property
    def _is_synced_whole(self) -> bool:
        """In the end, in the place of many syncs; and for a link, which cannot be synced alone."""
        if self._has_journal:
            return len(self._touched) >= SYNC_EACH_BELOW
        modes = sum(step.action == "chmod" for step in self.steps)
        return len(self._touched) + modes >= SYNC_EACH_BELOW or any(map(_brings_link, self.steps))

    def _sync_touched(self) -> None:
        if self._is_synced_whole:
            self.disk.sync_fs(self.beneath.fd)
            return
        self.beneath.forget()
        for path in self._touched:
            try:
                self.disk.fsync(self.beneath.dir(path))
            except OSError as error:
                if error.errno not in GONE:  # removed by a later step
                    raise


def _brings_link(step: Step) -> bool:
    return step.action in BRINGING and step.new is not None and step.new.kind == "link"


def _content(step: Step, read_blob: ReadBlob) -> bytes:
    assert step.new is not None and step.new.oid is not None
    return read_blob(step.new.oid)


def _some_together(contents: Iterable[Bringing]) -> Iterator[list[Bringing]]:
    some: list[Bringing] = []
    size = 0
    for one in contents:
        some.append(one)
        size += len(one[2])
        if len(some) == TOGETHER or size >= TOGETHER_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


def _hash(disk: Disk, fd: int) -> Oid:
    size = disk.fstat(fd).st_size
    digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    while part := disk.read(fd, min(CHUNK, size + 1)):  # room that is not needed takes time as well
        digest.update(part)
    return Oid(digest.digest())


def _trouble(error: OSError) -> str:
    if error.errno == errno.EXDEV:
        return "lies on another file system"
    if error.errno in GONE:
        return "its directory is not there any more"
    return (error.strerror or "could not be changed").lower()
