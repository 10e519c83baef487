"""sessions: a state is there whole or not at all, and nothing damaged is thrown away."""

from __future__ import annotations

import errno
import itertools
import os
import stat
import time
from copy import deepcopy
from datetime import UTC, date, datetime

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from core.errors import BadInput, TurnmarkError
from core.sessions import (
    MAX_TURNS,
    Sessions,
    TurnNote,
    check_id,
    encode,
    file_id,
    merge,
    moment_of,
    parse,
    parse_input,
    plain,
)
from tests.faults import FaultyDisk, die_at_each, failing

NOW = 1_790_000_000_000_000_000
DAY = 86_400_000_000_000


@pytest.fixture
def clock():
    return [NOW]


@pytest.fixture
def sessions(tmp_path, clock):
    return Sessions(str(tmp_path / "home" / "sessions"), clock=lambda: clock[0])


def put(sessions, name, data):
    os.makedirs(sessions.directory, exist_ok=True)
    path = f"{sessions.directory}/{name}"
    with open(path, "wb") as file:
        file.write(data if isinstance(data, bytes) else data.encode())
    return path


# Writing and reading


def test_what_was_written_is_read_with_its_times(sessions):
    given = {"session_id": "s1", "task": "fix it", "progress": [{"step": 1}], "mine": {"a": None}}
    before = deepcopy(given)
    sessions.write(given)
    found = sessions.read("s1")
    assert {key: found[key] for key in given} == given == before
    assert found["created"] == found["updated"] == "2026-09-21T14:13:20.000Z"
    assert found["status"] == "in_progress"


def test_created_stays_and_updated_moves(sessions, clock):
    sessions.write({"session_id": "s1"})
    clock[0] += DAY
    sessions.write({"session_id": "s1", "task": "again"})
    found = sessions.read("s1")
    assert found["created"].startswith("2026-09-21")
    assert found["updated"].startswith("2026-09-22")


def test_what_comes_back_is_not_what_is_kept(sessions):
    written = sessions.write({"session_id": "s1", "progress": [1]})
    written["progress"].append(2)
    assert sessions.read("s1")["progress"] == [1]


def test_nobody_else_can_read_them(sessions):
    sessions.write({"session_id": "s1"})
    assert stat.S_IMODE(os.stat(sessions.directory).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(f"{sessions.directory}/s1.yaml").st_mode) == 0o600


def test_a_missing_one_is_none_and_makes_no_directory(sessions):
    assert sessions.read("s1") is None
    assert sessions.list() == ()
    assert sessions.delete("s1") is False
    assert not os.path.exists(sessions.directory)


def test_deleting_twice_is_fine(sessions):
    sessions.write({"session_id": "s1"})
    assert (sessions.delete("s1"), sessions.delete("s1")) == (True, False)
    assert sessions.read("s1") is None


def test_the_list_has_ids_only(sessions):
    for name in ("b", "a.b", "c"):
        sessions.write({"session_id": name})
    put(sessions, "notes.txt", "mine")
    put(sessions, "x.yaml.12.34.new", "half")
    put(sessions, "c.damaged-1.yaml", "old")
    assert sessions.list() == ("a.b", "b", "c")


# Ids


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../evil",
        "/etc/evil",
        "a/b",
        "a\\b",
        ".hidden",
        "a b",
        "a\n",
        "a\0",
        "ä",
        "x" * 129,
        "s.damaged-1",
        None,
        7,
        ["a"],
    ],
)
def test_no_id_leads_out_of_the_directory(sessions, name):
    with pytest.raises(BadInput):
        sessions.write({"session_id": name})
    if isinstance(name, str):
        for call in (sessions.read, sessions.delete):
            with pytest.raises(BadInput):
                call(name)
    assert not os.path.exists(sessions.directory)


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "-", "x" * 128, "20260321_101500_ab12"])
def test_usual_ids_are_fine(sessions, name):
    assert check_id(name) == file_id(name) == name
    sessions.write({"session_id": name})
    assert sessions.list() == (name,)


