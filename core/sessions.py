"""The YAML states of agents' sessions: what a task has come to, so that it can be taken up again.

Knows one directory of its own, which no other feature shares; nothing of stores or of agents.
A document is the agent's, but for the key `turnmark`, which is ours: what is written for an agent
never changes it. All changes are made under one lock, each file in one step.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from hashlib import sha256
from typing import Any, Literal

# The one package from outside that core needs where it is: session states are YAML by contract.
import yaml

from .disk import GONE, REAL, Disk
from .errors import BadInput, Busy, TurnmarkError, explain
from .model import Mark, rfc3339

State = dict[str, Any]
Clock = Callable[[], int]

OWN = "turnmark"
ALONE = "notes_only"
"""Among our notes: the rest of the document is ours as well, made for want of the agent's own."""
END = ".yaml"
LOCK = ".lock"
UNFINISHED = ".new"
"""What Disk.replace leaves of a write that was killed."""
MAX_ID = 128
MAX_BYTES = 4 << 20
MAX_TURNS = 50
"""So many of a session's newest turns are listed in its document; the store has all of them."""
WAIT = 5.0
DAY_NS = 86_400_000_000_000
APPENDED = ("progress", "decisions")

_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_ASIDE = re.compile(r"(.+)\.damaged-[0-9]+")
_UNSAID: State = {"progress": [], "state": {}, "decisions": [], "blocked": [], "unresolved": []}

# libyaml's are ten times as fast, and where they are missing the others do the same.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CDumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(_CDumper):  # type: ignore[valid-type, misc]
    """Writes everything out: an anchor is nothing for people to read."""

    def ignore_aliases(self, data: object) -> bool:
        return True


class _Damage(Exception):
    """The bytes are no document of a session."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection did: states removed, files set aside, and what went wrong."""

    removed: tuple[str, ...] = ()
    aside: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """What a collection goes by, in nanoseconds."""

    now: int
    other: float
    completed: float
    only_notes: bool


@dataclass(frozen=True, slots=True)
class TurnNote:
    """A begin or an end of a turn in one workspace, as its mark tells it."""

    kind: Literal["begin", "end"]
    workspace: str
    root: str
    turn: int
    point: str
    seq: int
    turn_id: str | None = None
    agent: str | None = None
    label: str = ""
    status: str | None = None
    pid: int | None = None
    time_ns: int | None = None
    """When it was; None: now."""


