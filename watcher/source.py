"""Where to look: file system events as dirty paths, with a barrier; the only importer of watchdog.

Our own emitter on watchdog's inotify descriptor: directories are watched first and listed after,
left-out subtrees cost no watch, and the reader does the same small work for every event. Events
are hints: their kind is never trusted, and what is lost widens the look, up to the whole root.
Knows nothing of snapshots.

Threads: one reader for all workspaces (`_Reader`), watchdog's own, which has nothing to do, and one
adopter for each (`_Emitter`); the maps of a workspace are guarded by its lock. Nothing here waits
for another thread but `barrier`, and what stops or restarts the reader.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import re
import select
import struct
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from watchdog.events import FileSystemEventHandler
from watchdog.observers.api import BaseObserver, EventEmitter, EventQueue, ObservedWatch
from watchdog.observers.inotify_c import InotifyConstants as C
from watchdog.observers.inotify_c import InotifyEvent, InotifyFD, Mask

from core.beneath import Beneath
from core.disk import REAL
from core.errors import BadInput
from core.model import ROOT, RelPath, is_within, join
from core.rules import DirRules, RuleSet

from .burst import MANY_IN_ALL, Dirty

log = logging.getLogger(__name__)

MASK = (
    C.IN_CREATE
    | C.IN_DELETE
    | C.IN_MOVED_FROM
    | C.IN_MOVED_TO
    | C.IN_MODIFY
    | C.IN_CLOSE_WRITE
    | C.IN_ATTRIB
    | C.IN_DELETE_SELF
    | C.IN_MOVE_SELF
    | C.IN_ONLYDIR
    | C.IN_DONT_FOLLOW
    | C.IN_EXCL_UNLINK
)
SPECIAL = (
    C.IN_ISDIR | C.IN_IGNORED | C.IN_Q_OVERFLOW | C.IN_DELETE_SELF | C.IN_MOVE_SELF | C.IN_UNMOUNT
)
APPEARED = C.IN_CREATE | C.IN_MOVED_TO
SELF_GONE = C.IN_DELETE_SELF | C.IN_MOVE_SELF | C.IN_UNMOUNT
HEADER = struct.Struct("iIII")
BUFFER = 1 << 16
"""Two thousand events; more would have the allocator ask the kernel for memory at each read."""
MOUNTINFO = "/proc/self/mountinfo"
OCTAL = re.compile(rb"\\([0-7]{3})")
LIMBO_SECONDS = 0.5
RETRY_SECONDS = 30.0
REST_SECONDS = 600.0
MEND_SECONDS = 2.0
JOIN_SECONDS = 5.0
NO_WATCH = frozenset({errno.ENOSPC, errno.ENOMEM})
GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
GITIGNORE = b".gitignore"
GITIGNORE_PADDED = GITIGNORE + b"\0"
"""As the kernel writes it: every name is followed by at least one NUL."""
GITIGNORE_CAP = 1 << 20

EVENTFUL = frozenset(
    ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "tmpfs", "ramfs", "overlay")
)
"""File systems whose every change on this machine is told to inotify."""


class WatchUnavailable(Exception):
    """No events can be had for this root; the reason is for the user."""


@dataclass
class _Maps:
    """Which watch descriptor is which directory of one workspace, both ways."""

    path_of: dict[int, RelPath] = field(default_factory=dict)
    wd_of: dict[RelPath, int] = field(default_factory=dict)
    inside: dict[RelPath, set[RelPath]] = field(default_factory=dict)
    limbo: dict[int, float] = field(default_factory=dict)

    def bind(self, wd: int, path: RelPath, now: float) -> None:
        """The same inode keeps its descriptor when it moves: it is bound to its new path."""
        self.unbind(wd)
        other = self.wd_of.get(path)
        if other is not None:
            self.limbo[other] = now
        self.path_of[wd], self.wd_of[path] = path, wd
        self.limbo.pop(wd, None)
        if path:
            self.inside.setdefault(RelPath(path.rpartition(b"/")[0]), set()).add(path)

    def unbind(self, wd: int) -> RelPath | None:
        path = self.path_of.pop(wd, None)
        if path is None or self.wd_of.get(path) != wd:
            return path
        del self.wd_of[path]
        above = RelPath(path.rpartition(b"/")[0])
        siblings = self.inside.get(above, set())
        siblings.discard(path)
        if not siblings:
            self.inside.pop(above, None)
        return path

    def below(self, top: RelPath) -> Iterator[tuple[int, RelPath]]:
        """The watched directories at and below a path."""
        waiting = [top]
        while waiting:
            path = waiting.pop()
            waiting += self.inside.get(path, ())
            wd = self.wd_of.get(path)
            if wd is not None:
                yield wd, path


class _Emitter(EventEmitter):
    """Owns the watches of one workspace; its thread does what takes time: walking."""

    def __init__(
        self,
        event_queue: EventQueue,
        watch: ObservedWatch,
        *,
        timeout: float = 1.0,
        event_filter: Any = None,
        reader: _Reader,
        tree: TreeSource,
    ) -> None:
        super().__init__(event_queue, watch, timeout=timeout, event_filter=event_filter)
        self.reader = reader
        self.tree = tree
        self.root = tree.root
        self.lock = threading.Lock()
        self.maps = _Maps()
        self.files: set[tuple[RelPath, bytes]] = set()
        self.trees: set[RelPath] = set()
        self.lost = tree.emitter is not None  # what its predecessor knew is not known here
        self.unwatched: dict[RelPath, int] = {}
        self.todo: OrderedDict[RelPath, None] = OrderedDict()
        self.doing: RelPath | None = None
        self.wake = threading.Event()
        self.retry_at = float("inf")
        tree.emitter = self

    # The adopter thread

    def on_thread_start(self) -> None:
        self._adopt(ROOT, first=True)

    def queue_events(self, timeout: float) -> None:
        if not self.todo:
            self.wake.wait(self._rest(timeout))
        self.wake.clear()
        while self.todo and self.should_keep_running():
            self._adopt_next()
        self._expire_limbo()
        self._retry_unwatched()

    def _rest(self, timeout: float) -> float:
        """Whoever has something to do for this thread wakes it; hundreds of them should sleep."""
        if self.maps.limbo:
            return timeout
        return timeout * 10 if self.unwatched else REST_SECONDS

    def _adopt_next(self) -> None:
        with self.lock:
            path = self.doing = self.todo.popitem(last=False)[0]
        try:
            self._adopt(path)
        except Exception as error:  # the thread must not fall: what it missed is looked at in full
            log.exception("could not watch below %r", path)
            self.tree.broken(f"watching failed: {error}")
        with self.lock:
            self.trees.add(path)  # for what was written before the watch was there
            self.doing = None
        self._tell()

    def _adopt(self, top: RelPath, *, first: bool = False) -> None:
        """Watches what is there at and below a path, and lets go of what is not."""
        seen: set[int] | None = set()
        try:
            with Beneath(REAL, self.root) as beneath:
                seen = self._watch_all(beneath, top, first=first)
        except BadInput as error:
            self._cannot_watch(top, _cause(error), first=first)
        if seen is not None and not first and self.should_keep_running():
            self._drop_unmet(top, seen)

    def _watch_all(self, beneath: Beneath, top: RelPath, *, first: bool) -> set[int] | None:
        """Watches first and lists second, from the top down, sparing what the rules leave out.

        By descriptor: what somebody swaps for a link meanwhile leads nowhere.
        """
        rules = self._rules_of(beneath, top)
        if rules is None:
            self._detach(top)
            return None
        seen: set[int] = set()
        waiting: list[tuple[RelPath, DirRules | None]] = [(top, None)]
        while waiting and self.should_keep_running():
            path, above = waiting.pop()
            try:
                fd = beneath.dir(path)
                seen.add(self.reader.watch(b"/proc/self/fd/%d/." % fd, self, path))
            except OSError as error:
                self._cannot_watch(path, error, first=first)
                continue
            if above is not None:
                rules = above.child(path.rpartition(b"/")[2], self._gitignore(beneath, path))
            waiting += [(join(path, name), rules) for name in _inner_dirs(fd, rules)]
        return seen

    def _rules_of(self, beneath: Beneath, path: RelPath) -> DirRules | None:
        """The rules in force inside a directory; None if it is left out itself."""
        rules = DirRules.root(self.tree.rules, self._gitignore(beneath, ROOT))
        above = ROOT
        for name in path.split(b"/") if path else []:
            if rules.verdict(name, True) not in ("capture", "through"):
                return None
            above = join(above, name)
            rules = rules.child(name, self._gitignore(beneath, above))
        return rules

    def _gitignore(self, beneath: Beneath, path: RelPath) -> bytes | None:
        if not self.tree.rules.gitignore:
            return None
        try:
            fd = REAL.open(GITIGNORE, os.O_RDONLY | os.O_NONBLOCK, at=beneath.dir(path))
        except OSError:
            return None
        try:
            return os.read(fd, GITIGNORE_CAP)
        except OSError:
            return None
        finally:
            os.close(fd)

    def bind(self, wd: int, path: RelPath) -> None:
        """Called under the reader's lock: an event that unbinds it again comes after this."""
        with self.lock:
            self.maps.bind(wd, path, time.monotonic())
            self.unwatched.pop(path, None)

    def _cannot_watch(self, path: RelPath, error: OSError, *, first: bool) -> None:
        """What is there and cannot be watched is looked at each time, and tried again."""
        if first and path == ROOT:
            raise WatchUnavailable(_limit_reason(error)) from error
        with self.lock:
            if error.errno in GONE:
                self.unwatched.pop(path, None)
            else:
                self.unwatched[path] = error.errno or 0
        self.retry_at = time.monotonic() + RETRY_SECONDS

    def _drop_unmet(self, top: RelPath, seen: set[int]) -> None:
        """After a walk, what it did not meet is gone or left out now."""
        now = time.monotonic()
        with self.lock:
            known = set(self.maps.path_of) if top == ROOT else {w for w, _ in self.maps.below(top)}
            for wd in known - seen - self.maps.limbo.keys():
                self.maps.limbo[wd] = now

    def _detach(self, top: RelPath) -> None:
        """Puts the watches below a path that moved away aside, until they are met elsewhere."""
        now = time.monotonic()
        with self.lock:
            first = not self.maps.limbo
            for wd, _ in self.maps.below(top):
                self.maps.limbo[wd] = now
            for path in [path for path in self.unwatched if is_within(path, top)]:
                del self.unwatched[path]
            if first and self.maps.limbo:
                self.wake.set()

    def _expire_limbo(self) -> None:
        deadline = time.monotonic() - LIMBO_SECONDS
        with self.lock:
            old = [wd for wd, since in self.maps.limbo.items() if since < deadline]
            for wd in old:
                del self.maps.limbo[wd]
                self.maps.unbind(wd)
        self.reader.unwatch(old, self)

    def _retry_unwatched(self) -> None:
        if self.unwatched and time.monotonic() >= self.retry_at:
            self.retry_at = time.monotonic() + RETRY_SECONDS
            for path in list(self.unwatched):
                self.ask(path)

    def on_thread_stop(self) -> None:
        self.wake.set()
        with self.lock:
            wds = list(self.maps.path_of)
        self.reader.unwatch(wds, self)

    # The reader thread: the same small work for every event

    def ask(self, path: RelPath) -> None:
        """Has a directory adopted; until that is done every `take` names it as dirty."""
        with self.lock:
            self.trees.add(path)
            self.todo[path] = None
        self.wake.set()

    def _tell(self) -> None:
        self.tree.noticed = time.monotonic()
        self.tree.on_dirty()

    def on_files(self, files: set[tuple[RelPath, bytes]]) -> None:
        """Names are padded, as the kernel writes them."""
        with self.lock:
            self.files |= files
            if len(self.files) + len(self.trees) > MANY_IN_ALL:
                self.files, self.trees, self.lost = set(), set(), True
        for path, name in files:
            if name.startswith(GITIGNORE_PADDED):
                self.ask(path)
        self._tell()

    def on_event(self, event: InotifyEvent) -> None:
        path = self.maps.path_of.get(event.wd)
        if path is None:
            return
        if not event.name:
            self._on_self(path, event.mask)
        elif event.mask & C.IN_ISDIR and event.wd in self.maps.limbo:
            with self.lock:  # it has moved: what is at its old path now is none of its business
                self.trees.add(join(path, event.name))
        elif event.mask & C.IN_ISDIR:
            self._on_dir(join(path, event.name), event.mask)
        else:  # other workspaces watch this directory too
            self.on_files({(path, event.name + b"\0")})
            return
        self._tell()

    def _on_dir(self, path: RelPath, mask: int) -> None:
        if mask & APPEARED:
            self._detach(path)
            self.ask(path)
        elif mask & (C.IN_MOVED_FROM | C.IN_DELETE):
            self._detach(path)
            with self.lock:
                self.trees.add(path)
        elif any(is_within(denied, path) for denied in list(self.unwatched)):
            self.ask(path)  # it may have become readable
        else:
            with self.lock:
                self.trees.add(path)

    def _on_self(self, path: RelPath, mask: int) -> None:
        if path == ROOT:
            with self.lock:
                self.lost = True
            if mask & SELF_GONE:
                self.tree.root_gone = True
            if self.unwatched:
                self.ask(ROOT)
        elif mask & C.IN_UNMOUNT:
            self.ask(path)

    def on_watch_deleted(self, wd: int) -> None:
        with self.lock:
            self.maps.limbo.pop(wd, None)
            path = self.maps.unbind(wd)
            if path == ROOT:
                self.lost = True
                self.tree.root_gone = True
        self.reader.owners.pop(wd, None)
        if path == ROOT:
            self._tell()

    def on_queue_overflow(self) -> None:
        """The watches survive; everything is looked at, and watches that were missed are added."""
        with self.lock:
            self.lost = True
            self.tree.overflows += 1
        self.ask(ROOT)
        self._tell()

    def take(self) -> Dirty:
        with self.lock:
            files, self.files = self.files, set()
            trees, self.trees = self.trees, set()
            lost, self.lost = self.lost, False
            trees |= self.todo.keys()
            if self.doing is not None:
                trees.add(self.doing)
        paths = frozenset(join(path, name.rstrip(b"\0")) for path, name in files)
        return Dirty(paths, frozenset(trees), lost)


