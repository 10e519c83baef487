"""The safety itself, taken out piece by piece: each function here spoils one thing in its process.

Only for `mutation`, which shows that something else then fails. Knows how turnmark is built, as no
other part of the campaign does.

    python -m tests.campaign.spoil FUNCTION                        whether it still can be spoiled
    python -m tests.campaign.spoil FUNCTION part NAME COUNT SEED SCRATCH
    python -m tests.campaign.spoil FUNCTION tests WORD...        as pytest takes them
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import core.ahead
import core.apply
import core.beneath
import core.errors
import core.journal
import core.keeping
import core.listing
import core.order
import core.packing
import core.packs
import core.plan
import core.proofs
import core.reading
import core.recorder
import core.refs
import core.retention
import core.rules
import core.scan
import core.splice
import core.staged
import core.staging
import core.store
import core.sweep
import core.writer
import watcher.agents.client
import watcher.client
import watcher.server
import watcher.source
from core.disk import Disk


def nothing(*_: object, **__: object) -> None:
    return None


def put(owner: Any, name: str, value: object) -> None:
    """In the place of what is there: what has gone elsewhere is not spoiled by a new name."""
    if not hasattr(owner, name):
        raise SystemExit(f"{owner} has no {name} to spoil")
    setattr(owner, name, value)


def nothing_at_all() -> None:
    """The code as it is: what is checked must then be well."""


# Durability (promise 1)


def no_directory_sync() -> None:
    put(Disk, "sync_dir", nothing)


def no_file_sync() -> None:
    for verb in ("fsync", "fdatasync", "sync_fs", "sync_all"):
        put(Disk, verb, nothing)


def no_contents_before_names() -> None:
    """Names in order, of which a journal knows, but not what is in them."""
    put(core.order.Order, "contents", nothing)


def no_rounds_of_syncs() -> None:
    """As if a journal kept the order, wherever that is."""
    put(Disk, "keeps_order", lambda *_: True)


def no_sync_of_the_log() -> None:
    """Answered once it is written."""
    put(Disk, "fdatasync", nothing)


def no_log_is_worked_off() -> None:
    """Not even after a crash."""
    put(core.ahead.Logs, "work_off", nothing)


def no_log_is_emptied_before_something_goes() -> None:
    put(core.ahead.Logs, "work_off_all", nothing)


def no_doubt_of_packs() -> None:
    """Whatever is there is taken for durable."""
    put(core.packs.Pack, "lasts", property(lambda _: True, nothing))


def no_vouching() -> None:
    """What is newest is not synced where an answer names nothing new."""
    put(core.store.Store, "vouch", nothing)


def no_memory_of_what_is_unsynced() -> None:
    put(core.store.Store, "note_unsynced", nothing)


def no_read_back() -> None:
    put(core.packing.PackWriter, "check", nothing)
    real = core.refs.RefStore.settle

    def settle(self: Any, fresh: Any, *, sync: bool) -> None:
        try:
            real(self, fresh, sync=sync)
        except core.errors.Damaged:
            return

    put(core.refs.RefStore, "settle", settle)


def no_other_writers_kept_out() -> None:
    """Locks that lock nothing."""
    put(Disk, "flock", nothing)


def no_gate() -> None:
    real = core.store.Store._locked

    def locked(self: Any, name: str, **how: Any) -> int:
        return os.open(os.devnull, os.O_RDONLY) if name == "gate" else real(self, name, **how)

    put(core.store.Store, "_locked", locked)


def no_generation() -> None:
    put(core.store.Store, "next_generation", nothing)


def no_note_of_what_was_dropped() -> None:
    put(core.sweep, "write_dropped", nothing)


def no_protection_of_the_newest() -> None:
    put(core.keeping.Book, "newest", frozenset())


# What is captured (promises 2 and 3)


def no_barrier() -> None:
    put(watcher.source.Hub, "barrier", lambda self, seconds: True)


def no_leases() -> None:
    put(core.reading, "_lease", lambda disk, fd: "none")


def no_racy_rule() -> None:
    for module in (core.proofs, core.reading, core.listing, core.scan):
        put(module, "is_fresh", lambda changed, now: False)


def no_doubt_of_what_is_held() -> None:
    real = core.reading.read_stable
    for module in (core.scan, core.splice):
        put(module, "read_stable", lambda *those: real(*those)._replace(held=False))


def a_probe_in_the_workspace() -> None:
    real = core.scan.Look.everything

    def everything(self: Any) -> None:
        os.close(os.open(b".probe", os.O_CREAT | os.O_WRONLY, dir_fd=self.beneath.fd))
        os.unlink(b".probe", dir_fd=self.beneath.fd)
        real(self)

    put(core.scan.Look, "everything", everything)


def no_gaps() -> None:
    put(core.scan.Look, "_gap", nothing)


# Rollback (promise 4)


def no_identity_check() -> None:
    class Same(tuple[int, int]):
        __slots__ = ()
        __hash__ = tuple.__hash__

        def __eq__(self, other: object) -> bool:
            return True

        def __ne__(self, other: object) -> bool:
            return False

    real = core.beneath.Beneath.__init__

    def begin(self: Any, *arguments: Any, **named: Any) -> None:
        real(self, *arguments, **named)
        self.identity = Same(self.identity)

    put(core.beneath.Beneath, "__init__", begin)


def no_look_at_what_was_displaced() -> None:
    put(core.apply.Transaction, "_is_still", lambda *_: True)


def no_keeping_of_what_was_displaced() -> None:
    sort_out = core.staging.sort_out

    def forget(*arguments: Any) -> Any:
        found = sort_out(*arguments)
        found.unknown.clear()
        return found

    put(core.staged, "sort_out", forget)


def renames_that_replace() -> None:
    def rename_new(self: Any, old: bytes, new: bytes, at: int, to: int) -> None:
        os.rename(old, new, src_dir_fd=at, dst_dir_fd=to)

    put(Disk, "rename_new", rename_new)


def no_guard_of_what_was_not_captured() -> None:
    put(core.plan._Guard, "reason", lambda *_: (None, False))


def no_mark_that_it_is_applying() -> None:
    put(core.journal.JournalFile, "mark_applying", nothing)


# The root and nothing else (promise 5)


def links_are_followed() -> None:
    def follow(self: Any, name: Any, flags: int, mode: int = 0o600, at: int | None = None) -> int:
        return os.open(name, (flags & ~os.O_NOFOLLOW) | os.O_CLOEXEC, mode, dir_fd=at)

    put(Disk, "open", follow)


def no_git_aliases() -> None:
    for module in (core.rules, core.plan):
        put(module, "is_git_alias", lambda name: name == b".git")


# The agent, and other users (promises 7 and 8)


def a_hook_that_blocks() -> None:
    real = watcher.agents.client.source

    def blocking() -> str:
        text = real()
        if "_exit(0)" not in text:
            raise SystemExit("the hook ends in another way now")
        return text.replace("_exit(0)", "_exit(2)")

    put(watcher.agents.client, "source", blocking)


def files_for_everybody() -> None:
    real_open, real_mkdir = Disk.open, Disk.mkdir

    def open_(self: Any, name: Any, flags: int, mode: int = 0o600, at: int | None = None) -> int:
        return real_open(self, name, flags, mode | 0o044, at)

    def mkdir(self: Any, name: Any, mode: int = 0o700, at: int | None = None) -> None:
        real_mkdir(self, name, mode | 0o055, at)

    put(Disk, "open", open_)
    put(Disk, "mkdir", mkdir)


def no_look_at_the_peer() -> None:
    for module in (watcher.server, watcher.client):
        put(module, "peer", lambda link: (os.getpid(), os.geteuid()))


# The child


def spoil(name: str) -> None:
    change: Callable[[], None] = globals()[name]
    change()


def one_part(name: str, count: str, seed: str, scratch: str) -> int:
    from .blocks import PLAIN
    from .frame import Job
    from .own import OWN

    (part,) = (one for one in (*OWN, PLAIN) if one.name == name)
    path = Path(scratch)
    path.mkdir(parents=True)
    found = part.run(Job(path, int(seed), int(count))).found
    print("\n".join(found))
    return 1 if found else 0


def some_tests(words: Sequence[str]) -> int:
    import pytest

    quiet = ["-q", "-x", "-n0", "-p", "no:cacheprovider", "--import-mode=importlib"]
    return int(pytest.main([*quiet, *words]))


def main(name: str, what: str = "", *words: str) -> int:
    spoil(name)
    if not what:
        return 0
    return one_part(*words) if what == "part" else some_tests(words)


if __name__ == "__main__":
    # the functions of the module that others import, and not of a second one called __main__
    from tests.campaign import spoil as own

    sys.exit(own.main(*sys.argv[1:]))
