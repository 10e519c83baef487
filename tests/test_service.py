"""The service as a real process: started, reloaded, stopped, killed, and what it keeps."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from concurrent.futures import Future

import pytest

from core.diff import entry_at
from core.errors import Busy, TurnmarkError
from core.history import History
from core.model import RelPath
from core.store import Store
from tests.live import Live, is_running, until
from tests.stores import fsck
from tests.trees import build, image
from watcher.answers import answer_of, nobody, settle
from watcher.client import NotWatched, connect
from watcher.starting import own_command

pytestmark = pytest.mark.live


@pytest.fixture
def live(tmp_path):
    made = Live(tmp_path)
    yield made
    made.close()
    if (tmp_path / "data/store").exists():
        fsck(tmp_path / "data/store")


@pytest.fixture
def work(live):
    return live.workspace(a="1\n")


# Up and down


def test_up_starts_it_once_and_down_ends_it(live):
    first = live.ask("up")
    assert first["started"] is True
    again = live.ask("up")
    assert (again["started"], again["pid"]) == (False, first["pid"])
    assert live.ask("status")["service"]["pid"] == first["pid"]
    assert live.ask("down") == {"schema": 1, "stopped": True, "pid": first["pid"]}
    until(lambda: not is_running(first["pid"]))
    assert live.ask("down") == {"schema": 1, "stopped": False}
    assert live.ask("status")["service"]["running"] is False


def test_up_says_what_it_cannot_watch(live, work):
    """Found by a new user: it said that it had started, and no more."""
    live.watch_list(work, live.base / "nowhere")
    _, _, err = live.run("up")
    assert err == f"{live.base}/nowhere is paused: it does not exist.\n"
    assert f"{live.base}/nowhere: it does not exist\n" in live.run("status")[1]
    assert "is paused: it does not exist.\n" in live.run("doctor")[1]


def test_down_says_whose_turn_is_open(live, work):
    live.up(work)
    live.ask("turn", "begin", "--session", "busy", cwd=work)
    live.ask("turn", "begin", "--session", "done", cwd=work)
    live.ask("turn", "end", "--session", "done", cwd=work)
    code, out, err = live.run("down")
    assert (code, out) == (0, "The service has ended.\n")
    assert "A turn of busy is open" in err
    assert "done" not in err


def test_it_is_detached_from_whoever_started_it(live):
    pid = live.up()
    assert os.getsid(pid) == pid
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert os.readlink(f"/proc/{pid}/fd/0") == "/dev/null"
    assert os.readlink(f"/proc/{pid}/fd/1") == str(live.base / "data/log/turnmark.log")


def test_nothing_of_it_is_open_to_others(live, work):
    live.up(work)
    for folder, _, names in os.walk(live.base / "run"):
        for path in (folder, *(f"{folder}/{name}" for name in names)):
            assert not os.lstat(path).st_mode & 0o077, path
    assert stat.S_IMODE((live.base / "data/log/turnmark.log").stat().st_mode) == 0o600


def test_a_service_that_hangs_is_named_with_the_way_out(live):
    pid = live.up()
    os.kill(pid, signal.SIGSTOP)
    try:
        client = connect(live.context, timeout=0.3)
        assert client is not None
        with client, pytest.raises(TurnmarkError) as raised:
            client.hello()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert f"(process {pid}) did not answer" in raised.value.message
    assert f"`kill -9 {pid}`" in raised.value.hint


def test_eight_at_once_start_one_service(live):
    starting = [live.start("up", "--json") for _ in range(8)]
    for process in starting:
        assert process.communicate(timeout=30)[1] == b""
        assert process.returncode == 0
    live.note_pid()
    assert live.log.count(" serves ") == 1
    assert len(live.pids) == 1


def test_a_second_one_in_the_foreground_says_why_it_cannot(live):
    live.up()
    process = live.start("up", "--foreground")
    _, err = process.communicate(timeout=30)
    assert process.returncode == 69
    assert b"runs already" in err


def test_in_the_foreground_it_logs_to_stderr_and_ends_by_interrupt(live, work):
    live.watch_list(work)
    process = live.start("up", "--foreground")
    live.pids.add(process.pid)
    until(lambda: (live.base / "run").exists() and _listens(live))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert b"stopped" in err


def _listens(live):
    try:
        return live.status()
    except AssertionError:
        return None


def test_what_keeps_it_from_starting_is_said_by_up(live):
    live.config.write_text("wach: []\n")
    code, _, err = live.run("up")
    assert (code, "config.yaml:1:1" in err) == (78, True)
    live.config.write_text("enabled: false\n")
    assert "switched off" in live.run("up")[2]
    live.config.write_text("")
    (live.base / "run").mkdir()
    (live.base / "run").chmod(0o755)
    assert "open to other users" in live.run("up")[2]


def test_a_stale_socket_is_no_obstacle(live):
    live.kill(live.up())
    assert "No service" in live.run("status")[1]
    assert live.ask("up")["started"] is True


def test_it_ends_by_itself_when_nobody_needs_it(live):
    pid = live.ask("up", "--idle", "1")["pid"]
    until(lambda: not is_running(pid))
    assert "nobody has needed" in live.log


def test_the_init_system_is_told(live):
    said = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    said.settimeout(20)
    said.bind(str(live.base / "notify"))
    live.env |= {"NOTIFY_SOCKET": str(live.base / "notify"), "WATCHDOG_USEC": "60000000"}
    process = live.start("up", "--foreground")
    live.pids.add(process.pid)
    assert said.recv(1000).startswith(b"READY=1\nSTATUS=")
    assert said.recv(1000).startswith(b"WATCHDOG=1")
    process.terminate()
    assert said.recv(1000) == b"STOPPING=1"
    process.communicate(timeout=20)
    said.close()


def test_units_name_an_absolute_interpreter(live):
    for kind in ("systemd", "launchd"):
        _, out, _ = live.run("up", "--print-unit", kind)
        assert sys.executable in out
        assert "-EP" in out


def test_it_starts_beside_decoys_of_its_packages(live, work):
    for name in ("core", "watcher"):
        (work / name).mkdir()
        (work / name / "__init__.py").write_text("raise SystemExit('decoy')")
    live.env["PYTHONPATH"] = "."
    assert live.run("up", cwd=work)[0] == 0
    done = subprocess.run(
        [*own_command(), "--version"], cwd=work, env=live.env, capture_output=True, check=True
    )
    assert done.stdout.startswith(b"turnmark ")


# What it is for


def test_bursts_become_snapshots_by_themselves(live, work):
    live.up(work)
    before = live.status()["store"]["snapshots"]
    with live.client() as client:
        events = client.events(10)
        client.call("subscribe")
        client._following = True
        build(work, {f"new/{n}": str(n) for n in range(50)})
        assert next(e for e in events if e["event"] == "snapshot")["changed"] > 0
    until(lambda: live.row(work)["files"] == 51)
    assert live.status()["store"]["snapshots"] > before


def test_a_turn_is_a_point_and_a_rollback_to_it_is_exact(live, work):
    build(work, {"d/x": "x", "run.sh": "#!", "empty/": ""})
    (work / "run.sh").chmod(0o755)
    was = image(work)
    live.up(work)
    (begun,) = live.ask("turn", "begin", "--session", "s", "--prompt", "break it", cwd=work)[
        "marks"
    ]
    assert (begun["turn"], begun["durable"]) == (1, True)
    build(work, {"a": "2", "d/y": "y"})
    (work / "run.sh").unlink()
    (work / "empty").rmdir()
    (ended,) = live.ask("turn", "end", "--session", "s")["marks"]
    assert ended["id"] != begun["id"]
    assert live.points(work)[0]["label"] == "break it"
    after = image(work)
    assert live.ask("rollback", "@", "--yes", cwd=work)["outcome"] == "done"
    assert image(work) == was
    assert live.ask("undo", "--yes", cwd=work)["outcome"] == "done"
    assert image(work) == after


def test_every_writing_command_works_through_it(live, work):
    live.up(work)
    (work / "b").write_text("b")
    taken = live.ask("snapshot", cwd=work)
    assert (taken["changed"], taken["durable"]) in ((1, True), (0, True))
    marked = live.ask("mark", "-m", "mine", cwd=work)
    assert live.ask("pin", "@", cwd=work)["pinned"] is True
    assert live.points(work)[0] | {"pinned": True} == live.points(work)[0]
    assert live.ask("unpin", marked["id"], cwd=work)["pinned"] is False
    assert live.ask("redo", "--yes", cwd=work)["outcome"] == "nothing"
    (work / "b").unlink()
    shown = live.ask("rollback", "@", "--dry-run", cwd=work)
    assert (shown["outcome"], shown["created"]) == ("planned", ["b"])
    assert not (work / "b").exists()
    code, _, _ = live.run("rollback", "@", "b", "--plan", "0000000", cwd=work)
    assert (code, (work / "b").exists()) == (1, False)


@pytest.mark.parametrize(
    "words",
    [
        ("pin", "@"),
        ("undo", "--yes"),
        ("rollback", "@", "--dry-run"),
        ("turn", "begin", "--session", "s", "--turn", "same"),
    ],
)
def test_what_only_looks_up_something_loses_no_change(live, work, words):
    live.config.write_text(f"defaults: {{quiet_ms: 60000, longest_ms: 600000}}\nwatch: [{work}]\n")
    live.up()
    live.ask("turn", "begin", "--session", "s", "--turn", "same", cwd=work)
    (work / "new").write_text("n")
    live.ask(*words, cwd=work)
    live.ask("down")
    point = live.points(work, "--all")[0]
    assert live.run("cat", point["id"], "new", cwd=work)[1] == "n"


def test_what_it_does_not_watch_is_done_without_it(live, work):
    live.up()
    assert live.ask("snapshot", cwd=work)["changed"] == 1
    assert live.rows() == []
    assert live.ask("turn", "begin", "--session", "s", str(work))["marks"][0]["turn"] == 1
    assert live.row(work)["state"] in ("scanning", "watching")


def test_without_auto_watch_a_turn_watches_nothing(live, work):
    live.config.write_text("agents: {auto_watch: false}\n")
    live.up()
    assert live.ask("turn", "begin", "--session", "s", str(work))["marks"][0]["turn"] == 1
    assert live.rows() == []


def test_directories_are_watched_on_request_and_let_go(live, work):
    live.up()
    assert live.ask("watch", "work")["workspaces"][0]["root"] == str(work)
    until(lambda: live.row(work)["state"] == "watching")
    (work / "b").write_text("pending")
    live.ask("unwatch", "work")
    assert live.rows() == []
    (row,) = live.ask("list", str(work), "--all", "--limit", "1")["points"]
    assert row["kind"] == "burst"
    assert live.run("unwatch", "work")[0] == 1
    assert live.run("watch", "work", "missing")[0] == 65
    assert live.rows() == []
    live.ask("watch", "work")
    assert live.run("unwatch", "work", "missing")[0] == 1
    assert [row["root"] for row in live.rows()] == [str(work)]
    live.ask("unwatch", "work")
    assert live.run("watch", "/")[0] == 65
    assert live.run("watch", "")[0] == 65
    assert live.run("unwatch", "")[0] == 65


IMPATIENT = """
import sys
from watcher import service
service.UPKEEP_SECONDS = service.TICK_SECONDS = 0.1
service.REST_SECONDS = 1.0
from watcher.cli import main
sys.exit(main())
"""


def test_in_a_long_rest_it_has_what_is_kept_compressed(live, work):
    for turn in range(3):
        (work / "noise").write_text(f"{turn}" + os.urandom(1_000_000).hex())
        live.ask("snapshot", cwd=work)
    live.watch_list(work)
    with subprocess.Popen(
        [sys.executable, "-c", IMPATIENT, "up", "--foreground"], env=live.env
    ) as process:
        live.pids.add(process.pid)
        try:
            until(lambda: _compressed(live.base / "data/store"), 90)  # git, as nice as can be
            (work / "a").write_text("2\n")
            live.ask("snapshot", cwd=work)  # changes nothing where a burst was first
            store = Store.open(str(live.base / "data/store"))
            newest = History(store, live.rows()[0]["id"]).newest()
            assert newest is not None
            kept = entry_at(store.tree, newest.files, RelPath(b"a"))
            assert kept is not None
            assert store.blob(kept.oid) == b"2\n"
        finally:
            process.terminate()


def _compressed(store):
    """Whether a deep repack went well: all that was there lies in one pack, and git's is gone."""
    noted = store / "turnmark/last_repack"
    done = noted.exists() and int(noted.read_text().split()[1]) > 0
    return done and not list((store / "turnmark/tmp").glob("deep-*"))