def _cause(error: BadInput) -> OSError:
    """The system's word for why a root could not be opened."""
    cause = error.__cause__
    return cause if isinstance(cause, OSError) else OSError(errno.ENOENT, error.message)


def _inner_dirs(fd: int, rules: DirRules) -> list[bytes]:
    try:
        with os.scandir(fd) as found:
            names = [os.fsencode(e.name) for e in found if e.is_dir(follow_symlinks=False)]
    except OSError:  # gone, or not ours to read: the look at it will say so
        return []
    return [name for name in names if rules.verdict(name, True) in ("capture", "through")]


def _limit_reason(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return "the system's limit of inotify watches is used up"
    if error.errno == errno.EMFILE:
        return "the system's limit of inotify instances is used up"
    return f"it cannot be watched ({error.strerror})"


class _Reader(InotifyFD):
    """Owns the one inotify instance; reads it in batches, without an object for each file event."""

    def __init__(self, on_failure: Callable[[str], None]) -> None:
        super().__init__()
        os.set_inheritable(self._inotify_fd, False)
        self.owners: dict[int, _Emitter] = {}
        self.on_failure = on_failure

    def watch(self, path: bytes, emitter: _Emitter, known_as: RelPath) -> int:
        """Adds a watch, or finds the one that the directory has already."""
        with self._lock:
            found = self._get_or_create_watch(path, Mask(MASK))
            wd = int(found.wd)
            if wd == -1:
                self._watch_for_wd.pop(found.wd, None)
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
            found.callbacks[id(emitter)] = emitter  # type: ignore[index]
            self._settle_owner(wd, found.callbacks)
            emitter.bind(wd, known_as)
        return wd

    def _settle_owner(self, wd: int, callbacks: dict[Any, Any]) -> None:
        """Directories watched for one workspace alone take the short way; roots may overlap."""
        only = next(iter(callbacks.values())) if len(callbacks) == 1 else None
        if isinstance(only, _Emitter):
            self.owners[wd] = only
        else:
            self.owners.pop(wd, None)

    def unwatch(self, wds: list[int], emitter: _Emitter) -> None:
        with self._lock:
            for wd in wds:
                found = self._watch_for_wd.get(wd)  # type: ignore[call-overload]
                if found is not None and id(emitter) in found.callbacks:
                    self._remove_callback(wd, id(emitter))  # type: ignore[arg-type]
                    self._settle_owner(wd, found.callbacks)

    def run(self) -> None:
        try:
            while self.should_keep_running():
                buffer = self._read_event_buffer(BUFFER)
                if not buffer and self.should_keep_running():
                    raise OSError(errno.EBADF, "the descriptor was closed")
                self._handle_batch(buffer)
        except Exception as error:  # must not die unseen: all workspaces scan from now on
            log.exception("the reader of file system events failed")
            with self._lock:
                self._is_reading = False  # else `close` waits for this thread to free the fds
            if self.should_keep_running():
                self.on_failure(f"the reader of events failed: {error}")

    def _handle_batch(self, buffer: bytes) -> None:
        """Gathers file events by workspace; anything else ends the gathering, to keep the order."""
        gathered: dict[_Emitter, set[tuple[RelPath, bytes]]] = {}
        at, end = 0, len(buffer)
        unpack, owners = HEADER.unpack_from, self.owners
        while at < end:
            wd, mask, cookie, length = unpack(buffer, at)
            start = at + 16
            at = start + length
            owner = owners.get(wd)
            if owner is not None and length and not mask & SPECIAL:
                path = owner.maps.path_of.get(wd)
                if path is not None:
                    gathered.setdefault(owner, set()).add((path, buffer[start:at]))
                    continue
            self._hand_over(gathered)
            name = buffer[start:at].rstrip(b"\0")
            if wd != -1 or mask & C.IN_Q_OVERFLOW:
                self.handle_event(InotifyEvent(wd, mask, cookie, name))
        self._hand_over(gathered)

    def _hand_over(self, gathered: dict[_Emitter, set[tuple[RelPath, bytes]]]) -> None:
        for owner, files in gathered.items():
            owner.on_files(files)
        gathered.clear()


class _Observer(BaseObserver):
    """watchdog's observer with our emitter in it."""

    def __init__(self, reader: _Reader) -> None:
        super().__init__(_Emitter)
        self.reader = reader

    def add(self, tree: TreeSource) -> None:
        """Starts the tree's emitter, which has placed all its watches when this returns."""
        with self._lock:
            self._emitter_kwargs = {"reader": self.reader, "tree": tree}
            try:
                self.schedule(FileSystemEventHandler(), os.fsdecode(tree.root), recursive=True)
            except BaseException:
                if tree.emitter is not None:
                    tree.emitter.on_thread_stop()
                raise


class Hub:
    """Owns the inotify instance of a service, its cookie directory, and the workspaces on it."""

    def __init__(self, cookies: str) -> None:
        self.pid = os.getpid()
        self.failure = ""
        self._cookies = os.fsencode(cookies)
        self._numbers = itertools.count(1)
        self._waiting: dict[bytes, _Waiter] = {}
        self._placed: list[bytes] = []  # cookies that came back, to be renamed for the next
        self._trees: set[TreeSource] = set()
        self._changing = threading.RLock()
        self._mounts = _Mounts()
        try:
            self._start()
        except BaseException:
            self._mounts.close()
            raise

    def _start(self) -> None:
        os.makedirs(self._cookies, mode=0o700, exist_ok=True)
        self._clear_cookies()
        try:
            self.reader = _Reader(self._on_failure)
        except OSError as error:
            raise WatchUnavailable(_limit_reason(error)) from error
        self.reader.start()
        self.observer = _Observer(self.reader)
        self.observer.start()
        try:
            mask = C.IN_CREATE | C.IN_MOVED_TO
            self.reader.add_callback(self._cookies, mask, self, id(self))  # type: ignore[arg-type]
        except OSError as error:
            self._stop()
            raise WatchUnavailable(_limit_reason(error)) from error

    def open(self, root: bytes, rules: RuleSet, on_dirty: Callable[[], None]) -> TreeSource:
        """Begins to watch a workspace; returns when every directory has its watch."""
        with self._changing:
            if self.failure:
                self.mend()
            tree = TreeSource(self, root, rules, on_dirty)
            tree.mounts = self._mounts.below(root)
            self._trees.add(tree)
            try:
                self.observer.add(tree)
            except BaseException:
                self._trees.discard(tree)
                raise
        return tree

    def barrier(self, seconds: float) -> bool:
        """True once everything that was written before the call has been taken note of."""
        if self.failure or os.getpid() != self.pid:
            return False
        name = b"%d" % next(self._numbers)
        waiter = self._waiting[name] = _Waiter()
        try:
            self._place(name)
            came = waiter.event.wait(seconds) and waiter.good
        except OSError as error:
            log.warning("no cookie could be placed: %s", error)
            return False
        finally:
            self._waiting.pop(name, None)
        self._placed.append(name)
        self._meet_mounts()
        return came and not self.failure

    def _place(self, name: bytes) -> None:
        """Renames a cookie that is there, which file systems do in a tenth of a creation's time."""
        path = self._cookies + b"/" + name
        with suppress(IndexError, FileNotFoundError):
            os.rename(self._cookies + b"/" + self._placed.pop(), path)
            return
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))

    def _clear_cookies(self) -> None:
        self._placed.clear()
        for left in os.listdir(self._cookies):
            with suppress(FileNotFoundError):  # a barrier has just renamed it
                os.unlink(os.path.join(self._cookies, left))

    def _meet_mounts(self) -> None:
        """No event tells of what is mounted over a watched directory."""
        with self._mounts.lock:
            if self._mounts.changed():
                for tree in list(self._trees):
                    tree.remount(self._mounts.below(tree.root))

    def mend(self) -> None:
        """Restarts a reader that is silent; one that was only late is believed again."""
        with self._changing:
            if self.failure or not self.barrier(MEND_SECONDS):
                self.restart()
                return
            for tree in self._trees:
                if tree.trouble:
                    tree.readopt()

    def restart(self) -> None:
        """A new reader for all workspaces, each of which looks at everything afterwards."""
        with self._changing:
            if os.getpid() != self.pid:
                return
            self.failure = "the reader of events is being restarted"
            self._release(good=False)
            self._stop()
            try:
                self._start()
            except (WatchUnavailable, OSError) as error:
                self._on_failure(str(error))
                return
            for tree in self._trees:
                self._readd(tree)
            if self.reader.is_alive():
                self.failure = ""

    def _readd(self, tree: TreeSource) -> None:
        try:
            self.observer.add(tree)
        except (WatchUnavailable, OSError) as error:
            tree.broken(str(error))
        else:
            tree.trouble = ""
            tree.look_everywhere()

    def forget(self, tree: TreeSource) -> None:
        """Ends the watching of a workspace, and frees its watches."""
        with self._changing:
            self._trees.discard(tree)
            emitter, tree.emitter = tree.emitter, None
            if emitter is None or os.getpid() != self.pid:
                return
            if self.observer._emitter_for_watch.get(emitter.watch) is emitter:
                self.observer.unschedule(emitter.watch)
                emitter.on_thread_stop()  # for the watch that its thread was just placing

    def close(self) -> None:
        if os.getpid() != self.pid:
            return
        with self._changing:
            self.failure = "it has been closed"
            self._stop()
            self._mounts.close()
        with suppress(OSError):
            self._clear_cookies()
            os.rmdir(self._cookies)

    def _stop(self) -> None:
        self.observer.stop()
        self.observer.join()
        self.reader.stop()
        self.reader.join(JOIN_SECONDS)  # one that hangs is left behind: its descriptor is closed

    def _on_failure(self, reason: str) -> None:
        self.failure = reason
        self._release(good=False)
        for tree in list(self._trees):
            tree.broken(reason)

    def _release(self, *, good: bool) -> None:
        for name in list(self._waiting):
            waiter = self._waiting.pop(name, None)
            if waiter is not None:
                waiter.good = good
                waiter.event.set()

    # The callback of the cookie directory

    def on_event(self, event: InotifyEvent) -> None:
        waiter = self._waiting.pop(event.name, None)
        if waiter is not None:
            waiter.good = True
            waiter.event.set()

    def on_watch_deleted(self, wd: int) -> None:
        self._release(good=False)

    def on_queue_overflow(self) -> None:
        """The cookie may be among the lost; but now everything is dirty, and that is as good.

        The trees are told of it here, since their own turn comes only after this one.
        """
        for tree in list(self._trees):
            tree.look_everywhere()
        self._release(good=True)


