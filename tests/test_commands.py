"""The commands that write points and list them, from the command line to the JSON."""

from __future__ import annotations

import json
import os

import pytest

from core.model import Gap, RelPath
from core.store import Store
from tests.stores import fsck
from watcher import actions
from watcher.unprotected import lines, measure

TAKEN = {"schema", "workspace", "id", "seq", "changed", "gaps", "durable"}
POINT = {
    *("n", "id", "seq", "time", "kind", "session", "turn", "turn_id", "agent", "label", "status"),
    *("files", "insertions", "deletions", "gaps", "pinned", "by", "by_turns", "git"),
}


@pytest.fixture
def work(tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    (tmp_path / "work/a").write_text("1\n")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


@pytest.fixture
def ask(turnmark, work, nobody):
    """One command with --json, which must succeed; afterwards git finds nothing wrong."""

    def run(*arguments):
        result = turnmark(*arguments, "--json")
        assert (result.code, result.err) == (0, "")
        document = json.loads(result.out)
        assert document["schema"] == 1
        return document

    yield run
    if (nobody / "turnmark/store").exists():
        fsck(nobody / "turnmark/store")


@pytest.fixture
def configured(nobody):
    def write(text):
        (nobody / "config/turnmark").mkdir(parents=True, exist_ok=True)
        (nobody / "config/turnmark/config.yaml").write_text(text)

    return write


def points(ask, *arguments):
    return ask("list", *arguments)["points"]


# snapshot


def test_a_snapshot_answers_with_its_point(ask):
    answer = ask("snapshot")
    assert set(answer) == TAKEN
    assert (answer["changed"], answer["gaps"], answer["durable"]) == (1, 0, True)
    (point,) = points(ask)
    assert (point["id"], point["seq"], point["kind"]) == (answer["id"], answer["seq"], "manual")


def test_where_nothing_changed_the_newest_point_is_answered(ask):
    first = ask("snapshot")
    assert ask("snapshot") == {**first, "changed": 0}
    assert len(points(ask)) == 1


def test_a_state_that_no_mark_points_at_becomes_a_point(ask, work, nobody):
    first = ask("snapshot")
    store = Store.open(str(nobody / "turnmark/store"))
    store.refs.delete([f"refs/turnmark/{first['workspace']}/m/{first['seq']}"])
    assert points(ask) == []
    second = ask("snapshot")
    assert (second["id"], second["changed"]) == (first["id"], 0)
    assert [point["seq"] for point in points(ask)] == [second["seq"]]


def test_a_snapshot_of_a_named_directory(ask, work, tmp_path):
    (tmp_path / "other").mkdir()
    answer = ask("snapshot", str(tmp_path / "other"))
    assert ask("list", "../other")["workspace"] == {
        "id": answer["workspace"],
        "root": str(tmp_path / "other"),
    }


def test_durability_none_is_told_as_it_is(ask, configured):
    configured("durability: none\n")
    assert ask("snapshot")["durable"] is False
    assert ask("mark")["durable"] is False
    assert ask("turn", "begin", "--session", "s")["marks"][0]["durable"] is False


def test_a_workspace_within_another_is_said_once(turnmark, work):
    turnmark("snapshot")
    (work / "sub").mkdir()
    assert f"It lies in the workspace {work}, and has a list" in turnmark("snapshot", "sub").out
    assert "It lies in" not in turnmark("snapshot", "sub").out
    assert "It lies in" not in turnmark("snapshot").out


def test_the_first_snapshot_says_what_is_not_protected(turnmark, work):
    (work / "node_modules/x").mkdir(parents=True)
    (work / "node_modules/x/y").write_bytes(bytes(5000))
    (work / ".gitignore").write_text("*.tmp\n")
    (work / "z.tmp").write_bytes(bytes(100))
    first, second = turnmark("snapshot"), turnmark("snapshot")
    said = [line.split() for line in first.out.splitlines()]
    assert said[1:] == [
        *(["Not", "protected:", "2", "paths,", "5.0", "KB"],),
        *(["4.9", "KB", "excluded", "node_modules/"], ["100", "B", "ignored", "z.tmp"]),
    ]
    assert "Nothing changed" in second.out
    assert "protected" not in second.out


def test_many_gaps_are_ten_lines(turnmark, work):
    for n in range(40):
        (work / f"{n}.log").write_bytes(bytes(n))
    out = turnmark("snapshot").out.splitlines()[1:]
    assert len(out) == actions.UNPROTECTED_LINES
    assert out[1].split() == ["39", "B", "excluded", "39.log"]
    assert out[-1].split()[:3] == ["...", "32", "more,"]


def test_sizes_that_take_too_long_are_a_minimum(work):
    (work / "d").mkdir()
    for n in range(10):
        (work / f"d/{n}").write_text("x")
    gaps = [type("Gap", (), {"path": b"d", "reason": "excluded"})()]
    found = measure(os.fsencode(work), gaps, looks=5)
    assert [(one.bytes, one.whole) for one in found] == [(5, False)]
    assert lines(found, 10)[0] == "Not protected: 1 path, at least 5 B"


@pytest.mark.parametrize("path", [b"d/big", b"d/deep"])
def test_sizes_of_what_lies_outside_are_not_looked_at(work, path):
    (work.parent / "outside/deep").mkdir(parents=True)
    for name in ("big", "deep/f"):
        (work.parent / "outside" / name).write_text("x" * 99)
    (work / "d").symlink_to(work.parent / "outside")
    gaps = [Gap(RelPath(path), "excluded")]
    assert not measure(os.fsencode(work), gaps)


# mark, pin, unpin


def test_a_mark_is_a_point_whether_anything_changed_or_not(ask):
    ask("snapshot")
    answer = ask("mark", "-m", "before\nthe storm")
    assert set(answer) == TAKEN
    newest = points(ask)[0]
    assert (newest["seq"], newest["label"]) == (answer["seq"], "before the storm")
    assert (newest["id"], newest["kind"]) == (answer["id"], "manual")


def test_a_label_in_the_place_of_a_directory_is_told_where_it_goes(turnmark, work):
    said = turnmark("mark", "before it")
    assert said.code == 65
    assert "`turnmark mark -m 'before it'`" in said.err
    assert "is no directory" not in turnmark("mark", str(work)).err


def test_pin_and_unpin(ask, work):
    ask("mark", "-m", "one")
    (work / "a").write_text("2\n")
    ask("mark", "-m", "two")
    for command, pinned in (("pin", True), ("pin", True), ("unpin", False), ("unpin", False)):
        answer = ask(command, "2")
        assert set(answer) == {"schema", "workspace", "id", "seq", "pinned"}
        assert answer["pinned"] is pinned
        assert [point["pinned"] for point in points(ask)] == [False, pinned]


def test_a_pin_in_another_directory(ask, turnmark, work, tmp_path, monkeypatch):
    ask("mark")
    monkeypatch.chdir(tmp_path)
    assert ask("pin", "@", "--dir", "work")["pinned"]
    assert turnmark("pin", "@").code == 65


# list


def test_a_point_has_exactly_the_keys_that_programs_rely_on(ask):
    ask("mark")
    document = ask("list")
    assert set(document) == {"schema", "workspace", "points"}
    assert set(document["workspace"]) == {"id", "root"}
    assert set(document["points"][0]) == POINT


def test_a_turn_is_one_row_with_what_it_changed(ask, work):
    begin = ask("turn", "begin", "--session", "s", "--prompt", "fix it", "--agent", "codex")
    (work / "a").write_text("2\n3\n")
    (work / "b").write_text("4\n")
    ask("turn", "end", "--session", "s")
    (point,) = points(ask)
    assert point["id"] == begin["marks"][0]["id"]
    assert (point["files"], point["insertions"], point["deletions"]) == (2, 3, 1)
    assert (point["kind"], point["turn"], point["status"]) == ("turn", 1, "ok")
    assert (point["session"], point["label"], point["agent"]) == ("s", "fix it", "codex")


def test_filters_do_not_change_the_numbers(ask, work):
    for n, session in enumerate("srs"):
        ask("turn", "begin", "--session", session)
        (work / "a").write_text(f"{n} changed\n")
        ask("turn", "end", "--session", session)
    assert [p["n"] for p in points(ask)] == [1, 2, 3]
    assert [p["n"] for p in points(ask, "--session", "s")] == [1, 3]
    assert [p["n"] for p in points(ask, "--session", "s", "--limit", "1")] == [1]
    assert [p["n"] for p in points(ask, "--session", "r", "--all")] == [2]
    assert [p["n"] for p in points(ask, "--limit", "2")] == [1, 2]
    assert points(ask, "--session", "nobody") == []


def test_turns_without_changes_show_with_all(ask):
    ask("turn", "begin", "--session", "s")
    ask("turn", "end", "--session", "s")
    assert points(ask) == []
    assert [(p["n"], p["kind"]) for p in points(ask, "--all")] == [(None, "turn")]


def test_everywhere_names_the_workspace_of_each_point(ask, tmp_path):
    ask("mark", "-m", "here")
    (tmp_path / "other").mkdir()
    ask("mark", "-m", "there", str(tmp_path / "other"))
    document = ask("list", "--everywhere")
    assert document["workspace"] is None
    found = [(os.path.basename(p["workspace"]["root"]), p["label"]) for p in document["points"]]
    assert found == [("other", "there"), ("work", "here")]
    assert set(document["points"][0]) == POINT | {"workspace"}


def test_the_table_says_it_to_people(turnmark, work):
    turnmark("mark", "-m", "mine")
    turnmark("turn", "begin", "--session", "s", "--prompt", "fix \x1b[2J it", "--agent", "codex")
    (work / "a").write_text("2\n3\n")
    turnmark("turn", "end", "--session", "s", "--status", "error")
    turnmark("turn", "begin", "--session", "s", "--agent", "codex")
    turnmark("pin", "3")
    head, *rows = turnmark("list").out.splitlines()
    assert head.split() == ["#", "AGE", "WHAT", "FILES", "+", "-", "KIND", "ID"]
    assert "codex s" in rows[0]
    assert "turn 2, open" in rows[0]
    assert "fix \\x1b[2J it" in rows[1]
    assert " ".join(rows[1].split()[-8:-1]) == "1 2 1 turn 1, error, pinned"
    assert "manual, pinned" in rows[2]


def test_an_empty_list_says_so(turnmark, work):
    turnmark("turn", "begin", "--session", "s")
    turnmark("turn", "end", "--session", "s")
    assert turnmark("list").out == "No points.\n"
    assert turnmark("list", "--everywhere").out == "No points.\n"


def test_a_damaged_mark_is_said_beside_the_list(ask, turnmark, nobody):
    workspace = ask("mark")["workspace"]
    ref = nobody / f"turnmark/store/refs/turnmark/{workspace}/m/900"
    ref.write_text("1" * 40 + "\n")
    result = turnmark("list")
    ref.unlink()
    assert result.code == 0
    assert "lacks the object 1111" in result.err
    assert len(result.out.splitlines()) == 2


# turn


def test_turn_answers_one_mark_per_workspace(ask, tmp_path):
    (tmp_path / "other").mkdir()
    directories = [".", "../other", "."]
    begin = ask("turn", "begin", "--session", "s", "--turn", "t", *directories)
    assert set(begin) == {"schema", "marks"}
    assert [TAKEN - {"schema"} <= set(mark) for mark in begin["marks"]] == [True, True]
    assert len({mark["workspace"] for mark in begin["marks"]}) == 2
    end = ask("turn", "end", "--session", "s", *directories)
    assert [mark["durable"] for mark in end["marks"]] == [True, True]


def test_all_that_an_agent_says_is_kept(ask, work, nobody):
    words = ["--turn", "t1", "--prompt", "p", "--messages", "3", "--agent", "a", "--pid", "7"]
    ask("turn", "begin", "--session", "s", *words)
    (work / "a").write_text("2\n")
    ask("turn", "end", "--session", "s", "--status", "interrupted", "--messages", "5")
    (point,) = points(ask)
    assert (point["turn_id"], point["status"], point["label"]) == ("t1", "interrupted", "p")


def test_labels_may_be_switched_off(ask, configured):
    configured("agents: {labels: false}\n")
    ask("turn", "begin", "--session", "s", "--prompt", "secret")
    assert points(ask)[0]["label"] == ""


def test_trouble_with_one_workspace_does_not_cost_the_others_their_mark(turnmark, work):
    result = turnmark("turn", "begin", "--session", "s", "--json", "/etc", ".")
    document = json.loads(result.out)
    assert result.code == 3
    assert len(document["marks"]) == 1
    assert document["errors"][0]["dir"] == "/etc"
    assert len(json.loads(turnmark("list", "--json").out)["points"]) == 1


def test_an_end_without_a_turn_is_a_failure_that_makes_no_mark(turnmark, work):
    turnmark("mark")
    result = turnmark("turn", "end", "--session", "s")
    assert (result.code, result.out) == (1, "")
    assert "no open turn" in result.err
    assert len(json.loads(turnmark("list", "--all", "--json").out)["points"]) == 1


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("list", 10),
        ("list --everywhere", 10),
        ("pin 1", 10),
        ("turn end --session s", 10),
        ("list . --everywhere", 64),
        ("list --limit -1", 64),
        ("turn begin", 64),
        ("turn begin --session=", 64),
        ("turn end --session s --status late", 64),
        ("turn begin --session s --pid x", 64),
        ("pin", 64),
        ("snapshot /etc", 65),
        ("mark nowhere", 65),
    ],
)
def test_exit_codes_without_a_store(turnmark, work, line, code):
    result = turnmark(*line.split())
    assert (result.code, result.out) == (code, "")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("pin 9", 65),
        ("pin ../x", 65),
        ("pin -- --help", 65),
        ("unpin turn:4", 65),
        ("list /", 65),
        ("list ..", 65),
    ],
)
def test_exit_codes_with_a_store(turnmark, work, line, code):
    turnmark("mark")
    result = turnmark(*line.split())
    assert (result.code, result.out) == (code, "")
    assert "hint: " in result.err


