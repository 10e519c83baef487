"""Renames: the pairs that git finds, within bounds; files followed over them, in every command."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from core.follow import Follower, history_of
from core.model import FILE, LINK, Change, Entry, Oid, RelPath
from core.objects import child_in, encode_tree, hash_object, parse_tree
from core.renames import MOST_FILES, find_moves, find_renames
from tests.stores import Bench
from tests.trees import build, image

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")

Files = dict[str, bytes]
Pair = tuple[str, str]


# Pairs


class Blobs:
    """Two trees to changes, and the contents they refer to; counts what is read."""

    def __init__(self, old: Files, new: Files) -> None:
        self.held = {hash_object("blob", data): data for data in (*old.values(), *new.values())}
        self.reads = 0
        self.changes = [
            Change(RelPath(path.encode()), self.entry(old, path), self.entry(new, path))
            for path in sorted({*old, *new})
            if old.get(path) != new.get(path)
        ]

    def entry(self, files: Files, path: str) -> Entry | None:
        return Entry(FILE, hash_object("blob", files[path])) if path in files else None

    def read(self, entry: Entry) -> bytes:
        self.reads += 1
        return self.held[entry.oid]


def pairs(old: Files, new: Files) -> set[Pair]:
    blobs = Blobs(old, new)
    found = find_renames(blobs.changes, blobs.read)
    return {(os.fsdecode(one.old_path), os.fsdecode(one.path)) for one in found if one.old_path}


def git_pairs(top: Path, old: Files, new: Files) -> set[Pair]:
    """What `git diff -M --name-status` says of the same two trees."""
    env = {"PATH": os.environ["PATH"], "HOME": str(top), "GIT_CONFIG_NOSYSTEM": "1"}
    env |= {"GIT_DIR": str(top / "git"), "GIT_WORK_TREE": str(top / "work")}

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], env=env, capture_output=True, text=True, check=True)
        return done.stdout

    git("init", "-q")
    trees = []
    for files in (old, new):
        shutil.rmtree(top / "work", ignore_errors=True)
        build(top / "work", files)
        git("add", "-A")
        trees.append(git("write-tree").strip())
    rows = git("diff", "-M", "--name-status", "-z", *trees).split("\0")
    at, found = 0, set()
    while at < len(rows) - 1:
        moved = rows[at].startswith("R")
        if moved:
            found.add((rows[at + 1], rows[at + 2]))
        at += 3 if moved else 2
    return found


def lines(chance: random.Random, count: int) -> list[str]:
    return [f"{chance.randrange(10**9)} {'x' * chance.randrange(40)}\n" for _ in range(count)]


def corpus(seed: int) -> tuple[Files, Files]:
    """A tree and what a busy hour made of it: moved, edited, split, new and deleted files, and
    whole directories elsewhere. No two files are like each other unless one was made of the other.
    """
    chance = random.Random(seed)
    old: Files = {}
    new: Files = {}
    for number in range(60):
        name = f"d{number % 5}/part{number % 3}/f{number}.py"
        text = lines(chance, chance.randrange(8, 60))
        old[name] = "".join(text).encode()
        fate = chance.random()
        if fate < 0.2:
            continue
        place = name if fate < 0.4 else name.replace(f"d{number % 5}", f"moved{number % 5}")
        place = place if fate < 0.8 else f"other/n{number}.txt"
        # either nearly all of it stays or nearly nothing: no pair is near the threshold
        edits = chance.choice([0, 0, len(text) // 6, len(text) - 1])
        for at in chance.sample(range(len(text)), edits):
            text[at] = lines(chance, 1)[0]
        new[place] = "".join(text).encode()
    new |= {f"new/{n}.md": "".join(lines(chance, 20)).encode() for n in range(8)}
    return old, new


@needs_git
@pytest.mark.parametrize("seed", range(6))
def test_the_pairs_are_those_of_git(tmp_path, seed):
    old, new = corpus(seed)
    found = pairs(old, new)
    assert found == git_pairs(tmp_path, old, new)
    assert len(found) > 5


@needs_git
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"a": b"bin\0" + bytes(range(256)) * 9}, {"b": b"bin\0" + bytes(range(256)) * 9 + b"x"}),
        ({"a": b"one line " * 400}, {"b": b"one line " * 400 + b"and more"}),
        ({"a": b"x\r\ny\r\nz\r\n" * 9}, {"b": b"x\ny\nz\n" * 9}),
        ({"a": b""}, {"b": b"x"}),
        ({"x/a": b"same\n", "y/a": b"same\n"}, {"z/x/a": b"same\n", "z/y/a": b"same\n"}),
    ],
    ids=["binary", "one long line", "line ends", "empty", "twins"],
)
def test_odd_files_are_paired_as_git_pairs_them(tmp_path, old, new):
    assert pairs(old, new) == git_pairs(tmp_path, old, new)


def test_of_equal_files_those_whose_names_agree_the_furthest_are_one():
    same = b"same\n"
    old = {f"{top}/{name}/__init__.py": same for top in ("a", "b") for name in ("x", "y", "z")}
    new = {f"new/{path}": data for path, data in old.items() if path != "a/x/__init__.py"}
    assert pairs(old, new) == {(path.removeprefix("new/"), path) for path in new}


def test_a_file_that_alone_bears_its_name_is_not_given_to_a_stranger():
    text = "".join(lines(random.Random(1), 40)).encode()
    old = {"a/main.c": text, "b/other.c": text + b"tail\n"}
    new = {"z/main.c": text + b"tail\nmore\n"}
    assert pairs(old, new) == {("a/main.c", "z/main.c")}


def test_twenty_thousand_moved_files_cost_no_reading_and_no_seconds():
    old = {f"old/{n % 100}/{n}": b"%d" % min(n, 10_000) for n in range(20_000)}
    new = {f"new/{path[4:]}": data for path, data in old.items()}
    blobs = Blobs(old, new)
    begun = time.process_time()
    found = find_moves(blobs.changes, blobs.read)
    assert time.process_time() - begun < 5
    assert blobs.reads == 0
    assert found.old_of == {RelPath(n.encode()): RelPath(b"old/" + n[4:].encode()) for n in new}


def test_twenty_thousand_moved_and_edited_files_are_read_only_so_far():
    old = {f"old/{n}": b"%d\nsame\n" % n for n in range(20_000)}
    new = {f"new/{n}": b"%d\nsame\nx\n" % n for n in range(20_000)}
    blobs = Blobs(old, new)
    find_renames(blobs.changes, blobs.read)
    assert 0 < blobs.reads <= MOST_FILES


def test_what_is_large_is_followed_by_its_object_alone():
    large = b"line\n" * 900_000
    assert pairs({"a": large}, {"b": large}) == {("a", "b")}
    assert pairs({"a": large}, {"b": large + b"x\n"}) == set()


def test_a_step_that_is_known_holds_however_little_is_alike():
    blobs = Blobs({"a": b"one\n"}, {"b": b"two\n"})
    (found,) = find_renames(blobs.changes, blobs.read, {RelPath(b"b"): RelPath(b"a")})
    assert (found.old_path, found.path, found.similarity) == (b"a", b"b", 0)


def test_a_directory_went_where_most_of_its_files_went():
    old = {f"lib/{n}": b"%d\n" % n for n in range(5)}
    new = {f"src/core/{n}": b"%d\n" % n for n in range(4)} | {"elsewhere": b"4\n"}
    blobs = Blobs(old, new)
    found = find_moves(blobs.changes, blobs.read)
    assert found.goal(RelPath(b"lib"), lambda _: False) == b"src/core"
    assert found.origin(RelPath(b"src/core"), lambda _: False) == b"lib"
    assert found.origin(RelPath(b"src/core"), lambda top: top == b"lib") is None
    assert found.goal(RelPath(b"nowhere"), lambda _: False) is None


def test_one_entry_of_a_tree_is_found_as_by_parsing_all_of_it():
    chance = random.Random(3)
    names = [b"a", b"b", b"100644 a", b"x 100644 a", b"a 40000 b", b"x40000 b", b" a", b"c d"]
    for _ in range(400):
        some = chance.sample(names, chance.randrange(len(names)))
        modes = [chance.choice([FILE, LINK, 0o100755, 0o40000]) for _ in some]
        oids = [Oid(bytes(chance.choices(b"\0\0 a1", k=20))) for _ in some]
        raw = encode_tree(zip(some, map(Entry, modes, oids), strict=True))
        assert [child_in(raw, name) for name in names] == [parse_tree(raw).get(n) for n in names]


# Followed through a history


@pytest.fixture
def bench(tmp_path):
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def take(bench, tree=None, *, moves=None, gone=()):
    for old, new in (moves or {}).items():
        (bench.path / new).parent.mkdir(parents=True, exist_ok=True)
        (bench.path / old).rename(bench.path / new)
    for name in gone:
        (bench.path / name).unlink()
    build(bench.path, tree or {})
    return bench.recorder.take().snapshot


def life(bench, path, **options):
    """Of each version the path, and the names it had before and got then."""
    found = history_of(bench.history(), RelPath(path.encode()), **options)
    return [(v.path.decode(), v.entry is not None, v.renamed_from, v.renamed_to) for v in found]


TEXT = "".join(f"line {n}\n" for n in range(30))


def test_a_file_is_followed_backwards_over_its_renames(bench):
    take(bench, {"a": TEXT, "other": "x"})
    take(bench, {"a": TEXT + "1\n"})
    take(bench, moves={"a": "d/b"})
    take(bench, {"other": "y"})
    take(bench, {"d/b": TEXT + "1\n2\n"})
    take(bench, {"c": TEXT + "3\n"}, gone=["d/b"])
    assert life(bench, "c") == [
        ("c", True, b"d/b", None),
        ("d/b", True, None, None),
        ("d/b", True, b"a", None),
        ("a", True, None, None),
        ("a", True, None, None),
    ]
    assert life(bench, "c", renames=False) == [("c", True, None, None)]


def test_an_old_name_says_what_became_of_it(bench):
    take(bench, {"a": TEXT})
    take(bench, moves={"a": "b"})
    assert life(bench, "a") == [("a", False, None, b"b"), ("a", True, None, None)]


def test_names_are_known_at_any_snapshot_from_both_ends(bench):
    seqs = [take(bench, {"a": TEXT, "n": "0"}).seq]
    for number, (old, new) in enumerate([("a", "b"), ("b", "c"), ("c", "d")]):
        seqs.append(take(bench, moves={old: new}).seq)
        seqs.append(take(bench, {"n": f"{number}+"}).seq)
    follower = Follower(bench.history())
    expected = [b"a", b"b", b"b", b"c", b"c", b"d", b"d"]
    assert [follower.name_at(RelPath(b"d"), seq) for seq in seqs] == expected
    assert [follower.name_since(RelPath(b"a"), seq) for seq in seqs] == expected
    assert follower.name_since(RelPath(b"b")) == b"d"


def test_a_name_that_was_given_away_and_taken_again_is_of_the_file_that_has_it_now(bench):
    take(bench, {"a": TEXT})
    take(bench, moves={"a": "b"})
    take(bench, {"a": "something else altogether\n"})
    assert life(bench, "a") == [
        ("a", True, None, None),
        ("a", False, None, b"b"),
        ("a", True, None, None),
    ]
    assert [path for path, *_ in life(bench, "b")] == ["b", "a"]


def test_a_file_may_become_a_directory_that_holds_it(bench):
    take(bench, {"a": TEXT})
    take(bench, moves={"a": "tmp"})
    (bench.path / "a").mkdir()
    take(bench, moves={"tmp": "a/main"})
    assert [path for path, *_ in life(bench, "a/main")] == ["a/main", "tmp", "a"]


def test_a_directory_is_followed_and_one_that_only_gave_some_files_is_not(bench):
    take(bench, {f"src/{n}": TEXT + n for n in "abc"})
    take(bench, moves={"src": "lib"})
    assert life(bench, "lib")[0][:3] == ("lib", True, b"src")
    take(bench, moves={"lib/a": "app/a", "lib/b": "app/b"})
    assert life(bench, "app") == [("app", True, None, None)]


def test_what_was_not_looked_at_did_not_come(bench):
    take(bench, {"a": TEXT})
    bench.close()
    bench.rules = type(bench.rules)(exclude=("b",), protect=(), gitignore=False)
    take(bench, moves={"a": "b"})
    bench.close()
    bench.rules = type(bench.rules)(exclude=(), protect=(), gitignore=False)
    take(bench)
    assert [(path, origin) for path, _, origin, _ in life(bench, "b")] == [("b", None)] * 2


def test_what_a_rollback_saved_keeps_its_place_among_the_versions(bench):
    take(bench, {"a": TEXT})
    kept = bench.recorder.keep_displaced({RelPath(b"a"): (FILE, b"saved")}, "met")
    take(bench, moves={"a": "b"})
    found = history_of(bench.history(), RelPath(b"a"))
    assert [v.snapshot.id == kept.id for v in found] == [False, True, False]


def test_damage_in_a_step_ends_the_following_and_is_said(bench, monkeypatch):
    take(bench, {"a": TEXT})
    take(bench, {"b": TEXT + "more\n"}, gone=["a"])
    history = bench.history()
    lost = hash_object("blob", TEXT.encode())
    real = history.store.blob

    def blob(oid):
        return real(Oid(b"\1" * 20) if oid == lost else oid)

    monkeypatch.setattr(history.store, "blob", blob)
    assert [v.path for v in history_of(history, RelPath(b"b"))] == [b"b"]
    assert history.damage


def test_sizes_are_told_without_reading_also_of_deltas(bench):
    texts = [TEXT * 40 + str(n) for n in range(4)]
    for text in texts:
        take(bench, {"a": text})
    command = ["git", f"--git-dir={bench.store.base}", "repack", "-adfq", "--no-write-bitmap-index"]
    subprocess.run(command, check=True, capture_output=True)
    bench.reopen()
    for text in texts:
        assert bench.store.size(hash_object("blob", text.encode())) == len(text)


# What people and programs are told


@pytest.fixture
def work(tmp_path, monkeypatch):
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


@pytest.fixture
def renamed(turnmark, work):
    """Points 3 to 1: `old`, then `new` and `lib` for `src`, then `new` edited."""
    build(work, {"old": TEXT, "src/a": TEXT + "a", "src/b": TEXT + "b"})
    turnmark("snapshot")
    (work / "old").rename(work / "new")
    (work / "src").rename(work / "lib")
    turnmark("snapshot")
    build(work, {"new": TEXT.replace("line 7\n", "seven\n")})
    turnmark("snapshot")
    return work


def test_history_shows_the_names_and_where_an_old_one_lives_on(turnmark, renamed):
    found = json.loads(turnmark("history", "old", "--json").out)
    assert (found["path"], found["last"]) == ("old", "new")
    names = [(v["path"], v["renamed_from"]) for v in found["versions"]]
    assert names == [("new", None), ("new", "old"), ("old", None)]
    said = turnmark("history", "old")
    assert "PATH" in said.out
    assert said.err == "old lives on as new.\n"
    versions = json.loads(turnmark("history", "lib", "--json").out)["versions"]
    assert [v["path"] for v in versions] == ["lib", "src"]
    assert "PATH" not in turnmark("history", "new", "--no-follow").out


def test_a_name_that_no_snapshot_has_yet_is_followed_too(turnmark, renamed):
    (renamed / "new").rename(renamed / "today")
    said = turnmark("history", "today")
    assert said.err == "No snapshot has today yet; it was new before.\n"
    assert len(said.out.splitlines()) == 4
    assert turnmark("cat", "3", "today").out == TEXT
    assert turnmark("diff", "3", "--stat", "--", "today").out.startswith(
        "  R old -> today  +1 -1\n"
    )


def test_cat_follows_a_name_and_says_which_it_used(turnmark, renamed):
    said = turnmark("cat", "3", "new")
    assert said.out == TEXT
    assert said.err == "new was called old at point 3 (manual).\n"
    found = json.loads(turnmark("cat", "3", "lib/a", "--json").out)
    assert (found["path"], found["asked"]) == ("src/a", "lib/a")
    assert turnmark("cat", "3", "lib").out == "a\nb\n"
    assert turnmark("cat", "1", "old").err == "old was called new at point 1 (manual).\n"


def test_a_file_of_today_is_not_taken_for_one_that_had_its_name_before(turnmark, renamed):
    build(renamed, {"old": "somebody else\n"})
    turnmark("snapshot")
    assert turnmark("cat", "2", "old").code == 65
    assert turnmark("rollback", "2", "old", "--yes").code == 0
    assert not (renamed / "old").exists()


def test_a_diff_shows_a_rename_as_one_entry_that_git_applies(turnmark, renamed, tmp_path):
    found = json.loads(turnmark("diff", "3", "1", "--json").out)
    changes = [(c["path"], c["renamed_from"], c["insertions"]) for c in found["changes"]]
    assert changes == [("lib/a", "src/a", 0), ("lib/b", "src/b", 0), ("new", "old", 1)]
    patch = turnmark("diff", "3", "1").out
    copy = build(tmp_path / "copy", {"old": TEXT, "src/a": TEXT + "a", "src/b": TEXT + "b"})
    subprocess.run(["git", "apply", "-"], cwd=copy, input=patch, text=True, check=True)
    assert image(copy) == image(renamed)


@pytest.mark.parametrize("name", ["old", "new"])
def test_a_diff_of_one_path_follows_it_by_either_name(turnmark, renamed, name):
    said = turnmark("diff", "3", "1", "--stat", "--", name)
    assert said.out == "  R old -> new  +1 -1\n  1 file, +1 -1\n"
    assert said.err.startswith(f"{name} at point")
    found = json.loads(turnmark("diff", "3", "1", "--json", "--", name).out)
    assert found["followed"] == [{"path": name, "from": "old", "to": "new"}]


def test_a_diff_follows_also_what_was_rewritten_since(turnmark, renamed):
    build(renamed, {"new": "nothing of it is left\n"})
    turnmark("snapshot")
    said = turnmark("diff", "4", "1", "--stat", "--", "new")
    assert said.out.startswith("  R old -> new  +1 -30\n")
    assert "rename" not in turnmark("diff", "4", "1").out.partition("b/new\n")[2]


def test_a_rollback_of_a_renamed_file_alone_is_refused_and_says_what_to_name(turnmark, renamed):
    before = image(renamed)
    for words in (["--yes"], ["--dry-run"]):
        said = turnmark("rollback", "3", "new", *words)
        assert said.code == 65
        assert "new was called old at point 3 (manual)." in said.err
        assert "turnmark rollback 3 new old" in said.err
    assert image(renamed) == before
    assert turnmark("rollback", "3", "new", "old", "--yes").code == 0
    assert (renamed / "old").read_text() == TEXT
    assert not (renamed / "new").exists()
    assert turnmark("undo", "--yes").code == 0
    assert image(renamed) == before


def test_what_was_deleted_is_found_and_comes_back_under_any_burst(turnmark, renamed):
    shutil.rmtree(renamed / "lib")
    (renamed / "new").unlink()
    turnmark("snapshot")
    found = json.loads(turnmark("find", "lib", "--json").out)["found"][0]
    assert turnmark("cat", found["last"]["id"], "lib/a").out == TEXT + "a"
    assert turnmark("diff", found["last"]["time"], "--stat", "--", "lib").out.count("  D ") == 2
    versions = json.loads(turnmark("history", "new", "--json").out)["versions"]
    assert [v["path"] for v in versions] == ["new", "new", "new", "old"]
    assert turnmark("rollback", found["last"]["id"], "lib", "--yes").code == 0
    assert (renamed / "lib/b").read_text() == TEXT + "b"