@dataclass
class _Waiter:
    event: threading.Event = field(default_factory=threading.Event)
    good: bool = False


class TreeSource:
    """Owns what is known of where one workspace changed."""

    def __init__(self, hub: Hub, root: bytes, rules: RuleSet, on_dirty: Callable[[], None]) -> None:
        self.hub = hub
        self.root = root
        self.rules = rules
        self.on_dirty = on_dirty
        self.emitter: _Emitter | None = None
        self.mounts: Mounts = {}
        self.noticed = 0.0
        self.root_gone = False
        self.overflows = 0
        self.trouble = ""

    def take(self) -> Dirty:
        """Where to look now; asked again, only what came since, and what is being adopted."""
        emitter = self.emitter
        return emitter.take() if emitter is not None else Dirty(lost=True)

    def blind(self) -> frozenset[RelPath]:
        """Subtrees of which no events come, to be looked at each time."""
        emitter = self.emitter
        unwatched = list(emitter.unwatched) if emitter is not None else []
        foreign = (path for path, kind in self.mounts.items() if kind[1] not in EVENTFUL)
        return frozenset((*unwatched, *foreign))

    def barrier(self, seconds: float) -> bool:
        return self.hub.barrier(seconds)

    def watched(self) -> int:
        """How many directories are being watched."""
        emitter = self.emitter
        return len(emitter.maps.path_of) if emitter is not None else 0

    def degraded(self) -> str:
        """Why some directories are scanned instead of watched, if they are."""
        emitter = self.emitter
        reasons = list(emitter.unwatched.values()) if emitter is not None else []
        count = sum(reason in NO_WATCH for reason in reasons)
        if not count:
            return ""
        return (
            f"{count} directories are scanned at each turn: {_limit_reason(OSError(errno.ENOSPC))};"
            " raise fs.inotify.max_user_watches"
        )

    def change_rules(self, rules: RuleSet) -> None:
        self.rules = rules
        self._ask_all()

    def remount(self, mounts: Mounts) -> None:
        """Takes note of what is mounted below the root; if that is new, all is looked at anew."""
        if mounts != self.mounts:
            self.mounts = mounts
            self._ask_all()

    def readopt(self) -> None:
        """Walks the whole root for watches that are missing."""
        self.trouble = ""
        self._ask_all()

    def _ask_all(self) -> None:
        emitter = self.emitter
        if emitter is not None:
            emitter.ask(ROOT)
        self.noticed = time.monotonic()
        self.on_dirty()

    def broken(self, reason: str) -> None:
        self.trouble = reason
        self.look_everywhere()

    def look_everywhere(self) -> None:
        emitter = self.emitter
        if emitter is not None:
            with emitter.lock:
                emitter.lost = True
        self.noticed = time.monotonic()
        self.on_dirty()

    def close(self) -> None:
        self.hub.forget(self)


