"""The syntax of .gitignore files, read exactly as git reads it; knows single patterns only."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from .model import parse_path


class _Malformed(ValueError):
    """A glob that git lets match nothing."""


_STAR, _STARS, _ONE = b"*", b"**", b"[^/]"
_SLASH = ord("/")
_POSIX = {
    b"alnum": rb"0-9A-Za-z",
    b"alpha": rb"A-Za-z",
    b"blank": rb"\ \t",
    b"cntrl": rb"\x00-\x1f\x7f",
    b"digit": rb"0-9",
    b"graph": rb"!-~",
    b"lower": rb"a-z",
    b"print": rb"\ -~",
    b"punct": rb"!-/:-@\[-`{-~",
    b"space": rb"\ \t\n\r",
    b"upper": rb"A-Z",
    b"xdigit": rb"0-9A-Fa-f",
}

Atom = int | bytes
"""One piece of a glob: a literal byte, or a regular expression, _STAR or _STARS."""

Segment = tuple[Atom, ...]


class _Bracket:
    """Reads one bracket expression byte by byte, with the corner cases of git's wildmatch."""

    def __init__(self, glob: bytes, at: int) -> None:
        self.glob, self.at, self.last = glob, at, 0
        self.members: list[bytes] = []

    def read(self) -> bytes:
        negated = self._peek() in b"!^"
        self.at += negated
        self._member()
        while self._peek() != b"]":
            self._member()
        self.at += 1
        inside = b"".join(self.members)
        if negated:
            return b"[^/%s]" % inside
        if not inside:
            raise _Malformed
        return b"(?!/)[%s]" % inside

    def _peek(self, ahead: int = 0) -> bytes:
        at = self.at + ahead
        if at >= len(self.glob):
            raise _Malformed
        return self.glob[at : at + 1]

    def _take(self) -> int:
        """The next byte, one behind a backslash taken as it is."""
        self.at += self._peek() == b"\\"
        byte = self._peek()
        self.at += 1
        return byte[0]

    def _member(self) -> None:
        if self._peek() == b"-" and self.last and self._peek(1) != b"]":
            self.at += 1
            self._add(self.last, self._take())
            self.last = 0
        elif self._peek() == b"[" and self._peek(1) == b":" and self._posix():
            self.last = 0
        else:
            self.last = self._take()
            self._add(self.last, self.last)

    def _posix(self) -> bool:
        """Reads [:name:]; False, with nothing read, where it is not one."""
        end = self.glob.find(b"]", self.at + 2)
        if end < 0:
            raise _Malformed
        if end == self.at + 2 or self.glob[end - 1 : end] != b":":
            return False
        name = self.glob[self.at + 2 : end - 1]
        if name not in _POSIX:
            raise _Malformed
        self.members.append(_POSIX[name])
        self.at = end + 1
        return True

    def _add(self, low: int, high: int) -> None:
        if low <= high:
            self.members.append(b"\\x%02x-\\x%02x" % (low, high))


def _atoms(glob: bytes) -> list[Atom]:
    out: list[Atom] = []
    at = 0
    while at < len(glob):
        char = glob[at : at + 1]
        if char == b"[":
            bracket = _Bracket(glob, at + 1)
            out.append(bracket.read())
            at = bracket.at
        elif char == b"*":
            end = at + len(glob[at:]) - len(glob[at:].lstrip(b"*"))
            out.append(_STAR if end == at + 1 else _STARS)
            at = end
        elif char == b"\\":
            if at + 1 == len(glob):
                raise _Malformed
            out.append(glob[at + 1])
            at += 2
        else:
            out.append(_ONE if char == b"?" else glob[at])
            at += 1
    return out


def _segments(glob: bytes) -> tuple[Segment, ...]:
    """The atoms between slashes; two stars count only where they stand alone."""
    parts: list[list[Atom]] = [[]]
    for atom in _atoms(glob):
        if atom == _SLASH:
            parts.append([])
        else:
            parts[-1].append(atom)
    out = [tuple(part) if part == [_STARS] else _single_stars(part) for part in parts]
    if out[-1] == (_STARS,):
        out.append((_STAR,))
    return tuple(out)


def _single_stars(atoms: Iterable[Atom]) -> Segment:
    return tuple(_STAR if atom == _STARS else atom for atom in atoms)


# git strips what stands before the first wildcard and matches the rest on its own, so the two
# stars in foo**/bar stand at a beginning and cross slashes, while those in f?o**/bar do not.
_GLUED_STARS = re.compile(rb"([^*?\[\\]*[^*?\[\\/])\*\*+(\\?/.*)?", re.DOTALL)
_ESCAPED_SLASH = re.compile(rb"(?:(?<=/)|\A)\*\*+\\/")
_REPEATED_STARS = re.compile(rb"(?<=/)\*\*+/(?=\*\*+/)")


