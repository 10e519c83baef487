"""The text of a diff as git writes it; knows changes and their bytes, not stores or points."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .lines import count, hunks, is_binary, split_lines
from .model import LINK, Entry
from .renames import FileChange, Read


def _is_link(entry: Entry) -> bool:
    return entry.mode == LINK


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
