"""What a rollback would do: the difference of two complete snapshots, as steps in a safe order.

Pure but for the readers it is given. A path that either snapshot did not capture, or that the
rules of either leave out, gets no step; what thereby stands between the result and the point is
said. Deletions are what the present snapshot holds and the target does not, never "the rest".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, NamedTuple

from .about import About
from .diff import ReadTree, differing, dirs_of, entry_at, files_of, tree_changes
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
    is_within,
    join,
    parents,
    show_path,
)
from .objects import is_inside, parse_tree
from .rules import STAGING_PREFIX, DirRules, is_git_alias

Action = Literal["open", "clear", "mkdir", "create", "replace", "delete", "rmdir", "chmod"]
Kind = Literal["file", "link", "dir"]
ReadBlob = Callable[[Oid], bytes]

FUSE_DELETIONS = 100
FUSE_SHARE = 0.3
OWNER_ALL = 0o700
MINE = "changed by you since"
UNATTRIBUTED = "changed since, nobody knows by whom"
MERELY_LEFT_OUT = frozenset({"excluded", "ignored"})


class Node(NamedTuple):
    """What is at a path: a file or link with its content, or a directory; and its permissions."""

    kind: Kind
    oid: Oid | None
    mode: int | None

    def same_content(self, other: Node) -> bool:
        return (self.kind, self.oid) == (other.kind, other.oid)


@dataclass(frozen=True, slots=True)
class Step:
    """One change to the tree: from what must be there to what shall be."""

    action: Action
    path: RelPath
    old: Node | None
    new: Node | None


@dataclass(frozen=True, slots=True)
class Left:
    """A path that a rollback did not bring to its point, and why."""

    path: RelPath
    reason: str


@dataclass(frozen=True)
class Plan:
    """The steps in the order in which they are made, and what will not be done."""

    target: Oid
    steps: tuple[Step, ...]
    kept: tuple[Left, ...]
    fuses: tuple[str, ...]
    hash: str

    def paths(self, *actions: Action) -> list[RelPath]:
        return [step.path for step in self.steps if step.action in actions]


@dataclass(frozen=True)
class State:
    """One complete look at the workspace: its tree, what the tree cannot say, and readers."""

    files: Oid
    about: About
    read_tree: ReadTree
    read_blob: ReadBlob

    def reading_once(self) -> State:
        """The same, for whoever comes to the same trees more than once."""
        return replace(self, read_tree=cache(self.read_tree))

    def gitignore_of(self, directory: RelPath) -> bytes | None:
        entry = entry_at(self.read_tree, self.files, join(directory, b".gitignore"))
        return self.read_blob(entry.oid) if entry and entry.mode in (FILE, EXEC) else None

    def node(self, path: RelPath, entry: Entry | None) -> Node | None:
        """What this state has at a path whose tree entry is known."""
        if entry is None:
            return self.dir_node(path) if path in self.about.empty else None
        if entry.mode == TREE:
            return self.dir_node(path)
        if entry.mode == LINK:
            return Node("link", entry.oid, None)
        return Node("file", entry.oid, self.about.mode(path, entry.mode))

    def node_at(self, path: RelPath) -> Node | None:
        return self.node(path, entry_at(self.read_tree, self.files, path))

    def leaves_out(self, path: RelPath) -> bool:
        """Whether there may be something that was not captured."""
        return self.about.gap_at(path) is not None and self.node_at(path) is None

    def dir_node(self, path: RelPath) -> Node:
        return Node("dir", None, self.about.mode(path, TREE))


def gone_unheld(now: State, then: State, tops: tuple[RelPath, ...] = ()) -> list[Left]:
    """What was there and not captured, and is there no more: nothing can bring it back."""
    return [
        Left(path, reason)
        for path, reason in sorted(then.about.gaps.items())
        if reason != "torn"  # of which there is what could be read
        and _asked(path, tops)
        and now.about.gap_at(path) is None
        and path not in now.about.empty
        and entry_at(now.read_tree, now.files, path) is None
    ]


Wanted = dict[RelPath, tuple[Node | None, Node | None]]
"""Paths as they are and as they shall be."""

Stays = Mapping[RelPath, str]
"""Paths that are to be left as they are, and why."""


def make_plan(
    now: State,
    then: State,
    target: Oid,
    tops: tuple[RelPath, ...] = (),
    stays: Stays | None = None,
) -> Plan:
    """The plan that brings `now` to `then`, everywhere or at and below the given paths; what
    `stays` is left as it is."""
    wanted, kept = changes_between(now, then, tops, stays)
    steps = tuple(_ordered(wanted, now))
    fuses = tuple(_deletion_fuse(steps, now, tops) if tops else _fuses(steps, now, then))
    unique = tuple(sorted(set(kept), key=lambda left: (left.path, left.reason)))
    return Plan(target, steps, unique, fuses, _hash(target, steps))


def changes_between(
    now: State,
    then: State,
    tops: tuple[RelPath, ...] = (),
    stays: Stays | None = None,
) -> tuple[Wanted, list[Left]]:
    """What differs and may be touched, and what differs and is left alone."""
    every = dict(_differences(now, then))
    differing = {path: both for path, both in every.items() if _wanted(path, *both, tops)}
    differing |= _left_empty(now, then, differing, tops)
    guard = _Guard(now, then, _rules_moved(now, then, every))
    wanted: Wanted = {}
    kept: list[Left] = []
    for path, (old, new) in sorted(differing.items()):
        reason, mention = guard.reason(path, old, new)
        if reason is None and stays and (why := _why_to_stay(path, now, stays)):
            reason, mention = why, True
        if reason is None:
            wanted[path] = (old, new)
        elif mention:
            kept.append(Left(path, reason))
    kept += guard.gaps_between(tops)
    _keep_occupied(wanted, guard, kept)
    return wanted, kept


def _why_to_stay(path: RelPath, now: State, stays: Stays) -> str | None:
    """Also where a directory above it is to stay what it is now: none."""
    if path in stays:
        return stays[path]
    held = (stays[top] for top in parents(path) if top in stays and not _is_dir_in(now, top))
    return next(held, None)


def _is_dir_in(state: State, path: RelPath) -> bool:
    node = state.node_at(path)
    return node is not None and node.kind == "dir"


# What differs


def changed_paths(old: State, new: State) -> set[RelPath]:
    """Every path that differs, be it by its permissions alone."""
    return set(dict(_differences(old, new)))


def changed_among(old: State, new: State, paths: Collection[RelPath]) -> Iterator[RelPath]:
    """Which of the given paths differ; equal trees, and all that is beside the paths, are not read.

    Where there are long histories and few paths, that is what counts.
    """
    below: dict[RelPath, set[bytes]] = {}
    for path in paths:
        head: bytes = path
        while head:
            head, _, name = head.rpartition(b"/")
            known = below.setdefault(RelPath(head), set())
            if name in known:
                break
            known.add(name)
    asked = set(paths)
    seen: set[RelPath] = set()
    for path, was, now in _other_entries(old, new, below):
        seen.add(path)
        if path in asked and old.node(path, was) != new.node(path, now):
            yield path
    for path in _of_other_modes(old.about, new.about, asked) - seen:
        one, other = _pair_at(old, new, path)
        if one != other:
            yield path


def _other_entries(
    old: State, new: State, below: Mapping[RelPath, set[bytes]]
) -> Iterator[tuple[RelPath, Entry | None, Entry | None]]:
    """Where entries differ; `below` says which names of which directories are of interest."""
    waiting = [(ROOT, old.files, new.files)]
    while waiting:
        here, one, other = waiting.pop()
        if one == other:
            continue
        names = below.get(here, set())
        for name, was, now in differing(_raw(old, one), _raw(new, other)) if names else ():
            if name in names:
                path = join(here, name)
                yield path, was, now
                waiting.append((path, _tree_oid(was), _tree_oid(now)))


def _raw(state: State, tree: Oid) -> bytes:
    return b"" if tree == EMPTY_TREE else state.read_tree(tree)


def _tree_oid(entry: Entry | None) -> Oid:
    return entry.oid if entry is not None and entry.mode == TREE else EMPTY_TREE


def _of_other_modes(one: About, other: About, asked: set[RelPath]) -> set[RelPath]:
    if one is other:
        return set()
    if one.usual != other.usual:
        return asked
    return {
        path
        for path in asked
        if one.modes.get(path) != other.modes.get(path)
        or (path in one.empty) != (path in other.empty)
    }


def _differences(
    now: State, then: State
) -> Iterator[tuple[RelPath, tuple[Node | None, Node | None]]]:
    seen: set[RelPath] = set()
    for change in tree_changes(now.read_tree, then.read_tree, now.files, then.files):
        path = change.path
        seen.add(path)
        old, new = now.node(path, change.old), then.node(path, change.new)
        if old != new:
            yield path, (old, new)
    for path in _other_candidates(now, then) - seen:
        old, new = _pair_at(now, then, path)
        if old != new:
            yield path, (old, new)


def _left_empty(
    now: State,
    then: State,
    differing: dict[RelPath, tuple[Node | None, Node | None]],
    tops: tuple[RelPath, ...],
) -> dict[RelPath, tuple[Node | None, Node | None]]:
    """Directories above the given paths that the point lacks and that hold only what goes."""
    going = {path for path, (_, new) in differing.items() if new is None}
    found: dict[RelPath, tuple[Node | None, Node | None]] = {}
    for path in sorted({p for top in tops for p in parents(top)[:-1]}, key=len, reverse=True):
        old, new = _pair_at(now, then, path)
        if old is None or old.kind != "dir" or new is not None or path in differing:
            continue
        held = _held(now, path)
        if held and held <= going:
            found[path] = (old, None)
            going.add(path)
    return found


def _held(state: State, path: RelPath) -> set[RelPath]:
    """What is directly in a directory."""
    entry = entry_at(state.read_tree, state.files, path)
    names = parse_tree(state.read_tree(entry.oid)) if entry is not None else {}
    empty = {p for p in state.about.empty if p.rpartition(b"/")[0] == path}
    return {join(path, name) for name in names} | empty


def _other_candidates(now: State, then: State) -> set[RelPath]:
    """Paths that may differ though their tree entries do not: by mode, or as empty directories."""
    one, other = now.about, then.about
    found = {
        path
        for path in one.modes.keys() | other.modes.keys()
        if one.modes.get(path) != other.modes.get(path)
    }
    found |= one.empty ^ other.empty
    if one.usual != other.usual:
        found |= {path for path, _ in files_of(then.read_tree, then.files)}
        found |= set(dirs_of(then.read_tree, then.files)) | other.empty | {ROOT}
    return found


def _pair_at(now: State, then: State, path: RelPath) -> tuple[Node | None, Node | None]:
    return now.node_at(path), then.node_at(path)


def _asked(path: RelPath, tops: tuple[RelPath, ...]) -> bool:
    return not tops or any(is_within(path, top) for top in tops)


def _wanted(path: RelPath, old: Node | None, new: Node | None, tops: tuple[RelPath, ...]) -> bool:
    """Whether a path is in scope; so are missing directories above one that is to come back."""
    if _asked(path, tops):
        return True
    made = old is None and new is not None and new.kind == "dir"
    return made and any(is_within(top, path) for top in tops)


# What must not be touched


def _rules_moved(now: State, then: State, differing: Iterable[RelPath]) -> bool:
    """Whether the two states may judge a path differently."""
    return now.about.rules != then.about.rules or any(
        path.rpartition(b"/")[2] == b".gitignore" for path in differing
    )


class _Verdicts:
    """The verdict of one state's rules on any path, remembered by directory."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._dirs: dict[RelPath, DirRules | GapReason] = {}

    def reason(self, path: RelPath, is_dir: bool) -> GapReason | None:
        head, _, name = path.rpartition(b"/")
        above = self._dir(RelPath(head))
        if isinstance(above, str):
            return above
        verdict = above.verdict(name, is_dir)
        return None if verdict in ("capture", "through") else verdict  # type: ignore[return-value]

    def _dir(self, path: RelPath) -> DirRules | GapReason:
        found = self._dirs.get(path)
        if found is None:
            found = self._dirs[path] = self._judge_dir(path)
        return found

    def _judge_dir(self, path: RelPath) -> DirRules | GapReason:
        gitignore = self._state.gitignore_of(path)
        if path == ROOT:
            return DirRules.root(self._state.about.rules, gitignore)
        reason = self.reason(path, True)
        head, _, name = path.rpartition(b"/")
        above = self._dir(RelPath(head))
        if reason is not None or isinstance(above, str):
            return reason or str(above)  # type: ignore[return-value]
        return above.child(name, gitignore)


