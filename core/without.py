"""A workspace without what one turn changed: the turn's end, its begin and now, merged by path.

Pure but for the readers of the states it is given. What came after the turn stays: a path that is
still as the turn left it becomes what it was before, of a text only the turn's lines are taken out,
and where both cannot be had it is a conflict. A file that was renamed is followed: what a turn
changed in it is taken out under its new name, and a turn's own renaming of a file that was edited
since is taken back with the edits in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from .about import About
from .diff import diff_trees, tree_changes
from .lines import is_binary
from .merge import Favor, merge
from .model import (
    EMPTY_TREE,
    EXEC,
    FILE,
    LINK,
    ROOT,
    TREE,
    Entry,
    Oid,
    RelPath,
    is_within,
    parents,
    show_path,
)
from .objects import Kind, encode_tree, hash_object, parse_tree
from .plan import Left, Node, State, changes_between
from .renames import Moves, find_moves

Side = Literal["", "markers", "mine", "theirs"]
"""What becomes of conflicts: nothing yet, marks in the text, what is there, or the turn out."""

Objects = dict[Oid, tuple[Kind, bytes]]
Wanted = Mapping[RelPath, tuple[Node | None, Node | None]]
"""Of each path what the turn made of it, and what it was before."""

NO_PLACE = "something else is in the place of its directory"
HOLDS_MORE = "the directory in its place holds what came later"


@dataclass(frozen=True)
class Turn:
    """The two states that a turn lies between, and what it is called."""

    name: str
    begin: State
    end: State


class Trees:
    """Looks up many paths, and parses each tree once."""

    def __init__(self, state: State) -> None:
        self._read = state.read_tree
        self._parsed: dict[Oid, dict[bytes, Entry]] = {}

    def entry(self, tree: Oid, path: RelPath) -> Entry | None:
        found: Entry | None = Entry(TREE, tree)
        for name in path.split(b"/") if path else []:
            if found is None or found.mode != TREE:
                return None
            found = self.children(found.oid).get(name)
        return found

    def children(self, tree: Oid) -> dict[bytes, Entry]:
        if tree not in self._parsed:
            self._parsed[tree] = {} if tree == EMPTY_TREE else parse_tree(self._read(tree))
        return self._parsed[tree]


@dataclass
class Rest:
    """What is left without the turns taken out so far."""

    state: State
    objects: Objects = field(default_factory=dict)
    """Trees and texts that the store need not hold yet."""
    kept: list[Left] = field(default_factory=list)
    conflicts: list[Left] = field(default_factory=list)
    marked: list[Left] = field(default_factory=list)
    followed: list[Left] = field(default_factory=list)
    """Files that the turn knew by another name."""


def without(now: State, turns: Iterable[Turn], side: Side = "") -> Rest:
    """Takes out the turns in the order given, which is to be newest first."""
    rest = Rest(now)
    rest.state = _reading(now, rest.objects)
    for turn in turns:
        _take_out(rest, turn, side)
    return rest


def _reading(state: State, objects: Objects) -> State:
    """The same state, with readers that know the new objects as well."""

    def read_tree(oid: Oid) -> bytes:
        return objects[oid][1] if oid in objects else state.read_tree(oid)

    def read_blob(oid: Oid) -> bytes:
        return objects[oid][1] if oid in objects else state.read_blob(oid)

    return replace(state, read_tree=read_tree, read_blob=read_blob)


def _take_out(rest: Rest, turn: Turn, side: Side) -> None:
    wanted, left = changes_between(turn.end, turn.begin)
    rest.kept += [Left(one.path, f"not captured around {turn.name}") for one in left]
    work = _Work(rest, turn, side, wanted)
    renamed = work.take_renames_back()
    for path, (was, shall) in sorted(wanted.items()):
        if path not in renamed:
            work.decide(path, was, shall)
    work.check_places()
    rest.state = _changed(rest.state, turn.begin.about, work.results, rest.objects)


class _Work:
    """Owns what one turn's paths shall become."""

    def __init__(self, rest: Rest, turn: Turn, side: Side, wanted: Wanted) -> None:
        self.rest = rest
        self.turn = turn
        self.side = side
        self.wanted = wanted
        self.now = rest.state
        self.results: dict[RelPath, Node | None] = {}
        self._from: dict[RelPath, RelPath] = {}
        """Where what is to get its old name back is now, if not where the turn had put it."""
        self._trees = Trees(self.now)

    def here(self, path: RelPath) -> Node | None:
        return self.now.node(path, self._trees.entry(self.now.files, path))

    def after(self, path: RelPath) -> Node | None:
        return self.results[path] if path in self.results else self.here(path)

    def decide(self, path: RelPath, was: Node | None, shall: Node | None) -> None:
        gap = self.now.about.gap_at(path)
        if gap is not None:
            self.rest.kept.append(Left(path, f"{gap} now"))
            return
        here = self.here(path)
        if here is None and _are_files(was) and self.decide_elsewhere(path, was, shall):
            return
        if here in (was, shall):
            result: Node | None = shall
        elif _are_files(was, here, shall):
            assert was is not None and here is not None and shall is not None
            result = self.merged(path, was, here, shall)
        elif _is_dir(was) or _is_dir(shall):
            result = self.directory(path, was, here, shall)
        else:
            result = self.conflict(path, _why(was, here), here, shall)
        if result != here:
            self.results[path] = result

    # Files that have another name

    @cached_property
    def _since(self) -> Moves:
        """What became of names after the turn."""
        return self._moves(self.turn.end.files, self.now.files)

    @cached_property
    def _own_moves(self) -> Moves:
        return self._moves(self.turn.begin.files, self.turn.end.files)

    def _moves(self, old: Oid, new: Oid) -> Moves:
        changes = list(diff_trees(self.now.read_tree, old, new))
        return find_moves(changes, lambda entry: self.now.read_blob(entry.oid))

    def decide_elsewhere(self, path: RelPath, was: Node | None, shall: Node | None) -> bool:
        """Where the file has another name since, that is decided; whether it has one."""
        goal = self._since.new_of.get(path)
        here = self.here(goal) if goal is not None else None
        if goal is None or goal in self.wanted or not _are_files(here):
            return False
        if shall is None:
            if self.conflict(goal, "renamed since", here, None) is None:
                self.results[goal] = None
        elif _are_files(shall):
            self.decide(goal, was, shall)
            self.rest.followed.append(Left(goal, f"{show_path(path)} at {self.turn.name}"))
        else:
            return False
        return True

    def take_renames_back(self) -> set[RelPath]:
        """The turn's own, of files that are not any more as it left them; both names of each."""
        gone = [p for p, (was, shall) in self.wanted.items() if was is None and _are_files(shall)]
        came = [p for p, (was, shall) in self.wanted.items() if shall is None and _are_files(was)]
        if not gone or all(self.here(path) == self.wanted[path][0] for path in came):
            return set()
        taken: set[RelPath] = set()
        for old, new in self._own_moves.new_of.items():
            if self.here(old) is None and self.take_rename_back(old, new):
                taken |= {old, new}
        return taken

    def take_rename_back(self, old: RelPath, new: RelPath) -> bool:
        """False where it need not be known that it was a renaming."""
        was, shall = self.wanted.get(new, (None, None))[0], self.wanted.get(old, (None, None))[1]
        at = new if self.here(new) is not None else self._since.new_of.get(new)
        here = self.here(at) if at is not None else None
        if not _are_files(was, shall) or (here is not None and not _are_files(here)):
            return False
        if here == was and at == new:
            return False
        if any(self.now.about.gap_at(path) for path in (old, at or new)):
            return False
        if at != new and self.side != "theirs":
            self.conflict(new, "renamed again since" if at else "deleted since", here, shall)
            return True
        conflicts = len(self.rest.conflicts)
        result = shall
        if was is not None and here is not None and shall is not None:
            result = self.merged(old, was, here, shall)
        if len(self.rest.conflicts) == conflicts:
            self.results |= {old: result, at or new: None}
            if at is not None:
                self._from[old] = at
        return True

    def directory(
        self, path: RelPath, was: Node | None, here: Node | None, shall: Node | None
    ) -> Node | None:
        """Where a directory came or went; one that the turn made goes, if nothing else is in it."""
        if _is_dir(was) and _is_dir(shall):
            return here  # its permissions alone, and they changed since
        if _is_dir(here):
            return shall if was is not None and not _is_dir(shall) else here
        if here is None and _is_dir(shall):
            return self.conflict(path, "deleted since", here, shall)
        if shall is None or (here is None and was is None):
            return here
        return self.conflict(path, _why(was, here), here, shall)

    def conflict(
        self, path: RelPath, why: str, here: Node | None, shall: Node | None
    ) -> Node | None:
        if self.side == "theirs":
            return shall
        if self.side:
            self.rest.kept.append(Left(path, why))
        else:
            self.rest.conflicts.append(Left(path, why))
        return here

    # Files

    def merged(self, path: RelPath, was: Node, here: Node, shall: Node) -> Node:
        mode = self.mode(path, was, here, shall)
        oid = self.content(path, was, here, shall)
        return Node(here.kind, oid, mode)

    def mode(self, path: RelPath, was: Node, here: Node, shall: Node) -> int | None:
        if here.mode == was.mode:
            return shall.mode
        if shall.mode in (was.mode, here.mode):
            return here.mode
        settled = self.conflict(path, "its permissions changed since", here, shall)
        return settled.mode if settled else here.mode

    def content(self, path: RelPath, was: Node, here: Node, shall: Node) -> Oid | None:
        if here.oid == was.oid:
            return shall.oid
        if shall.oid in (was.oid, here.oid):
            return here.oid
        texts = [self.now.read_blob(node.oid) for node in (was, here, shall) if node.oid]
        if any(map(is_binary, texts)):
            settled = self.conflict(path, "changed since, and is no text", here, shall)
            return settled.oid if settled else here.oid
        return self.merged_text(path, texts, here)

    def merged_text(self, path: RelPath, texts: list[bytes], here: Node) -> Oid | None:
        favors: dict[Side, Favor] = {"mine": "ours", "theirs": "theirs"}
        names = (b"now", f"before {self.turn.name}".encode())
        found = merge(texts[0], texts[1], texts[2], names)
        why = "the same lines changed since"
        if found.conflicts and self.side in favors:
            if self.side == "mine":
                self.rest.kept.append(Left(path, why))
            found = merge(texts[0], texts[1], texts[2], names, favors[self.side])
        elif found.conflicts and self.side == "markers":
            self.rest.marked.append(Left(path, why))
        elif found.conflicts:
            self.rest.conflicts.append(Left(path, why))
            return here.oid
        return self.stored(found.data)

    def stored(self, data: bytes) -> Oid:
        oid = hash_object("blob", data)
        self.rest.objects[oid] = ("blob", data)
        return oid

    # Places

    def check_places(self) -> None:
        """What is to come needs a directory to be in, and a directory in its place must be empty.

        Neither can be had by a side: what is there stays.
        """
        for path, result in sorted(self.results.items()):
            if result is None or self.results.get(path) is not result:
                continue
            if any(not _may_hold(self.after(above)) for above in parents(path)):
                self.leave(path, NO_PLACE)
            elif not _is_dir(result) and _is_dir(self.here(path)) and self.holds_more(path):
                self.leave(path, HOLDS_MORE)

    def leave(self, path: RelPath, why: str) -> None:
        """What was to get that name back keeps the one it has."""
        del self.results[path]
        at = self._from.get(path) or self._own_moves.new_of.get(path)
        if at is not None and self.results.get(at, path) is None:
            del self.results[at]
        (self.rest.kept if self.side else self.rest.conflicts).append(Left(path, why))

    def holds_more(self, top: RelPath) -> bool:
        return any(
            path not in self.results or self.results[path] is not None
            for path in _below(self.now, top)
        )