def test_any_id_of_an_agent_has_a_file_of_its_own():
    names = ["a/b", "a-b", "../a", "ä" * 300, "", ".x", "a\udc80"]
    assert len({file_id(name) for name in names}) == len(names)
    assert all(check_id(file_id(name)) for name in names)


# Damage


@pytest.mark.parametrize(
    "data",
    [
        b"caf\xe9: [",
        b"- a\n- b\n",
        b"",
        b"just text",
        b"a: [1, 2",
        b"\x00\x01",
        b"a: !!python/object:os.system x",
        b"[" * 5000,
        b"x: " + b"9" * 5000,
        b"? {a: 1}\n: 2",
        b"a: 2024-13-45",
    ],
)
def test_a_damaged_file_is_none_and_kept_aside(sessions, data):
    put(sessions, "s1.yaml", data)
    assert sessions.read("s1") is None
    assert sessions.list() == ()
    with open(f"{sessions.directory}/s1.damaged-1.yaml", "rb") as file:
        assert file.read() == data


def test_each_damaged_file_is_kept(sessions):
    for number in (1, 2):
        put(sessions, "s1.yaml", f"[broken {number}")
        assert sessions.read("s1") is None
    assert sessions.aside("s1") == ("s1.damaged-1.yaml", "s1.damaged-2.yaml")
    assert sessions.aside("s2") == ()


def test_writing_over_a_damaged_file_keeps_it_too(sessions):
    put(sessions, "s1.yaml", "[broken")
    sessions.write({"session_id": "s1", "task": "anew"})
    assert sessions.read("s1")["task"] == "anew"
    assert sessions.aside() == ("s1.damaged-1.yaml",)


