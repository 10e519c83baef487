"""A rollback is exact, touches nothing it does not hold, and can be taken back."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from core.diff import files_of
from core.errors import BadInput, Damaged
from core.history import MarkSpec
from core.model import Oid, RelPath
from core.plan import FUSE_DELETIONS, changed_among, changed_paths
from core.rollback import Request, preview, redo_request, rollback, undo_request
from core.rules import RuleSet
from core.states import seen_state, stored_state
from tests.stores import Bench, fsck
from tests.test_verify import damage_object
from tests.trees import Dir, File, Leaf, Link, build, image

Tree = dict[str | bytes, Leaf]
ODD: Tree = {
    "plain": "x\n",
    "crlf": b"a\r\nb\r\n",
    "ident": "$Id$ and $Id: mine $\n",
    ".gitattributes": "* text=auto eol=lf ident filter=evil working-tree-encoding=UTF-16\n",
    "secret": File("s", 0o600),
    "readonly": File("r", 0o444),
    "setuid": File("#!", 0o4755),
    "group": File("g", 0o664),
    "run": File("#!/bin/sh\n", 0o755),
    "odd run": File("#!/bin/sh\n", 0o711),
    "dangling": Link("does/not/exist"),
    "outside": Link("/etc/passwd"),
    "up": Link(".."),
    "empty/": Dir(),
    "empty private/in/side/": Dir(0o700),
    "locked/": Dir(0o555),
    "locked/inside": "still captured",
    b"\xff\xfe latin \xe9": "not UTF-8",
    b"new\nline": "n",
    b"tab\tand\x1b[31mescape": "t",
    "  leading": "l",
    "-rf": "dash",
    "--help": "dash",
    ":(top)*": "pathspec",
    "br[1]": "glob",
    "br1": "not the glob",
    "quote\"'\\": "q",
    "caf\u00e9": "composed",
    "cafe\u0301": "decomposed",
    "HEAD": "not a ref",
    "n" * 255: "longest name",
    "Case": "upper",
    "case": "lower",
    "nested/.git/HEAD": "ref: refs/heads/main\n",
    "nested/file": "in a nested repository",
    "submodule/.git": "gitdir: ../elsewhere\n",
    "submodule/file": "in a submodule",
    "zeros": b"\0" * 100_000,
    "nothing": "",
    ".gitmodules": '[submodule "x"]\n\tpath = x\n\turl = -u./evil\n',
}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def wreck(path: Path) -> None:
    """What an agent's `rm -rf *` and a few more commands would leave."""
    for name in os.listdir(os.fsencode(path)):
        inner = os.path.join(os.fsencode(path), name)
        if os.path.isdir(inner) and not os.path.islink(inner):
            os.chmod(inner, 0o755)
            if name not in (b"nested", b"submodule"):
                shutil.rmtree(inner)
        else:
            os.unlink(inner)
    os.unlink(path / "nested/file")
    build(path, {"plain/": Dir(), "plain/now": "a directory", "empty": "now a file", "new": "n"})


def test_any_tree_comes_back_exactly_and_the_undo_of_it_too(bench: Bench) -> None:
    build(bench.path, ODD)
    before = image(bench.path)
    point = bench.point()
    wreck(bench.path)
    wrecked = image(bench.path)
    done = bench.back_to(point)
    assert done.outcome == "done"
    assert not done.conflicts
    assert not done.kept
    assert image(bench.path) == before
    bench.go(undo_request(bench.store, bench.root.id))
    assert image(bench.path) == wrecked
    bench.go(redo_request(bench.store, bench.root.id))
    assert image(bench.path) == before
    fsck(bench.store.base)


def test_git_of_the_user_is_never_touched(bench: Bench) -> None:
    build(bench.path, {"a": "1", "sub/.git/config": "[core]\n", "sub/f": "1"})
    subprocess.run(["git", "init", "-q", str(bench.path)], check=True)
    git = image(bench.path / ".git", skip=()), image(bench.path / "sub/.git", skip=())
    point = bench.point()
    build(bench.path, {"a": "2", "sub/f": "2", "b": "3"})
    bench.back_to(point)
    assert git == (image(bench.path / ".git", skip=()), image(bench.path / "sub/.git", skip=()))


