"""core.lines against itself and against git's line counts."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core import lines
from core.lines import Opcode, count, hunks, is_binary, opcodes, split_lines

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
often = settings(max_examples=300, deadline=None, derandomize=True, database=None)
seldom = settings(max_examples=80, deadline=None, derandomize=True, database=None)

few_lines = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"\n", b"}\n"]), max_size=25)
last_lines = st.sampled_from([b"", b"a"])
texts = st.tuples(few_lines.map(b"".join), last_lines).map(b"".join)


def applied(old: list[bytes], new: list[bytes], ops: list[Opcode]) -> list[bytes]:
    out, at = list[bytes](), 0
    for i1, i2, j1, j2 in ops:
        out += old[at:i1] + new[j1:j2]
        at = i2
    return out + old[at:]


def git_count(folder: Path, old: bytes, new: bytes) -> tuple[int, int] | None:
    (folder / "old").write_bytes(old)
    (folder / "new").write_bytes(new)
    env = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    env |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}
    command = ["git", "diff", "--no-index", "--numstat", "--minimal", "old", "new"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    added, deleted = (done.stdout.split(b"\t") if done.stdout else [b"0", b"0"])[:2]
    return None if added == b"-" else (int(added), int(deleted))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lines")


def longest_common(old: list[bytes], new: list[bytes]) -> int:
    row = [0] * (len(new) + 1)
    for a in old:
        above, row = row, [0]
        for j, b in enumerate(new):
            row.append(above[j] + 1 if a == b else max(above[j + 1], row[j]))
    return row[-1]


@often
@given(old=texts, new=texts)
def test_opcodes_turn_old_into_new_with_the_fewest_edits(old: bytes, new: bytes) -> None:
    a, b = split_lines(old), split_lines(new)
    ops = opcodes(a, b)
    assert applied(a, b, ops) == b
    edits = sum(i2 - i1 + j2 - j1 for i1, i2, j1, j2 in ops)
    assert edits == len(a) + len(b) - 2 * longest_common(a, b)


@often
@given(old=texts, new=texts)
def test_opcodes_are_ordered_and_never_touch(old: bytes, new: bytes) -> None:
    ops = opcodes(split_lines(old), split_lines(new))
    for before, after in itertools.pairwise(ops):
        assert before[1] < after[0]
        assert before[3] < after[2]
    assert all(i2 > i1 or j2 > j1 for i1, i2, j1, j2 in ops)


@needs_git
@seldom
@given(old=texts, new=texts)
def test_counts_are_those_of_git(folder: Path, old: bytes, new: bytes) -> None:
    assert count(old, new) == git_count(folder, old, new)


USUAL = [b"\n", b"    return None\n", b"    }\n", b"    try:\n", b"        pass\n"]


def source(rng: random.Random, size: int) -> list[bytes]:
    own = [b"    value_%d = compute()\n" % rng.randrange(size) for _ in range(size)]
    return [rng.choice(USUAL) if rng.random() < 0.4 else line for line in own]


def edited(rng: random.Random, old: list[bytes], edits: int) -> list[bytes]:
    out = list(old)
    for _ in range(edits):
        at, size = rng.randrange(len(out)), rng.randrange(6)
        out[at : at + size] = source(rng, rng.randrange(1, 6))
    block = rng.randrange(len(out) // 2)
    moved = out[block : block + 15]
    del out[block : block + 15]
    return out + moved


@needs_git
@pytest.mark.parametrize("seed", range(8))
def test_counts_of_realistic_edits_are_those_of_git(folder: Path, seed: int) -> None:
    rng = random.Random(seed)
    old = source(rng, 800)
    new = edited(rng, old, 5 * seed)
    assert count(b"".join(old), b"".join(new)) == git_count(folder, b"".join(old), b"".join(new))


@needs_git
@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (b"", b"", (0, 0)),
        (b"", b"a\nb", (2, 0)),
        (b"a\n", b"a", (1, 1)),
        (b"a\r\n", b"a\n", (1, 1)),
        (b"a\rb\n", b"a\rb\n", (0, 0)),
        (b"a\0", b"a", None),
        (b"x" * 8000 + b"\0", b"", (0, 1)),
    ],
)
def test_counts_at_the_edges(
    folder: Path, old: bytes, new: bytes, expected: tuple[int, int] | None
) -> None:
    assert count(old, new) == expected
    assert git_count(folder, old, new) == expected


@pytest.mark.parametrize("kinds", [50, 5000])
def test_shuffled_repeats_end_in_bounded_time_with_a_correct_result(kinds: int) -> None:
    rng = random.Random(1)
    old = [b"%d\n" % rng.randrange(kinds) for _ in range(20_000)]
    new = [b"%d\n" % rng.randrange(kinds) for _ in range(20_000)]
    began = time.process_time()
    ops = opcodes(old, new)
    assert time.process_time() - began < 20
    assert applied(old, new, ops) == new


def test_the_rough_way_is_correct_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_EXACT_STEPS", 0)
    monkeypatch.setattr(lines, "_ROUGH_EDITS", 1)
    rng = random.Random(3)
    for _ in range(200):
        old, new = ([b"%d\n" % rng.randrange(5) for _ in range(rng.randrange(40))] for _ in "on")
        assert applied(old, new, opcodes(old, new)) == new


def test_binary_is_a_nul_in_the_first_8000_bytes() -> None:
    assert is_binary(b"x" * 7999 + b"\0")
    assert not is_binary(b"x" * 8000 + b"\0")


def test_lines_end_at_newlines_only() -> None:
    assert split_lines(b"a\rb\x0bc\nd") == [b"a\rb\x0bc\n", b"d"]
    assert split_lines(b"") == []


def lines_of(text: str) -> list[bytes]:
    return [letter.encode() + b"\n" for letter in text]


def test_changes_share_a_hunk_while_their_contexts_touch() -> None:
    near = hunks(lines_of("a123456b"), lines_of("A123456B"))
    far = hunks(lines_of("a1234567b"), lines_of("A1234567B"))
    assert [hunk.header() for hunk in near] == [b"@@ -1,8 +1,8 @@\n"]
    assert [hunk.header() for hunk in far] == [b"@@ -1,4 +1,4 @@\n", b"@@ -6,4 +6,4 @@\n"]


def test_an_empty_side_is_placed_behind_the_line_before_it() -> None:
    assert hunks([], lines_of("a"))[0].header() == b"@@ -0,0 +1 @@\n"
    assert hunks(lines_of("ab"), lines_of("axb"), context=0)[0].header() == b"@@ -1,0 +2 @@\n"


def test_a_missing_last_newline_is_said_on_its_side() -> None:
    body = hunks([b"a\n", b"b"], [b"a\n", b"b\n"])[0].body
    assert body == (b" a\n", b"-b\n\\ No newline at end of file\n", b"+b\n")
