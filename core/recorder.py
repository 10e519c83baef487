"""Takes the snapshots and marks of one workspace: the one place where history grows.

Order of one snapshot, and what is true if the process dies after each step:
1. shared store lock, a look at the tree, new objects in a pack that nobody sees, where the
   workspace lies: nothing yet;
2. pack and index synced, renamed, directory synced, read back: unreferenced objects, to be swept;
3. the snapshot's reference: it exists; a mark that was asked for does not, and has no answer;
4. the mark's reference, then both names synced: all done (before that, a power cut may leave either
   name alone: nobody had an answer, and both name only what is durable by then);
   where a journal keeps the order (`order`), this is the one sync, and step 2 is durable with it:
   a power cut leaves the first steps, never a later one without those before;
5. the records of what was seen are saved, once nobody waits: before that the next look is longer.
Whoever is prepared has a log (`ahead`), whose one sync comes first and replaces all the others.
"""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from .about import About, Usual, decode_about, encode_about, notes_of
from .ahead import Ahead
from .begun import Begun
from .beneath import Beneath
from .diff import diff_trees
from .errors import Damaged, TurnmarkError, explain
from .gitcontext import git_context
from .history import History, MarkSpec, mark_ref, snapshot_ref, write_mark, write_snapshot
from .model import (
    EMPTY_TREE,
    EXEC,
    FILE,
    LINK,
    PLANNED,
    ROOT,
    TREE,
    Entry,
    Mark,
    Oid,
    RelPath,
    Snapshot,
)
from .objects import Kind, Sink, encode_tree, hash_object
from .roots import Root, place_of
from .rules import RuleSet
from .scan import Changes, Look
from .store import Store, registry_path
from .worktree import WorkTree
from .writer import Writer

Clock = Callable[[], int]


@dataclass(frozen=True, slots=True)
class Taken:
    """What one request left in the history; `fresh` if it made a new snapshot."""

    snapshot: Snapshot
    mark: Mark | None
    changed: int
    fresh: bool
    durable: bool


@dataclass(frozen=True, slots=True)
class Seen:
    """A look at the workspace that stored nothing: its tree, and the tree objects it is made of."""

    files: Oid
    about: bytes
    trees: dict[Oid, bytes]


class TreesOnly:
    """A sink for looks that store nothing: it keeps trees, and lets file contents go."""

    def __init__(self) -> None:
        self.trees: dict[Oid, bytes] = {EMPTY_TREE: b""}

    def add(self, kind: Kind, data: bytes, oid: Oid | None = None) -> Oid:
        oid = oid or hash_object(kind, data)
        if kind == "tree":
            self.trees[oid] = data
        return oid

    def holds(self, oid: Oid) -> bool:
        return True

    def blob_id(self, data: bytes, *, is_new: bool = True) -> Oid:
        return hash_object("blob", data)


