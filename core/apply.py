"""Carries out the steps of a plan in a user's tree: staged, swapped in, deletions last.

Order of operations, and what is true if the process dies after each:
1. journal written, durably: the tree is untouched; the next command discards the transaction
   (and, if it was to finish a killed one, begins it anew);
2. staging directory made inside the root, every new content written there and synced: as after 1;
3. the marker `applying` made durable: from here on the next command finishes the rollback;
4. steps, each one rename: a path is in its old or its new state, and what was displaced lies in
   staging, where it stays until the store is known to hold it;
5. touched directories synced; the result is recorded as a snapshot (by the caller);
6. staging emptied: bytes that the store does not hold are stored first;
7. journal removed: done. A marker without a journal means nothing.

No byte is ever unlinked, truncated or overwritten in place. Whatever turns out not to be what the
plan expected goes back to where it was and is reported as a conflict. So does what made room for
something that then could not be brought: directories are made again, topmost first, and the files
come back out of staging, each by one rename. Who dies meanwhile has died in 4: what is back already
is in its old state, the rest lies in staging, and the next command finishes the rollback.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import itertools
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .beneath import Beneath
from .disk import CHUNK, DIRECTORY, GONE, UNSUPPORTED, Disk
from .errors import Damaged
from .model import ROOT, Oid, RelPath, is_within, join, parents, show_path
from .objects import hash_object
from .plan import OWNER_ALL, Left, Node, ReadBlob, Step, decode_step, encode_step
from .rules import STAGING_PREFIX

SYNC_EACH_BELOW = 32
BRINGING = ("mkdir", "create", "replace")
NEW, OLD = b"new", b"old"
READ = os.O_RDONLY | os.O_NONBLOCK

TX = re.compile(r"[0-9a-f]{16}")
NO_JOURNAL = (*(ValueError, KeyError, TypeError, IndexError), OverflowError, RecursionError)

Displaced = dict[RelPath, tuple[int, bytes]]
"""By path what stat says of its mode, and the content."""


@dataclass(frozen=True)
class Journal:
    """What the next process must know of a rollback that this one may not finish."""

    tx: str
    root: tuple[int, int]
    target: Oid
    before: Oid
    steps: tuple[Step, ...]
    extra: dict[str, Any]
    resumed: bool = False
    """It finishes an earlier one, so that taking it back would leave that one half done."""
    group: str = ""
    """What several workspaces' rollbacks have in common that are to be done all, or not at all."""

    def encode(self) -> bytes:
        doc = {
            "journal": 1,
            "tx": self.tx,
            "root": list(self.root),
            "target": self.target.hex(),
            "before": self.before.hex(),
            "steps": [encode_step(step) for step in self.steps],
            "extra": self.extra,
            "resumed": self.resumed,
            "group": self.group,
        }
        return json.dumps(doc).encode()


def decode_journal(data: bytes) -> Journal:
    """ValueError and its like for whatever this version has not written."""
    doc = json.loads(data)
    if not TX.fullmatch(doc["tx"]) or not isinstance(doc["extra"]["title"], str):
        raise ValueError("no rollback of ours")
    group = doc.get("group", "")
    if group and not TX.fullmatch(group):
        raise ValueError("no group of ours")
    return Journal(
        tx=doc["tx"],
        root=(int(doc["root"][0]), int(doc["root"][1])),
        target=Oid(bytes.fromhex(doc["target"])),
        before=Oid(bytes.fromhex(doc["before"])),
        steps=tuple(decode_step(step) for step in doc["steps"]),
        extra=doc["extra"],
        resumed=bool(doc.get("resumed")),
        group=group,
    )


