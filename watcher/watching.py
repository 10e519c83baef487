"""The workspaces that are watched, and for whom: the configuration, a request, a session."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from core.disk import REAL
from core.errors import TurnmarkError
from core.model import RelPath, show_path
from core.recorder import Recorder
from core.roots import Root, can_be_path, check_root, root_of

from .config import Config
from .context import Context
from .source import Hub
from .workspace import Settings, Workspace

log = logging.getLogger(__name__)

CONFIG, REQUEST = "config", "request"
STOP_SECONDS = 8.0
MEANINGLESS = "events are switched off"


@dataclass
class Item:
    """One workspace, and those who want it watched."""

    workspace: Workspace
    settings: Settings
    holders: set[str] = field(default_factory=set)


class Watching:
    """Owns the workspaces; changes to their number are made one at a time."""

    def __init__(
        self,
        context: Context,
        hub: Hub | None,
        no_events: str,
        notify: Callable[[dict[str, object]], None],
    ) -> None:
        self.context = context
        self.hub = hub
        self.no_events = no_events
        self.notify = notify
        self.looked: Callable[[Recorder], None] = lambda _: None
        self.config = Config(enabled=False)
        self.listed = self.config.listed()
        self.items: dict[str, Item] = {}
        self.refused: dict[str, str] = {}
        self.ending = False
        """From when on nothing more is done; what is asked then is to be asked of the next."""
        self._dropped: set[str] = set()
        self._leaving: dict[str, Workspace] = {}
        """Those that nobody wants any more, until they have committed what was pending."""
        self._changing = threading.RLock()

    # Who is watched

    def apply(self, config: Config) -> None:
        """What the configuration lists is watched; what it no longer lists only for others."""
        with self._changing:
            listed = config.listed()
            if config != self.config:
                self._dropped.clear()
            elif listed == self.listed and not self.refused:
                return  # as most often, when it is only looked whether a glob names more
            self.config, self.listed = config, listed
            wanted = self._configured(config)
            for name, item in self.items.items():
                if name not in wanted or not config.enabled:
                    item.holders.discard(CONFIG)
                if not config.enabled:
                    item.holders.clear()
            for root in wanted.values():
                self._hold(root, CONFIG)
            gone = self._let_go()
            self._settle()
        self._see_off(gone)

    def _configured(self, config: Config) -> dict[str, Root]:
        self.refused = {}
        found: dict[str, Root] = {}
        for path in self.listed.rules if config.enabled else ():
            root = root_of(path)
            if root.id in self._dropped:
                continue
            try:
                # One that is watched already may be gone for a while; its own state says so.
                found[root.id] = root if root.id in self.items else self.check(show_path(path))
            except TurnmarkError as error:
                self.refused[show_path(path)] = error.message
        return found

    def check(self, path: str) -> Root:
        home, store = str(self.context.user_home), str(self.context.store_path)
        return check_root(REAL, path, home=home, store=store)

    def watch(self, path: str, holder: str) -> Workspace:
        if (before := self._leaving.get(_id(path))) is not None:
            before.join(STOP_SECONDS)  # here, where nobody else has to wait for it as well
        with self._changing:
            if not self.config.enabled:
                raise TurnmarkError(
                    "turnmark is switched off: the configuration says `enabled: false`.",
                    f"Change it in {self.context.config_path}.",
                )
            item = self._item(path)
            if item is not None and holder in item.holders:
                return item.workspace  # whatever has become of the directory, its own state says so
            root = self.check(path)
            dropped = root.id in self._dropped
            self._dropped.discard(root.id)
            self._hold(root, holder)
            if dropped and root.path in self.listed.rules:
                self._hold(root, CONFIG)  # once more, as when the service would begin
            self._settle()
            return self.items[root.id].workspace

    def unwatch(self, path: str) -> bool:
        """For everybody, until the configuration changes; whether it was watched."""
        with self._changing:
            item = self._item(path)
            if item is None:
                return False
            self._dropped.add(item.workspace.root.id)
            item.holders.clear()
            gone = self._let_go()
            self._settle()
        self._see_off(gone)
        return True

    def release(self, holder: str) -> None:
        """Lets go of what only this holder wanted watched."""
        with self._changing:
            for item in self.items.values():
                item.holders.discard(holder)
            gone = self._let_go()
            self._settle()
        self._see_off(gone)

    def _hold(self, root: Root, holder: str) -> None:
        if root.id not in self.items:
            if (before := self._leaving.get(root.id)) is not None and before.join(STOP_SECONDS):
                del self._leaving[root.id]
            settings = self._settings(root, [item.workspace.root for item in self.items.values()])
            base = str(self.context.store_path)
            workspace = Workspace(base, root, settings, self.hub, self.notify, self.looked)
            self.items[root.id] = Item(workspace, settings)
            workspace.start()
        self.items[root.id].holders.add(holder)

    def _let_go(self) -> list[Workspace]:
        """They end by themselves, and are waited for once others may go on."""
        gone = [name for name, item in self.items.items() if not item.holders]
        stopped = [self.items.pop(name).workspace for name in gone]
        for workspace in stopped:
            workspace.stop()
        self._leaving |= {workspace.root.id: workspace for workspace in stopped}
        return stopped

    def _see_off(self, stopped: list[Workspace]) -> None:
        _stop(stopped, STOP_SECONDS)
        with self._changing:
            for workspace in stopped:
                if self._leaving.get(workspace.root.id) is workspace:
                    del self._leaving[workspace.root.id]

    def _settle(self) -> None:
        """A workspace does not look into the ones that lie in it."""
        roots = [item.workspace.root for item in self.items.values()]
        for item in self.items.values():
            settings = self._settings(item.workspace.root, roots)
            if settings != item.settings:
                item.settings = settings
                item.workspace.change(settings)

    def _settings(self, root: Root, others: Iterable[Root]) -> Settings:
        rules = self.listed.rules_of(root.path)
        top = root.path + b"/"
        inner = {other.path[len(top) :] for other in others if other.path.startswith(top)}
        captured = self.listed.captured_by(root.path)
        return Settings(
            rules=replace(captured, nested=captured.nested | frozenset(map(RelPath, inner))),
            quiet=rules.quiet_ms / 1000,
            longest=rules.longest_ms / 1000,
            observer=rules.observer,
            durable=self.config.durability != "none",
        )

    # What is there

    def find(self, path: str) -> Workspace | None:
        """The workspace of a root."""
        item = self._item(path)
        return item.workspace if item is not None else None

    def _item(self, path: str) -> Item | None:
        return self.items.get(_id(path))

    def all(self) -> list[Workspace]:
        return [item.workspace for item in list(self.items.values())]

    def freshen(self) -> None:
        for workspace in self.all():
            workspace.freshen()

    def is_wanted(self) -> bool:
        """Whether somebody who may not come back relies on the service."""
        return any(item.holders & {CONFIG, REQUEST} for item in list(self.items.values()))

    def status(self) -> list[dict[str, Any]]:
        found = [self._row(workspace) for workspace in self.all()]
        for path, reason in self.refused.items():
            root = root_of(os.fsencode(path))
            empty = {"files": None, "pending": 0, "last_snapshot": None}
            row = {"id": root.id, "root": path, "state": "paused", "reason": reason, **empty}
            found.append(row)
        return found

    def _row(self, workspace: Workspace) -> dict[str, Any]:
        row: dict[str, Any] = workspace.status()
        if self.no_events and row["reason"] == MEANINGLESS:
            row["reason"] = self.no_events
        return row

    def stop(self, seconds: float) -> bool:
        self.ending = True
        with self._changing:
            return _stop([*self._leaving.values(), *self.all()], seconds)


def _id(path: str) -> str:
    """Of the workspace whose root it is, if it is one; what cannot be a path is none."""
    return root_of(os.path.realpath(os.fsencode(path))).id if can_be_path(path) else ""


def _stop(workspaces: list[Workspace], seconds: float) -> bool:
    """All commit at the same time; whether they got done."""
    for workspace in workspaces:
        workspace.stop()
    until = time.monotonic() + seconds
    done = [workspace.join(max(0.0, until - time.monotonic())) for workspace in workspaces]
    for workspace, ended in zip(workspaces, done, strict=True):
        if not ended:
            log.warning("%s did not get done in time", workspace.root.shown)
    return all(done)
