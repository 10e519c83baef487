"""A store that is damaged anywhere: never a wrong byte, said by verify, mended, the rest usable.

One file of a store is flipped, cut, emptied, removed or exchanged with another; or the store is
copied by a plain copy while somebody writes, and by our backup. What was exact before is read as
it was, or refused; what is refused is known to `verify`; after `repair` everything that could be
read still can, all is in order for git as well, and the next snapshot is exact.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from core.about import decode_about
from core.backup import backup
from core.diff import files_of
from core.errors import TurnmarkError
from core.history import History, read_snapshot
from core.model import LINK, Oid
from core.repair import repair
from core.store import Store
from core.verify import verify
from tests.stores import fsck
from tests.trees import Image

from .child import failure_of, in_child, kill
from .frame import Figures, Job, Part
from .ground import Ground, digest
from .kills import check_recovery
from .oracle import Judge, Wrong
from .syscalls import Template, template
from .worker import recover, work

KINDS = ("flip", "cut", "empty", "remove", "exchange", "copy", "backup")
WEIGHTS = (40, 15, 8, 17, 8, 6, 6)
PLACES = ("objects/pack", "refs", "turnmark/cache", "turnmark/workspaces", ".")
BUSY_FOR = 0.1


def damage(job: Job) -> Figures:
    figures = Figures()
    past = template(job, "past")
    for number in job.turns(figures):
        rng = job.rng("damage", number)
        (kind,) = rng.choices(KINDS, WEIGHTS)
        judge = past.restore()
        try:
            what = harm(past, judge, kind, rng)
            check(past.ground, judge, kind, what, figures)
        except (Wrong, AssertionError) as wrong:
            figures.found.append(f"{kind} {number}: {wrong}")
        figures.count(kind)
    return figures


# Harm


def harm(past: Template, judge: Judge, kind: str, rng: random.Random) -> str:
    """Does it, and says to what."""
    if kind in ("copy", "backup"):
        return copied_live(past.ground, judge, kind, rng)
    base = Path(past.ground.store)
    files = [p for p in (base / rng.choice(PLACES)).rglob("*") if p.is_file()]
    files = [p for p in files or base.rglob("*") if p.is_file() and "locks" not in p.parts]
    path = rng.choice(sorted(files))
    path.chmod(0o600)
    HARMS[kind](path, rng.choice(sorted(files)), rng)
    return str(path.relative_to(base))


def _flip(path: Path, other: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def _cut(path: Path, other: Path, rng: random.Random) -> None:
    os.truncate(path, rng.randrange(max(1, path.stat().st_size)))


def _exchange(path: Path, other: Path, rng: random.Random) -> None:
    mine, theirs = path.read_bytes(), other.read_bytes()
    other.chmod(0o600)
    path.write_bytes(theirs)
    other.write_bytes(mine)


HARMS: dict[str, Callable[[Path, Path, random.Random], None]] = {
    "flip": _flip,
    "cut": _cut,
    "empty": lambda path, other, rng: os.truncate(path, 0),
    "remove": lambda path, other, rng: path.unlink(),
    "exchange": _exchange,
}


def copied_live(ground: Ground, judge: Judge, kind: str, rng: random.Random) -> str:
    """The store becomes a copy of itself that was made while a worker used it."""
    copy = ground.base / "copy"
    pid = in_child(partial(work, ground, str(rng.random())))
    time.sleep(rng.random() * BUSY_FOR)
    try:
        if kind == "backup":
            made = failure_of(lambda: backup(Store.open(ground.store), str(copy)))
        else:
            made = failure_of(partial(plain_copy, Path(ground.store), copy))
    finally:
        kill(pid)
    assert not made, made
    judge.read_on()
    check_recovery(judge, "before the copy takes its place")
    judge.forget()
    judge.may_be = []  # the copy may know of a rollback that was under way, and finish that
    judge.must_keep = ground.image()
    shutil.rmtree(ground.store)
    copy.rename(ground.store)
    return "all"


def plain_copy(store: Path, copy: Path) -> None:
    """As anybody's: what goes away meanwhile is not copied."""
    try:
        shutil.copytree(store, copy, symlinks=True)
    except shutil.Error as error:
        print(f"copied but for {len(error.args[0])} files")


# Checks


def check(ground: Ground, judge: Judge, kind: str, what: str, figures: Figures) -> None:
    wanted = {commit: ground.kept_image(image) for commit, (_, image, _) in judge.acks.items()}
    said = failure_of(partial(inspected, ground, wanted, kind))
    if said:
        raise Wrong(f"{what}: {said}")
    judge.acks.clear()
    if kind != "copy":  # of what was damaged, the tree of now may be no part
        judge.must_keep = {}
    if said := failure_of(partial(recover, ground, "once")):
        # The journal of a rollback may have come along whose point did not: told once, then gone.
        if kind != "copy" or "Damaged" not in said:
            raise Wrong(f"{what}: the next command failed: {said}")
        figures.count("told once of a lost rollback")
    check_recovery(judge, "after")
    judge.check_store()


def inspected(ground: Ground, wanted: dict[str, Image], kind: str) -> None:
    """In a child: reading before, what verify says, repair, and reading after."""
    readable, refused = look(ground, wanted)
    ok = said_by_verify(ground)
    assert not (refused and ok), f"verify says nothing of {refused} snapshots that cannot be read"
    assert ok or kind != "backup", "a backup is damaged"
    repair(Store(ground.store))  # as the command does: it may be the layout that is missing
    assert said_by_verify(ground), "repaired, and verify still finds damage"
    fsck(ground.store)
    after, _ = look(ground, wanted)
    assert after >= readable, f"repair lost {len(readable - after)} snapshots that could be read"


def said_by_verify(ground: Ground) -> bool:
    return verify(Store(ground.store)).ok


def look(ground: Ground, wanted: dict[str, Image]) -> tuple[set[str], int]:
    """Which snapshots read as they were, and how many are refused; a wrong byte is the end."""
    readable: set[str] = set()
    refused = 0
    store = Store(ground.store)
    held = {oid.hex() for oid in History(store, ground.root.id).snapshot_ids.values()}
    for commit, image in wanted.items():
        try:
            found = read_image(store, Oid(bytes.fromhex(commit)))
        except TurnmarkError:
            refused += commit in held
            continue
        assert digest(found) == digest(image), f"{commit} was read, and is not what it was"
        readable.add(commit)
    return readable & held, refused


def read_image(store: Store, commit: Oid) -> Image:
    """By our own reader: it is what has to notice."""
    snapshot = read_snapshot(store, commit)
    about = decode_about(store.blob(snapshot.about))
    out: Image = {}
    for path, entry in files_of(store.tree, snapshot.files):
        data = store.blob(entry.oid)
        mode = about.mode(path, entry.mode)
        out[path] = ("link", data) if entry.mode == LINK else ("file", mode, data)
        parts = path.split(b"/")
        for depth in range(1, len(parts)):
            above = b"/".join(parts[:depth])
            out[above] = ("dir", about.modes.get(above, about.usual.dir))  # type: ignore[call-overload]
    for empty in about.empty:
        out[empty] = ("dir", about.mode(empty, 0o40000))
    out.pop(b"", None)
    return out


PART = Part(
    "damage",
    "its store damaged at any byte, cut, removed in part, copied while in use",
    damage,
    {"ci": 60, "night": 3_000, "release": 5_000},
    needs=("git",),
    in_memory=True,
)