class _Guard:
    """Says of a differing path why it is left alone, if it is."""

    def __init__(self, now: State, then: State, rules_moved: bool) -> None:
        self.now = now
        self.then = then
        self._rules_moved = rules_moved
        self._verdicts = (_Verdicts(now), _Verdicts(then))
        self._gap_dirs = {above for path in now.about.gaps for above in parents(path)}

    def reason(self, path: RelPath, old: Node | None, new: Node | None) -> tuple[str | None, bool]:
        """The reason, and whether it stands between the result and the point."""
        if path == ROOT:
            return None, False
        if _is_sacred(path):
            return "never written", True
        then = self.then.about.gap_at(path)
        if then is not None:
            return f"{then} at that point", then not in MERELY_LEFT_OUT
        now = self.now.about.gap_at(path)
        if now is not None:
            if old is None and now in MERELY_LEFT_OUT and self._is_looked_for(path, new):
                return (None, False) if path not in self.now.about.gaps else (f"{now} now", False)
            return f"{now} now", True
        return self._by_rules(path, old, new)

    def _is_looked_for(self, path: RelPath, new: Node | None) -> bool:
        """Whether what is above is left out, but entered for what is protected in it: a path that
        is captured there whenever it is there, and now is not."""
        is_dir = new is not None and new.kind == "dir"
        return self._verdicts[0].reason(path, is_dir) is None

    def _by_rules(
        self, path: RelPath, old: Node | None, new: Node | None
    ) -> tuple[str | None, bool]:
        if not self._rules_moved:
            return None, False
        is_dir = (old or new or Node("dir", None, None)).kind == "dir"
        now, then = self._verdicts
        reason = then.reason(path, is_dir)
        if reason is not None:
            return f"{reason} at that point", False
        reason = now.reason(path, is_dir)
        return (f"{reason} now", True) if reason is not None else (None, False)

    def gaps_between(self, tops: tuple[RelPath, ...]) -> Iterator[Left]:
        """Gaps that one state has and the other has not, or not for the same reason."""
        now, then = self.now.about.gaps, self.then.about.gaps
        for path in now.keys() | then.keys():
            here, there = now.get(path), then.get(path)
            if here == there or not _asked(path, tops):
                continue
            if here is not None and here not in MERELY_LEFT_OUT:
                yield Left(path, f"{here} now")
            elif there is not None and there not in MERELY_LEFT_OUT and here is None:
                yield Left(path, f"{there} at that point")

    def holds_gaps(self, path: RelPath) -> bool:
        return path in self._gap_dirs

    def blocking(self, path: RelPath) -> list[Left]:
        """What keeps a directory from going away, but for what is merely excluded or ignored."""
        return [
            Left(gap, f"{reason} now")
            for gap, reason in self.now.about.gaps.items()
            if reason not in MERELY_LEFT_OUT and is_within(gap, path)
        ]


