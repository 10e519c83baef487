"""Hostile stores, journals and moments: a rollback refuses or reports, never escapes or wedges."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from core import imports
from core.about import Usual, encode_about
from core.diff import files_of
from core.disk import REAL, Disk
from core.errors import Damaged, TurnmarkError
from core.history import MarkSpec, snapshot_ref, write_snapshot
from core.imports import import_stores
from core.journal import JournalFile
from core.model import EXEC, FILE, LINK, Entry, Oid, RelPath, Snapshot, rfc3339
from core.recorder import Recorder, Taken, build_tree
from core.rollback import Request, finish_interrupted, rollback, undo_request
from core.store import Store
from core.timeline import Timeline
from tests.faults import dies
from tests.stores import ALL, Bench, fsck
from tests.test_rollback_faults import check_nothing_lost, run_rollback, two_states
from tests.trees import Dir, File, Leaf, Link, build, image

TX = "0123456789abcdef"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path)
    build(bench.path, {"a": "now"})
    build(tmp_path / "outside", {"old/precious": "p", "new/precious": "q"})
    bench.point()
    return bench


def forge(bench: Bench, tree: dict[bytes, tuple[int, bytes]], line: bytes = b"") -> Request:
    """A way to a snapshot that nobody took: any tree, any line in its `about`."""
    recorder = bench.recorder
    recorder.seq += 1
    with bench.store.writing() as writer:
        entries = {RelPath(p): Entry(m, writer.add("blob", d)) for p, (m, d) in tree.items()}
        files = build_tree(writer, entries)
        about = writer.add("blob", encode_about(Usual(), bench.rules, {}) + line)
        told = Snapshot(Oid(b""), bench.root.id, recorder.seq, 1, files, about)
        told = write_snapshot(writer, told, bench.root.shown)
        writer.settle(sync=True, refs=[(snapshot_ref(told), told.id)])
        writer.publish(sync=True)
    return Request(told.id, told.seq, "forged")


def still_works(bench: Bench) -> None:
    bench.reopen()
    bench.finish()
    bench.recorder.take()
    assert not [name for name in os.listdir(bench.path) if name.startswith(".turnmark")]


# Snapshots


@pytest.mark.parametrize(
    "line",
    [
        {"dir": "../escaped", "empty": True},
        {"dir": "../outside", "empty": True, "mode": 0o777},
        {"dir": "a/../../outside", "empty": True, "mode": 0o777},
        {"dir": "nul\0", "empty": True},
        {"dir": "e", "empty": True, "mode": 1 << 80},
        {"dir": "", "modes": {"a": -1}},
        {"dir": "", "modes": {"a": 1e999}},
        {"dir": "", "gaps": {"../outside": "special"}},
    ],
)
def test_a_record_that_leads_out_of_the_root_or_holds_no_mode_is_damage(
    bench: Bench, line: dict[str, object]
) -> None:
    before = image(bench.base, skip=(b"home",))
    point = forge(bench, {b"a": (FILE, b"then")}, json.dumps(line).encode() + b"\n")
    with pytest.raises(Damaged):
        bench.go(point)
    assert image(bench.base, skip=(b"home",)) == before


def test_a_record_nested_too_deep_is_damage(bench: Bench) -> None:
    with pytest.raises(Damaged):
        bench.go(forge(bench, {b"a": (FILE, b"then")}, b"[" * 100_000 + b"\n"))
    still_works(bench)


@pytest.mark.parametrize("path", [".git/hooks/post-checkout", "sub/.GIT/config", "git~1/config"])
def test_git_is_not_written_though_a_point_says_it_was_captured(bench: Bench, path: str) -> None:
    tree = {b"a": (FILE, b"then"), path.encode(): (EXEC, b"#!/bin/sh\n")}
    done = bench.go(forge(bench, tree))
    assert (bench.path / "a").read_text() == "then"
    assert not (bench.path / path).parent.exists()
    assert "never written" in {left.reason for left in done.kept}


def test_staging_is_not_written_though_a_point_says_it_was_captured(bench: Bench) -> None:
    bench.go(forge(bench, {b".turnmark-staging-x/new/0": (FILE, b"x"), b"a": (FILE, b"then")}))
    still_works(bench)


@pytest.mark.parametrize("target", [b"", b"x\0y"])
def test_a_link_that_cannot_be_made_stops_a_rollback_before_it_begins(
    bench: Bench, target: bytes
) -> None:
    with pytest.raises(Damaged):
        bench.go(forge(bench, {b"a": (FILE, b"then"), b"link": (LINK, target)}))
    assert (bench.path / "a").read_text() == "now"
    still_works(bench)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can read what nobody may read")
def test_a_file_that_nobody_may_read_comes_back_so(bench: Bench) -> None:
    build(bench.path, {"closed": File("x", 0)})
    point = bench.point()
    (bench.path / "closed").unlink()
    assert not bench.back_to(point).conflicts
    assert image(bench.path)[b"closed"] == ("file", 0, b"x")


# Journals


def plant(bench: Bench, point: Taken, *, applying: bool, **changes: object) -> None:
    info = os.stat(bench.path)
    doc = {
        "journal": 1,
        "tx": TX,
        "root": [info.st_dev, info.st_ino],
        "target": point.snapshot.id.hex(),
        "before": point.snapshot.id.hex(),
        "steps": [],
        "extra": {"title": "t"},
    }
    file = JournalFile(REAL, bench.store.base, bench.root.id)
    Path(file.path).write_text(json.dumps({**doc, **changes}))
    if applying:
        Path(file.marker).touch()


@pytest.mark.parametrize("applying", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {"tx": "/../../outside"},
        {"tx": 5},
        {"tx": "nul\0"},
        {"tx": "\udcff"},
        {"tx": "a" * 300},
        {"root": [1e999, 1]},
        {"extra": {}},
        {"extra": []},
        {"steps": [["delete", "../outside/x", ["file", "00" * 20, 420], None]]},
        {"steps": 5},
    ],
)
def test_a_journal_that_is_not_ours_is_put_aside(
    bench: Bench, changes: dict[str, object], *, applying: bool
) -> None:
    point = bench.point()
    (bench.path / ".turnmark-staging-").mkdir()
    before = image(bench.base / "outside")
    plant(bench, point, applying=applying, **changes)
    bench.reopen()
    assert bench.finish() is None
    assert image(bench.base / "outside") == before
    assert bench.recorder.take().durable


STRAYS: list[dict[str | bytes, Leaf]] = [
    {"new/": Dir(), "old/": Dir(), "stray": "s"},
    {"new/": Dir(), "old/": Dir(), "stray/f": "s"},
    {"new/0/f": "s", "old/": Dir()},
    {"new": "s", "old/": Dir()},
    {"new/": Dir(), "old": Link("/")},
]


@pytest.mark.parametrize("applying", [False, True])
@pytest.mark.parametrize("strays", STRAYS)
def test_what_others_put_into_staging_is_kept_and_wedges_nothing(
    bench: Bench, strays: dict[str | bytes, Leaf], *, applying: bool
) -> None:
    point = bench.point()
    build(bench.path / f".turnmark-staging-{TX}", strays)
    plant(bench, point, applying=applying)
    still_works(bench)
    saved = {leaf[-1] for leaf in image(bench.path).values()} | set(bench.every_blob())
    assert saved & {b"s", b"/"}


def test_a_disk_that_changed_its_number_does_not_leave_a_rollback_unfinished(
    bench: Bench,
) -> None:
    point = bench.point()
    build(bench.path / f".turnmark-staging-{TX}", {"new/": Dir(), "old/0": "displaced"})
    plant(bench, point, applying=True, root=[0, os.stat(bench.path).st_ino])
    still_works(bench)
    assert b"displaced" in bench.every_blob()


# Moments


class Moment(Disk):
    """Does something once, just before a file with some name is made or linked."""

    def __init__(self, name: str, then: Callable[[], object]) -> None:
        self.name = name
        self.then: Callable[[], object] | None = then

    def _at(self, name: object) -> None:
        if self.name in str(name) and self.then is not None:
            then, self.then = self.then, None
            then()

    def create(self, name: bytes | str, data: bytes, *, sync: bool, mode: int = 0o600) -> None:
        self._at(name)
        super().create(name, data, sync=sync, mode=mode)

    def link(
        self, old: bytes | str, new: bytes | str, at: int | None = None, to: int | None = None
    ) -> None:
        self._at(new)
        super().link(old, new, at, to)


def test_a_root_replaced_after_the_plan_is_not_rolled_back(bench: Bench) -> None:
    point = bench.point()
    build(bench.path, {"a": "changed"})
    (bench.path / "gone").mkdir()

    def replace_root() -> None:
        bench.path.rename(bench.base / "moved")
        build(bench.path, {"a": "another", "gone/": Dir()})

    bench.reopen(Moment("/m/", replace_root))
    with pytest.raises(TurnmarkError, match="taken the place"):
        bench.back_to(point)
    assert (bench.path / "a").read_text() == "another"
    assert (bench.path / "gone").is_dir()


def test_permissions_are_set_on_the_file_that_was_planned_and_on_no_other(bench: Bench) -> None:
    build(bench.path, {"a": File("mine", 0o644)})
    point = bench.point()
    (bench.path / "a").chmod(0o600)
    secret = bench.base / "secret"
    build(bench.base, {"secret": File("s", 0o600)})

    def swap() -> None:
        (bench.path / "a").unlink()
        os.link(secret, bench.path / "a")

    bench.reopen(Moment(".applying", swap))
    assert [left.reason for left in bench.back_to(point).conflicts] == ["changed since"]
    assert secret.stat().st_mode & 0o777 == 0o600


def test_a_rollback_of_one_path_reports_no_other(bench: Bench) -> None:
    point = bench.point()
    build(bench.path, {"a": "changed", "other": "x"})
    bench.path.chmod(0o555)
    (bench.path / "a").unlink()
    done = bench.back_to(point, paths=(RelPath(b"a"),))
    assert not done.conflicts
    assert bench.path.stat().st_mode & 0o777 == 0o555
    bench.path.chmod(0o755)


class OfTheOwner(Disk):
    """As for anybody but root: names change only in directories that may be written to."""

    def mkdir(self, name: bytes | str, mode: int = 0o700, at: int | None = None) -> None:
        self._check(at)
        super().mkdir(name, mode, at)

    def rmdir(self, name: bytes | str, at: int | None = None) -> None:
        self._check(at)
        super().rmdir(name, at)

    def _check(self, at: int | None) -> None:
        if at is not None and not self.fstat(at).st_mode & 0o200:
            raise PermissionError(errno.EACCES, "denied")


def test_a_root_that_its_owner_may_not_write_to_is_reached_and_left_again(bench: Bench) -> None:
    bench.path.chmod(0o555)
    point = bench.point()
    bench.path.chmod(0o755)
    build(bench.path, {"a": "changed"})
    bench.reopen(OfTheOwner())
    assert not bench.back_to(point).conflicts
    assert (os.listdir(bench.path), bench.path.stat().st_mode & 0o777) == (["a"], 0o555)
    bench.go(undo_request(bench.store, bench.root.id))
    assert (os.listdir(bench.path), bench.path.stat().st_mode & 0o777) == (["a"], 0o755)


def test_displaced_contents_are_kept_though_one_lies_where_another_is_a_directory(
    bench: Bench,
) -> None:
    point = bench.point()
    staging = f".turnmark-staging-{TX}"
    build(bench.path / staging, {"new/": Dir(), "old/0": "first", "old/1": "second"})
    old = ["file", "11" * 20, 0o644]
    plant(bench, point, applying=True, steps=[["delete", p, old, None] for p in ("x", "x/y")])
    bench.reopen()
    bench.finish()
    kept = [one for one in bench.history().snapshots() if one.partial]
    held = [bench.store.blob(e.oid) for _, e in files_of(bench.store.tree, kept[0].files)]
    assert sorted(held) == [b"first", b"second"]


class DyingLate(Disk):
    """All contents are back by then, and no directory has its permissions yet."""

    def chmod(self, fd: int, mode: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            os.kill(os.getpid(), signal.SIGKILL)
        super().chmod(fd, mode)


def die_late(bench: Bench, request: Request, _disk: Disk) -> None:
    run_rollback(bench, request, DyingLate())


def finish_with(bench: Bench, disk: Disk) -> None:
    recorder = Recorder(Store.open(bench.store.base, disk), bench.root, ALL)
    finish_interrupted(recorder)
    recorder.close()


def test_killed_while_finishing_a_killed_one_it_is_finished_all_the_same(tmp_path: Path) -> None:
    for number in range(1, 1000):
        bench, request, before, now = two_states(tmp_path / str(number))
        bench.close()
        assert dies(partial(die_late, bench, request), 0)
        died = dies(partial(finish_with, bench), number)
        check_nothing_lost(bench, now)
        bench.reopen()
        bench.finish()
        assert image(bench.path) == before, f"neither finished nor begun after death {number}"
        bench.close()
        if not died:
            fsck(bench.store.base)
            return


# Plans and imports


def test_a_plan_is_not_guessed_by_its_first_digit(bench: Bench) -> None:
    point = bench.point()
    build(bench.path, {"a": "changed"})
    assert point.mark is not None
    for digit in "0123456789abcdef":
        request = Request(point.snapshot.id, point.mark.seq, "a point", plan=digit)
        assert rollback(bench.recorder, request).outcome == "refused"


def test_an_imported_store_runs_nothing_of_its_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with a git that knows no GIT_NO_LAZY_FETCH."""
    monkeypatch.delitem(imports.ALONE, "GIT_NO_LAZY_FETCH")
    legacy = tmp_path / "legacy"
    git = partial(subprocess.run, check=True, capture_output=True, text=True, cwd=tmp_path)
    git(["git", "init", "-q", "--bare", str(legacy)])
    inside = ["git", f"--git-dir={legacy}"]
    blob = git([*inside, "hash-object", "-w", "--stdin"], input="x").stdout.strip()
    tree = git([*inside, "mktree"], input=f"100644 blob {blob}\tf\n").stdout.strip()
    who = ["-c", "user.name=n", "-c", "user.email=e"]
    commit = git([*inside, *who, "commit-tree", "-m", "m", tree]).stdout.strip()
    git([*inside, "update-ref", "HEAD", commit])
    for key, value in {
        "core.repositoryformatversion": "1",
        "extensions.partialClone": "evil",
        "remote.evil.promisor": "true",
        "remote.evil.url": f"ext::touch {tmp_path}/ran",
        "protocol.ext.allow": "always",
    }.items():
        git([*inside, "config", key, value])
    (legacy / "HERMES_WORKDIR").write_text(str(tmp_path / "work"))
    shutil.rmtree(legacy / "objects" / blob[:2])
    found = import_stores(Store.create(f"{tmp_path}/store"), str(legacy))
    # git's own words where it has ended before it is asked for the object
    assert re.search("lacks the object|missing object", found[0].error)
    assert not (tmp_path / "ran").exists()


def test_a_record_of_an_impossible_time_hides_no_other(bench: Bench) -> None:
    bench.recorder.clock = lambda: 10**30
    build(bench.path, {"a": "changed"})
    bench.recorder.take(mark=MarkSpec("manual"))
    points = Timeline(bench.store, bench.root.id).points()
    assert all(rfc3339(point.time_ns) for point in points)
    assert len(list(bench.history().snapshots())) == 1
