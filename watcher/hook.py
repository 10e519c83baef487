"""What agents' hooks run: hands one event to the service, and never gets in the agent's way.

`turnmark init` copies it beside a script that says where things are, run with -IS: it knows nothing
of ours, imports next to nothing (`os` alone takes a tenth of the whole call, so only what the
service's absence calls for imports it), parses nothing. Whatever happens it exits with 0 in time,
and prints only what the service tells it to.
"""

import _socket
import posix
import sys
import time
from binascii import a2b_base64, b2a_base64
from select import POLLIN, poll

HOME = ""
STORE = ""
RUNTIME = ""
START: list[str] = []
KINDS: dict[str, str] = {}
FOUND = ("HOME", "STORE", "RUNTIME", "START", "KINDS")

SECONDS = {"turn-begin": 10.0, "turn-end": 5.0, "session-begin": 1.0, "session-end": 0.8}
OTHER_SECONDS = 0.5
START_SECONDS = 0.2
SPARE_SECONDS = 0.05
PATIENCE = 4.0
COMING_SECONDS = 10.0
AGAIN_SECONDS = 60.0
MOST = 8 << 20
INLINE = 500_000
MOST_SPOOLED = 500
ENV = (
    "CLAUDECODE",
    "CLAUDE_PROJECT_DIR",
    "CLAUDE_CODE_SESSION_ID",
    "CURSOR_VERSION",
    "GEMINI_CWD",
    "GEMINI_PROJECT_DIR",
    "GEMINI_SESSION_ID",
    "QWEN_PROJECT_DIR",
    "TURNMARK_SESSION",
)
SHELLS = b"sh bash dash zsh fish ksh mksh ash busybox env timeout nice".split()


def main(**found: object) -> None:
    """With what `turnmark init` found, by the names above."""
    try:
        globals().update((name, found[name]) for name in FOUND if name in found)
        run(sys.argv[1:])
    except BaseException:  # noqa: BLE001 - an agent takes most exit codes for a veto
        posix._exit(0)
    posix._exit(0)


def run(words: list[str]) -> None:
    kind = KINDS.get(" ".join(words[:2]), "")
    if not kind:
        return
    until = time.monotonic() + SECONDS.get(kind, OTHER_SECONDS)
    payload = encoded(words[-1]) if len(words) > 2 else read_value(0, until)
    if payload[:1] != b"{":
        return
    params = facts(words[:2], until) + f',"payload":"{b2a_base64(payload, newline=False).decode()}"'
    link = reach(kind, until)
    answer = deliver(link, params, kind, until) if link is not None else b""
    if b'"result"' in answer:  # one that was refused is as good as none
        say(answer)
    elif kind in SECONDS and not elsewhere():
        spool(params)  # the service drops it if it was only late


def encoded(text: str) -> bytes:
    return text.encode(sys.getfilesystemencoding(), "surrogateescape")


def variable(name: str) -> str:
    """Of the environment."""
    value = posix.environ.get(encoded(name), b"")
    return value.decode(sys.getfilesystemencoding(), "surrogateescape")


# The payload


def read_value(fd: int, until: float) -> bytes:
    """One JSON object, as soon as it is complete: some agents never close the pipe."""
    data, scan, ready = bytearray(), Scan(), poll()
    ready.register(fd, POLLIN)
    while len(data) <= MOST:
        left = until - time.monotonic()
        if left <= 0 or not ready.poll(left * 1000):
            return b""
        part = posix.read(fd, 1 << 18)
        data += part
        if end := scan.end(data):
            return bytes(data[scan.start : end])
        if not part or scan.wrong:
            return b""
    return b""


