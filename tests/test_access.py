"""Which workspace a command means, what may be written, and what a path argument is."""

from __future__ import annotations

import os
import shutil

import pytest

from core import rollback
from core.errors import BadInput, Busy, NoStore, TurnmarkError
from core.history import History, MarkSpec
from core.keeping import Policy
from core.model import Point
from core.roots import root_of
from core.store import Store
from core.timeline import Timeline
from watcher import upkeep
from watcher.access import find_root, open_store, point_json, policy_of, rel_path
from watcher.config import StoreLimits
from watcher.upkeep import recording


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A directory, which is the current one."""
    (tmp_path / "work/sub").mkdir(parents=True)
    (tmp_path / "work/a").write_text("1\n")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


@pytest.fixture
def at(make_context, monkeypatch):
    """A context as of a certain current directory."""

    def build(directory, **changes):
        monkeypatch.chdir(directory)
        return make_context(**changes)

    return build


def snapshot(context, directory=None, *, create=True):
    with recording(context, directory, create=create) as recorder:
        recorder.take(mark=MarkSpec("manual"))
        return recorder.root


def known(path):
    return root_of(os.fsencode(path))


# Reading


def test_without_a_store_reading_says_so(at, work):
    with pytest.raises(NoStore):
        open_store(at(work))


def test_the_workspace_is_what_holds_the_current_directory(at, work):
    snapshot(at(work))
    context = at(work / "sub")
    assert find_root(context, open_store(context), None) == known(work)


def test_the_nearest_workspace_wins(at, work):
    snapshot(at(work))
    snapshot(at(work), "sub")
    context = at(work)
    store = open_store(context)
    assert find_root(context, store, "sub") == known(work / "sub")
    assert find_root(context, store, None) == known(work)


def test_a_directory_inside_a_workspace_means_that_workspace(at, work, tmp_path):
    snapshot(at(work))
    context = at(tmp_path)
    store = open_store(context)
    assert find_root(context, store, "work/sub") == known(work)
    assert find_root(context, store, str(work)) == known(work)
    assert find_root(context, store, "work/not/there") == known(work)


def test_the_history_of_a_deleted_directory_stays_readable(at, work, tmp_path):
    snapshot(at(work))
    context = at(tmp_path)
    shutil.rmtree(work)
    assert find_root(context, open_store(context), "work") == known(work)


def test_a_workspace_is_found_through_a_link_and_without_its_register(at, work, tmp_path):
    snapshot(at(work))
    (tmp_path / "link").symlink_to(work)
    context = at(tmp_path)
    store = open_store(context)
    shutil.rmtree(f"{store.base}/turnmark/workspaces")
    assert find_root(context, store, "link/sub") == known(work)


@pytest.mark.parametrize("directory", [None, "elsewhere", "..", "/", "", "a\0b"])
def test_what_lies_in_no_workspace_is_bad_input(at, work, tmp_path, directory):
    snapshot(at(work))
    (tmp_path / "work-2").mkdir()
    context = at(tmp_path / "work-2")
    with pytest.raises(BadInput) as caught:
        find_root(context, open_store(context), directory)
    assert caught.value.hint


# Writing


def test_recording_makes_the_current_directory_a_workspace(at, work):
    assert snapshot(at(work)) == known(work)


def test_recording_below_a_workspace_records_that_workspace(at, work):
    snapshot(at(work))
    assert snapshot(at(work / "sub")) == known(work)


def test_a_directory_that_is_named_is_meant_exactly(at, work):
    snapshot(at(work))
    assert snapshot(at(work), "sub") == known(work / "sub")


@pytest.mark.parametrize("has_store", [False, True])
def test_below_a_watched_directory_the_watched_one_is_the_workspace(at, work, tmp_path, has_store):
    if has_store:
        (tmp_path / "other").mkdir()
        snapshot(at(tmp_path / "other"))
    config = tmp_path / "config.yaml"
    config.write_text(f"watch: [{work}]\n")
    assert snapshot(at(work / "sub", config_path=config)) == known(work)


def test_rules_are_those_of_the_configuration(at, work, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("defaults: {exclude: [a]}\n")
    context = at(work, config_path=config)
    with recording(context, None, create=True) as recorder:
        assert recorder.take().snapshot.total == 0


def test_without_leave_to_create_nothing_is_made(at, work, tmp_path):
    context = at(work)
    with pytest.raises(NoStore), recording(context, None, create=False):
        pass
    assert not context.store_path.exists()
    snapshot(context)
    (tmp_path / "other").mkdir()
    for directory in (None, ".", str(tmp_path / "other")):
        with (
            pytest.raises(BadInput),
            recording(at(tmp_path / "other"), directory, create=False),
        ):
            pass


@pytest.mark.parametrize("directory", ["/", "/etc", "not there", "a", "", "x\0y"])
def test_a_refused_root_leaves_no_store_behind(at, work, directory):
    context = at(work)
    with pytest.raises(BadInput), recording(context, directory, create=True):
        pass
    assert not context.store_path.exists()


def test_the_home_directory_and_the_store_are_refused(at, nobody, work):
    snapshot(at(work))
    for directory in (nobody, nobody / "turnmark", nobody / "turnmark/store/turnmark"):
        with pytest.raises(BadInput), recording(at(directory), str(directory), create=True):
            pass


def test_switched_off_nothing_is_recorded_but_reading_works(at, work, tmp_path):
    snapshot(at(work))
    config = tmp_path / "config.yaml"
    config.write_text("enabled: false\n")
    context = at(work, config_path=config)
    with pytest.raises(TurnmarkError, match="switched off"), recording(context, None, create=True):
        pass
    assert find_root(context, open_store(context), None) == known(work)


def test_a_workspace_in_use_is_busy(at, work, monkeypatch):
    root = snapshot(at(work))
    waited: list[float] = []
    real = Store.workspace_lock

    def impatient(store, workspace, wait=5.0):
        waited.append(wait)
        return real(store, workspace, 0.01)

    monkeypatch.setattr(Store, "workspace_lock", impatient)
    context = at(work)
    with (
        open_store(context).workspace_lock(root.id),
        pytest.raises(Busy),
        recording(context, None, create=True),
    ):
        pass
    assert waited == [5.0, 5.0]


def test_an_interrupted_rollback_is_finished_first_and_said(at, work, monkeypatch, capsys):
    seen = []

    def finish(recorder):
        seen.append(recorder)
        return True

    monkeypatch.setattr(rollback, "finish_interrupted", finish)
    with recording(at(work), None, create=True) as recorder:
        assert seen == [recorder]
    assert "finished a rollback that was interrupted" in capsys.readouterr().err


# Afterwards


def test_counts_are_filled_after_the_command_has_answered(at, work):
    context = at(work)
    snapshot(context)
    (work / "a").write_text("1\n2\n")
    with recording(context, None, create=True) as recorder:
        recorder.take(mark=MarkSpec("manual"))
        store, root = recorder.store, recorder.root
        assert Timeline(store, root.id).points()[0].counts is None
    found = Timeline(store, root.id).points()[0].counts
    assert found is not None
    assert (found.files, found.insertions, found.deletions) == (1, 1, 0)


def test_many_packs_are_folded_afterwards(at, work, monkeypatch):
    monkeypatch.setattr("core.consolidate.MANY_PACKS", 2)
    context = at(work)
    for n in range(4):
        (work / "a").write_text(str(n))
        root = snapshot(context)
    store = open_store(context)
    assert len(store.packs()) <= 2
    assert len(list(History(store, root.id).snapshots())) == 4


def test_old_points_are_pruned_afterwards_where_that_is_wanted(at, work, tmp_path):
    config = tmp_path / "config.yaml"
    for wanted, left in (("false", 4), ("true", 2)):
        config.write_text(
            f"store: {{max_points: 2, auto_prune: {wanted}, min_interval_hours: 0}}\n"
        )
        for n in range(4):
            (work / "a").write_text(f"{wanted} {n}")
            root = snapshot(at(work, config_path=config))
        assert len(Timeline(open_store(at(work)), root.id).points()) == left


def test_the_policy_is_that_of_the_configuration():
    assert policy_of(StoreLimits()) == Policy()


@pytest.mark.parametrize("error", [TurnmarkError("no luck", "h"), OSError(28, "No space left")])
def test_trouble_afterwards_is_said_and_costs_nothing(at, work, monkeypatch, capsys, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(upkeep, "count_lines", fail)
    root = snapshot(at(work))
    assert "tidying up the store failed" in capsys.readouterr().err
    assert len(list(History(open_store(at(work)), root.id).marks())) == 1


def test_nothing_is_tidied_after_a_command_that_failed(at, work, monkeypatch):
    monkeypatch.setattr(upkeep, "maintain", lambda *_: pytest.fail("tidied"))
    with (
        pytest.raises(TurnmarkError, match="of the command"),
        recording(at(work), None, create=True),
    ):
        raise TurnmarkError("of the command")


# Words


def test_a_point_has_exactly_the_keys_that_programs_rely_on():
    point = Point(n=1, id=bytes(20), seq=2, time_ns=0, kind="manual")  # type: ignore[arg-type]
    assert list(point_json(point)) == [
        *("n", "id", "seq", "time", "kind", "session", "turn", "turn_id", "agent", "label"),
        *("status", "files", "insertions", "deletions", "gaps", "pinned", "by", "by_turns", "git"),
    ]


@pytest.mark.parametrize(
    ("cwd", "text", "meant"),
    [
        (".", "a", b"a"),
        (".", "./sub/../a", b"a"),
        (".", "sub/", b"sub"),
        (".", ".", b""),
        (".", "sub/..", b""),
        ("sub", "x", b"sub/x"),
        ("sub", "../a", b"a"),
        ("sub", ".", b"sub"),
        (".", "not/there", b"not/there"),
        (".", "*", b"*"),
        (".", "-x", b"-x"),
        (".", "out", b"out"),
        (".", "out/x", b"out/x"),
        (".", "in/x", b"in/x"),
        (".", "\udcff", b"\xff"),
        (".", "{work}/a", b"a"),
        (".", "{work}", b""),
        (".", "{link}/a", b"a"),
        (".", "{link}", b""),
        (".", "{link}/sub/b", b"sub/b"),
        (".", "../link/a", b"a"),
    ],
)
def test_a_path_means_itself_below_the_root(at, work, tmp_path, cwd, text, meant):
    (tmp_path / "link").symlink_to(work)
    (work / "out").symlink_to("/etc")
    (work / "in").symlink_to("sub")
    given = text.format(work=work, link=tmp_path / "link")
    assert rel_path(at(work / cwd), known(work), given) == meant


@pytest.mark.parametrize("text", ["", "a\0b", "..", "../other", "/", "/etc/passwd", "{work}-2/a"])
def test_a_path_outside_the_root_is_bad_input(at, work, text):
    with pytest.raises(BadInput) as caught:
        rel_path(at(work), known(work), text.format(work=work))
    assert caught.value.hint
