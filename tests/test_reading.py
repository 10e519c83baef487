"""A file is read as it was at one instant, or said to be torn."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import core.reading
from core.disk import REAL, Disk
from core.proofs import is_fresh
from core.reading import NotAFile, Read, read_stable

SIZE = 1 << 18
SECONDS = 0.4

Step = Callable[[Path, bytes], None]


def block(number: int) -> bytes:
    """A content whose every byte tells which version it is of."""
    return bytes([ord("a") + number % 26]) * SIZE


def in_place(path: Path, data: bytes) -> None:
    with open(path, "r+b", buffering=0) as file:
        for at in range(0, SIZE, SIZE // 8):
            file.write(data[at : at + SIZE // 8])


def truncate_and_write(path: Path, data: bytes) -> None:
    with open(path, "wb", buffering=0) as file:
        for at in range(0, SIZE, SIZE // 8):
            file.write(data[at : at + SIZE // 8])


def append_whole(path: Path, data: bytes) -> None:
    with open(path, "ab", buffering=0) as file:
        file.truncate(0)
        file.write(data[: SIZE // 2])
        file.write(data[SIZE // 2 :])


def rename_over(path: Path, data: bytes) -> None:
    path.with_suffix(".new").write_bytes(data)
    os.rename(path.with_suffix(".new"), path)


@contextmanager
def mapped(path: Path) -> Iterator[Step]:
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), SIZE) as view:

        def write(_: Path, data: bytes) -> None:
            view[: SIZE // 2] = data[: SIZE // 2]
            view[SIZE // 2 :] = data[SIZE // 2 :]

        yield write


@contextmanager
def written(path: Path, step: Step) -> Iterator[mmap.mmap]:
    """Version after version, as fast as it goes, from another process, which shows its progress."""
    progress = mmap.mmap(-1, 8)
    pid = os.fork()
    if pid == 0:
        number = 0
        while True:
            number += 1
            progress[:] = number.to_bytes(8, "little")
            step(path, block(number))
    try:
        yield progress
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def read(path: Path, disk: Disk = REAL) -> Read:
    with disk.opened(str(path.parent), os.O_RDONLY | os.O_DIRECTORY) as at:
        return read_stable(disk, at, os.fsencode(path.name))


def unmarked_mixtures(path: Path, progress: mmap.mmap) -> tuple[int, int]:
    """How many reads were said to be whole, and how many of those were not.

    What a writer shows that got no processor meanwhile was there all the time: that is no mixture.
    """
    whole = wrong = 0
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        before = progress[:]
        found = read(path)
        mixed = len(set(found.data)) > 1 or len(found.data) % (SIZE // 8) > 0
        whole += not found.torn
        wrong += not found.torn and mixed and progress[:] != before
    return whole, wrong


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "f"
    path.write_bytes(block(0))
    return path


@pytest.mark.parametrize("step", [in_place, truncate_and_write, append_whole, rename_over])
def test_versions_are_never_mixed_unmarked(file: Path, step: Step) -> None:
    with written(file, step) as progress:
        whole, wrong = unmarked_mixtures(file, progress)
    assert not wrong
    assert whole or step is not rename_over


def test_versions_written_through_a_map_are_never_mixed_unmarked(file: Path) -> None:
    with mapped(file) as step, written(file, step) as progress:
        assert unmarked_mixtures(file, progress)[1] == 0


def test_a_file_that_was_just_written_is_read_whole_at_once(file: Path) -> None:
    for number in range(50):
        file.write_bytes(block(number))
        found = read(file)
        assert (found.torn, found.data) == (False, block(number))


def test_a_file_that_is_open_for_writing_but_idle_is_read_whole(file: Path) -> None:
    fd = os.open(file, os.O_RDWR)
    for number in range(3):
        os.pwrite(fd, block(number), 0)
        found = read(file)
        assert (found.torn, found.data) == (False, block(number))
    os.close(fd)


def test_an_empty_file_is_whole(file: Path) -> None:
    file.write_bytes(b"")
    assert read(file)[::2] == (b"", False)


def test_a_file_that_grows_whenever_it_is_read_is_torn(file: Path) -> None:
    with open(file, "ab", buffering=0) as writer:

        class Growing(Disk):
            def read(self, fd: int, size: int) -> bytes:
                writer.write(b"x")
                return super().read(fd, size)

        assert read(file, Growing()).torn


class Counting(Disk):
    """Notes what is done with leases, and what descriptors stay open."""

    def __init__(self) -> None:
        self.leases: list[int] = []
        self.open_fds: set[int] = set()

    def open(self, name: bytes | str, flags: int, mode: int = 0o600, at: int | None = None) -> int:
        fd = super().open(name, flags, mode, at)
        self.open_fds.add(fd)
        return fd

    def close(self, fd: int) -> None:
        super().close(fd)
        self.open_fds.discard(fd)

    def lease(self, fd: int, kind: int) -> None:
        super().lease(fd, kind)
        self.leases.append(kind)


def test_a_lease_is_given_back_at_once_and_so_is_the_file(file: Path) -> None:
    disk = Counting()
    file.write_bytes(block(1))
    assert not read(file, disk).torn
    assert disk.leases in ([], [fcntl.F_RDLCK])
    assert not disk.open_fds
    before = time.monotonic()
    file.write_bytes(b"not held up")
    assert time.monotonic() - before < 1


class Leaseless(Counting):
    """Answers as file systems and kernels do that give no lease, or none of this file."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def lease(self, fd: int, kind: int) -> None:
        raise OSError(self.number, os.strerror(self.number))


