"""What lies between two states of a workspace, for people and programs to read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from core.diff import diff_trees, dirs_of, entry_at, files_of
from core.model import LINK, Entry, Maker, RelPath, is_within, show_path
from core.patch import numstat
from core.plan import State
from core.renames import FileChange, Read, find_renames

from .words import count, named, octal, path_line

Private = Callable[[RelPath], bool]


@dataclass(frozen=True, slots=True)
class Moded:
    """A path of which the permissions alone differ."""

    path: RelPath
    old: int
    new: int


@dataclass(frozen=True)
class Difference:
    """The changed files, and what is not in git's trees: permissions and empty directories."""

    changes: list[FileChange]
    modes: list[Moded]
    came: list[RelPath]
    went: list[RelPath]
    read: Read = field(repr=False)
    by: Mapping[RelPath, tuple[Maker, ...]] = field(default_factory=dict)
    """Who changed each path, where that was asked for."""

    def __bool__(self) -> bool:
        return bool(self.changes or self.modes or self.came or self.went)

    def numstat(self, change: FileChange) -> tuple[int, int] | None:
        return numstat(change, self.read)


def difference(
    old: State,
    new: State,
    tops: tuple[RelPath, ...] = (),
    known: Mapping[RelPath, RelPath] | None = None,
) -> Difference:
    """From old to new, at and below the given paths; new's readers know what the store holds.

    Known are old names by new ones.
    """

    def read(entry: Entry) -> bytes:
        return new.read_blob(entry.oid)

    found = diff_trees(new.read_tree, old.files, new.files)
    return Difference(
        find_renames([change for change in found if _asked(change.path, tops)], read, known),
        [moded for moded in _modes(old, new) if _asked(moded.path, tops)],
        [path for path in _new_dirs(old, new) if _asked(path, tops)],
        [path for path in _new_dirs(new, old) if _asked(path, tops)],
        read,
    )


def made_by(found: Difference, who: str) -> Difference:
    """Only what a `turn`, or the `person`, had a part in."""

    def asked(path: RelPath | None) -> bool:
        makers = found.by.get(path, ()) if path is not None else ()
        return any(m.is_agent if who == "turn" else m.may_be_person for m in makers)

    return replace(
        found,
        changes=[one for one in found.changes if asked(one.path) or asked(one.old_path)],
        modes=[moded for moded in found.modes if asked(moded.path)],
        came=[path for path in found.came if asked(path)],
        went=[path for path in found.went if asked(path)],
    )


def _asked(path: RelPath, tops: tuple[RelPath, ...]) -> bool:
    return not tops or any(is_within(path, top) for top in tops)


def _new_dirs(old: State, new: State) -> list[RelPath]:
    """Empty directories of new where old has nothing."""
    fresh = new.about.empty - old.about.empty
    return sorted(path for path in fresh if entry_at(old.read_tree, old.files, path) is None)


def _modes(old: State, new: State) -> Iterator[Moded]:
    """Where git's modes and the kinds are the same and the permissions are not."""
    for path in sorted(_mode_candidates(old, new)):
        one = entry_at(old.read_tree, old.files, path)
        other = entry_at(new.read_tree, new.files, path)
        if one is None or other is None or one.mode != other.mode or one.mode == LINK:
            continue
        was, now = old.about.mode(path, one.mode), new.about.mode(path, one.mode)
        if was != now:
            yield Moded(path, was, now)


def _mode_candidates(old: State, new: State) -> set[RelPath]:
    one, other = old.about.modes, new.about.modes
    paths = {path for path in one.keys() | other.keys() if one.get(path) != other.get(path)}
    if old.about.usual != new.about.usual:
        paths |= {path for path, _ in files_of(new.read_tree, new.files)}
        paths |= set(dirs_of(new.read_tree, new.files))
    return paths


def status_of(change: FileChange) -> str:
    if change.old is None:
        return "added"
    if change.new is None:
        return "deleted"
    if change.old_path is not None:
        return "renamed"
    if (change.old.mode == LINK) != (change.new.mode == LINK):
        return "retyped"
    return "modified" if change.old.oid != change.new.oid else "mode"


def is_private(change: FileChange, private: Private) -> bool:
    return private(change.path) or (change.old_path is not None and private(change.old_path))


# For people


LETTERS = {
    "added": "A",
    "deleted": "D",
    "renamed": "R",
    "retyped": "T",
    "modified": "M",
    "mode": "m",
}
"""`m` is a change of permissions alone, which git's own letters do not have."""


def total(found: Difference) -> str:
    stats = list(filter(None, map(found.numstat, found.changes)))
    come, gone = sum(come for come, _ in stats), sum(gone for _, gone in stats)
    return f"{count(len(found.changes), 'file')}, +{come:,} -{gone:,}"


def change_lines(found: Difference, *, full: bool = False) -> list[str]:
    """One line per path."""
    lines = [
        path_line(f"  {LETTERS[status_of(one)]} ", _moved(one), _numbers(found, one), full=full)
        for one in found.changes
    ]
    for letter, paths in (("A", found.came), ("D", found.went)):
        after = "/  (empty directory)"
        lines += [path_line(f"  {letter} ", named(path), after, full=full) for path in paths]
    for moded in found.modes:
        after = f"  {octal(moded.old)} -> {octal(moded.new)}"
        lines.append(path_line("  m ", named(moded.path), after, full=full))
    return lines


def _moved(change: FileChange) -> str:
    return (f"{named(change.old_path)} -> " if change.old_path else "") + named(change.path)


def _numbers(found: Difference, change: FileChange) -> str:
    stat = found.numstat(change)
    if stat is None:
        return "  binary"
    return f"  +{stat[0]} -{stat[1]}" if any(stat) else ""


# For programs


def as_json(found: Difference) -> dict[str, object]:
    return {
        "changes": [_change_json(found, change) for change in found.changes],
        "modes": [
            {
                "path": show_path(m.path),
                "old": octal(m.old),
                "new": octal(m.new),
                "by": _by_json(found, m.path),
            }
            for m in found.modes
        ],
        "dirs_added": [show_path(path) for path in found.came],
        "dirs_deleted": [show_path(path) for path in found.went],
    }


def _change_json(found: Difference, change: FileChange) -> dict[str, object]:
    stat = found.numstat(change)
    return {
        "path": show_path(change.path),
        "old_path": show_path(change.old_path) if change.old_path else None,
        "renamed_from": show_path(change.old_path) if change.old_path else None,
        "status": status_of(change),
        "insertions": stat[0] if stat else 0,
        "deletions": stat[1] if stat else 0,
        "binary": stat is None,
        "by": _by_json(found, change.path, change.old_path),
    }


def _by_json(found: Difference, *paths: RelPath | None) -> list[str]:
    """Turns as SESSION/TURN, others by what they are."""
    makers = [maker for path in paths if path is not None for maker in found.by.get(path, ())]
    return list(dict.fromkeys(name for m in makers for name in m.turns or (m.who,)))