def test_unchanged_files_are_not_touched(bench: Bench) -> None:
    build(bench.path, {f"d{n}/f": str(n) for n in range(20)})
    point = bench.point()
    build(bench.path, {"d3/f": "changed"})
    stats = {n: os.stat(bench.path / f"d{n}/f") for n in range(20) if n != 3}
    bench.back_to(point)
    for number, was in stats.items():
        now = os.stat(bench.path / f"d{number}/f")
        assert (now.st_ino, now.st_mtime_ns, now.st_ctime_ns) == (
            *(was.st_ino, was.st_mtime_ns, was.st_ctime_ns),
        )


def test_deeper_than_a_path_may_be_long(bench: Bench) -> None:
    deep = os.open(bench.path, os.O_RDONLY)
    for _ in range(30):
        os.mkdir("d" * 200, dir_fd=deep)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = inner
    file = os.open("leaf", os.O_WRONLY | os.O_CREAT, dir_fd=deep)
    os.write(file, b"down here")
    os.close(file)
    before = image(bench.path)
    point = bench.point()
    os.unlink("leaf", dir_fd=deep)
    os.close(deep)
    bench.back_to(point)
    assert image(bench.path) == before


def test_what_a_point_did_not_capture_is_never_touched(tmp_path: Path) -> None:
    bench = Bench(tmp_path, RuleSet(max_file_size=1000))
    build(
        bench.path,
        {"a": "1", ".gitignore": "data/\n", "data/precious": "ignored", "big": "b" * 2000},
    )
    os.mkfifo(bench.path / "fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(bench.path / "sock"))
        point = bench.point()
        build(bench.path, {"a": "2", "data/precious": "ignored, newer", "big": "B" * 3000})
        kept = image(bench.path)
        done = bench.back_to(point)
    assert done.outcome == "done"
    assert image(bench.path) == kept | {b"a": ("file", 0o644, b"1")}


def test_data_under_a_rule_added_since_survives(tmp_path: Path) -> None:
    bench = Bench(tmp_path, RuleSet())
    build(bench.path, {"a": "1"})
    point = bench.point()
    build(bench.path, {".gitignore": "data/\n", "data/precious": "ignored", "a": "2"})
    bench.back_to(point)
    assert image(bench.path)[b"data/precious"] == ("file", 0o644, b"ignored")
    assert b".gitignore" not in image(bench.path)


def test_data_that_was_ignored_at_the_point_survives_though_it_is_captured_now(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, RuleSet())
    build(bench.path, {".gitignore": "data/\n", "a": "1"})
    point = bench.point()
    (bench.path / ".gitignore").unlink()
    build(bench.path, {"data/precious": "captured now", "a": "2"})
    bench.back_to(point)
    assert image(bench.path)[b"data/precious"] == ("file", 0o644, b"captured now")


@pytest.mark.parametrize("path", [b"data", b"data/precious", b"data/deep/er"])
def test_data_that_was_ignored_at_the_point_survives_also_when_it_is_named(
    tmp_path: Path, path: bytes
) -> None:
    """The rules that say so lie beside the path, and are not asked for."""
    bench = Bench(tmp_path, RuleSet())
    build(bench.path, {".gitignore": "data/\n", "a": "1"})
    point = bench.point()
    (bench.path / ".gitignore").unlink()
    build(bench.path, {"data/precious": "captured now", "data/deep/er/f": "too", "a": "2"})
    before = image(bench.path)
    assert bench.back_to(point, paths=(RelPath(path),)).outcome == "nothing"
    assert image(bench.path) == before


def test_a_file_that_grew_past_the_cap_is_kept_and_said(tmp_path: Path) -> None:
    bench = Bench(tmp_path, RuleSet(max_file_size=100))
    build(bench.path, {"grows": "small", "a": "1"})
    point = bench.point()
    build(bench.path, {"grows": "g" * 500, "a": "2"})
    done = bench.back_to(point)
    assert [(left.path, left.reason) for left in done.kept] == [(b"grows", "oversize now")]
    assert (bench.path / "grows").read_text() == "g" * 500


def test_a_directory_with_excluded_files_in_it_stays_and_is_no_exception(tmp_path: Path) -> None:
    bench = Bench(tmp_path, RuleSet())
    build(bench.path, {"a": "1"})
    point = bench.point()
    build(bench.path, {"pkg/m.py": "new", "pkg/__pycache__/m.pyc": "cache"})
    done = bench.back_to(point)
    assert (done.outcome, done.kept, done.conflicts) == ("done", (), ())
    assert set(image(bench.path)) == {b"a", b"pkg", b"pkg/__pycache__", b"pkg/__pycache__/m.pyc"}


def test_a_directory_is_not_replaced_by_a_file_while_it_holds_what_was_not_captured(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, RuleSet())
    build(bench.path, {"p": "a file"})
    point = bench.point()
    (bench.path / "p").unlink()
    build(bench.path, {"p/data.log": "excluded", "p/f": "captured"})
    done = bench.back_to(point)
    assert [left.path for left in done.kept] == [b"p"]
    assert image(bench.path)[b"p/data.log"] == ("file", 0o644, b"excluded")


def test_nested_root_is_left_alone(tmp_path: Path) -> None:
    bench = Bench(tmp_path, RuleSet(exclude=(), nested=frozenset({RelPath(b"inner")})))
    build(bench.path, {"a": "1", "inner/f": "1"})
    point = bench.point()
    build(bench.path, {"a": "2", "inner/f": "2"})
    bench.back_to(point)
    assert image(bench.path)[b"inner/f"] == ("file", 0o644, b"2")


def test_single_paths_bring_only_themselves_and_missing_directories(bench: Bench) -> None:
    build(bench.path, {"a": "1", "d/e/f": "1", "d/other": "1"})
    point = bench.point()
    shutil.rmtree(bench.path / "d")
    build(bench.path, {"a": "2"})
    done = bench.back_to(point, paths=(RelPath(b"d/e/f"),))
    assert done.outcome == "done"
    assert image(bench.path)[b"a"] == ("file", 0o644, b"2")
    assert set(image(bench.path)) == {b"a", b"d", b"d/e", b"d/e/f"}
    bench.go(undo_request(bench.store, bench.root.id))
    assert b"d/e/f" not in image(bench.path)


def test_a_path_that_is_nowhere_is_an_error(bench: Bench) -> None:
    build(bench.path, {"a": "1"})
    point = bench.point()
    with pytest.raises(BadInput, match="neither in a point nor in the workspace"):
        bench.back_to(point, paths=(RelPath(b"typo"),))


def test_an_empty_directory_can_be_named_like_a_file(bench: Bench) -> None:
    build(bench.path, {"a": "1"})
    without = bench.point()
    build(bench.path, Tree({"empty/": Dir(0o750), "a": "2"}))
    held, empty = bench.point(), (RelPath(b"empty"),)
    assert bench.back_to(held, paths=empty).outcome == "nothing"
    (bench.path / "empty").rmdir()
    assert bench.back_to(held, paths=empty).outcome == "done"
    assert image(bench.path) == {b"a": ("file", 0o644, b"2"), b"empty": ("dir", 0o750)}
    assert bench.back_to(without, paths=empty).outcome == "done"
    assert image(bench.path) == {b"a": ("file", 0o644, b"2")}
    with pytest.raises(BadInput, match="neither in a point nor in the workspace"):
        bench.back_to(without, paths=empty)


@pytest.mark.parametrize("other", ["typography", "big"])
def test_a_slip_of_the_pen_is_told_whatever_else_is_asked_for(tmp_path: Path, other: str) -> None:
    """Also beside a path that begins alike, or one that is to be kept."""
    bench = Bench(tmp_path, RuleSet(max_file_size=100))
    build(bench.path, {"typography": "1", "big": "1"})
    point = bench.point()
    build(bench.path, {"typography": "2", "big": "b" * 500})
    with pytest.raises(BadInput, match="typo is neither in a point nor in the workspace"):
        bench.back_to(point, paths=(RelPath(other.encode()), RelPath(b"typo")))
    assert (bench.path / "typography").read_text() == "2"


def test_a_path_that_is_there_and_left_out_is_not_said_to_be_missing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, RuleSet())
    build(bench.path, {".gitignore": "data/\n", "a": "1"})
    point = bench.point()
    build(bench.path, {"data/f": "1"})
    for name in (b"data", b"data/f"):
        with pytest.raises(BadInput, match=f"{name.decode()} is left as it is: ignored now"):
            bench.back_to(point, paths=(RelPath(name),))
    build(bench.path, {".gitignore": ""})
    assert bench.back_to(point, paths=(RelPath(b"data/f"),)).outcome == "nothing"
    assert (bench.path / "data/f").read_text() == "1"


