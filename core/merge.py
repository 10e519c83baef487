"""Three texts merged line by line, with the very result of `git merge-file`; pure.

The algorithm is that of git's xdiff/xmerge.c at its level for `merge-file`: changes that touch are
a conflict, which is narrowed to what the sides have not in common, and conflicts with next to
nothing between them become one. No git is run: a plan has to come out the same on every machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from .lines import Opcode, common, search, split_lines

Side = Literal["ours", "theirs", "conflict"]
Favor = Literal["ours", "theirs"]

MANY, WINDOW, FEW = 1024, 100, 4
"""Limits of xdiff's: how often is too often, how far it looks around, and what share is few."""

NEAR = 3
"""Conflicts with no more lines than that between them are shown as one."""


class _Part(NamedTuple):
    """ours[a1:a2] against theirs[b1:b2], and whose of the two is taken."""

    side: Side
    a1: int
    a2: int
    b1: int
    b2: int


@dataclass(frozen=True, slots=True)
class Merged:
    """The text, and how many conflicts are marked in it."""

    data: bytes
    conflicts: int


class _Texts(NamedTuple):
    base: list[bytes]
    ours: list[bytes]
    theirs: list[bytes]


def merge(
    base: bytes, ours: bytes, theirs: bytes, names: tuple[bytes, bytes], favor: Favor | None = None
) -> Merged:
    """What both sides made of the base; with `favor` that side wins where both changed it."""
    texts = _Texts(*map(split_lines, (base, ours, theirs)))
    here, there = script(texts.base, texts.ours), script(texts.base, texts.theirs)
    if not here or not there:
        return Merged(ours if here else theirs, 0)
    parts = _near_joined(list(_narrowed(list(_parts(texts, here, there)), texts)), texts.ours)
    if favor is not None:
        parts = [p._replace(side=favor) if p.side == "conflict" else p for p in parts]
    return Merged(b"".join(_written(texts, parts, names)), sum(p.side == "conflict" for p in parts))


# The changes of one side


def script(old: list[bytes], new: list[bytes]) -> list[Opcode]:
    """The ranges that differ, each slid to where git would place it."""
    gone, come = (_Flags(*side) for side in zip((old, new), _changed(old, new), strict=True))
    _compact(gone, come)
    _compact(come, gone)
    return list(_ranges(gone.flags, come.flags))


def _changed(old: list[bytes], new: list[bytes]) -> tuple[bytearray, bytearray]:
    """Which lines git calls changed, of several shortest ways the one that it finds."""
    head, tail = common(old, new)
    ids: dict[bytes, int] = {}
    left, right = ([ids.setdefault(line, len(ids)) for line in side] for side in (old, new))
    left_at = _sought(left, Counter(right), head, tail)
    right_at = _sought(right, Counter(left), head, tail)
    ends = (range(head), range(len(left) - tail, len(left)), range(len(right) - tail, len(right)))
    return search(
        *(left, right),
        [*ends[0], *left_at, *ends[1]],
        [*ends[0], *right_at, *ends[2]],
    )


def _sought(lines: list[int], others: Counter[int], head: int, tail: int) -> list[int]:
    """The places that are worth a search: the line is in the other text, and not so often there
    that among lines that are not it would only mislead."""
    many = min(_rough_root(len(lines)), MANY)
    inner = range(head, len(lines) - tail)
    ranks = [0 if not others[lines[at]] else 1 + (others[lines[at]] >= many) for at in inner]
    return [
        head + at
        for at, rank in enumerate(ranks)
        if rank == 1 or (rank == 2 and not _misleads(ranks, at))
    ]


def _rough_root(number: int) -> int:
    root = 1
    while number:
        number >>= 2
        root <<= 1
    return root


def _misleads(ranks: list[int], at: int) -> bool:
    before = _run(ranks[max(0, at - WINDOW) : at][::-1])
    after = _run(ranks[at + 1 : at + 1 + WINDOW])
    if not before[0] or not after[0]:
        return False
    frequent = before[1] + after[1] + 2
    return frequent * FEW < frequent + before[0] + after[0]