def _is_sacred(path: RelPath) -> bool:
    """Whatever a point claims to hold: git's own, and a rollback's staging."""
    return path.startswith(STAGING_PREFIX) or any(map(is_git_alias, path.split(b"/")))


def _keep_occupied(
    wanted: dict[RelPath, tuple[Node | None, Node | None]], guard: _Guard, kept: list[Left]
) -> None:
    """Directories that hold what was not captured stay; so does what should take their place."""
    for path, (old, new) in list(wanted.items()):
        if old is None or old.kind != "dir" or (new is not None and new.kind == "dir"):
            continue
        if not guard.holds_gaps(path) and not _holds_kept(path, kept):
            continue
        del wanted[path]
        kept += guard.blocking(path)
        if new is not None:
            kept.append(Left(path, "the directory in its place holds what was not captured"))


def _holds_kept(path: RelPath, kept: list[Left]) -> bool:
    return any(is_within(left.path, path) for left in kept)


# The order


def _ordered(wanted: dict[RelPath, tuple[Node | None, Node | None]], now: State) -> Iterator[Step]:
    """Make room, make directories, bring contents, delete, remove directories, set modes."""
    groups: dict[Action, list[Step]] = {
        name: [] for name in ("clear", "mkdir", "create", "replace", "delete", "rmdir", "chmod")
    }
    late: list[Step] = []
    for path, (old, new) in sorted(wanted.items()):
        for step in _steps(path, old, new):
            replaces_dir = step.action == "create" and old is not None and old.kind == "dir"
            (late if replaces_dir else groups[step.action]).append(step)
    groups["rmdir"].reverse()
    groups["chmod"].sort(key=lambda s: (s.new is not None and s.new.kind == "dir", _deepest(s)))
    every = [step for group in groups.values() for step in group] + late
    opened = list(_opened(every, now, wanted))
    yield from (Step("open", p, n, n) for p, n in opened)
    for name in ("clear", "mkdir", "create", "replace", "delete", "rmdir"):
        yield from groups[name]
    yield from late
    yield from groups["chmod"]
    yield from (Step("chmod", p, n, n) for p, n in reversed(opened) if p not in wanted)