# Configuration


def test_a_changed_configuration_comes_into_force(live, work):
    other = live.workspace("other", b="2")
    live.up(work)
    live.watch_list(work, other)
    until(lambda: live.row(other).get("state") == "watching")
    live.watch_list(other)
    until(lambda: not live.row(work))
    assert live.row(other)["state"] == "watching"


def test_a_mistake_in_it_changes_nothing_and_is_shown(live, work):
    pid = live.up(work)
    live.config.write_text("watch: [1]\n")
    os.kill(pid, signal.SIGHUP)
    until(lambda: live.status()["service"]["config_error"])
    assert live.row(work)["state"] == "watching"
    assert "mistake" in live.run("status")[1]
    live.watch_list(work)
    os.kill(pid, signal.SIGHUP)
    until(lambda: not live.status()["service"]["config_error"])


def test_a_directory_that_is_not_there_is_shown_and_watched_when_it_comes(live):
    live.watch_list(live.base / "later")
    live.ask("up")
    (row,) = live.rows()
    assert (row["state"], "does not exist" in row["reason"]) == ("paused", True)
    live.workspace("later", a="1")
    live.call("reload")
    until(lambda: live.row(live.base / "later")["state"] == "watching")


def test_a_workspace_does_not_look_into_one_that_lies_in_it(live, work):
    inner = live.workspace("work/inner", x="1")
    live.up(work)
    live.ask("watch", str(inner))
    until(lambda: live.row(inner).get("state") == "watching")
    until(lambda: live.row(work)["files"] == 1)
    assert live.row(inner)["files"] == 1