def aside(bench: Bench) -> Request:
    """To what a rollback had met in files that it moved aside."""
    build(bench.path, {"d/x": File("now", 0o600), "d/y": "y", "e": "e"})
    bench.point()
    found = {
        RelPath(b"d/x"): (0o100600, b"saved"),
        RelPath(b"run"): (0o100750, b"#!"),
        RelPath(b"link"): (0o120777, b"d/x"),
        RelPath(b"plain"): (0o100644, b"plain"),
    }
    kept = bench.recorder.keep_displaced(found, "met")
    return Request(kept.id, kept.seq, "what was moved aside")


def test_what_was_moved_aside_comes_back_path_by_path_as_it_was(bench: Bench) -> None:
    request = aside(bench)
    before = image(bench.path)
    names = (b"d/x", b"run", b"link", b"plain")
    done = bench.go(replace(request, paths=tuple(map(RelPath, names))))
    assert (done.outcome, done.conflicts) == ("done", ())
    assert image(bench.path) == before | {
        b"d/x": ("file", 0o600, b"saved"),
        b"run": ("file", 0o750, b"#!"),
        b"link": ("link", b"d/x"),
        b"plain": ("file", 0o644, b"plain"),
    }
    bench.go(undo_request(bench.store, bench.root.id))
    assert image(bench.path) == before
    fsck(bench.store.base)


