"""The text of a diff as git writes it; knows changes and their bytes, not stores or points."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from .lines import count, hunks, is_binary, split_lines
from .model import LINK, Change, Entry, RelPath
from .objects import hash_object

Read = Callable[[Entry], bytes]
"""The bytes of an entry; of a symbolic link its target."""

_MOST_PAIRS = 300 * 300
_LEAST_SIMILAR = 50
_EMPTY = hash_object("blob", b"")


@dataclass(frozen=True, slots=True)
class FileChange:
    """A change with the path its content came from; similarity in per cent where it moved."""

    path: RelPath
    old_path: RelPath | None
    old: Entry | None
    new: Entry | None
    similarity: int | None = None


def find_renames(changes: Sequence[Change], read: Read) -> list[FileChange]:
    """The changes in order of path, a deletion and its like creation made one."""
    gone = [change for change in changes if change.new is None]
    come = [change for change in changes if change.old is None]
    sources = _exact(gone, come)
    taken = {source.path for source, _ in sources.values()}
    left_gone = [change for change in gone if change.path not in taken]
    left_come = [change for change in come if change.path not in sources]
    sources |= _similar(left_gone, left_come, read)
    taken = {source.path for source, _ in sources.values()}
    kept = (change for change in changes if change.new or change.path not in taken)
    return sorted((_file_change(change, sources) for change in kept), key=lambda c: c.path)


_Sources = dict[RelPath, tuple[Change, int]]
"""Where each new path came from, and how similar it is."""


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


def _exact(gone: Sequence[Change], come: Sequence[Change]) -> _Sources:
    """By object, of several the one with the same name; emptiness is no likeness."""
    offered: dict[tuple[bytes, bool], list[Change]] = {}
    for change in gone:
        entry = _entry(change)
        if entry.oid != _EMPTY:
            offered.setdefault((entry.oid, _is_link(entry)), []).append(change)
    out: _Sources = {}
    for change in come:
        entry = _entry(change)
        candidates = offered.get((entry.oid, _is_link(entry)))
        if candidates:
            best = max(candidates, key=lambda one: _name(one) == _name(change))
            candidates.remove(best)
            out[change.path] = best, 100
    return out


@dataclass(frozen=True, slots=True)
class _Text:
    """What similarity needs of a text file."""

    change: Change
    size: int
    lines: Counter[bytes]


def _similar(gone: Sequence[Change], come: Sequence[Change], read: Read) -> _Sources:
    """The best pairs first, each side once."""
    if len(gone) * len(come) > _MOST_PAIRS or not gone or not come:
        return {}
    olds, news = _texts(gone, read), _texts(come, read)
    pairs = [(_similarity(old, new), old.change, new.change) for old in olds for new in news]
    likely = [pair for pair in pairs if pair[0] >= _LEAST_SIMILAR]
    likely.sort(key=lambda p: (-p[0], _name(p[1]) != _name(p[2]), p[1].path, p[2].path))
    out: _Sources = {}
    taken: set[RelPath] = set()
    for score, old, new in likely:
        if old.path not in taken and new.path not in out:
            taken.add(old.path)
            out[new.path] = old, score
    return out


def _texts(changes: Iterable[Change], read: Read) -> list[_Text]:
    out: list[_Text] = []
    for change in changes:
        entry = _entry(change)
        data = b"" if _is_link(entry) else read(entry)
        if data and not is_binary(data):
            out.append(_Text(change, len(data), Counter(split_lines(data))))
    return out


def _similarity(old: _Text, new: _Text) -> int:
    """Shared line bytes in per cent of the larger; 100 is kept for equal objects."""
    larger = max(old.size, new.size)
    if min(old.size, new.size) * 100 < larger * _LEAST_SIMILAR:
        return 0
    few, many = sorted((old.lines, new.lines), key=len)
    shared = sum(len(line) * min(times, many[line]) for line, times in few.items() if line in many)
    return min(99, shared * 100 // larger)


def numstat(change: FileChange, read: Read) -> tuple[int, int] | None:
    """Lines inserted and deleted; None if either side is binary."""
    if change.old and change.new and change.old.oid == change.new.oid:
        return None if is_binary(read(change.new)) else (0, 0)
    return count(_data(change.old, read), _data(change.new, read))


def _data(entry: Entry | None, read: Read) -> bytes:
    return read(entry) if entry else b""


def render(changes: Iterable[FileChange], read: Read) -> Iterator[bytes]:
    """git's extended unified format, in pieces; `git apply` takes it where nothing is binary."""
    for change in changes:
        for part in _of_one_type(change):
            yield _header(part)
            yield from _content(part, read)