# Trouble


def test_two_services_on_one_store_share_no_workspace(live, work):
    other = Live(live.base, env={"TURNMARK_RUNTIME_DIR": str(live.base / "run2")})
    live.up(work)
    try:
        other.ask("up")
        row = until(lambda: next((r for r in other.rows() if r["state"] == "paused"), None))
        assert "another turnmark process" in row["reason"]
        with pytest.raises(TurnmarkError, match="another turnmark process"):
            other.call("snapshot", dir=str(work))
        assert live.ask("snapshot", cwd=work)["durable"]
        live.kill(live.status()["service"]["pid"])
        until(lambda: other.row(work)["state"] == "watching")
    finally:
        other.close()


def test_killed_at_any_moment_it_loses_nothing_that_was_acknowledged(live, work):
    pid = live.up(work)
    acknowledged = []
    for number in range(5):
        (work / f"f{number}").write_text(str(number))
        acknowledged.append(live.call("mark", dir=str(work), label=f"m{number}")["id"])
    (work / "late").write_text("not acknowledged")
    live.kill(pid)
    live.up()
    until(lambda: live.row(work)["files"] == 7)
    ids = {point["id"] for point in live.points(work)}
    assert ids >= set(acknowledged)


def test_a_stop_commits_what_is_pending(live, work):
    live.config.write_text(f"defaults: {{quiet_ms: 60000, longest_ms: 600000}}\nwatch: [{work}]\n")
    pid = live.up()
    build(work, {"pending": "p"})
    os.kill(pid, signal.SIGTERM)
    until(lambda: not is_running(pid))
    point = live.points(work, "--all")[0]
    assert live.run("cat", point["id"], "pending", cwd=work)[1] == "p"


