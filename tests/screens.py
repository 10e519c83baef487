"""A command on a terminal of any size, in a tmux of its own: keys in, whole screens out.

Screens are kept as text in tests/golden; TURNMARK_UPDATE=1 writes them anew. Look at what it wrote.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.terminal import DEADLINE
from tests.transcript import UPDATE

ROOT = Path(__file__).parent.parent
FOLDER = Path(__file__).parent / "golden"
START = (  # as in tests.terminal, but that tmux has made a terminal of its own already
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "import sys; from watcher.cli import main; sys.exit(main())"
)
NOTE_CODE = 'echo $? >"$0.new"; mv "$0.new" "$0"'
TMUX = shutil.which("tmux")
LOOK_SECONDS = 0.02
SHORT_ID = re.compile(r"\b[0-9a-f]{10}\b|\b[0-9a-f]{7}(?=\.\.[0-9a-f]{7}\b)|(?<=\.\.)[0-9a-f]{7}\b")


class Screen:
    """Owns a tmux server with one terminal, on which one command runs."""

    def __init__(self, work: Path, *words: str, size: tuple[int, int], env: Mapping[str, str]):
        self._place = tempfile.mkdtemp(prefix="turnmark-tmux-")  # a socket's path must be short
        python = [sys.executable, "-c", START, *words]
        given = {"PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8", **env}
        self._ended = f"{self._place}/code"
        start = ["sh", "-c", f'"$@"; {NOTE_CODE}; exec cat', self._ended]
        columns, rows = size
        self._tmux(
            *("new-session", "-d", "-x", str(columns), "-y", str(rows), "-c", str(work)),
            *("env", *(f"{name}={value}" for name, value in given.items()), *start, *python),
            *(";", "set", "status", "off"),
            *(";", "resize-window", "-x", str(columns), "-y", str(rows)),
        )

    def _tmux(self, *words: str) -> str:
        assert TMUX is not None
        command = [TMUX, "-S", f"{self._place}/socket", "-f", "/dev/null", "-u", *words]
        done = subprocess.run(
            command,
            env={**os.environ, "LC_ALL": "C.UTF-8", "TERM": "xterm"},
            capture_output=True,
            check=True,
        )
        return done.stdout.decode()

    def close(self) -> None:
        subprocess.run(
            [str(TMUX), "-S", f"{self._place}/socket", "kill-server"],
            capture_output=True,
            check=False,
        )
        shutil.rmtree(self._place)

    def press(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def write(self, text: str) -> None:
        self._tmux("send-keys", "-l", text)

    def resize(self, columns: int, rows: int) -> None:
        self._tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def text(self) -> str:
        lines = self._tmux("capture-pane", "-p").split("\n")
        return "\n".join(line.rstrip() for line in lines).rstrip("\n") + "\n"

    def until(self, condition: Callable[[str], object]) -> str:
        """The screen once it is as wanted."""
        end = time.monotonic() + DEADLINE
        while not condition(shown := self.text()):
            assert time.monotonic() < end, f"it did not come about in time:\n{shown}"
            time.sleep(LOOK_SECONDS)
        return shown

    def until_shows(self, *texts: str) -> str:
        return self.until(lambda shown: all(text in shown for text in texts))

    def looks_like(self, name: str) -> None:
        """It becomes what was kept under that name, but for ids, which keep their width."""
        path = FOLDER / f"{name}.txt"
        if UPDATE:
            path.write_text(_without_ids(self._settled()), encoding="utf-8")
        kept = path.read_text(encoding="utf-8")
        self.until(lambda shown: _without_ids(shown) == kept)

    def _settled(self) -> str:
        """What it is for a while; only for whoever looks at it afterwards."""
        before = ""
        while before != (shown := self.text()):
            before = shown
            time.sleep(1)
        return shown

    def code(self) -> int:
        """The exit code, when the command has ended."""
        self.until(lambda _: os.path.exists(self._ended))
        return int(Path(self._ended).read_text())


def _without_ids(shown: str) -> str:
    return SHORT_ID.sub(lambda found: "#" * len(found[0]), shown)
