"""A turnmark of one's own: scratch directories and real processes, each ended by its id."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from watcher.client import Client, connect
from watcher.context import Context, context_from

ROOT = Path(__file__).parent.parent
START = (
    f"import sys; sys.path[:0] = [{str(ROOT)!r}]; from watcher.cli import main; sys.exit(main())"
)
COMMAND = [sys.executable, "-EP", "-c", START]
DEADLINE = 20.0


def until(condition: Callable[[], Any], seconds: float = DEADLINE) -> Any:
    """What the condition says once it says something."""
    end = time.monotonic() + seconds
    while not (said := condition()):
        assert time.monotonic() < end, "it did not come about in time"
        time.sleep(0.01)
    return said


def is_running(pid: int) -> bool:
    """A zombie that nobody waits for does not run."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return False
    return state != b"Z"


@dataclass
class Live:
    """Owns a home, a runtime directory, and the services that were started with them."""

    base: Path
    env: dict[str, str] = field(default_factory=dict)
    pids: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        (self.base / "user").mkdir(parents=True, exist_ok=True)
        self.env = {
            **os.environ,
            "HOME": str(self.base / "user"),
            "TURNMARK_HOME": str(self.base / "data"),
            "TURNMARK_CONFIG": str(self.base / "config.yaml"),
            "TURNMARK_RUNTIME_DIR": str(self.base / "run"),
            **self.env,
        }
        if not self.config.exists():
            self.config.write_text("")

    @property
    def config(self) -> Path:
        return Path(self.env["TURNMARK_CONFIG"])

    @property
    def log(self) -> str:
        return (self.base / "data/log/turnmark.log").read_text()

    @property
    def context(self) -> Context:
        return context_from(self.env)

    def workspace(self, name: str = "work", **files: str) -> Path:
        path = self.base / name
        path.mkdir(exist_ok=True)
        for file, text in files.items():
            (path / file).write_text(text)
        return path

    def start(self, *words: str, cwd: Path | None = None, **more: Any) -> subprocess.Popen[bytes]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
        return subprocess.Popen([*COMMAND, *words], cwd=cwd or self.base, env=self.env, **pipes)

    def run(self, *words: str, cwd: Path | None = None) -> tuple[int, str, str]:
        process = self.start(*words, cwd=cwd, stdin=subprocess.DEVNULL)
        out, err = process.communicate(timeout=DEADLINE)
        self.note_pid()
        return process.returncode, out.decode(), err.decode()

    def ask(self, *words: str, cwd: Path | None = None) -> Any:
        code, out, err = self.run(*words, "--json", cwd=cwd)
        assert code == 0, err
        return json.loads(out)

    def up(self, *watched: Path) -> int:
        """A service whose watch list holds the directories, and which has looked at them."""
        if watched:
            self.watch_list(*watched)
        pid = int(self.ask("up")["pid"])
        until(lambda: all(row["state"] == "watching" for row in self.rows()))
        return pid

    def watch_list(self, *watched: Path) -> None:
        self.config.write_text("watch:\n" + "".join(f"  - {path}\n" for path in watched))

    def client(self) -> Client:
        client = connect(self.context)
        assert client is not None
        return client

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        with self.client() as client:
            return client.call(method, patience=DEADLINE, **params)

    def status(self) -> dict[str, Any]:
        return self.call("status")

    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.status()["workspaces"]
        return rows

    def row(self, path: Path) -> dict[str, Any]:
        return next((row for row in self.rows() if row["root"] == str(path)), {})

    def note_pid(self) -> None:
        client = connect(self.context)
        if client is not None:
            with client, contextlib.suppress(Exception):
                self.pids.add(client.call("hello")["pid"])

    def points(self, path: Path, *more: str) -> list[dict[str, Any]]:
        points: list[dict[str, Any]] = self.ask("list", str(path), *more)["points"]
        return points

    def kill(self, pid: int, number: int = signal.SIGKILL) -> None:
        os.kill(pid, number)
        if number == signal.SIGKILL:
            until(lambda: not is_running(pid))

    def close(self) -> None:
        """Also those that a failing test could not name: this base is in their command lines."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = path.read_bytes().split(b"\0")
                if b"up" in words and any(os.fsencode(f"{self.base}/") in word for word in words):
                    self.kill(int(path.parent.name))