def test_a_link_or_a_pipe_in_its_place_is_not_followed(sessions, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("session_id: s1\n")
    os.makedirs(sessions.directory)
    os.symlink(secret, f"{sessions.directory}/s1.yaml")
    os.mkfifo(f"{sessions.directory}/s2.yaml")
    assert sessions.read("s1") is None
    assert sessions.read("s2") is None
    assert secret.exists()


def test_a_write_that_fails_is_an_error_and_leaves_a_whole_state(sessions):
    sessions.write({"session_id": "s1", "task": "old"})
    for at in itertools.count(1):
        disk = FaultyDisk(at, failing(errno.ENOSPC))
        try:
            Sessions(sessions.directory, disk).write({"session_id": "s1", "task": "new"})
        except TurnmarkError:
            assert sessions.read("s1")["task"] in ("old", "new")
            continue
        break
    assert at > 5
    assert sessions.read("s1")["task"] == "new"


def test_a_write_that_is_killed_leaves_a_whole_state(sessions):
    def write(disk):
        Sessions(sessions.directory, disk).write({"session_id": "s1", "task": "new"})

    sessions.write({"session_id": "s1", "task": "old"})
    tasks = {sessions.read("s1")["task"] for _ in die_at_each(write)}
    assert tasks == {"old", "new"}
    assert sessions.read("s1")["task"] == "new"
    sessions.garbage_collect()
    assert set(os.listdir(sessions.directory)) == {".lock", "s1.yaml"}


def test_a_state_that_cannot_be_written_leaves_the_old_one(sessions):
    sessions.write({"session_id": "s1", "task": "old"})
    knot: dict[str, object] = {"session_id": "s1"}
    knot["self"] = knot
    for bad in (
        {"session_id": "s1", "x": object()},
        {"session_id": "s1", "x": "y" * 5_000_000},
        knot,
    ):
        with pytest.raises(BadInput):
            sessions.write(bad)
    assert sessions.read("s1")["task"] == "old"


# Collecting


def test_old_ones_go_and_completed_ones_sooner(sessions, clock):
    sessions.write({"session_id": "open"})
    sessions.write({"session_id": "done", "status": "completed"})
    clock[0] += 2 * DAY
    assert sessions.garbage_collect().removed == ("done",)
    clock[0] += 4 * DAY
    assert sessions.garbage_collect().removed == ()
    clock[0] += 2 * DAY
    assert sessions.garbage_collect().removed == ("open",)


ODD = {
    "aware": ("2026-01-01T00:00:00+05:00", True),
    "zulu": ("'2026-01-01T00:00:00Z'", True),
    "naive": ("'2026-01-01T00:00:00'", True),
    "native": ("2026-01-01 00:00:00", True),
    "native-aware": ("2026-01-01 00:00:00 +02:00", True),
    "date": ("2026-01-01", True),
    "epoch": ("1700000000", True),
    "fraction": ("1700000000.5", True),
    "young": ("'2026-09-20T00:00:00+00:00'", False),
    "future": ("'2999-01-01T00:00:00Z'", False),
}


@pytest.mark.parametrize("name", ODD)
def test_any_timestamp_is_understood(sessions, name):
    text, goes = ODD[name]
    put(sessions, "s1.yaml", f"session_id: s1\nupdated: {text}\n")
    assert sessions.garbage_collect().removed == (("s1",) if goes else ())


@pytest.mark.parametrize(
    "text", ["yesterday", "", "[1]", "true", "1e400", ".nan", "-99999999999999999999"]
)
def test_of_what_is_no_timestamp_the_file_tells_the_age(sessions, clock, text):
    path = put(sessions, "s1.yaml", f"session_id: s1\nupdated: {text}\n")
    os.utime(path, ns=(NOW, NOW))
    done = sessions.garbage_collect()
    assert (done.errors, done.aside) == ((), ())
    if moment_of(yaml.safe_load(text)) is None:
        assert done.removed == ()
        clock[0] += 8 * DAY
        assert sessions.garbage_collect().removed == ("s1",)


def test_collecting_keeps_what_it_cannot_read(sessions):
    put(sessions, "latin.yaml", b"updated: caf\xe9\n")
    put(sessions, "half.yaml", "progress: [")
    put(sessions, "x.yaml.12.34.new", "a killed write")
    done = sessions.garbage_collect()
    assert done.removed == ()
    assert sorted(done.aside) == ["half.damaged-1.yaml", "latin.damaged-1.yaml"]
    assert sorted(n for n in os.listdir(sessions.directory) if not n.startswith(".")) == sorted(
        done.aside
    )


def test_collecting_never_raises(sessions, tmp_path):
    assert sessions.garbage_collect() == Sessions(str(tmp_path / "none")).garbage_collect()
    put(sessions, "s1.yaml", "updated: 2001-01-01")
    for at in itertools.count(1):
        disk = FaultyDisk(at, failing(errno.EIO))
        done = Sessions(sessions.directory, disk, sessions.clock).garbage_collect()
        assert done.removed == ("s1",) or done.errors
        if done.removed:
            break
    assert at > 2


# Merging


def test_an_update_appends_replaces_and_fills_up():
    state = {
        "session_id": "s1",
        "created": "then",
        "task": "t",
        "progress": [1],
        "decisions": ["a"],
        "blocked": ["x"],
        "unresolved": ["y"],
        "state": {"branch": "main", "pushed": False},
    }
    update = {
        "progress": [2],
        "decisions": "b",
        "blocked": [],
        "unresolved": ["z"],
        "state": {"pushed": True},
        "status": "completed",
        "session_id": "s2",
        "created": "now",
    }
    before = deepcopy((state, update))
    assert merge(state, update) == {
        "session_id": "s1",
        "created": "then",
        "task": "t",
        "progress": [1, 2],
        "decisions": ["a", "b"],
        "blocked": [],
        "unresolved": ["z"],
        "state": {"branch": "main", "pushed": True},
        "status": "completed",
    }
    assert (state, update) == before


def test_a_merged_state_shares_nothing_with_the_update():
    update = {"state": {"todo": [1]}}
    merged = merge({}, update)
    merged["state"]["todo"].append(2)
    assert update == {"state": {"todo": [1]}}


def test_update_of_nothing_begins_a_state(sessions):
    sessions.update("s1", {"progress": ["first"]})
    sessions.update("s1", {"progress": ["second"]})
    assert sessions.read("s1")["progress"] == ["first", "second"]


# Documents

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.dates()
    | st.datetimes(timezones=st.just(UTC))
    | st.binary(max_size=8)
)
VALUES = st.recursive(
    LEAVES,
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=5), below, max_size=3)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=8), VALUES, max_size=4))
def test_every_document_comes_back_as_it_was(state):
    assert parse(encode(plain(state))) == plain(state)