def test_the_death_of_an_agent_ends_its_turn(live, work):
    live.up(work)
    agent = subprocess.Popen(["sleep", "60"])
    live.ask("turn", "begin", "--session", "s", "--pid", str(agent.pid), cwd=work)
    (work / "half").write_text("done")
    assert live.status()["sessions"] == [{"id": "s", "agent": None, "turn": 1, "open": True}]
    agent.kill()
    agent.wait()
    until(lambda: live.status()["sessions"] == [])
    (point,) = (p for p in live.points(work) if p["kind"] == "turn")
    assert (point["status"], point["files"]) in (("unknown", 1), ("unknown", None))


def test_an_agent_that_died_while_no_service_ran_is_noticed_at_the_start(live, work):
    live.ask("snapshot", cwd=work)
    agent = subprocess.Popen(["sleep", "60"])
    other = subprocess.Popen(["sleep", "60"])
    for session, process in (("dead", agent), ("alive", other)):
        live.ask("turn", "begin", "--session", session, "--pid", str(process.pid), cwd=work)
    agent.kill()
    agent.wait()
    live.up(work)
    until(lambda: live.status()["sessions"])
    assert [session["id"] for session in live.status()["sessions"]] == ["alive"]
    statuses = {p["session"]: p["status"] for p in live.points(work, "--all")}
    assert (statuses["dead"], statuses["alive"]) == ("unknown", None)
    other.kill()
    other.wait()
    until(lambda: not live.status()["sessions"])


