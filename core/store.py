"""The one git-format store that all workspaces share: objects in, objects out, references, locks.

Knows packs and references; not what a workspace's tree looks like or which points a user sees.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain

from . import reserve
from .ahead import Logs, claims
from .disk import HALF_WRITTEN, REAL, Disk
from .errors import TRY_AGAIN, Busy, Damaged, NoStore, TurnmarkError, explain
from .model import EMPTY_TREE, Oid
from .objects import Kind, hash_object
from .order import Order
from .packing import TEMPORARY, pack_spares, wake_workers
from .packs import HINT, Pack
from .proofs import DIRECTORY
from .refs import RefStore, ref_name
from .whereabouts import Whereabouts
from .writer import Writer

LAYOUT = 1
FILES_OF_A_TURN = 4
"""A pack and its index; and those of a large file."""
REFS_OF_A_TURN = 2
MANY_PACKS = 16
WAIT = 5.0
LOOKS = 10
OUT_OF_USE = 1024
GATE = 0.05
"""Longer than a writer usually takes; so long new ones may be kept waiting by the gate."""
BREATH = 0.02
"""Between two tries, so that those who were kept waiting come first."""
BRIEFLY = 1.0
STALE_SECONDS = 86_400.0
PUT_IN_PLACE = (
    "put in place what was answered last",
    "The store has it still, in turnmark/ahead; try again when the cause is gone.",
)
LAID_OUT = (
    *("turnmark", "turnmark/tmp", "turnmark/locks", "turnmark/workspaces", "turnmark/cache"),
    *("turnmark/journal", "objects", "objects/pack", "objects/info"),
    *("refs", "refs/heads", "refs/turnmark"),
)
"""The directories of a store; by the first one it is known to be ours."""
ROOM, LONG = 128, "-" * 230
"""So many names of so many letters are as long as those of 250 packs, with their indexes."""

FSCK_IGNORED = (
    *("gitmodulesUrl", "gitmodulesName", "gitmodulesSymlink", "gitmodulesParse", "gitmodulesBlob"),
    *("gitmodulesLarge", "gitmodulesPath", "gitmodulesUpdate", "gitmodulesMissing"),
    *("gitattributesLineLength", "gitattributesLarge", "gitattributesBlob"),
    *("gitattributesMissing", "gitattributesSymlink", "gitignoreSymlink", "mailmapSymlink"),
    "hasDotgit",
)
"""fsck judges the content of user's trees by these; a store must hold what the user has."""

CONFIG = (
    "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n"
    "\tlogAllRefUpdates = false\n"
    "[gc]\n\tauto = 0\n\tpruneExpire = 2.weeks.ago\n[maintenance]\n\tauto = false\n"
    "[log]\n\tshowRoot = false\n[fsck]\n"
) + "".join(f"\t{name} = ignore\n" for name in FSCK_IGNORED)


