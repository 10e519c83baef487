"""What the next process must know of a rollback that this one may not finish.

Knows no steps' meaning: `apply` says in which order its two files are written and removed.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from typing import Any

from .disk import Disk
from .model import Oid
from .plan import Step, decode_step, encode_step

TX = re.compile(r"[0-9a-f]{16}")
NO_JOURNAL = (*(ValueError, KeyError, TypeError, IndexError), OverflowError, RecursionError)


@dataclass(frozen=True)
class Journal:
    """One rollback, from before its first change in the tree until all of it is in the history."""

    tx: str
    root: tuple[int, int]
    target: Oid
    before: Oid
    steps: tuple[Step, ...]
    extra: dict[str, Any]
    resumed: bool = False
    """It finishes an earlier one, so that taking it back would leave that one half done."""
    group: str = ""
    """What several workspaces' rollbacks have in common that are to be done all, or not at all."""

    def encode(self) -> bytes:
        doc = {
            "journal": 1,
            "tx": self.tx,
            "root": list(self.root),
            "target": self.target.hex(),
            "before": self.before.hex(),
            "steps": [encode_step(step) for step in self.steps],
            "extra": self.extra,
            "resumed": self.resumed,
            "group": self.group,
        }
        return json.dumps(doc).encode()


def decode_journal(data: bytes) -> Journal:
    """ValueError and its like for whatever this version has not written."""
    doc = json.loads(data)
    if not TX.fullmatch(doc["tx"]) or not isinstance(doc["extra"]["title"], str):
        raise ValueError("no rollback of ours")
    group = doc.get("group", "")
    if group and not TX.fullmatch(group):
        raise ValueError("no group of ours")
    return Journal(
        tx=doc["tx"],
        root=(int(doc["root"][0]), int(doc["root"][1])),
        target=Oid(bytes.fromhex(doc["target"])),
        before=Oid(bytes.fromhex(doc["before"])),
        steps=tuple(decode_step(step) for step in doc["steps"]),
        extra=doc["extra"],
        resumed=bool(doc.get("resumed")),
        group=group,
    )


class JournalFile:
    """Owns the two files that say whether a workspace has an unfinished rollback; a group's marker
    counts for all whose journals name it."""

    def __init__(self, disk: Disk, base: str, workspace: str) -> None:
        self.disk = disk
        self.directory = f"{base}/turnmark/journal"
        self.path = f"{self.directory}/{workspace}.json"
        self.marker = f"{self.directory}/{workspace}.applying"

    def read(self) -> Journal | None:
        """The unfinished rollback; a journal that cannot be read is put aside, never obeyed."""
        try:
            return decode_journal(self.disk.read_file(self.path))
        except FileNotFoundError:
            return None
        except NO_JOURNAL:
            self.disk.rename(self.path, self.path + ".damaged")
            return None

    def begin(self, journal: Journal) -> None:
        """A resumed one takes the marker over: at no moment is nothing to be finished."""
        self._tidy()
        if not journal.resumed:
            self._unmark()
        self.disk.replace(self.path, journal.encode())
        if journal.resumed:
            self._unmark()

    def _tidy(self) -> None:
        """What killed processes left that means nothing: half a journal, the marker of a group
        whose last journal is gone. Nobody else writes this workspace's journal now."""
        with self.disk.scandir(self.directory) as found:
            names = [entry.name for entry in found]
        own = os.path.basename(self.path) + "."
        for name in names:
            group = name.removesuffix(".group")
            unfinished = name.startswith(own) and name.endswith(".new")
            if unfinished or (group != name and not self._is_named(group)):
                self.disk.discard(f"{self.directory}/{name}")

    def _unmark(self) -> None:
        if self.disk.exists(self.marker):
            self.disk.unlink(self.marker)
            self.disk.sync_dir(self.directory)

    def mark_applying(self) -> None:
        self.disk.create(self.marker, b"", sync=True)
        self.disk.sync_dir(self.directory)

    def is_applying(self, record: Journal) -> bool:
        if record.group and self.disk.exists(self._marker_of(record.group)):
            return True
        return self.disk.exists(self.marker)

    def finish(self, group: str = "") -> None:
        """The last of a group takes the group's marker with it."""
        self.disk.unlink(self.path)
        self.disk.sync_dir(self.directory)
        self.disk.discard(self.marker)
        if group and not self._is_named(group):
            self.disk.discard(self._marker_of(group))

    # A group: what its marker says, all journals that name it say

    def mark_group(self, group: str) -> None:
        self.disk.create(self._marker_of(group), b"", sync=True)
        self.disk.sync_dir(self.directory)

    def unmark_group(self, group: str) -> None:
        self.disk.discard(self._marker_of(group))
        self.disk.sync_dir(self.directory)

    def _marker_of(self, group: str) -> str:
        return f"{self.directory}/{group}.group"

    def _is_named(self, group: str) -> bool:
        with self.disk.scandir(self.directory) as found:
            names = [entry.name for entry in found if entry.name.endswith(".json")]
        return any(self._names(f"{self.directory}/{name}", group) for name in names)

    def _names(self, path: str, group: str) -> bool:
        """One that goes away meanwhile is finished; of one that is damaged nothing is known."""
        try:
            return decode_journal(self.disk.read_file(path)).group == group
        except (FileNotFoundError, *NO_JOURNAL):
            return False
