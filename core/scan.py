"""The tree on disk becomes records of directories and git objects.

Everything is looked at by descriptor below the root. What has not changed since its record was
made is not read; what cannot be captured becomes a gap. Nothing is written into the workspace, and
what was seen is not remembered here: the caller accepts it once it is safely stored. At a large
tree a scout, a process of its own, looks from the far end.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from array import array
from bisect import insort
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from .about import Usual, note, read_note
from .beneath import Beneath
from .disk import GONE
from .model import (
    EMPTY_TREE,
    EXEC,
    FILE,
    LINK,
    ROOT,
    TREE,
    Entry,
    GapReason,
    Oid,
    RelPath,
    join,
    parents,
)
from .objects import (
    NO_NAMES,
    Kind,
    child_in,
    encode_tree,
    hash_object,
    parse_tree,
)
from .reading import READ, RECENT_NS, NotAFile, is_fresh, read_stable
from .rules import STAGING_PREFIX, DirRules, RuleSet
from .scout import Scout, Vouch, can_be_sent
from .worktree import Dir, WorkTree

WIDTH = 5
"""Numbers kept of a name's stat: mode, inode, size, modification and change time."""
A_DIRECTORY = (stat.S_IFDIR, 0, 0, 0, 0)
"""All that is kept of one, which spares its stat: whoever enters it sees its mode and contents."""
DOUBT = -(1 << 63)
"""As a modification time: never equal to a real one, so that the name is looked at again."""
MASK = (1 << 63) - 1
GITIGNORE = b".gitignore"
MAPPED = (".db", ".sqlite", ".sqlite3", ".db3", "-shm", "-wal", ".mdb", ".lmdb")
"""Files that programs write through memory maps, of which events tell late or never."""
LAST_OF_MAPPED = frozenset(ending[-1] for ending in MAPPED)
"""Asked first of every name: most end otherwise."""
GITIGNORE_CAP = 1 << 20
SPLICE_MOST = 1 << 20
"""Bytes to go over: each new content in a directory is looked for in the whole of its tree."""
SCOUT_ABOVE = 5_000
"""So many files take longer to look at than a process takes to start."""
NO_ACCESS = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.EIO, errno.EBADMSG, errno.ESTALE, errno.ETIMEDOUT),
        errno.EAGAIN,  # another process holds a lease for writing
        *(getattr(errno, name, errno.EIO) for name in ("EUCLEAN", "ENOKEY", "EREMOTEIO")),
    }
)
SWAPPED = frozenset({errno.ELOOP, errno.ENOTDIR})
"""Something else took the place of a name: it was never absent, and is not known."""

Changes = dict[RelPath, Dir | None]
Listing = tuple[list[str], "array[int]"]


class Sink(Protocol):
    """Where new objects go."""

    def add(self, kind: Kind, data: bytes, oid: Oid | None = None) -> Oid: ...

    def holds(self, oid: Oid) -> bool: ...


@dataclass(slots=True)
class Frame:
    """One directory while it is looked at."""

    path: RelPath
    rules: DirRules
    old: Dir | None
    mode: int
    names: list[str]
    stats: array[int]
    left_out: GapReason | None = None
    same: bool = False
    spliced: bool = False
    """`old` is what was recorded, but for the new contents of files that were read since."""
    entries: dict[bytes, Entry] = field(default_factory=dict)
    perms: dict[bytes, int] = field(default_factory=dict)
    gaps: dict[bytes, GapReason] = field(default_factory=dict)
    inside: set[bytes] = field(default_factory=set)
    todo: list[bytes] = field(default_factory=list)
    before: dict[bytes, Entry] = field(default_factory=dict)
    known: dict[str, int] = field(default_factory=dict)
    known_stats: array[int] = field(default_factory=lambda: array("q"))


class Outcome(NamedTuple):
    """What a directory turned out to be, for the one above it."""

    path: RelPath
    old: Dir | None
    left_out: GapReason | None
    found: Dir


class Task(NamedTuple):
    """What is to be done in a directory: names to look at, and those whose new trees are known."""

    names: set[bytes]
    below: set[bytes]


Done = dict[RelPath, Outcome]


@dataclass(slots=True)
class Step:
    """A directory on a scout's way: what is left of it, and whether all so far is as on record."""

    path: RelPath
    rules: DirRules
    names: list[bytes]
    same: bool = True


