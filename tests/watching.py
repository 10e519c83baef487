"""Watched trees for tests: waiting for a condition, and processes in namespaces of their own."""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from core.diff import files_of
from core.history import History, MarkSpec
from core.model import RelPath, Snapshot, is_within
from core.recorder import Recorder, Taken
from core.roots import root_of
from core.rules import RuleSet
from core.store import Store
from watcher.burst import Dirty
from watcher.source import Hub, TreeSource
from watcher.workspace import Notify, Settings, Workspace

HERE = Path(__file__).parent.parent
PLENTY = 20.0
RULES = RuleSet(exclude=("node_modules/", "target/", ".venv/"))


def until(condition: Callable[[], object], seconds: float = PLENTY, what: str = "") -> None:
    """Waits for a condition; a test that waits in vain fails and does not hang."""
    pause, deadline = threading.Event(), time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what or "waited in vain"
        pause.wait(0.002)


def covers(dirty: Dirty, path: str | bytes) -> bool:
    wanted = os.fsencode(path)
    inside = any(is_within(wanted, tree) for tree in dirty.trees)
    return dirty.lost or inside or RelPath(wanted) in dirty.files


class Watched:
    """Owns a directory, and a hub that watches it."""

    def __init__(self, base: Path, rules: RuleSet = RULES) -> None:
        self.base = base
        self.root = base / "root"
        self.outside = base / "outside"
        self.root.mkdir(parents=True, exist_ok=True)
        self.outside.mkdir(exist_ok=True)
        self.rings = 0
        self.hub = Hub(str(base / "cookies"))
        self.tree = self.open(self.root, rules)

    def open(self, root: Path, rules: RuleSet = RULES) -> TreeSource:
        return self.hub.open(os.fsencode(root.resolve()), rules, self._ring)

    def _ring(self) -> None:
        self.rings += 1

    def __enter__(self) -> Watched:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.tree.close()
        self.hub.close()

    def dirty(self) -> Dirty:
        assert self.hub.barrier(PLENTY)
        return self.tree.take()

    def settle(self) -> None:
        """Until new directories have their watches and old ones have lost theirs."""
        assert self.hub.barrier(PLENTY)
        until(self._settled, what="the adopter has not come to rest")
        self.tree.take()

    def _settled(self) -> bool:
        emitter = self.tree.emitter
        assert emitter is not None
        return not emitter.todo and emitter.doing is None and not emitter.maps.limbo

    def watched(self) -> set[str]:
        """The directories with a watch."""
        emitter = self.tree.emitter
        assert emitter is not None
        assert set(emitter.maps.path_of.values()) == set(emitter.maps.wd_of)
        return {os.fsdecode(path) for path in emitter.maps.wd_of}

    def notices(self, path: str) -> bool:
        """Whether a write to a file is noticed, and nothing else is."""
        self.dirty()
        (self.root / path).write_text("written")
        dirty = self.dirty()
        return covers(dirty, path) and not dirty.lost


NEVER = 3600.0
PATIENT = Settings(RULES, quiet=NEVER, longest=NEVER, audit=NEVER, scan=NEVER, durable=False)
"""Settings of a loop that does nothing unless it is asked."""


def mark(recorder: Recorder, paths: list[RelPath] | None) -> Taken:
    return recorder.take(paths, MarkSpec("manual"), sync=False)


