"""A merge of three texts is what `git merge-file -p` makes of them."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from core.merge import Favor, merge

NAMES = (b"now", b"before turn s/1")
CODE = [b"    x = %d\n" % n for n in range(30)] + [b"\n", b"    return x\n", b"def f():\n"]
PROSE = [b"line %d\n" % n for n in range(40)]
DOS = [b"line %d\r\n" % n for n in range(40)] + [b"unix\n"]


def git_merge(folder: Path, texts: Sequence[bytes], *options: str) -> tuple[bytes, int]:
    git = shutil.which("git")
    assert git is not None
    for name, data in zip(("base", "ours", "theirs"), texts, strict=True):
        (folder / name).write_bytes(data)
    labels = ("-L", NAMES[0].decode(), "-L", "base", "-L", NAMES[1].decode())
    done = subprocess.run(
        [git, "merge-file", "-p", *options, *labels, "ours", "base", "theirs"],
        cwd=folder,
        capture_output=True,
        env={"PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1", "HOME": "/nonexistent"},
        check=False,
    )
    return done.stdout, done.returncode


def edited(dice: random.Random, lines: list[bytes], words: list[bytes]) -> list[bytes]:
    """As people and agents edit: lines come, go, change and move."""
    lines = list(lines)
    for _ in range(dice.randint(1, 4)):
        at = dice.randint(0, len(lines))
        some = [dice.choice(words) for _ in range(dice.randint(1, 3))]
        kind = dice.choice(("come", "go", "change", "move"))
        gone = 0 if kind == "come" else dice.randint(1, 3)
        block = lines[at : at + gone]
        lines[at : at + gone] = some if kind in ("come", "change") else []
        if kind == "move":
            to = dice.randint(0, len(lines))
            lines[to:to] = block
    return lines


def history(seed: int, words: list[bytes]) -> tuple[bytes, bytes, bytes]:
    dice = random.Random(seed)
    base = [dice.choice(words) for _ in range(dice.randint(0, 40))]
    texts = [b"".join(one) for one in (base, *(edited(dice, base, words) for _ in range(2)))]
    base_text, ours, theirs = (t[:-1] if t and dice.random() < 0.1 else t for t in texts)
    return base_text, ours, theirs


@pytest.mark.parametrize("words", [CODE, PROSE, DOS], ids=["code", "prose", "crlf"])
def test_a_merge_is_that_of_git_with_the_same_conflicts_and_marks(tmp_path, words):
    conflicts = 0
    for seed in range(150):
        texts = history(seed, words)
        found = merge(*texts, NAMES)
        assert (found.data, found.conflicts) == git_merge(tmp_path, texts), seed
        conflicts += found.conflicts
    assert conflicts > 20


@pytest.mark.parametrize("favor", ["ours", "theirs"])
def test_a_side_wins_where_git_lets_it_win(tmp_path, favor: Favor):
    for seed in range(60):
        texts = history(seed, CODE)
        found = merge(*texts, NAMES, favor)
        assert (found.data, 0) == git_merge(tmp_path, texts, f"--{favor}"), seed


def test_what_only_one_side_changed_is_taken_whole():
    assert merge(b"a\n", b"a\n", b"b", NAMES).data == b"b"
    assert merge(b"a\n", b"", b"a\n", NAMES).data == b""
