"""Tree against tree: which paths differ. Skips equal subtrees, so the cost follows the change.

Pure but for the reader of trees that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from .model import EMPTY_TREE, ROOT, TREE, Change, Entry, Oid, RelPath, join
from .objects import entry_of, named_entries, parse_tree, split_tree

ReadTree = Callable[[Oid], bytes]


def diff_trees(read: ReadTree, old: Oid, new: Oid) -> Iterator[Change]:
    """Every file and link that is not the same in both trees."""
    for change in tree_changes(read, read, old, new):
        was, now = _leaf(change.old), _leaf(change.new)
        if was is not None or now is not None:
            yield Change(change.path, was, now)


def tree_changes(read_old: ReadTree, read_new: ReadTree, old: Oid, new: Oid) -> Iterator[Change]:
    """Every path that differs; a directory only where the other side has none of that name."""
    waiting: list[tuple[RelPath, Oid, Oid]] = [(ROOT, old, new)]
    while waiting:
        path, one, other = waiting.pop()
        if one == other:
            continue
        for name, was, now in differing(_raw(read_old, one), _raw(read_new, other)):
            here = join(path, name)
            if _is_tree(was) or _is_tree(now):
                waiting.append((here, _subtree(was), _subtree(now)))
            if not (_is_tree(was) and _is_tree(now)):
                yield Change(here, was, now)


def differing(old: bytes, new: bytes) -> Iterator[tuple[bytes, Entry | None, Entry | None]]:
    """The names that two trees have otherwise, in order; only their entries are taken apart."""
    was, now = split_tree(old), split_tree(new)
    if len(was) == len(now):  # most often the names are the same
        pairs = [pair for pair in zip(was, now, strict=True) if pair[0] != pair[1]]
        if len(pairs) == 1 and pairs[0][0][1] == pairs[0][1][1]:  # and most often one is changed
            one, other = entry_of(pairs[0][0]), entry_of(pairs[0][1])
            if one != other:
                yield pairs[0][0][1], one, other
            return
        before = named_entries(one for one, _ in pairs)
        after = named_entries(other for _, other in pairs)
    else:
        before, after = named_entries(set(was) - set(now)), named_entries(set(now) - set(was))
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield name, before.get(name), after.get(name)


def _raw(read: ReadTree, oid: Oid) -> bytes:
    return b"" if oid == EMPTY_TREE else read(oid)


def _entries(read: ReadTree, oid: Oid) -> dict[bytes, Entry]:
    return {} if oid == EMPTY_TREE else parse_tree(read(oid))


def _is_tree(entry: Entry | None) -> bool:
    return entry is not None and entry.mode == TREE


def _subtree(entry: Entry | None) -> Oid:
    return entry.oid if entry is not None and entry.mode == TREE else EMPTY_TREE


def _leaf(entry: Entry | None) -> Entry | None:
    return None if entry is None or entry.mode == TREE else entry


def files_of(read: ReadTree, tree: Oid) -> Iterator[tuple[RelPath, Entry]]:
    """Every file and link of a tree."""
    for change in diff_trees(read, EMPTY_TREE, tree):
        assert change.new is not None
        yield change.path, change.new


def dirs_of(read: ReadTree, tree: Oid) -> Iterator[RelPath]:
    """Every directory of a tree but its root."""
    waiting: list[tuple[RelPath, Oid]] = [(ROOT, tree)]
    while waiting:
        path, oid = waiting.pop()
        for name, entry in _entries(read, oid).items():
            if entry.mode == TREE:
                here = join(path, name)
                yield here
                waiting.append((here, entry.oid))


def entry_at(read: ReadTree, tree: Oid, path: RelPath) -> Entry | None:
    """What a tree holds at one path."""
    found: Entry | None = Entry(TREE, tree)
    for name in path.split(b"/") if path else []:
        if found is None or found.mode != TREE:
            return None
        found = _entries(read, found.oid).get(name)
    return found