class Scan:
    """Owns how far a growing JSON object has been looked through: counts brackets, skips strings.

    From quote to quote, as looking at every byte would take longer than the deadline.
    """

    def __init__(self) -> None:
        self.start = -1
        self.at = 0
        self.depth = 0
        self.in_string = False
        self.wrong = False

    def end(self, data: bytearray) -> int:
        """Where the object ends; 0 as long as it does not."""
        if self.start < 0 and not self.begin(data):
            return 0
        while self.at < len(data):
            if self.in_string:
                if not self.leave_string(data):
                    return 0
                continue
            quote = data.find(b'"', self.at)
            stop = quote if quote >= 0 else len(data)
            if end := self.count(data, stop):
                return end
            self.at = stop + (quote >= 0)
            self.in_string = quote >= 0
        return 0

    def begin(self, data: bytearray) -> bool:
        head = bytes(data[:64]).removeprefix(b"\xef\xbb\xbf").lstrip()
        self.wrong = bool(head) and head[:1] != b"{"
        if head[:1] == b"{":
            self.start = self.at = data.find(b"{")
        return self.start >= 0

    def leave_string(self, data: bytearray) -> bool:
        """Goes behind the string's last quote: the first with an even number of backslashes."""
        quote = data.find(b'"', self.at)
        while quote >= 0:
            before = quote
            while data[before - 1] == 0x5C:
                before -= 1
            self.at = quote + 1
            if (quote - before) % 2 == 0:
                self.in_string = False
                return True
            quote = data.find(b'"', self.at)
        self.at = len(data)
        return False

    def count(self, data: bytearray, stop: int) -> int:
        part = data[self.at : stop]
        opened, closed = part.count(b"{") + part.count(b"["), part.count(b"}") + part.count(b"]")
        if closed < self.depth:
            self.depth += opened - closed
            return 0
        for at in range(self.at, stop):
            self.depth += (data[at] in b"{[") - (data[at] in b"}]")
            if not self.depth:
                return at + 1
        return 0


# What is known of the caller


def facts(words: list[str], until: float) -> str:
    """The request's parameters but for the payload, as JSON without its braces."""
    env = ((name, variable(name)) for name in ENV)
    known = ",".join(f"{quoted(name)}:{quoted(value[:4096])}" for name, value in env if value)
    wait = int((until - time.monotonic()) * 1000)
    return (
        f'"agent":{quoted(words[0])},"event":{quoted(words[1])},"cwd":{quoted(here())},'
        f'"pid":{agent_pid()},"wait_ms":{wait},"time_ns":{time.time_ns()},"env":{{{known}}}'
    )


def here() -> str:
    try:
        return posix.getcwd()
    except OSError:
        return ""


def quoted(text: str) -> str:
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    units = text.encode("utf-16-be", "surrogatepass")
    pairs = zip(units[::2], units[1::2], strict=True)
    return '"' + "".join(f"\\u{high:02x}{low:02x}" for high, low in pairs) + '"'


def agent_pid() -> int:
    """The nearest ancestor that is no shell; where there is no /proc the parent."""
    pid = posix.getppid()
    for _ in range(8):
        stat = first_bytes(f"/proc/{pid}/stat")
        name = stat[stat.find(b"(") + 1 : stat.rfind(b")")]
        if not stat or name not in SHELLS:
            break
        pid = int(stat[stat.rfind(b")") + 2 :].split()[1])
    return pid if pid > 1 else 0


def first_bytes(path: str) -> bytes:
    try:
        fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    except OSError:
        return b""
    data = posix.read(fd, 1024)
    posix.close(fd)
    return data


# The service


def reach(kind: str, until: float) -> _socket.socket | None:
    """A connection; a begin may start the service, and only a turn's has time to wait for it."""
    link = connect(until)
    if link is not None or kind not in ("session-begin", "turn-begin") or elsewhere():
        return link
    since = since_start()
    coming = since < COMING_SECONDS or (since > AGAIN_SECONDS and start())
    patience = 0.0 if not coming else PATIENCE if kind == "turn-begin" else START_SECONDS
    end = min(until, time.monotonic() + patience)
    while link is None and time.monotonic() < end:
        time.sleep(0.02)
        link = connect(until)
    return link


def connect(until: float) -> _socket.socket | None:
    for path in sockets():
        link = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            link.settimeout(left(until))
            link.connect(path)
        except OSError:
            link.close()
            continue
        return link
    return None