def _are_files(*nodes: Node | None) -> bool:
    """Only contents of one kind can be merged; a link is taken whole."""
    return all(node is not None and node.kind == "file" for node in nodes)


def _is_dir(node: Node | None) -> bool:
    return node is not None and node.kind == "dir"


def _may_hold(node: Node | None) -> bool:
    """A directory, or nothing: then one is made."""
    return node is None or node.kind == "dir"


def _why(was: Node | None, here: Node | None) -> str:
    if here is None:
        return "deleted since"
    if was is None:
        return "made anew since"
    return "changed since" if was.kind == here.kind else "something else since"


def _below(state: State, top: RelPath) -> Iterator[RelPath]:
    """Files and directories below a directory."""
    entry = Trees(state).entry(state.files, top)
    tree = entry.oid if entry is not None and entry.mode == TREE else EMPTY_TREE
    for change in tree_changes(state.read_tree, state.read_tree, EMPTY_TREE, tree):
        yield RelPath(top + b"/" + change.path)
    yield from (path for path in state.about.empty if path != top and is_within(path, top))


# The state that results


def _changed(
    now: State, then: About, results: Mapping[RelPath, Node | None], objects: Objects
) -> State:
    """The state with some paths otherwise; directories that have to come are as they were then."""
    if not results:
        return now
    entries = {path: _entry(node) for path, node in results.items() if path != ROOT}
    files = _rewritten(now, now.files, entries, objects)
    trees = Trees(now)
    empty = _empty_dirs(now, lambda path: trees.entry(files, path) is not None, results)
    about = replace(now.about, empty=empty)
    made = replace(now, files=files, about=about)
    return replace(made, about=replace(about, modes=_modes(now, made, then, trees, results)))


