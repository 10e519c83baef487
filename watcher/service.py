"""The service: puts hub, workspaces, sessions and socket together, and ends them in order."""

from __future__ import annotations

import faulthandler
import logging
import math
import os
import queue
import resource
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from core.errors import ConfigError, TurnmarkError
from core.recorder import Recorder
from core.roots import Root
from core.scouting import SCOUT_ABOVE
from core.station import allow_scout
from core.store import Store

from . import __version__, logs
from .access import locked, store_size
from .actions import ACTIONS, needed, task_of, text, texts
from .address import make_private
from .answers import answer_of, settle
from .client import PATIENCE, NotWatched
from .config import Config, load_config
from .context import Context
from .deaths import Deaths
from .hooks import Hooks
from .joint import borrowed, go_back_together
from .memory import give_back, have_some_ready, keep_some
from .protocol import PARAMS, VERSIONS, ProtocolError
from .server import Connection, Server, UnknownMethod
from .sessions import Sessions
from .source import Hub, WatchUnavailable
from .starting import Readiness, holding
from .systemd import Notifier
from .tidying import Upkeep
from .watching import REQUEST, Watching

log = logging.getLogger(__name__)

TICK_SECONDS = 2.0
AGAIN_SECONDS = 0.1
GLOBS_SECONDS = 10.0
UPKEEP_SECONDS = 30.0
UPKEEP_MOST = 60.0
CALM_SECONDS = 2.0
"""While a session is open the next turn may follow at once: upkeep waits for a pause, but not for
longer than UPKEEP_MOST."""
PACE_SECONDS = 5.0
"""Between two upkeeps that turns' ends call for: each is a process of its own."""
REST_SECONDS = 300.0
"""So long nothing has been told of before the packs are compressed as well as that goes."""
WORK = frozenset({"watch", "session.open", "turn.begin", "hook", "rollback.together"})
"""With these, as with actions, somebody begins to work before there is anything to tell of."""
STOP_SECONDS = 7.0
SWITCH_SECONDS = 0.0005
"""With the usual 5 ms the reader of events waits for threads that hash."""
DESCRIPTORS = 65_536

Params = Mapping[str, Any]


def serve(context: Context, path: str, readiness: Readiness, idle: float | None) -> int:
    """Runs the service until it is told to stop; holds the lock that says it is the only one."""
    keep_some()
    allow_scout(SCOUT_ABOVE)
    sys.setswitchinterval(SWITCH_SECONDS)
    os.umask(0o077)
    _raise_descriptor_limit()
    try:
        with holding(path):
            service = Service(context, path, idle)
            service.start()
            readiness.ready()
            clean = service.run()
    except TurnmarkError as error:
        log.error("%s %s", error.message, error.hint)
        readiness.failed(error)
        raise
    if not clean:  # threads that cannot be waited for must not keep us
        logging.shutdown()
        os._exit(0)
    return 0


