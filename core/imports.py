"""The predecessor's stores as rollback points: read through git, written as history of our own.

The originals are only read: by `git rev-list` and `git cat-file`, without anybody's configuration,
never by a checkout. A workspace's history grows at its end alone, so what is imported must be the
first that it has; later imports go on where the last one ended, until it has snapshots of its own.
Imported points are pinned: most are older than a prune keeps, and would be gone the next day.

Order for one workspace, and what is true if the process dies after each step: 1. all objects are
in packs, in place, unreferenced; 2. its register says where it lies; 3. references, oldest first: a
second import begins after the last one that is there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import IO, Literal

from .about import About, Usual, decode_about, encode_about, note
from .diff import diff_trees, entry_at
from .disk import Disk
from .errors import BadInput, Damaged, TurnmarkError, explain
from .history import History, mark_ref, pin_ref, snapshot_ref, write_mark, write_snapshot
from .model import (
    EMPTY_TREE,
    EXEC,
    FILE,
    LINK,
    TREE,
    Entry,
    GapReason,
    Mark,
    Oid,
    RelPath,
    Snapshot,
    join,
    label_of,
    show_path,
)
from .objects import Kind, encode_tree, hash_object, header_oid, parse_headers, parse_tree
from .proofs import DIRECTORY
from .recorder import Recorder
from .roots import Root, place_of, root_of
from .rules import RuleSet, is_git_alias
from .store import Store, registry_path
from .writer import Writer

NOTE = "imported"
"""What every imported snapshot is noted with; one without it is the workspace's own."""
ARCHIVE = "legacy-"
MARKER = "HERMES_WORKDIR"
REFS = "refs/hermes"
CAP = 10 * 1024 * 1024
TIMEOUT = 600
GITLINK = 0o160000
ALONE = {
    "PATH": os.defpath,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_OPTIONAL_LOCKS": "0",
    "LC_ALL": "C",
}
"""Nothing of the user's environment or configuration reaches git."""
READ_ONLY = ("-c", "protocol.allow=never", "-c", "core.fsmonitor=false", "--no-replace-objects")


