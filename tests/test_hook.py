"""The hook client never harms its agent: it exits with 0, in time, and is silent."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.live import until
from watcher import address, hook
from watcher.agents import client

START = {"session_id": "s1", "cwd": "/", "hook_event_name": "UserPromptSubmit", "prompt": "hi"}
PAYLOAD = json.dumps(START).encode()
TURN = ("claude-code", "UserPromptSubmit")
END = ("claude-code", "SessionEnd")


class Service:
    """Owns a socket where the service's would be, and what came in; says what the test wants."""

    def __init__(self, path: str, answer: bytes | None) -> None:
        self.path = path
        self.answer = answer
        self.lines: list[dict[str, object]] = []
        self.links: list[socket.socket] = []
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self.listener.accept()
            except OSError:
                return
            self.links.append(link)
            line = link.makefile("rb").readline()
            self.lines.append(json.loads(line))
            if self.answer is not None:
                link.sendall(self.answer)

    def close(self) -> None:
        self.listener.close()
        for link in self.links:
            link.close()


@pytest.fixture
def context(make_context):
    made = make_context()
    client.install(made)
    # No test may start a service.
    path = client.hook_path(made)
    text = path.read_text()
    start = next(line for line in text.splitlines() if line.startswith("        START="))
    path.write_text(text.replace(start, "        START=[],"))
    return made


@pytest.fixture
def serve(context):
    made = []

    def start(result: dict[str, object] | None, raw: bytes | None = None) -> Service:
        path = _socket(context)
        whole = {"jsonrpc": "2.0", "id": 1, "result": result}
        answer = json.dumps(whole, separators=(",", ":")).encode() + b"\n"
        made.append(
            Service(path, raw if raw is not None else answer if result is not None else None)
        )
        return made[-1]

    yield start
    for one in made:
        one.close()


def _socket(context) -> str:
    return address.socket_in(address.candidates(context.env)[0], str(context.store_path))


def out(text: str) -> dict[str, object]:
    return {"out": base64.b64encode(text.encode()).decode()}


def call(context, words=TURN, data: bytes | None = PAYLOAD, **more):
    """The hook, run as an agent does: its output, its exit code, and the seconds it took."""
    began = time.monotonic()
    done = subprocess.run(
        [client.hook_path(context), *words],
        input=data,
        capture_output=True,
        timeout=30,
        check=False,
        **more,
    )
    return done.stdout, done.stderr, done.returncode, time.monotonic() - began


def silent(told, within: float = 2.0) -> None:
    output, errors, code, seconds = told
    assert (output, errors, code) == (b"", b"", 0)
    assert seconds < within


def spooled(context) -> list[Path]:
    return sorted((context.home / "spool").glob("*.json"))


# What goes through


def test_the_payload_reaches_the_service_as_it_is(context, serve):
    service = serve({})
    silent(call(context))
    params = service.lines[0]["params"]
    assert base64.b64decode(params["payload"]) == PAYLOAD
    assert (params["agent"], params["event"]) == TURN
    assert params["pid"] == os.getpid()
    assert params["cwd"] == os.getcwd()
    assert spooled(context) == []


def test_what_the_service_says_is_printed_and_nothing_else(context, serve):
    serve(out('{"said": "ä"}'))
    assert call(context)[:3] == ('{"said": "ä"}'.encode(), b"", 0)


def test_the_shells_in_between_are_not_the_agent(context, serve):
    service = serve({})
    line = f"true; sh -c 'true; {client.hook_path(context)} claude-code Stop; true'; true"
    subprocess.run(["sh", "-c", line], input=PAYLOAD, check=True)
    assert service.lines[0]["params"]["pid"] == os.getpid()