def _entry(node: Node | None) -> Entry | None:
    """A directory has no entry of its own: what is in it has."""
    if node is None or node.kind == "dir":
        return None
    assert node.oid is not None
    if node.kind == "link":
        return Entry(LINK, node.oid)
    return Entry(EXEC if (node.mode or 0) & 0o100 else FILE, node.oid)


def _rewritten(
    state: State, tree: Oid, changes: Mapping[Any, Entry | None], objects: Objects
) -> Oid:
    entries = parse_tree(state.read_tree(tree)) if tree != EMPTY_TREE else {}
    below: dict[bytes, dict[bytes, Entry | None]] = {}
    for path, entry in changes.items():
        name, slash, inner = path.partition(b"/")
        if slash:
            below.setdefault(name, {})[inner] = entry
        elif entry is not None:
            entries[name] = entry
        elif name in entries and entries[name].mode != TREE:
            del entries[name]
    for name, inside in below.items():
        _set_subtree(state, entries, name, inside, objects)
    if not entries:
        return EMPTY_TREE
    raw = encode_tree(entries.items())
    oid = hash_object("tree", raw)
    objects[oid] = ("tree", raw)
    return oid


def _set_subtree(
    state: State,
    entries: dict[bytes, Entry],
    name: bytes,
    inside: Mapping[bytes, Entry | None],
    objects: Objects,
) -> None:
    old = entries.get(name)
    was = old.oid if old is not None and old.mode == TREE else EMPTY_TREE
    new = _rewritten(state, was, inside, objects)
    if new != EMPTY_TREE:
        entries[name] = Entry(TREE, new)
    elif was != EMPTY_TREE:
        del entries[name]


