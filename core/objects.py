"""Git objects to bytes and back; pure, and ignorant of where the bytes are kept."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Literal, Protocol, get_args

from .errors import Damaged
from .model import EXEC, FILE, LINK, TREE, Entry, Oid

Kind = Literal["commit", "tree", "blob", "tag"]
IDENTITY = b"turnmark <turnmark@localhost>"
RawEntry = tuple[bytes, bytes, bytes]


class Sink(Protocol):
    """Where new objects go."""

    def add(self, kind: Kind, data: bytes, oid: Oid | None = None) -> Oid: ...

    def holds(self, oid: Oid) -> bool: ...

    def blob_id(self, data: bytes, *, is_new: bool = True) -> Oid:
        """Of what is added next, this very object, if it is new as it seems to be."""


MODES = {b"%o" % mode: mode for mode in (FILE, EXEC, LINK, TREE)}
"""Old versions of git wrote others as well."""
_ENTRY = re.compile(rb"([0-9]+) ([^\0/]+)\0(.{20})", re.DOTALL)
NO_NAMES = frozenset({b"", b".", b".."})
_HEADS: dict[Kind, bytes] = {k: b"%s %%d\0" % k.encode() for k in get_args(Kind)}


def hash_object(kind: Kind, data: bytes) -> Oid:
    digest = hashlib.sha1(_HEADS[kind] % len(data), usedforsecurity=False)
    digest.update(data)
    return Oid(digest.digest())


def is_name(name: bytes) -> bool:
    """Whether a recorded name can only be that of something in its directory."""
    return name not in NO_NAMES and b"/" not in name and b"\0" not in name


def is_inside(path: bytes) -> bool:
    """Whether a recorded path can only be that of a root, or of something below it."""
    return not path or all(map(is_name, path.split(b"/")))


def split_tree(raw: bytes) -> list[RawEntry]:
    """Mode, name and id of each entry, in git's order; no name leads out of its directory."""
    found: list[RawEntry] = _ENTRY.findall(raw)
    if sum(map(len, chain.from_iterable(found))) + 2 * len(found) != len(raw):
        raise Damaged("A tree object cannot be parsed.", "Run `turnmark store verify`.")
    names = {name for _, name, _ in found}
    if len(names) != len(found) or not NO_NAMES.isdisjoint(names):
        raise Damaged("A tree object holds impossible names.", "Run `turnmark store verify`.")
    return found


def entry_of(found: RawEntry) -> Entry:
    """Of one among those that `split_tree` found."""
    mode, name, oid = found
    known = MODES.get(mode)
    return named_entries([found])[name] if known is None else Entry(known, Oid(oid))


def named_entries(found: Iterable[RawEntry]) -> dict[bytes, Entry]:
    try:
        return {name: Entry(MODES.get(mode) or int(mode, 8), Oid(oid)) for mode, name, oid in found}
    except ValueError as error:
        raise Damaged("A tree object cannot be parsed.", "Run `turnmark store verify`.") from error


def parse_tree(raw: bytes) -> dict[bytes, Entry]:
    """The entries of a tree, in git's order; no name in it leads out of its directory."""
    return named_entries(split_tree(raw))


def child_in(raw: bytes, name: bytes) -> Entry | None:
    """One entry of a tree; most often found without parsing the others, which is ten times faster.

    A name may end like a whole entry ("x 100644 name"), so a hit counts only where an entry must
    begin: behind the NUL of another's name and the twenty bytes of its object. Where these could
    themselves hold the beginning of an entry, all of them are parsed.
    """
    at = raw.find(b"40000 %s\0" % name)
    if at >= 0 and _begins(raw, at):
        at += len(name) + 7
        return Entry(TREE, Oid(raw[at : at + 20]))
    end = raw.find(b" %s\0" % name)
    if end < 0:
        return None
    mode = MODES.get(raw[end - 6 : end]) if end >= 6 else None
    if mode is None or not _begins(raw, end - 6):
        return parse_tree(raw).get(name)
    at = end + len(name) + 2
    return Entry(mode, Oid(raw[at : at + 20]))


def _begins(raw: bytes, at: int) -> bool:
    """Whether an entry of a tree is bound to begin there."""
    return not at or (at > 20 and not raw[at - 21] and raw.find(b" ", at - 20, at) < 0)


def tree_order(item: tuple[bytes, Entry]) -> bytes:
    name, entry = item
    return name + b"/" if entry.mode == TREE else name


def encode_tree(entries: Iterable[tuple[bytes, Entry]]) -> bytes:
    ordered = sorted(entries, key=tree_order)
    return b"".join(b"%o %s\0%s" % (entry.mode, name, entry.oid) for name, entry in ordered)


def encode_commit(tree: Oid, time_ns: int, message: bytes, parent: Oid | None = None) -> bytes:
    stamp = b"%s %d +0000" % (IDENTITY, max(0, time_ns // 1_000_000_000))
    above = b"parent %s\n" % parent.hex().encode() if parent else b""
    return b"tree %s\n%sauthor %s\ncommitter %s\n\n%s" % (
        tree.hex().encode(),
        above,
        stamp,
        stamp,
        message,
    )


def encode_tag(target: Oid, name: str, time_ns: int, message: bytes) -> bytes:
    stamp = b"%s %d +0000" % (IDENTITY, max(0, time_ns // 1_000_000_000))
    return b"object %s\ntype commit\ntag %s\ntagger %s\n\n%s" % (
        target.hex().encode(),
        name.encode(),
        stamp,
        message,
    )


def parse_headers(data: bytes) -> tuple[dict[bytes, bytes], bytes]:
    """The header lines of a commit or tag, and its message."""
    head, _, message = data.partition(b"\n\n")
    headers: dict[bytes, bytes] = {}
    for line in head.split(b"\n"):
        key, _, value = line.partition(b" ")
        headers.setdefault(key, value)
    return headers, message


def header_oid(headers: dict[bytes, bytes], key: bytes) -> Oid:
    value = headers.get(key, b"")
    try:
        oid = bytes.fromhex(value.decode("ascii"))
    except ValueError:
        oid = b""
    if len(oid) != 20 or len(value) != 40:
        raise Damaged(
            f"A commit or tag has no usable '{key.decode()}'.", "Run `turnmark store verify`."
        )
    return Oid(oid)


def references(kind: Kind, data: bytes) -> Iterator[tuple[Kind, Oid]]:
    """The objects that an object needs to be whole."""
    if kind == "tree":
        for entry in parse_tree(data).values():
            yield ("tree" if entry.mode == TREE else "blob"), entry.oid
    elif kind == "commit":
        headers, _ = parse_headers(data)
        yield "tree", header_oid(headers, b"tree")
        if b"parent" in headers:
            yield "commit", header_oid(headers, b"parent")
    elif kind == "tag":
        yield "commit", header_oid(parse_headers(data)[0], b"object")
