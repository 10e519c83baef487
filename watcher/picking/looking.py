"""What going back to a point would do now, as lines to show: what `rollback --dry-run` says, and
then what `diff` does.

Takes no lock, writes nothing, and finishes no rollback that was cut short: whoever only looks must
be in nobody's way. One look at the workspace serves for some seconds. All of it, the database of
what was seen included, is used by one thread.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import islice

from core.disk import Disk, Name
from core.errors import TurnmarkError
from core.history import read_snapshot
from core.recorder import Recorder, Seen
from core.rollback import Result
from core.roots import Root
from core.states import seen_state, stored_state
from core.store import Store

from ..actions import go_back
from ..commands.diff import patch_of
from ..context import Context
from ..differences import difference
from ..outcomes import result_of
from ..output import clean, clean_text
from ..rollbacks import How, preview_lines
from ..views import private_paths
from .choices import Choice
from .layout import Line
from .loader import GivenUp, Wanted

LOOK_SECONDS = 5.0
MOST_PATHS = 2_000
"""Of more than these nobody reads the differences, and finding them takes long."""
MOST_LINES = 1_000
TAB = " " * 4
STYLES = {"+": "class:added", "-": "class:deleted", "@": "class:hunk"}


class GivingUp(Disk):
    """The real thing, until nobody wants any more what it is used for: a look at a tree, and every
    object that is read from the store, come by here."""

    def __init__(self) -> None:
        self.is_unwanted: Callable[[], bool] = lambda: False

    def check(self) -> None:
        if self.is_unwanted():
            raise GivenUp

    def lstat(self, name: Name, at: int | None = None) -> os.stat_result:
        self.check()
        return super().lstat(name, at)

    def scandir(self, where: int | str) -> os._ScandirIterator[str]:
        self.check()
        return super().scandir(where)


class Glance(Recorder):
    """Only looks, and only once; so it needs no lock."""

    @cached_property
    def _seen(self) -> Seen:
        return super().look()

    def look(self) -> Seen:
        return self._seen


class Looker:
    """Owns the newest look at one workspace, and what was made of it."""

    def __init__(self, context: Context, root: Root, how: How, *, mine_stays: bool) -> None:
        self.context = context
        self.root = root
        self.how = how
        self.mine_stays = mine_stays
        self._disk = GivingUp()
        self._glance: Glance | None = None
        self._until = 0.0
        self._known: dict[str, list[Line]] = {}

    def load(self, key: Choice, wanted: Wanted) -> list[Line]:
        """Trouble is shown in the place of what it keeps from being shown."""
        try:
            self._disk.is_unwanted = wanted.is_over  # a look serves whatever is wanted then
            glance = self._look()
            self._disk.is_unwanted = wanted.is_stale
            if key.spec not in self._known:
                self._known[key.spec] = list(self._found(glance, key))
        except TurnmarkError as error:
            return [[("class:deleted", clean(f"error: {error.message}"))], _plain(error.hint)]
        except OSError as error:
            return [[("class:deleted", clean(f"error: {error}"))]]
        return self._known[key.spec]

    def _look(self) -> Glance:
        if self._glance is not None and time.monotonic() < self._until:
            return self._glance
        self.close()
        store = Store.open(str(self.context.store_path), self._disk)
        rules = self.context.config.listed().captured_by(self.root.path)
        self._glance = Glance(store, self.root, rules)
        self._glance.look()
        self._until = time.monotonic() + LOOK_SECONDS
        return self._glance

    def close(self) -> None:
        self._known.clear()
        self._until = 0.0
        if self._glance is not None:
            self._glance.close()
            self._glance = None

    def _found(self, glance: Glance, choice: Choice) -> Iterator[Line]:
        asked = {"point": choice.spec, "mine_stays": self.mine_stays, "dry_run": True}
        data = go_back(glance, None, asked)
        people = data.pop("people")
        result = result_of(data, people)
        yield [("class:title", clean(people["title"]))]
        yield from map(_plain, preview_lines(result, self.how))
        if result.outcome == "planned":
            yield _plain("")
            yield from self._differences(glance, choice, result)

    def _differences(self, glance: Glance, choice: Choice, result: Result) -> Iterator[Line]:
        told = f"turnmark diff {choice.point.n}"
        paths = len(result.plan.steps)
        if paths > MOST_PATHS:
            yield _plain(f"What changed since, in {paths:,} paths: {told}")
            return
        yield [("class:title", f"What changed since ({told}):")]
        store = glance.store
        then = stored_state(store, read_snapshot(store, choice.point.id))
        found = difference(then, seen_state(glance, glance.look()))
        lines = self._styled(patch_of(found, private_paths(self.context, self.root)))
        yield from islice(lines, MOST_LINES)
        if next(lines, None) is not None:
            yield _plain(f"... more: {told} --full")

    def _styled(self, pieces: Iterator[bytes]) -> Iterator[Line]:
        for piece in pieces:
            self._disk.check()
            in_hunk = piece.startswith(b"@@ ")
            for line in piece.decode("utf-8", "surrogateescape").removesuffix("\n").split("\n"):
                style = STYLES.get(line[:1], "") if in_hunk else "class:file"
                yield [(style, _tabless(line))]


def _plain(text: str) -> Line:
    return [("", _tabless(text))]


def _tabless(text: str) -> str:
    return clean_text(text).expandtabs(len(TAB))