def sockets() -> list[str]:
    """As watcher.address has them: only in directories that nobody else can write to."""
    name = name_of(elsewhere()) if elsewhere() else STORE
    named = variable("TURNMARK_RUNTIME_DIR")
    if named:
        return [f"{named}/{name}"]
    uid = posix.geteuid()
    given = variable("XDG_RUNTIME_DIR").rstrip("/")
    above = [path for path in (given, f"/run/user/{uid}") if path[:1] == "/"]
    places = [RUNTIME, *(f"{path}/turnmark" for path in above), f"/tmp/turnmark-{uid}"]
    return [f"{place}/{name}" for place in dict.fromkeys(places) if place and is_private(place)]


def elsewhere() -> str:
    """Another home that the environment names; only a service that runs there is told."""
    other = variable("TURNMARK_HOME")
    if other in ("", HOME):
        return ""
    from posixpath import realpath

    return other if realpath(other) != HOME else ""


def name_of(home: str) -> str:
    from hashlib import sha256
    from posixpath import abspath, realpath

    return sha256(encoded(realpath(f"{abspath(home)}/store"))).hexdigest()[:16]


def is_private(directory: str) -> bool:
    try:
        info = posix.lstat(directory)
    except OSError:
        return False
    return info.st_mode & 0o170077 == 0o040000 and info.st_uid == posix.geteuid()


def deliver(link: _socket.socket, params: str, kind: str, until: float) -> bytes:
    """The service's answer, empty where none came in time; to a tool's announcement nobody waits
    for one."""
    waits = kind in SECONDS
    if len(params) > INLINE:
        name = spool(params, part="payload")
        params = f'"spooled":"{name}"' + ("" if name else params)
    number = '"id":1,' if waits else ""
    answer = b""
    try:
        link.settimeout(left(until))
        request = f'{{"jsonrpc":"2.0",{number}"method":"hook","params":{{{params}}}}}\n'
        link.sendall(request.encode())
        while waits and not answer.endswith(b"\n"):
            link.settimeout(left(until))
            part = link.recv(1 << 16)
            if not part:
                break
            answer += part
    except OSError:
        return b""
    return answer


def left(until: float) -> float:
    """Seconds to wait for the service, which leave the time to spool what it does not take."""
    return max(0.01, until - SPARE_SECONDS - time.monotonic())


def say(answer: bytes) -> None:
    """Prints what the agent is to read, if the service has anything to tell it."""
    _, found, rest = answer.partition(b'"out":"')
    if found:
        posix.write(1, a2b_base64(rest[: rest.find(b'"')]))


# Without the service


def start() -> bool:
    """Starts the service, detached: agents kill the process group of a hook that was too slow."""
    import os

    if not START or not os.path.isdir(HOME):
        return False
    os.makedirs(f"{HOME}/spool", 0o700, exist_ok=True)
    os.close(os.open(f"{HOME}/spool/.starting", os.O_WRONLY | os.O_CREAT, 0o600))
    os.utime(f"{HOME}/spool/.starting")
    if os.fork():
        return True
    try:
        os.setsid()
        os.chdir("/")
        nowhere = os.open("/dev/null", os.O_RDWR)
        for fd in range(3):
            os.dup2(nowhere, fd)
        os.closerange(3, 1024)
        os.execv(START[0], START)
    finally:
        os._exit(0)


def since_start() -> float:
    """Seconds since a hook has started the service."""
    try:
        return time.time() - posix.stat(f"{HOME}/spool/.starting").st_mtime
    except OSError:
        return 1e9


def spool(params: str, part: str = "json") -> str:
    """Leaves the event for the service to find; nothing where turnmark is uninstalled."""
    import os

    if not os.path.isdir(HOME):
        return ""
    folder = f"{HOME}/spool"
    os.makedirs(folder, 0o700, exist_ok=True)
    if len(os.listdir(folder)) > MOST_SPOOLED:
        return ""
    name = f"{time.time_ns()}-{os.getpid()}.{part}"
    fd = os.open(f"{folder}/.{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    data = memoryview(f"{{{params}}}\n".encode())
    while data:
        data = data[os.write(fd, data) :]
    os.close(fd)
    os.rename(f"{folder}/.{name}", f"{folder}/{name}")
    return name