class Recorder:
    """Owns the records and the next number of one workspace; its lock is held by the caller."""

    def __init__(
        self, store: Store, root: Root, rules: RuleSet, clock: Clock = time.time_ns
    ) -> None:
        self.store = store
        self.root = root
        self.rules = rules
        self.clock = clock
        self.tree = WorkTree(f"{store.base}/turnmark/cache/{root.id}.db")
        self.last: Snapshot | None = None
        self.seq = 0
        self._marks: list[Mark] | None = None
        self._begun: Begun | None = None
        self._vouched = False
        """Whether what is newest is known to be durable; who made it may have been killed."""
        self._log: Ahead | None = None
        self.last_mark: Oid | None = None
        self.last_snapshot: Oid | None = None
        self.always: set[RelPath] = set()
        self.expected: tuple[int, int] | None = None
        """The root's device and inode, where no other directory in its place may be recorded."""
        self._looking: Look | None = None
        self._read_at = store.generation()
        """The generation of the store when its history was read."""
        self._read_history()

    def close(self) -> None:
        """A log that cannot be worked off is left to whoever takes the lock next."""
        self.put_away()
        if self._log is not None:
            self._log.close()
            self._log = None
        self.tree.close()

    def prepare(self, *, durable: bool = True) -> None:
        """What the next point would have to wait for, done while nobody waits."""
        if durable:
            self._prepare_log()
        self.store.prepare()

    def put_away(self) -> None:
        """What was prepared and nobody has used."""
        self._leave_log()
        self.store.put_away()

    def _prepare_log(self) -> None:
        """Empties it, or makes one, where all else is durable."""
        if self._log is not None and not self._log.is_usable:
            self._leave_log()
        if self._log is None or self._log.may_hold:
            self.store.work_off(self.root.id, wait=0.0)
        if self._log is not None:
            self._log.begin_anew()
        if not self._vouched or self.store.holds_doubtful:
            self.store.vouch(self.root.id)
            self._vouched = True
        self._log = self._log or self.store.logs.new(self.root.id)

    def _leave_log(self) -> None:
        """One that cannot be worked off stays, and stays ours."""
        log = self._log
        try:
            if log is not None and log.is_usable:
                self.store.work_off(self.root.id)
                log.remove()
                self._log = None
            elif log is not None:  # somebody has taken it away, and what was in it
                self._vouched = False
                self.store.sync_everything()
                log.close()
                self._log = None
        except (OSError, TurnmarkError):
            return

    def progress(self) -> tuple[int, int]:
        """How many directories and files the look under way has seen; from another thread."""
        look = self._looking
        return (look.dirs_seen, look.files_seen) if look is not None else (0, 0)

    def _read_history(self) -> None:
        history = History(self.store, self.root.id)
        self.last = history.newest()
        self.seq = history.last_seq()
        self._marks = self._begun = None
        self._vouched = False
        self.last_mark = history.mark_ids.get(max(history.mark_ids, default=0))
        self.last_snapshot = history.snapshot_ids.get(max(history.snapshot_ids, default=0))

    def take(
        self,
        paths: Iterable[RelPath] | None = None,
        mark: MarkSpec | None = None,
        *,
        sync: bool = True,
        note: str = "",
        always_mark: bool = True,
        awaited: bool = True,
    ) -> Taken:
        """Looks (at the given paths, or at everything), stores what changed, and marks it.

        For what nobody awaits there is no log: it would have to be synced in its place as well.
        With always_mark off, a mark is left out where neither the tree nor the newest mark moved.
        """
        haste = sync and mark is not None and paths is not None
        with self.store.writing(in_haste=haste) as writer, self._beneath() as beneath:
            proved_at = self._check_base(full=paths is None)
            look = self._look(beneath, writer, paths)
            snapshot, changed = self._snapshot(writer, look, note)
            fresh = snapshot is not self.last
            wanted = mark if always_mark or fresh or not self._marked(snapshot.id) else None
            made = self._mark(writer, snapshot, wanted) if wanted else None
            log = self._log if awaited else None
            self._publish(writer, snapshot if fresh else None, made, sync=sync, log=log)
            self.last = snapshot
            self.tree.accept(
                *(look.changes, snapshot.id, look.usual),
                *(proved_at, beneath.identity, look.stamps),
            )
        return Taken(snapshot, made, changed, fresh, durable=sync)

    def record(self, spec: MarkSpec, snapshot: Snapshot, *, sync: bool = True) -> Mark:
        """A mark on a snapshot that exists already."""
        with self.store.writing() as writer:
            made = self._mark(writer, snapshot, spec)
            self._publish(writer, None, made, sync=sync, log=self._log)
        return made

    def keep_planned(
        self, files: Oid, about: bytes, objects: Mapping[Oid, tuple[Kind, bytes]], note: str
    ) -> Snapshot:
        """Stores a tree that never was on disk yet, so that a killed revert can be finished."""
        with self.store.writing() as writer:
            for oid, (kind, data) in objects.items():
                writer.add(kind, data, oid)
            made = self._partial(writer, files, about, 0, PLANNED + note)
            self._publish(writer, made, None, sync=True)
        return made

    def keep_displaced(self, contents: Mapping[RelPath, tuple[int, bytes]], note: str) -> Snapshot:
        """Stores what a rollback met in files it had moved aside: a snapshot of only those."""
        usual = self.tree.usual or Usual()
        modes = {p: stat.S_IMODE(m) for p, (m, _) in contents.items() if not stat.S_ISLNK(m)}
        with self.store.writing() as writer:
            entries = {
                path: Entry(git_mode(mode), writer.add("blob", data))
                for path, (mode, data) in contents.items()
            }
            notes = notes_of(About(usual, self.rules, modes=modes))
            about = encode_about(usual, self.rules, notes, coverage="displaced")
            files = build_tree(writer, entries)
            partial = self._partial(writer, files, about, len(entries), note)
            self._publish(writer, partial, None, sync=True)
        return partial

    def _partial(self, writer: Writer, files: Oid, about: bytes, total: int, note: str) -> Snapshot:
        self.seq += 1
        partial = Snapshot(
            id=Oid(b""),
            workspace=self.root.id,
            seq=self.seq,
            time_ns=self.clock(),
            files=files,
            about=writer.add("blob", about),
            changed=total,
            total=total,
            note=note,
            partial=True,
            prev=self.last_snapshot,
        )
        return write_snapshot(writer, partial, self.root.shown)

    def look(self) -> Seen:
        """The workspace as it is now, by full scan, storing nothing."""
        sink = TreesOnly()
        self.store.follow()
        with self._beneath() as beneath:
            self._check_base()
            look = self._look(beneath, sink, None)
        root = self._root_of(look.changes)
        return Seen(root, self._about(look), sink.trees | self._known_trees(look.changes))

    def _known_trees(self, changes: Changes) -> dict[Oid, bytes]:
        """Trees that the look did not add because the records hold them; they may not be stored."""
        if self.tree.trusted:
            return {}
        return {d.oid: d.raw for d in changes.values() if d is not None}

    @contextmanager
    def _beneath(self) -> Iterator[Beneath]:
        with Beneath(self.store.disk, self.root.path) as beneath:
            if self.expected not in (None, beneath.identity):
                raise TurnmarkError(
                    f"Another directory has taken the place of {self.root.shown}.",
                    "Nothing was recorded; is a disk not mounted?",
                )
            yield beneath

    def _look(self, beneath: Beneath, sink: Sink, paths: Iterable[RelPath] | None) -> Look:
        look = self._looking = Look(self.tree, beneath, sink, self.rules)
        try:
            if paths is None:
                look.everything()
            else:
                look.some(paths)
        except OSError as error:
            raise explain(error, "look at the workspace", self.root.shown) from error
        finally:
            self._looking = None
        self.always = look.always if look.complete else self.always | look.always
        return look

    def _check_base(self, *, full: bool = False) -> int:
        """Believes the records as far as the newest snapshot is still there to hold what they name.

        Returns the generation of the store at which the store was asked for each of their objects.
        When the generation moves under a recorder, its next full look asks anew, and so does the
        next process; looks at a few paths, for which an agent waits, only see that the newest
        snapshot is still referenced, of which a sweep drops nothing.
        """
        tree, generation = self.tree, self.store.followed
        tree.load_all()
        if tree.usual is None and self.last is not None:
            tree.usual = self._usual_of(self.last)
        if generation != self._read_at:
            self.store.follow()
            self._read_history()
            self._read_at = generation
        proved = tree.generation == generation
        there = self.last is not None and tree.base == self.last.id and self._still_there()
        if self.last is not None and not there:
            self._read_history()
        tree.trusted = there and (proved or (tree.trusted and not full))
        return tree.generation if tree.trusted else generation

    def _usual_of(self, snapshot: Snapshot) -> Usual | None:
        """What was usual stays so, or an unchanged tree would be a new snapshot."""
        try:
            return decode_about(self.store.blob(snapshot.about)).usual
        except Damaged:
            return None

    def _still_there(self) -> bool:
        last = self.last
        if last is None or self.store.refs.read(snapshot_ref(last)) != last.id:
            return False
        root = self.tree.root()
        return root is not None and root.oid == last.files and self.store.holds(last.files)

    def _root_of(self, changes: Changes) -> Oid:
        root = changes.get(ROOT) or self.tree.root()
        assert root is not None  # every look ends with a record of the root
        return root.oid

    def _about(self, look: Look) -> bytes:
        notes = dict(self.tree.notes())
        for path, found in look.changes.items():
            notes.pop(path, None)
            if found is not None and found.note:
                notes[path] = found.note
        return encode_about(look.usual, self.rules, notes)

    def _snapshot(self, writer: Writer, look: Look, note: str) -> tuple[Snapshot, int]:
        """The newest snapshot if it is equal to what was seen, else a new one."""
        files, about = self._root_of(look.changes), self._about(look)
        about_oid = hash_object("blob", about)
        last = self.last
        if last is not None and (last.files, last.about) == (files, about_oid):
            return last, 0
        writer.add("blob", about, about_oid)
        changed = self._changed(look, files, about)
        totals = self._totals(look)
        self.seq += 1
        fresh = Snapshot(
            id=Oid(b""),
            workspace=self.root.id,
            seq=self.seq,
            time_ns=self.clock(),
            files=files,
            about=about_oid,
            changed=changed,
            gaps=totals[1],
            total=totals[0],
            note=note,
            prev=self.last_snapshot,
        )
        return write_snapshot(writer, fresh, self.root.shown), changed

    def _changed(self, look: Look, files: Oid, about: bytes) -> int:
        """As counted while looking; by comparison of snapshots where the records were lost."""
        if self.tree.trusted or self.last is None:
            return look.changed
        trees = {d.oid: d.raw for d in look.changes.values() if d is not None}

        def read(oid: Oid) -> bytes:
            found = trees.get(oid)
            return self.store.tree(oid) if found is None else found

        try:
            paths = {change.path for change in diff_trees(read, self.last.files, files)}
            was, now = decode_about(self.store.blob(self.last.about)), decode_about(about)
            modes = {path for path, _ in was.modes.items() ^ now.modes.items()}
            return len(paths | modes | (was.empty ^ now.empty))
        except Damaged:  # what the newest snapshot held is lost; `verify` says so
            return look.changed

    def _totals(self, look: Look) -> tuple[int, int]:
        files, gaps = self.tree.files, self.tree.gaps
        for path, new in look.changes.items():
            old = self.tree.get(path)
            files += (new.files if new else 0) - (old.files if old else 0)
            gaps += (new.gaps if new else 0) - (old.gaps if old else 0)
        return files, gaps

    def _mark(self, writer: Writer, snapshot: Snapshot, spec: MarkSpec) -> Mark:
        self.seq += 1
        mark = Mark(
            id=Oid(b""),
            workspace=self.root.id,
            seq=self.seq,
            time_ns=self.clock(),
            kind=spec.kind,
            snapshot=snapshot.id,
            label=spec.label,
            session=spec.session,
            turn=spec.turn,
            turn_id=spec.turn_id,
            agent=spec.agent,
            status=spec.status,
            gaps=snapshot.gaps,
            extra=self._noted(spec.extra),
            prev=self.last_mark,
        )
        return write_mark(writer, mark)

    def marks(self) -> list[Mark]:
        """Oldest first; read once, since nobody else makes any while the lock is held."""
        if self._marks is None:
            self._marks = list(History(self.store, self.root.id).marks())
        return self._marks

    def begun(self) -> Begun:
        """Its turns, read once as well."""
        if self._begun is None:
            self._begun = Begun(self.marks())
        return self._begun

    def _noted(self, extra: dict[str, object]) -> dict[str, object]:
        """With what the user's git says at this moment, where there is one."""
        found = git_context(self.store.disk, self.root.path)
        return {**extra, "git": found.as_json()} if found else extra

    def _marked(self, snapshot: Oid) -> bool:
        """Whether some mark points at the snapshot already."""
        return any(mark.snapshot == snapshot for mark in self.marks())

    def _publish(
        self,
        writer: Writer,
        snapshot: Snapshot | None,
        mark: Mark | None,
        *,
        sync: bool,
        log: Ahead | None = None,
    ) -> None:
        refs = [(snapshot_ref(snapshot), snapshot.id)] if snapshot is not None else []
        refs += [(mark_ref(mark), mark.id)] if mark is not None else []
        try:
            if snapshot is not None:
                self._register()
            writer.settle(sync=sync, refs=refs, log=log if self._vouched else None)
            vouched, self._vouched = self._vouched, False  # until it has gone well
            writer.publish(sync=sync)
            if sync and not (refs or vouched):
                self.store.vouch(self.root.id)
            self._vouched = sync or (vouched and not refs)
        except OSError as error:
            raise explain(error, "write to the store", self.store.base) from error
        if snapshot is not None:
            self.last_snapshot = snapshot.id
        if mark is not None:
            self._enter(mark)

    def _enter(self, mark: Mark) -> None:
        self.last_mark = mark.id
        if self._marks is not None:
            self._marks.append(mark)
        if self._begun is not None:
            self._begun.note(mark)

    def vouch(self) -> None:
        """Makes durable what is newest, for an answer that names nothing new."""
        with self.store.writing() as writer:
            self._publish(writer, None, None, sync=True)

    def _register(self) -> None:
        """Notes where the workspace lies, once; the parent's identity tells a deleted directory
        from an unmounted disk."""
        path = registry_path(self.store, self.root.id)
        if self.store.disk.exists(path):
            return
        doc = {
            "root": self.root.shown,
            "created_ns": self.clock(),
            **place_of(self.store.disk, self.root.path),
        }
        self.store.disk.replace(path, json.dumps(doc).encode() + b"\n")


def git_mode(mode: int) -> int:
    """What git has of the mode of a file or link."""
    if stat.S_ISLNK(mode):
        return LINK
    return EXEC if mode & 0o100 else FILE


def build_tree(sink: Sink, entries: Mapping[RelPath, Entry]) -> Oid:
    """Adds the trees that hold the given entries; returns the topmost."""
    below: dict[bytes, dict[RelPath, Entry]] = {}
    here: dict[bytes, Entry] = {}
    for path, entry in entries.items():
        name, slash, rest = path.partition(b"/")
        if slash:
            below.setdefault(name, {})[RelPath(rest)] = entry
        else:
            here[name] = entry
    for name, inner in below.items():
        here[name] = Entry(TREE, build_tree(sink, inner))
    return sink.add("tree", encode_tree(here.items()))
