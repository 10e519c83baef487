"""How much lies between two trees: computed once and kept, so that a listing never compares.

Knows trees and contents; not which pairs of trees a listing shows.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from .diff import diff_trees
from .errors import Damaged
from .lines import count
from .model import Change, Counts, Entry, Oid
from .store import Store

if TYPE_CHECKING:
    import sqlite3

# The table's name is its version: another layout would have another name.
_TABLE = "counts1"
_WAIT = 0.5


class CountBook:
    """Owns the file of counts; it may be lost at any time, which costs only numbers."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.path = f"{store.base}/turnmark/counts.db"
        self._db: sqlite3.Connection | None = None
        self._missing = False

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def get(self, old: Oid, new: Oid) -> Counts | None:
        """What is known; reading makes no file and repairs none."""
        import sqlite3

        if self._missing:
            return None
        try:
            if self._db is None:
                uri = f"file:{_quoted(self.path)}?mode=ro"
                self._db = sqlite3.connect(uri, uri=True, timeout=_WAIT)
            return self._find(self._db, old, new)
        except sqlite3.DatabaseError:
            self._missing = True
            self.close()
            return None

    def fill(self, pairs: Iterable[tuple[Oid, Oid]], budget_seconds: float) -> int:
        """Computes what is not known yet until the time is up; how many that were."""
        import sqlite3

        until = time.monotonic() + budget_seconds
        self.close()
        self._missing = False
        try:
            return self._fill(self._writable(), pairs, until)
        except sqlite3.OperationalError:  # in use, or a full disk: another time
            return 0
        except sqlite3.DatabaseError:
            self._discard()
            return 0
        finally:
            self.close()

    def _fill(self, db: sqlite3.Connection, pairs: Iterable[tuple[Oid, Oid]], until: float) -> int:
        done = 0
        for old, new in pairs:
            if self._find(db, old, new) is not None:
                continue
            if done and time.monotonic() >= until:
                break
            counts = self._compute(old, new, until, first=not done)
            if counts is not None:
                db.execute(
                    f"INSERT OR REPLACE INTO {_TABLE} VALUES (?,?,?,?,?)",
                    (old, new, counts.files, counts.insertions, counts.deletions),
                )
                done += 1
        return done

    def _compute(self, old: Oid, new: Oid, until: float, *, first: bool) -> Counts | None:
        """A pair that had all the time and did not get done never will: its paths are counted."""
        try:
            changes = list(diff_trees(self.store.tree, old, new))
            come = gone = 0
            for change in changes:
                if time.monotonic() >= until:
                    return Counts(len(changes)) if first else None
                lines = self._lines(change)
                come, gone = come + lines[0], gone + lines[1]
        except Damaged:  # `store verify` says so; a listing shows no number
            return None
        return Counts(len(changes), come, gone)

    def _lines(self, change: Change) -> tuple[int, int]:
        old, new = change.old, change.new
        if old is not None and new is not None and old.oid == new.oid:
            return 0, 0
        return count(self._content(old), self._content(new)) or (0, 0)

    def _content(self, entry: Entry | None) -> bytes:
        return self.store.blob(entry.oid) if entry else b""

    def _find(self, db: sqlite3.Connection, old: Oid, new: Oid) -> Counts | None:
        row = db.execute(
            f"SELECT files, insertions, deletions FROM {_TABLE} WHERE old=? AND new=?", (old, new)
        ).fetchone()
        return None if row is None else Counts(*row)

    def _writable(self) -> sqlite3.Connection:
        """The file, made anew if it is no database of ours."""
        import sqlite3

        for _ in range(2):
            self._db = sqlite3.connect(self.path, isolation_level=None, timeout=_WAIT)
            try:
                os.chmod(self.path, 0o600)
                # Lost counts are computed again, so nothing has to wait for the disk.
                self._db.execute("PRAGMA synchronous=OFF")
                self._db.execute(
                    f"CREATE TABLE IF NOT EXISTS {_TABLE} (old BLOB, new BLOB, files INT, "
                    "insertions INT, deletions INT, PRIMARY KEY (old, new)) WITHOUT ROWID"
                )
                return self._db
            except sqlite3.OperationalError:
                raise
            except sqlite3.DatabaseError:
                self._discard()
        raise sqlite3.OperationalError("the file of counts cannot be made anew")

    def _discard(self) -> None:
        self.close()
        for suffix in ("", "-journal"):
            self.store.disk.discard(self.path + suffix)


def _quoted(path: str) -> str:
    from urllib.parse import quote

    return quote(os.fsencode(path))
