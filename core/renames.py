"""Which files that went came again under another name: by content, as `git diff -M` finds them.

Pure but for the reader of contents. What it may cost is bounded by counts, never by a clock, so
that the same changes always give the same answer: equal objects are paired however many there are,
similar texts only as long as few enough of them have to be read and compared.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .lines import is_binary
from .model import LINK, Change, Entry, RelPath, is_within
from .objects import hash_object

Read = Callable[[Entry], bytes]
"""The bytes of an entry; of a symbolic link its target."""

There = Callable[[RelPath], bool]

LEAST_SIMILAR = 50
LEAST_OF_SAME_NAME = 75
"""So alike are two files that alone bear their name, on either side, paired before all others."""

MOST_FILES, MOST_BYTES, LARGEST = 1_000, 16_000_000, 4_000_000
MOST_COMPARED = 4_000_000
"""Parts of texts: a third of a second's worth, and about as much as the reading may take."""

_EMPTY = hash_object("blob", b"")
_PARTS = re.compile(rb"[^\n]{0,63}\n|[^\n]{1,64}")


@dataclass(frozen=True, slots=True)
class FileChange:
    """A change with the path its content came from; similarity in per cent where it moved."""

    path: RelPath
    old_path: RelPath | None
    old: Entry | None
    new: Entry | None
    similarity: int | None = None


def find_renames(
    changes: Sequence[Change], read: Read, known: Mapping[RelPath, RelPath] | None = None
) -> list[FileChange]:
    """The changes in order of path, a deletion and its like creation made one.

    Known are old names by new ones, from steps in between: they hold however little is alike.
    """
    sources = _known(changes, read, known or {})
    sources |= _sources(_without(changes, sources), read)
    taken = {source.path for source, _ in sources.values()}
    kept = (change for change in changes if change.new or change.path not in taken)
    return sorted((_file_change(change, sources) for change in kept), key=lambda c: c.path)


@dataclass(frozen=True)
class Moves:
    """The old names of files by their new ones between two trees, and the other way round."""

    old_of: dict[RelPath, RelPath]
    new_of: dict[RelPath, RelPath]
    came: frozenset[RelPath]
    went: frozenset[RelPath]

    def origin(self, path: RelPath, is_still: There) -> RelPath | None:
        """Where what came to a path was; a directory that only some files left is still there."""
        if path in self.old_of:
            return self.old_of[path]
        top = _top(path, self.old_of, self.came)
        return None if top is None or is_still(top) else top

    def goal(self, path: RelPath, was_there: There) -> RelPath | None:
        """Where what went from a path is; a directory that was there was joined, not made of it."""
        if path in self.new_of:
            return self.new_of[path]
        top = _top(path, self.new_of, self.went)
        return None if top is None or was_there(top) else top


def find_moves(changes: Sequence[Change], read: Read) -> Moves:
    sources = _sources(changes, read)
    return Moves(
        {path: source.path for path, (source, _) in sources.items()},
        {source.path: path for path, (source, _) in sources.items()},
        frozenset(change.path for change in changes if change.old is None),
        frozenset(change.path for change in changes if change.new is None),
    )


def _top(
    path: RelPath, other_of: dict[RelPath, RelPath], every: Iterable[RelPath]
) -> RelPath | None:
    """That below which most of the files of a directory have the places that they had in it."""
    below = [one for one in every if one != path and is_within(one, path)]
    tops = Counter(
        RelPath(other.removesuffix(one[len(path) :]))
        for one in below
        if (other := other_of.get(one)) and other.endswith(one[len(path) :])
    )
    best = min(tops, key=lambda top: (-tops[top], top), default=None)
    return best if best is not None and 2 * tops[best] > len(below) else None


# Pairs


_Sources = dict[RelPath, tuple[Change, int]]
"""Where each new path came from, and how similar it is."""


def _known(changes: Iterable[Change], read: Read, known: Mapping[RelPath, RelPath]) -> _Sources:
    texts = _Texts(read)
    gone = {change.path: change for change in changes if change.new is None}
    found: _Sources = {}
    for new in (change for change in changes if change.old is None):
        old = gone.pop(known.get(new.path, new.path), None)
        if old is not None and _is_link(_entry(old)) == _is_link(_entry(new)):
            same = _entry(old).oid == _entry(new).oid
            found[new.path] = old, 100 if same else texts.pair(old, new)
    return found


def _sources(changes: Sequence[Change], read: Read) -> _Sources:
    gone = sorted((c for c in changes if c.new is None), key=lambda c: c.path)
    come = sorted((c for c in changes if c.old is None), key=lambda c: c.path)
    found = _exact(gone, come)
    if len(found) < min(len(gone), len(come)):
        found |= _similar(_without(gone, found), _without(come, found), read)
    return found


def _without(changes: Iterable[Change], found: _Sources) -> list[Change]:
    taken = {source.path for source, _ in found.values()} | found.keys()
    return [change for change in changes if change.path not in taken]


def _file_change(change: Change, sources: _Sources) -> FileChange:
    if change.path not in sources:
        return FileChange(change.path, None, change.old, change.new)
    source, similarity = sources[change.path]
    return FileChange(change.path, source.path, source.old, change.new, similarity)


def _entry(change: Change) -> Entry:
    """The only side of a deletion or a creation."""
    entry = change.old or change.new
    assert entry is not None
    return entry


def _name(change: Change) -> bytes:
    return change.path.rpartition(b"/")[2]


def _is_link(entry: Entry) -> bool:
    return entry.mode == LINK


# Equal contents


