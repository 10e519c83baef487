"""Deep repacking: one small pack of all that references reach, made by git, which finds deltas.

Knows when that is worth while and how git is called; how packs take each other's place is `sweep`'s
business.

git writes into a directory of its own, and deletes nothing: it does not know our locks, and would
drop an old object that a writer has just found and is about to reference.

Order of a deep repack, and what is true if the process dies after each step:
1. all that is reachable is walked, the old packs are read: nothing has changed;
2. git makes its pack under turnmark/tmp: a left-over, removed by the next sweep or consolidation;
3. it is read, synced, and moved to the others, pack first, the directory synced: each object is
   there twice, a later sweep removes one of them;
4. git's directory goes, then the old packs as in a sweep.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from .consolidate import check_pack, has_room, is_kept
from .errors import Busy, explain
from .packs import Pack
from .store import Store
from .sweep import Sweep, Swept, sync_pack

GivesWay = Callable[[], bool]
PROGRAM = "git"
LEAST_BYTES = 1 << 20
"""Less than that is not worth a process."""
WORTHWHILE_SHARE = 1 / 8
"""So much must have come since."""
GIT_SECONDS = 3600.0
LOOK_SECONDS = 0.5
"""Between two looks at whether somebody else is waiting."""
MEMORY = (
    *("pack.deltaCacheSize=32m", "pack.windowMemory=32m", "pack.threads=1"),
    *("core.packedGitLimit=128m", "core.packedGitWindowSize=1m"),
    "pack.writeReverseIndex=false",
)
"""Measured: 204 MB instead of 640 for 100,000 files."""
HOW = (
    *("pack-objects", "--all", "--non-empty", "--no-reuse-object", "--delta-base-offset"),
    *("--depth=10", "-q"),
)
"""Everything anew: what was compressed for speed, and what lies in one pack already, in which git
would look for no delta. Longer chains save a hundredth and take three times as long to read."""


def deep_repack(store: Store, git: str = PROGRAM) -> Swept:
    """Compresses all that is alive as well as git can, and drops the rest."""
    with store.maintaining():
        return repack(store, git)


def repack(store: Store, git: str, gives_way: GivesWay = lambda: False) -> Swept:
    """As `deep_repack`; the caller is `maintaining` the store. What lies in a pack that somebody
    keeps on purpose is there twice afterwards."""
    work = Sweep(store)
    program = shutil.which(git)
    if program is None:
        return work.result([f"There is no {git} on this machine: the packs stay as they are."])
    if not work.walk():
        return work.result()
    old = {pack.path for pack in work.usable() if not is_kept(pack)}
    with _own_directory(store) as place:
        failure = _run_git(program, store.base, place, gives_way)
        if failure:
            return work.result([f"git could not repack {store.base}: {failure}"])
        _make_way(gives_way)
        fresh = [_moved_in(store, place, name) for name in _packs_in(store, place)]
    store.reload()
    work.cover(fresh)
    work.going = [p for p in store.packs() if p.path in old - set(fresh) and _covered(work, p)]
    work.retire(fresh)
    return work.result()


def _make_way(gives_way: GivesWay) -> None:
    if gives_way():
        raise Busy("Somebody else wants to keep up the store.", "It is done in a later rest.")


def _covered(work: Sweep, pack: Pack) -> bool:
    return work.covered.issuperset(work.reach.oids.intersection(pack.oids()))


@contextmanager
def _own_directory(store: Store) -> Iterator[str]:
    place = f"{store.base}/turnmark/tmp/deep-{os.getpid()}"
    try:
        store.disk.remove_tree(place)  # of a process of the same number
        store.disk.make_dirs(f"{place}/pack")
        yield place
    except OSError as error:
        raise explain(error, "repack the store", store.base) from error
    finally:
        with suppress(OSError):  # a left-over, as after a kill
            store.disk.remove_tree(place)


def _packs_in(store: Store, place: str) -> list[str]:
    return [name[:-4] for name in store.disk.names(place) if name.endswith(".idx")]


def _moved_in(store: Store, place: str, name: str) -> str:
    """Read and made durable before anybody can see it."""
    objects = f"{store.base}/objects/pack"
    check_pack(store.disk, f"{place}/{name}")
    sync_pack(store, f"{place}/{name}")
    for end in (".pack", ".idx"):
        store.disk.rename(f"{place}/{name}{end}", f"{objects}/{name}{end}")
    store.disk.sync_dir(objects)
    return f"{objects}/{name}"


# git


def _run_git(program: str, base: str, place: str, gives_way: GivesWay) -> str:
    """Nothing of the user's environment or configuration; what went wrong, or nothing."""
    settings = [part for setting in MEMORY for part in ("-c", setting)]
    command = [program, *settings, f"--git-dir={base}", *HOW, f"{place}/pack"]
    environment = {
        "PATH": os.defpath,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_OBJECT_DIRECTORY": place,
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": _quoted(f"{base}/objects"),
        "LC_ALL": "C",
    }
    try:
        return _run([*_unhurried(), *command], environment, gives_way)
    except OSError as error:
        return str(error)
    except subprocess.TimeoutExpired:
        return f"it was stopped after {GIT_SECONDS:.0f} seconds"


