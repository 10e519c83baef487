"""What keeps listings quick and the store small, done once the caller has his answer.

Knows what is due and how long it may take; not how it is done (`core.counts`, `core.consolidate`,
`core.retention`, `core.deep`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

from core.errors import Busy, TurnmarkError
from core.recorder import Recorder
from core.roots import Root
from core.store import Store
from core.timeline import Timeline

from .access import locked, policy_of
from .context import Context
from .output import note

HOUR_NS = 3600 * 1_000_000_000
COUNTING_SECONDS = 2.0
SOON_SECONDS = 0.2
"""While a terminal waits for its prompt."""


@contextmanager
def recording(context: Context, directory: str | None, *, create: bool) -> Iterator[Recorder]:
    """The recorder of one workspace, locked; what may wait is done once the caller has answered."""
    with locked(context, directory, create=create) as recorder:
        yield recorder
    maintain(context, recorder.store, [recorder.root])


def maintain(context: Context, store: Store, roots: Iterable[Root]) -> None:
    """Best effort, after the answer: what listings show, fewer packs, an old history's end."""
    counting = [partial(count_lines, store, root) for root in roots]
    _try_each(context, *counting, partial(_consolidate, store), partial(_prune, context, store))


def deepen(context: Context, store: Store) -> None:
    """While nothing happens: the packs become as small as git can make them."""
    _try_each(context, partial(_repack, context, store))


def _try_each(context: Context, *steps: Callable[[], object]) -> None:
    for step in steps:
        try:
            step()
        except Busy:
            return  # somebody is writing; whoever comes next does it
        except (TurnmarkError, OSError) as error:
            note(context, f"warning: tidying up the store failed: {error}")


def count_lines(store: Store, root: Root, seconds: float = COUNTING_SECONDS) -> None:
    from core.counts import CountBook

    CountBook(store).fill(Timeline(store, root.id).pairs(), seconds)


def _consolidate(store: Store) -> None:
    from core.consolidate import consolidate, needed

    if needed(store):
        consolidate(store)


def _prune(context: Context, store: Store) -> None:
    from core.retention import auto_prune

    limits = context.config.store
    pruned = auto_prune(store, policy_of(limits), time.time_ns()) if limits.auto_prune else None
    for error in pruned.errors if pruned else ():
        note(context, f"warning: {error}")


def _repack(context: Context, store: Store) -> None:
    from core.deep import repack_when_due

    limits = context.config.store
    if limits.auto_prune:
        every = limits.min_interval_hours * HOUR_NS
        done = repack_when_due(store, time.time_ns(), every)
        for error in done.errors if done else ():
            note(context, f"warning: {error}")