@pytest.mark.parametrize("paths", [(), (b"e",), (b"d",), (b"d/y", b"d/x"), (b"typo",)])
def test_what_was_moved_aside_says_nothing_of_other_paths(
    bench: Bench, paths: tuple[bytes, ...]
) -> None:
    request = replace(aside(bench), paths=tuple(map(RelPath, paths)))
    before = image(bench.path)
    for ask in (preview, rollback):
        with pytest.raises(BadInput, match="holds only files that a rollback") as caught:
            ask(bench.recorder, request)
        assert "d/x, link, plain, run" in caught.value.hint
    assert image(bench.path) == before


def test_nothing_to_do_leaves_no_point(bench: Bench) -> None:
    build(bench.path, {"a": "1"})
    point = bench.point()
    assert bench.back_to(point).outcome == "nothing"
    assert len(bench.history().mark_ids) == 1


def test_fuses_need_the_hash_of_the_plan(bench: Bench) -> None:
    empty = bench.point()
    build(bench.path, {"a": "1", "b": "2"})
    assert empty.mark
    request = Request(empty.snapshot.id, empty.mark.seq, "the empty point")
    refused = rollback(bench.recorder, request)
    assert (refused.outcome, set(image(bench.path))) == ("refused", {b"a", b"b"})
    assert "no files at all" in refused.reason
    assert bench.back_to(empty).outcome == "done"
    assert image(bench.path) == {}


def test_a_single_path_has_its_fuse_too(bench: Bench) -> None:
    build(bench.path, {"d/kept": "1", "other": "1"})
    point = bench.point()
    build(bench.path, {f"d/{n}": "new" for n in range(FUSE_DELETIONS + 1)})
    full = image(bench.path)
    assert point.mark
    request = Request(point.snapshot.id, point.mark.seq, "p", paths=(RelPath(b"d"),))
    refused = rollback(bench.recorder, request)
    assert (refused.outcome, refused.reason) == ("refused", "it would delete 101 of 102 files")
    assert image(bench.path) == full
    assert bench.go(request).outcome == "done"
    assert set(image(bench.path)) == {b"d", b"d/kept", b"other"}


@pytest.mark.parametrize("many", [FUSE_DELETIONS, 4 * FUSE_DELETIONS], ids=["few", "a small share"])
def test_a_single_path_that_loses_little_needs_no_hash(bench: Bench, many: int) -> None:
    few = many == FUSE_DELETIONS
    build(bench.path, {"d/kept": "1"} | ({} if few else {f"d/k{n}": "1" for n in range(many)}))
    point = bench.point()
    build(bench.path, {f"d/{n}": "new" for n in range(FUSE_DELETIONS + (not few))})
    assert point.mark
    request = Request(point.snapshot.id, point.mark.seq, "p", paths=(RelPath(b"d"),))
    assert rollback(bench.recorder, request).outcome == "done"
    assert not [path for path in image(bench.path) if path[2:].isdigit()]