def test_what_yaml_reads_by_guessing_comes_back_as_text(sessions):
    words = [
        "no",
        "010",
        "1e3",
        "2024-01-01",
        "~",
        "null",
        ": x",
        "a: b",
        "- a",
        "#",
        "\u2028",
        "\x85",
        "=",
        "<<",
    ]
    sessions.write({"session_id": "s1", "progress": words, "no": "<<"})
    assert sessions.read("s1")["progress"] == words


def test_a_name_that_is_not_utf8_does_not_stop_a_state(sessions):
    sessions.write({"session_id": "s1", "files": ["caf\udce9"]})
    assert sessions.read("s1")["files"] == ["caf\\udce9"]


@pytest.mark.parametrize(
    "data",
    [
        b'{"session_id":"s","x":[1e5,"\\ud83d\\ude00","a\\/b"]}',
        b"session_id: s\nx: [100000.0, \xf0\x9f\x98\x80, a/b]\n",
    ],
)
def test_json_and_yaml_are_both_understood(data):
    assert parse_input(data) == {"session_id": "s", "x": [100000.0, "😀", "a/b"]}


@pytest.mark.parametrize("data", [b"", b"[1]", b"caf\xe9", b'{"a":', b"a: b: c", b"[" * 9999])
def test_other_input_is_refused(data):
    with pytest.raises(BadInput):
        parse_input(data)


def test_moments_of_all_kinds():
    assert moment_of("1970-01-01T00:00:01Z") == moment_of(1) == moment_of(1.0) == 1_000_000_000
    assert moment_of(date(1970, 1, 2)) == DAY
    assert moment_of(datetime(1970, 1, 2)) == DAY  # noqa: DTZ001 - as YAML makes them
    others: list[object] = [None, True, "x", [], {}, float("nan"), float("inf"), b"1970"]
    for other in others:
        assert moment_of(other) is None


# What turnmark notes


def note(kind="begin", turn=1, **more):
    return TurnNote(kind, more.pop("workspace", "w1"), "/work", turn, "ab" * 20, turn, **more)


def test_a_session_is_known_by_its_turns_alone(sessions):
    sessions.note_turn("s1", note(label="fix the form", agent="codex", pid=47))
    found = sessions.read("s1")
    assert (found["task"], found["status"]) == ("fix the form", "in_progress")
    assert found["state"] == {"working_directory": "/work"}
    own = found["turnmark"]
    assert (own["session"], own["agent"], own["pid"], own["open"]) == ("s1", "codex", 47, True)
    assert own["workspaces"] == {"w1": {"root": "/work", "turns": 1}}
    assert own["last"]["point"] == "ab" * 20


def test_an_end_closes_its_turn_and_a_begin_the_one_before(sessions):
    for noted in (note(), note("end", status="ok"), note(turn=2), note(turn=3)):
        sessions.note_turn("s1", noted)
    own = sessions.read("s1")["turnmark"]
    assert [turn.get("status") for turn in own["turns"]] == ["ok", "interrupted", None]
    assert own["open"] is True
    sessions.note_turn("s1", note("end", 3, status="error"))
    assert sessions.read("s1")["turnmark"]["open"] is False


def test_a_note_told_twice_is_one(sessions):
    for noted in (note(), note(), note("end", status="ok"), note("end", status="ok")):
        sessions.note_turn("s1", noted)
    assert len(sessions.read("s1")["turnmark"]["turns"]) == 1


def test_workspaces_have_turns_of_their_own(sessions):
    sessions.note_turn("s1", note())
    sessions.note_turn("s1", note(workspace="w2"))
    own = sessions.read("s1")["turnmark"]
    assert set(own["workspaces"]) == {"w1", "w2"}
    assert [turn.get("status") for turn in own["turns"]] == [None, None]


