"""A file system of our own on a loop device, and a power cut of it in one call.

Only in a mount namespace of one's own: the mounts, and with them the loop devices, go with it.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import platform
import struct
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

FileSystem = Literal["ext4", "xfs"]
MEGABYTES: dict[FileSystem, int] = {"ext4": 80, "xfs": 320}
MAKE: dict[FileSystem, tuple[str, ...]] = {
    "ext4": ("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1", "-N", "8192"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
}
SHUTDOWN = (2 << 30) | (4 << 16) | (ord("X") << 8) | 125
"""_IOR('X', 125, u32), of ext4 and of xfs."""
FLUSH_ALL, FLUSH_LOG, FLUSH_NOTHING = 0, 1, 2
PATIENCE = 10.0
SYNCFS, FSYNC = {"x86_64": 306, "aarch64": 267}, {"x86_64": 74, "aarch64": 82}


def call(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, env=environment(), check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


def mend(image: Path) -> str:
    """As a boot does before it mounts what was not unmounted and has no journal; what was said."""
    done = subprocess.run(
        ["e2fsck", "-fy", str(image)],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    assert done.returncode in (0, 1), f"e2fsck: {done.returncode}: {done.stdout} {done.stderr}"
    return done.stdout


def environment() -> dict[str, str]:
    """Where the programs are that make and mend file systems."""
    return {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}


def ram(where: Path, megabytes: int) -> Path:
    """A place in memory for images: the machine's disk is not what is tested."""
    where.mkdir(parents=True, exist_ok=True)
    call("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "turnmark-campaign", str(where))
    return where


def sync_for_certain(path: Path) -> None:
    """Without a journal ext4 writes something behind the flush of syncfs; so it is told twice."""
    _bare_calls(path, SYNCFS, FSYNC)


def write_out(path: Path) -> None:
    """As a system does now and then with all that is to be written."""
    _bare_calls(path, SYNCFS)


def _bare_calls(path: Path, *numbers: Mapping[str, int]) -> None:
    """No preloaded library, and no patch of Python, stands before them."""
    fd = os.open(path, os.O_RDONLY)
    try:
        for number in numbers:
            done = ctypes.CDLL(None, use_errno=True).syscall(number[platform.machine()], fd)
            assert done == 0, ctypes.get_errno()
    finally:
        os.close(fd)


@dataclass
class Volume:
    """Owns an image, and the place where it is mounted."""

    kind: FileSystem
    image: Path
    where: Path
    options: str = "loop"

    def make(self) -> Volume:
        with self.image.open("wb") as file:
            file.truncate(MEGABYTES[self.kind] << 20)
        call(*MAKE[self.kind], str(self.image))
        self.where.mkdir(exist_ok=True)
        self.mount()
        return self

    def mount(self) -> None:
        call("mount", "-t", self.kind, "-o", self.options, str(self.image), str(self.where))

    def unmount(self) -> None:
        """A program that the dead had started may still be on its way out."""
        deadline = time.monotonic() + PATIENCE
        while subprocess.run(["umount", "-q", str(self.where)], check=False).returncode:
            assert time.monotonic() < deadline, f"{self.where} stays busy"
            time.sleep(0.02)

    def cut(self, flush: int) -> None:
        """From here on nothing reaches the disk, and no call that would need it to succeeds."""
        fd = os.open(self.where, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, SHUTDOWN, struct.pack("I", flush))
        finally:
            os.close(fd)
