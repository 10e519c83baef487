"""Any order of edits, snapshots, rollbacks, undos, restarts and losses, against a plain dict."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core.about import decode_about
from core.diff import dirs_of, files_of
from core.errors import BadInput
from core.history import MarkSpec
from core.model import LINK, TREE, RelPath
from core.recorder import Taken
from core.rollback import Request, Result, redo_request, undo_request
from core.store import Store
from tests.stores import Bench, fsck
from tests.trees import Image, image

DEEP = bool(os.environ.get("TURNMARK_DEEP"))
NAMES = ("a", "b", "é")
paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map("/".join)
contents = st.sampled_from([b"", b"1", b"22", b"a\r\n", b"\0\xff" * 40, b"long " * 2000])
file_modes = st.sampled_from([0o644, 0o600, 0o755, 0o400, 0o4711])
dir_modes = st.sampled_from([0o755, 0o700, 0o500, 0o2775])


@dataclass(frozen=True)
class Known:
    """A state that was acknowledged: its snapshot, its number and what the tree was."""

    taken: Taken
    tree: Image


def within(path: bytes, top: bytes) -> bool:
    return path == top or path.startswith(top + b"/")


def stored(store: Store, taken: Taken) -> Image:
    about = decode_about(store.blob(taken.snapshot.about))
    out: Image = {}
    for path, entry in files_of(store.tree, taken.snapshot.files):
        data = store.blob(entry.oid)
        mode = about.mode(path, entry.mode)
        out[path] = ("link", data) if entry.mode == LINK else ("file", mode, data)
    for path in (*dirs_of(store.tree, taken.snapshot.files), *about.empty):
        out[path] = ("dir", about.mode(path, TREE))
    return out


def with_path_of(here: Image, other: Image, top: bytes) -> Image | None:
    """A tree with one path as another has it, and the directories that it needs."""
    want = {path: leaf for path, leaf in here.items() if not within(path, top)}
    want |= {path: leaf for path, leaf in other.items() if within(path, top)}
    above = top
    while above := above.rpartition(b"/")[0]:
        if top not in other:
            break
        if above not in want:
            want[above] = other[above]
        elif want[above][0] != "dir":
            return None
    while (top := top.rpartition(b"/")[0]) and top in want and top not in other:
        if any(within(path, top) for path in want.keys() - {top}):
            break
        del want[top]
    return want


class Workspace(RuleBasedStateMachine):
    """The model is `tree`; what is on disk, in the store and in the answers must follow it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="turnmark-states-"))
        self.bench = Bench(self.base)
        os.chmod(self.bench.path, 0o755)
        self.tree: Image = {}
        self.dirty: set[bytes] = set()
        self.known: list[Known] = []
        self.undos: list[Image] = []
        self.redos: list[Image] = []

    @initialize()
    def first(self) -> None:
        self.remember(self.bench.recorder.take(mark=MarkSpec("baseline")))

    # The model

    def kind(self, path: bytes) -> object:
        return "dir" if not path else self.tree.get(path, (None,))[0]

    def parent_is_open(self, path: bytes) -> bool:
        """Whether an ordinary user could make or remove the name."""
        parent = path.rpartition(b"/")[0]
        if self.kind(parent) != "dir":
            return False
        return not parent or bool(int(str(self.tree[parent][1])) & 0o200)

    def full(self, path: bytes) -> bytes:
        return os.path.join(os.fsencode(self.bench.path), path)

    def below(self, top: bytes) -> list[bytes]:
        return [path for path in self.tree if within(path, top)]

    def touch(self, *touched: bytes) -> None:
        self.dirty.update(touched)

    def remember(self, taken: Taken) -> None:
        self.known.append(Known(taken, dict(self.tree)))
        self.dirty.clear()

    # Edits

    @rule(path=paths, data=contents)
    def write(self, path: str, data: bytes) -> None:
        name = path.encode()
        if self.kind(name) == "file":
            mode = int(str(self.tree[name][1]))
            if os.geteuid() != 0 and not mode & 0o200:
                return
            with open(self.full(name), "r+b") as file:
                file.truncate()
                file.write(data)
            mode = os.stat(self.full(name)).st_mode & 0o7777  # writing may clear set-uid
        elif self.kind(name) is None and self.parent_is_open(name):
            mode = 0o644
            Path(os.fsdecode(self.full(name))).write_bytes(data)
            os.chmod(self.full(name), mode)
        else:
            return
        self.tree[name] = ("file", mode, data)
        self.touch(name)

    @rule(path=paths, data=contents)
    def replace(self, path: str, data: bytes) -> None:
        """As editors do it: a new file, renamed over the old one."""
        name = path.encode()
        if self.kind(name) in ("file", "link") and self.parent_is_open(name):
            aside = self.base / "aside"
            aside.write_bytes(data)
            os.chmod(aside, 0o644)
            os.rename(aside, self.full(name))
            self.tree[name] = ("file", 0o644, data)
            self.touch(name)

    @rule(path=paths, data=contents)
    def append(self, path: str, data: bytes) -> None:
        name = path.encode()
        if self.kind(name) == "file" and int(str(self.tree[name][1])) == 0o644:
            with open(self.full(name), "ab") as file:
                file.write(data)
            _, mode, before = self.tree[name]
            assert isinstance(before, bytes)
            self.tree[name] = ("file", mode, before + data)
            self.touch(name)

    @rule(path=paths)
    def delete(self, path: str) -> None:
        name = path.encode()
        if self.kind(name) in ("file", "link") and self.parent_is_open(name):
            os.unlink(self.full(name))
            del self.tree[name]
            self.touch(name)

    @rule(path=paths)
    def delete_tree(self, path: str) -> None:
        name = path.encode()
        if self.kind(name) == "dir" and self.parent_is_open(name):
            for inner in self.below(name):
                if self.kind(inner) == "dir":
                    os.chmod(self.full(inner), 0o700)
            shutil.rmtree(self.full(name))
            for inner in self.below(name):
                del self.tree[inner]
            self.touch(name)

    @rule(path=paths, mode=file_modes)
    def chmod_file(self, path: str, mode: int) -> None:
        name = path.encode()
        if self.kind(name) == "file":
            os.chmod(self.full(name), mode)
            self.tree[name] = ("file", mode, self.tree[name][2])
            self.touch(name)

    @rule(path=paths, mode=dir_modes)
    def chmod_dir(self, path: str, mode: int) -> None:
        name = path.encode()
        if self.kind(name) == "dir":
            os.chmod(self.full(name), mode)
            self.tree[name] = ("dir", mode)
            self.touch(name)

    @rule(path=paths, to=st.sampled_from(["a", "../b", "/etc/passwd", "nowhere/at/all"]))
    def link(self, path: str, to: str) -> None:
        name = path.encode()
        if self.kind(name) is None and self.parent_is_open(name):
            os.symlink(to, self.full(name))
            self.tree[name] = ("link", to.encode())
            self.touch(name)

    @rule(path=paths)
    def mkdir(self, path: str) -> None:
        name = path.encode()
        if self.kind(name) is None and self.parent_is_open(name):
            os.mkdir(self.full(name))
            os.chmod(self.full(name), 0o755)
            self.tree[name] = ("dir", 0o755)
            self.touch(name)

    @rule(path=paths)
    def rmdir(self, path: str) -> None:
        name = path.encode()
        alone = self.kind(name) == "dir" and len(self.below(name)) == 1
        if alone and self.parent_is_open(name):
            os.rmdir(self.full(name))
            del self.tree[name]
            self.touch(name)

    @rule(path=paths, other=paths)
    def move(self, path: str, other: str) -> None:
        old, new = path.encode(), other.encode()
        free = self.kind(old) is not None and self.kind(new) is None and not within(new, old)
        if not (free and self.parent_is_open(old) and self.parent_is_open(new)):
            return
        if self.kind(old) == "dir" and not int(str(self.tree[old][1])) & 0o200:
            return
        os.rename(self.full(old), self.full(new))
        for inner in self.below(old):
            self.tree[new + inner[len(old) :]] = self.tree.pop(inner)
        self.touch(old, new)

    # History

    @rule(marked=st.booleans())
    def snapshot(self, marked: bool) -> None:
        spec = MarkSpec("manual") if marked else None
        self.check_taken(self.bench.recorder.take(mark=spec, sync=False))

    @rule(marked=st.booleans())
    def snapshot_of_dirty_paths(self, marked: bool) -> None:
        spec = MarkSpec("manual") if marked else None
        dirty = [RelPath(path) for path in self.dirty]
        self.check_taken(self.bench.recorder.take(dirty, mark=spec, sync=False))

    def check_taken(self, taken: Taken) -> None:
        before = self.known[-1].tree
        assert taken.fresh == (before != self.tree)
        assert (taken.changed == 0) == (not taken.fresh)
        assert taken.snapshot.total == sum(leaf[0] != "dir" for leaf in self.tree.values())
        assert taken.snapshot.gaps == 0
        self.remember(taken)

    def request(self, known: Known, *tops: RelPath) -> Request:
        return Request(known.taken.snapshot.id, known.taken.snapshot.seq, "p", paths=tops)

    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        known = data.draw(st.sampled_from(self.known))
        done = self.bench.go(self.request(known))
        self.check_done(done, known.tree)
        if done.outcome == "done":  # what an undo will bring back
            self.undos.append(dict(self.tree))
            self.redos.clear()
        self.settle(known.tree)

    @rule(data=st.data())
    def rollback_of_a_path(self, data: st.DataObject) -> None:
        known = data.draw(st.sampled_from(self.known))
        every = sorted(known.tree.keys() | self.tree.keys())
        if not every:
            return
        top = data.draw(st.sampled_from(every))
        want = with_path_of(self.tree, known.tree, top)
        if want is None:
            return  # something above it is no directory: a conflict, not for this model
        done = self.bench.go(self.request(known, RelPath(top)))
        self.check_done(done, want)
        if done.outcome == "done":
            self.undos.append(dict(self.tree))
            self.redos.clear()
        self.settle(want)

    @precondition(lambda self: self.undos)
    @rule()
    def undo(self) -> None:
        self.one_back(undo_request(self.bench.store, self.bench.root.id), self.undos, self.redos)

    @precondition(lambda self: self.redos)
    @rule()
    def redo(self) -> None:
        self.one_back(redo_request(self.bench.store, self.bench.root.id), self.redos, self.undos)

    def one_back(self, request: Request | None, take: list[Image], give: list[Image]) -> None:
        assert request is not None
        want = take.pop()
        if request.paths:
            (top,) = request.paths
            partly = with_path_of(self.tree, want, top)
            if partly is None:  # something above it is no directory
                take.append(want)
                return
            want = partly
        give.append(dict(self.tree))
        done = self.bench.go(request)
        self.check_done(done, want)
        self.settle(want)

    def check_done(self, done: Result, want: Image) -> None:
        assert not done.conflicts
        assert not done.kept
        assert done.outcome == ("nothing" if want == self.tree else "done")

    def settle(self, want: Image) -> None:
        """The tree is what was asked for, and the newest snapshot says so."""
        self.tree = dict(want)
        assert image(self.bench.path) == want
        taken = self.bench.recorder.take(sync=False)
        assert (taken.fresh, taken.changed) == (False, 0)
        self.remember(taken)

    # Troubles

    @rule()
    def reopen(self) -> None:
        self.bench.reopen()

    @rule()
    def lose_cache(self) -> None:
        self.bench.close()
        for name in os.listdir(f"{self.bench.store.base}/turnmark/cache"):
            os.unlink(f"{self.bench.store.base}/turnmark/cache/{name}")

    @rule()
    def fold(self) -> None:
        with self.bench.store.exclusive():
            self.bench.store.refs.fold()

    # What is true at all times

    @invariant()
    def the_tree_is_the_model(self) -> None:
        assert image(self.bench.path) == self.tree

    @invariant()
    def nothing_is_left_behind(self) -> None:
        assert not [n for n in os.listdir(self.bench.path) if n.startswith(".turnmark")]
        assert os.listdir(f"{self.bench.store.base}/turnmark/journal") == []

    def teardown(self) -> None:
        try:
            store = Store.open(self.bench.store.base)
            for known in self.known:
                assert stored(store, known.taken) == known.tree
            fsck(store.base)
        finally:
            self.bench.close()
            for path in [p for p, leaf in self.tree.items() if leaf[0] == "dir"]:
                os.chmod(self.full(path), 0o700)
            shutil.rmtree(self.base)


