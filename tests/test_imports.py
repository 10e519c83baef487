"""imports: what the predecessor kept becomes points of ours, and stays where it was."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import zlib
from itertools import pairwise

import pytest

from core.diff import files_of
from core.disk import REAL
from core.errors import BadInput, TurnmarkError
from core.history import History, MarkSpec, read_snapshot
from core.imports import archives_at, import_stores, missing_from, stores_at
from core.keeping import Policy
from core.model import rfc3339
from core.presence import record_of, state_of
from core.recorder import Recorder
from core.refs import TOP
from core.retention import prune
from core.rollback import Request, preview, rollback
from core.roots import check_root, root_of
from core.states import stored_state
from core.store import Store
from core.timeline import Timeline
from core.verify import verify
from tests.faults import FaultyDisk, die_at_each, failing
from tests.predecessor import V1, V2, everything, git, name_of
from tests.stores import ALL, fsck
from tests.terminal import on_terminal
from tests.trees import Dir, File, Leaf, Link, build, image

T0 = 1_700_000_000


@pytest.fixture
def base(tmp_path):
    return tmp_path / "hermes" / "checkpoints"


@pytest.fixture
def work(tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    return work


@pytest.fixture
def store(tmp_path):
    return Store.create(str(tmp_path / "home" / "store"))


def timeline(store, work):
    return Timeline(store, root_of(os.fsencode(work)).id)


def points(store, work):
    return timeline(store, work).points()


def contents(store, oid):
    """The files of a snapshot, by path."""
    state = stored_state(store, read_snapshot(store, oid))
    return {
        path: state.read_blob(entry.oid) for path, entry in files_of(state.read_tree, state.files)
    }


def three_states(take, work):
    """Three checkpoints, each of another tree."""
    build(work, {"a": "1", "src/b": "one\n"})
    take("before write_file", T0)
    second: dict[str, Leaf] = {"a": "22", "src/new": Link("../a"), "run": File("#!x", 0o755)}
    build(work, second)
    take("before patch", T0 + 60)
    shutil.rmtree(work / "src")
    take("before terminal: rm -rf src", T0 + 120)
    return [
        {b"a": b"1", b"src/b": b"one\n"},
        {b"a": b"22", b"src/b": b"one\n", b"src/new": b"../a", b"run": b"#!x"},
        {b"a": b"22", b"run": b"#!x"},
    ]


def takes_v1(base, work):
    return V1(base, work).take


def takes_v2(base, work):
    old = V2(base)
    return lambda reason, when: old.take(work, reason, when)


@pytest.fixture(params=[takes_v1, takes_v2], ids=["v1", "v2"])
def take(request, base, work):
    return request.param(base, work)


def test_both_kinds_become_points_with_their_times_and_reasons(store, base, work, take):
    states = three_states(take, work)
    before = everything(base)
    (done,) = import_stores(store, str(base))
    assert (done.root, done.points, done.known, done.gaps, done.error) == (str(work), 3, 0, 0, "")
    found = points(store, work)[::-1]
    assert [point.kind for point in found] == ["import"] * 3
    assert [point.label for point in found] == [
        "before write_file", "before patch", "before terminal: rm -rf src",
    ]  # fmt: skip
    assert [point.time_ns for point in found] == [(T0 + s) * 10**9 for s in (0, 60, 120)]
    assert rfc3339(found[0].time_ns) == "2023-11-14T22:13:20.000Z"
    assert [contents(store, point.id) for point in found] == states
    assert all(one.seq < other.seq for one, other in pairwise(found))
    assert everything(base) == before
    fsck(store.base)


def test_a_second_import_adds_nothing(store, base, work, take):
    three_states(take, work)
    import_stores(store, str(base))
    refs = store.refs.below(TOP)
    (done,) = import_stores(store, str(base))
    assert (done.points, done.known, done.error) == (0, 3, "")
    assert store.refs.below(TOP) == refs
    assert missing_from(store, str(base)) == []


def test_what_came_since_the_last_import_is_added(store, base, work, take):
    three_states(take, work)
    import_stores(store, str(base))
    build(work, {"a": "333"})
    take("later", T0 + 500)
    assert missing_from(store, str(base)) == [f"{work}: 1 checkpoints"]
    (done,) = import_stores(store, str(base))
    assert (done.points, done.known) == (1, 3)
    assert [point.label for point in points(store, work)][:2] == [
        "later",
        "before terminal: rm -rf src",
    ]


def test_a_rollback_to_an_imported_point_is_exact_and_can_be_undone(store, base, work, take):
    states = three_states(take, work)
    import_stores(store, str(base))
    build(work, {"made/since/x": "y"})
    recorder = recorder_of(store, work)
    oldest = points(store, work)[-1]
    request = Request(oldest.id, oldest.seq, "import")
    rollback(
        recorder, Request(oldest.id, oldest.seq, "i", plan=preview(recorder, request).plan.hash)
    )
    recorder.close()
    assert {path: node[2] for path, node in image(work).items() if node[0] == "file"} == states[0]
    assert (work / "src" / "b").read_text() == "one\n"
    assert timeline(store, work).points()[0].kind == "rollback"
    fsck(store.base)


def recorder_of(store, work):
    root = check_root(REAL, str(work), home="/nobody", store=store.base)
    return Recorder(store, root, ALL)


def test_a_rollback_leaves_alone_what_the_predecessor_never_looked_at(store, base, work, take):
    build(work, {".gitignore": "data/\n", "a": "1", ".env": "old", "data/db": "x", "build/o": "o"})
    take("first", T0)
    build(work, {"a": "2"})
    take("second", T0 + 1)
    import_stores(store, str(base))
    build(work, {".env": "secret", "data/db": "precious", "build/o": "p"})
    recorder = recorder_of(store, work)
    oldest = points(store, work)[-1]
    result = rollback(recorder, Request(oldest.id, oldest.seq, "first"))
    recorder.close()
    assert result.outcome == "done"
    left = [(work / name).read_text() for name in ("a", ".env", "data/db", "build/o")]
    assert left == ["1", "secret", "precious", "p"]


def test_permissions_that_git_could_not_keep_stay_as_they_are(store, base, work, take):
    tree: dict[str, Leaf] = {"key": File("k", 0o600), "d/": Dir(0o700), "d/x": "1"}
    build(work, {**tree, "run": File("#", 0o750)})
    take("first", T0)
    build(work, {"d/x": "2"})
    take("second", T0 + 1)
    import_stores(store, str(base))
    recorder = recorder_of(store, work)
    before = image(work)
    oldest = points(store, work)[-1]
    assert rollback(recorder, Request(oldest.id, oldest.seq, "first")).outcome == "done"
    recorder.close()
    assert image(work) == before | {b"d/x": ("file", 0o644, b"1")}


def test_nested_repositories_are_gaps_and_never_touched(store, base, work, take):
    build(work, {"a": "1", "lib/b": "1"})
    take("without", T0)
    nested = work / "lib" / "inner"
    build(nested, {"code": "theirs"})
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    for words in (
        ["init", "-q"],
        ["add", "-A"],
        ["-c", "user.name=x", "-c", "user.email=x", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", *words], cwd=nested, env=env, check=True)
    take("before write_file [nested git repos not captured: lib/inner]", T0 + 1)
    (done,) = import_stores(store, str(base))
    assert (done.points, done.gaps) == (2, 1)
    newest = points(store, work)[0]
    state = stored_state(store, read_snapshot(store, newest.id))
    assert dict(state.about.gaps) == {b"lib/inner": "nested-root"}
    build(nested, {"code": "changed"})
    build(work, {"a": "2"})
    recorder = recorder_of(store, work)
    rollback(recorder, Request(newest.id, newest.seq, "x"))
    recorder.close()
    assert (nested / "code").read_text() == "changed"
    assert (work / "a").read_text() == "1"
    fsck(store.base)


def test_a_directory_that_holds_nothing_but_a_nested_repository_can_be_stored(store, base, work):
    build(work, {"a": "1", "lib/inner/.git/HEAD": "no repository of git's"})
    old = V2(base)
    old.take(work, "x", T0)
    commit = old.tip(work)
    index = old.store / "indexes" / name_of(work)
    words = ("update-index", "--add", "--cacheinfo", f"160000,{commit},only/inner")
    git(old.store, work, *words, index=index)
    tree = git(old.store, work, "write-tree", index=index)
    made = git(old.store, work, "commit-tree", tree, "-p", commit, "-m", "gitlink", when=T0 + 1)
    git(old.store, work, "update-ref", f"refs/hermes/{name_of(work)}", made)
    (done,) = import_stores(store, str(base))
    assert (done.points, done.gaps) == (2, 1)
    about = stored_state(store, read_snapshot(store, points(store, work)[0].id)).about
    assert dict(about.gaps) == {b"only/inner": "nested-root"}
    assert set(about.empty) == {b"only"}
    fsck(store.base)


def test_every_name_comes_over_as_it_is(store, base, work, take):
    names = [
        b"caf\xe9",
        b"\xff\xfe",
        b"a\nb",
        b"a\tb",
        b"--help",
        b" x ",
        b":colon",
        b"br[1]",
        b"*",
        b"\\",
    ]
    for name in names:
        with open(os.fsencode(work) + b"/" + name, "wb") as file:
            file.write(name)
    take("caf\u00e9 \u2028 \x0b reason", T0)
    import_stores(store, str(base))
    (point,) = points(store, work)
    assert contents(store, point.id) == {name: name for name in names}
    assert point.label == "caf\u00e9 reason"


def test_a_directory_that_is_gone_is_history_all_the_same(store, base, work, take):
    states = three_states(take, work)
    shutil.rmtree(work)
    (done,) = import_stores(store, str(base))
    assert (done.points, done.error) == (3, "")
    assert contents(store, points(store, work)[-1].id) == states[0]
    assert verify(store).ok
    record = record_of(store, root_of(os.fsencode(work)).id)
    assert state_of(REAL, record) == "away"
    prune(store, Policy(retention_days=0), (T0 + 10**6) * 10**9)
    assert len(points(store, work)) == 3


def test_workspaces_are_imported_each_by_itself(store, base, tmp_path):
    old = V2(base)
    works = [build(tmp_path / name, {"f": name}) for name in ("one", "two")]
    for work in works:
        old.take(work, f"of {work.name}", T0)
    done = import_stores(store, str(base))
    assert [one.root for one in done] == sorted(map(str, works))
    assert [points(store, work)[0].label for work in works] == ["of one", "of two"]


def test_one_workspaces_damage_costs_no_other_its_history(store, base, tmp_path):
    old = V2(base)
    works = [build(tmp_path / name, {"f": name}) for name in ("one", "two", "three")]
    commits = [old.take(work, "x", T0) for work in works]
    broken = git(old.store, works[0], "rev-parse", f"{commits[0]}:f")
    (old.store / "objects" / broken[:2] / broken[2:]).unlink()
    (old.store / "projects" / f"{name_of(works[1])}.json").write_text("{")
    done = {one.root: one for one in import_stores(store, str(base))}
    assert "lacks the object" in done[str(works[0])].error
    assert "does not say" in done[str(old.store)].error
    assert (done[str(works[2])].points, done[str(works[2])].error) == (1, "")
    assert points(store, works[0]) == []
    fsck(store.base)


def test_an_object_with_another_content_is_not_taken(store, base, work):
    old = V2(base)
    build(work, {"f": "right"})
    commit = old.take(work, "x", T0)
    blob = git(old.store, work, "rev-parse", f"{commit}:f")
    loose = old.store / "objects" / blob[:2] / blob[2:]
    loose.unlink()
    loose.write_bytes(zlib.compress(b"blob 5\0wrong"))
    (done,) = import_stores(store, str(base))
    assert blob in done.error
    assert points(store, work) == []


def test_history_of_its_own_is_never_pushed_aside(store, base, work, take):
    three_states(take, work)
    recorder = recorder_of(store, work)
    recorder.take(mark=MarkSpec("manual"))
    recorder.close()
    refs = store.refs.below(TOP)
    (done,) = import_stores(store, str(base))
    assert done.points == 0
    assert "snapshots of its own" in done.error
    assert store.refs.below(TOP) == refs


def test_after_snapshots_of_our_own_an_import_still_adds_nothing(store, base, work, take):
    three_states(take, work)
    import_stores(store, str(base))
    recorder = recorder_of(store, work)
    build(work, {"mine": "1"})
    recorder.take(mark=MarkSpec("manual"))
    recorder.close()
    (done,) = import_stores(store, str(base))
    assert (done.points, done.error) == (0, "")
    build(work, {"a": "4444"})
    take("too late", T0 + 900)
    assert "snapshots of its own" in import_stores(store, str(base))[0].error


def test_old_points_outlive_the_next_prune(store, base, work, take):
    three_states(take, work)
    import_stores(store, str(base))
    prune(store, Policy(max_points=1), (T0 + 10**8) * 10**9)
    found = points(store, work)
    assert [point.pinned for point in found] == [True] * 3


def test_points_pruned_since_do_not_come_back(store, base, work, take):
    three_states(take, work)
    import_stores(store, str(base))
    with store.exclusive():
        store.refs.delete([name for name in store.refs.below(TOP) if "/p/" in name])
    prune(store, Policy(max_points=1, retention_days=0), (T0 + 1000) * 10**9)
    assert len(points(store, work)) == 1
    (done,) = import_stores(store, str(base))
    assert (done.points, done.error) == (0, "")


def test_both_stores_of_one_directory_become_one_history(store, base, work):
    first = V1(base / "legacy-20260101-000000", work)
    build(work, {"a": "1"})
    first.take("old kind", T0)
    build(work, {"a": "2"})
    V2(base).take(work, "new kind", T0 + 10)
    (done,) = import_stores(store, str(base))
    assert done.points == 2
    assert [point.label for point in points(store, work)] == ["new kind", "old kind"]


def test_a_clock_that_ran_backwards_does_not_change_the_order(store, base, work, take):
    for number, when in enumerate((T0, T0 - 5000, T0 + 1)):
        build(work, {"a": "x" * number})
        take(f"number {number}", when)
    import_stores(store, str(base))
    assert [p.label for p in points(store, work)] == ["number 2", "number 1", "number 0"]


def test_equal_states_share_a_snapshot(store, base, work):
    old = V2(base)
    build(work, {"a": "1"})
    for number in range(3):
        old.take(work, f"number {number}", T0 + number)
    import_stores(store, str(base))
    found = points(store, work)
    assert len({point.id for point in found}) == 1
    assert [point.label for point in found] == ["number 2", "number 1", "number 0"]
    assert len(History(store, root_of(os.fsencode(work)).id).snapshot_ids) == 1


def test_an_import_that_is_killed_is_finished_by_the_next(store, base, work):
    old = V2(base)
    for number in range(2):
        build(work, {"a": "x" * number})
        old.take(work, f"number {number}", T0 + number)

    def run(disk):
        import_stores(Store.open(store.base, disk), str(base))

    deaths = 0
    for _ in die_at_each(run):
        deaths += 1
        again = Store.open(store.base)
        import_stores(again, str(base))
        assert [p.label for p in points(again, work)] == ["number 1", "number 0"]
        with again.exclusive():
            again.refs.delete(again.refs.below(TOP))
    assert deaths > 10


def test_a_full_disk_is_said_and_leaves_nothing_behind(store, base, work, take):
    three_states(take, work)
    disk = FaultyDisk(8, failing(errno.ENOSPC), lasting=True)
    (done,) = import_stores(Store.open(store.base, disk), str(base))
    assert "full" in done.error
    assert points(store, work) == []


def test_nothing_of_the_users_git_is_obeyed(store, base, work, take, monkeypatch, tmp_path):
    three_states(take, work)
    bad = tmp_path / "gitconfig"
    bad.write_text("[core]\n\tnonsense\n[include\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(bad))
    monkeypatch.setenv("GIT_OBJECT_DIRECTORY", "/nonexistent")
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    monkeypatch.chdir(tmp_path)
    assert import_stores(store, str(base))[0].points == 3


def test_without_git_it_says_so(store, base, work, take):
    with pytest.raises(TurnmarkError, match="no git"):
        import_stores(store, str(base), git="no-such-git")


def test_where_nothing_is_nothing_is_imported(store, tmp_path, base):
    (base / "sessions").mkdir(parents=True)
    (base / "s1.yaml").write_text("session_id: s1\n")
    for path in (base, tmp_path / "none", base / "s1.yaml"):
        with pytest.raises(BadInput):
            import_stores(store, str(path))


def test_repositories_of_others_are_not_taken_for_the_predecessors(base, work):
    subprocess.run(["git", "init", "-q", "--bare", str(base / "mine")], check=True)
    os.symlink(work, base / "legacy-link")
    assert stores_at(str(base)) == []
    assert archives_at(str(base)) == []


def test_a_repository_without_commits_is_no_trouble(store, base, work):
    V1(base, work)
    assert import_stores(store, str(base)) == []


# The commands


@pytest.fixture
def hermes(tmp_path, monkeypatch):
    """Where the predecessor keeps its checkpoints by default."""
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "hermes"))
    return tmp_path / "hermes" / "checkpoints"


@pytest.fixture
def said(turnmark):
    def run(*words):
        answer = turnmark("store", *words, "--json")
        return json.loads(answer.out or answer.err), answer.code

    return run


def test_store_import_finds_the_predecessor_by_itself(hermes, work, turnmark, said):
    three_states(takes_v2(hermes, work), work)
    told, code = said("import")
    assert (code, told["path"]) == (0, str(hermes))
    (row,) = told["workspaces"]
    assert (row["root"], row["points"], row["known"], row["error"]) == (str(work), 3, 0, None)
    assert turnmark("store", "import").out == f"{work}: 0 points, 3 imported before\n"
    listed = json.loads(turnmark("list", str(work), "--json").out)["points"]
    assert [(one["kind"], one["label"], one["pinned"]) for one in listed][-1] == (
        "import", "before write_file", True,
    )  # fmt: skip


def test_store_import_says_what_it_could_not_and_goes_on(hermes, work, tmp_path, turnmark, said):
    old = V2(hermes)
    other = build(tmp_path / "other", {"x": "1"})
    for one in (build(work, {"a": "1"}), other):
        old.take(one, "x", T0)
    turnmark("snapshot", str(other))
    told, code = said("import", str(hermes))
    assert code == 3
    assert {row["root"]: bool(row["error"]) for row in told["workspaces"]} == {
        str(work): False, str(other): True,
    }  # fmt: skip


def test_store_import_of_nothing_makes_no_store(hermes, said, tmp_path, turnmark):
    for words in ((), (str(tmp_path),)):
        told, code = said("import", *words)
        assert (code, "none of the predecessor" in told["error"]) == (65, True)
    assert turnmark("list").code == 10


def test_clear_legacy_removes_archives_only_and_only_when_asked(hermes, work, turnmark, said):
    three_states(takes_v1(hermes / "legacy-1", work), work)
    V2(hermes).take(work, "x", T0)
    build(hermes, {"state.yaml": "mine"})
    assert turnmark("store", "clear-legacy").code == 64
    shown, code = on_terminal(work, "store", "clear-legacy", types=b"n\n")
    assert (code, f"{hermes}/legacy-1" in shown, "Nothing was changed." in shown) == (1, True, True)
    assert (hermes / "legacy-1").is_dir()
    told, code = said("clear-legacy", "-f")
    assert (code, [one["path"] for one in told["removed"]]) == (0, [f"{hermes}/legacy-1"])
    assert sorted(os.listdir(hermes)) == ["state.yaml", "store"]
    assert said("clear-legacy", "-f") == ({"schema": 1, "removed": [], "reclaimed": 0}, 0)


def test_clear_legacy_takes_a_store_only_by_its_path_and_imported(hermes, work, said, turnmark):
    old = V2(hermes)
    build(work, {"a": "1"})
    old.take(work, "x", T0)
    assert said("clear-legacy", str(old.store), "-f")[1] == 10
    said("import")
    build(work, {"a": "2"})
    old.take(work, "later", T0 + 1)
    told, code = said("clear-legacy", str(old.store), "-f")
    assert (code, "1 checkpoint" in told["error"], old.store.is_dir()) == (65, True, True)
    said("import")
    assert said("clear-legacy", str(old.store), "-f")[1] == 0
    assert not old.store.exists()
    assert len(json.loads(turnmark("list", str(work), "--json").out)["points"]) == 2


def test_status_names_the_archives(hermes, work, said, turnmark):
    build(hermes / "legacy-1", {"x": "12345"})
    turnmark("snapshot", str(build(work, {"a": "1"})))
    assert said("status")[0]["legacy"] == [{"path": f"{hermes}/legacy-1", "bytes": 5}]