Mounts = dict[RelPath, tuple[bytes, str]]
"""Where something is mounted below a root: the mount's number, and its kind of file system."""


class _Mounts:
    """Owns the descriptor by which the kernel tells that something was mounted or unmounted."""

    def __init__(self, path: str = MOUNTINFO) -> None:
        self.path = path
        self.lock = threading.Lock()
        self.poller = select.poll()
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self.poller.register(self.fd, select.POLLPRI)
            self.poller.poll(0)
        except OSError:
            self.fd = -1

    def changed(self) -> bool:
        """Says so once for each change."""
        return self.fd >= 0 and bool(self.poller.poll(0))

    def below(self, root: bytes) -> Mounts:
        try:
            found = list(_mounted(self.path))
        except OSError:
            return {}
        inside = root + b"/"
        return {RelPath(p[len(inside) :]): (n, k) for n, p, k in found if p.startswith(inside)}

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def event_trouble(root: bytes, mountinfo: str = MOUNTINFO) -> str:
    """Why events cannot be relied on for a root, by its file system; empty if they can."""
    if not sys.platform.startswith("linux"):
        return "events are not complete on this system"
    try:
        kind = _file_system(root, mountinfo)
    except OSError:
        return f"{mountinfo} does not say which file system it is on"
    return "" if kind in EVENTFUL else f"{kind or 'its file system'} does not tell of all changes"


def _file_system(root: bytes, mountinfo: str) -> str:
    """The type of the mount that holds a path: the last of the longest mount points above it."""
    best, kind = b"", ""
    for _, point, found in _mounted(mountinfo):
        if len(point) >= len(best) and is_within(root, point.rstrip(b"/")):
            best, kind = point, found
    return kind


def _mounted(mountinfo: str) -> Iterator[tuple[bytes, bytes, str]]:
    """Number, mount point and kind of file system of each mount."""
    with open(mountinfo, "rb") as lines:
        for line in lines:
            fields = line.split()
            point = OCTAL.sub(lambda m: bytes([int(m[1], 8)]), fields[4])
            yield fields[0], point, fields[fields.index(b"-") + 1].decode("ascii", "replace")
