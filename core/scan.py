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
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .about import Usual, note, read_note
from .beneath import Beneath
from .disk import GONE
from .inforce import GITIGNORE, InForce
from .listing import (
    DOUBT,
    Lister,
    Listing,
    append_stat,
    is_same,
    may_be_stale,
    replace_stat,
    seems_written,
)
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
from .objects import NO_NAMES, Sink, encode_tree, hash_object, parse_tree
from .proofs import ROW, WIDTH, is_fresh
from .reading import NO_ACCESS, SWAPPED, NotAFile, read_stable
from .rules import STAGING_PREFIX, DirRules, RuleSet
from .scouting import Scouting, scout_sent
from .splice import Outcome, Splicer
from .worktree import Dir, WorkTree, texts_of

Changes = dict[RelPath, Dir | None]


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


class Task(NamedTuple):
    """What is to be done in a directory: names to look at, and directories that have been."""

    path: RelPath
    names: set[bytes]
    below: dict[bytes, Outcome]


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
        self.complete = False
        self._lister = Lister(self.disk, tree)
        self._in_force = InForce(tree, beneath, rules)
        self._splicer = Splicer(beneath, sink, rules, self._lister)
        self._scout: Scouting | None = None

    @property
    def always(self) -> set[RelPath]:
        return self._lister.always

    @property
    def stamps(self) -> dict[RelPath, bytes]:
        return self._lister.stamps

    # The whole tree

    def everything(self) -> None:
        """Looks at every name below the root."""
        self.complete = True
        self.tree.load_all()
        self.beneath.forget()
        keeps_times = self._lister.believe_times(self.beneath)
        frame = self._enter_root()
        with scout_sent(self.tree, self.beneath, keeps_times, frame.rules) as self._scout:
            self._visit(frame)
        if self._scout is not None:
            self._believe(self._scout.stamps)
        if self.tree.usual is None:
            self._settle_usual()

    def _enter_root(self) -> Frame:
        fd = self.beneath.fd
        listed = self._lister.listing(fd, ROOT)
        rules = self._in_force.at_root(fd, listed)
        return self._enter(ROOT, fd, listed, rules, None)

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
        if (known := self._vouched(frame, path)) is not None:
            self._keep(frame, path, name, known)
            return None
        try:
            fd = self.beneath.dir(path)
            listed = self._lister.listing(fd, path)
            rules = frame.rules.child(name, self._in_force.listed(fd, listed))
            same = self._same_leaf(path, listed, rules)
            if same is None:
                return self._enter(path, fd, listed, rules, _reason_through(frame.rules, name))
            self._keep(frame, path, name, same)
        except OSError as error:
            self._cannot_enter(frame, name, error)
        return None

    def _keep(self, frame: Frame, path: RelPath, name: bytes, known: Dir) -> None:
        """A child that is as on record; where its parent is so as well, nothing is left to do."""
        if not frame.same or not known.raw:
            self._take(frame, Outcome(path, known, _reason_through(frame.rules, name), known))

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
        mode, names, stats = listed.mode, listed.names, array("q", listed.stats)
        self.dirs_seen += 1
        self.files_seen += len(names)
        old = self.tree.get(path)
        frame = Frame(path, rules, old, mode, names, stats, left_out)
        if old is not None and self.tree.trusted and is_same(old, rules, listed):
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
        """The record of a directory in which only files have other contents than on record."""
        old = frame.old
        if old is None or not self.tree.trusted or self.tree.usual is None:
            return None
        spliced = self._splicer.after_listing(frame.path, frame.rules, old, listed)
        if spliced is None:
            return None
        self.changed += spliced.changed
        return spliced.found

    def _same_leaf(self, path: RelPath, listed: Listing, rules: DirRules) -> Dir | None:
        """What is on record of a directory without directories, if it still is so: most are."""
        old = self.tree.get(path)
        if old is None or old.subdirs or not self.tree.trusted:
            return None
        if not is_same(old, rules, listed):
            return None
        self.dirs_seen += 1
        self.files_seen += len(listed.stats) // ROW
        return old

    def _believe(self, stamps: dict[RelPath, bytes]) -> None:
        """What the scout has listed, where its names are those on record."""
        for path, stamp in stamps.items():
            if path not in self.changes:
                self.stamps.setdefault(path, stamp)

    def _vouched(self, frame: Frame, path: RelPath) -> Dir | None:
        """What is on record of a directory and of all below it, if the scout found it to be so."""
        if self._scout is None or not self._scout.vouches_for(path):
            return None
        above = frame.old  # under other rules than those on record, it would not be what it was
        same = above is not None and above.rules == frame.rules.fingerprint
        return self.tree.get(path) if same else None

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
        frame.known = {name: place * WIDTH for place, name in enumerate(texts_of(old.names))}

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
        known = frame.known.get(os.fsdecode(name))
        is_new = known is None or seems_written(
            frame.known_stats[known : known + WIDTH], frame.stats[at : at + WIDTH]
        )
        replace_stat(frame.stats, at, found.stat)
        if found.torn:
            self._gap(frame, name, "torn")
        if found.held:
            self.always.add(join(frame.path, name))
        if found.torn or found.held or may_be_stale(name, found.stat, begun):
            self._doubt_at(frame, at)
        oid = self.sink.blob_id(found.data, is_new=is_new)
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
        takes_long = self._splicer.may_take_long
        first = [path for path, names in by_parent.items() if takes_long(path, names)]
        pending = Deepest(by_parent, first)
        while (task := pending.pop()) is not None:
            if (spliced := self._splice(task)) is not None:
                pending.hand_up(spliced)
                continue
            frame = self._resume(task.path)
            if frame is None:
                if task.below:
                    return False
                pending.have_looked_at(task.path)
                continue
            if frame.old is None or frame.rules.fingerprint != frame.old.rules:
                return False
            try:
                self._update_names(frame, task)
            except OSError as error:  # the directory went away while it was looked at
                if error.errno not in GONE:
                    raise
                return False
            pending.hand_up(self._outcome(frame, self._finish(frame)))
        return True

    def _splice(self, task: Task) -> Outcome | None:
        """A directory in which only files and trees on record have new contents."""
        path, names, below = task
        old = self.tree.get(path)
        try:
            rules = self._in_force.of(path)
        except OSError:
            return None
        if old is None or rules.fingerprint != old.rules:
            return None
        spliced = self._splicer.with_contents(path, rules, old, names, below)
        if spliced is None:
            return None
        self.changed += spliced.changed
        found = spliced.found
        if found.oid != old.oid:
            self.sink.add("tree", found.raw, found.oid)
        if found is not old:
            self.changes[path] = found
        return Outcome(path, old, None, found)

    def _resume(self, path: RelPath) -> Frame | None:
        """The frame of a known directory as it was recorded; None if it cannot be entered now."""
        old = self.tree.get(path)
        try:
            rules = self._in_force.of(path)
            mode = stat.S_IMODE(self.disk.fstat(self.beneath.dir(path)).st_mode)
        except OSError as error:
            if error.errno in GONE or error.errno in NO_ACCESS:
                return None
            raise
        head, _, name = path.rpartition(b"/")
        left_out = _reason_through(self._in_force.of(RelPath(head)), name) if path else None
        frame = Frame(path, rules, old, mode, [], array("q"), left_out)
        if old is not None:
            self._recall(frame)
            self._unfold(frame)
            frame.names = list(frame.known)
            frame.stats = frame.known_stats[:]
        return frame

    def _update_names(self, frame: Frame, task: Task) -> None:
        self.stamps[frame.path] = b""
        for name in sorted(task.names):
            self._update_name(frame, name)
        for name in frame.inside & task.below.keys() - task.names:
            self._take(frame, task.below[name])

    def _update_name(self, frame: Frame, name: bytes) -> None:
        fd = self.beneath.dir(frame.path)
        try:
            info = self.disk.lstat(name, fd)
        except FileNotFoundError:
            self._remove_name(frame, name)
            return
        self._lister.note(frame.path, os.fsdecode(name), info)
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
            append_stat(frame.stats, info)
        else:
            replace_stat(frame.stats, at, info)
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
    """Owns the directories still to be updated; gives out each after all that lie in it."""

    def __init__(self, names: dict[RelPath, set[bytes]], first: Sequence[RelPath] = ()) -> None:
        """Begins with the `first`, if none of the others lies in them."""
        above = {parent for path in names for parent in parents(path)} if first else set()
        self._levels: list[dict[RelPath, Task]] = [{}]
        for path, asked in names.items():
            self._task(path, _depth(path)).names.update(asked)
        self._first = [self._levels[_depth(path)].pop(path) for path in first if path not in above]

    def pop(self) -> Task | None:
        if self._first:
            return self._first.pop()
        while not self._levels[-1]:
            if len(self._levels) == 1:
                return None
            self._levels.pop()
        return self._levels[-1].popitem()[1]

    def hand_up(self, outcome: Outcome) -> None:
        """Has the parent enter what a directory turned out to be."""
        if outcome.path != ROOT:
            above, name = self._above(outcome.path)
            above.below[name] = outcome

    def have_looked_at(self, path: RelPath) -> None:
        """By its parent, as a name."""
        if path != ROOT:
            above, name = self._above(path)
            above.names.add(name)

    def _above(self, path: RelPath) -> tuple[Task, bytes]:
        parent, _, name = path.rpartition(b"/")
        return self._task(RelPath(parent), path.count(b"/")), name

    def _task(self, path: RelPath, depth: int) -> Task:
        while len(self._levels) <= depth:
            self._levels.append({})
        level = self._levels[depth]
        task = level.get(path)
        if task is None:
            task = level[path] = Task(path, set(), {})
        return task


def _depth(path: RelPath) -> int:
    return path.count(b"/") + 1 if path else 0


def _topmost(paths: set[RelPath]) -> set[RelPath]:
    """Without those that lie below another one: looking at that one covers them."""
    return {path for path in paths if not any(above in paths for above in parents(path))}


def _reason_through(rules: DirRules, name: bytes) -> GapReason | None:
    """Why a directory is left out that is entered only for protected paths below it."""
    return rules.left_out(name) if rules.verdict(name, True) == "through" else None


def _file_entry(mode: int, oid: Oid) -> Entry:
    return Entry(EXEC if mode & 0o100 else FILE, oid)
