"""What a workspace looked like when it was last looked at: one record per directory, kept on disk.

It may lag behind the newest snapshot, never lead it; losing it costs time, never truth. Knows
nothing of how records come to be.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from typing import NamedTuple

from .about import Usual
from .model import ROOT, Oid, RelPath, join
from .objects import hash_object
from .rules import DirRules

SCHEMA = 3
COLUMNS = "path, mode, oid, raw, names, stats, note, rules, subdirs, files, gaps, crc"
SAVED_AT_ONCE = 32
"""Takes a millisecond."""
FOLD_ABOVE = 4 << 20
"""Bytes of records in SQLite's log."""
LOG_BYTES = 16 << 20
"""To which it shrinks again, after the first look at a large tree."""
STAMPED_FOR = 3600.0
DAMAGE = (sqlite3.DatabaseError, ValueError, KeyError, TypeError)


class Dir(NamedTuple):
    """One directory: its git tree, and the stat of each name as proof that it still is so."""

    mode: int
    oid: Oid
    raw: bytes
    names: bytes
    stats: bytes
    note: bytes
    rules: bytes
    subdirs: bytes
    files: int
    gaps: int

    def entered(self) -> list[bytes]:
        """The names of its directories that were looked into."""
        return self.subdirs.split(b"\0") if self.subdirs else []

    def crc(self) -> int:
        text = b"%d %d %d " % (self.mode, self.files, self.gaps)
        parts = (self.names, self.stats, self.note, self.rules, self.subdirs)
        return zlib.crc32(b"\xff".join(parts), zlib.crc32(text))


def texts_of(names: bytes) -> list[str]:
    """Of names as they are kept on record."""
    return os.fsdecode(names).split("\0") if names else []


Changes = Mapping[RelPath, Dir | None]