@dataclass
class Sessions:
    """Owns the directory of the session states; its methods are what agents and people call."""

    directory: str
    disk: Disk = field(default=REAL, repr=False)
    clock: Clock = field(default=time.time_ns, repr=False)

    def write(self, state: Mapping[str, Any]) -> State:
        """Replaces a session's state, stamped; returns what was written. The argument stays."""
        name = check_id(state.get("session_id"))
        fresh = plain(state)
        fresh.pop(OWN, None)
        with self._locked():
            return self._save(name, fresh, self._known(name))

    def update(self, session: str, change: Mapping[str, Any]) -> State:
        """Merges a change into what is there; see `merge`."""
        name = check_id(session)
        with self._locked():
            known = self._known(name)
            base = {key: value for key, value in (known or {}).items() if key != OWN}
            return self._save(name, merge(base, plain(change)), known)

    def read(self, session: str) -> State | None:
        """None if there is none, or none that can be read: that file is then set aside."""
        name = check_id(session)
        try:
            return self._load(name)
        except _Damage:
            with self._locked():
                return self._known(name)

    def delete(self, session: str) -> bool:
        """Whether there was one; files set aside stay."""
        name = check_id(session)
        if not self.disk.exists(self.directory):
            return False
        with self._locked():
            there = self.disk.exists(self._path(name))
            if there:
                self.disk.unlink(self._path(name))
        return there

    def list(self) -> tuple[str, ...]:
        """The ids, sorted."""
        stems = (name.removesuffix(END) for name in self._names() if name.endswith(END))
        return tuple(sorted(stem for stem in stems if is_id(stem)))

    def aside(self, session: str = "") -> tuple[str, ...]:
        """The damaged files that were kept, of one session or of all."""
        found = ((name, _ASIDE.fullmatch(name.removesuffix(END))) for name in self._names())
        return tuple(sorted(n for n, match in found if match and session in ("", match[1])))

    def garbage_collect(
        self,
        max_age_days: float = 7,
        completed_days: float = 1,
        now_ns: int | None = None,
        *,
        only_notes: bool = False,
    ) -> Collected:
        """Removes what nobody has touched for long, sooner what is completed. Never raises.

        What cannot be parsed is set aside, whatever its age. only_notes: what an agent, or a
        person, has written something in stays.
        """
        now = self.clock() if now_ns is None else now_ns
        limits = Limits(
            now, max_age_days * DAY_NS, min(completed_days, max_age_days) * DAY_NS, only_notes
        )
        try:
            if not self.disk.exists(self.directory):
                return Collected()
            with self._locked():
                return self._collect(limits)
        except (OSError, TurnmarkError) as error:
            return Collected(errors=(str(error),))

    def note_turn(self, session: str, note: TurnNote) -> State | None:
        """Keeps, in the session's own document, which workspaces and turns it has, and the last
        point; makes the document where the agent has written none. Any id of an agent will do."""
        return self.note_turns(session, [note])

    def note_turns(
        self, session: str, notes: Iterable[TurnNote], *, if_known: bool = False
    ) -> State | None:
        """Several in one step. if_known: only into a document that has notes, and what it lacks."""
        name = file_id(session)
        if if_known and not self.disk.exists(self._path(name)):
            return None
        with self._locked():
            known = self._known(name)
            own = {ALONE: True} if known is None else _mapping(known.get(OWN))
            if if_known:
                notes = _missing(own, notes) if own.get("workspaces") else []
            state, own = known, deepcopy(own)
            for note in notes:
                state = state or {**_begun(note), "created": self._time(note)}
                _note(own, session, note, self._time(note))
            if state is None or own == state.get(OWN):
                return state
            return self._save(name, state, known, own=own)

    def _time(self, note: TurnNote) -> str:
        return rfc3339(note.time_ns or self.clock())

    # One file

    def _path(self, name: str) -> str:
        return f"{self.directory}/{name}{END}"

    def _names(self) -> tuple[str, ...]:
        try:
            with self.disk.scandir(self.directory) as found:
                return tuple(entry.name for entry in found)
        except FileNotFoundError:
            return ()

    def _load(self, name: str) -> State | None:
        path = self._path(name)
        try:
            # Something else than a file, put there by hand, must not make this wait.
            with self.disk.opened(path, os.O_RDONLY | os.O_NONBLOCK) as fd:
                data = self.disk.read_all(fd, MAX_BYTES)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in GONE or isinstance(error, IsADirectoryError):
                raise _Damage from error
            raise explain(error, "read a session state", path) from error
        return parse(data)

    def _known(self, name: str) -> State | None:
        """As `_load`, under the lock: a damaged file gives way."""
        try:
            return self._load(name)
        except _Damage:
            self._set_aside(name)
            return None

    def _set_aside(self, name: str) -> str:
        number = 1
        while self.disk.exists(f"{self.directory}/{name}.damaged-{number}{END}"):
            number += 1
        kept = f"{name}.damaged-{number}{END}"
        self.disk.rename(self._path(name), f"{self.directory}/{kept}")
        return kept

    def _save(
        self, name: str, fresh: State, known: State | None, own: State | None = None
    ) -> State:
        now = rfc3339(self.clock())
        created = fresh.get("created") or (known or {}).get("created") or now
        head = {"session_id": name, "task": "", "status": "in_progress"}
        state = {**head, **fresh, "session_id": name, "created": created, "updated": now}
        if own is None:  # not we, but somebody with something to say
            own = dict(_mapping((known or {}).get(OWN)))
            own.pop(ALONE, None)
        if own:
            state[OWN] = own
        data = encode(state)
        try:
            self.disk.replace(self._path(name), data)
        except OSError as error:
            raise explain(error, "write a session state", self.directory) from error
        return deepcopy(state)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self.disk.make_dirs(self.directory)
            fd = self.disk.open(f"{self.directory}/{LOCK}", os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise explain(error, "open the session states", self.directory) from error
        try:
            if not self.disk.lock(fd, exclusive=True, wait=WAIT):
                raise Busy("The session states are in use by another process.", "Try again.")
            yield
        finally:
            self.disk.close(fd)

    # Collecting

    def _collect(self, limits: Limits) -> Collected:
        removed: list[str] = []
        aside: list[str] = []
        errors: list[str] = []
        for name in self._names():  # nobody else is writing
            if name.endswith(UNFINISHED):
                self.disk.discard(f"{self.directory}/{name}")
        for name in self.list():
            try:
                state = self._load(name)
                if state is not None and self._is_old(name, state, limits):
                    self.disk.unlink(self._path(name))
                    removed.append(name)
            except _Damage:
                aside.append(self._set_aside(name))
            except (OSError, TurnmarkError) as error:
                errors.append(f"{name}: {error}")
        return Collected(tuple(removed), tuple(aside), tuple(errors))

    def _is_old(self, name: str, state: State, limits: Limits) -> bool:
        """By its own word, else by the file's; a stamp of the future is as good as now."""
        if limits.only_notes and _mapping(state.get(OWN)).get(ALONE) is not True:
            return False
        touched = moment_of(state.get("updated"))
        if touched is None:
            touched = self.disk.lstat(self._path(name)).st_mtime_ns
        most = limits.completed if state.get("status") == "completed" else limits.other
        return limits.now - touched > most


# Ids


def is_id(text: object) -> bool:
    return (
        isinstance(text, str)
        and len(text) <= MAX_ID
        and _ID.fullmatch(text) is not None
        and not _ASIDE.fullmatch(text)
    )


def check_id(text: object) -> str:
    if isinstance(text, str) and is_id(text):
        return text
    shown = repr(text) if text is None or isinstance(text, str) else type(text).__name__
    raise BadInput(
        f"{shown[:80]} cannot be the id of a session.",
        f"Letters, digits, '.', '_' and '-', at most {MAX_ID}, and no '.' at the beginning.",
    )


def file_id(session: str) -> str:
    """The id itself, or one made of it where an agent's cannot be the name of a file."""
    if is_id(session):
        return session
    digest = sha256(session.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    words = re.sub(r"[^A-Za-z0-9_-]+", "-", session)[:40].strip("-")
    return f"{words or 'session'}-{digest}"


# Documents, pure


def merge(state: Mapping[str, Any], update: Mapping[str, Any]) -> State:
    """The state with an update in it: progress and decisions grow, `state` is filled up by key,
    all else is replaced. Neither argument changes; id, times and our own key are not updatable."""
    out = deepcopy(dict(state))
    for key, value in deepcopy(dict(update)).items():
        if key in ("session_id", "created", "updated", OWN):
            continue
        if key in APPENDED:
            out[key] = [*_items(out.get(key)), *_items(value)]
        elif key == "state" and isinstance(value, dict) and isinstance(out.get(key), dict):
            out[key] = {**out[key], **value}
        else:
            out[key] = value
    return out


def _items(value: object) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def plain(state: Mapping[str, Any]) -> State:
    """A copy of what YAML can say; anything else is the caller's mistake."""
    try:
        found = _plain(state)
    except RecursionError as error:
        raise BadInput("The state is nested too deep, or in itself.", "Flatten it.") from error
    assert isinstance(found, dict)
    return found


def _plain(value: object) -> Any:
    if isinstance(value, Mapping):
        return {_plain(key): _plain(below) for key, below in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(below) for below in value]
    if isinstance(value, str):  # a lone surrogate, of a name that is not UTF-8, cannot be written
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if value is None or isinstance(value, bool | int | float | bytes | date):
        return value
    raise BadInput(
        f"A session state cannot hold a {type(value).__name__}.",
        "Text, numbers, true and false, times, lists and mappings are what YAML can say.",
    )


def encode(state: State) -> bytes:
    try:
        text = yaml.dump(state, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    except (yaml.YAMLError, RecursionError, ValueError, OverflowError) as error:
        raise BadInput(f"The state cannot be written as YAML: {error}.") from error
    data = str(text).encode("utf-8")
    if len(data) > MAX_BYTES:
        raise BadInput(
            f"The state has {len(data)} bytes, more than {MAX_BYTES}.", "Keep its older parts out."
        )
    return data


def parse(data: bytes) -> State:
    """The document in a file; _Damage if it is none."""
    if len(data) > MAX_BYTES:
        raise _Damage
    try:
        found = yaml.load(data, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError, TypeError) as error:
        raise _Damage from error
    if not isinstance(found, dict):
        raise _Damage
    return found


def parse_input(data: bytes) -> State:
    """What an agent hands over, as JSON or YAML: not all of JSON is YAML."""
    try:
        found = json.loads(data) if len(data) <= MAX_BYTES else None
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found
    try:
        return parse(data)
    except _Damage as error:
        why = " ".join(str(error.__cause__ or "").split())
        raise BadInput(
            f"This is no session state{': ' + why[:200] if why else ''}.",
            "Give one mapping, as YAML or JSON, in UTF-8.",
        ) from error


def moment_of(value: object) -> int | None:
    """Nanoseconds since 1970, from whatever somebody wrote for a time; UTC where none is said."""
    try:
        if isinstance(value, str):
            value = datetime.fromisoformat(value.strip())
        elif isinstance(value, date) and not isinstance(value, datetime):
            value = datetime(value.year, value.month, value.day, tzinfo=UTC)
        if isinstance(value, datetime):
            value = (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
        if isinstance(value, int | float) and not isinstance(value, bool):
            return int(value * 1_000_000_000)
    except (ValueError, OverflowError):
        return None
    return None


# What turnmark keeps in a document


def note_of(action: str, data: Mapping[str, Any]) -> TurnNote:
    """From what a turn's begin or end was told, and what it answered."""
    return TurnNote(
        kind="begin" if action == "turn.begin" else "end",
        workspace=data["workspace"],
        root=data["root"],
        turn=data["turn"],
        point=data["id"],
        seq=data["seq"],
        turn_id=data.get("turn_id"),
        agent=data.get("agent"),
        label=data.get("label", ""),
        status=data.get("status") or (None if action == "turn.begin" else "ok"),
        pid=data.get("pid"),
        time_ns=data.get("time_ns"),
    )


def note_of_mark(root: str, mark: Mark) -> TurnNote:
    """The same, from the mark that was made of it."""
    return TurnNote(
        kind="begin" if mark.kind == "turn-begin" else "end",
        workspace=mark.workspace,
        root=root,
        turn=mark.turn or 0,
        point=mark.snapshot.hex(),
        seq=mark.seq,
        turn_id=mark.turn_id,
        agent=mark.agent,
        label=mark.label,
        status=mark.status,
        time_ns=mark.time_ns,
    )


def _missing(own: State, notes: Iterable[TurnNote]) -> list[TurnNote]:
    """Those of which our notes do not say it all: ends of open turns, and turns that came later."""
    turns = _mappings(own.get("turns"))
    return [note for note in notes if _is_missing(turns, note)]


def _is_missing(turns: list[State], note: TurnNote) -> bool:
    here = [turn for turn in turns if turn.get("workspace") == note.workspace]
    known = next((turn for turn in here if turn.get("turn") == note.turn), None)
    if known is not None:
        return note.kind == "end" and "ended" not in known
    numbers = (turn.get("turn") for turn in here)
    return note.turn > max((n for n in numbers if isinstance(n, int)), default=0)


def _begun(note: TurnNote) -> State:
    """A session of which its agent has written nothing yet."""
    said = {"task": _plain(note.label), "status": "in_progress"}
    return {**said, **deepcopy(_UNSAID), "state": {"working_directory": _plain(note.root)}}


def _note(own: State, session: str, note: TurnNote, now: str) -> None:
    own["session"] = _plain(session)
    for key, value in (("agent", note.agent), ("pid", note.pid)):
        if value is not None:
            own[key] = _plain(value)
    spaces = own["workspaces"] = _mapping(own.get("workspaces"))
    spaces[note.workspace] = {"root": _plain(note.root), "turns": note.turn}
    own["turns"] = _turns(_mappings(own.get("turns")), note, now)[-MAX_TURNS:]
    own["open"] = any("ended" not in turn for turn in own["turns"])
    own["last"] = {
        "workspace": note.workspace,
        "point": note.point,
        "seq": note.seq,
        "time": now,
    }


def _turns(turns: list[State], note: TurnNote, now: str) -> list[State]:
    """The list with the turn in it; a begin ends what its session had open there."""
    here = [turn for turn in turns if turn.get("workspace") == note.workspace]
    same = next((turn for turn in reversed(here) if turn.get("turn") == note.turn), None)
    for turn in here:
        if turn is not same and "ended" not in turn:
            turn.update(ended=now, status="interrupted")
    if same is None:
        same = {"workspace": note.workspace, "turn": note.turn, "turn_id": _plain(note.turn_id)}
        turns = [*turns, same]
    if note.kind == "begin":
        same.update(label=_plain(note.label), begun=now, point=note.point)
    else:
        same.update(ended=now, status=note.status, end=note.point)
    return turns


def _mapping(value: object) -> State:
    return value if isinstance(value, dict) else {}


def _mappings(value: object) -> list[State]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