class JournalFile:
    """Owns the two files that say whether a workspace has an unfinished rollback; a group's marker
    counts for all whose journals name it."""

    def __init__(self, disk: Disk, base: str, workspace: str) -> None:
        self.disk = disk
        self.directory = f"{base}/turnmark/journal"
        self.path = f"{self.directory}/{workspace}.json"
        self.marker = f"{self.directory}/{workspace}.applying"

    def read(self) -> Journal | None:
        """The unfinished rollback; a journal that cannot be read is put aside, never obeyed."""
        try:
            return decode_journal(self.disk.read_file(self.path))
        except FileNotFoundError:
            return None
        except NO_JOURNAL:
            self.disk.rename(self.path, self.path + ".damaged")
            return None

    def begin(self, journal: Journal) -> None:
        """A resumed one takes the marker over: at no moment is nothing to be finished."""
        self._tidy()
        if not journal.resumed:
            self._unmark()
        self.disk.replace(self.path, journal.encode())
        if journal.resumed:
            self._unmark()

    def _tidy(self) -> None:
        """What killed processes left that means nothing: half a journal, the marker of a group
        whose last journal is gone. Nobody else writes this workspace's journal now."""
        with self.disk.scandir(self.directory) as found:
            names = [entry.name for entry in found]
        own = os.path.basename(self.path) + "."
        for name in names:
            group = name.removesuffix(".group")
            unfinished = name.startswith(own) and name.endswith(".new")
            if unfinished or (group != name and not self._is_named(group)):
                self.disk.discard(f"{self.directory}/{name}")

    def _unmark(self) -> None:
        if self.disk.exists(self.marker):
            self.disk.unlink(self.marker)
            self.disk.sync_dir(self.directory)

    def mark_applying(self) -> None:
        self.disk.create(self.marker, b"", sync=True)
        self.disk.sync_dir(self.directory)

    def is_applying(self, record: Journal) -> bool:
        if record.group and self.disk.exists(self._marker_of(record.group)):
            return True
        return self.disk.exists(self.marker)

    def finish(self, group: str = "") -> None:
        """The last of a group takes the group's marker with it."""
        self.disk.unlink(self.path)
        self.disk.sync_dir(self.directory)
        self.disk.discard(self.marker)
        if group and not self._is_named(group):
            self.disk.discard(self._marker_of(group))

    # A group: what its marker says, all journals that name it say

    def mark_group(self, group: str) -> None:
        self.disk.create(self._marker_of(group), b"", sync=True)
        self.disk.sync_dir(self.directory)

    def unmark_group(self, group: str) -> None:
        self.disk.discard(self._marker_of(group))
        self.disk.sync_dir(self.directory)

    def _marker_of(self, group: str) -> str:
        return f"{self.directory}/{group}.group"

    def _is_named(self, group: str) -> bool:
        with self.disk.scandir(self.directory) as found:
            names = [entry.name for entry in found if entry.name.endswith(".json")]
        return any(self._names(f"{self.directory}/{name}", group) for name in names)

    def _names(self, path: str, group: str) -> bool:
        """One that goes away meanwhile is finished; of one that is damaged nothing is known."""
        try:
            return decode_journal(self.disk.read_file(path)).group == group
        except (FileNotFoundError, *NO_JOURNAL):
            return False