def _exact(gone: Iterable[Change], come: Iterable[Change]) -> _Sources:
    """By object, of several those whose names agree the furthest; emptiness is no likeness."""
    offered = _by_content(gone)
    found: _Sources = {}
    for content, news in _by_content(come).items():
        for old, new in _by_name(offered.get(content, []), news):
            found[new.path] = old, 100
    return found


def _by_content(changes: Iterable[Change]) -> dict[tuple[bytes, bool], list[Change]]:
    out: dict[tuple[bytes, bool], list[Change]] = {}
    for change in changes:
        entry = _entry(change)
        if entry.oid != _EMPTY:
            out.setdefault((entry.oid, _is_link(entry)), []).append(change)
    return out


def _by_name(olds: list[Change], news: list[Change]) -> Iterator[tuple[Change, Change]]:
    """Pairs that share the most names from the last one up; the rest in order of path."""
    if len(olds) == len(news) == 1:
        yield olds[0], news[0]
        return
    deepest = max((change.path.count(b"/") + 1 for change in olds), default=0)
    for depth in range(deepest, -1, -1):
        places: dict[tuple[bytes, ...], list[Change]] = {}
        for old in reversed(olds):
            places.setdefault(_ending(old, depth), []).append(old)
        pairs = [(here.pop(), new) for new in news if (here := places.get(_ending(new, depth)))]
        yield from pairs
        taken = {change.path for pair in pairs for change in pair}
        olds = [change for change in olds if change.path not in taken]
        news = [change for change in news if change.path not in taken]
        if not olds or not news:
            return


def _ending(change: Change, depth: int) -> tuple[bytes, ...]:
    """So many of the names at the end of a path; a path with fewer has one ending less."""
    names = change.path.split(b"/")
    return tuple(names[-depth:]) if depth else ()


# Similar contents


@dataclass(frozen=True, slots=True)
class _Text:
    """What similarity needs of a file: how many bytes each of its parts makes up."""

    size: int
    parts: dict[bytes, int]


_Pairs = list[tuple[int, Change, Change]]
"""How similar, what went, and what came."""


class _Texts:
    """Reads what is to be compared, each file once, until it has been enough."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._known: dict[RelPath, _Text | None] = {}
        self._left = MOST_BYTES

    @property
    def is_spent(self) -> bool:
        return self._left <= 0

    def of(self, change: Change) -> _Text | None:
        """None where there is nothing to compare: a link, an empty or a very large file."""
        if change.path not in self._known:
            entry = _entry(change)
            data = b"" if _is_link(entry) or self.is_spent else self._read(entry)
            self._left -= len(data)
            self._known[change.path] = _text(data)
        return self._known[change.path]

    def pair(self, old: Change, new: Change) -> int:
        one, other = self.of(old), self.of(new)
        return _similarity(one, other) if one and other else 0


def _text(data: bytes) -> _Text | None:
    """In lines, and long ones in parts of 64 bytes; the kind of line end is no difference."""
    if not 0 < len(data) <= LARGEST:
        return None
    plain = data if is_binary(data) else data.replace(b"\r\n", b"\n")
    times = Counter(_PARTS.findall(plain))
    return _Text(len(data), {part: len(part) * n for part, n in times.items()})


def _similarity(old: _Text, new: _Text) -> int:
    """Shared bytes in per cent of the larger; 100 is kept for equal objects."""
    larger = max(old.size, new.size)
    shared = old.parts.keys() & new.parts.keys()
    return min(99, sum(min(old.parts[p], new.parts[p]) for p in shared) * 100 // larger)


def _may_be_similar(old: _Text, new: _Text) -> bool:
    return min(old.size, new.size) * 100 >= max(old.size, new.size) * LEAST_SIMILAR


def _similar(gone: list[Change], come: list[Change], read: Read) -> _Sources:
    """First those that alone bear their name, then the best pairs; each side once."""
    texts = _Texts(read)
    found = {
        new.path: (old, score)
        for old, new in _sole_of_name(gone, come)[: MOST_FILES // 2]
        if (score := texts.pair(old, new)) >= LEAST_OF_SAME_NAME
    }
    likely = _likely(_without(gone, found), _without(come, found), texts)
    likely.sort(key=lambda p: (-p[0], _name(p[1]) != _name(p[2]), p[1].path, p[2].path))
    taken: set[RelPath] = set()
    for score, old, new in likely:
        if old.path not in taken and new.path not in found:
            taken.add(old.path)
            found[new.path] = old, score
    return found


def _sole_of_name(gone: list[Change], come: list[Change]) -> list[tuple[Change, Change]]:
    olds, news = _named_once(gone), _named_once(come)
    return [(olds[name], news[name]) for name in sorted(olds.keys() & news.keys())]


def _named_once(changes: list[Change]) -> dict[bytes, Change]:
    times = Counter(map(_name, changes))
    return {_name(change): change for change in changes if times[_name(change)] == 1}


def _likely(gone: list[Change], come: list[Change], texts: _Texts) -> _Pairs:
    """All pairs that are similar enough; none rather than some where they are too many."""
    if not gone or not come or len(gone) + len(come) > MOST_FILES:
        return []
    olds = [(text, change) for change in gone if (text := texts.of(change))]
    news = [(text, change) for change in come if (text := texts.of(change))]
    pairs = [(o, n) for o in olds for n in news if _may_be_similar(o[0], n[0])]
    work = sum(min(len(o[0].parts), len(n[0].parts)) for o, n in pairs)
    if texts.is_spent or work > MOST_COMPARED:
        return []
    scored = [(_similarity(o[0], n[0]), o[1], n[1]) for o, n in pairs]
    return [pair for pair in scored if pair[0] >= LEAST_SIMILAR]