class WorkTree:
    """Owns the records of one workspace: in memory once asked for, in SQLite for the next process.

    `trusted` says that everything the records name belongs to the newest snapshot, which is there;
    `generation`, at which generation of the store that was last proved object by object.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.trusted = False
        self.base: Oid | None = None
        self.usual: Usual | None = None
        self.generation = -1
        self.identity: tuple[int, int] | None = None
        self.files = 0
        self.gaps = 0
        self.stamps: dict[RelPath, bytes] = {}
        """By what a directory is known to hold the names on record still, each of its kind
        (`listing.Stamp`). Only in memory: after a power cut a directory may hold others, and have
        its old change time."""
        self._stamped_on, self._stamped_from = 0, 0.0
        self._dirs: dict[RelPath, Dir | None] = {}
        self._notes: dict[RelPath, bytes] | None = None
        self._complete = False
        self._anew = False
        self.rules: DirRules | None = None
        """Of the root, as compiled for the last look."""
        self._unsaved: dict[RelPath, Dir | None] = {}
        self._moved = False
        self._saving = False
        """A transaction is open: records were saved, but not all of them yet."""
        self.trouble = ""
        """Why nothing is saved any more, if so."""
        self._unfolded = 0
        self._folding: threading.Thread | None = None
        self._db: sqlite3.Connection | None = None
        try:
            self._open()
        except DAMAGE:
            self._start_anew()

    def _open(self) -> None:
        self._db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        os.chmod(self.path, 0o600)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute("PRAGMA wal_autocheckpoint=0")
        self._db.execute(f"PRAGMA journal_size_limit={LOG_BYTES}")
        self._db.execute(f"CREATE TABLE IF NOT EXISTS dirs ({COLUMNS}, PRIMARY KEY(path))")
        self._db.execute("CREATE TABLE IF NOT EXISTS meta (key PRIMARY KEY, value)")
        row = self._db.execute("SELECT value FROM meta WHERE key='state'").fetchone()
        if row is not None:
            self._restore_state(json.loads(row[0]))

    def _restore_state(self, state: dict[str, object]) -> None:
        if state.get("schema") != SCHEMA:
            raise ValueError("another version's cache")
        self.base = Oid(bytes.fromhex(str(state["base"])))
        self.usual = Usual(*json.loads(str(state["usual"])))
        self.generation = int(str(state["generation"]))
        device, inode = json.loads(str(state["identity"]))
        self.identity = int(device), int(inode)
        self.files, self.gaps = int(str(state["files"])), int(str(state["gaps"]))

    def _start_anew(self) -> None:
        """Throws away a cache that cannot be believed; if none can be kept, goes on without."""
        self._disconnect()
        for suffix in ("", "-wal", "-shm"):
            try:
                os.unlink(self.path + suffix)
            except FileNotFoundError:
                continue
            except OSError:
                break
        self.forget()
        try:
            self._open()
        except DAMAGE:
            self._db = None

    def forget(self) -> None:
        """As if nothing had ever been looked at."""
        self.trusted = False
        self.base = self.usual = self.identity = None
        self.files = self.gaps = 0
        self._dirs, self._notes, self._complete, self._anew = {}, {}, True, True
        self._unsaved = {}
        self.stamps.clear()

    def close(self) -> None:
        self.save()
        self._disconnect()

    def _disconnect(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
        self._saving = False
        if self._folding is not None:
            self._folding.join()
            self._folding = None

    def get(self, path: RelPath) -> Dir | None:
        if not self._complete:
            self.load_all()
        return self._dirs.get(path)

    def paths(self) -> Iterable[RelPath]:
        """Of all directories on record."""
        return self._dirs

    def load_all(self) -> None:
        """Reads every record; where one is missing or damaged, none of them is believed."""
        if self._complete or self._db is None:
            self._complete = True
            return
        try:
            rows = self._db.execute(f"SELECT {COLUMNS} FROM dirs").fetchall()
        except sqlite3.DatabaseError:
            self._start_anew()
            return
        found = {RelPath(row[0]): _checked(row) for row in rows}
        if self.base is None or not _is_whole(found):
            self.forget()
        else:
            self._dirs.update(found)
        self._complete = True

    def notes(self) -> dict[RelPath, bytes]:
        """The lines of `about`, by directory."""
        if self._notes is None:
            self.load_all()
            self._notes = {path: d.note for path, d in self._dirs.items() if d and d.note}
        return self._notes

    def root(self) -> Dir | None:
        return self.get(ROOT)

    def accept(
        self,
        changes: Changes,
        base: Oid,
        usual: Usual,
        generation: int,
        identity: tuple[int, int],
        stamps: Mapping[RelPath, bytes],
    ) -> None:
        """Takes over what was seen, now that the snapshot that holds it is referenced.

        identity is the root's device and inode: by them a directory that was replaced is known.
        """
        for path, new in changes.items():
            old = self.get(path)
            if old is None or new is None or old.names != new.names:
                self.stamps.pop(path, None)
            self.files += (new.files if new else 0) - (old.files if old else 0)
            self.gaps += (new.gaps if new else 0) - (old.gaps if old else 0)
        notes = self.notes()
        for path, new in changes.items():
            notes.pop(path, None)
            if new is None:
                self._drop(path)
                continue
            self._dirs[path] = new
            if new.note:
                notes[path] = new.note
        state = (base, usual, generation, identity)
        self._moved |= state != (self.base, self.usual, self.generation, self.identity)
        self.base, self.usual, self.generation, self.identity = state
        self.trusted = True
        self._unsaved.update(changes)
        for path, stamp in stamps.items():
            if stamp and path in self._dirs:
                self.stamps[path] = stamp
            else:  # what was known before is not of this record
                self.stamps.pop(path, None)

    def keep_stamps(self, mount: int) -> None:
        """Those of another mount are forgotten; and once in an hour all are, so that what moves no
        change time, against all that is known, is not missed for longer."""
        now = time.monotonic()
        if mount != self._stamped_on or now - self._stamped_from > STAMPED_FOR:
            self.stamps.clear()
            self._stamped_on, self._stamped_from = mount, now

    def _drop(self, path: RelPath) -> None:
        """Leaves nothing behind of a directory that is gone: names that never come back are many
        where programs make directories for a moment."""
        self._dirs.pop(path, None)
        if self.rules is not None:
            self.rules.drop(path)

    def is_unsaved(self) -> bool:
        return self._db is not None and bool(self._unsaved or self._moved or self._saving)

    def save(self, enough: Callable[[], bool] = lambda: False) -> None:
        """Keeps what was accepted for the next process; nobody needs to wait for it.

        Asked after every few records whether that is enough for now, it goes on with the next call;
        until all is written, none of it counts. Best effort: a full disk, or a death before, costs
        the next process a look and nothing else.
        """
        if self._db is None or not self.is_unsaved():
            return
        try:
            if self._save_records(self._db, enough):
                self._db.execute(
                    "INSERT OR REPLACE INTO meta VALUES ('state', ?)", (self._state(),)
                )
                self._db.execute("COMMIT")
                self._saving = self._moved = False
        except sqlite3.DatabaseError as error:
            self.trouble = f"what was seen is not kept for the next start: {error}"
            self._disconnect()

    def _save_records(self, db: sqlite3.Connection, enough: Callable[[], bool]) -> bool:
        """Whether all have been written, into a transaction that is open from the first to the
        last; one that changes meanwhile is written once more."""
        if not self._saving:
            db.execute("BEGIN")
            self._saving = True
        if self._anew:
            db.execute("DELETE FROM dirs")
            self._anew = False
        while self._unsaved:
            if enough():
                return False
            some = [self._unsaved.popitem() for _ in range(min(SAVED_AT_ONCE, len(self._unsaved)))]
            db.executemany(
                f"INSERT OR REPLACE INTO dirs ({COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?,?)",
                [_row(path, new) for path, new in some if new is not None],
            )
            gone = [(path,) for path, new in some if new is None]
            db.executemany("DELETE FROM dirs WHERE path=?", gone)
            self._unfolded += sum(len(d.raw) + len(d.names) + len(d.stats) for _, d in some if d)
        return True

    def fold(self) -> None:
        """Has SQLite move what was saved from its log into its file, by a thread of its own: it
        syncs both, for which a turn would wait (30 to 80 ms). Whoever closes does so as well."""
        busy = self._folding is not None and self._folding.is_alive()
        if self._db is None or self._unfolded < FOLD_ABOVE or busy:
            return
        folding = threading.Thread(target=_fold, args=(self.path,), name="turnmark-fold")
        try:
            folding.start()
        except RuntimeError:  # no thread is left for this user now; there may be one the next time
            return
        self._folding, self._unfolded = folding, 0

    def _state(self) -> str:
        assert self.base is not None and self.usual is not None
        return json.dumps(
            {
                "schema": SCHEMA,
                "base": self.base.hex(),
                "usual": json.dumps(list(self.usual)),
                "generation": self.generation,
                "identity": json.dumps(self.identity),
                "files": self.files,
                "gaps": self.gaps,
            }
        )


def _fold(path: str) -> None:
    """What fails here, the next one makes good; a file that is gone is not made anew."""
    from urllib.parse import quote  # by the service alone: a command does without it

    there = f"file:{quote(os.fsencode(path))}?mode=rw"
    with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(there, uri=True)) as db:
        db.execute("PRAGMA wal_checkpoint(PASSIVE)")


def _row(path: RelPath, d: Dir) -> tuple[object, ...]:
    return (
        *(bytes(path), d.mode, d.oid, d.raw, d.names, d.stats, d.note, d.rules, d.subdirs),
        *(d.files, d.gaps, d.crc()),
    )


def _is_whole(found: Mapping[RelPath, Dir | None]) -> bool:
    """Whether each record is what was written, and each directory that was looked into has one."""
    good = [(path, d) for path, d in found.items() if d is not None]
    named = {join(path, name) for path, d in good for name in d.entered()}
    return len(good) == len(found) and named | {ROOT} == found.keys()


def _checked(row: tuple[object, ...]) -> Dir | None:
    """A record whose bytes are what was written; anything else was never seen."""
    found = Dir(*row[1:-1])  # type: ignore[arg-type]
    try:
        whole = found.crc() == row[-1] and hash_object("tree", found.raw) == found.oid
    except (TypeError, ValueError):
        return None
    return found if whole else None
