"""`python -m tests.bench_hook`: what a whole call of the hook costs beside a bare interpreter."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.live import Live
from watcher.agents import client

CALLS = 100
BARE = "python -IS -c pass"
EVENTS: dict[str, dict[str, Any]] = {
    "UserPromptSubmit": {"prompt": "x" * 300},
    "PreToolUse": {"tool_name": "Bash", "tool_input": {"command": "ls"}},
    "Stop": {},
}


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="turnmark-bench-") as top:
        live = Live(Path(os.path.realpath(top)))
        try:
            work = live.workspace("work", **{f"f{n}.txt": "x\n" for n in range(100)})
            live.up(work)
            client.install(live.context)
            _report("quiet", live, work)
            with _busy():
                _report("both cores busy", live, work)
        finally:
            live.close()
    return 0


def _report(title: str, live: Live, work: Path) -> None:
    """Begins and ends take turns, as they do in life: only then each makes one mark."""
    hook = str(client.hook_path(live.context))
    took: dict[str, list[float]] = {BARE: [], **{event: [] for event in EVENTS}}
    for n in range(CALLS):
        bare = [client.interpreter(), "-IS", "-c", "pass"]
        took[BARE].append(_seconds(bare, b"", live))
        for event, more in EVENTS.items():
            base = {"session_id": "bench", "cwd": str(work), "hook_event_name": event}
            data = json.dumps({**base, "prompt_id": f"{title}-{n}", **more}).encode()
            took[event].append(_seconds([hook, "claude-code", event], data, live))
    for name, times in took.items():
        print(f"{title}: {_words(name, sorted(times), sorted(took[BARE]))}")


def _seconds(command: list[str], data: bytes, live: Live) -> float:
    began = time.perf_counter()
    subprocess.run(command, input=data, capture_output=True, check=True, env=live.env)
    return time.perf_counter() - began


def _words(name: str, took: list[float], bare: list[float]) -> str:
    median, p99 = statistics.median(took), took[int(len(took) * 0.99)]
    times = median / statistics.median(bare)
    return f"{name:24} median {median * 1000:6.1f} ms, p99 {p99 * 1000:6.1f} ms, {times:.2f} x"


@contextmanager
def _busy() -> Iterator[None]:
    spin = [sys.executable, "-c", "while True: pass"]
    burning = [subprocess.Popen(spin) for _ in range(os.cpu_count() or 1)]
    try:
        time.sleep(0.2)
        yield
    finally:
        for process in burning:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
