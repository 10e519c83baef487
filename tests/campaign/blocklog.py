"""A disk that writes down every write and every flush: one file in a FUSE file system of our own.

The kernel here has no device mapper, but it puts a loop device upon any file. This speaks the
kernel's protocol as far as a loop device needs it. Beside each entry stands how much the oracle had
been told when it came, so that for any crash it is known what had been promised by then.
"""

from __future__ import annotations

import ctypes
import errno
import os
import pickle
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

NAME = "disk"
ROOT_NODE, DISK_NODE = 1, 2
LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, WRITE = 1, 2, 3, 4, 14, 15, 16
RELEASE, FSYNC, FLUSH, INIT, OPENDIR, RELEASEDIR, DESTROY = 18, 20, 25, 26, 27, 29, 38
INTERRUPT, BATCH_FORGET = 36, 42
IN_HEADER = struct.Struct("<IIQQIIII")
OUT_HEADER = struct.Struct("<IiQ")
ATTRIBUTES = struct.Struct("<QQQQQQIIIIIIIIII")
MAX_WRITE = 1 << 17
BUFFER = MAX_WRITE + 4096
LONG = 3600
BIG_WRITES, MAX_PAGES = 1 << 5, 1 << 22


class Entry(NamedTuple):
    """One write, or (without data) one flush; told: the size of the oracle's file as it came."""

    told: int
    offset: int
    data: bytes

    @property
    def is_flush(self) -> bool:
        return not self.data


@dataclass
class Server:
    """Owns the bytes of the disk while they are served, and the log of what was done to them."""

    disk: bytearray
    oracle: Path
    log: list[Entry] = field(default_factory=list)

    def serve(self, where: Path, result: Path) -> None:
        """Mounts, answers until unmounted, and leaves the log."""
        fd = os.open("/dev/fuse", os.O_RDWR)
        options = f"fd={fd},rootmode=40000,user_id=0,group_id=0"
        libc = ctypes.CDLL(None, use_errno=True)
        done = libc.mount(b"blocklog", os.fsencode(where), b"fuse.blocklog", 0, options.encode())
        assert done == 0, os.strerror(ctypes.get_errno())
        while request := self._next(fd):
            answer = self._answer(request)
            if answer is not None:
                os.write(fd, answer)
        result.write_bytes(pickle.dumps(self.log))

    def _next(self, fd: int) -> bytes:
        while True:
            try:
                return os.read(fd, BUFFER)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return b""
                if error.errno not in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                    raise

    def _answer(self, request: bytes) -> bytes | None:
        _, code, unique, node, *_ = IN_HEADER.unpack_from(request)
        if code in (FORGET, BATCH_FORGET, INTERRUPT):
            return None
        action = self._actions().get(code)
        try:
            if action is None:
                raise OSError(errno.ENOSYS, "")
            out = action(node, request[IN_HEADER.size :])
        except OSError as error:
            return OUT_HEADER.pack(OUT_HEADER.size, -(error.errno or errno.EIO), unique)
        return OUT_HEADER.pack(OUT_HEADER.size + len(out), 0, unique) + out

    def _actions(self) -> dict[int, Callable[[int, bytes], bytes]]:
        opened = struct.pack("<QII", 0, 0, 0)
        return {
            INIT: self._init,
            LOOKUP: self._lookup,
            GETATTR: lambda node, _: struct.pack("<QII", LONG, 0, 0) + self._attributes(node),
            SETATTR: lambda node, _: struct.pack("<QII", LONG, 0, 0) + self._attributes(node),
            OPEN: lambda *_: opened,
            OPENDIR: lambda *_: opened,
            READ: self._read,
            WRITE: self._write,
            FSYNC: self._flush,
            FLUSH: lambda *_: b"",
            RELEASE: lambda *_: b"",
            RELEASEDIR: lambda *_: b"",
            DESTROY: lambda *_: b"",
        }

    def _init(self, node: int, body: bytes) -> bytes:
        major, minor, ahead, _ = struct.unpack_from("<IIII", body)
        flags = BIG_WRITES | MAX_PAGES
        numbers = (major, min(minor, 31), ahead, flags, 16, 12, MAX_WRITE, 1, MAX_WRITE >> 12, 0, 0)
        return struct.pack("<IIIIHHIIHHI", *numbers) + bytes(28)

    def _lookup(self, node: int, body: bytes) -> bytes:
        if body.rstrip(b"\0") != NAME.encode():
            raise OSError(errno.ENOENT, "")
        head = struct.pack("<QQQQII", DISK_NODE, 0, LONG, LONG, 0, 0)
        return head + self._attributes(DISK_NODE)

    def _attributes(self, node: int) -> bytes:
        is_root = node == ROOT_NODE
        mode = stat.S_IFDIR | 0o755 if is_root else stat.S_IFREG | 0o600
        size = 0 if is_root else len(self.disk)
        return ATTRIBUTES.pack(
            *(node, size, size >> 9, 0, 0, 0, 0, 0, 0), *(mode, 1, 0, 0, 0, 4096, 0)
        )

    def _read(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        return bytes(self.disk[offset : offset + size])

    def _write(self, node: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        data = body[40 : 40 + size]
        self.disk[offset : offset + size] = data
        self.log.append(Entry(self._told(), offset, data))
        return struct.pack("<II", size, 0)

    def _flush(self, node: int, body: bytes) -> bytes:
        self.log.append(Entry(self._told(), 0, b""))
        return b""

    def _told(self) -> int:
        return self.oracle.stat().st_size if self.oracle.exists() else 0