@pytest.mark.parametrize("line", ["snapshot", "mark", "turn begin --session s", "turn end"])
def test_switched_off_nothing_is_written(turnmark, work, configured, nobody, line):
    configured("enabled: false\n")
    words = [*line.split(), *(["--session", "s"] if line == "turn end" else [])]
    result = turnmark(*words)
    assert result.code == 1
    assert "switched off" in result.err
    assert not (nobody / "turnmark/store").exists()


def test_quiet_says_nothing(turnmark, work):
    for line in ("snapshot", "mark", "turn begin --session s", "turn end --session s", "list"):
        result = turnmark("--quiet", *line.split())
        assert (result.code, result.out, result.err) == (0, "", "")


def test_nothing_is_written_into_the_workspace(turnmark, work):
    before = {entry.name: entry.stat() for entry in os.scandir(work)}
    stamp = os.stat(work).st_mtime_ns
    for line in ("snapshot", "mark -m x", "turn begin --session s", "list", "pin 1"):
        turnmark(*line.split())
    assert os.stat(work).st_mtime_ns == stamp
    assert before.keys() == {entry.name for entry in os.scandir(work)}


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("enabled: false\n", "config.yaml says `enabled: false`."),
        ("wach: []\n", "the configuration has a mistake: "),
        ("watch: []\n", "`turnmark up` starts it."),
    ],
)
def test_status_says_what_keeps_a_service_from_running(
    turnmark, tmp_path, monkeypatch, said, shown
):
    """Found by a new user: it named a command that then refused."""
    (tmp_path / "config.yaml").write_text(said)
    monkeypatch.setenv("TURNMARK_CONFIG", str(tmp_path / "config.yaml"))
    found = turnmark("status")
    assert (found.code, shown in found.out) == (0, True)
    service = json.loads(turnmark("status", "--json").out)["service"]
    assert bool(service["config_error"]) == ("mistake" in shown)
