"""The store's references: created once, never moved, folded into packed-refs, deleted in batches.

Knows names and ids; nothing of what the ids stand for. Who may call what under which lock is the
store's business: creating needs the workspace's lock, deleting the exclusive one, and folding any
that keeps deletions out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from .disk import Disk
from .errors import Damaged, TurnmarkError
from .model import Oid
from .order import Order
from .spares import Spares

TOP = "refs/turnmark"
HEADER = b"# pack-refs with: sorted \n"
LINE_BYTES = 41
LOCK = ".lock"
"""What a killed git leaves beside a reference; no reference can be called so."""

Refs = dict[str, Oid]


def ref_name(workspace: str, kind: str, seq: int | str) -> str:
    return f"{TOP}/{workspace}/{kind}/{seq}"


def parse_packed(data: bytes) -> Refs:
    """The lines of packed-refs; peeled lines and comments carry nothing we need.

    A line that is neither is a ValueError: skipping it would make a reference vanish.
    """
    out: Refs = {}
    *lines, rest = data.split(b"\n")
    if rest:
        raise ValueError("cut short")
    for line in lines:
        if not line.startswith((b"#", b"^")):
            oid, _, name = line.partition(b" ")
            if not name:
                raise ValueError("no name")
            out[os.fsdecode(name)] = _parse_oid(oid)
    return out


def _parse_oid(text: bytes) -> Oid:
    oid = bytes.fromhex(text.decode("ascii"))
    if len(text) != 40 or len(oid) != 20:
        raise ValueError("no object's name")
    return Oid(oid)


class Ready(NamedTuple):
    """A reference that lacks only its name."""

    name: str
    oid: Oid
    part: str
    fd: int


class RefStore:
    """Owns the files below refs/ and packed-refs of one store."""

    def __init__(self, disk: Disk, base: str, order: Order | None = None) -> None:
        self.disk = disk
        self.base = base
        self.order = order or Order(disk, base)
        self.spares = Spares(disk, f"{base}/turnmark/tmp/ref-")
        self._packed: tuple[tuple[int, ...], Refs] = ((), {})

    def read(self, name: str) -> Oid | None:
        loose = self._read_loose(name)
        return loose or self.packed().get(name)

    def may_hold(self, name: str, oid: Oid) -> bool:
        """True also where nobody can tell."""
        try:
            return self.read(name) == oid
        except (Damaged, OSError):
            return True

    def below(self, top: str, damaged: list[str] | None = None) -> Refs:
        """All references below a name; loose ones first, so that one being folded is not missed.

        With a list, damaged ones are named in it and do not hide the others.
        """
        loose = self.loose(top, damaged)
        prefix = top + "/"
        packed = {name: oid for name, oid in self.packed().items() if name.startswith(prefix)}
        return packed | loose

    def names(self, top: str) -> set[str]:
        """The names alone, without opening a file for each."""
        loose = set(self._loose_names(top))
        prefix = top + "/"
        return loose | {name for name in self.packed() if name.startswith(prefix)}

    def loose(self, top: str, damaged: list[str] | None = None) -> Refs:
        out: Refs = {}
        for name in self._loose_names(top):
            try:
                oid = self._read_loose(name)
            except Damaged:
                if damaged is None:
                    raise
                damaged.append(name)
                continue
            if oid is not None:
                out[name] = oid
        return out

    def packed(self) -> Refs:
        path = f"{self.base}/packed-refs"
        try:
            stat = self.disk.lstat(path)
        except FileNotFoundError:
            return {}
        stamp = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if stamp != self._packed[0]:
            try:
                self._packed = stamp, parse_packed(self.disk.read_file(path))
            except ValueError as error:
                raise Damaged("packed-refs is damaged.", "Run `turnmark store repair`.") from error
        return self._packed[1]

    def create(self, name: str, oid: Oid, *, sync: bool) -> None:
        """Makes a reference that must not exist yet, in one step, and reads it back."""
        with self.ready(name, oid) as fresh:
            self.order.contents([fresh.fd])  # also without `sync`: its name may last, it may not
            self.place([fresh])
            self.settle([fresh], sync=sync)

    @contextmanager
    def ready(self, name: str, oid: Oid) -> Iterator[Ready]:
        """The content of a reference to come, in a file that nobody sees and nothing has synced."""
        part, fd, _ = self.spares.take()
        try:
            self.disk.write(fd, oid.hex().encode() + b"\n")
            yield Ready(name, oid, part, fd)
        finally:
            self.disk.close(fd)
            self.disk.discard(part)

    def place(self, fresh: Iterable[Ready]) -> None:
        """Gives each its name, which must be free."""
        for one in fresh:
            path = f"{self.base}/{one.name}"
            try:
                self._link(one.part, path)
            except FileNotFoundError:
                self._make_dirs(os.path.dirname(one.name))
                self._link(one.part, path)

    def settle(self, fresh: Sequence[Ready], *, sync: bool) -> None:
        """Makes their names durable, and reads them back.

        Together: each by itself would have to wait for the file system's journal once more. Whoever
        is killed has made the first ones; after a power cut there may be any, as none is vouched
        for yet, and each names only what is durable by then.
        """
        if sync:
            self.order.durable([os.path.dirname(f"{self.base}/{one.name}") for one in fresh])
        for one in fresh:
            if self.read(one.name) != one.oid:  # it may have been folded at once
                raise Damaged(f"The reference {one.name} was written but reads back otherwise.")

    def put_right(
        self, name: str, oid: Oid, may_stay: Callable[[Oid], bool], *, anew: bool = False
    ) -> None:
        """Writes a reference that is not there, and syncs one that is; its name is left. Another
        one of that name stays if it may."""
        path = f"{self.base}/{name}"
        try:
            there = self.read(name)
        except Damaged:
            there = None
        if there == oid and not anew:
            with suppress(FileNotFoundError), self.disk.opened(path) as fd:  # it may be folded
                self.disk.fsync(fd)
        elif there in (None, oid) or not may_stay(there):
            self._make_dirs(os.path.dirname(name))
            part = f"{self.spares.prefix}{os.getpid()}-{time.monotonic_ns()}"
            try:
                self.disk.create(part, oid.hex().encode() + b"\n", sync=True)
                self.disk.put_in_place(part, path)
            finally:
                self.disk.discard(part)

    def delete(self, names: Iterable[str]) -> None:
        """Removes references, from packed-refs first: a crash never brings old ones back."""
        gone = set(names)
        packed = self.packed()
        if gone & packed.keys():
            self._write_packed({name: oid for name, oid in packed.items() if name not in gone})
        self._unlink(gone)

    def fold(self, workspaces: str = TOP) -> int:
        """Moves loose references into packed-refs, but for damaged ones; returns how many."""
        loose = self.loose(workspaces, [])
        if loose:
            self._write_packed(self.packed() | loose)
            self._unlink(loose)
        return len(loose)

    def _link(self, part: str, path: str) -> None:
        try:
            self.disk.link(part, path)
        except FileExistsError as error:
            raise TurnmarkError(f"The reference {path} exists already.") from error
        except PermissionError:  # a file system without hard links
            if self.disk.exists(path):
                raise
            self.disk.rename(part, path)

    def _make_dirs(self, name: str) -> None:
        path = f"{self.base}/{name}"
        if not self.disk.exists(path):
            self._make_dirs(os.path.dirname(name))
            self.order.directory(path, f"{self.base}/turnmark/tmp")

    def _loose_names(self, top: str) -> list[str]:
        out: list[str] = []
        try:
            with self.disk.scandir(f"{self.base}/{top}") as found:
                for entry in found:
                    name = f"{top}/{entry.name}"
                    if entry.is_dir(follow_symlinks=False):
                        out += self._loose_names(name)
                    elif not name.endswith(LOCK):
                        out.append(name)
        except (FileNotFoundError, NotADirectoryError):
            return out
        return out

    def _read_loose(self, name: str) -> Oid | None:
        try:
            data = self.disk.read_file(f"{self.base}/{name}", limit=LINE_BYTES)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        try:
            return _parse_oid(data.removesuffix(b"\n"))
        except ValueError as error:
            raise Damaged(
                f"The reference {name} is damaged.", "Run `turnmark store repair`."
            ) from error

    def _write_packed(self, refs: Refs) -> None:
        lines = [b"%s %s\n" % (refs[n].hex().encode(), os.fsencode(n)) for n in sorted(refs)]
        self.disk.replace(f"{self.base}/packed-refs", HEADER + b"".join(lines))

    def _unlink(self, names: Iterable[str]) -> None:
        inside: dict[str, list[str]] = {}
        for name in names:
            directory, _, last = name.rpartition("/")
            inside.setdefault(f"{self.base}/{directory}", []).append(last)
        for directory, last_names in inside.items():
            if self.disk.exists(directory):
                self.disk.clear_away(directory, last_names)
