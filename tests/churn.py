"""A program that changes a tree at random, told by its input how long: what agents do, and worse.

Started as a process of its own with ROOT OUTSIDE SEED LINKS; for each line of seconds it works that
long, then says how many operations it tried. Knows nothing of turnmark.
"""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress

NAMES = ("a", "b", "c", "d", "e", "f", "node_modules", "target", ".git", "kept")
UNWATCHED = frozenset(("node_modules", "target", ".git"))
EXCHANGE, AT_CWD = 2, -100


class Churn:
    """Owns the random numbers of one writer."""

    def __init__(self, root: str, outside: str, seed: int, *, links: bool) -> None:
        self.root = root
        self.outside = outside
        self.random = random.Random(seed)
        self.libc = ctypes.CDLL(None)
        self.operations = self._table(links)

    def _table(self, links: bool) -> list[Callable[[], None]]:
        weights = {
            self.write: 22,
            self.append: 8,
            self.replace: 10,
            self.unlink: 6,
            self.remove_dir: 5,
            self.rename_file: 8,
            self.rename_dir: 12,
            self.move_out: 5,
            self.move_in: 5,
            self.move_new_in: 4,
            self.make_anew: 3,
            self.link_soft: 2,
            self.chmod: 2,
            self.chmod_dir: 1,
            self.exchange: 2,
            self.go_deep: 3,
            self.ignore: 1,
            self.link_hard: 2 if links else 0,
        }
        return [call for call, weight in weights.items() for _ in range(weight)]

    def work(self, seconds: float) -> int:
        until, count = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            with suppress(OSError, shutil.Error):
                self.random.choice(self.operations)()
            count += 1
        return count

    # Where

    def dir(self, depth: int = 3) -> str:
        names = (self.random.choice(NAMES) for _ in range(self.random.randint(0, depth)))
        return os.path.join(self.root, *names)

    def inner_dir(self) -> str:
        return os.path.join(self.dir(2), self.random.choice(NAMES))

    def file(self) -> str:
        return os.path.join(self.dir(), f"f{self.random.randint(0, 9)}.txt")

    def stash(self) -> str:
        return os.path.join(self.outside, f"o{self.random.randint(0, 5)}")

    def has_other_names(self, path: str) -> bool:
        """Nothing is written through one of several names: where that one is gone again, or is not
        watched, by the time of the look, no event has told of the others (README, "Not kept")."""
        return os.path.isfile(path) and os.stat(path).st_nlink > 1

    def put(self, path: str, flags: int = os.O_TRUNC) -> None:
        if self.has_other_names(path):
            os.unlink(path)
        fd = os.open(path, os.O_CREAT | os.O_WRONLY | flags, 0o644)
        try:
            os.write(fd, self.random.randbytes(self.random.randint(1, 40)))
        finally:
            os.close(fd)

    # What

    def write(self) -> None:
        path = self.file()
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self.put(path)

    def append(self) -> None:
        self.put(self.file(), os.O_APPEND)

    def replace(self) -> None:
        path = self.file()
        fresh = f"{path}.new{os.getpid()}"
        self.put(fresh)
        os.rename(fresh, path)

    def unlink(self) -> None:
        os.unlink(self.file())

    def remove_dir(self) -> None:
        shutil.rmtree(self.inner_dir())

    def rename_file(self) -> None:
        os.rename(self.file(), self.file())

    def rename_dir(self) -> None:
        os.rename(self.inner_dir(), self.inner_dir())

    def move_out(self) -> None:
        os.rename(self.inner_dir(), self.stash())

    def move_in(self) -> None:
        os.rename(self.stash(), self.inner_dir())

    def move_new_in(self) -> None:
        top = os.path.join(self.outside, f"n{self.random.randrange(10**9)}")
        for number in range(self.random.randint(1, 8)):
            names = (self.random.choice(NAMES) for _ in range(self.random.randint(0, 3)))
            inner = os.path.join(top, *names)
            os.makedirs(inner, exist_ok=True)
            self.put(os.path.join(inner, f"f{number}.txt"))
        try:
            os.rename(top, self.inner_dir())
        except OSError:  # in an hour these would be a million files
            shutil.rmtree(top)

    def make_anew(self) -> None:
        path = self.inner_dir()
        shutil.rmtree(path)
        os.makedirs(os.path.join(path, "b", "c"))
        self.put(os.path.join(path, "b", "c", "f0.txt"))

    def link_soft(self) -> None:
        os.symlink(self.random.choice(("f0.txt", "../a", "/nowhere")), self.file())

    def link_hard(self) -> None:
        """Where both names are watched: of writes through one that is not, no event tells."""
        old, new = self.file(), self.file()
        if UNWATCHED.isdisjoint(os.path.relpath(f"{old}/{new}", self.root).split("/")):
            os.link(old, new)

    def chmod(self) -> None:
        path = self.file()
        if not self.has_other_names(path):
            os.chmod(path, self.random.choice((0o600, 0o644, 0o755)))

    def chmod_dir(self) -> None:
        os.chmod(self.inner_dir(), self.random.choice((0o700, 0o755)))

    def exchange(self) -> None:
        one, other = os.fsencode(self.inner_dir()), os.fsencode(self.inner_dir())
        self.libc.renameat2(AT_CWD, one, AT_CWD, other, EXCHANGE)

    def go_deep(self) -> None:
        path = os.path.join(self.dir(), *(self.random.choice(NAMES[:5]) for _ in range(4)))
        os.makedirs(path, exist_ok=True)
        self.put(os.path.join(path, "deep.txt"))

    def ignore(self) -> None:
        path = os.path.join(self.dir(), ".gitignore")
        if self.random.random() < 0.5:
            os.unlink(path)
        with open(path, "w") as file:
            file.write(self.random.choice(("e/\n", "f\n!kept\n", "f1.txt\n", "/a\n", "")))


def main() -> None:
    root, outside, seed, links = sys.argv[1:5]
    churn = Churn(root, outside, int(seed), links=links == "1")
    for line in sys.stdin:
        print(churn.work(float(line)), flush=True)


if __name__ == "__main__":
    main()