class Store:
    """Owns the open packs and the references of one store directory."""

    def __init__(self, base: str, disk: Disk = REAL) -> None:
        self.base = base
        self.disk = disk
        places = ("", "/objects/pack", "/refs/turnmark", "/turnmark/tmp")
        self.order = Order(disk, *(base + place for place in places))
        self.refs = RefStore(disk, base, self.order)
        self.packs_in = f"{base}/objects/pack"
        self.logs = Logs(disk, base, self.refs)
        self.spares = pack_spares(disk, self.packs_in)
        self.readable_only = ""
        self.unfinished: dict[str, str] = {}
        """Workspaces of which what was answered before a crash could not be put in place."""
        self.broken: dict[str, str] = {}
        self._packs: dict[str, Pack] = {}
        self._open: deque[Pack] = deque()
        self._cruft: set[str] = set()
        self._likely: Pack | None = None
        self._where = Whereabouts()
        self._to_tell = True
        """Whether packs came or went that `_where` has not been told of."""
        self.followed = -1
        """The generation when a writer asked last."""
        self._out_of_use: list[Pack] = []
        """Those that are gone: to free them may take as long as a snapshot."""
        self._no_loose: tuple[int, int] = (0, 0)
        """Of the directory of loose objects, when it held none."""
        self._packs_stamp: tuple[int, int] = (0, 0)
        """Of the directory when it was last read; and when this process had added packs to it."""
        self._added_stamp: tuple[int, int] = (0, 0)

    # Opening

    @classmethod
    def open(cls, base: str, disk: Disk = REAL) -> Store:
        """An existing store, which must be ours and of a layout that we can read."""
        base = os.path.realpath(base)
        store = cls(base, disk)
        store._check_owner()
        store._check_layout()
        store._finish_what_died()
        return store

    @classmethod
    def create(cls, base: str, disk: Disk = REAL) -> Store:
        """An existing store, or a new one; one whose creation was interrupted is completed."""
        base = os.path.realpath(base)
        store = cls(base, disk)
        with store._explained("create the store"):
            if not disk.exists(base):
                disk.make_dirs(base)
            store._check_owner()
            store._check_not_foreign()
            store._build()
        store._check_layout()
        store._finish_what_died()
        return store

    def _check_owner(self) -> None:
        try:
            info = self.disk.lstat(self.base)
        except FileNotFoundError as error:
            raise NoStore(
                f"There is no store at {self.base}.", "`turnmark snapshot` makes one."
            ) from error
        except OSError as error:
            raise TurnmarkError(
                f"The store {self.base} cannot be read: {error.strerror}.",
                "Check the permissions of the directories above it.",
            ) from error
        if not stat.S_ISDIR(info.st_mode):
            raise TurnmarkError(
                f"The store {self.base} is not a directory.", "Name another place with --home."
            )
        if info.st_uid != os.geteuid():
            raise TurnmarkError(
                f"The store {self.base} belongs to user {info.st_uid}, not to you.",
                "Use a store of your own (--home, or TURNMARK_HOME).",
            )
        if info.st_mode & 0o022:
            raise TurnmarkError(
                f"Others may write into the store {self.base}.", f"Run: chmod go-rwx {self.base}"
            )

    def _check_not_foreign(self) -> None:
        with self.disk.scandir(self.base) as found:
            names = {entry.name for entry in found}
        if names and "turnmark" not in names:
            raise TurnmarkError(
                f"{self.base} holds files that are not turnmark's.",
                "Name an empty or new directory with --home.",
            )

    def _build(self) -> None:
        """Makes what is missing; the layout file comes last and says that the rest is there."""
        for name in LAID_OUT:
            self.disk.make_dirs(f"{self.base}/{name}")
        self._write_once("HEAD", b"ref: refs/heads/main\n")
        self._write_once("config", CONFIG.encode())
        layout = {"layout": LAYOUT, "min_reader": LAYOUT, "min_writer": LAYOUT}
        if not self.disk.exists(f"{self.base}/turnmark/layout.json"):
            self._sync_new()
        self._write_once("turnmark/layout.json", json.dumps(layout).encode() + b"\n")
        reserve.keep(self.disk, self.base)

    def _sync_new(self) -> None:
        """Where one sync will not do for all of it: the directories, and those that lead to it,
        which may be new as well."""
        if self.order.is_kept:
            return
        if self.disk.has_no_journal(self.packs_in):
            self._make_room()
        self.disk.sync_dirs([f"{self.base}/{name}" for name in LAID_OUT])
        place, below = self.base, ""
        while place != below:
            with suppress(PermissionError):  # then it is not ours, and was there
                self.disk.sync_dir(place)
            place, below = os.path.dirname(place), place

    def _make_room(self) -> None:
        """Without a journal ext4 may lose names that were synced long ago when it divides a block
        of a directory in two. Those of packs outgrow one block; but blocks once empty stay."""
        names = [f"{self.packs_in}/{TEMPORARY}{n:03}{LONG}" for n in range(ROOM)]
        try:
            self.disk.create(names[0], b"", sync=False)
            for name in names[1:]:
                self.disk.link(names[0], name)
        except OSError:  # what cannot be had here is done without
            return
        finally:
            for name in names:
                self.disk.discard(name)

    def _write_once(self, name: str, data: bytes) -> None:
        path = f"{self.base}/{name}"
        if not self.disk.exists(path):
            self.disk.replace(path, data)

    def _check_layout(self) -> None:
        path = f"{self.base}/turnmark/layout.json"
        try:
            layout = json.loads(self.disk.read_file(path))
            made_by, reader, writer = (
                int(layout[key]) for key in ("layout", "min_reader", "min_writer")
            )
        except FileNotFoundError as error:
            raise NoStore(
                f"{self.base} is not a turnmark store, or its creation was interrupted.",
                "`turnmark snapshot` makes or completes it.",
            ) from error
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise Damaged(
                f"The layout file {path} is damaged.", "Run `turnmark store repair`."
            ) from error
        newer = f"The store {self.base} was made by a newer turnmark (layout {made_by})."
        if reader > LAYOUT:
            raise TurnmarkError(newer, "Update turnmark; this version leaves it alone.")
        if writer > LAYOUT:
            self.readable_only = newer

    # Locks: flock only, given back by the kernel when their holder dies

    @contextmanager
    def workspace_lock(self, workspace: str, wait: float = WAIT) -> Iterator[None]:
        """One writer per workspace."""
        with self._lock(workspace, exclusive=True, wait=wait, what="This workspace"):
            if not self.readable_only:
                self.work_off(workspace, wait)
            yield

    @contextmanager
    def writing(self, wait: float = WAIT, *, in_haste: bool = False) -> Iterator[Writer]:
        """Held from the first look for known objects until the reference is made.

        In haste, where somebody waits for the point of a turn, room matters less than time.
        """
        self._refuse_readable_only()
        with self._shared(wait):
            writer = Writer(self, in_haste=in_haste)
            try:
                yield writer
            finally:
                writer.drop()

    @contextmanager
    def _shared(self, wait: float) -> Iterator[None]:
        """For whoever adds to the store; held past the gate only."""
        gate = self._locked("gate", exclusive=False, wait=wait, what="The store")
        try:
            store = self._locked("store", exclusive=False, wait=wait, what="The store")
        finally:
            self.disk.close(gate)
        try:
            yield
        finally:
            self.disk.close(store)

    @contextmanager
    def exclusive(
        self, wait: float = WAIT, aside: Callable[[str], None] | None = None
    ) -> Iterator[None]:
        """For the moments in which packs or references go away; the gate keeps new writers out.
        First all logs are worked off; one that cannot be is an error, or put `aside`.

        Only so long as a writer usually takes: behind one that stores a large tree for the first
        time, the others must not have to wait for whoever waits for that one.
        """
        self._refuse_readable_only()
        until = time.monotonic() + wait
        while (both := self._gate_and_store(wait)) is None:
            if time.monotonic() >= until:
                raise self._busy("store", "The store", wait)
            time.sleep(BREATH)
        with both:
            with self._explained(*PUT_IN_PLACE):
                self.logs.work_off_all(self._answers_to, aside)
            yield

    def _gate_and_store(self, wait: float) -> ExitStack | None:
        with ExitStack() as both:
            both.enter_context(self._lock("gate", exclusive=True, wait=wait, what="The store"))
            try:
                store = self._lock("store", exclusive=True, wait=GATE, what="The store")
                both.enter_context(store)
            except Busy:
                return None
            return both.pop_all()

    @contextmanager
    def maintaining(self, wait: float = WAIT) -> Iterator[None]:
        """One at a time consolidates, sweeps, repairs or backs up; writers do not wait for it."""
        self._refuse_readable_only()
        what = "The upkeep of the store"
        with ExitStack() as held:
            waiting = held.enter_context(ExitStack())
            if wait:
                with suppress(TurnmarkError):  # a favour; on a full disk there may be no such file
                    waiting.enter_context(
                        self._lock("wanted", exclusive=False, wait=wait, what=what)
                    )
            held.enter_context(self._lock("maintenance", exclusive=True, wait=wait, what=what))
            waiting.close()
            yield

    def is_wanted(self) -> bool:
        """For whoever is `maintaining` and can wait: whether somebody else is waiting for it."""
        try:
            with self._lock("wanted", exclusive=True, wait=0.0, what="The store"):
                return False
        except TurnmarkError as error:
            return isinstance(error, Busy)

    @contextmanager
    def _lock(self, name: str, *, exclusive: bool, wait: float, what: str) -> Iterator[None]:
        fd = self._locked(name, exclusive=exclusive, wait=wait, what=what)
        try:
            yield
        finally:
            self.disk.close(fd)

    def _locked(self, name: str, *, exclusive: bool, wait: float, what: str) -> int:
        """A descriptor: the lock is held until it is closed."""
        try:
            fd = self.disk.open(self._lock_path(name), os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise explain(error, "lock the store", self.base) from error
        try:
            if not self.disk.lock(fd, exclusive=exclusive, wait=wait):
                raise self._busy(name, what, wait)
        except BaseException:
            self.disk.close(fd)
            raise
        return fd

    def _lock_path(self, name: str) -> str:
        return f"{self.base}/turnmark/locks/{name}"

    def _busy(self, name: str, what: str, wait: float) -> Busy:
        return Busy(
            f"{what} is in use by another turnmark process.",
            f"Waited {wait:g} s; try again, or see `fuser {self._lock_path(name)}`.",
        )

    def _refuse_readable_only(self) -> None:
        if self.readable_only:
            raise TurnmarkError(self.readable_only, "Update turnmark; this one may only read it.")

    @contextmanager
    def _explained(self, what: str, hint: str = TRY_AGAIN) -> Iterator[None]:
        """Turns what the system says into what the user can do."""
        try:
            yield
        except OSError as error:
            raise explain(error, what, self.base, hint) from error

    # Logs: what was answered and is not durable yet where it belongs

    def _finish_what_died(self) -> None:
        """Whoever opens the store is to find all that was answered, also after a power cut.

        Of a workspace for which that cannot be had, `unfinished` says why; others are not to wait.
        """
        until = time.monotonic() + BRIEFLY
        for workspace in [] if self.readable_only else self.logs.names():
            try:
                while self.logs.is_left(workspace) and time.monotonic() < until:
                    # whoever takes it works off the log; and may keep it for long
                    with suppress(Busy), self.workspace_lock(workspace, wait=BREATH):
                        break
            except (OSError, TurnmarkError) as error:
                self.unfinished[workspace] = str(error)

    def work_off(self, workspace: str, wait: float = WAIT) -> None:
        """Makes what the log holds durable where it belongs; for the holder of the lock."""
        if self.logs.is_there(workspace):
            with self._shared(wait), self._explained(*PUT_IN_PLACE):
                self.logs.work_off(workspace, self._answers_to)

    def _answers_to(self, name: str, oid: Oid) -> bool:
        """Whether an object is there, and says that it is the point of that name."""
        try:
            return claims(self.read(oid)[1], name)
        except Damaged:
            return False

    # Objects

    def packs(self) -> list[Pack]:
        """The packs as they are now; the directory is read again only when it has changed."""
        stamp = self._stamp()
        if stamp != self._packs_stamp:
            self._packs_stamp = stamp
            self._load_packs(self.packs_in)
        return list(self._packs.values())

    def follow(self) -> None:
        """For a writer, before it asks what is held: no time stamp is believed where something was
        taken out since, as its clock may be a coarse one. To know less than there is costs a
        writer an object stored twice, so what this process added itself is no reason to look."""
        generation = self.generation()
        if generation != self.followed:
            self.followed = generation
            self.reload()
        if self._stamp() != self._added_stamp:
            self.packs()

    def reload(self) -> None:
        """Nothing is believed any more of what was read: it is asked for again."""
        self._packs_stamp = self._added_stamp = (0, 0)
        for pack in self._packs.values():
            pack.forget()
            pack.lasts = False  # another one may have its name by now

    def add_packs(self, packs: Iterable[Pack]) -> None:
        """Those that were written here; whatever else came meanwhile is found by whoever reads."""
        for pack in packs:
            self._packs[os.path.basename(pack.path)] = pack
            self._to_tell = True
        self._added_stamp = self._stamp()

    def _stamp(self) -> tuple[int, int]:
        info = self.disk.lstat(self.packs_in)
        return info.st_mtime_ns, info.st_ino

    def _load_packs(self, path: str) -> None:
        with self.disk.scandir(path) as found:
            names = {entry.name for entry in found}
        whole = {n[:-4] for n in names if n.endswith(".idx") and n[:-4] + ".pack" in names}
        self._likely = None
        for name in self._packs.keys() - whole:
            self._out_of_use.append(self._packs.pop(name))
        self._cruft = {n[:-7] for n in names if n.endswith(".mtimes")}
        self.broken = {}
        for name in whole - self._packs.keys():
            self._open_pack(name, f"{path}/{name}")
        self._to_tell = True
        if len(self._out_of_use) > OUT_OF_USE:
            self._free()

    def _whereabouts(self) -> Whereabouts:
        if self._to_tell:
            lasting = {n: pack for n, pack in self._packs.items() if n not in self._cruft}
            self._where.tell(lasting)
            self._to_tell = False
        return self._where

    def _open_pack(self, name: str, path: str) -> None:
        try:
            self._packs[name] = self.open_pack(path)
        except FileNotFoundError:
            self.reload()
        except (Damaged, OSError, ValueError) as error:
            self.broken[name] = str(error)

    def open_pack(self, path: str, index: bytes = b"") -> Pack:
        """Of all of them only so many keep a descriptor."""
        return Pack(self.disk, path, self._open, index)

    def lasting_packs(self) -> list[Pack]:
        """Those whose objects a writer may count on; git's cruft packs are about to expire."""
        self.packs()
        return [pack for name, pack in self._packs.items() if name not in self._cruft]

    def has(self, oid: Oid) -> bool:
        self.packs()
        return self.holds(oid)

    def holds(self, oid: Oid) -> bool:
        """For whoever writes: among what is known by `follow`."""
        return self.packed(oid) or self.has_loose(oid)

    def packed(self, oid: Oid) -> bool:
        return self.holder(oid) is not None

    def holder(self, oid: Oid) -> Pack | None:
        """A pack known so far that holds it; none of them goes away while somebody writes."""
        return self._whereabouts().find(oid)

    def warm_up(self) -> None:
        """What the next change would have to wait for, done while nobody waits."""
        self.packs()
        self._whereabouts().warm_up()
        self._free()

    def prepare(self) -> None:
        """Makes the files that the next snapshot and its mark will be written to, and what else is
        not there yet when it is first needed."""
        wake_workers()
        before = self._stamp()
        self.spares.fill(FILES_OF_A_TURN)
        self.refs.spares.fill(REFS_OF_A_TURN)
        if before == self._added_stamp:  # our own files are no news
            self._added_stamp = self._stamp()

    def vouch(self, workspace: str) -> None:
        """Makes durable the names of what is there now, packs and the references of a workspace:
        who wrote it may have been killed before they were. The contents came first, or are in a
        log."""
        self.follow()
        packs = self.packs()
        self.sync_unsynced()
        named = [os.path.dirname(ref_name(workspace, kind, 0)) for kind in ("s", "m")]
        places = [self.packs_in, *(f"{self.base}/{place}" for place in named)]
        self.disk.sync_dirs([place for place in places if self.disk.exists(place)])
        for pack in packs:
            pack.lasts = True

    @property
    def holds_doubtful(self) -> bool:
        """Whether there are packs of which nobody has vouched here yet."""
        return not all(pack.lasts for pack in self._packs.values())

    def note_unsynced(self) -> None:
        """References were written that a power cut may take."""
        if not (self.order.is_kept or self.disk.exists(self._unsynced)):
            self.disk.replace(self._unsynced, b"", sync=False)

    def sync_unsynced(self) -> None:
        """A durable answer also vouches for what an earlier change wrote without syncing; where the
        order is kept, its own sync does."""
        if self.disk.exists(self._unsynced):
            self.sync_everything()
            self.disk.discard(self._unsynced)

    def sync_everything(self) -> None:
        with self.disk.opened(self.base, DIRECTORY) as fd:
            self.disk.sync_fs(fd)

    @property
    def _unsynced(self) -> str:
        return f"{self.base}/turnmark/unsynced"

    @property
    def is_prepared(self) -> bool:
        return self.spares.count + self.refs.spares.count > 0

    def put_away(self) -> None:
        """What was prepared and nobody has used; what a killed process leaves, a sweep finds."""
        self.spares.close()
        self.refs.spares.close()

    @property
    def holds_unused(self) -> bool:
        """Whether packs that are gone are held still, and with them their room on the disk."""
        return bool(self._out_of_use)

    def _free(self) -> None:
        while self._out_of_use:
            self._out_of_use.pop().close()

    def read(self, oid: Oid) -> tuple[Kind, bytes]:
        """An object, its hash verified; another copy is tried where one is damaged.

        The pack that was read last is asked first: what belongs together was written together, and
        to see whether packs came or went costs as much again as the reading.
        """
        try:
            found = self._likely.read(oid) if self._likely is not None else None
        except Damaged:  # it may be gone by now; all are asked, and this one too if it is not
            found = None
        return found or self._read_anywhere(oid)

    def _read_anywhere(self, oid: Oid) -> tuple[Kind, bytes]:
        for _ in range(LOOKS):
            try:
                found = self._read_packed(oid) or self._read_loose(oid)
            except FileNotFoundError:  # a pack was consolidated away before it was opened
                found = None
            if found is not None:
                return found
            self.reload()  # a pack may have come in the same tick of the directory's clock
        if oid == EMPTY_TREE:
            return "tree", b""
        raise Damaged(f"The store lacks the object {oid.hex()}.", HINT)

    def _read_packed(self, oid: Oid) -> tuple[Kind, bytes] | None:
        damage: Damaged | None = None
        for pack in self._packs_for(oid):
            try:
                found = pack.read(oid)
            except Damaged as error:
                if isinstance(error.__cause__, FileNotFoundError):
                    raise error.__cause__ from error
                damage = error
                continue
            if found is not None:
                self._likely = pack
                return found
        if damage is not None and (loose := self._read_loose(oid)) is not None:
            return loose
        if damage is not None:
            raise damage
        return None

    def _packs_for(self, oid: Oid) -> Iterable[Pack]:
        """All of them; where they are many, first the one that is known to hold the object."""
        packs = self.packs()
        if len(packs) < MANY_PACKS:
            return packs
        known = self._whereabouts().known(oid)
        return packs if known is None else chain((known,), packs)

    def size(self, oid: Oid) -> int:
        """The length of an object, which is read for it only where no pack can say."""
        likely = self._likely
        for pack in (likely,) if likely is not None and likely.holds(oid) else self._packs_for(oid):
            try:
                found = pack.size_of(oid)
            except Damaged:
                continue  # another copy may be whole, and reading says it best if none is
            if found is not None:
                return found
        return len(self.read(oid)[1])

    def blob(self, oid: Oid) -> bytes:
        return self._of_kind("blob", oid)

    def tree(self, oid: Oid) -> bytes:
        return b"" if oid == EMPTY_TREE else self._of_kind("tree", oid)

    def _of_kind(self, kind: Kind, oid: Oid) -> bytes:
        found, data = self.read(oid)
        if found != kind:
            raise Damaged(f"{oid.hex()} is a {found} where a {kind} was expected.", HINT)
        return data

    def _loose_path(self, oid: Oid) -> str:
        name = oid.hex()
        return f"{self.base}/objects/{name[:2]}/{name[2:]}"

    def has_loose(self, oid: Oid) -> bool:
        return self.disk.exists(self._loose_path(oid))

    def may_have_loose(self) -> bool:
        """We write no loose objects; a user's git may have, in directories that it made for them.
        One that came unseen, within a tick of the clock, costs an object stored twice."""
        top = f"{self.base}/objects"
        info = self.disk.lstat(top)
        if self._no_loose != (info.st_mtime_ns, info.st_ino):
            self._no_loose = (0, 0)
            if any(len(name) == 2 for name in self.disk.names(top)):
                return True
            self._no_loose = info.st_mtime_ns, info.st_ino
        return False

    def _read_loose(self, oid: Oid) -> tuple[Kind, bytes] | None:
        """We write none, but git does when a user runs it on the store."""
        try:
            raw = zlib.decompress(self.disk.read_file(self._loose_path(oid)))
        except FileNotFoundError:
            return None
        except zlib.error as error:
            raise Damaged(f"The loose object {oid.hex()} is damaged: {error}.", HINT) from error
        head, _, data = raw.partition(b"\0")
        kind: Kind
        for kind in ("blob", "tree", "commit", "tag"):
            if head.startswith(kind.encode()) and hash_object(kind, data) == oid:
                return kind, data
        raise Damaged(f"The loose object {oid.hex()} is damaged.", HINT)

    # Left-overs and the generation

    def generation(self) -> int:
        """Counts the times that something was taken out; caches of before are stale."""
        try:
            return int(self.disk.read_file(f"{self.base}/turnmark/generation"))
        except (FileNotFoundError, ValueError):
            return 0

    def next_generation(self) -> None:
        number = self.generation() + 1
        self.disk.replace(f"{self.base}/turnmark/generation", b"%d\n" % number)

    def leftovers(self) -> Iterator[str]:
        """Unfinished files, of the dead and of the living."""
        wanted = {"objects/pack": f"^{TEMPORARY}", "turnmark/tmp": ""}
        for directory in (*wanted, "turnmark", "."):
            is_left = re.compile(wanted.get(directory, HALF_WRITTEN.pattern))
            names = self.disk.names(f"{self.base}/{directory}")
            yield from (f"{self.base}/{directory}/{n}" for n in names if is_left.search(n))

    def sweep_leftovers(self) -> None:
        """Removes unfinished files of dead writers; only under the exclusive lock, which those of
        some small ones need not hold: they are left alone for a day."""
        for path in self.leftovers():
            with suppress(OSError, RecursionError):  # it has gone, or is met again
                if not HALF_WRITTEN.search(path) or self._is_old(path):
                    self.disk.remove_tree(path)

    def _is_old(self, path: str) -> bool:
        return self.disk.lstat(path).st_mtime < time.time() - STALE_SECONDS

    def holds_rubbish(self) -> bool:
        """Whether something takes room that no living writer holds, as far as a look can tell:
        what is made ahead is empty."""
        for path in self.leftovers():
            with suppress(OSError):
                info = self.disk.lstat(path)
                if stat.S_ISDIR(info.st_mode) or info.st_size:
                    return True
        return False


def registry_path(store: Store, workspace: str) -> str:
    """Where it is noted which directory a workspace is."""
    return f"{store.base}/turnmark/workspaces/{workspace}.json"


def root_shown(store: Store, workspace: str) -> str:
    """Where a workspace lies, as its register says; its id where that is lost."""
    try:
        return str(json.loads(store.disk.read_file(registry_path(store, workspace)))["root"])
    except (OSError, ValueError, KeyError, TypeError):
        return workspace
