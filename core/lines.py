"""Line differences between two byte strings; knows nothing of trees, paths or patches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

Opcode = tuple[int, int, int, int]
"""old[i1:i2] becomes new[j1:j2]."""

_BINARY_PROBE = 8000
_NO_NEWLINE = b"\n\\ No newline at end of file\n"

# So far the result is minimal: about a second, enough for texts 4,000 edits apart.
_EXACT_STEPS = 10_000_000
# After that each split is made at the furthest point that this many edits reach.
_ROUGH_EDITS = 24


def split_lines(data: bytes) -> list[bytes]:
    """The lines with their newlines; the last may lack it."""
    *whole, rest = data.split(b"\n")
    out = [line + b"\n" for line in whole]
    return [*out, rest] if rest else out


def is_binary(data: bytes) -> bool:
    return b"\0" in data[:_BINARY_PROBE]


def opcodes(old: list[bytes], new: list[bytes]) -> list[Opcode]:
    """The ranges that differ, in order; minimal unless that would take seconds."""
    head, tail = common(old, new)
    ids: dict[bytes, int] = {}
    left = [ids.setdefault(line, len(ids)) for line in old[head : len(old) - tail]]
    right = [ids.setdefault(line, len(ids)) for line in new[head : len(new) - tail]]
    gone, come = _changed(left, right)
    return [(i1 + head, i2 + head, j1 + head, j2 + head) for i1, i2, j1, j2 in _ranges(gone, come)]


def count(old: bytes, new: bytes) -> tuple[int, int] | None:
    """Lines inserted and deleted; None if either is binary."""
    if is_binary(old) or is_binary(new):
        return None
    ops = opcodes(split_lines(old), split_lines(new))
    return sum(j2 - j1 for _, _, j1, j2 in ops), sum(i2 - i1 for i1, i2, _, _ in ops)


def common(old: list[bytes], new: list[bytes]) -> tuple[int, int]:
    """How many lines are the same at the head, and at the tail of what is left."""
    most = min(len(old), len(new))
    head = 0
    while head < most and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < most - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    return head, tail


def _changed(left: list[int], right: list[int]) -> tuple[bytearray, bytearray]:
    """Flags of the lines without a partner; a line of one side only is not worth a search."""
    shared = set(left) & set(right)
    left_at = [at for at, line in enumerate(left) if line in shared]
    right_at = [at for at, line in enumerate(right) if line in shared]
    return search(left, right, left_at, right_at)


def search(
    left: list[int], right: list[int], left_at: list[int], right_at: list[int]
) -> tuple[bytearray, bytearray]:
    """Flags of the lines that find no partner; only those at the given places may find one."""
    found = _Myers([left[at] for at in left_at], [right[at] for at in right_at])
    found.run()
    gone, come = bytearray(b"\1") * len(left), bytearray(b"\1") * len(right)
    for at, flag in zip(left_at, found.gone, strict=True):
        gone[at] = flag
    for at, flag in zip(right_at, found.come, strict=True):
        come[at] = flag
    return gone, come


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
    """The first place from here on that is not flagged."""
    end = flags.find(0, at)
    return len(flags) if end < 0 else end


class _Box(NamedTuple):
    """A part of the edit grid: left[x1:x2] against right[y1:y2]."""

    x1: int
    x2: int
    y1: int
    y2: int


class _Span:
    """The diagonals that a search has reached, one more at each end with every edit."""

    __slots__ = ("high", "least", "low", "most")

    def __init__(self, middle: int, least: int, most: int) -> None:
        self.low = self.high = middle
        self.least, self.most = least, most

    def widen(self, reached: list[int], never: int) -> range:
        """The diagonals to try next; never marks those beyond them as not reached."""
        if self.low > self.least:
            self.low -= 1
            reached[self.low - 1] = never
        else:
            self.low += 1
        if self.high < self.most:
            self.high += 1
            reached[self.high + 1] = never
        else:
            self.high -= 1
        return range(self.high, self.low - 1, -2)


class _Myers:
    """Myers' search from both ends in linear space, as in git's xdiff.

    Diagonal x - y is kept at x - y + shift, so that it is an index.
    """

    def __init__(self, left: list[int], right: list[int]) -> None:
        self.left, self.right = left, right
        self.gone, self.come = bytearray(len(left)), bytearray(len(right))
        self.shift = len(right) + 1
        self.front = [0] * (len(left) + len(right) + 3)
        self.back = [0] * (len(left) + len(right) + 3)
        self.steps = _EXACT_STEPS

    def run(self) -> None:
        boxes = [_Box(0, len(self.left), 0, len(self.right))]
        while boxes:
            box = self._trimmed(boxes.pop())
            if box.x1 == box.x2 or box.y1 == box.y2:
                self.gone[box.x1 : box.x2] = b"\1" * (box.x2 - box.x1)
                self.come[box.y1 : box.y2] = b"\1" * (box.y2 - box.y1)
            else:
                x, y = self._split(box)
                boxes += (_Box(x, box.x2, y, box.y2), _Box(box.x1, x, box.y1, y))

    def _trimmed(self, box: _Box) -> _Box:
        left, right = self.left, self.right
        x1, x2, y1, y2 = box
        while x1 < x2 and y1 < y2 and left[x1] == right[y1]:
            x1, y1 = x1 + 1, y1 + 1
        while x1 < x2 and y1 < y2 and left[x2 - 1] == right[y2 - 1]:
            x2, y2 = x2 - 1, y2 - 1
        return _Box(x1, x2, y1, y2)

    def _split(self, box: _Box) -> tuple[int, int]:
        """A point that a shortest way through the box passes, or one not far off it."""
        least, most = box.x1 - box.y2 + self.shift, box.x2 - box.y1 + self.shift
        ahead = _Span(box.x1 - box.y1 + self.shift, least, most)
        behind = _Span(box.x2 - box.y2 + self.shift, least, most)
        self.front[ahead.low], self.back[behind.low] = box.x1, box.x2
        odd = bool((ahead.low - behind.low) & 1)
        edits = 0
        while self.steps > 0 or edits < _ROUGH_EDITS:
            met = self._forward(box, ahead, behind if odd else None)
            met = met or self._backward(box, behind, None if odd else ahead)
            if met:
                return met
            edits += 1
            self.steps -= ahead.high - ahead.low + behind.high - behind.low
        return self._furthest(box, ahead)

    def _forward(self, box: _Box, span: _Span, other: _Span | None) -> tuple[int, int] | None:
        left, right, front, back, shift = self.left, self.right, self.front, self.back, self.shift
        x2, y2 = box.x2, box.y2
        for k in span.widen(front, -1):
            x = front[k - 1] + 1 if front[k - 1] >= front[k + 1] else front[k + 1]
            y = x - k + shift
            while x < x2 and y < y2 and left[x] == right[y]:
                x, y = x + 1, y + 1
            front[k] = x
            if other and other.low <= k <= other.high and back[k] <= x:
                return x, y
        return None

    def _backward(self, box: _Box, span: _Span, other: _Span | None) -> tuple[int, int] | None:
        left, right, front, back, shift = self.left, self.right, self.front, self.back, self.shift
        x1, y1 = box.x1, box.y1
        for k in span.widen(back, len(left) + 1):
            x = back[k - 1] if back[k - 1] < back[k + 1] else back[k + 1] - 1
            y = x - k + shift
            while x > x1 and y > y1 and left[x - 1] == right[y - 1]:
                x, y = x - 1, y - 1
            back[k] = x
            if other and other.low <= k <= other.high and x <= front[k]:
                return x, y
        return None

    def _furthest(self, box: _Box, span: _Span) -> tuple[int, int]:
        """The point nearest to the end that the search forward has reached."""
        best = (box.x1, box.y1)
        for k in range(span.high, span.low - 1, -2):
            x = min(self.front[k], box.x2)
            y = min(x - k + self.shift, box.y2)
            x = y + k - self.shift
            best = max(best, (x, y), key=sum)
        return best


@dataclass(frozen=True, slots=True)
class Hunk:
    """Changed lines with their context; body holds them marked with a blank, - or +."""

    old_start: int
    old_count: int
    new_start: int
    new_count: int
    body: tuple[bytes, ...]

    def header(self) -> bytes:
        old = _span_text(self.old_start, self.old_count)
        return b"@@ -%s +%s @@\n" % (old, _span_text(self.new_start, self.new_count))


def _span_text(start: int, size: int) -> bytes:
    return b"%d" % start if size == 1 else b"%d,%d" % (start, size)


def hunks(old: list[bytes], new: list[bytes], context: int = 3) -> list[Hunk]:
    """The changes in unified form; neighbours whose contexts touch share a hunk."""
    return [_hunk(old, new, group, context) for group in _grouped(opcodes(old, new), context)]


def _grouped(ops: list[Opcode], context: int) -> list[list[Opcode]]:
    groups: list[list[Opcode]] = []
    for op in ops:
        if groups and op[0] - groups[-1][-1][1] <= 2 * context:
            groups[-1].append(op)
        else:
            groups.append([op])
    return groups


def _hunk(old: list[bytes], new: list[bytes], group: list[Opcode], context: int) -> Hunk:
    before = min(context, group[0][0])
    after = min(context, len(old) - group[-1][1])
    i1, i2 = group[0][0] - before, group[-1][1] + after
    j1, j2 = group[0][2] - before, group[-1][3] + after
    body = tuple(_body(old, new, group, i1, i2))
    # An empty side is placed behind the line before it.
    return Hunk(i1 + (i2 > i1), i2 - i1, j1 + (j2 > j1), j2 - j1, body)


def _body(
    old: list[bytes], new: list[bytes], group: list[Opcode], start: int, end: int
) -> Iterator[bytes]:
    at = start
    for i1, i2, j1, j2 in group:
        yield from _marked(b" ", old[at:i1])
        yield from _marked(b"-", old[i1:i2])
        yield from _marked(b"+", new[j1:j2])
        at = i2
    yield from _marked(b" ", old[at:end])


def _marked(mark: bytes, lines: Iterable[bytes]) -> Iterator[bytes]:
    for line in lines:
        yield mark + line if line.endswith(b"\n") else mark + line + _NO_NEWLINE