class Look:
    """Owns what one look at a workspace finds: `changes`, and how many paths they touch."""

    def __init__(self, tree: WorkTree, beneath: Beneath, sink: Sink, rules: RuleSet) -> None:
        self.tree = tree
        self.beneath = beneath
        self.disk = beneath.disk
        self.sink = sink
        self.ruleset = rules
        self.usual = tree.usual or Usual()
        self.changes: Changes = {}
        self.changed = 0
        self.files = tree.files
        self.seen_modes: Counter[tuple[int, int]] = Counter()
        self.dirs_seen = 0
        self.files_seen = 0
        self._rules: dict[RelPath, DirRules] = {}
        self.always: set[RelPath] = set()
        self.complete = False
        self._scout: Scout | None = None

    # The whole tree

    def everything(self) -> None:
        """Looks at every name below the root."""
        self.complete = True
        self.tree.load_all()
        self.beneath.forget()
        frame = self._enter_root()
        self._scout = self._send_scout(frame)
        try:
            self._visit(frame)
        finally:
            if self._scout is not None:
                self._scout.dismiss()
        if self.tree.usual is None:
            self._settle_usual()

    def _enter_root(self) -> Frame:
        fd = self.beneath.fd
        listed = self._list(fd, ROOT)
        rules = self._root_rules(self._listed_gitignore(fd, listed))
        return self._enter(ROOT, fd, listed, rules, None)

    def _root_rules(self, gitignore: bytes | None) -> DirRules:
        kept = self.tree.rules
        if kept is None or not kept.is_for(self.ruleset, gitignore):
            kept = self.tree.rules = DirRules.root(self.ruleset, gitignore)
        return kept

    def _listed_gitignore(self, fd: int, listed: Listing) -> bytes | None:
        """Most directories have none, and a failing open costs more than a look at the names."""
        return self._gitignore(fd) if ".gitignore" in listed[0] else None

    def _visit(self, top: Frame) -> Dir:
        """Depth first without recursion: trees may be deeper than Python's stack."""
        stack = [top]
        while True:
            frame = stack[-1]
            if frame.todo:
                child = self._enter_child(frame, frame.todo.pop())
                if child is not None:
                    stack.append(child)
                continue
            found = self._finish(frame)
            stack.pop()
            if not stack:
                return found
            self._take(stack[-1], self._outcome(frame, found))

    def _enter_child(self, frame: Frame, name: bytes) -> Frame | None:
        """None where nothing is left to look at, and the parent knows."""
        path = join(frame.path, name)
        reason = _reason_through(frame.rules, name)
        if (known := self._vouched(frame, path)) is not None:
            self._take(frame, Outcome(path, known, reason, known))
            return None
        try:
            fd = self.beneath.dir(path)
            listed = self._list(fd, path)
            rules = frame.rules.child(name, self._listed_gitignore(fd, listed))
            same = self._same_leaf(path, fd, listed, rules)
            if same is None:
                return self._enter(path, fd, listed, rules, reason)
            self._take(frame, Outcome(path, same, reason, same))
        except OSError as error:
            self._cannot_enter(frame, name, error)
        return None

    def _cannot_enter(self, frame: Frame, name: bytes, error: OSError) -> None:
        """Unreadable is a gap, never a deletion; gone or swapped meanwhile is looked at again."""
        if error.errno in NO_ACCESS:
            self._gap(frame, name, "unreadable")
        elif error.errno in SWAPPED:
            self._gap(frame, name, "torn")
        elif error.errno not in GONE:
            raise error
        self._doubt(frame, name)
        self._drop_child(frame, name)

    def _enter(
        self, path: RelPath, fd: int, listed: Listing, rules: DirRules, left_out: GapReason | None
    ) -> Frame:
        mode = stat.S_IMODE(self.disk.fstat(fd).st_mode)
        names, stats = listed
        self.dirs_seen += 1
        self.files_seen += len(names)
        old = self.tree.get(path)
        frame = Frame(path, rules, old, mode, names, stats, left_out)
        if old is not None and self.tree.trusted and _is_same(old, mode, rules, listed):
            frame.same = True
            frame.todo = old.entered()[::-1]
        elif (spliced := self._with_new_contents(frame, listed)) is not None:
            frame.old, frame.same, frame.spliced = spliced, True, True
            frame.stats = array("q", spliced.stats)  # with its doubts, should it be unfolded
            frame.todo = spliced.entered()[::-1]
        else:
            self._look_at_all(frame, fd)
        return frame

    def _with_new_contents(self, frame: Frame, listed: Listing) -> Dir | None:
        """The record of a directory in which only files have other contents than on record.

        None where more is new, or may be: then every name is looked at by itself.
        """
        old, rules = frame.old, frame.rules
        if old is None or not old.raw or not self.tree.trusted or self.tree.usual is None:
            return None
        if rules.fingerprint != old.rules or os.fsencode("\0".join(listed[0])) != old.names:
            return None
        was, now = array("q", old.stats), listed[1]
        differing = {
            os.fsencode(name)
            for name, at in zip(listed[0], range(0, len(now), WIDTH), strict=True)
            if was[at : at + WIDTH] != now[at : at + WIDTH]
        }
        if len(differing) * len(old.raw) > SPLICE_MOST:
            return None
        try:
            raw, stats = self._with_files(frame.path, rules, old, old.raw, differing)
        except (OSError, NotAFile):
            return None
        if raw is None:
            return None
        return old._replace(oid=hash_object("tree", raw), raw=raw, stats=stats)

    def _same_leaf(self, path: RelPath, fd: int, listed: Listing, rules: DirRules) -> Dir | None:
        """What is on record of a directory without directories, if it still is so: most are."""
        old = self.tree.get(path)
        if old is None or old.subdirs or not self.tree.trusted:
            return None
        if not _is_same(old, stat.S_IMODE(self.disk.fstat(fd).st_mode), rules, listed):
            return None
        self.dirs_seen += 1
        self.files_seen += len(listed[0])
        return old

    # The far end of a large tree, by another process

    def _send_scout(self, root: Frame) -> Scout | None:
        """The look begins with the first name of each directory, the scout with the last."""
        old = root.old
        if old is None or not self.tree.trusted or self.tree.files < SCOUT_ABOVE:
            return None
        if root.rules.fingerprint != old.rules or not can_be_sent(self.tree.files):
            return None
        top = Step(ROOT, root.rules, old.entered())
        try:
            return Scout(self.tree.paths(), self.beneath.fd, lambda vouch: self._walk(top, vouch))
        except OSError:  # no process more for this user, or no room for one
            return None

    def _walk(self, top: Step, vouch: Vouch) -> None:
        waiting = [top]
        while waiting:
            step = waiting[-1]
            if step.names:
                waiting.append(self._step(step, step.names.pop()))
                continue
            waiting.pop()
            if not waiting:
                return
            if step.same:
                vouch(step.path)
            else:
                waiting[-1].same = False

    def _step(self, above: Step, name: bytes) -> Step:
        """What the look would have to take note of is left to it."""
        path = join(above.path, name)
        old = self.tree.get(path)
        self.always.clear()
        try:
            fd = self.beneath.dir(path)
            listed = self._list(fd, path)
            rules = above.rules.child(name, self._listed_gitignore(fd, listed))
            mode = stat.S_IMODE(self.disk.fstat(fd).st_mode)
        except OSError:
            return Step(path, above.rules, [], same=False)
        same = old is not None and not self.always and _is_same(old, mode, rules, listed)
        return Step(path, rules, old.entered() if old else [], same)

    def _vouched(self, frame: Frame, path: RelPath) -> Dir | None:
        """What is on record of a directory and of all below it, if the scout found it to be so."""
        if self._scout is None or not self._scout.vouches_for(path):
            return None
        above = frame.old  # under other rules than those on record, it would not be what it was
        same = above is not None and above.rules == frame.rules.fingerprint
        return self.tree.get(path) if same else None

    def _list(self, fd: int, path: RelPath) -> Listing:
        """Names and stats in the order of the directory, which stays the same while it does.

        Notes what file system events may not tell of: files with several names, and databases.
        """
        names: list[str] = []
        numbers: list[int] = []
        with self.disk.scandir(fd) as found:
            for item in found:
                name = item.name
                if item.is_dir(follow_symlinks=False):  # as the listing says: costs no call
                    names.append(name)
                    numbers += A_DIRECTORY
                    continue
                try:
                    info = item.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                names.append(name)
                mode, _, _, links, _, _, size, _, _, _ = info
                if mode & 0o170000 == 0o040000:  # only just now
                    numbers += A_DIRECTORY
                    continue
                numbers += mode, info.st_ino & MASK, size, info.st_mtime_ns, info.st_ctime_ns
                if links > 1 or (name[-1] in LAST_OF_MAPPED and name.endswith(MAPPED)):
                    self._note_always(path, name, info)
        return names, array("q", numbers)

    def _note_always(self, path: RelPath, name: str, info: os.stat_result) -> None:
        if (info.st_nlink > 1 or name.endswith(MAPPED)) and stat.S_ISREG(info.st_mode):
            self.always.add(join(path, os.fsencode(name)))

    def _gitignore(self, fd: int) -> bytes | None:
        """The rules file of a directory; a link, a directory or a FIFO of that name is none."""
        if not self.ruleset.gitignore:
            return None
        try:
            file = self.disk.open_quietly(GITIGNORE, READ, fd)
        except OSError as error:
            if error.errno in GONE or error.errno in NO_ACCESS or error.errno == errno.ENXIO:
                return None
            raise
        try:
            if not stat.S_ISREG(self.disk.fstat(file).st_mode):
                return None
            return self.disk.read_all(file, GITIGNORE_CAP)
        finally:
            self.disk.close(file)

    # One directory whose names must be looked at one by one

    def _look_at_all(self, frame: Frame, fd: int) -> None:
        self._recall(frame)
        for place, name in enumerate(frame.names):
            self._look_at(frame, fd, os.fsencode(name), name, place * WIDTH)
        if frame.old is not None:
            for gone in set(frame.old.entered()) - frame.inside:
                self._forget(join(frame.path, gone))
        frame.todo = sorted(frame.inside, reverse=True)

    def _recall(self, frame: Frame) -> None:
        """Unpacks the record, if there is one, for comparison name by name."""
        old = frame.old
        if old is None:
            return
        frame.before = parse_tree(old.raw)
        frame.known_stats.frombytes(old.stats)
        names = os.fsdecode(old.names).split("\0") if old.names else []
        frame.known = {name: place * WIDTH for place, name in enumerate(names)}

    def _look_at(self, frame: Frame, fd: int, name: bytes, text: str, at: int) -> None:
        mode = frame.stats[at]
        kind = stat.S_IFMT(mode)
        if frame.path == ROOT and name.startswith(STAGING_PREFIX):
            return  # a rollback's own, and gone when it is done
        verdict = frame.rules.verdict(name, kind == stat.S_IFDIR)
        if verdict not in ("capture", "through"):
            frame.gaps[name] = verdict  # type: ignore[assignment]
        elif kind == stat.S_IFDIR:
            self._directory(frame, name)
        elif kind == stat.S_IFREG:
            self._file(frame, fd, name, text, at)
        elif kind == stat.S_IFLNK:
            self._link(frame, fd, name, text, at)
        else:
            frame.gaps[name] = "special"

    def _directory(self, frame: Frame, name: bytes) -> None:
        known = frame.old is not None and name in frame.old.entered()
        if not known and self._over_budget():
            self._gap(frame, name, "budget")
        else:
            frame.inside.add(name)

    def _over_budget(self) -> bool:
        return 0 < self.ruleset.max_files <= self.files

    def _file(self, frame: Frame, fd: int, name: bytes, text: str, at: int) -> None:
        cap = self.ruleset.max_file_size
        if 0 < cap < frame.stats[at + 2]:
            frame.gaps[name] = "oversize"
            return
        entry = self._still(frame, name, text, at)
        if entry is not None:
            self._capture(frame, name, _file_entry(frame.stats[at], entry.oid), frame.stats[at])
        elif self._over_budget() and name not in frame.before:
            self._gap(frame, name, "budget")
        else:
            self._read_file(frame, fd, name, at)

    def _still(self, frame: Frame, name: bytes, text: str, at: int) -> Entry | None:
        """The recorded entry, if the stat proves it and the store holds it."""
        known = frame.known.get(text)
        entry = frame.before.get(name)
        if known is None or entry is None or entry.mode == TREE:
            return None
        if frame.known_stats[known : known + WIDTH] != frame.stats[at : at + WIDTH]:
            return None
        return entry if self.tree.trusted or self.sink.holds(entry.oid) else None

    def _read_file(self, frame: Frame, fd: int, name: bytes, at: int) -> None:
        begun = time.time_ns()
        try:
            found = read_stable(self.disk, fd, name)
        except NotAFile:
            self._gap(frame, name, "special")
            self._doubt_at(frame, at)
            return
        except OSError as error:
            self._cannot_read(frame, name, at, error)
            return
        if 0 < self.ruleset.max_file_size < len(found.data):
            self._gap(frame, name, "oversize")
            self._doubt_at(frame, at)
            return
        _replace(frame.stats, at, found.stat)
        if found.torn:
            self._gap(frame, name, "torn")
        if found.held:
            self.always.add(join(frame.path, name))
        if found.torn or found.held or _may_be_stale(name, found.stat, begun):
            self._doubt_at(frame, at)
        oid = hash_object("blob", found.data)
        if self._is_new(frame, name, oid):
            self.sink.add("blob", found.data, oid)
        self._capture(frame, name, _file_entry(found.stat.st_mode, oid), found.stat.st_mode)

    def _is_new(self, frame: Frame, name: bytes, oid: Oid) -> bool:
        """False where the trusted record says that the store holds these very bytes."""
        old = frame.before.get(name)
        return not (self.tree.trusted and old is not None and old.oid == oid)

    def _cannot_read(self, frame: Frame, name: bytes, at: int, error: OSError) -> None:
        if error.errno in NO_ACCESS:
            self._gap(frame, name, "unreadable")
        elif error.errno in SWAPPED:
            self._gap(frame, name, "torn")
        elif error.errno == errno.ENXIO:
            self._gap(frame, name, "special")
        elif error.errno not in GONE:
            raise error
        self._doubt_at(frame, at)

    def _link(self, frame: Frame, fd: int, name: bytes, text: str, at: int) -> None:
        entry = self._still(frame, name, text, at)
        if entry is None or entry.mode != LINK:
            begun = time.time_ns()
            try:
                target = self.disk.readlink(name, fd)
            except OSError as error:
                if error.errno == errno.EINVAL:  # a link no more
                    self._gap(frame, name, "torn")
                    self._doubt_at(frame, at)
                else:
                    self._cannot_read(frame, name, at, error)
                return
            if is_fresh(frame.stats[at + 4], begun):
                self._doubt_at(frame, at)
            oid = hash_object("blob", target)
            if self._is_new(frame, name, oid):
                self.sink.add("blob", target, oid)
            entry = Entry(LINK, oid)
        self._capture(frame, name, entry, None)

    def _capture(self, frame: Frame, name: bytes, entry: Entry, mode: int | None) -> None:
        frame.entries[name] = entry
        self.files += name not in frame.before
        if mode is None:
            return
        perms = stat.S_IMODE(mode)
        self.seen_modes[(entry.mode, perms)] += 1
        if perms != self.usual.of(entry.mode):
            frame.perms[name] = perms
        else:
            frame.perms.pop(name, None)

    def _gap(self, frame: Frame, name: bytes, reason: GapReason) -> None:
        frame.gaps[name] = reason

    def _doubt(self, frame: Frame, name: bytes) -> None:
        text = os.fsdecode(name)
        if text in frame.names:
            self._doubt_at(frame, frame.names.index(text) * WIDTH)

    def _doubt_at(self, frame: Frame, at: int) -> None:
        frame.stats[at + 3] = DOUBT

    # Putting a directory together

    def _unfold(self, frame: Frame) -> None:
        """Gives a frame that was taken to be unchanged its contents, since it is not after all."""
        old = frame.old
        assert old is not None
        frame.same = False
        frame.before = frame.before or parse_tree(old.raw)
        frame.entries = dict(frame.before)
        frame.perms, frame.gaps = read_note(old.note)
        frame.inside = set(old.entered())

    def _take(self, frame: Frame, child: Outcome) -> None:
        """Enters what a child turned out to be into its parent."""
        name, found = child.path.rpartition(b"/")[2], child.found
        if child.left_out is not None and not found.raw:
            self._forget(child.path)
            if frame.same:
                self._unfold(frame)
            self._doubt(frame, name)  # what it may hold one day is found by looking in again
            frame.inside.discard(name)
            frame.entries.pop(name, None)
            frame.gaps[name] = child.left_out
            return
        if frame.same:
            if child.old is not None and found.oid == child.old.oid:
                return
            self._unfold(frame)
        frame.inside.add(name)
        if found.raw:
            frame.entries[name] = Entry(TREE, found.oid)
        else:
            frame.entries.pop(name, None)

    def _drop_child(self, frame: Frame, name: bytes) -> None:
        if frame.same:
            reasons = dict(frame.gaps)
            self._unfold(frame)
            frame.gaps.update(reasons)
        frame.inside.discard(name)
        frame.entries.pop(name, None)
        self._forget(join(frame.path, name))

    def _forget(self, path: RelPath) -> None:
        for gone in self._known_below(path):
            old = self.tree.get(gone)
            if old is None:
                del self.changes[gone]
            elif self.changes.get(gone, old) is not None:
                self.changes[gone] = None
                self.changed += old.files or not old.raw
                self.files -= old.files

    def _known_below(self, path: RelPath) -> set[RelPath]:
        """A directory and all below it that are on record or were seen in this look."""
        out: set[RelPath] = set()
        waiting = [path]
        while waiting:
            here = waiting.pop()
            if here in out:
                continue
            for found in (self.tree.get(here), self.changes.get(here)):
                if found is not None:
                    out.add(here)
                    waiting += [join(here, name) for name in found.entered()]
        return out

    def _finish(self, frame: Frame) -> Dir:
        old = frame.old
        if frame.same and old is not None:
            return self._finish_spliced(frame, old) if frame.spliced else old
        raw = encode_tree(frame.entries.items())
        oid = hash_object("tree", raw) if raw else EMPTY_TREE
        recorded = self.tree.get(frame.path)
        if raw and not (self.tree.trusted and recorded is not None and recorded.oid == oid):
            self.sink.add("tree", raw, oid)
        found = self._record(frame, raw, oid)
        self._count(frame, found)
        if found != recorded:
            self.changes[frame.path] = found
        return found

    def _finish_spliced(self, frame: Frame, found: Dir) -> Dir:
        recorded = self.tree.get(frame.path)
        if recorded is None or found.oid != recorded.oid:
            self.sink.add("tree", found.raw, found.oid)
        if found != recorded:
            self.changes[frame.path] = found
        return found

    def _outcome(self, frame: Frame, found: Dir) -> Outcome:
        return Outcome(frame.path, self.tree.get(frame.path), frame.left_out, found)

    def _record(self, frame: Frame, raw: bytes, oid: Oid) -> Dir:
        mode = frame.mode if frame.mode != self.usual.dir else None
        empty = not raw and frame.path != ROOT
        if frame.left_out is not None and not raw:
            mode, empty = None, False
        return Dir(
            mode=frame.mode,
            oid=oid,
            raw=raw,
            names=os.fsencode("\0".join(frame.names)),
            stats=frame.stats.tobytes(),
            note=note(frame.path, mode, empty, frame.perms, frame.gaps),
            rules=frame.rules.fingerprint,
            subdirs=b"\0".join(sorted(frame.inside)),
            files=sum(entry.mode != TREE for entry in frame.entries.values()),
            gaps=len(frame.gaps),
        )

    def _count(self, frame: Frame, found: Dir) -> None:
        """How many paths differ from the record: contents, kinds, modes, empty directories."""
        old = frame.old
        perms = read_note(old.note)[0] if old is not None and old.note else {}
        differ = frame.entries.items() ^ frame.before.items()
        for name in {name for name, _ in (*differ, *(perms.items() ^ frame.perms.items()))}:
            one, other = frame.before.get(name), frame.entries.get(name)
            if (one and one.mode == TREE) or (other and other.mode == TREE):
                self.changed += bool(one and other and one.mode != other.mode)
            else:
                self.changed += 1
        for name in frame.before.keys() - frame.entries.keys():
            self.files -= frame.before[name].mode != TREE
        if old is None:
            self.changed += not found.raw and frame.path != ROOT and not frame.left_out
        else:
            self.changed += old.mode != found.mode

    # Known dirty paths

    def some(self, paths: Iterable[RelPath]) -> None:
        """Looks at the given paths only, and at all that lies below those that are directories."""
        asked = _topmost({self._nearest_known(path) for path in paths})
        if ROOT in asked or self.tree.usual is None or not self.tree.trusted:
            self.everything()
            return
        self.beneath.forget()
        by_parent: dict[RelPath, set[bytes]] = {}
        for path in asked:
            parent, _, name = path.rpartition(b"/")
            by_parent.setdefault(RelPath(parent), set()).add(name)
        if not self._update(by_parent):
            self.changes, self.changed, self.files = {}, 0, self.tree.files
            self.everything()

    def _nearest_known(self, path: RelPath) -> RelPath:
        """The path, or what must be looked at in its place because its parent is not known."""
        if not NO_NAMES.isdisjoint(path.split(b"/")):  # whatever it meant, it leads nowhere
            return ROOT
        while path:
            parent, _, name = path.rpartition(b"/")
            if name == GITIGNORE:  # the rules of a directory change with it
                path = RelPath(parent)
                continue
            if self.tree.get(RelPath(parent)) is not None:
                return path
            path = RelPath(parent)
        return ROOT

    def _update(self, by_parent: dict[RelPath, set[bytes]]) -> bool:
        """Deepest directories first, each handing its new tree to its parent.

        False if rules above have changed unseen, or a directory went away after something in it
        was seen: only a full look tells the truth then.
        """
        done: Done = {}
        pending = Deepest(by_parent)
        while (path := pending.next()) is not None:
            task = pending.pop(path)
            if (spliced := self._splice(path, task, done)) is not None:
                done[path] = spliced
                pending.ask_parent(path, look=False)
                continue
            frame = self._resume(path)
            if frame is None:
                if task.below:
                    return False
                pending.ask_parent(path, look=True)
                continue
            if frame.old is None or frame.rules.fingerprint != frame.old.rules:
                return False
            try:
                self._update_names(frame, task, done)
            except OSError as error:  # the directory went away while it was looked at
                if error.errno not in GONE:
                    raise
                return False
            done[path] = self._outcome(frame, self._finish(frame))
            pending.ask_parent(path, look=False)
        return True

    def _splice(self, path: RelPath, task: Task, done: Done) -> Outcome | None:
        """A directory in which only files and trees on record have new contents.

        None where more than that may have to be written, which the long way finds out.
        """
        old = self.tree.get(path)
        if old is None or (len(task.names) + len(task.below)) * len(old.raw) > SPLICE_MOST:
            return None
        stats = old.stats
        try:
            rules = self._rules_of(path)
            same = rules.fingerprint == old.rules
            raw = self._with_trees(path, old.raw, task.below, done) if same else None
            if raw and task.names:
                raw, stats = self._with_files(path, rules, old, raw, task.names)
        except (OSError, NotAFile):
            return None
        return Outcome(path, old, None, self._spliced(path, old, raw, stats)) if raw else None

    def _spliced(self, path: RelPath, old: Dir, raw: bytes, stats: bytes) -> Dir:
        if (raw, stats) == (old.raw, old.stats):
            return old
        oid = old.oid if raw == old.raw else self.sink.add("tree", raw)
        found = self.changes[path] = old._replace(oid=oid, raw=raw, stats=stats)
        return found

    def _with_trees(self, path: RelPath, raw: bytes, below: set[bytes], done: Done) -> bytes | None:
        """The tree with the new trees of its directories."""
        for name in below:
            child = done[join(path, name)]
            if child.old is None or not child.old.raw or not child.found.raw:
                return None
            known = b"40000 %s\0" % name
            if raw.count(known + child.old.oid) != 1:
                return None  # also part of another name, with the same tree
            raw = raw.replace(known + child.old.oid, known + child.found.oid)
        return raw

    def _with_files(
        self, path: RelPath, rules: DirRules, old: Dir, raw: bytes, names: set[bytes]
    ) -> tuple[bytes | None, bytes]:
        """The tree and the stats with the new contents of its files, if nothing else is new."""
        fd = self.beneath.dir(path)
        if old.gaps or stat.S_IMODE(self.disk.fstat(fd).st_mode) != old.mode:
            return None, b""
        stats, changed = array("q", old.stats), 0
        places = {name: place * WIDTH for place, name in enumerate(old.names.split(b"\0"))}
        for name in names:
            at, entry = places.get(name), child_in(raw, name)
            if at is None or entry is None or rules.verdict(name, False) != "capture":
                return None, b""
            new = self._reread(path, fd, name, entry, stats, at)
            was = b"%o %s\0%s" % (entry.mode, name, entry.oid)
            if new is None or raw.count(was) != 1:
                return None, b""
            if new != entry.oid:
                raw = raw.replace(was, was[:-20] + new)
                changed += 1
        self.changed += changed
        return raw, stats.tobytes()

    def _reread(
        self, path: RelPath, fd: int, name: bytes, entry: Entry, stats: array[int], at: int
    ) -> Oid | None:
        """The contents of a file that is what it was but for them, if they hold still."""
        info, cap = self.disk.lstat(name, fd), self.ruleset.max_file_size
        self._note_always(path, os.fsdecode(name), info)
        if info.st_mode != stats[at] or not stat.S_ISREG(info.st_mode) or 0 < cap < info.st_size:
            return None
        if array("q", _numbers(info)) == stats[at : at + WIDTH]:
            return entry.oid
        begun = time.time_ns()
        found = read_stable(self.disk, fd, name)
        if found.torn or found.stat.st_mode != info.st_mode or 0 < cap < len(found.data):
            return None
        _replace(stats, at, found.stat)
        if found.held:
            self.always.add(join(path, name))
        if found.held or _may_be_stale(name, found.stat, begun):
            stats[at + 3] = DOUBT
        oid = hash_object("blob", found.data)
        if oid != entry.oid:
            self.sink.add("blob", found.data, oid)
        return oid

    def _resume(self, path: RelPath) -> Frame | None:
        """The frame of a known directory as it was recorded; None if it cannot be entered now."""
        old = self.tree.get(path)
        try:
            rules = self._rules_of(path)
            mode = stat.S_IMODE(self.disk.fstat(self.beneath.dir(path)).st_mode)
        except OSError as error:
            if error.errno in GONE or error.errno in NO_ACCESS:
                return None
            raise
        head, _, name = path.rpartition(b"/")
        left_out = _reason_through(self._rules_of(RelPath(head)), name) if path else None
        frame = Frame(path, rules, old, mode, [], array("q"), left_out)
        if old is not None:
            self._recall(frame)
            self._unfold(frame)
            frame.names = list(frame.known)
            frame.stats = frame.known_stats[:]
        return frame

    def _rules_of(self, path: RelPath) -> DirRules:
        """Each rules file on the way is read once in a look."""
        if (kept := self._rules.get(path)) is not None:
            return kept
        known = next((p for p in parents(path) if p in self._rules), None)
        if known is None:
            known = ROOT
            self._rules[ROOT] = self._root_rules(self._recorded_gitignore(ROOT))
        for name in path[len(known) :].strip(b"/").split(b"/") if path else ():
            above, known = known, join(known, name)
            gitignore = self._recorded_gitignore(known)
            self._rules[known] = self._rules[above].child(name, gitignore)
        return self._rules[path]

    def _recorded_gitignore(self, path: RelPath) -> bytes | None:
        """Opened only where one was seen; a new one is among the paths to look at."""
        old = self.tree.get(path)
        if old is not None and GITIGNORE not in old.names:
            return None
        return self._gitignore(self.beneath.dir(path))

    def _update_names(self, frame: Frame, task: Task, done: Done) -> None:
        for name in sorted(task.names):
            self._update_name(frame, name)
        for name in frame.inside & task.below - task.names:
            self._take(frame, done[join(frame.path, name)])

    def _update_name(self, frame: Frame, name: bytes) -> None:
        fd = self.beneath.dir(frame.path)
        try:
            info = self.disk.lstat(name, fd)
        except FileNotFoundError:
            self._remove_name(frame, name)
            return
        self._note_always(frame.path, os.fsdecode(name), info)
        at = self._place_of(frame, name, info)
        frame.entries.pop(name, None)
        frame.gaps.pop(name, None)
        frame.perms.pop(name, None)
        was_inside = name in frame.inside
        frame.inside.discard(name)
        self._look_at(frame, fd, name, os.fsdecode(name), at)
        if name in frame.inside:
            child = self._enter_child(frame, name)
            if child is not None:
                self._take(frame, self._outcome(child, self._visit(child)))
        elif was_inside:
            self._forget(join(frame.path, name))

    def _place_of(self, frame: Frame, name: bytes, info: os.stat_result) -> int:
        text = os.fsdecode(name)
        at = frame.known.get(text)
        if at is None:
            at = len(frame.stats)
            frame.names.append(text)
            _append(frame.stats, info)
        else:
            _replace(frame.stats, at, info)
        return at

    def _remove_name(self, frame: Frame, name: bytes) -> None:
        text = os.fsdecode(name)
        at = frame.known.get(text)
        if at is not None:
            place = frame.names.index(text)
            del frame.names[place]
            for stats in (frame.stats, frame.known_stats):
                del stats[place * WIDTH : (place + 1) * WIDTH]
            frame.known = {n: i * WIDTH for i, n in enumerate(frame.names)}
        frame.entries.pop(name, None)
        frame.gaps.pop(name, None)
        frame.perms.pop(name, None)
        if name in frame.inside:
            frame.inside.discard(name)
            self._forget(join(frame.path, name))

    # Which permissions are the usual ones

    def _settle_usual(self) -> None:
        """After the very first look: writes `about` anew if most modes were unusual."""
        usual = Usual(
            self._most_common(FILE, self.usual.file),
            self._most_common(EXEC, self.usual.exec),
            self._most_common_dir(),
        )
        if usual == self.usual:
            return
        old, self.usual = self.usual, usual
        for path, found in self.changes.items():
            if found is not None:
                self.changes[path] = _noted_anew(path, found, old, usual)

    def _most_common(self, git_mode: int, default: int) -> int:
        seen = [(n, perms) for (mode, perms), n in self.seen_modes.items() if mode == git_mode]
        return max(seen)[1] if seen else default

    def _most_common_dir(self) -> int:
        seen = Counter(found.mode for found in self.changes.values() if found is not None)
        return seen.most_common(1)[0][0] if seen else self.usual.dir


