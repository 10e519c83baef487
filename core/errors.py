"""What core raises: one sentence of what happened to what, and a hint of what to do about it."""

from __future__ import annotations


class TurnmarkError(Exception):
    """Something failed; nothing was acknowledged."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class NoStore(TurnmarkError):
    """There is no store where one was needed."""


class Busy(TurnmarkError):
    """Another process holds the lock that this needs."""


class BadInput(TurnmarkError):
    """A point, a path or a root that turnmark cannot work with."""


class ConfigError(TurnmarkError):
    """The configuration has a mistake; the message starts with file:line:column."""


class Damaged(TurnmarkError):
    """The store does not hold what its references promise."""


class Refused(TurnmarkError):
    """A rollback that would need the plan's hash, or that may not be made at all."""
