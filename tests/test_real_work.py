"""Real work is captured whole: what a mark holds is what lies on the disk, byte for byte.

Small by default; TURNMARK_FULL=1 gives the sizes of the promise.
"""

from __future__ import annotations

import mmap
import os
import shutil
import sqlite3
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from core.diff import files_of
from core.model import EXEC, FILE, LINK
from core.recorder import Taken
from tests.stores import fsck
from tests.test_source import Gate, limit_of_queue
from tests.watching import PATIENT, Live, until

pytestmark = pytest.mark.live

FULL = bool(os.environ.get("TURNMARK_FULL"))
BUSY = replace(PATIENT, quiet=0.05, longest=0.3)
"""Bursts are taken in the middle of the work, as they would be."""


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Live]:
    with Live(tmp_path, BUSY).ready() as found:
        yield found
    fsck(found.store_path)


def size(full: int, small: int) -> int:
    return full if FULL else small


def on_disk(live: Live) -> dict[bytes, tuple[int, bytes]]:
    """By another way than ours: every file and link that the rules do not leave out."""
    out = {}
    for top, dirs, names in os.walk(os.fsencode(live.path)):
        dirs[:] = [name for name in dirs if name not in (b"node_modules", b".git")]
        links = [name for name in dirs if os.path.islink(os.path.join(top, name))]
        for name in names + links:
            path = os.path.join(top, name)
            out[os.path.relpath(path, os.fsencode(live.path))] = leaf(path)
    return out


def leaf(path: bytes) -> tuple[int, bytes]:
    if os.path.islink(path):
        return LINK, os.readlink(path)
    with open(path, "rb") as file:
        return (EXEC if os.stat(path).st_mode & 0o100 else FILE), file.read()


def in_store(live: Live, taken: Taken) -> dict[bytes, tuple[int, bytes]]:
    store = live.store()
    found = files_of(store.tree, taken.snapshot.files)
    return {path: (entry.mode, store.blob(entry.oid)) for path, entry in found}


def check(live: Live) -> int:
    """A mark right after the work equals what is there, and so does one without any events."""
    taken: Taken = live.ask()
    there = on_disk(live)
    held = in_store(live, taken)
    assert held.keys() == there.keys()
    assert held == there
    assert live.ask(full=True).snapshot.files == taken.snapshot.files
    assert live.workspace.audit_findings == 0
    return len(there)


def run(live: Live, *command: str | Path, cwd: Path | None = None, **env: str) -> None:
    known = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **env}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd or live.path,
        env=known,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def populate(top: Path, files: int) -> None:
    for number in range(files):
        where = top / f"d{number % 40}" / f"e{number % 7}"
        where.mkdir(parents=True, exist_ok=True)
        (where / f"f{number}.txt").write_text(f"file {number}\n" * (number % 9))


def test_unpacking_an_archive(live: Live, tmp_path: Path) -> None:
    files = size(20_000, 3_000)
    populate(tmp_path / "made", files)
    run(live, "tar", "cf", tmp_path / "a.tar", "-C", tmp_path / "made", ".")
    run(live, "tar", "xf", tmp_path / "a.tar")
    assert check(live) == files