PRIVATE: Tree = {
    "": Dir(0o700),
    "f": File("x", 0o600),
    "run": File("x", 0o700),
    "link": Link("f"),
    "empty/": Dir(0o700),
    "d/": Dir(0o700),
    "d/f": File("x", 0o600),
    "odd": File("x", 0o640),
}
PUBLIC: Tree = {
    "": Dir(0o755),
    "f": File("x", 0o644),
    "run": File("x", 0o755),
    "link": Link("f"),
    "empty/": Dir(0o755),
    "d/": Dir(0o755),
    "d/f": File("x", 0o644),
    "odd": File("x", 0o640),
}


def test_modes_come_back_also_where_other_ones_are_usual_now(bench: Bench) -> None:
    """No snapshot writes down what is usual for it: only that has changed here, and every mode."""
    build(bench.path, PUBLIC)
    point, was = bench.point(), image(bench.path)
    (bench.path / "link").unlink()
    build(bench.path, PRIVATE)
    newest = bench.point().snapshot
    forget_what_is_usual(bench, newest.about)
    now = bench.point()
    one, other = (stored_state(bench.store, taken.snapshot) for taken in (point, now))
    assert one.about.usual != other.about.usual
    changed = {path for path, leaf in image(bench.path).items() if was[path] != leaf}
    assert changed == {b"f", b"run", b"empty", b"d", b"d/f"}
    assert changed_paths(other, one) == changed | {RelPath(b"")}
    few = {RelPath(b"f"), RelPath(b"link"), RelPath(b"odd"), RelPath(b"empty")}
    assert set(changed_among(other, one, few)) == {b"f", b"empty"}
    assert bench.back_to(point, paths=(RelPath(b"d"),)).outcome == "done"
    before = image(bench.path)
    assert {path for path, leaf in before.items() if was[path] == leaf} == {
        *(b"d", b"d/f", b"link", b"odd")
    }
    assert bench.back_to(point).outcome == "done"
    assert image(bench.path) == was
    assert bench.path.stat().st_mode & 0o777 == 0o755
    bench.go(undo_request(bench.store, bench.root.id))
    assert image(bench.path) == before


def forget_what_is_usual(bench: Bench, about: Oid) -> None:
    """With the records of earlier looks, and the newest snapshot's own."""
    bench.close()
    for end in ("", "-wal", "-shm"):
        Path(f"{bench.store.base}/turnmark/cache/{bench.root.id}.db{end}").unlink(missing_ok=True)
    damage_object(bench.store, about)


def test_a_plan_that_is_not_the_one_shown_is_refused(bench: Bench) -> None:
    build(bench.path, {"a": "1"})
    point = bench.point()
    assert point.mark
    build(bench.path, {"a": "2"})
    request = Request(point.snapshot.id, point.mark.seq, "p", plan="0123456789abcdef")
    assert rollback(bench.recorder, request).outcome == "refused"


def test_a_preview_stores_nothing_and_changes_nothing(bench: Bench) -> None:
    build(bench.path, {"a": "1"})
    point = bench.point()
    assert point.mark
    build(bench.path, {"a": "2", "b": "3"})
    store, tree = image(bench.store.base), image(bench.path)
    bench.close()
    shown = preview(bench.recorder, Request(point.snapshot.id, point.mark.seq, "p"))
    bench.close()
    assert [step.action for step in shown.plan.steps] == ["replace", "delete"]
    assert image(bench.path) == tree
    changed = {path for path, leaf in image(bench.store.base).items() if store.get(path) != leaf}
    assert all(path.startswith(b"turnmark/cache") for path in changed)


def test_a_preview_by_records_that_prove_nothing_any_more_says_the_same(bench: Bench) -> None:
    build(bench.path, {"a": "1", "d/b": "1"})
    point = bench.point()
    build(bench.path, {"a": "2"})
    bench.close()
    bench.store.next_generation()
    assert point.mark
    shown = preview(bench.reopen(), Request(point.snapshot.id, point.mark.seq, "p"))
    assert [(step.action, step.path) for step in shown.plan.steps] == [("replace", b"a")]
    assert bench.back_to(point).plan.hash == shown.plan.hash