def _of_one_type(change: FileChange) -> list[FileChange]:
    """A file that became a link, or the other way round, goes and comes again, as git says it."""
    old, new = change.old, change.new
    if old and new and _is_link(old) != _is_link(new):
        gone = FileChange(change.old_path or change.path, None, old, None)
        return [gone, FileChange(change.path, None, None, new)]
    return [change]


def _header(change: FileChange) -> bytes:
    old_path = change.old_path or change.path
    names = b"diff --git %s %s\n" % (quoted(b"a/" + old_path), quoted(b"b/" + change.path))
    return names + _mode_lines(change.old, change.new) + _rename_lines(change)


def _mode_lines(old: Entry | None, new: Entry | None) -> bytes:
    if old is None:
        return b"new file mode %o\n" % new.mode if new else b""
    if new is None:
        return b"deleted file mode %o\n" % old.mode
    if old.mode != new.mode:
        return b"old mode %o\nnew mode %o\n" % (old.mode, new.mode)
    return b""


def _rename_lines(change: FileChange) -> bytes:
    if change.old_path is None:
        return b""
    return b"similarity index %d%%\nrename from %s\nrename to %s\n" % (
        change.similarity or 0,
        quoted(change.old_path),
        quoted(change.path),
    )


def _content(change: FileChange, read: Read) -> Iterator[bytes]:
    old, new = change.old, change.new
    same = old and new and old.oid == new.oid
    # git writes no index line for a link that only moved, but without its mode `git apply`
    # takes the place it left for a link still, and refuses a directory there.
    if not same or (old and _is_link(old)):
        yield _index_line(old, new)
    if same:
        return
    before, after = _data(old, read), _data(new, read)
    left = b"a/" + (change.old_path or change.path) if old else b"/dev/null"
    right = b"b/" + change.path if new else b"/dev/null"
    if is_binary(before) or is_binary(after):
        yield b"Binary files %s and %s differ\n" % (quoted(left), quoted(right))
        return
    found = hunks(split_lines(before), split_lines(after))
    if found:
        yield b"--- %s\n+++ %s\n" % (_file_name(left), _file_name(right))
    for hunk in found:
        yield hunk.header() + b"".join(hunk.body)


def _index_line(old: Entry | None, new: Entry | None) -> bytes:
    mode = b" %o" % new.mode if old and new and old.mode == new.mode else b""
    return b"index %s..%s%s\n" % (_short(old), _short(new), mode)


def _short(entry: Entry | None) -> bytes:
    return entry.oid.hex()[:7].encode() if entry else b"0000000"


def _file_name(path: bytes) -> bytes:
    """A tab ends a name with a blank in it, for readers that expect a date there."""
    name = quoted(path)
    return name + b"\t" if b" " in path else name


_LETTERS = dict(zip(b'\a\b\t\n\v\f\r"\\', (b"\\" + bytes([c]) for c in b'abtnvfr"\\'), strict=True))
_ESCAPED = {byte: b"\\%03o" % byte for byte in (*range(0x20), *range(0x7F, 0x100))} | _LETTERS


def quoted(path: bytes) -> bytes:
    """A name as git shows it: in C quotes where a byte is not plain ASCII."""
    if not any(byte in _ESCAPED for byte in path):
        return path
    return b'"%s"' % b"".join(_ESCAPED.get(byte) or bytes([byte]) for byte in path)