TestWorkspace = Workspace.TestCase
TestWorkspace.settings = settings(
    max_examples=600 if DEEP else 25, stateful_step_count=60 if DEEP else 25
)


def test_undos_and_as_many_redos_change_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    taken = []
    for number in range(5):
        (bench.path / "f").write_text(str(number))
        (bench.path / f"d{number}").mkdir(mode=0o700)
        taken.append(bench.point())
    for point in (taken[3], taken[0], taken[4], taken[1]):
        bench.back_to(point)
    before = image(bench.path)
    for request_of in (undo_request, redo_request):
        for _ in range(4):
            assert bench.go(request_of(bench.store, bench.root.id)).outcome == "done"
        assert request_of(bench.store, bench.root.id) is None
    assert image(bench.path) == before


def test_an_undo_with_nothing_left_to_do_does_not_hide_older_rollbacks(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    taken = []
    for number in range(3):
        (bench.path / "f").write_text(str(number))
        taken.append(bench.point())
    bench.back_to(taken[1])
    bench.back_to(taken[0])
    (bench.path / "f").write_text("1")  # by hand, what the undo would do
    assert bench.go(undo_request(bench.store, bench.root.id)).outcome == "nothing"
    assert bench.go(undo_request(bench.store, bench.root.id)).outcome == "done"
    assert (bench.path / "f").read_text() == "2"


def test_undoing_a_single_path_takes_back_the_directories_it_needed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (bench.path / "d/e").mkdir(parents=True)
    (bench.path / "d/e/f").write_text("1")
    point = bench.point()
    shutil.rmtree(bench.path / "d")
    (bench.path / "other").write_text("x")
    before = image(bench.path)
    bench.back_to(point, paths=(RelPath(b"d/e/f"),))
    bench.go(undo_request(bench.store, bench.root.id))
    assert image(bench.path) == before


def test_a_path_that_is_nowhere_changes_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    (bench.path / "f").write_text("1")
    point = bench.point()
    try:
        bench.back_to(point, paths=(RelPath(b"f/below/a/file"),))
    except BadInput:
        assert image(bench.path) == {b"f": ("file", 0o644, b"1")}
    else:
        raise AssertionError("it was taken for a path")