def removed(path: Path) -> None:
    path.unlink()


def made_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def made_a_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def made_a_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("../outside")


@pytest.mark.parametrize("change", [removed, made_a_directory, made_a_fifo, made_a_link])
def test_a_preview_reads_nothing_but_the_file_that_it_has_seen(
    bench: Bench, change: Callable[[Path], None]
) -> None:
    """It neither fails, nor waits, nor is led out of the workspace."""
    build(bench.base, {"outside": "not ours"})
    bench.point()
    build(bench.path, {"f": "seen, and in no snapshot", "g": "too"})
    state = seen_state(bench.recorder, bench.recorder.look())
    entries = dict(files_of(state.read_tree, state.files))
    change(bench.path / "f")
    said = b"../outside" if change is made_a_link else b""
    assert state.read_blob(entries[RelPath(b"f")].oid) == said
    assert state.read_blob(entries[RelPath(b"g")].oid) == b"too"
    with pytest.raises(Damaged):
        state.read_blob(Oid(bytes(20)))


def test_undo_and_redo_any_number_of_steps(bench: Bench) -> None:
    states = []
    points = []
    for number in range(4):
        build(bench.path, {"f": str(number), f"only{number}": "x"})
        points.append(bench.point())
    for point in (points[0], points[2], points[1]):
        states.append(image(bench.path))
        bench.back_to(point)
    states.append(image(bench.path))
    for state in states[-2::-1]:
        bench.reopen()
        bench.go(undo_request(bench.store, bench.root.id))
        assert image(bench.path) == state
    assert undo_request(bench.store, bench.root.id) is None
    for state in states[1:]:
        bench.go(redo_request(bench.store, bench.root.id))
        assert image(bench.path) == state
    assert redo_request(bench.store, bench.root.id) is None


def test_redo_brings_back_edits_made_before_the_undo(bench: Bench) -> None:
    build(bench.path, {"f": "1"})
    point = bench.point()
    build(bench.path, {"f": "2"})
    bench.back_to(point)
    build(bench.path, {"f": "edited after the rollback"})
    edited = image(bench.path)
    bench.go(undo_request(bench.store, bench.root.id))
    bench.go(redo_request(bench.store, bench.root.id))
    assert image(bench.path) == edited


def test_turns_that_are_taken_back_are_named_once(bench: Bench) -> None:
    begun = []
    for number in (1, 2, 3):
        build(bench.path, {"f": str(number)})
        spec = MarkSpec("turn-begin", f"p{number}", "s", number, extra={"messages": number * 2})
        begun.append(bench.recorder.take(mark=spec))
        build(bench.path, {"f": f"{number} done"})
        bench.recorder.take(mark=MarkSpec("turn-end", "", "s", number, status="ok"))
    first = bench.back_to(begun[1])
    assert [turn["turn"] for turn in first.turns_undone] == [2, 3]
    assert first.turns_undone[0]["messages"] == 4
    second = bench.back_to(begun[0])
    assert [turn["turn"] for turn in second.turns_undone] == [1]


def test_a_file_open_for_writing_is_a_conflict_and_keeps_its_writer(bench: Bench) -> None:
    build(bench.path, {"log": "1\n", "a": "1"})
    point = bench.point()
    build(bench.path, {"log": "1\n2\n", "a": "2"})
    with open(bench.path / "log", "a") as writer:
        done = bench.back_to(point)
        writer.write("3\n")
    assert [left.path for left in done.conflicts] == [b"log"]
    assert (bench.path / "log").read_text() == "1\n2\n3\n"
    assert (bench.path / "a").read_text() == "1"


def agent(path: Path, names: list[str], stop: threading.Event, said: dict[str, bytes]) -> None:
    """Writes in place and by rename until told to stop; remembers the last thing it said."""
    chance = random.Random(1)
    count = 0
    while not stop.is_set():
        name, count = chance.choice(names), count + 1
        data = b"agent %d" % count
        try:
            if count % 2:
                with open(path / name, "r+b") as file:
                    file.truncate()
                    file.write(data)
            else:
                (path / f"{name}~").write_bytes(data)
                os.rename(path / f"{name}~", path / name)
            said[name] = data
        except FileNotFoundError:
            continue


