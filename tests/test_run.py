"""`turnmark run`: the agent has the terminal, the signals and the last word."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from core.model import Counts
from core.store import Store
from core.timeline import Timeline
from tests.live import COMMAND, DEADLINE, Live, is_running, until
from tests.stores import Bench, fsck
from watcher.client import connect
from watcher.running import Run, _count, _progress

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


class Terminal:
    """Owns a terminal with a command line in its foreground."""

    def __init__(self, live, work, *words):
        self.live = live
        self.shown = ""
        self.ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (24, 200))
        # who runs the tests may have had interrupts ignored, as for jobs in the background
        start = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        start += "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); " + COMMAND[-1]
        self.process = subprocess.Popen(
            [*COMMAND[:-1], start, *words],
            cwd=work,
            env={**live.env, "TERM": "xterm"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def until(self, pattern):
        """Reads until the terminal has shown it."""
        end = time.monotonic() + DEADLINE
        while not (found := re.search(pattern, self.shown)):
            assert time.monotonic() < end, self.shown
            self.read()
        return found

    def read(self):
        if not select.select([self.ours], [], [], 0.1)[0]:
            return True
        try:
            part = os.read(self.ours, 65536)
        except OSError:  # Linux says EIO when the last program on the terminal is gone
            return False
        self.shown += part.decode().replace("\r\n", "\n")
        return bool(part)

    def type(self, keys):
        os.write(self.ours, keys.encode())

    def end(self):
        """The exit code, when all has been shown."""
        end = time.monotonic() + DEADLINE
        while self.read():
            assert time.monotonic() < end, self.shown
        return self.process.wait(DEADLINE)

    def close(self):
        self.live.note_pid()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.ours)


@pytest.fixture
def terminal(live, work):
    made = []

    def begin(*words):
        made.append(Terminal(live, work, *words))
        return made[-1]

    yield begin
    for one in made:
        one.close()


def test_the_run_is_one_turn_where_the_agent_tells_of_none(live, work):
    code, out, err = live.run(
        "run", "--", "sh", "-c", "echo 2 > a; echo $TURNMARK_SESSION", cwd=work
    )
    assert code == 0
    assert out.startswith("run-")
    assert "1 turn, 1 file changed; take the last one back: turnmark rollback @" in err
    point = live.points(work)[0]
    assert (point["kind"], point["session"], point["status"]) == ("turn", out.strip(), "ok")
    assert live.run("rollback", "@", "--yes", cwd=work)[0] == 0
    assert (work / "a").read_text() == "1\n"


@pytest.mark.parametrize("after", ["", "; mkdir work; echo new > work/b"])
def test_an_agent_that_takes_the_directory_away_is_told_of(live, work, after):
    """Found by a new user: it said that no files had changed."""
    was = (work / "a").read_text()
    code, _, err = live.run("run", "--", "sh", "-c", f"cd ..; rm -rf work{after}", cwd=work)
    assert code == 0
    assert "no files changed" not in err
    assert f"turnmark: {work} is paused: " in err
    cure = err.splitlines()[-1].partition("there: ")[2]
    assert cure == ("" if after else f"mkdir -p {work}; ") + f"turnmark rollback @ --dir {work}"
    work.mkdir(exist_ok=True)
    assert live.run("rollback", "@", "--dir", str(work), "--yes", cwd=live.base)[0] == 0
    assert [path.name for path in work.iterdir()] == ["a"]
    assert (work / "a").read_text() == was


def test_the_agents_own_turns_take_the_place_of_the_run(live, work):
    script = "; ".join(
        f"$TM turn begin --session mine --prompt p{n}; echo {n} > f{n}; $TM turn end --session mine"
        for n in (1, 2)
    )
    live.env["TM"] = f"{COMMAND[0]} -EP {live.base}/tm.py"
    (live.base / "tm.py").write_text(COMMAND[-1])
    err = live.run("run", "--quiet", "--", "sh", "-c", script, cwd=work)[2]
    assert err == ""
    turns = [point for point in live.points(work) if point["kind"] == "turn"]
    assert [(point["session"], point["label"]) for point in turns] == [
        ("mine", "p2"),
        ("mine", "p1"),
    ]
    assert live.status()["sessions"] == []


def test_turns_under_the_name_of_the_run_are_its_turns(live, work):
    script = (
        "$TM turn begin --session $TURNMARK_SESSION --prompt one; echo 2 > a; "
        "$TM turn end --session $TURNMARK_SESSION"
    )
    live.env["TM"] = f"{COMMAND[0]} -EP {live.base}/tm.py"
    (live.base / "tm.py").write_text(COMMAND[-1])
    err = live.run("run", "--session", "s", "--", "sh", "-c", script, cwd=work)[2]
    assert "1 turn, 1 file changed" in err
    (turn,) = (point for point in live.points(work) if point["kind"] == "turn")
    assert (turn["label"], turn["status"]) == ("one", "ok")


@pytest.mark.parametrize(
    ("script", "code", "status"),
    [("exit 0", 0, "ok"), ("exit 2", 2, "error"), ("kill -9 $$", 137, "interrupted")],
)
def test_it_exits_as_the_agent_did(live, work, script, code, status):
    assert live.run("run", "--", "sh", "-c", f"echo 2 > a; {script}", cwd=work)[0] == code
    assert live.points(work)[0]["status"] == status


def test_where_something_is_newer_the_last_turn_is_named(live, work):
    live.env["TM"] = f"{COMMAND[0]} -EP {live.base}/tm.py"
    (live.base / "tm.py").write_text(COMMAND[-1])
    script = "echo 2 > a; $TM mark -m inside; echo 3 > a"
    err = live.run("run", "--session", "s", "--", "sh", "-c", script, cwd=work)[2]
    assert "take the last one back: turnmark rollback s/1\n" in err
    assert live.run("rollback", "s/1", "--yes", cwd=work)[0] == 0
    assert (work / "a").read_text() == "1\n"


def test_several_directories_are_one_session(live, work):
    other = live.workspace("other", b="1")
    script = f"echo 2 > {work}/a; echo 2 > {other}/b"
    err = live.run("run", str(work), str(other), "--", "sh", "-c", script)[2]
    assert [live.points(path)[0]["kind"] for path in (work, other)] == ["turn", "turn"]
    said = "1 turn, 2 files changed; take the last one back: turnmark rollback @ --session "
    assert said in err
    back = err.partition("turnmark rollback ")[2].split()
    assert live.run("rollback", *back, "--yes")[0] == 0
    assert ((work / "a").read_text(), (other / "b").read_text()) == ("1\n", "1")


def test_a_list_asked_for_at_once_shows_what_the_last_turns_changed(tmp_path, make_context):
    bench = Bench(tmp_path)
    for text in "12":
        (bench.path / "a").write_text(text)
        bench.point()
    context = make_context(home=Path(bench.store.base).parent)
    assert Timeline(bench.store, bench.root.id).points()[0].counts is None
    _count(context, Run("s", [str(bench.path)], 0, ""))
    assert Timeline(bench.store, bench.root.id).points()[0].counts == Counts(1, 1, 1)


def test_what_cannot_be_run_or_watched_is_said_before_anything_begins(live, work):
    assert live.run("run", "--", "no-such-program", cwd=work)[0] == 65
    assert live.run("run", "sh", cwd=work)[0] == 64
    assert live.run("run", "--", cwd=work)[0] == 64
    code, _, err = live.run("run", "/", "--", "touch", str(work / "no"))
    assert (code, "cannot be a workspace" in err) == (65, True)
    assert not (work / "no").exists()


def test_switched_off_it_only_runs_the_agent(live, work):
    live.config.write_text("enabled: false\n")
    code, out, err = live.run("run", "--", "sh", "-c", "echo agent; exit 5", cwd=work)
    assert (code, out, "switched off" in err) == (5, "agent\n", True)
    assert connect(live.context) is None


def test_the_agent_has_the_terminal(terminal):
    on = terminal(
        "run", "--", "sh", "-c", "tty; test -t 0 && test -t 2; echo is $?; read x; echo got $x"
    )
    on.until("is 0")
    assert "/dev/pts/" in on.shown
    on.type("hello\n")
    on.until("got hello")
    assert on.end() == 0
    assert "no files changed" in on.shown


def test_an_interrupt_is_the_agents(terminal, live, work):
    script = "trap 'echo caught' INT; echo ready; read x; read x; echo 2 > a; exit 7"
    on = terminal("run", "--", "sh", "-c", script)
    on.until("ready")
    on.type("\x03")
    on.until("caught")
    on.type("\n\n")
    assert on.end() == 7
    assert live.points(work)[0]["status"] == "error"


def test_an_agent_that_an_interrupt_kills_ends_its_turn_as_interrupted(terminal, live, work):
    # no shell: dash loses an interrupt that comes between its fork and exec
    agent = "\n".join(
        (
            "import signal, time",
            "signal.signal(signal.SIGINT, signal.SIG_DFL)",
            "open('a', 'w').write('2')",
            "print('ready', flush=True)",
            "time.sleep(60)",
        )
    )
    on = terminal("run", "--", sys.executable, "-c", agent)
    on.until("ready")
    on.type("\x03")
    assert on.end() == 130
    on.until("1 turn, 1 file changed")
    assert live.points(work)[0]["status"] == "interrupted"


def test_a_termination_is_handed_on(live, work):
    process = live.start("run", "--", "sh", "-c", "trap 'exit 9' TERM; echo r; read x", cwd=work,
                         stdin=subprocess.PIPE)  # fmt: skip
    assert process.stdout.readline() == b"r\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(DEADLINE) == 9
    process.communicate()
    live.note_pid()


def test_a_long_first_look_shows_how_far_it_is(terminal, live):
    with Store.create(str(live.base / "data/store")).exclusive():
        on = terminal("run", "--", "echo", "agent")
        on.until("First look: ")
    on.until(r"\r\x1b\[Kagent")
    assert on.end() == 0


def test_without_a_terminal_it_is_said_once_and_with_quiet_never(live, work):
    for words, said in (((), 1), (("--quiet",), 0)):
        with Store.create(str(live.base / "data/store")).exclusive():
            process = live.start("run", *words, "--", "echo", "agent", cwd=work)
            until(lambda: any(row["state"] == "scanning" for row in _rows(live)))
            if said:
                assert process.stderr.readline() == f"First look ... ({work})\n".encode()
        out, err = process.communicate(timeout=DEADLINE)
        assert (process.returncode, out, err.count(b"First")) == (0, b"agent\n", 0)
        live.ask("down")


def _rows(live):
    client = connect(live.context)
    if client is None:
        return []
    with client:
        return client.call("status")["workspaces"]


def test_progress_has_a_rate_and_an_end():
    row = {"root": "/w", "dirs_done": 50, "dirs_known": 200, "files": 4000}
    assert _progress([row], 2.0) == "First look: 4,000 files, 2,000 a second, 25 %, 6 s left (/w)"
    assert _progress([{**row, "dirs_done": 0}], 2.0) == "First look: 4,000 files (/w)"


def test_when_the_service_is_killed_the_agent_goes_on_and_it_is_said(live, work):
    process = live.start("run", "--", "sh", "-c", "echo 2 > b; echo r; read x; echo 3 > c; exit 4",
                         cwd=work, stdin=subprocess.PIPE)  # fmt: skip
    assert process.stdout.readline() == b"r\n"
    live.kill(live.status()["service"]["pid"])
    _, err = process.communicate(b"\n", timeout=DEADLINE)
    assert process.returncode == 4
    assert b"the service ended while the agent ran" in err
    point = live.points(work)[0]
    assert (point["kind"], point["status"], point["files"]) == ("turn", "error", 2)


def test_an_agent_whose_runner_is_killed_keeps_its_session(live, work):
    pid_file = live.base / "pid"
    script = f"echo $$ > {pid_file}.new; mv {pid_file}.new {pid_file}; echo r; read x; echo 2 > a"
    process = live.start("run", "--", "sh", "-c", script, cwd=work, stdin=subprocess.PIPE)
    assert process.stdout.readline() == b"r\n"
    live.note_pid()
    pid = int(pid_file.read_text())
    until(lambda: len(live.status()["sessions"]) == 1)
    process.kill()
    process.wait()
    assert live.status()["sessions"][0]["open"]
    process.stdin.write(b"\n")
    process.stdin.close()
    until(lambda: not is_running(pid))
    until(lambda: live.status()["sessions"] == [])
    assert live.points(work)[0]["status"] == "unknown"
    process.stdout.close()
    process.stderr.close()