def _run(ranks: list[int]) -> tuple[int, int]:
    """How many lines without a match, and how many frequent ones, until an ordinary one."""
    end = ranks.index(1) if 1 in ranks else len(ranks)
    return ranks[:end].count(0), ranks[:end].count(2)


def _ranges(gone: bytearray, come: bytearray) -> Iterator[Opcode]:
    i = j = 0
    while i < len(gone) or j < len(come):
        i1, j1 = i, j
        i, j = _past(gone, i), _past(come, j)
        if i > i1 or j > j1:
            yield i1, i, j1, j
        else:
            i, j = i + 1, j + 1


def _past(flags: bytearray, at: int) -> int:
    end = flags.find(0, at)
    return len(flags) if end < 0 else end


class _Flags:
    """Which lines of one text are changed, and the group of them that is being looked at."""

    def __init__(self, lines: list[bytes], flags: bytearray) -> None:
        self.lines = lines
        self.flags = flags
        self.start = self.end = 0

    def first(self) -> None:
        self.start, self.end = 0, _past(self.flags, 0)

    def next(self) -> bool:
        if self.end == len(self.flags):
            return False
        self.start = self.end + 1
        self.end = _past(self.flags, self.start)
        return True

    def previous(self) -> None:
        self.end = self.start - 1
        self.start = self.flags.rfind(0, 0, self.end) + 1

    def up(self) -> bool:
        """The group one line earlier, if that is the same text; it may grow by the one there."""
        if not self.start or self.lines[self.start - 1] != self.lines[self.end - 1]:
            return False
        self.flags[self.start - 1], self.flags[self.end - 1] = 1, 0
        self.end -= 1
        self.start = self.flags.rfind(0, 0, self.start) + 1
        return True

    def down(self) -> bool:
        if self.end == len(self.flags) or self.lines[self.start] != self.lines[self.end]:
            return False
        self.flags[self.start], self.flags[self.end] = 0, 1
        self.start += 1
        self.end = _past(self.flags, self.end)
        return True


def _compact(text: _Flags, other: _Flags) -> None:
    """Slides each group as far down as it goes, or to a change of the other text beside it."""
    text.first()
    other.first()
    while True:
        if text.end > text.start:
            _slide(text, other)
        if not text.next():
            return
        other.next()


def _slide(text: _Flags, other: _Flags) -> None:
    size = -1
    while size != text.end - text.start:
        size = text.end - text.start
        while text.up():
            other.previous()
        earliest = text.end
        beside = other.end > other.start
        while text.down():
            other.next()
            beside = beside or other.end > other.start
    if text.end != earliest and beside:
        while other.end == other.start:
            text.up()
            other.previous()


# Both sides together


def _parts(texts: _Texts, here: list[Opcode], there: list[Opcode]) -> Iterator[_Part]:
    last: _Part | None = None
    for part in _aligned(texts, here, there):
        if last is not None and (part.a1 <= last.a2 or part.b1 <= last.b2):
            side: Side = last.side if last.side == part.side else "conflict"
            last = last._replace(side=side, a2=part.a2, b2=part.b2)
            continue
        if last is not None:
            yield last
        last = part
    if last is not None:
        yield last


def _aligned(texts: _Texts, here: list[Opcode], there: list[Opcode]) -> Iterator[_Part]:
    n = m = 0
    while n < len(here) and m < len(there):
        one, two = here[n], there[m]
        if one[1] < two[0]:
            yield _ours(one, two[2] - two[0])
            n += 1
        elif two[1] < one[0]:
            yield _theirs(two, one[2] - one[0])
            m += 1
        else:
            if not _same(texts, one, two):
                yield _both(one, two)
            n, m = n + (two[1] >= one[1]), m + (one[1] >= two[1])
    yield from (_ours(one, len(texts.theirs) - len(texts.base)) for one in here[n:])
    yield from (_theirs(two, len(texts.ours) - len(texts.base)) for two in there[m:])