def _quoted(path: str) -> str:
    """In a list that git would take apart at colons."""
    escaped = path.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _unhurried() -> list[str]:
    """By programs that are there or not: as nice as can be, and not to outlive its starter."""
    words: list[str] = []
    for name, *rest in (("nice", "-n", "19"), ("setpriv", "--pdeathsig", "KILL")):
        path = shutil.which(name)
        if path is not None and _is_understood(path, *rest):
            words += [path, *rest]
    return words


def _is_understood(*words: str) -> bool:
    """Some systems have a program of that name that knows less."""
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run([*words, "true"], capture_output=True, timeout=5.0, check=False)
        return done.returncode == 0
    return False


def _run(command: Sequence[str], environment: Mapping[str, str], gives_way: GivesWay) -> str:
    """What a process said if it failed. Who does not wait for its end does not leave it, nor what
    it has started: it would go on for hours."""
    until = time.monotonic() + GIT_SECONDS
    with subprocess.Popen(
        command,
        env=environment,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        process_group=0,
    ) as process:
        try:
            said = _said(process, until, gives_way)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    if not process.returncode:
        return ""
    return said.decode(errors="replace").strip() or f"it ended with {process.returncode}"


def _said(process: subprocess.Popen[bytes], until: float, gives_way: GivesWay) -> bytes:
    while True:
        left = until - time.monotonic()
        try:
            return process.communicate(timeout=max(0.0, min(left, LOOK_SECONDS)))[1]
        except subprocess.TimeoutExpired:
            if left <= 0:
                raise
        _make_way(gives_way)


# When


def repack_when_due(
    store: Store, now_ns: int, interval_ns: int, git: str = PROGRAM
) -> Swept | None:
    """Not before the interval is over, unless there is twice as much as after the last try.

    None if it is not due, or there is no room for it. It is noted first, so that one that fails, or
    kills its process, does not do so in a loop; who is told to stop, or gives way to others, takes
    the note back.
    """
    marker = f"{store.base}/turnmark/last_repack"
    if shutil.which(git) is None:
        return None
    with store.maintaining(0.0):
        before, size = _noted(store, marker), _packed(store)
        if not before.calls_for_another(now_ns, interval_ns, size):
            return None
        if not has_room(store, store.packs()):
            return None
        try:
            _note(store, marker, Noted(now_ns, before.left, size))
            done = repack(store, git, store.is_wanted)
        except (KeyboardInterrupt, SystemExit, Busy):
            _note(store, marker, before)
            raise
        if not done.errors:
            left = _packed(store)
            _note(store, marker, Noted(now_ns, left, left))
        return done


class Noted(NamedTuple):
    """When it was tried last, how much the last one that went well left, and how much there was, or
    was left, after the last try."""

    when: int = 0
    left: int = 0
    seen: int = 0

    def calls_for_another(self, now_ns: int, interval_ns: int, size: int) -> bool:
        if size < LEAST_BYTES or size >= 2 * self.seen:
            return size >= LEAST_BYTES
        lately = 0 <= now_ns - self.when < interval_ns
        return not lately and size - self.left > WORTHWHILE_SHARE * self.left


def _noted(store: Store, marker: str) -> Noted:
    """What is damaged says nothing."""
    try:
        when, left, seen = map(int, store.disk.read_file(marker).split())
    except (FileNotFoundError, ValueError):
        return Noted()
    return Noted(when, max(0, left), max(0, seen))


def _note(store: Store, marker: str, noted: Noted) -> None:
    store.disk.replace(marker, b"%d %d %d\n" % noted)


def _packed(store: Store) -> int:
    return sum(pack.size() for pack in store.packs())
