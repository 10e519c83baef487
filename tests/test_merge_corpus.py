"""Real texts and generated histories: what merging makes of them is what git makes of them.

Texts are modules of the standard library, edited as people and agents edit. Histories have moved,
renamed, deleted and changed files; a revert is compared with `git merge-tree` of the same three
trees, which follows renamed files as well. Of what is put into a directory that was renamed git
would guess the place: that is switched off.
"""

from __future__ import annotations

import os
import random
import subprocess
import sysconfig
from functools import cache
from pathlib import Path

import pytest

from core.merge import Favor, merge
from core.states import stored_state
from core.turns import begin, end
from core.without import Rest, Turn, without
from tests.stores import Bench
from tests.test_merge import NAMES, git_merge

DEEP = bool(os.environ.get("TURNMARK_DEEP"))
TEXTS = 300 if DEEP else 40
SEEDS = 60 if DEEP else 10
LARGEST = 60_000
TURNS = 5
ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    **{f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}


@cache
def modules() -> tuple[Path, ...]:
    """Of the interpreter that runs this, smaller ones; a few of every kind of author."""
    found = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    return tuple(path for path in found if 2_000 < path.stat().st_size < LARGEST)


def edited(dice: random.Random, text: bytes) -> bytes:
    """Lines change, come, go, are indented or move; now and then in places that are near."""
    lines = text.splitlines(keepends=True)
    near = dice.randrange(len(lines) + 1)
    for _ in range(dice.randint(1, 5)):
        at = dice.choice((near, dice.randrange(len(lines) + 1)))
        some = lines[at : at + dice.randint(1, 6)]
        kind = dice.choice(("word", "come", "go", "indent", "move"))
        if kind == "word":
            lines[at : at + len(some)] = [line.replace(b"e", b"_", 1) for line in some]
        elif kind == "come":
            lines[at:at] = dice.sample(lines, min(3, len(lines)))
        elif kind == "indent":
            lines[at : at + len(some)] = [b"    " + line for line in some]
        else:
            del lines[at : at + len(some)]
            to = dice.randrange(len(lines) + 1)
            lines[to:to] = some if kind == "move" else []
    return b"".join(lines)


def test_real_texts_merge_as_git_merges_them(tmp_path: Path) -> None:
    conflicts = clean = 0
    for number in range(TEXTS):
        dice = random.Random(number)
        base = dice.choice(modules()).read_bytes()
        near = random.Random(number // 2)  # every other pair of edits begins at the same place
        texts = (base, edited(near, base), edited(random.Random(number // 2), base))
        texts = (base, texts[1], edited(dice, texts[2] if number % 3 == 0 else base))
        found = merge(*texts, NAMES)
        assert (found.data, found.conflicts) == git_merge(tmp_path, texts), number
        conflicts += bool(found.conflicts)
        clean += not found.conflicts
    assert conflicts > TEXTS // 10
    assert clean > TEXTS // 10


@pytest.mark.parametrize("favor", ["ours", "theirs"])
def test_a_side_wins_in_real_texts_where_git_lets_it_win(tmp_path: Path, favor: Favor) -> None:
    for number in range(TEXTS // 4):
        dice = random.Random(1000 + number)
        base = dice.choice(modules()).read_bytes()
        texts = (base, edited(dice, base), edited(dice, base))
        assert (merge(*texts, NAMES, favor).data, 0) == git_merge(tmp_path, texts, f"--{favor}")


# Histories


class Project:
    """Owns a workspace with real files, in which several turns and edits by hand have been made."""

    def __init__(self, base: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        self.bench = Bench(base)
        self.scratch = base / "scratch"
        for number, path in enumerate(self.dice.sample(modules(), 12)):
            place = self.bench.path / ("", "pkg", "pkg/sub", "docs")[number % 4]
            place.mkdir(parents=True, exist_ok=True)
            (place / path.name).write_bytes(path.read_bytes())
        self.bench.point()
        self.turns = [self._turn() for _ in range(TURNS)]
        self.now = self.bench.recorder.take().snapshot

    def _turn(self) -> Turn:
        begun = begin(self.bench.recorder, "s").snapshot
        self._work()
        ended = end(self.bench.recorder, "s").snapshot
        self._work()
        return Turn("turn", *(stored_state(self.bench.store, one) for one in (begun, ended)))

    def _work(self) -> None:
        for _ in range(self.dice.randint(1, 4)):
            files = sorted(path for path in self.bench.path.rglob("*") if path.is_file())
            self._change(self.dice.choice(files), self.dice.choice(files).parent)

    def _change(self, path: Path, other: Path) -> None:
        kind = self.dice.choice(("edit", "edit", "edit", "rename", "move", "delete", "dir"))
        if kind == "edit":
            path.write_bytes(edited(self.dice, path.read_bytes()))
        elif kind == "rename":
            path.rename(path.with_name(f"{path.stem}_{self.dice.randrange(99)}.py"))
        elif kind == "move" and not (other / path.name).exists():
            path.rename(other / path.name)
        elif kind == "delete":
            path.unlink()
        elif kind == "dir" and path.parent != self.bench.path:
            path.parent.rename(path.parent.with_name(f"dir_{self.dice.randrange(99)}"))

    def without(self, turn: Turn) -> Rest:
        return without(stored_state(self.bench.store, self.now), [turn])

    def git_without(self, turn: Turn) -> str:
        """The tree that comes out; nothing if there are conflicts."""
        if not self.scratch.exists():
            self.scratch.mkdir()
            self.git("init", "-q")
        base = self.git("commit-tree", turn.end.files.hex(), "-m", "x").strip()
        ours, theirs = (
            self.git("commit-tree", tree.hex(), "-p", base, "-m", "x").strip()
            for tree in (self.now.files, turn.begin.files)
        )
        merging = ("-c", "merge.directoryRenames=false", "merge-tree", "--write-tree")
        tree, *rest = self.git(*merging, ours, theirs, ok=(0, 1)).splitlines()
        return "" if rest else tree

    def git(self, *words: str, ok: tuple[int, ...] = (0,)) -> str:
        """In a repository of its own that sees the store's objects."""
        found = {"GIT_ALTERNATE_OBJECT_DIRECTORIES": f"{self.bench.store.base}/objects"}
        done = subprocess.run(
            ["git", *words],
            cwd=self.scratch,
            env=ENV | found,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in ok, done.stderr
        return done.stdout


def test_a_turn_taken_out_leaves_the_tree_that_git_merges(tmp_path: Path) -> None:
    clean = conflicts = 0
    for seed in range(SEEDS):
        project = Project(tmp_path / str(seed), seed)
        for turn in project.turns:
            tree, rest = project.git_without(turn), project.without(turn)
            assert bool(rest.conflicts) == (not tree), seed
            assert not tree or rest.state.files.hex() == tree, seed
            clean, conflicts = clean + bool(tree), conflicts + (not tree)
        project.bench.close()
    assert min(clean, conflicts) > SEEDS // 2