def _ours(one: Opcode, shift: int) -> _Part:
    i1, i2, j1, j2 = one
    return _Part("ours", j1, j2, i1 + shift, i2 + shift)


def _theirs(two: Opcode, shift: int) -> _Part:
    i1, i2, j1, j2 = two
    return _Part("theirs", i1 + shift, i2 + shift, j1, j2)


def _same(texts: _Texts, one: Opcode, two: Opcode) -> bool:
    mine, other = texts.ours[one[2] : one[3]], texts.theirs[two[2] : two[3]]
    return one[:2] == two[:2] and mine == other


def _both(one: Opcode, two: Opcode) -> _Part:
    """From where the first of the two begins to where the last ends, on both sides."""
    before, after = one[0] - two[0], one[1] - two[1]
    return _Part(
        "conflict",
        one[2] - max(before, 0),
        one[3] - min(after, 0),
        two[2] + min(before, 0),
        two[3] + max(after, 0),
    )


def _narrowed(parts: list[_Part], texts: _Texts) -> Iterator[_Part]:
    """A conflict only where the sides differ from each other."""
    for part in parts:
        side, a1, a2, b1, b2 = part
        if side != "conflict" or a1 == a2 or b1 == b2:
            yield part
            continue
        for i1, i2, j1, j2 in script(texts.ours[a1:a2], texts.theirs[b1:b2]):
            yield _Part("conflict", a1 + i1, a1 + i2, b1 + j1, b1 + j2)


def _near_joined(parts: list[_Part], ours: list[bytes]) -> list[_Part]:
    out: list[_Part] = []
    for part in parts:
        if out and part.side == out[-1].side == "conflict" and _is_near(out[-1], part, ours):
            out[-1] = out[-1]._replace(a2=part.a2, b2=part.b2)
        else:
            out.append(part)
    return out


def _is_near(one: _Part, two: _Part, ours: list[bytes]) -> bool:
    between = ours[one.a2 : two.a1]
    return len(between) <= NEAR or not any(map(_has_letters, between))


def _has_letters(line: bytes) -> bool:
    return any(bytes([byte]).isalnum() for byte in line)


# The result


def _written(texts: _Texts, parts: list[_Part], names: tuple[bytes, bytes]) -> Iterator[bytes]:
    at = 0
    for part in parts:
        yield from texts.ours[at : part.a1]
        if part.side == "conflict":
            yield from _marked(texts, part, names)
        elif part.side == "ours":
            yield from texts.ours[part.a1 : part.a2]
        else:
            yield from texts.theirs[part.b1 : part.b2]
        at = part.a2
    yield from texts.ours[at:]


def _marked(texts: _Texts, part: _Part, names: tuple[bytes, bytes]) -> Iterator[bytes]:
    end = b"\r\n" if _is_crlf(texts, part) else b"\n"
    yield b"<<<<<<< " + names[0] + end
    yield from _ended(texts.ours[part.a1 : part.a2], end)
    yield b"=======" + end
    yield from _ended(texts.theirs[part.b1 : part.b2], end)
    yield b">>>>>>> " + names[1] + end


def _ended(lines: list[bytes], end: bytes) -> list[bytes]:
    return lines if not lines or lines[-1].endswith(b"\n") else [*lines, end]


def _is_crlf(texts: _Texts, part: _Part) -> bool:
    """As the lines before it end, on both sides, and the first of the base."""
    places = (
        (texts.ours, max(0, part.a1 - 1)),
        (texts.theirs, max(0, part.b1 - 1)),
        (texts.base, 0),
    )
    found = [_ends_crlf(lines, at) for lines, at in places]
    return False not in found and found[-1] is True


def _ends_crlf(lines: list[bytes], at: int) -> bool | None:
    """None where a text is too short to tell."""
    if not lines:
        return None
    if lines[at].endswith(b"\n"):
        return lines[at].endswith(b"\r\n")
    return lines[at - 1].endswith(b"\r\n") if at else None