def test_notes_stay_few(sessions):
    for turn in range(1, MAX_TURNS + 5):
        sessions.note_turn("s1", note(turn=turn))
    own = sessions.read("s1")["turnmark"]
    assert len(own["turns"]) == MAX_TURNS
    assert own["workspaces"]["w1"]["turns"] == MAX_TURNS + 4


def test_the_agents_state_and_our_notes_never_touch(sessions):
    sessions.write({"session_id": "s1", "task": "theirs", "progress": [1]})
    sessions.note_turn("s1", note(label="a prompt"))
    assert sessions.read("s1")["task"] == "theirs"
    sessions.write({"session_id": "s1", "turnmark": "forged"})
    sessions.update("s1", {"turnmark": {"open": False}, "progress": [2]})
    found = sessions.read("s1")
    assert found["turnmark"]["open"] is True
    assert found["progress"] == [2]


def test_nobody_can_forge_notes_where_there_are_none(sessions):
    sessions.write({"session_id": "s1", "turnmark": {"open": True}})
    sessions.update("s2", {"turnmark": {"open": True}})
    assert all("turnmark" not in sessions.read(name) for name in ("s1", "s2"))


def test_any_id_can_be_noted(sessions):
    sessions.note_turn("../evil id", note())
    (name,) = sessions.list()
    assert sessions.read(name)["turnmark"]["session"] == "../evil id"
    assert os.listdir(os.path.dirname(sessions.directory)) == ["sessions"]


def test_notes_that_somebody_mangled_are_made_anew(sessions):
    for own in ("turnmark: 7", "turnmark: {turns: x, workspaces: [1]}", "turnmark: {turns: [1]}"):
        put(sessions, "s1.yaml", f"session_id: s1\n{own}\n")
        sessions.note_turn("s1", note())
        assert len(sessions.read("s1")["turnmark"]["turns"]) == 1


def test_what_is_missing_from_an_open_document_is_filled_in(sessions):
    sessions.note_turn("s1", note(turn=1))
    later = [note("end", turn=1, status="unknown"), note(turn=2), note("end", turn=2, status="ok")]
    sessions.note_turns("s1", later, if_known=True)
    own = sessions.read("s1")["turnmark"]
    assert [turn["status"] for turn in own["turns"]] == ["unknown", "ok"]
    before = sessions.read("s1")
    sessions.note_turns("s1", [note("end", turn=2, status="error")], if_known=True)
    assert sessions.read("s1") == before


def test_filling_in_brings_nothing_back_that_was_deleted(sessions):
    sessions.note_turns("s1", [note(turn=1)], if_known=True)
    assert sessions.list() == ()


def test_turns_after_an_ended_one_are_caught_up_with(sessions):
    sessions.note_turns("s1", [note(turn=1), note("end", turn=1)])
    later = [note(turn=1), note("end", turn=1), note(turn=2), note("end", turn=2, status="ok")]
    sessions.note_turns("s1", later, if_known=True)
    turns = sessions.read("s1")["turnmark"]["turns"]
    assert [(turn["turn"], "ended" in turn) for turn in turns] == [(1, True), (2, True)]


def test_a_note_has_the_time_of_its_turn(sessions):
    sessions.note_turn("s1", note(time_ns=1_000_000_000))
    found = sessions.read("s1")
    assert found["created"] == found["turnmark"]["turns"][0]["begun"] == "1970-01-01T00:00:01.000Z"


def test_a_collection_of_notes_leaves_what_somebody_wrote(sessions):
    sessions.note_turn("notes", note())
    sessions.write({"session_id": "written"})
    sessions.note_turn("written", note())
    sessions.note_turn("both", note())
    sessions.update("both", {"progress": ["half"]})
    done = sessions.garbage_collect(now_ns=time.time_ns() + 10**16, only_notes=True)
    assert done.removed == ("notes",)
    assert sessions.list() == ("both", "written")
