"""What is captured: excludes, .gitignore files and protected paths; knows nothing of disks."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

from .errors import Damaged
from .gitignore import (
    Pattern,
    Segment,
    literal_of,
    parse_gitignore,
    parse_patterns,
    regex_of,
    suffix_of,
)
from .model import ROOT, GapReason, RelPath, join, parse_path, show_path

LeftOut = Literal["excluded", "ignored", "nested-root"]
Verdict = Literal["capture", "through"] | LeftOut

STAGING_PREFIX = b".turnmark-staging-"

DEFAULT_EXCLUDE: tuple[str, ...] = (
    *("node_modules/", "dist/", "build/", "target/", "out/", ".next/", ".nuxt/"),
    *("__pycache__/", "*.pyc", "*.pyo", ".cache/", ".pytest_cache/", ".mypy_cache/"),
    *(".ruff_cache/", "coverage/", ".coverage", ".tox/", ".uv-cache/", "node-compile-cache/"),
    *(".venv/", "venv/", "env/", ".gradle/", ".idea/", ".lake/", ".worktrees/"),
    *(".git/", ".hg/", ".svn/"),
    *("*.so", "*.dylib", "*.dll", "*.o", "*.a", "*.jar", "*.class", "*.exe", "*.obj", "*.olean"),
    *("*.mp4", "*.mov", "*.mkv", "*.webm"),
    *("*.zip", "*.tar", "*.tar.gz", "*.tgz", "*.7z", "*.rar", "*.iso"),
    *(".DS_Store", "Thumbs.db", "*.log"),
)
DEFAULT_PROTECT: tuple[str, ...] = (".env", ".env.*")


@dataclass(frozen=True)
class RuleSet:
    """The rules of one workspace as its owner wrote them; a cap of 0 means none.

    A file of exactly max_file_size bytes is captured. nested holds the roots of other
    workspaces inside this one.
    """

    exclude: tuple[str, ...] = DEFAULT_EXCLUDE
    protect: tuple[str, ...] = DEFAULT_PROTECT
    gitignore: bool = True
    max_file_size: int = 10 * 1024 * 1024
    max_files: int = 1_000_000
    nested: frozenset[RelPath] = frozenset()

    def to_json(self) -> dict[str, object]:
        return {
            "exclude": list(self.exclude),
            "protect": list(self.protect),
            "gitignore": self.gitignore,
            "max_file_size": self.max_file_size,
            "max_files": self.max_files,
            "nested": [show_path(path) for path in sorted(self.nested)],
        }

    @classmethod
    def from_json(cls, doc: Mapping[str, object]) -> RuleSet:
        """What to_json wrote; missing keys have their defaults, unknown ones are skipped."""
        return cls(
            exclude=_strings(doc, "exclude", DEFAULT_EXCLUDE),
            protect=_strings(doc, "protect", DEFAULT_PROTECT),
            gitignore=bool(doc.get("gitignore", True)),
            max_file_size=_number(doc, "max_file_size", cls.max_file_size),
            max_files=_number(doc, "max_files", cls.max_files),
            nested=frozenset(RelPath(parse_path(path)) for path in _strings(doc, "nested", ())),
        )


def _strings(doc: Mapping[str, object], key: str, default: tuple[str, ...]) -> tuple[str, ...]:
    value = doc.get(key, default)
    if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(value)
    raise _unusable(key)


def _number(doc: Mapping[str, object], key: str, default: int) -> int:
    value = doc.get(key, default)
    if isinstance(value, int):
        return value
    raise _unusable(key)


def _unusable(key: str) -> Damaged:
    return Damaged(f"The recorded rules have no usable '{key}'.", "Run `turnmark store verify`.")


_HFS_IGNORED = re.compile(rb"\xe2\x80[\x8c-\x8f\xaa-\xae]|\xe2\x81[\xaa-\xaf]|\xef\xbb\xbf")
_GIT_ALIAS = re.compile(rb"(?i:\.git|git~1)[. \r]*(?:[:\\].*)?", re.DOTALL)


def is_git_alias(name: bytes) -> bool:
    """Whether some file system would open .git under this name."""
    if not name.isascii():
        name = _HFS_IGNORED.sub(b"", name)
    return _GIT_ALIAS.fullmatch(name) is not None


def _decides(patterns: Iterable[Pattern], name: bytes, is_dir: bool) -> bool:
    """Whether the last of the patterns that matches, which here comes first, is not a `!`."""
    for pattern in patterns:
        if (is_dir or not pattern.dir_only) and pattern.matches(name):
            return not pattern.negated
    return False


_NEVER_CAPTURED = rb"(?i:\.git|git~1)|" + re.escape(STAGING_PREFIX)


class _Table:
    """The patterns in force in a directory, last first, and a quick test that clears most names."""

    __slots__ = ("clears", "exclude", "ignore", "protect")

    def __init__(self, *groups: tuple[Pattern, ...]) -> None:
        self.protect, self.exclude, self.ignore = (group[::-1] for group in groups)
        self.clears = _clearance({p.name for group in groups for p in group if not p.negated})


def _clearance(names: set[Segment]) -> Callable[[bytes], bool]:
    """A test, a third of a microsecond long, that holds for names no pattern has a say in."""
    literals = frozenset(filter(None, map(literal_of, names)))
    suffixes = tuple(filter(None, map(suffix_of, names)))
    globs = sorted(regex_of(n) for n in names if not literal_of(n) and not suffix_of(n))
    rest = b"".join(rb"|(?:%s)\Z" % glob for glob in globs)
    suspect = re.compile(_NEVER_CAPTURED + rest, re.DOTALL).match

    def clears(name: bytes) -> bool:
        return not (
            name in literals or name.endswith(suffixes) or suspect(name) or not name.isascii()
        )

    return clears


class _Stance(NamedTuple):
    """What a directory's own place decides for its entries, before any pattern is asked."""

    reason: LeftOut | None = None
    protected: bool = False
    sealed: bool = False