@dataclass(frozen=True, slots=True)
class Chain:
    """The history of one directory in one of the predecessor's stores, from its newest commit."""

    git_dir: str
    ref: str
    root: bytes
    rules: RuleSet


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of one workspace: new points, those imported before, nested repositories that
    no commit holds; or why there is nothing."""

    workspace: str
    root: str
    points: int = 0
    known: int = 0
    gaps: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Commit:
    """One checkpoint of the predecessor."""

    id: Oid
    tree: Oid
    time_ns: int
    reason: str
    chain: Chain


def import_stores(store: Store, path: str, git: str = "git") -> list[Imported]:
    """Every history found at a path, each workspace by itself: trouble with one is only said."""
    with Reader.all_below(path, git, store.disk) as readers:
        found = [chain for reader in readers.values() for chain in reader.chains()]
        told = [(reader, error) for reader in readers.values() for error in reader.errors]
        out = [Imported("", reader.git_dir, error=error) for reader, error in told]
        found.sort(key=lambda chain: chain.root)
        for root, chains in groupby(found, key=lambda chain: chain.root):
            out.append(_import_workspace(store, root_of(root), list(chains), readers))
    return sorted(out, key=lambda one: one.root)


def _import_workspace(
    store: Store, root: Root, chains: list[Chain], readers: dict[str, Reader]
) -> Imported:
    try:
        commits = _in_order(readers[chain.git_dir].commits(chain) for chain in chains)
        with store.workspace_lock(root.id), store.writing() as writer:
            import_ = Import(store, writer, root, readers)
            return import_.run(commits)
    except OSError as error:
        failure = explain(error, "import the history", root.shown)
        return Imported(root.id, root.shown, error=failure.message)
    except TurnmarkError as error:
        return Imported(root.id, root.shown, error=error.message)
    except RecursionError:
        return Imported(root.id, root.shown, error="Its directories are nested too deep.")


def _in_order(histories: Iterable[list[Commit]]) -> list[Commit]:
    """Oldest first over all stores that know the directory; within one store its order stays."""
    keyed: list[tuple[int, Commit]] = []
    for commits in histories:
        latest = 0
        for commit in commits:
            latest = max(latest, commit.time_ns)
            keyed.append((latest, commit))
    keyed.sort(key=lambda pair: pair[0])
    return list({commit.id: commit for _, commit in keyed}.values())


# Writing


@dataclass(frozen=True, slots=True)
class Copied:
    """A directory as it can be stored: what git had no place for is named by path below it."""

    oid: Oid
    files: int = 0
    gaps: tuple[RelPath, ...] = ()
    empty: tuple[RelPath, ...] = ()


@dataclass
class Import:
    """Owns the new objects of one workspace until they are referenced."""

    store: Store
    writer: Writer
    root: Root
    readers: dict[str, Reader]
    trees: dict[Oid, bytes] = field(default_factory=dict)
    copied: dict[Oid, Copied] = field(default_factory=dict)
    gaps: set[RelPath] = field(default_factory=set)

    def run(self, commits: list[Commit]) -> Imported:
        history = History(self.store, self.root.id)
        left = _not_yet(history, commits)
        known = len(commits) - len(left)
        if left:
            points = self._copy(history, left)
            self.writer.settle(sync=True)
            self._register(points[0][0].time_ns)
            self._publish(points)
        return Imported(self.root.id, self.root.shown, len(left), known, len(self.gaps))

    def _copy(self, history: History, commits: list[Commit]) -> list[tuple[Snapshot, Mark]]:
        now = _as_it_is(self.store, self.root, commits[-1].chain.rules)
        last, seq = history.newest(), history.last_seq()
        points: list[tuple[Snapshot, Mark]] = []
        for commit in commits:
            seen = self._snapshot(commit, last, now, seq + 1)
            mark = self._mark(commit, seen, max(seq, seen.seq) + 1)
            points.append((seen, mark))
            last, seq = seen, mark.seq
        return points

    def _snapshot(
        self, commit: Commit, last: Snapshot | None, now: About | None, seq: int
    ) -> Snapshot:
        """The one before, if nothing differs: then only its mark is new."""
        top = self._tree(self.readers[commit.chain.git_dir], commit.tree)
        self.gaps.update(top.gaps)
        about = encode_about(
            now.usual if now else Usual(), commit.chain.rules, self._notes(top, now)
        )
        about_oid = self.writer.add("blob", about)
        if last is not None and (last.files, last.about) == (top.oid, about_oid):
            return last
        old = last.files if last is not None else EMPTY_TREE
        fresh = Snapshot(
            id=Oid(b""),
            workspace=self.root.id,
            seq=seq,
            time_ns=commit.time_ns,
            files=top.oid,
            about=about_oid,
            changed=sum(1 for _ in diff_trees(self._read_tree, old, top.oid)),
            gaps=len(top.gaps),
            total=top.files,
            note=NOTE,
        )
        return write_snapshot(self.writer, fresh, self.root.shown)

    def _mark(self, commit: Commit, snapshot: Snapshot, seq: int) -> Mark:
        mark = Mark(
            id=Oid(b""),
            workspace=self.root.id,
            seq=seq,
            time_ns=commit.time_ns,
            kind="import",
            snapshot=snapshot.id,
            label=label_of(commit.reason),
            agent="hermes",
            gaps=snapshot.gaps,
            extra={"commit": commit.id.hex(), "source": commit.chain.git_dir},
        )
        return write_mark(self.writer, mark)

    def _read_tree(self, oid: Oid) -> bytes:
        found = self.trees.get(oid)
        return self.store.tree(oid) if found is None else found

    def _tree(self, reader: Reader, oid: Oid) -> Copied:
        """Stores a directory and what is below it; each only once, however many commits have it."""
        known = self.copied.get(oid)
        if known is not None:
            return known
        entries: dict[bytes, Entry] = {}
        files, gaps, empty = 0, list[RelPath](), list[RelPath]()
        for name, entry in parse_tree(reader.read("tree", oid)).items():
            kind = entry.mode & 0o170000
            if is_git_alias(name) or kind == GITLINK:
                gaps.append(RelPath(name))
            elif kind == TREE:
                below = self._tree(reader, entry.oid)
                files += below.files
                gaps += [join(name, path) for path in below.gaps]
                empty += [join(name, path) for path in below.empty]
                if below.oid == EMPTY_TREE:
                    empty.append(RelPath(name))
                else:
                    entries[name] = Entry(TREE, below.oid)
            else:
                entries[name] = self._file(reader, kind, entry)
                files += 1
        raw = encode_tree(entries.items())
        stored = self.writer.add("tree", raw)
        self.trees[stored] = raw
        self.copied[oid] = Copied(stored, files, tuple(gaps), tuple(empty))
        return self.copied[oid]

    def _file(self, reader: Reader, kind: int, entry: Entry) -> Entry:
        if not self.writer.holds(entry.oid):
            self.writer.add("blob", reader.read("blob", entry.oid), entry.oid)
        if kind == LINK:
            return Entry(LINK, entry.oid)
        return Entry(EXEC if entry.mode & 0o100 else FILE, entry.oid)

    def _notes(self, top: Copied, now: About | None) -> dict[RelPath, bytes]:
        """git kept two modes of many: what is there today is the best witness of the others."""
        gaps: dict[RelPath, dict[bytes, GapReason]] = {}
        perms: dict[RelPath, dict[bytes, int]] = {}
        dirs: dict[RelPath, int] = {}
        for path in top.gaps:
            head, _, name = path.rpartition(b"/")
            gaps.setdefault(RelPath(head), {})[name] = "nested-root"
        for path, mode in (now.modes if now else {}).items():
            entry = entry_at(self._read_tree, top.oid, path)
            head, _, name = path.rpartition(b"/")
            if entry is not None and entry.mode == TREE:
                dirs[path] = mode
            elif entry is not None and entry.mode == (EXEC if mode & 0o100 else FILE):
                perms.setdefault(RelPath(head), {})[name] = mode
        empty = set(top.empty)
        return {
            path: note(path, dirs.get(path), path in empty, perms.get(path, {}), gaps.get(path, {}))
            for path in gaps.keys() | perms.keys() | dirs.keys() | empty
        }

    def _register(self, created_ns: int) -> None:
        """Without the parent's identity where the directory is missing: nothing proves that it
        was deleted, and a prune must not take at once what was imported on purpose."""
        path = registry_path(self.store, self.root.id)
        if self.store.disk.exists(path):
            return
        doc: dict[str, object] = {"root": self.root.shown, "created_ns": created_ns}
        if os.path.isdir(self.root.path):
            doc |= place_of(self.store.disk, self.root.path)
        self.store.disk.replace(path, json.dumps(doc).encode() + b"\n")

    def _publish(self, points: list[tuple[Snapshot, Mark]]) -> None:
        """One sync for all, and for what they reach; nothing is acknowledged before it."""
        history, refs = History(self.store, self.root.id), self.store.refs
        made = set(history.snapshot_ids.values())
        for snapshot, mark in points:
            if snapshot.id not in made:
                refs.create(snapshot_ref(snapshot), snapshot.id, sync=False)
                made.add(snapshot.id)
            if snapshot.id not in history.pins:
                refs.create(pin_ref(self.root.id, snapshot.id), snapshot.id, sync=False)
                history.pins.add(snapshot.id)
            refs.create(mark_ref(mark), mark.id, sync=False)
        with self.store.disk.opened(self.store.base, DIRECTORY) as fd:
            self.store.disk.sync_fs(fd)


def _not_yet(history: History, commits: list[Commit]) -> list[Commit]:
    """What comes after the last commit that was imported; older ones may be pruned since."""
    marks = list(history.marks())
    there = {mark.extra.get("commit") for mark in marks if mark.kind == "import"}
    last = max((at for at, one in enumerate(commits) if one.id.hex() in there), default=-1)
    left = commits[last + 1 :]
    if not left or not (history.snapshot_ids or marks):
        return left
    if last < 0 and there:
        raise TurnmarkError("What was imported before is not part of this history any more.")
    if any(one.note != NOTE for one in history.snapshots()):
        raise TurnmarkError(
            f"It has snapshots of its own, and {len(left)} older checkpoints cannot come before"
            " them. The predecessor's store still has them."
        )
    return left


def _as_it_is(store: Store, root: Root, rules: RuleSet) -> About | None:
    """The directory today, if it is there and can be looked at; nothing is stored."""
    try:
        recorder = Recorder(store, root, rules)
        try:
            return decode_about(recorder.look().about)
        finally:
            recorder.close()
    except TurnmarkError:
        return None


# Finding and reading


def is_store(path: str) -> Literal["", "v1", "v2"]:
    """Whether a directory is one of the predecessor's repositories, and of which kind."""
    if os.path.islink(path) or not os.path.isfile(f"{path}/HEAD"):
        return ""
    if os.path.isfile(f"{path}/{MARKER}"):
        return "v1"
    return "v2" if os.path.isdir(f"{path}/projects") else ""