NO_LEASES = [errno.EACCES, errno.EINVAL, errno.EPERM, errno.ENOTSUP]


@pytest.mark.parametrize("number", NO_LEASES)
def test_where_there_are_no_leases_a_file_at_rest_is_read_whole(file: Path, number: int) -> None:
    found = read(file, Leaseless(number))
    assert (found.torn, found.held, found.data) == (False, False, block(0))


class LeaselessAndGrowing(Leaseless):
    """And somebody writes whenever it is read."""

    def __init__(self, file: Path) -> None:
        super().__init__(errno.EINVAL)
        self.file = file

    def read(self, fd: int, size: int) -> bytes:
        with open(self.file, "ab") as writer:
            writer.write(b"x")
        return super().read(fd, size)


@pytest.mark.parametrize("by_system", [True, False])
def test_where_there_are_no_leases_a_file_that_is_written_is_torn(
    file: Path, monkeypatch: pytest.MonkeyPatch, by_system: bool
) -> None:
    monkeypatch.setattr(core.reading, "HAS_LEASES", by_system)
    assert read(file, LeaselessAndGrowing(file)).torn


def test_where_the_system_knows_no_leases_none_is_asked_for(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core.reading, "HAS_LEASES", False)
    disk = Counting()
    found = read(file, disk)
    assert (found.torn, found.held, found.data) == (False, False, block(0))
    assert disk.leases == []


def test_what_is_wrong_with_a_file_that_a_lease_is_asked_of_is_told(file: Path) -> None:
    """It is no file system without leases: what it would say of the bytes is not believed."""
    disk = Leaseless(errno.EIO)
    with pytest.raises(OSError, match="Input/output") as caught:
        read(file, disk)
    assert caught.value.errno == errno.EIO
    assert not disk.open_fds


def test_a_failing_read_gives_everything_back(file: Path) -> None:
    class Failing(Counting):
        def read(self, fd: int, size: int) -> bytes:
            raise OSError(5, "failed")

    disk = Failing()
    with pytest.raises(OSError, match="failed"):
        read(file, disk)
    assert not disk.open_fds
    thread = threading.Thread(target=file.write_bytes, args=(b"goes on",), daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive()


def test_a_broken_lease_kills_nobody_and_marks_the_read(file: Path) -> None:
    class Meddled(Disk):
        def read(self, fd: int, size: int) -> bytes:
            if size == SIZE:
                writer = os.fork()
                if writer == 0:
                    os.close(os.open(file, os.O_WRONLY | os.O_NONBLOCK))
                    os._exit(0)
                os.waitpid(writer, 0)
            return super().read(fd, size)

    file.write_bytes(block(2))
    found = read(file, Meddled())
    assert found.torn or found.data == block(2)


@pytest.mark.parametrize("kind", ["fifo", "directory", "link", "gone", "device"])
def test_what_takes_the_place_of_a_file_is_never_read_nor_waited_for(file: Path, kind: str) -> None:
    class Swapping(Disk):
        def open(
            self, name: bytes | str, flags: int, mode: int = 0o600, at: int | None = None
        ) -> int:
            if name == b"f" and not file.is_symlink() and file.is_file():
                file.unlink()
                make(kind)
            return super().open(name, flags, mode, at)

    def make(kind: str) -> None:
        match kind:
            case "fifo":
                os.mkfifo(file)
            case "directory":
                file.mkdir()
            case "link":
                file.symlink_to("/etc/passwd")
            case "device" if os.geteuid() == 0:
                os.mknod(file, 0o20666, os.makedev(1, 5))

    with pytest.raises((NotAFile, FileNotFoundError, OSError)) as caught:
        read(file, Swapping())
    assert not isinstance(caught.value, BlockingIOError)


def test_only_a_change_that_the_clock_cannot_tell_apart_is_fresh() -> None:
    second = 1_000_000_000
    now = 5 * second + 7
    assert is_fresh(now, now)
    assert is_fresh(now + 10 * second, now)
    assert not is_fresh(now - 30_000_000, now)
    assert is_fresh(4 * second, now)
    assert not is_fresh(3 * second, now)