_Gitignores = tuple[tuple[RelPath, tuple[Pattern, ...]], ...]
"""The patterns of each .gitignore that counts, with its directory, outermost first."""


class _Force(NamedTuple):
    """What is in force in one directory."""

    stance: _Stance
    table: _Table
    gitignores: _Gitignores
    clears: Callable[[bytes], bool]


_OPEN = _Stance()


_TABLES_MOST = 4096
_CHILDREN_MOST = 20_000


class _Shared:
    """What all directories of one tree have in common."""

    def __init__(self, ruleset: RuleSet) -> None:
        self.ruleset = ruleset
        self.fingerprint = _fingerprint(ruleset)
        self.exclude = parse_patterns(ruleset.exclude)
        self.protect = parse_patterns(ruleset.protect)
        self.leads = [lead for pattern in self.protect for lead in pattern.leads()]
        self.above_nested = {path.rpartition(b"/")[0] for path in ruleset.nested}
        self._tables: dict[tuple[tuple[Pattern, ...], ...], _Table] = {}

    def table(self, *groups: tuple[Pattern, ...]) -> _Table:
        """One for all directories with the same patterns in force, which are most."""
        found = self._tables.get(groups)
        if found is None:
            if len(self._tables) >= _TABLES_MOST:
                self._tables.clear()
            found = self._tables[groups] = _Table(*groups)
        return found


@lru_cache(maxsize=32)
def _shared_by(ruleset: RuleSet) -> _Shared:
    """Compiled once for every look under the same rules."""
    return _Shared(ruleset)


def _clears_nothing(_: bytes) -> bool:
    return False


def _in_force(patterns: tuple[Pattern, ...], base: bytes, path: bytes) -> tuple[Pattern, ...]:
    """Those of the patterns written in base that judge the entries of the directory path."""
    below = path[len(base) + 1 :] if base else path
    place = below + b"/" if below else b""
    return tuple([p for p in patterns if p.places is None or p.places.fullmatch(place)])


