"""Which turns a history has begun: those that are open, and how far each session has counted.

Pure; whoever makes a mark tells of it, so that a turn need not look at all that were made before.
"""

from __future__ import annotations

from collections.abc import Iterable

from .model import Mark


class Begun:
    """Owns what the marks that it was told of, oldest first, say of turns."""

    def __init__(self, marks: Iterable[Mark] = ()) -> None:
        self._open: dict[tuple[str | None, int | None], Mark] = {}
        self._last: dict[str | None, int] = {}
        for mark in marks:
            self.note(mark)

    def note(self, mark: Mark) -> None:
        key = (mark.session, mark.turn)
        if mark.kind == "turn-begin":
            self._open[key] = mark
            self._last[mark.session] = max(mark.turn or 0, self._last.get(mark.session, 0))
        elif mark.kind == "turn-end":
            self._open.pop(key, None)

    def open(self) -> list[Mark]:
        """The begins of the turns that have no end yet, oldest first."""
        return list(self._open.values())

    def running(self, session: str) -> Mark | None:
        """The begin of the session's newest open turn."""
        return next((m for m in reversed(self._open.values()) if m.session == session), None)

    def next(self, session: str) -> int:
        """Counts on from the highest, so that no number comes twice when old marks were pruned."""
        return self._last.get(session, 0) + 1