def test_a_racing_agent_loses_nothing(bench: Bench) -> None:
    names = [f"f{n}" for n in range(40)]
    for _ in range(5):
        build(bench.path, dict.fromkeys(names, "old"))
        point = bench.point()
        build(bench.path, dict.fromkeys(names, "new") | {f"extra{n}": "x" for n in range(40)})
        stop, said = threading.Event(), dict[str, bytes]()
        every = [*names, *(f"extra{n}" for n in range(40))]
        writer = threading.Thread(target=agent, args=(bench.path, every, stop, said))
        writer.start()
        try:
            assert point.mark
            rollback(bench.recorder, Request(point.snapshot.id, point.mark.seq, "p"))
        finally:
            stop.set()
            writer.join()
        bench.recorder.take()
        on_disk = {leaf[-1] for leaf in image(bench.path).values() if leaf[0] == "file"}
        lost = {n for n, data in said.items() if data not in on_disk | bench.every_blob()}
        assert not lost
        assert not [name for name in os.listdir(bench.path) if name.startswith(".turnmark")]
    fsck(bench.store.base)


def test_nothing_outside_the_root_is_reached_through_a_swapped_directory(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    outside = build(tmp_path / "outside", {"canary": "untouched"})
    build(bench.path, {"d/canary": "old"})
    point = bench.point()
    build(bench.path, {"d/canary": "new"})
    bench.recorder.take()
    shutil.move(bench.path / "d", tmp_path / "aside")
    os.symlink(outside, bench.path / "d")
    bench.back_to(point)
    assert (outside / "canary").read_text() == "untouched"
    assert image(bench.path)[b"d/canary"] == ("file", 0o644, b"old")


def test_rollback_works_under_ordinary_rules_with_a_protected_file(tmp_path: Path) -> None:
    bench = Bench(tmp_path, RuleSet())
    build(bench.path, {".gitignore": ".env\n", ".env": File("KEY=1", 0o600)})
    point = bench.point()
    (bench.path / ".env").unlink()
    bench.back_to(point)
    assert image(bench.path)[b".env"] == ("file", 0o600, b"KEY=1")


def test_a_file_too_big_at_the_point_and_small_now_is_not_deleted(tmp_path: Path) -> None:
    bench = Bench(tmp_path, RuleSet(max_file_size=100))
    build(bench.path, {"shrinks": "s" * 500, "a": "1"})
    point = bench.point()
    build(bench.path, {"shrinks": "small now", "a": "2"})
    done = bench.back_to(point)
    assert [(left.path, left.reason) for left in done.kept] == [
        (b"shrinks", "oversize at that point")
    ]
    assert image(bench.path)[b"shrinks"] == ("file", 0o644, b"small now")


def test_a_mode_goes_back_for_one_name_of_a_file_and_not_for_the_others(tmp_path: Path) -> None:
    """Found by a reviewer: one of them lay outside the root, and was opened to everybody."""
    bench = Bench(tmp_path)
    build(bench.path, {"x": File("same", 0o644), "a": File("v", 0o600), "b": File("v", 0o644)})
    point = bench.point()
    before = image(bench.path)
    secret = tmp_path / "secret"
    secret.write_text("same")
    secret.chmod(0o600)
    for name, other in (("x", secret), ("a", bench.path / "b")):
        (bench.path / name).unlink()
        os.link(other, bench.path / name)
    done = bench.back_to(point)
    assert (done.outcome, done.conflicts) == ("done", ())
    assert image(bench.path) == before
    assert secret.stat().st_mode & 0o777 == 0o600


def test_what_is_protected_comes_back_into_a_directory_that_is_left_out(tmp_path: Path) -> None:
    """Found by a reviewer: with the last of them gone, the directory counted as left out."""
    bench = Bench(tmp_path, RuleSet(exclude=(), protect=("data/dev.db",)))
    build(bench.path, {".gitignore": "data/\n", "data/dev.db": "rows", "data/other": "x"})
    point = bench.point()
    (bench.path / "data/dev.db").unlink()
    done = bench.back_to(point)
    assert (done.outcome, done.kept, done.conflicts) == ("done", (), ())
    assert (bench.path / "data/dev.db").read_text() == "rows"
    assert (bench.path / "data/other").read_text() == "x"
