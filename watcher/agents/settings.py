"""Puts turnmark's entries into agents' settings and takes exactly those out again.

Every change is remembered in `agents.json`: the file as it is without us, byte by byte, and what it
became. A file that nobody else has changed since goes back to those bytes; from another one only
what is ours is cut.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import shutil
import stat
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from core.errors import TurnmarkError

from ..context import Context
from . import AGENTS
from .client import MARKER, write
from .found import holds, mentions
from .model import Agent
from .wishes import Own, Place, Refused, Wish, is_needed, wishes

BOM = "\ufeff"
MOST_BYTES = 16 << 20


@dataclass(frozen=True)
class Record:
    """One file that was changed: what it is without us (None: not there), and what it became."""

    agent: str
    path: str
    after: str
    base: str | None
    folders: tuple[str, ...] = ()
    project: str | None = None


@dataclass(frozen=True)
class Change:
    """What is to become of one file; `after` None means that it goes."""

    path: Path
    before: bytes | None
    after: bytes | None
    wish: Wish
    base: bytes | None = None

    @property
    def idle(self) -> bool:
        return self.before == self.after

    def diff(self) -> str:
        old, new = (
            (data or b"").decode("utf-8", "replace").splitlines(keepends=True)
            for data in (self.before, self.after)
        )
        lines = difflib.unified_diff(old, new, str(self.path), str(self.path))
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


@dataclass(frozen=True)
class Trouble:
    """A file that is left as it is, why, and what a person may put into it."""

    path: Path
    reason: str
    snippet: str
    needed: bool


class Ledger:
    """Owns `agents.json` and the copies of the files as they are without us."""

    def __init__(self, home: Path) -> None:
        self.path = home / "agents.json"
        self.copies = home / "agents"
        self.records = self._read()

    def _read(self) -> dict[str, Record]:
        try:
            rows = json.loads(self.path.read_text(encoding="utf-8"))["files"]
            found = [Record(**{**row, "folders": tuple(row["folders"])}) for row in rows]
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError) as error:
            raise TurnmarkError(
                f"{self.path} is damaged: {error}.",
                "Move it away: entries are then recognised by their command.",
            ) from error
        return {record.path: record for record in found}

    def save(self) -> None:
        rows = [asdict(record) for record in self.records.values()]
        if not rows:
            self.path.unlink(missing_ok=True)
            return
        text = json.dumps({"version": 1, "files": rows}, indent=2) + "\n"
        write(self.path, text.encode(), 0o600)

    def base_of(self, record: Record) -> bytes | None:
        """The copy; a ValueError if it is lost, or not what it was."""
        if record.base is None:
            return None
        try:
            data = (self.copies / record.base).read_bytes()
        except OSError as error:
            raise ValueError("the copy is lost") from error
        if not record.base.endswith(_sum(data)[:16]):
            raise ValueError("the copy is damaged")
        return data

    def keep(self, name: str, data: bytes | None) -> str | None:
        """A copy with the time in its name; copies are never overwritten."""
        if data is None:
            return None
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        copy = f"{stamp}-{name}-{_sum(data)[:16]}"
        write(self.copies / copy, data, 0o600)
        return copy


# Looking


def plan(agent: Agent, place: Place, ledger: Ledger) -> tuple[list[Change], list[Trouble]]:
    """What `init` would change, and what it cannot."""
    changes: list[Change] = []
    troubles: list[Trouble] = []
    for wish in wishes(agent, place):
        try:
            changes.append(_wanted(wish, ledger))
        except Refused as error:
            fine = holds(wish)
            reason = "has what belongs into it" if fine else str(error)
            needed = is_needed(wish) and not fine
            troubles.append(Trouble(wish.path, reason, wish.snippet(), needed))
    return changes, troubles


def _wanted(wish: Wish, ledger: Ledger) -> Change:
    path, before = _look(wish.path)
    base = without(wish, path, before, ledger)
    text, bom = _text(base or b"")
    after = (bom + wish.add(text)).encode()
    return Change(path, before, after, wish, base)


def _look(path: Path) -> tuple[Path, bytes | None]:
    """The real file behind links, and what is in it."""
    real = Path(os.path.realpath(path))
    try:
        info = real.stat()
        if not stat.S_ISREG(info.st_mode):
            raise Refused("is no file")
        if not info.st_mode & 0o200 or not os.access(real.parent, os.W_OK):
            raise Refused("is read-only")
        if info.st_size > MOST_BYTES:
            raise Refused("is too large")
        return real, real.read_bytes()
    except FileNotFoundError:
        return real, None
    except OSError as error:
        raise Refused(f"cannot be read ({error.strerror})") from error


def without(wish: Wish, path: Path, data: bytes | None, ledger: Ledger) -> bytes | None:
    """The file as it is without us: as remembered, or with our part cut out."""
    record = ledger.records.get(str(path))
    if data is None:
        return None
    if record is not None and _sum(data) == record.after:
        with suppress(ValueError):
            return ledger.base_of(record)
    text, bom = _text(data)
    stripped = wish.strip(text)
    if stripped == text:
        return data
    made = isinstance(wish, Own) or (record is not None and record.base is None)
    return None if made and stripped.strip() in ("", "{}") else (bom + stripped).encode()


def _text(data: bytes) -> tuple[str, str]:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused("is not UTF-8") from error
    return (text[1:], BOM) if text.startswith(BOM) else (text, "")


def _sum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# Doing


def carry_out(agent: Agent, changes: list[Change], place: Place, ledger: Ledger) -> None:
    """Each file whole or not at all; the ledger knows of a change before it is made."""
    project = str(place.project) if place.project else None
    for change in changes:
        if change.after is None or (change.idle and str(change.path) in ledger.records):
            continue
        old = ledger.records.get(str(change.path))
        folders = (*(old.folders if old else ()), *_missing(change.path.parent))
        copy = ledger.keep(change.path.name, change.base)
        after = _sum(change.after)
        record = Record(agent.name, str(change.path), after, copy, folders, project)
        ledger.records[record.path] = record
        ledger.save()
        write(change.path, change.after, _mode(change))


def _missing(folder: Path) -> list[str]:
    """The directories that have to be made, the outermost first."""
    missing = []
    while not folder.exists():
        missing.append(str(folder))
        folder = folder.parent
    return missing[::-1]


def _mode(change: Change) -> int:
    if change.before is not None:
        return stat.S_IMODE(change.path.stat().st_mode)
    return change.wish.mode if isinstance(change.wish, Own) else 0o600


def removal(agent: Agent, place: Place, ledger: Ledger) -> tuple[list[Change], list[Trouble]]:
    """What `remove` would change: where we are, by the ledger or by the looks of it."""
    changes: list[Change] = []
    troubles: list[Trouble] = []
    for wish in _everywhere(agent, place, ledger):
        try:
            path, before = _look(wish.path)
            after = without(wish, path, before, ledger)
            if before is not None or str(path) in ledger.records:
                changes.append(Change(path, before, after, wish))
        except Refused as error:
            if mentions(wish):
                reason = f"{error}: take out by hand what names {MARKER}, and run this again"
                troubles.append(Trouble(wish.path, reason, "", True))
            elif os.access(wish.path, os.R_OK):  # somebody has: it only is to be forgotten
                changes.append(Change(Path(os.path.realpath(wish.path)), b"", b"", wish))
    return [c for c in changes if not c.idle or str(c.path) in ledger.records], troubles


def _everywhere(agent: Agent, place: Place, ledger: Ledger) -> list[Wish]:
    """Also in the projects that the ledger knows."""
    mine = [record for record in ledger.records.values() if record.agent == agent.name]
    projects = {record.project for record in mine if record.project}
    places = (
        [place] if place.project else [place, *(Place(place.context, Path(p)) for p in projects)]
    )
    return [wish for one in places for wish in wishes(agent, one)]


def take_out(changes: list[Change], ledger: Ledger) -> None:
    """In reverse: the directories of the first file may hold those of the others."""
    for change in reversed(changes):
        if change.after is None:
            change.path.unlink(missing_ok=True)
        elif not change.idle:
            write(change.path, change.after, _mode(change))
        record = ledger.records.pop(str(change.path), None)
        for folder in reversed(record.folders if record else ()):
            with suppress(OSError):
                os.rmdir(folder)
        ledger.save()


def present(context: Context) -> list[Agent]:
    """The agents that are on this machine: a program, or a directory of settings."""
    place, path = Place(context), context.env.get("PATH", "")
    return [
        agent
        for agent in AGENTS.values()
        if shutil.which(agent.program, path=path) or place.folder(agent).is_dir()
    ]
