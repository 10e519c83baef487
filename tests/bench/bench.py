"""What the rows share: sizes, the trees, and both contenders filled with a tree once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count

from .contenders import Git, Turnmark
from .trees import Edits, build


@dataclass(frozen=True)
class Scale:
    """How much is measured: files per tree, snapshots kept, points listed, seconds, repetitions."""

    small: int = 10_000
    large: int = 100_000
    kept: int = 2_000
    hot: int = 400
    points: int = 1_000
    blobs: int = 1_000
    firsts_small: int = 5
    firsts_large: int = 3
    changes: int = 9
    turns: int = 200
    idle: int = 30
    burst: int = 20_000
    tiny: int = 1_000
    packages: int = 1_000
    directories: int = 10_000
    binary_bytes: int = 50_000_000
    modules: int = 10_000
    large_binary: int = 8_000_000
    side_firsts: int = 2
    side_changes: int = 3
    side_firsts_large: int = 1
    side_changes_large: int = 2
    side_looks: int = 7
    side_kept: int = 20
    growth: tuple[int, ...] = (1_000, 10_000, 100_000)
    growth_turns: int = 40
    growth_kept: tuple[int, ...] = (10, 100, 1_000, 10_000)
    growth_changes: tuple[int, ...] = (1, 10, 100, 1_000, 10_000)
    growth_workspaces: tuple[int, ...] = (1, 20, 200)


QUICK = Scale(
    small=300,
    large=1_500,
    kept=60,
    hot=40,
    points=60,
    blobs=100,
    firsts_small=2,
    firsts_large=2,
    changes=3,
    turns=3,
    idle=1,
    burst=300,
    tiny=100,
    packages=5,
    directories=100,
    binary_bytes=5_000_000,
    modules=300,
    large_binary=2_000_000,
    side_firsts=1,
    side_changes=1,
    side_firsts_large=1,
    side_changes_large=1,
    side_looks=1,
    side_kept=3,
    growth=(100, 300),
    growth_turns=3,
    growth_kept=(10, 30),
    growth_changes=(1, 100),
    growth_workspaces=(1, 3),
)


class Bench:
    """Owns the scratch directory and what was built in it."""

    def __init__(self, scratch: str, scale: Scale) -> None:
        self.scratch = os.path.realpath(scratch)
        self.scale = scale
        self._edits: dict[int, Edits] = {}
        self._pairs: dict[int, tuple[Turnmark, Git]] = {}
        self._numbers = count()
        self._places: list[str] = []

    def place(self, name: str) -> str:
        """A path of its own for a store, or anything else that must be new."""
        place = f"{self.scratch}/{name}-{os.getpid()}-{next(self._numbers)}"
        self._places.append(place)
        return place

    def tree(self, files: int) -> str:
        """The tree of that size; one that an earlier run left is taken as it is."""
        return self.built(f"tree-{files}", partial(build, files=files))

    def built(self, name: str, make: Callable[[str], None]) -> str:
        root = f"{self.scratch}/{name}"
        if not os.path.exists(root):
            shutil.rmtree(root + ".part", ignore_errors=True)
            make(root + ".part")
            os.rename(root + ".part", root)
        return root

    def copy_of(self, files: int, *, link: bool = False) -> str:
        """A workspace of a row's own, gone with the bench."""
        root = self.place("copy")
        copy = os.link if link else shutil.copy2
        shutil.copytree(self.tree(files), root, symlinks=True, copy_function=copy)
        return root

    def edits(self, files: int) -> Edits:
        if files not in self._edits:
            self._edits[files] = Edits(self.tree(files))
        return self._edits[files]

    def empty_pair(self, files: int) -> tuple[Turnmark, Git]:
        """Both contenders with nothing in their stores yet."""
        root = self.tree(files)
        return Turnmark(self.place("store"), root), Git(self.place("git"), root)

    def pair(self, files: int) -> tuple[Turnmark, Git]:
        """Both contenders with the tree in their stores; shared by the rows that follow."""
        if files not in self._pairs:
            ours, git = self.empty_pair(files)
            ours.take()
            git.commit()
            self._pairs[files] = ours, git
        return self._pairs[files]

    def keep_pair(self, files: int, pair: tuple[Turnmark, Git]) -> None:
        """Spares the rows that follow from filling the stores once more."""
        if files in self._pairs:
            remove(pair)
        else:
            self._pairs[files] = pair

    def close(self) -> None:
        for pair in self._pairs.values():
            remove(pair)
        self._pairs.clear()
        for place in self._places:
            shutil.rmtree(place, ignore_errors=True)


def remove(pair: tuple[Turnmark, Git]) -> None:
    pair[0].remove()
    pair[1].remove()
