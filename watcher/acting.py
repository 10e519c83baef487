"""Where a writing action is done: in the service that watches the workspace, else here and now."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from core.errors import TurnmarkError
from core.roots import Root

from .access import check_enabled, locked, opened, synced
from .client import PATIENCE, Client, NotWatched, connect, raised
from .context import Context
from .protocol import SAYS_NO, Fault

Params = Mapping[str, Any]
Answer = tuple[dict[str, Any], dict[str, Any]]
"""What programs are told, and what the words for people are made of."""


@contextmanager
def acting(
    context: Context,
    directory: str | None,
    action: str,
    params: Params,
    *,
    create: bool,
    tidy: bool = True,
) -> Iterator[Answer]:
    """The answer of one action; what may wait is done once the caller has told it."""
    check_enabled(context)
    answer = _forwarded(context, directory, action, params, create)
    if answer is not None:
        yield _parted(answer)
        return
    from .actions import ACTIONS  # not to be waited for where there is a service
    from .upkeep import recording

    with (recording if tidy else locked)(context, directory, create=create) as recorder:
        yield _parted(ACTIONS[action](recorder, None, {**params, **_settled(context)}))


def _settled(context: Context) -> dict[str, Any]:
    """What the configuration says, and no parameter."""
    return {"sync": synced(context), "labels": context.config.agents.labels}


def _parted(answer: dict[str, Any]) -> Answer:
    people = answer.pop("people", {})
    return answer, people


def _forwarded(
    context: Context, directory: str | None, action: str, params: Params, create: bool
) -> dict[str, Any] | None:
    client = connect(context)
    if client is None:
        return None
    with client:
        watched = _watched(client)
        _, root = opened(context, directory, create, map(os.fsencode, watched))
        return _ask(client, root, action, params) if root.shown in watched else None


def by_service(context: Context, root: Root, action: str, params: Params) -> dict[str, Any] | None:
    """The service's answer, if there is a service and it watches the workspace."""
    client = connect(context)
    if client is None:
        return None
    with client:
        return _ask(client, root, action, params)


def _ask(client: Client, root: Root, action: str, params: Params) -> dict[str, Any] | None:
    try:
        return client.call(action, patience=PATIENCE, **params, dir=root.shown)
    except NotWatched:
        return None


def _watched(client: Client) -> frozenset[str]:
    return frozenset(client.call("roots")["roots"])


# Turns: of several workspaces at once


@dataclass
class Told:
    """What became of a turn's begin or end: the marks, and the workspaces that have none."""

    marks: list[Answer] = field(default_factory=list)
    failed: list[tuple[str, TurnmarkError]] = field(default_factory=list)
    roots: list[Root] = field(default_factory=list)


def tell(
    context: Context, directories: Iterable[str], action: str, params: Params, *, create: bool
) -> Told:
    """Marks every workspace; trouble with one does not cost the others their mark."""
    check_enabled(context)
    told = Told()
    left: list[str | None] = list(dict.fromkeys(directories))
    client = connect(context)
    if client is None:
        left = left or [None]
    else:
        with client:
            left = _tell_service(context, client, left, action, params, create, told)
    for directory in left:
        _tell_here(context, directory, action, params, create, told)
    return told


def _tell_here(
    context: Context,
    directory: str | None,
    action: str,
    params: Params,
    create: bool,
    told: Told,
) -> None:
    from .actions import ACTIONS

    try:
        with locked(context, directory, create=create) as recorder:
            done = ACTIONS[action](recorder, None, {**params, **_settled(context)})
            told.marks.append(_parted(done))
            told.roots.append(recorder.root)
    except TurnmarkError as error:
        told.failed.append((directory or ".", error))


def _tell_service(
    context: Context,
    client: Client,
    directories: list[str | None],
    action: str,
    params: Params,
    create: bool,
    told: Told,
) -> list[str | None]:
    """Returns the directories that the service does not watch; an end without any means all."""
    watched = [os.fsencode(root) for root in _watched(client)]
    named: dict[str, str | None] = {}
    for directory in directories or [None] * create:
        try:
            _, root = opened(context, directory, create, watched)
            named[root.shown] = directory
        except TurnmarkError as error:
            told.failed.append((directory or ".", error))
    if directories and not named:
        return []
    try:
        answer = client.call(action, patience=PATIENCE, **params, dirs=list(named))
    except NotWatched:
        if named:
            return list(named.values())
        _, root = opened(context, None, create, watched)
        if os.fsencode(root.shown) not in watched:
            return [None]
        answer = client.call(action, patience=PATIENCE, **params, dirs=[root.shown])
    told.marks += map(_parted, answer["marks"])
    return _sort_errors(answer.get("errors", []), named, told)


def _sort_errors(
    errors: list[dict[str, str]], named: dict[str, str | None], told: Told
) -> list[str | None]:
    left: list[str | None] = []
    for one in errors:
        directory = named.get(one["dir"], one["dir"])
        if one.get("kind") == "NotWatched":
            left.append(directory)
        else:
            fault = Fault(SAYS_NO, one["error"], one.get("kind", ""), one.get("hint", ""))
            told.failed.append((directory or ".", raised(fault)))
    return left


def tidy_after(context: Context, told: Told) -> None:
    """For what was done here; the service tidies up by itself."""
    if told.roots:
        from core.store import Store

        from .upkeep import maintain

        maintain(context, Store.open(str(context.store_path)), told.roots)