class Staging:
    """Owns the hidden directory in which new contents wait and displaced ones are kept."""

    def __init__(self, beneath: Beneath, tx: str) -> None:
        self.disk = beneath.disk
        self.beneath = beneath
        self.name = STAGING_PREFIX + tx.encode()
        self.fd = -1
        self._parts: dict[bytes, int] = {}

    @property
    def new(self) -> int:
        return self._parts[NEW]

    @property
    def old(self) -> int:
        return self._parts[OLD]

    def make(self) -> None:
        with self._writable_root():
            self.disk.mkdir(self.name, 0o700, self.beneath.fd)
        self.fd = self.disk.open(self.name, DIRECTORY, at=self.beneath.fd)
        for part in (NEW, OLD):
            self.disk.mkdir(part, 0o700, self.fd)
            self._parts[part] = self.disk.open(part, DIRECTORY, at=self.fd)

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
        for part in (NEW, OLD):
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

    def remove(self, names: Sequence[tuple[int, bytes]]) -> None:
        """Unlinks the names, then plain rmdir: what is not empty stays for the next command."""
        self.disk.unlink_all(names)
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
        self.staging.make()
        staged = [(n, s) for n, s in enumerate(self.steps) if s.action in ("create", "replace")]
        each = len(staged) < SYNC_EACH_BELOW
        for number, step in staged:
            assert step.new is not None and step.new.oid is not None
            self._stage_one(_name(number), step, read_blob(step.new.oid), sync=each)
        if not each:
            self.disk.sync_fs(self.staging.fd)

    def _stage_one(self, name: bytes, step: Step, data: bytes, *, sync: bool) -> None:
        assert step.new is not None
        if step.new.kind == "link":
            if not data or b"\0" in data:
                raise Damaged(f"The link {show_path(step.path)} of the point leads nowhere.")
            self.disk.symlink(data, name, self.staging.new)
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with self.disk.opened(name, flags, 0o600, self.staging.new) as fd:
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
        return True

    def _create(self, number: int, step: Step) -> str | None:
        at, name = self.beneath.parent(step.path)
        try:
            self.disk.rename_new(_name(number), name, self.staging.new, at)
        except FileExistsError:
            return "appeared since"
        return None

    def _replace(self, number: int, step: Step) -> str | None:
        assert step.old is not None and step.new is not None
        at, name = self.beneath.parent(step.path)
        if not self._is_kind(at, name, step.old):
            return "changed since"
        try:
            self.disk.exchange(_name(number), name, self.staging.new, at)
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            return self._replace_in_two(number, step, at, name)
        if self._is_still(self.staging.new, _name(number), step.old):
            return None
        self.disk.exchange(_name(number), name, self.staging.new, at)
        if not self._is_still(self.staging.new, _name(number), step.new):
            # meanwhile somebody put a third content there: the newest one belongs into the tree
            self.disk.exchange(_name(number), name, self.staging.new, at)
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
        self.disk.rename_new(name, _name(number), at, self.staging.old)
        self._made_room(number, step.path)
        if self._is_still(self.staging.old, _name(number), step.old):
            return None
        try:
            self.disk.rename_new(_name(number), name, self.staging.old, at)
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
                self.disk.chmod(fd, step.new.mode)
            return None
        at, name = self.beneath.parent(step.path)
        with self.disk.opened(name, READ, at=at) as fd:
            mode = self.disk.fstat(fd).st_mode
            if not stat.S_ISREG(mode) or stat.S_IMODE(mode) != step.old.mode:
                return "changed since"
            if _hash(self.disk, fd) != step.old.oid:  # it may be a name of a file elsewhere by now
                return "changed since"
            if self.disk.fstat(fd).st_nlink == 1:
                self.disk.chmod(fd, step.new.mode)
                return None
            self.disk.seek_start(fd)
            data = self.disk.read_all(fd)
        return self._chmod_of_its_own(number, step, data)

    def _chmod_of_its_own(self, number: int, step: Step, data: bytes) -> str | None:
        """A file with several names has one mode for all of them, also for those outside the root
        or in no step: this name gets a file of its own, swapped in like any other content."""
        self._stage_one(_name(number), step, data, sync=True)
        return self._replace(number, step)

    # What made room for something that did not come

    def _made_room(self, number: int, path: RelPath) -> None:
        self._room.setdefault(self._place_of(path), []).append(number)

    def _place_of(self, path: RelPath) -> RelPath:
        """What is to come here, or above, in the place of what is there; else the path itself."""
        return next((p for p in (path, *parents(path)) if p in self._places), path)

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
            self.disk.rename_new(_name(number), name, self.staging.old, at)
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
                if not _without_writers(self.disk, fd):
                    return False
                info = self.disk.fstat(fd)
                return stat.S_IMODE(info.st_mode) == node.mode and _hash(self.disk, fd) == node.oid
        except OSError:
            return False

    def _sync_touched(self) -> None:
        touched = {RelPath(step.path.rpartition(b"/")[0]) for step in self.steps}
        if len(touched) >= SYNC_EACH_BELOW:
            self.disk.sync_fs(self.beneath.fd)
            return
        self.beneath.forget()
        for path in touched:
            try:
                self.disk.fsync(self.beneath.dir(path))
            except OSError as error:
                if error.errno not in GONE:  # removed by a later step
                    raise