class Service:
    """Owns all that runs; its own thread waits for signals and does what is due now and then."""

    def __init__(self, context: Context, path: str, idle: float | None) -> None:
        self.context = context
        self.path = path
        self.idle = idle
        self.config_error = ""
        self.news: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.notifier = Notifier(context.env)
        self._seen_config = self._config_stamp()
        self._config = context.config
        Store.create(str(context.store_path))
        hub, no_events = _hub(f"{path}.cookies")
        self.hub = hub
        self.watching = Watching(context, hub, no_events, self.notify)
        self.deaths = Deaths(self._on_death)
        self.sessions = Sessions(self.watching, self.settled, self.deaths.watch, self.notify)
        self.watching.looked = self.sessions.sweep
        self.hooks = Hooks(self.sessions, context.home / "spool")
        self.server = Server(path, self.handle)
        self.methods = {
            "hello": self._hello,
            "status": self._status,
            "roots": self._roots,
            "progress": self._progress,
            "watch": self._watch,
            "unwatch": self._unwatch,
            "session.open": lambda _, params: self.sessions.open(params),
            "session.pid": lambda _, params: self.sessions.add_pid(params),
            "session.close": lambda _, params: self.sessions.close(params),
            "turn.begin": lambda caller, params: self.sessions.begin(params, caller.gone),
            "turn.end": lambda caller, params: self.sessions.end(params, caller.gone),
            "hook": lambda caller, params: self.hooks.answer(params, caller.gone),
            "rollback.together": self._together,
            "subscribe": self._subscribe,
            "stay": self._stay,
            "reload": self._reload,
            "shutdown": self._shutdown,
        }
        self.upkeep = Upkeep(context)
        self._told: dict[str, Root] = {}
        self._upkeep_due = False
        self._upkeep_began = time.monotonic() - PACE_SECONDS  # the first turn's end need not wait
        self._upkeep_at = time.monotonic() + UPKEEP_SECONDS
        self._upkeep_latest = math.inf
        self._told_at, self._deepened = time.monotonic(), False
        self._globs_at = self._tick_at = 0.0
        self._needed = time.monotonic()

    # Life

    def start(self) -> None:
        faulthandler.register(signal.SIGUSR1)
        for number, word in (
            (signal.SIGTERM, "stop"),
            (signal.SIGINT, "stop"),
            (signal.SIGHUP, "reload"),
        ):
            signal.signal(number, lambda *_, word=word: self.news.put(word))
        self.deaths.start()
        self.watching.apply(self._config)
        self.server.start()
        self.news.put("tick")
        self.notifier.say(READY="1", STATUS=self._summary())
        log.info("turnmark %s serves %s, process %d", __version__, self.path, os.getpid())

    def run(self) -> bool:
        """Until it is to stop; whether all threads have ended then."""
        while True:
            try:
                word = self.news.get(timeout=self._pause())
            except queue.Empty:
                word = "tick" if time.monotonic() >= self._tick_at else "upkeep"
            if word == "stop" or self._is_unneeded():
                return self._stop()
            try:
                self._do(word)
            except Exception:  # what is due now and then is due again
                log.exception("the service could not %s", word)

    def _pause(self) -> float:
        """Until something is to be looked after."""
        now, until = time.monotonic(), self._tick_at
        if self._upkeep_due:
            soonest = now + (AGAIN_SECONDS if self.upkeep.is_busy() else 0.0)
            until = min(until, max(soonest, self._upkeep_at))
        return max(0.0, until - now)

    def _do(self, word: str) -> None:
        if self.upkeep.has_ended():
            self.watching.freshen()
            give_back()
            have_some_ready()
        if word == "reload":
            self.notifier.say(RELOADING="1", MONOTONIC_USEC=str(time.monotonic_ns() // 1000))
            self.load()
            self.notifier.say(READY="1")
            return
        if word == "upkeep":
            self._keep_up()
            return
        self._tick_at = time.monotonic() + TICK_SECONDS
        self._check_config()
        self._check_socket()
        self.hooks.drain()
        self.sessions.tidy()
        self._keep_up()
        self._deepen()
        if self.notifier.watchdog:
            self.notifier.say(WATCHDOG="1", STATUS=self._summary())

    def _stop(self) -> bool:
        log.info("stopping")
        with suppress(OSError):  # a hook that comes now may start another one at once
            os.unlink(self.context.home / "spool" / ".starting")
        self.notifier.say(STOPPING="1")
        self.server.stop()
        done = self.watching.stop(STOP_SECONDS)
        until = time.monotonic() + 1.0
        while self.server.waiting() and time.monotonic() < until:
            time.sleep(0.01)
        self.server.close()
        self.upkeep.stop()
        self.sessions.noting.stop()
        if done:
            self.deaths.stop()
            if self.hub is not None:
                self.hub.close()
        log.info("stopped")
        return done

    def _summary(self) -> str:
        states = [workspace.state for workspace in self.watching.all()]
        kinds = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        return f"{len(states)} workspaces" + (f": {kinds}" if kinds else "")

    # Now and then

    def _config_stamp(self) -> tuple[int, ...] | None:
        try:
            info = os.stat(self.context.config_path)
        except OSError:
            return None
        return info.st_mtime_ns, info.st_size, info.st_ino

    def _check_config(self) -> None:
        if self._config_stamp() != self._seen_config:
            self.load()
        elif time.monotonic() >= self._globs_at:
            # A glob may name a new directory, and a directory that was missing may be there.
            self._globs_at = time.monotonic() + GLOBS_SECONDS
            self.watching.apply(self._config)

    def load(self) -> str:
        """Reads the configuration again; with a mistake in it the last good one stays in force."""
        self._seen_config, context = self._config_stamp(), self.context
        try:
            self._config = context.config = load_config(
                context.config_path,
                named=context.config_named,
                home=str(context.user_home),
                env=context.env,
            )
        except ConfigError as error:
            self.config_error = error.message
            log.warning("the configuration stays as it was: %s", error.message)
            return error.message
        self.config_error = ""
        logs.change(self._config.log)
        self.watching.apply(self._config)
        log.info("the configuration was read")
        return ""

    def _check_socket(self) -> None:
        """A cleaner of temporary files may have taken it away; another service may have come."""
        if not self.server.lost():
            return
        if os.path.lexists(self.path):
            log.error("another service has taken the place %s", self.path)
            self.news.put("stop")
        else:
            make_private(os.path.dirname(self.path))
            log.warning("the socket %s is gone; it is made again", self.path)
            self.server.rebind()

    def _is_unneeded(self) -> bool:
        """Only a service that was started for somebody ends by itself."""
        if self.idle is None:
            return False
        now = time.monotonic()
        if self.server.connections or self.sessions.all or self.watching.is_wanted():
            self._needed = now
        if now - self._needed < self.idle:
            return False
        log.info("nobody has needed the service for %g s", self.idle)
        return True

    def _keep_up(self) -> None:
        """Counts, fewer packs, an old history's end."""
        if self._is_upkeep_due() and not self.upkeep.is_busy():
            self._upkeep_began = time.monotonic()
            self._upkeep_at = self._upkeep_began + UPKEEP_SECONDS
            self._upkeep_due, told = False, self._take_told()
            try:
                self.upkeep.start(told.values())
            except OSError:
                self._upkeep_due, self._told = True, told | self._told
                raise

    def _deepen(self) -> None:
        """Once in each long rest; whoever works again does not share the machine with it."""
        resting = time.monotonic() - self._told_at >= REST_SECONDS
        if not resting:
            self.upkeep.give_way()
        elif not (self._deepened or self._upkeep_due or self.upkeep.is_busy()):
            self._deepened = True
            self.upkeep.start_deep()

    def _is_upkeep_due(self) -> bool:
        return self._upkeep_due and time.monotonic() >= self._upkeep_at

    def _take_told(self) -> dict[str, Root]:
        """The workspaces of which something was told, also those that nobody watches any more."""
        told, self._told = self._told, {}
        return told | {w.root.id: w.root for w in self.watching.all()}

    def _on_death(self, pid: int) -> None:
        """Not in the thread that waits for deaths: closing a session waits for workspaces."""
        threading.Thread(target=self.sessions.died, args=(pid,), daemon=True).start()

    def notify(self, event: dict[str, object]) -> None:
        """What a listing shows of a point is counted soon; the rest has time."""
        self._is_at_work()
        item = self.watching.items.get(str(event.get("workspace")))
        if item is not None:
            self._told[item.workspace.root.id] = item.workspace.root
        if event["event"] in ("rollback", "revert", "undo", "redo"):
            self.hooks.went_back(str(event.get("workspace")))
        self._ask_for_upkeep(event)
        self.server.publish(event)

    def _is_at_work(self) -> None:
        self._told_at, self._deepened = time.monotonic(), False

    def _ask_for_upkeep(self, event: Mapping[str, object]) -> None:
        now = time.monotonic()
        if not self._upkeep_due:
            self._upkeep_due, self._upkeep_latest = True, now + UPKEEP_MOST
        if event["event"] == "snapshot":
            return
        begins = event.get("what") == "begin"
        soonest = self._upkeep_at if begins else self._upkeep_began + PACE_SECONDS
        calm = now + CALM_SECONDS if self.sessions.all else now
        self._upkeep_at = min(self._upkeep_latest, max(calm, soonest))
        if not begins:
            self.news.put("tick")

    def settled(self) -> dict[str, Any]:
        """What the configuration says, and no parameter."""
        config: Config = self._config
        agents = config.agents
        sync = config.durability != "none"
        return {"sync": sync, "labels": agents.labels, "auto_watch": agents.auto_watch}

    # Requests

    def handle(self, caller: Connection, method: str, params: Params) -> Mapping[str, Any]:
        if method in WORK or method in ACTIONS:
            self._is_at_work()
            self.upkeep.give_way()
        known = self.methods.get(method)
        if known is not None:
            return known(caller, dict(params))
        if method in ACTIONS:
            return self._act(caller, method, dict(params))
        raise UnknownMethod

    def _act(self, caller: Connection, action: str, params: dict[str, Any]) -> Mapping[str, Any]:
        path = needed(params, "dir")
        workspace = self.watching.find(path)
        if workspace is None:
            raise NotWatched(f"{path} is not watched.", f"Run `turnmark watch {path}`.")
        future = workspace.ask(task_of(action, {**params, **self.settled()}))
        settle([future], _patience(params), caller.gone, cancel=True)
        if not params.get("dry_run"):  # told also of what is done after its asker has gone
            root = workspace.root.id
            future.add_done_callback(lambda done: self._tell_of(action, root, done))
        answer: dict[str, Any] = answer_of(future)
        return answer

    def _tell_of(self, action: str, workspace: str, done: Future[Any]) -> None:
        if not done.cancelled() and done.exception() is None:
            shown = {k: v for k, v in done.result().items() if isinstance(v, str | int)}
            self.notify({"event": action, "workspace": workspace, **shown})

    def _together(self, caller: Connection, params: dict[str, Any]) -> Mapping[str, Any]:
        """All loops at hand stand still meanwhile; asked in one order, so that no two asks meet."""
        paths = texts(params, "dirs")
        recorders: dict[str, Recorder] = {}
        with ExitStack() as stack:
            for path in sorted(set(paths)):
                recorders[path] = stack.enter_context(self._recorder_of(caller, path, params))
            answer = go_back_together([recorders[path] for path in paths], params)
        for path, row in zip(paths, answer["workspaces"], strict=True):
            if row["outcome"] == "done":
                workspace = recorders[path].root.id
                self.notify({"event": "rollback", "workspace": workspace, "outcome": "done"})
        return answer

    @contextmanager
    def _recorder_of(self, caller: Connection, path: str, params: Params) -> Iterator[Recorder]:
        """Of a workspace that is not watched, or is paused, one for this use alone."""
        with ExitStack() as stack:
            workspace = self.watching.find(path)
            try:
                if workspace is None:
                    raise NotWatched(f"{path} is not watched.")
                lent = borrowed(workspace, _patience(params), caller.gone)
                recorder = stack.enter_context(lent)
            except NotWatched:
                recorder = stack.enter_context(locked(self.context, path, create=False))
            yield recorder

    def _hello(self, _: Connection, params: dict[str, Any]) -> Mapping[str, Any]:
        offered = params.get("protocol", list(VERSIONS))
        common = [v for v in VERSIONS if isinstance(offered, list) and v in offered]
        if not common:
            raise ProtocolError(PARAMS, f"The service speaks protocol {max(VERSIONS)}.")
        store = str(self.context.store_path)
        base = {"protocol": max(common), "version": __version__, "pid": os.getpid()}
        return {**base, "store": store}

    def _status(self, _: Connection, params: dict[str, Any]) -> Mapping[str, Any]:
        service = {
            "running": True,
            "pid": os.getpid(),
            "version": __version__,
            "config_error": self.config_error,
        }
        return {
            "service": service,
            "workspaces": self.watching.status(),
            "sessions": self.sessions.status(),
            "store": store_size(self.context),
        }

    def _roots(self, _: Connection, params: dict[str, Any]) -> Mapping[str, Any]:
        return {"roots": [workspace.root.shown for workspace in self.watching.all()]}

    def _progress(self, _: Connection, params: dict[str, Any]) -> Mapping[str, Any]:
        rows = []
        for path in texts(params, "dirs"):
            workspace = self.watching.find(path)
            if workspace is None:
                continue
            done, known, files = workspace.progress()
            row = {"root": workspace.root.shown, "state": workspace.state}
            row |= {"reason": workspace.reason, "ready": workspace.ready.is_set()}  # type: ignore[dict-item]
            rows.append({**row, "dirs_done": done, "dirs_known": known, "files": files})
        return {"workspaces": rows}

    def _watch(self, _: Connection, params: dict[str, Any]) -> Mapping[str, Any]:
        """All of them or, where one may not be, none."""
        paths = texts(params, "dirs")
        for path in paths:
            if self.watching.find(path) is None:
                self.watching.check(path)
        found = [self.watching.watch(path, REQUEST) for path in paths]
        return {"workspaces": [workspace.status() for workspace in found]}

    def _unwatch(self, _: Connection, params: dict[str, Any]) -> Mapping[str, Any]:
        """All of them or, where one is not watched, none."""
        paths = texts(params, "dirs")
        for path in paths:
            if self.watching.find(path) is None:
                raise NotWatched(f"{path} is not watched.", "`turnmark status` shows what is.")
        for path in paths:
            self.watching.unwatch(path)
        return {"workspaces": [{"root": path} for path in paths]}

    def _subscribe(self, caller: Connection, params: dict[str, Any]) -> Mapping[str, Any]:
        caller.follow()
        return {}

    def _stay(self, _: Connection, params: dict[str, Any]) -> Mapping[str, Any]:
        self.idle = None
        return {"pid": os.getpid()}

    def _reload(self, _: Connection, params: dict[str, Any]) -> Mapping[str, Any]:
        return {"error": self.load()}

    def _shutdown(self, _: Connection, params: dict[str, Any]) -> Mapping[str, Any]:
        log.info("told to stop: %s", text(params, "why", "no reason given")[:100])
        self.news.put("stop")
        return {"pid": os.getpid()}


def _raise_descriptor_limit() -> None:
    """Every workspace maps the store's packs; the usual soft limit is for programs that select."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _patience(params: Params) -> float:
    wait = params.get("wait", PATIENCE)
    return float(wait) if isinstance(wait, int | float) and 0 <= wait <= 86400 else PATIENCE


def _hub(cookies: str) -> tuple[Hub | None, str]:
    try:
        return Hub(cookies), ""
    except (WatchUnavailable, OSError) as error:
        log.warning("no events: %s", error)
        return None, str(error)