def test_a_session_marks_all_its_workspaces_together(live, work):
    other = live.workspace("other", b="2")
    live.up(work, other)
    both = live.ask("turn", "begin", "--session", "s", str(work), str(other))["marks"]
    assert len({mark["workspace"] for mark in both}) == 2
    (other / "b").write_text("3")
    assert len(live.ask("turn", "end", "--session", "s", cwd=work)["marks"]) == 2
    assert len(live.ask("turn", "begin", "--session", "s", str(work))["marks"]) == 2


def test_agents_in_one_directory_keep_their_turns_apart(live, work):
    live.up(work)
    for session in ("one", "two", "one"):
        live.ask("turn", "begin", "--session", session, cwd=work)
        (work / session).write_text(session)
    live.ask("turn", "end", "--session", "two", cwd=work)
    found = {(p["session"], p["turn"]): p["status"] for p in live.points(work, "--all")}
    assert found["one", 1] == "interrupted"
    assert found["one", 2] is None
    assert found["two", 1] == "ok"


def test_the_trouble_of_one_workspace_leaves_the_others_alone(live, work):
    other = live.workspace("other", b="2")
    live.up(work, other)
    work.rename(live.base / "elsewhere")
    until(lambda: live.row(work)["state"] == "paused")
    assert live.ask("snapshot", cwd=other)["durable"]
    code, _, err = live.run("turn", "begin", "--session", "s", str(other), str(work))
    assert (code, "work" in err) == (3, True)
    (live.base / "elsewhere").rename(work)
    until(lambda: live.row(work)["state"] == "watching")


def test_requests_that_make_no_sense_are_refused(live, work):
    live.up(work)
    for method, params in (
        ("snapshot", {}),
        ("snapshot", {"dir": 7}),
        ("rollback", {"dir": str(work), "paths": "x"}),
        ("rollback", {"dir": str(work), "point": "no such point"}),
        ("turn.begin", {"dirs": [str(work)]}),
        ("turn.begin", {"dirs": ["/"], "session": 1}),
        ("turn.end", {"dirs": [str(work)], "session": "s", "status": "fine"}),
        ("watch", {"dirs": ["/"]}),
        ("watch", {"dirs": [live.env["HOME"]]}),
        ("watch", {"dirs": [str(live.base / "data")]}),
        ("watch", {"dirs": ["\0"]}),
        ("hello", {"protocol": [99]}),
    ):
        with pytest.raises(TurnmarkError):
            live.call(method, **params)
    with pytest.raises(NotWatched):
        live.call("snapshot", dir=str(live.base))
    assert live.row(work)["state"] == "watching"
    assert "Traceback" not in live.log


@pytest.mark.live
def test_a_listed_directory_that_a_session_takes_up_again_stays_watched(live):
    """Found by a review: after `unwatch` and a session nobody watched it any more."""
    work = live.workspace("work", a="1\n")
    live.watch_list(work)
    live.up()
    until(lambda: live.rows() and live.row(work)["state"] == "watching")
    live.call("unwatch", dirs=[str(work)])
    assert live.rows() == []
    live.call("session.open", session="s", dirs=[str(work)])
    live.call("session.close", session="s", status="ok")
    assert live.row(work)["state"] != "paused"


def test_what_could_not_begin_in_time_is_not_done_at_all():
    for seconds, gone in ((0.0, nobody), (60.0, lambda: True)):
        waiting: Future[int] = Future()
        settle([waiting], seconds, gone, cancel=True)
        assert waiting.cancelled()
        with pytest.raises(Busy, match="not done"):
            answer_of(waiting)


def test_what_has_begun_is_waited_for_and_told_as_it_is():
    begun: Future[int] = Future()
    begun.set_running_or_notify_cancel()
    ends = threading.Timer(0.05, begun.set_result, [7])
    ends.start()
    settle([begun], 0.0, nobody, cancel=True)
    assert answer_of(begun) == 7
    ends.join()


def test_a_socket_that_was_cleaned_away_is_made_again(live, work):
    live.up(work)
    with live.client() as client:
        os.unlink(client.path)
    until(lambda: _listens(live))
    assert "made again" in live.log