def _is_same(old: Dir, mode: int, rules: DirRules, listed: Listing) -> bool:
    return (
        mode == old.mode
        and rules.fingerprint == old.rules
        and listed[1].tobytes() == old.stats
        and os.fsencode("\0".join(listed[0])) == old.names
    )


def _noted_anew(path: RelPath, found: Dir, old: Usual, usual: Usual) -> Dir:
    """A record whose line says what is unusual by another measure."""
    perms, gaps = read_note(found.note)
    rare = {}
    for name, entry in parse_tree(found.raw).items():
        mode = perms.get(name, old.of(entry.mode))
        if entry.mode in (FILE, EXEC) and mode != usual.of(entry.mode):
            rare[name] = mode
    own = found.mode if found.mode != usual.dir else None
    line = note(path, own, not found.raw and path != ROOT, rare, gaps)
    return found._replace(note=line)


class Deepest:
    """Owns the directories still to be updated; gives out each after all that lie in it.

    Neighbours follow each other, so that the directories above them are still open.
    """

    def __init__(self, names: dict[RelPath, set[bytes]]) -> None:
        self._names = names
        self._below: dict[RelPath, set[bytes]] = {}
        self._order = sorted(map(_in_tree_order, names))

    def next(self) -> RelPath | None:
        return RelPath(self._order.pop().replace(b"\0", b"/")) if self._order else None

    def pop(self, path: RelPath) -> Task:
        return Task(self._names.pop(path), self._below.pop(path, set()))

    def ask_parent(self, path: RelPath, *, look: bool) -> None:
        """Has the parent take the new tree of a directory, or look at it by name once more."""
        if path == ROOT:
            return
        head, _, name = path.rpartition(b"/")
        parent = RelPath(head)
        if parent not in self._names:
            self._names[parent] = set()
            insort(self._order, _in_tree_order(parent))
        (self._names if look else self._below).setdefault(parent, set()).add(name)