def _empty_dirs(
    now: State, in_tree: Callable[[RelPath], bool], results: Mapping[RelPath, Node | None]
) -> frozenset[RelPath]:
    """Directories that no tree shows: those that were, those that come, those that lost all."""
    gone = {path for path, node in results.items() if not _is_dir(node)}
    came = {path for path, node in results.items() if _is_dir(node)}
    left = {above for path in gone for above in parents(path) if above not in gone}
    dirs = (now.about.empty | came | left) - gone - {ROOT}
    dirs |= {above for path in dirs for above in parents(path)} - {ROOT}
    return frozenset(path for path in dirs if not in_tree(path))


def _modes(
    now: State,
    made: State,
    then: About,
    trees: Trees,
    results: Mapping[RelPath, Node | None],
) -> dict[RelPath, int]:
    wanted = {path: None if node is None else node.mode for path, node in results.items()}
    came = {above for path, node in results.items() if node is not None for above in parents(path)}
    for path in came - results.keys() - {ROOT}:
        if not _is_dir(now.node(path, trees.entry(now.files, path))):
            wanted[path] = then.mode(path, TREE)
    modes = dict(now.about.modes)
    for path, mode in wanted.items():
        entry = trees.entry(made.files, path)
        if mode is not None and mode != now.about.usual.of(entry.mode if entry else TREE):
            modes[path] = mode
        elif mode is not None or made.node(path, entry) is None:
            modes.pop(path, None)  # only what is not usual is written down
    return modes
