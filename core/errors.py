"""What core raises: one sentence of what happened to what, and a hint of what to do about it."""

from __future__ import annotations

import errno

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


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


TRY_AGAIN = "Nothing was acknowledged; try again when the cause is gone."


def explain(error: OSError, what: str, where: str, hint: str = TRY_AGAIN) -> TurnmarkError:
    """A system error as a sentence with a way out."""
    if error.errno in NO_SPACE:
        return TurnmarkError(
            f"Could not {what}: the disk of {where} is full.",
            "Free some space, or run `turnmark store prune --max-size-mb N`.",
        )
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return TurnmarkError(
            f"Could not {what}: {where} is read-only for you ({error.strerror}).",
            "Make it writable, or name another store with --home.",
        )
    return TurnmarkError(
        f"Could not {what}: {error.strerror} ({error.filename or where}).",
        hint,
    )