class Live:
    """Owns a workspace whose loop runs, with its hub; what it tells, unless somebody else listens,
    is kept in `told`."""

    def __init__(
        self,
        base: Path,
        settings: Settings = PATIENT,
        *,
        hub: Hub | None = None,
        store: str = "",
        begin: bool = True,
        notify: Notify | None = None,
    ) -> None:
        self.base = base
        self.path = base / "work"
        self.path.mkdir(parents=True, exist_ok=True)
        self.settings = settings
        self.store_path = store or str(base / "store")
        self.hub = hub or Hub(str(base / "cookies"))
        self.own_hub = hub is None
        self.told: queue.SimpleQueue[dict[str, object]] = queue.SimpleQueue()
        self.root = root_of(os.fsencode(self.path.resolve()))
        listener = notify or self.told.put
        self.workspace = Workspace(self.store_path, self.root, settings, self.hub, listener)
        if begin:
            self.workspace.start()

    def __enter__(self) -> Live:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if self.own_hub:
            self.hub.close()

    def stop(self) -> None:
        self.workspace.stop()
        if self.workspace._thread.ident is not None:
            assert self.workspace.join(PLENTY)

    def ready(self) -> Live:
        assert self.workspace.ready.wait(PLENTY)
        return self

    def ask(self, task: Any = mark, *, full: bool = False) -> Any:
        return self.workspace.ask(task, full=full).result(PLENTY)

    def write(self, path: str, data: str = "x") -> None:
        target = self.path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(data)

    def change(self, **changes: Any) -> None:
        self.settings = replace(self.settings, **changes)
        self.workspace.change(self.settings)

    def comes_to(self, state: str, reason: str = "") -> None:
        """Waits for a state, whose reason holds the given words."""
        space = self.workspace
        until(
            lambda: space.state == state and reason in space.reason,
            what=f"not {state}, {reason}",
        )

    def next_told(self) -> dict[str, object]:
        return self.told.get(timeout=PLENTY)

    def store(self) -> Store:
        return Store.open(self.store_path)

    def contents(self, snapshot: Snapshot) -> dict[str, str]:
        store = self.store()
        found = files_of(store.tree, snapshot.files)
        return {os.fsdecode(p): os.fsdecode(store.blob(entry.oid)) for p, entry in found}

    def newest(self) -> dict[str, str]:
        last = History(self.store(), self.root.id).newest()
        return self.contents(last) if last is not None else {}

    def holds(self, path: str, data: str) -> bool:
        return self.newest().get(path) == data

    def snapshots(self) -> list[Snapshot]:
        return sorted(History(self.store(), self.root.id).snapshots(), key=lambda s: s.seq)


def in_namespace(function: Callable[..., None], *arguments: object, user_limit: int = 0) -> None:
    """Runs a function of a test module in a process with mounts, and watches, of its own."""
    unshare = shutil.which("unshare")
    trial = [unshare or "unshare", "-Urm", "true"]
    if unshare is None or subprocess.run(trial, capture_output=True, check=False).returncode:
        pytest.skip("NOT TESTED: this system gives no private namespaces (unshare -Urm)")
    limit = f"echo {user_limit} > /proc/sys/user/max_inotify_watches && " if user_limit else ""
    run_elsewhere([unshare, "-Urm", "sh", "-c", f'{limit}exec "$@"', "sh"], function, *arguments)


def without_override(function: Callable[..., None], *arguments: object) -> None:
    """Runs a function of a test module in a process to which permissions apply, also for root."""
    if os.geteuid() != 0:
        run_elsewhere([], function, *arguments)
        return
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("NOT TESTED: as root, and there is no setpriv to give up its powers")
    caps = "--bounding-set=-dac_override,-dac_read_search"
    run_elsewhere([setpriv, caps, "--inh-caps=-all"], function, *arguments)


def run_elsewhere(prefix: list[str], function: Callable[..., None], *arguments: object) -> None:
    words = ", ".join(repr(str(argument)) for argument in arguments)
    code = f"from {function.__module__} import {function.__name__} as f; f({words})"
    done = subprocess.run(
        [*prefix, sys.executable, "-c", code],
        cwd=HERE,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def mount(kind: str, where: Path | str, *options: str) -> None:
    """Only in a namespace of one's own."""
    subprocess.run(["mount", "-t", kind, *options, kind, str(where)], check=True)


def bind(real: Path | str, where: Path | str) -> None:
    subprocess.run(["mount", "--bind", str(real), str(where)], check=True)


def unmount(where: Path | str, *options: str) -> None:
    subprocess.run(["umount", *options, str(where)], check=True)