class DirRules:
    """The rules in force for the entries of one directory.

    Protected wins over excluded, excluded over ignored; a `!` takes back only what its own list
    said before. Everything below a protected directory is protected. A protect pattern with a
    slash in it makes the directories that lead to its matches be entered even where they are
    left out ("through"); one without a slash applies in every directory that is entered, but
    makes none be. Nothing makes `.git`, its aliases or the root of another workspace be entered.

    Compiled at the first verdict, so that a tree of unchanged fingerprints costs only hashes.
    """

    __slots__ = ("_children", "_force", "_gitignore", "_parent", "_shared", "fingerprint", "path")

    def __init__(
        self, shared: _Shared, path: RelPath, gitignore: bytes | None, parent: DirRules | None
    ) -> None:
        self.path = path
        self._shared, self._parent = shared, parent
        self._gitignore = gitignore if shared.ruleset.gitignore else None
        above = parent.fingerprint if parent else shared.fingerprint
        self.fingerprint: bytes = above
        if self._gitignore is not None:
            said = b"\0".join((above, path, self._gitignore))
            self.fingerprint = hashlib.sha256(said).digest()
        self._force: _Force | None = None
        self._children: dict[bytes, DirRules] = {}

    @classmethod
    def root(cls, ruleset: RuleSet, gitignore: bytes | None) -> DirRules:
        return cls(_shared_by(ruleset), ROOT, gitignore, None)

    def is_for(self, ruleset: RuleSet, gitignore: bytes | None) -> bool:
        """Whether these are the rules of a root that such rules are written for."""
        return self._shared.ruleset == ruleset and self._gitignore == gitignore

    def child(self, name: bytes, gitignore: bytes | None) -> DirRules:
        """Kept, compiled as they may be, for the next look at the same directory."""
        kept = self._children.get(name)
        if kept is None or kept._gitignore != gitignore:
            if len(self._children) >= _CHILDREN_MOST:
                self._children.clear()
            kept = DirRules(self._shared, join(self.path, name), gitignore, self)
            self._children[name] = kept
        return kept

    def drop(self, path: RelPath) -> None:
        """Lets go of what is kept for a directory below, and for all in it."""
        *above, name = path.split(b"/")
        rules: DirRules | None = self
        for part in above:
            rules = rules._children.get(part) if rules is not None else None
        if rules is not None:
            rules._children.pop(name, None)

    def verdict(self, name: bytes, is_dir: bool) -> Verdict:
        force = self._force or self._compile()
        return "capture" if force.clears(name) else self._judge(force, name, is_dir)

    def left_out(self, name: bytes) -> GapReason | None:
        """Why a directory is left out, also where protected paths below make it be entered."""
        return self._fate(self._force or self._compile(), name, True).reason

    def _judge(self, force: _Force, name: bytes, is_dir: bool) -> Verdict:
        stance = self._fate(force, name, is_dir)
        if stance.reason is None:
            return "capture"
        if is_dir and not stance.sealed and self._leads(name):
            return "through"
        return stance.reason

    def _fate(self, force: _Force, name: bytes, is_dir: bool) -> _Stance:
        """The stance for an entry: its verdict, and where the directory it may be begins."""
        above, table = force.stance, force.table
        if above.sealed:
            return above
        if is_git_alias(name) or (not self.path and name.startswith(STAGING_PREFIX)):
            return _Stance("excluded", sealed=True)
        if is_dir and join(self.path, name) in self._shared.ruleset.nested:
            return _Stance("nested-root", sealed=True)
        if above.protected or _decides(table.protect, name, is_dir):
            return _Stance(protected=True)
        if above.reason:
            return above
        return _Stance(_left_out(table, name, is_dir))

    def _leads(self, name: bytes) -> bool:
        place = join(self.path, name) + b"/"
        return any(lead.fullmatch(place) for lead in self._shared.leads)

    def _compile(self) -> _Force:
        """From the top down, and without recursion: trees may be deeper than Python's stack."""
        waiting = [self]
        while (above := waiting[-1]._parent) and above._force is None:
            waiting.append(above)
        for rules in reversed(waiting):
            force = rules._force = rules._compiled()
        return force

    def _compiled(self) -> _Force:
        shared, path = self._shared, self.path
        stance, gitignores = self._inherited()
        if self._gitignore is not None and stance == _OPEN:
            gitignores = (*gitignores, (path, parse_gitignore(self._gitignore)))
        table = shared.table(
            _in_force(shared.protect, ROOT, path),
            _in_force(shared.exclude, ROOT, path),
            tuple(p for base, lines in gitignores for p in _in_force(lines, base, path)),
        )
        quick = stance == _OPEN and path not in shared.above_nested
        return _Force(stance, table, gitignores, table.clears if quick else _clears_nothing)

    def _inherited(self) -> tuple[_Stance, _Gitignores]:
        parent = self._parent
        if parent is None:
            return _OPEN, ()
        force = parent._force or parent._compile()
        name = self.path.rpartition(b"/")[2]
        stance = _OPEN if force.clears(name) else parent._fate(force, name, is_dir=True)
        if stance.reason and not parent._leads(name):
            stance = stance._replace(sealed=True)
        return stance, force.gitignores


def _left_out(table: _Table, name: bytes, is_dir: bool) -> LeftOut | None:
    if _decides(table.exclude, name, is_dir):
        return "excluded"
    return "ignored" if _decides(table.ignore, name, is_dir) else None


def _fingerprint(ruleset: RuleSet) -> bytes:
    return hashlib.sha256(json.dumps(ruleset.to_json(), sort_keys=True).encode()).digest()


def verdict_of(
    path: RelPath, is_dir: bool, root: DirRules, gitignore_of: Callable[[RelPath], bytes | None]
) -> GapReason | None:
    """Why a path is left out, itself or with a directory above it; None if it is looked at.

    A directory that is entered only for what it holds ("through") is looked at.
    """
    rules, names = root, path.split(b"/") if path else []
    for depth, name in enumerate(names, 1):
        verdict = rules.verdict(name, is_dir or depth < len(names))
        if verdict != "capture" and verdict != "through":
            return verdict
        if depth < len(names):
            rules = rules.child(name, gitignore_of(join(rules.path, name)))
    return None