def _deepest(step: Step) -> tuple[int, RelPath]:
    return -step.path.count(b"/") - bool(step.path), step.path


def _steps(path: RelPath, old: Node | None, new: Node | None) -> Iterator[Step]:
    if old is None:
        assert new is not None
        yield Step("mkdir" if new.kind == "dir" else "create", path, None, new)
        if new.kind == "dir":
            yield Step("chmod", path, new, new)
    elif new is None:
        yield Step("rmdir" if old.kind == "dir" else "delete", path, old, None)
    elif old.kind == "dir" and new.kind == "dir":
        yield Step("chmod", path, old, new)
    elif old.kind == "dir":
        yield Step("rmdir", path, old, None)
        yield Step("create", path, old, new)
    elif new.kind == "dir":
        yield Step("clear", path, old, new)
        yield Step("mkdir", path, old, new)
        yield Step("chmod", path, new, new)
    else:
        same = old.same_content(new)
        yield Step("chmod" if same else "replace", path, old, new)


def _opened(
    steps: list[Step], now: State, wanted: dict[RelPath, tuple[Node | None, Node | None]]
) -> Iterator[tuple[RelPath, Node]]:
    """Existing directories that are to be changed and that their owner may not write into."""
    above = {p for s in steps if s.action != "chmod" and s.path for p in parents(s.path)[:1]}
    for path in sorted(above):
        mode = now.about.mode(path, TREE)
        if mode & OWNER_ALL == OWNER_ALL:
            continue
        made = wanted.get(path, (Node("dir", None, mode),))[0]
        if made is not None and made.kind == "dir":
            yield path, Node("dir", None, mode)