# Bounds on what a hostile line can cost; no path is longer, no real pattern comes near.
_LONGEST_LINE = 4096
_MOST_SPELLINGS = 32


def _spellings(glob: bytes) -> list[bytes]:
    """An anchored glob as one or more that mean the same without git's special cases."""
    out: list[bytes] = []
    while glued := _GLUED_STARS.fullmatch(glob):
        before, after = glued[1], glued[2] or b""
        out.append(before + b"*/**" + after.removeprefix(b"\\"))
        if after.startswith(b"\\"):
            return out
        glob = before + (after[1:] if after else b"*")
        if len(out) == _MOST_SPELLINGS:
            raise _Malformed
        if not after:
            break
    return [*out, glob]


def regex_of(segment: Segment) -> bytes:
    """A star takes no more than it must: atomic, so that no name can make matching slow."""
    chunks: list[bytes] = [b""]
    for atom in segment:
        if atom == _STAR:
            chunks.append(b"")
        else:
            chunks[-1] += re.escape(bytes([atom])) if isinstance(atom, int) else atom
    first, *rest = chunks
    if not rest:
        return first
    middle = b"".join(b"(?>[^/]*?%s)" % chunk for chunk in rest[:-1])
    return b"%s%s[^/]*%s" % (first, middle, rest[-1])


def _places(segments: Sequence[Segment]) -> re.Pattern[bytes]:
    """Matches the directories, each ended by a slash, that the leading segments of a glob name."""
    groups: list[bytes] = [b""]
    for segment in segments:
        if segment == (_STARS,):
            groups.append(b"(?:[^/]*/)*?")
        else:
            groups[-1] += regex_of(segment) + b"/"
    first, *rest = groups
    middle = b"".join(b"(?>%s)" % group for group in rest[:-1])
    return re.compile(first + middle + b"".join(rest[-1:]), re.DOTALL)


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """One line of .gitignore syntax: in which directories it judges which names."""

    negated: bool
    dir_only: bool
    above: tuple[Segment, ...]
    places: re.Pattern[bytes] | None
    name: Segment
    matches: Callable[[bytes], object]

    def leads(self) -> list[re.Pattern[bytes]]:
        """The directories below which this pattern, having a slash, may match something."""
        if self.negated:
            return []
        return [_places(self.above[:count]) for count in range(1, len(self.above) + 1)]


def literal_of(segment: Segment) -> bytes | None:
    return bytes(a for a in segment if isinstance(a, int)) if _plain(segment) else None


def suffix_of(segment: Segment) -> bytes | None:
    return literal_of(segment[1:]) if segment[:1] == (_STAR,) else None


def _plain(segment: Segment) -> bool:
    return all(isinstance(atom, int) for atom in segment)


def _matcher(segment: Segment) -> Callable[[bytes], object]:
    literal, suffix = literal_of(segment), suffix_of(segment)
    if literal is not None:
        return literal.__eq__
    if suffix is not None:
        return lambda name: name.endswith(suffix)
    return re.compile(regex_of(segment), re.DOTALL).fullmatch


def _trimmed(line: bytes) -> bytes:
    """Without the spaces at its end that no backslash keeps."""
    at = kept = 0
    while at < len(line):
        space = line[at] == ord(" ")
        at += 2 if line[at] == ord("\\") else 1
        kept = kept if space else at
    return line[:kept]


def _parse_line(line: bytes) -> list[Pattern]:
    if line.startswith(b"#") or len(line) > _LONGEST_LINE:
        return []
    text = _trimmed(line.partition(b"\0")[0])
    negated = text.startswith(b"!")
    dir_only = text[negated:].endswith(b"/")
    glob = text[negated:].removesuffix(b"/")
    try:
        if b"/" in glob:
            return _anchored(negated, dir_only, glob.removeprefix(b"/"))
        name = _single_stars(_atoms(glob))
    except _Malformed:
        return []
    return [Pattern(negated, dir_only, (), None, name, _matcher(name))] if name else []


def _anchored(negated: bool, dir_only: bool, glob: bytes) -> list[Pattern]:
    out: list[Pattern] = []
    glob = _REPEATED_STARS.sub(b"", _ESCAPED_SLASH.sub(b"*/**/", glob))
    for spelling in _spellings(glob):
        *above, name = _segments(spelling)
        places = None if above == [(_STARS,)] else _places(above)
        if name:
            out.append(Pattern(negated, dir_only, tuple(above), places, name, _matcher(name)))
    return out


@lru_cache(maxsize=1024)
def parse_gitignore(data: bytes) -> tuple[Pattern, ...]:
    """The patterns of a .gitignore file, read as git reads it."""
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return tuple(p for line in lines for p in _parse_line(line.removesuffix(b"\r")))


@lru_cache(maxsize=64)
def parse_patterns(patterns: tuple[str, ...]) -> tuple[Pattern, ...]:
    return tuple(p for text in patterns for p in _parse_line(parse_path(text)))
