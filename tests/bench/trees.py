"""Work trees that look like real ones, the same for the same seed; knows no contender."""

from __future__ import annotations

import os
import random
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from core.model import RelPath

SEED = 20_240_601
FILES_PER_DIR = 11
DEEPEST = 9
TYPICAL, SPREAD = 2_500, 1.0
"""Of the lognormal sizes: their mean is 4 KB."""
BIG_SHARE, EXEC_SHARE, LINK_SHARE = 0.002, 0.01, 0.003
BIG_LEAST, BIG_TIMES = 100_000, 50
BINARY = 1_250_000
MODULES_SHARE = 30
RUN = 12
CORPUS_BYTES = 12_000_000
ENDINGS = (".py", ".py", ".txt", ".md", ".json", ".c")


class Prose:
    """Owns lines of Python's own sources and gives them out in shuffled runs."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        lines = [line for text in _sources() for line in text.splitlines(keepends=True)]
        self.runs = [b"".join(lines[at : at + RUN]) for at in range(0, len(lines), RUN)]

    def text(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size > 0:
            parts.append(self.runs[int(self.rng.random() * len(self.runs))])
            size -= len(parts[-1])
        return b"".join(parts)


def _sources() -> Iterator[bytes]:
    left = CORPUS_BYTES
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*/*.py")):
        if left <= 0:
            return
        text = path.read_bytes()
        left -= len(text)
        yield text


def build(root: str, files: int) -> None:
    """Makes a tree below a directory that does not exist yet."""
    rng = random.Random(SEED + files)
    prose = Prose(rng)
    for number, directory in enumerate(_directories(rng, root, files // FILES_PER_DIR)):
        os.makedirs(directory)
        for place in range(_share(files, number)):
            _make(rng, prose, directory, place)


def _share(files: int, number: int) -> int:
    """How many files the directory of that number holds: all alike, the first also the rest."""
    directories = max(1, files // FILES_PER_DIR)
    return files // directories + (files % directories if number == 0 else 0)


def _directories(rng: random.Random, root: str, count: int) -> Iterator[str]:
    made = [(root, 0)]
    yield root
    while len(made) < count:
        above, depth = made[int(len(made) * rng.random())]
        if depth < DEEPEST:
            made.append((f"{above}/part_{len(made)}", depth + 1))
            yield made[-1][0]


def _make(rng: random.Random, prose: Prose, directory: str, place: int) -> None:
    draw, path = rng.random(), f"{directory}/item_{place:02d}{rng.choice(ENDINGS)}"
    if draw < LINK_SHARE:
        os.symlink(f"item_{rng.randrange(99):02d}.py", path)
        return
    big = draw < LINK_SHARE + BIG_SHARE
    size = _big(rng) if big else int(rng.lognormvariate(0, SPREAD) * TYPICAL)
    mode = 0o755 if rng.random() < EXEC_SHARE else 0o644
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(fd, "wb", buffering=0) as file:
        file.write(prose.text(size))


def _big(rng: random.Random) -> int:
    return int(BIG_LEAST * BIG_TIMES ** (rng.random() ** 2))


def build_packages(root: str, most: int) -> None:
    """What is installed beside this interpreter: real sources, programs and libraries."""
    source = Path(sysconfig.get_paths()["purelib"])
    ignore = shutil.ignore_patterns("__pycache__")
    for package in sorted(path for path in source.iterdir() if path.is_dir())[:most]:
        shutil.copytree(package, f"{root}/{package.name}", symlinks=True, ignore=ignore)


def build_directories(root: str, count: int) -> None:
    """Many directories with next to nothing in each."""
    rng = random.Random(SEED + count)
    prose = Prose(rng)
    for directory in _directories(rng, root, count):
        os.makedirs(directory)
        _make(rng, prose, directory, 0)


def build_binaries(root: str, size: int) -> None:
    """Files that no compression makes smaller; each below the two megabytes some peers accept."""
    rng = random.Random(SEED + size)
    os.makedirs(root)
    for place in range(max(1, size // BINARY)):
        Path(root, f"image_{place:02d}.bin").write_bytes(rng.randbytes(BINARY))


def build_modules(root: str, files: int) -> None:
    """A small project, and the many times larger packages it uses, which its owner ignores."""
    build(root, max(FILES_PER_DIR, files // MODULES_SHARE))
    build(f"{root}/node_modules", files)
    Path(root, ".gitignore").write_text("node_modules/\n")


def one_directory(root: str, files: int) -> str:
    """The directory, below the root, that holds about so many files; of equal ones the first."""
    below: dict[str, int] = {}
    for above, inner, names in os.walk(root, topdown=False):
        below[above] = len(names) + sum(below.get(f"{above}/{name}", 0) for name in inner)
    del below[root]
    return min(sorted(below), key=lambda path: abs(below[path] - files))


def regular_files(root: str) -> list[RelPath]:
    """All regular files, in an order that does not depend on the file system."""
    out: list[RelPath] = []
    top = os.fsencode(root)
    for above, _, names in os.walk(top):
        paths = [os.path.join(above, name) for name in names]
        out += [RelPath(p[len(top) + 1 :]) for p in paths if not os.path.islink(p)]
    return sorted(out)


class Edits:
    """Owns the changes made to one tree: always others, and none of them empty."""

    def __init__(self, root: str) -> None:
        self.root = os.fsencode(root)
        self.rng = random.Random(SEED)
        self.prose = Prose(self.rng)
        self.files = regular_files(root)
        self.count = 0

    def change(self, count: int) -> list[RelPath]:
        """Gives that many files a new run of lines each; returns their paths."""
        paths = self.rng.sample(self.files, count)
        for path in paths:
            self.edit(path)
        return paths

    def edit(self, path: RelPath) -> None:
        """One line in the middle, as an agent changes it, and a number that was never there."""
        name = self.root + b"/" + path
        with open(name, "rb") as file:
            text = file.read()
        self.count += 1
        middle = text.find(b"\n", len(text) // 2) + 1
        line = b"# edit %d: %s" % (self.count, self.prose.text(1).splitlines()[0])
        with open(name, "wb") as file:
            file.write(text[:middle] + line + b"\n" + text[middle:])