def test_switching_between_branches(live: Live) -> None:
    files = size(5_000, 1_000)
    git = ("git", "-c", "user.name=x", "-c", "user.email=x@y", "-c", "commit.gpgsign=false")
    populate(live.path, files)
    run(live, "git", "init", "-q", "-b", "one")
    run(live, "git", "add", "-A")
    run(live, *git, "commit", "-qm", "one")
    run(live, "git", "checkout", "-qb", "two")
    for number in range(0, 40, 2):
        shutil.rmtree(live.path / f"d{number}")
    for path in live.path.glob("d*/e*/*"):
        path.write_text("changed")
    populate(live.path / "more", files // 4)
    run(live, "git", "add", "-A")
    run(live, *git, "commit", "-qm", "two")
    for branch in ("one", "two", "one"):
        run(live, "git", "checkout", "-q", branch)
        check(live)
    assert check(live) == files


def test_installing_a_wheel(live: Live, tmp_path: Path) -> None:
    wheel = tmp_path / "thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for number in range(size(3_000, 300)):
            archive.writestr(f"thing/p{number % 30}/m{number}.py", f"x = {number}\n")
        archive.writestr("thing-1.0.dist-info/METADATA", "Name: thing\nVersion: 1.0\n")
        archive.writestr("thing-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("thing-1.0.dist-info/RECORD", "")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q")
    more = ("--no-index", "--no-deps", "--no-compile", "--target", live.path / "lib")
    run(live, *pip, *more, wheel)
    assert check(live) >= size(3_000, 300)
    run(live, *pip, "--upgrade", *more, wheel)
    check(live)


@pytest.mark.skipif(shutil.which("npm") is None, reason="NOT TESTED: there is no npm")
def test_installing_a_node_package(live: Live, tmp_path: Path) -> None:
    populate(tmp_path / "package/lib", size(3_000, 300))
    (tmp_path / "package/package.json").write_text('{"name": "thing", "version": "1.0.0"}')
    run(live, "tar", "czf", tmp_path / "thing.tgz", "-C", tmp_path, "package")
    live.write("package.json", '{"name": "app", "version": "1.0.0"}')
    quiet = ("--offline", "--no-audit", "--no-fund", "--cache", tmp_path / "cache")
    run(live, "npm", "install", *quiet, tmp_path / "thing.tgz")
    assert (live.path / "node_modules/thing/package.json").exists()
    assert check(live) == 2
    assert live.workspace.progress()[1] == 1, "node_modules costs no watch"


def test_a_database_that_is_being_written(live: Live) -> None:
    base = sqlite3.connect(live.path / "app.db", isolation_level=None)
    base.execute("PRAGMA journal_mode=WAL")
    base.execute("CREATE TABLE t (n, data)")
    for number in range(size(2_000, 200)):
        base.execute("INSERT INTO t VALUES (?, ?)", (number, os.urandom(500)))
        if number % 50 == 0:
            held = in_store(live, live.ask())
            assert held[b"app.db"] == leaf(os.fsencode(live.path / "app.db"))
            assert held[b"app.db-wal"] == leaf(os.fsencode(live.path / "app.db-wal"))
    base.close()
    assert check(live) == 1


def test_editors_that_replace_what_they_save(live: Live) -> None:
    for number in range(size(10_000, 1_000)):
        path = live.path / f"src/f{number % 20}.py"
        path.parent.mkdir(exist_ok=True)
        fresh = path.with_name(f".{path.name}.swp")
        fresh.write_text(f"version {number}\n")
        os.replace(fresh, path)
        if number % 100 == 0:
            check(live)
    assert check(live) == 20


def test_directories_made_and_filled_in_a_tight_loop(live: Live) -> None:
    count = size(2_000, 300)
    script = f"for i in $(seq {count}); do mkdir -p $i/b/c; echo $i >$i/b/c/f; done"
    run(live, "sh", "-c", script)
    assert check(live) == count
    for number in range(1, 100):
        os.makedirs(live.path / f"x/{number}/b/c")
        live.write(f"x/{number}/b/c/f", str(number))
    assert check(live) == count + 99


def test_a_populated_tree_moved_in_and_out(live: Live, tmp_path: Path) -> None:
    files = size(20_000, 2_000)
    populate(tmp_path / "made", files)
    for name in ("a", "deep/er/b", "node_modules"):
        (live.path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "made").rename(live.path / name)
        assert check(live) == (0 if name == "node_modules" else files)
        (live.path / name).rename(tmp_path / "made")
        assert check(live) == 0


STORM = """\
import os, sys
os.chdir(sys.argv[1])
for n in range(int(sys.argv[2])):
    where = f"p{os.getpid()}/{n % 50}"
    if n < 50:
        os.makedirs(where)
    with open(f"{where}/{n}", "w") as file:
        file.write(str(n))
"""


def test_a_storm_of_files(live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    each = size(50_000, 5_000)
    command = [sys.executable, "-S", "-c", STORM, str(live.path), str(each)]
    writers = [subprocess.Popen(command) for _ in range(2)]
    assert [writer.wait(300) for writer in writers] == [0, 0]
    assert check(live) == 2 * each
    with capsys.disabled():
        print(f"\nstorm of {2 * each} files: {live.workspace.status()['overflows']} overflows")


def test_a_storm_that_overflows_the_queue(live: Live) -> None:
    """The reader is held back until the kernel has thrown events away."""
    for number in range(60):
        live.write(f"s{number}/f", "before")
    check(live)
    gate = Gate(live.hub)
    files = size(100_000, limit_of_queue() // 3 + 1_500)
    for number in range(files):
        (live.path / f"s{number % 60}/{number}").write_text(str(number))
    gate.open.set()
    gate.reader._handle_batch = gate.handle
    assert check(live) == files + 60
    until(lambda: live.workspace.status()["overflows"])
    live.write("s7/later/f", "and after it")
    assert check(live) == files + 61


def test_writes_through_memory_maps(live: Live) -> None:
    for number in range(20):
        live.write(f"m{number % 2}.db", "-" * 8192)
        with open(live.path / f"m{number % 2}.db", "r+b") as file:
            live.ask()
            with mmap.mmap(file.fileno(), 8192) as mapped:
                mapped[5000:5006] = b"%06d" % number
                check(live)
        check(live)
