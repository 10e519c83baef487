"""The socket: what clients do wrong costs them their connection, and the others nothing."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import threading

import pytest

from core.errors import Busy, TurnmarkError
from tests.live import ROOT, until
from watcher import server as server_module
from watcher.address import candidates, make_private, place_for_socket, sockets
from watcher.client import Client, connect_to
from watcher.protocol import MAX_REQUEST
from watcher.server import Server, UnknownMethod


class Echo:
    """Answers for a test: echoes, fails in several ways, waits for leave."""

    def __init__(self):
        self.leave = threading.Event()
        self.asked = threading.Event()

    def __call__(self, caller, method, params):
        if method == "busy":
            raise Busy("in use", "wait")
        if method == "bug":
            raise ZeroDivisionError
        if method == "wait":
            self.asked.set()
            assert self.leave.wait(10)
        if method == "subscribe":
            caller.follow()
        if method == "unknown":
            raise UnknownMethod
        return {"method": method, **params}


@pytest.fixture
def echo():
    return Echo()


@pytest.fixture
def server(tmp_path, echo):
    """One that lets at most four in, and waits a fifth of a second for the rest of a line."""
    made = Server(str(tmp_path / "socket"), echo, most=4, line_seconds=0.2)
    made.start()
    yield made
    echo.leave.set()
    made.stop()
    made.close()
    until(lambda: not made.connections)


@pytest.fixture
def dial(server):
    """Connections that end with the test; raw ones can be misused."""
    made = []

    def connect(raw=False):
        link = socket.socket(socket.AF_UNIX)
        link.settimeout(10)
        link.connect(server.path)
        made.append(link)
        return link if raw else Client(server.path, link, 10)

    yield connect
    for link in made:
        link.close()


def said(link):
    """Everything until the other side closes."""
    data = b""
    while part := _receive(link):
        data += part
    return [json.loads(line) for line in data.splitlines()]


def _receive(link):
    try:
        return link.recv(65536)
    except ConnectionResetError:  # it was closed with something of ours unread
        return b""


def test_requests_are_answered(dial):
    client = dial()
    assert client.call("a", x=[1, "\udcff"]) == {"method": "a", "x": [1, "\udcff"]}
    assert client.call("b") == {"method": "b"}


def test_an_id_of_null_is_answered_and_none_at_all_is_not(dial):
    link = dial(raw=True)
    for message in ({"method": "a"}, {"method": "b", "id": None}, {"method": "c", "id": 1}):
        link.sendall(json.dumps(message).encode() + b"\n")
    link.shutdown(socket.SHUT_WR)
    assert [(answer["id"], answer["result"]["method"]) for answer in said(link)] == [
        (None, "b"),
        (1, "c"),
    ]


def test_only_the_owner_may_use_the_socket(server):
    assert stat.S_IMODE(os.lstat(server.path).st_mode) == 0o600


def test_errors_come_as_what_they_were(dial):
    with pytest.raises(Busy) as caught:
        dial().call("busy")
    assert (caught.value.message, caught.value.hint) == ("in use", "wait")


def test_a_bug_is_told_and_costs_nothing(dial):
    client = dial()
    with pytest.raises(TurnmarkError, match="ZeroDivisionError"):
        client.call("bug")
    with pytest.raises(TurnmarkError, match="no method"):
        client.call("unknown")
    assert client.call("a")


def test_garbage_ends_the_connection_with_an_error(dial):
    link = dial(raw=True)
    link.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    (answer,) = said(link)
    assert answer["error"]["code"] == -32700
    assert dial().call("a")


def test_a_request_without_end_is_refused(dial):
    link = dial(raw=True)
    threading.Thread(target=_flood, args=(link,), daemon=True).start()
    (answer,) = said(link)
    assert (answer["error"]["code"], "at most" in answer["error"]["message"]) == (-32001, True)
    assert dial().call("a")


def _flood(link):
    try:
        for _ in range(20):
            link.sendall(b"x" * (MAX_REQUEST // 4))
    except OSError:
        return


def test_who_does_not_end_a_line_is_let_go(dial):
    link = dial(raw=True)
    link.sendall(b'{"method":')
    (answer,) = said(link)
    assert "not ended" in answer["error"]["message"]


def test_a_client_that_only_listens_may_wait(dial):
    client = dial()
    with dial(raw=True) as slow:
        slow.sendall(b"{")
        said(slow)  # longer than a line may take
    assert client.call("a")


def test_several_requests_may_come_at_once(dial):
    link = dial(raw=True)
    link.sendall(b"".join(b'{"id":%d,"method":"m"}\n' % n for n in range(50)))
    link.shutdown(socket.SHUT_WR)
    assert [answer["id"] for answer in said(link)] == list(range(50))


def test_a_request_without_an_id_is_not_answered(dial):
    link = dial(raw=True)
    link.sendall(b'{"method":"bug"}\n{"id":1,"method":"m"}\n')
    link.shutdown(socket.SHUT_WR)
    assert [answer["id"] for answer in said(link)] == [1]


def test_the_longest_silent_one_gives_way_to_the_newest(server, dial):
    first = dial(raw=True)
    others = [dial() for _ in range(3)]
    for other in others:
        assert other.call("a")
    assert dial().call("a")
    assert said(first) == []
    assert all(other.call("a") for other in others)


def test_who_is_waited_for_does_not_give_way(server, echo, dial):
    waiting = [dial(raw=True) for _ in range(4)]
    for link in waiting:
        link.sendall(b'{"id":1,"method":"wait"}\n')
    until(lambda: server.waiting() == 4)
    (refused,) = said(dial(raw=True))
    assert refused["error"]["message"] == "Too many connections."
    echo.leave.set()
    for link in waiting:
        link.shutdown(socket.SHUT_WR)
        assert said(link)[0]["id"] == 1


def test_followers_are_told_in_order(server, dial):
    follower = dial()
    follower.call("subscribe")
    for number in range(100):
        server.publish({"event": "n", "n": number})
    follower._following = True
    events = follower.events(10)
    assert [next(events)["n"] for _ in range(100)] == list(range(100))


def test_a_follower_that_does_not_read_is_let_go(server, dial, monkeypatch):
    monkeypatch.setattr(server_module, "MOST_EVENTS", 10)
    lazy, busy = dial(raw=True), dial()
    lazy.sendall(b'{"id":1,"method":"subscribe"}\n')
    until(lambda: any(c.following for c in server.connections))
    big = "x" * 100_000

    def publish():
        server.publish({"event": big})
        return len(server.connections) == 1

    assert busy.call("a")
    until(publish)
    assert busy.call("a")


def test_a_client_finds_a_server_that_was_started_anew(tmp_path, echo):
    first = Server(str(tmp_path / "s"), echo)
    first.start()
    client = connect_to(first.path)
    assert client is not None
    assert client.call("a")
    first.stop()
    first.close()
    until(lambda: not first.connections)
    second = Server(str(tmp_path / "s"), echo)
    second.start()
    assert client.call("b") == {"method": "b"}
    client.close()
    second.stop()
    second.close()


def test_where_nothing_listens_there_is_no_service(tmp_path):
    assert connect_to(str(tmp_path / "none")) is None
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(tmp_path / "stale"))
    stale.close()
    assert connect_to(str(tmp_path / "stale")) is None


def test_a_lost_socket_is_made_again_and_connections_stay(server, dial):
    client = dial()
    assert client.call("a")
    os.unlink(server.path)
    assert server.lost()
    server.rebind()
    assert dial().call("b")
    assert client.call("c")


# Other users


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_user_is_not_answered(server, tmp_path):
    """Even where the directories and the mode would let them."""
    for path in (tmp_path, *tmp_path.parents[:3]):
        path.chmod(path.stat().st_mode | 0o011)
    os.chmod(server.path, 0o666)
    script = (
        "import os, socket, sys; os.setgid(65534); os.setuid(65534); "
        "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.settimeout(10); "
        'sys.exit(s.recv(1) != b"")'
    )
    found = subprocess.run([sys.executable, "-c", script, server.path], timeout=20, check=False)
    assert found.returncode == 0


def test_a_directory_that_others_can_use_is_refused(tmp_path):
    place = tmp_path / "run"
    place.mkdir(mode=0o755)
    with pytest.raises(TurnmarkError, match="open to other users"):
        make_private(str(place))
    assert sockets({"TURNMARK_RUNTIME_DIR": str(place)}, "/store") == []
    (tmp_path / "link").symlink_to(place)
    with pytest.raises(TurnmarkError, match="not a directory"):
        make_private(str(tmp_path / "link"))


def test_a_path_that_is_too_long_for_a_socket_is_refused(tmp_path):
    place = tmp_path / ("x" * 100)
    with pytest.raises(TurnmarkError, match="too long"):
        place_for_socket({"TURNMARK_RUNTIME_DIR": str(place)}, "/store")


def test_the_place_is_known_without_any_environment():
    assert candidates({})[-1] == f"/tmp/turnmark-{os.geteuid()}"


def test_the_client_is_cheap_to_import():
    script = (
        "import sys; import watcher.client; "
        "print({'click', 'yaml', 'sqlite3', 'watchdog', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"