def _in_tree_order(path: RelPath) -> bytes:
    """Sorts a directory before everything in it, and that together."""
    return path.replace(b"/", b"\0")


def _topmost(paths: set[RelPath]) -> set[RelPath]:
    """Without those that lie below another one: looking at that one covers them."""
    return {path for path in paths if not any(above in paths for above in parents(path))}


def _may_be_stale(name: bytes, info: os.stat_result, now_ns: int) -> bool:
    """Whether what was read may change without another time stamp: by a write in the same tick, or
    through a map onto a page that is dirty already."""
    mapped = os.fsdecode(name).endswith(MAPPED) and info.st_ctime_ns >= now_ns - RECENT_NS
    return mapped or is_fresh(info.st_ctime_ns, now_ns)


def _reason_through(rules: DirRules, name: bytes) -> GapReason | None:
    """Why a directory is left out that is entered only for protected paths below it."""
    return rules.left_out(name) if rules.verdict(name, True) == "through" else None


def _file_entry(mode: int, oid: Oid) -> Entry:
    return Entry(EXEC if mode & 0o100 else FILE, oid)


def _numbers(info: os.stat_result) -> tuple[int, int, int, int, int]:
    mode = info.st_mode
    if mode & 0o170000 == 0o040000:
        return A_DIRECTORY
    return mode, info.st_ino & MASK, info.st_size, info.st_mtime_ns, info.st_ctime_ns


def _append(stats: array[int], info: os.stat_result) -> None:
    stats.extend(_numbers(info))


def _replace(stats: array[int], at: int, info: os.stat_result) -> None:
    stats[at : at + WIDTH] = array("q", _numbers(info))