# Emptying staging


def give_back(staging: Staging, steps: tuple[Step, ...], *, strays: bool = False) -> list[Left]:
    """Puts what is neither file nor link, or is still being written, beside where it was taken.

    It got into staging because somebody swapped it in while a step was made, and could not go
    back because something else has its name by now. What its writer adds later must have a name.
    With strays, all that is no step's goes back.
    """
    paths = {_name(number): step.path for number, step in enumerate(steps)}
    found: list[Left] = []
    for at, name in staging.names():
        mode = staging.disk.lstat(name, at).st_mode
        plain = stat.S_ISLNK(mode) or (
            stat.S_ISREG(mode) and not _has_writer(staging.disk, at, name)
        )
        if not plain or (strays and name not in paths):
            path = paths.get(name, RelPath(b"displaced"))
            beside = _put_beside(staging, at, name, path)
            found.append(Left(path, f"swapped while rolling back; now {show_path(beside)}"))
    return found


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


def unknown_in(staging: Staging, steps: tuple[Step, ...]) -> Displaced:
    """What lies in staging that neither snapshot of the rollback holds, by where it came from."""
    paths = {_name(number): step.path for number, step in enumerate(steps)}
    known = {node.oid for step in steps for node in (step.old, step.new) if node is not None}
    unknown: Displaced = {}
    for at, name in staging.names():
        content = _content(staging.disk, at, name)
        if content is not None and hash_object("blob", content[1]) not in known:
            unknown[_free(paths.get(name, RelPath(b"displaced")), unknown)] = content
    return unknown


def _free(path: RelPath, taken: Iterable[RelPath]) -> RelPath:
    """The path, or one like it, where a tree that holds what is taken has room for a file."""
    wanted = path
    for number in itertools.count(1):
        if not any(is_within(path, one) or is_within(one, path) for one in taken):
            break
        path = join(RelPath(b"displaced-%d" % number), wanted)
    return path


def _content(disk: Disk, at: int, name: bytes) -> tuple[int, bytes] | None:
    mode = disk.lstat(name, at).st_mode
    if stat.S_ISLNK(mode):
        return mode, disk.readlink(name, at)
    if not stat.S_ISREG(mode):
        return None
    with disk.opened(name, READ, at=at) as fd:
        return mode, disk.read_all(fd)


def _without_writers(disk: Disk, fd: int) -> bool:
    """Whether a read lease is granted; where leases are not to be had, nothing can be proved."""
    try:
        disk.lease(fd, fcntl.F_RDLCK)
    except OSError as error:
        return error.errno != errno.EAGAIN
    except AttributeError:  # no leases on this system
        return True
    disk.lease(fd, fcntl.F_UNLCK)
    return True


def _has_writer(disk: Disk, at: int, name: bytes) -> bool:
    """Also where that cannot be told."""
    try:
        with disk.opened(name, READ, at=at) as fd:
            return not _without_writers(disk, fd)
    except PermissionError:
        return True


def _hash(disk: Disk, fd: int) -> Oid:
    size = disk.fstat(fd).st_size
    digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    while part := disk.read(fd, CHUNK):
        digest.update(part)
    return Oid(digest.digest())


def _name(number: int) -> bytes:
    return b"%d" % number


def _trouble(error: OSError) -> str:
    if error.errno == errno.EXDEV:
        return "lies on another file system"
    if error.errno in GONE:
        return "its directory is not there any more"
    return (error.strerror or "could not be changed").lower()