def stores_at(path: str) -> list[str]:
    """The predecessor's repositories: the path itself, in it, and in the archives in it."""
    path = os.path.realpath(path)
    if is_store(path):
        return [path]
    below = _dirs(path)
    archived = [inner for name in below if is_archive(name) for inner in _dirs(name)]
    return [one for one in (*below, *archived) if is_store(one)]


def check_there(path: str) -> list[str]:
    """`stores_at`, where there must be one."""
    found = stores_at(path)
    if not found:
        raise BadInput(
            f"{path} holds none of the predecessor's stores.",
            "It is the directory 'checkpoints', or one of the repositories in it.",
        )
    return found


def archives_at(path: str) -> list[str]:
    """What the predecessor put aside of its older kind, by its name."""
    path = os.path.realpath(path)
    if is_archive(path) and os.path.isdir(path):
        return [path]
    return [below for below in _dirs(path) if is_archive(below)]


def is_archive(path: str) -> bool:
    return os.path.basename(path).startswith(ARCHIVE)


def _dirs(path: str) -> list[str]:
    try:
        with os.scandir(path) as found:
            return sorted(entry.path for entry in found if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []


def missing_from(store: Store, path: str, git: str = "git") -> list[str]:
    """What of a predecessor's store is not in ours: roots and reasons; nothing if all is."""
    missing: list[str] = []
    with Reader.all_below(path, git, store.disk) as readers:
        for reader in readers.values():
            for chain in reader.chains():
                marks = History(store, root_of(chain.root).id).marks()
                there = {mark.extra.get("commit") for mark in marks}
                left = [c for c in reader.commits(chain) if c.id.hex() not in there]
                if left:
                    missing.append(f"{show_path(chain.root)}: {len(left)} checkpoints")
            missing += reader.errors
    return missing


class Reader:
    """Owns one `git cat-file` on one repository."""

    def __init__(self, git_dir: str, program: str, disk: Disk) -> None:
        self.git_dir = git_dir
        self.program = program
        self.disk = disk
        self.errors: list[str] = []
        self._batch: subprocess.Popen[bytes] | None = None

    @classmethod
    @contextmanager
    def all_below(cls, path: str, git: str, disk: Disk) -> Iterator[dict[str, Reader]]:
        """One for each of the predecessor's stores at a path; there must be one."""
        program = shutil.which(git)
        if program is None:
            raise TurnmarkError(
                "There is no git on this machine, and the predecessor's stores are read by it.",
                "Install git; turnmark needs it for nothing else.",
            )
        readers = {one: cls(one, program, disk) for one in check_there(path)}
        try:
            yield readers
        finally:
            for reader in readers.values():
                reader.close()

    def close(self) -> None:
        if self._batch is not None:
            self._batch.kill()
            self._batch.communicate()

    # Histories

    def chains(self) -> Iterator[Chain]:
        """What cannot be told is noted in `errors`."""
        self.errors = []
        try:
            if self._ask("rev-parse", "--show-object-format").strip() != b"sha1":
                raise TurnmarkError(f"{self.git_dir} is not in git's SHA-1 format.")
            yield from self._of_one() if is_store(self.git_dir) == "v1" else self._of_all()
        except TurnmarkError as error:
            self.errors.append(error.message)

    def _of_one(self) -> Iterator[Chain]:
        root = self._root(self._text(MARKER))
        if root and self._ask("for-each-ref", "--count=1"):
            yield Chain(self.git_dir, "HEAD", root, self._rules(cap=0))

    def _of_all(self) -> Iterator[Chain]:
        refs = self._ask("for-each-ref", "--format=%(refname)", REFS).decode()
        for ref in refs.splitlines():
            root = self._root(self._workdir(ref.rpartition("/")[2]))
            if root:
                yield Chain(self.git_dir, ref, root, self._rules(cap=CAP))

    def _workdir(self, name: str) -> str:
        try:
            return str(json.loads(self._text(f"projects/{name}.json"))["workdir"])
        except (ValueError, KeyError, TypeError):
            return ""

    def _text(self, name: str) -> str:
        try:
            return self.disk.read_file(f"{self.git_dir}/{name}").decode("utf-8-sig").strip()
        except (OSError, ValueError):
            return ""

    def _root(self, text: str) -> bytes:
        """Where a history belongs, resolved as far as it is still there."""
        if text.startswith("/") and "\0" not in text:
            return os.path.realpath(os.fsencode(text))
        self.errors.append(f"{self.git_dir} does not say of which directory a history is.")
        return b""

    def _rules(self, *, cap: int) -> RuleSet:
        """What the predecessor left out, so that a rollback to its points leaves that alone too."""
        lines = self._text("info/exclude").splitlines()
        exclude = tuple(line for line in lines if line and not line.startswith("#"))
        return RuleSet(exclude=exclude, protect=(), gitignore=True, max_file_size=cap)

    def commits(self, chain: Chain) -> list[Commit]:
        """Oldest first."""
        named = self._ask("rev-list", "--reverse", "--first-parent", chain.ref, "--")
        ids = [Oid(bytes.fromhex(line)) for line in named.decode().split()]
        return [self._commit(oid, chain) for oid in ids]

    def _commit(self, oid: Oid, chain: Chain) -> Commit:
        headers, message = parse_headers(self.read("commit", oid))
        written = re.search(rb"> (\d{1,11}) [+-]\d{4}$", headers.get(b"author", b""))
        seconds = int(written[1]) if written else 0
        reason = message.decode("utf-8", "replace")
        tree = header_oid(headers, b"tree")
        return Commit(oid, tree, seconds * 1_000_000_000, reason, chain)

    # git

    def _ask(self, *words: str) -> bytes:
        try:
            done = subprocess.run(
                self._command(*words),
                cwd="/",
                env=ALONE,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise TurnmarkError(f"git took more than {TIMEOUT} s on {self.git_dir}.") from error
        if done.returncode:
            said = " ".join(done.stderr.decode("utf-8", "replace").split())
            raise TurnmarkError(f"git cannot read {self.git_dir}: {said[:300]}")
        return done.stdout

    def _command(self, *words: str) -> list[str]:
        return [self.program, *READ_ONLY, f"--git-dir={self.git_dir}", *words]

    def read(self, kind: Kind, oid: Oid) -> bytes:
        """An object, its hash verified, which git does not do here."""
        if oid == EMPTY_TREE:
            return b""
        asks, answers = self._pipes()
        asks.write(oid.hex().encode() + b"\n")
        asks.flush()
        head = answers.readline().split()
        if len(head) != 3:
            raise Damaged(f"{self.git_dir} lacks the object {oid.hex()}.")
        data = answers.read(int(head[2]))
        answers.read(1)
        if head[1] != kind.encode() or hash_object(kind, data) != oid:
            raise Damaged(f"{self.git_dir} has another object in the place of {oid.hex()}.")
        return data

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        if self._batch is None:
            self._batch = subprocess.Popen(
                self._command("cat-file", "--batch"),
                cwd="/",
                env=ALONE,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        asks, answers = self._batch.stdin, self._batch.stdout
        assert asks is not None
        assert answers is not None
        return asks, answers