def test_a_payload_without_an_end_of_file_is_enough(context, serve):
    serve({})
    process = subprocess.Popen([client.hook_path(context), *TURN], stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(PAYLOAD)
    process.stdin.flush()
    assert process.wait(3) == 0
    process.stdin.close()


def test_a_payload_may_be_the_last_argument(context, serve):
    service = serve({})
    silent(call(context, ("codex", "notify", '{"type":"x"}'), data=b""))
    assert base64.b64decode(service.lines[0]["params"]["payload"]) == b'{"type":"x"}'


def test_a_large_payload_goes_by_a_file(context, serve):
    service = serve({})
    data = json.dumps({**START, "history": "x" * 3_000_000}).encode()
    silent(call(context, data=data))
    path = context.home / "spool" / service.lines[0]["params"]["spooled"]
    assert base64.b64decode(json.loads(path.read_text())["payload"]) == data
    assert path.stat().st_mode & 0o777 == 0o600


def test_nobody_waits_for_the_answer_to_a_tool(context, serve):
    service = serve(None)
    silent(call(context, ("claude-code", "PreToolUse")))
    assert "id" not in until(lambda: service.lines)[0]


# What does not


BAD = {
    "nothing": b"",
    "blank": b" \n",
    "cut": PAYLOAD[:-1],
    "in a string": PAYLOAD[:20],
    "a list": b"[1, 2]",
    "null": b"null",
    "no JSON": b"hello",
    "bytes": b"\xff\xfe\x00{",
    "closed twice": b"}}",
    "deep": b'{"a":' * 100_000,
    "too large": b'{"a":"' + b"x" * (9 << 20) + b'"}',
    "too large, cut": b'{"a":"' + b"x" * (9 << 20),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_bad_payloads_are_dropped(context, serve, data):
    service = serve(out("never"))
    silent(call(context, data=data), within=4)
    assert service.lines == []
    assert spooled(context) == []


@pytest.mark.parametrize("words", [(), ("claude-code",), ("nobody", "Stop"), ("claude-code", "X")])
def test_calls_that_mean_nothing_do_nothing(context, serve, words):
    service = serve(out("never"))
    silent(call(context, words))
    assert service.lines == []


def test_an_input_that_never_comes_is_not_waited_for(context, serve):
    serve({})
    with subprocess.Popen(["sleep", "20"], stdout=subprocess.PIPE) as endless:
        silent(call(context, END, data=None, stdin=endless.stdout), within=2)
        endless.kill()


def test_an_input_without_end_is_read_for_so_long_only(context, serve):
    service = serve({})
    with subprocess.Popen(["yes", '{"a":"'], stdout=subprocess.PIPE) as endless:
        silent(call(context, END, data=None, stdin=endless.stdout), within=2)
        endless.kill()
    assert service.lines == []


def test_a_closed_input_and_output_are_no_trouble(context, serve):
    serve(out("never seen"))
    line = f"{client.hook_path(context)} {' '.join(TURN)}"
    for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        subprocess.run(["sh", "-c", f"{line} {closed}"], input=PAYLOAD, check=True, timeout=5)


def test_a_reader_that_has_gone_is_no_trouble(context, serve):
    serve(out("x" * 100_000))
    ours, theirs = os.pipe()
    os.close(ours)
    done = subprocess.run(
        [client.hook_path(context), *TURN], input=PAYLOAD, stdout=theirs, stderr=-1, check=False
    )
    os.close(theirs)
    assert (done.returncode, done.stderr) == (0, b"")


# Without a service that answers


def test_an_event_without_a_service_is_left_for_it(context):
    silent(call(context, ("claude-code", "Stop")))
    [path] = spooled(context)
    assert base64.b64decode(json.loads(path.read_text())["payload"]) == PAYLOAD
    assert path.stat().st_mode & 0o777 == 0o600


def test_tools_are_not_left_for_it(context):
    silent(call(context, ("claude-code", "PreToolUse")))
    assert spooled(context) == []


def test_a_service_that_does_not_answer_is_waited_for_until_the_deadline(context, serve):
    service = serve(None)
    told = call(context, END)
    silent(told, within=2)
    assert told[3] > 0.5
    [path] = spooled(context)
    assert json.loads(path.read_text()) == service.lines[0]["params"]


def test_the_announcement_of_a_tool_is_not_left_where_nobody_answers(context, serve):
    serve(None)
    silent(call(context, ("claude-code", "PreToolUse")))
    assert spooled(context) == []


@pytest.mark.parametrize("raw", [b"garbage\n", b'"out":"%%%"\n', b'{"out":"'], ids=repr)
def test_answers_that_make_no_sense_are_not_printed(context, serve, raw):
    serve(None, raw)
    silent(call(context, END))


def test_a_socket_that_others_could_have_made_is_not_used(context, serve, monkeypatch):
    service = serve({})
    place = Path(service.path).parent
    monkeypatch.delenv("TURNMARK_RUNTIME_DIR")
    place.chmod(0o777)
    silent(call(context, ("claude-code", "Stop")))
    assert service.lines == []


def test_another_home_is_told_and_nothing_left_in_this_one(context, serve, monkeypatch, tmp_path):
    monkeypatch.setenv("TURNMARK_HOME", str(tmp_path))
    silent(call(context, ("claude-code", "Stop")))
    assert spooled(context) == []
    monkeypatch.setenv("TURNMARK_HOME", str(context.home))
    service = serve({})
    silent(call(context, ("claude-code", "Stop")))
    assert len(service.lines) == 1


def test_where_turnmark_is_gone_nothing_is_made(context):
    copy = context.home.parent / "hook"
    shutil.copy2(client.hook_path(context), copy)
    shutil.rmtree(context.home)
    done = subprocess.run([copy, *TURN], input=PAYLOAD, capture_output=True, check=True)
    assert done.stdout + done.stderr == b""
    assert not context.home.exists()


@pytest.mark.parametrize("left", ["", "def main(", "raise KeyboardInterrupt", "main = 1"])
def test_half_a_client_is_no_veto(context, left):
    client.module_path(context).write_text(left)
    silent(call(context))
    client.module_path(context).unlink()
    silent(call(context))


@pytest.mark.parametrize("left", [0, 8, 16, 17, 400, 4000, -1])
def test_a_compiled_client_that_was_cut_does_not_cost_an_event(context, serve, left):
    """Found by a review: on a full disk half of it is left, which Python takes for whole."""
    service = serve({})
    path = client.compiled_path(context)
    data = path.read_bytes()
    path.write_bytes(data[:left])
    silent(call(context))
    assert len(service.lines) == 1
    assert path.read_bytes() == data[:left], "a hook writes nothing there"
    client.install(context)
    assert client.is_compiled(context)


def test_nobody_else_may_look_at_what_is_kept_compiled(context):
    compiled = client.compiled_path(context)
    assert [path.name for path in compiled.parent.iterdir()] == [compiled.name]
    assert compiled.parent.stat().st_mode & 0o077 == compiled.stat().st_mode & 0o077 == 0


def test_a_missing_interpreter_or_file_is_no_veto(context):
    path = client.hook_path(context)
    path.write_text(path.read_text().replace("#!/", "#!/nowhere/", 1))
    for _ in range(2):
        line = f"{path} {' '.join(TURN)}"
        done = subprocess.run(["sh", "-c", line], capture_output=True, check=False)
        assert done.returncode not in (0, 2)
        path.unlink(missing_ok=True)


def test_it_imports_nothing_that_lies_about(context, serve, tmp_path):
    service = serve({})
    for name in ("os", "select", "time", "binascii", "_socket", "core", "watcher", "site"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(2)")
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONSTARTUP": "x.py"}
    silent(call(context, cwd=tmp_path, env=env))
    assert len(service.lines) == 1


def test_a_place_with_blanks_and_a_long_name_works(make_context, tmp_path):
    line = client.first_line(f"{tmp_path}/with a blank/python")
    link = tmp_path / "with a blank" / "python"
    link.parent.mkdir()
    link.symlink_to(os.path.realpath(sys.executable))
    script = tmp_path / "script"
    script.write_text(line + '"""Text."""\nimport sys\nprint(sys.argv[1:], sys.flags.isolated)\n')
    script.chmod(0o700)
    done = subprocess.run([script, "a b"], capture_output=True, text=True, check=True)
    assert done.stdout == "['a b'] 1\n"
    assert client.first_line("/" + "x" * 200).startswith("#!/bin/sh\n")


# Its parts


VALUES = st.dictionaries(
    st.text(),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text('"\\{}[]a\n\u00e4'),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,  # of each value; with 100 nearly all the time goes into drawing them
    ),
)


@given(VALUES, st.sampled_from(["", " ", "\n", "}", '{"next": 1}', '"']), st.integers(1, 9))
def test_the_end_of_a_value_is_found_however_it_comes(value, after, size):
    whole = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    scan, data = hook.Scan(), bytearray()
    sent = whole + after.encode()
    for at in range(0, len(sent), size):
        data += sent[at : at + size]
        if end := scan.end(data):
            assert bytes(data[scan.start : end]) == whole
            return
    raise AssertionError("no end was found")


@given(st.text() | st.binary().map(lambda raw: raw.decode("utf-8", "surrogateescape")))
def test_quoted_text_is_JSON(text):
    assert json.loads(hook.quoted(text)) == text


@pytest.mark.parametrize("env", [{}, {"XDG_RUNTIME_DIR": "run"}, {"TURNMARK_RUNTIME_DIR": "/x"}])
def test_it_looks_where_the_service_is(env, make_context, monkeypatch, tmp_path):
    monkeypatch.delenv("TURNMARK_RUNTIME_DIR")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    for name, value in env.items():
        monkeypatch.setenv(name, os.path.join(tmp_path, value))
    context = make_context(env=dict(os.environ))
    monkeypatch.setattr(hook, "HOME", str(context.home))
    monkeypatch.setattr(hook, "STORE", hook.name_of(str(context.home)))
    place = address.candidates(context.env)[0]
    if not place.startswith(("/run", "/x")):
        os.makedirs(place, mode=0o700, exist_ok=True)
    expected = address.sockets(context.env, str(context.store_path))
    found = hook.sockets()
    assert set(expected) <= set(found)
    assert os.path.basename(found[0] if found else "") in ("", hook.STORE)