# Fuses and the hash


def _fuses(steps: tuple[Step, ...], now: State, then: State) -> Iterator[str]:
    here = sum(1 for _ in files_of(now.read_tree, now.files)) if _suspicious(steps) else 0
    if not here:
        return
    there = sum(1 for _ in files_of(then.read_tree, then.files))
    if there == 0:
        yield f"the point holds no files at all, and {here} are here now"
    elif 2 * there < here:
        files = "1 file" if there == 1 else f"{there} files"
        yield f"the point holds {files}, less than half of the {here} here now"
    yield from _too_many(len([s for s in steps if s.action in ("delete", "clear")]), here)


def _suspicious(steps: tuple[Step, ...]) -> bool:
    """Counting the files of both trees costs; without a deletion no fuse can blow."""
    return any(step.action in ("delete", "clear") for step in steps)


def _deletion_fuse(steps: tuple[Step, ...], now: State, tops: tuple[RelPath, ...]) -> Iterator[str]:
    deletions = len([s for s in steps if s.action in ("delete", "clear")])
    if deletions > FUSE_DELETIONS:
        every = files_of(now.read_tree, now.files)
        yield from _too_many(deletions, sum(1 for path, _ in every if _asked(path, tops)))


def _too_many(deletions: int, here: int) -> Iterator[str]:
    if deletions > FUSE_DELETIONS and deletions > FUSE_SHARE * here:
        yield f"it would delete {deletions} of {here} files"


def _hash(target: Oid, steps: tuple[Step, ...]) -> str:
    doc = [[s.action, show_path(s.path), _plain(s.old), _plain(s.new)] for s in steps]
    text = json.dumps([target.hex(), doc]).encode()
    return hashlib.sha256(text).hexdigest()[:16]


def _plain(node: Node | None) -> list[object] | None:
    return [node.kind, node.oid.hex() if node.oid else None, node.mode] if node else None


def encode_step(step: Step) -> list[object]:
    return [step.action, show_path(step.path), _plain(step.old), _plain(step.new)]


def decode_step(doc: list[object]) -> Step:
    action, name, old, new = doc
    path = RelPath(str(name).encode("utf-8", "surrogateescape"))
    if not is_inside(path):
        raise ValueError(name)
    return Step(action, path, _node(old), _node(new))  # type: ignore[arg-type]


def _node(doc: object) -> Node | None:
    if not isinstance(doc, list):
        return None
    kind, oid, mode = doc
    return Node(kind, Oid(bytes.fromhex(oid)) if oid else None, mode)
