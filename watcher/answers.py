"""Waiting for what workspaces were asked: together, not longer than the asker does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, Future, wait
from typing import Any

from core.errors import Busy

LOOK_SECONDS = 0.25
Gone = Callable[[], bool]


def nobody() -> bool:
    """For those who never give up."""
    return False


def settle(futures: Iterable[Future[Any]], seconds: float, gone: Gone, *, cancel: bool) -> None:
    """Returns when all are done; what has not begun when the asker gives up is not done at all,
    unless it is of use later too (`cancel` off)."""
    until = time.monotonic() + seconds
    pending = set(futures)
    while pending:
        left = until - time.monotonic()
        _, pending = wait(pending, min(LOOK_SECONDS, max(0.0, left)))
        given_up = gone()
        if left > 0 and not given_up:
            continue
        if cancel:
            pending = {future for future in pending if not future.cancel()}
        if given_up or not cancel:
            return


def answer_of(future: Future[Any]) -> Any:
    """What came of it; it must be settled."""
    if not future.done():
        raise Busy("This was not done in time.", "It will be, when what comes before it is done.")
    try:
        return future.result()
    except CancelledError as error:
        raise Busy("This could not begin in time, and was not done.", "Ask again later.") from error
