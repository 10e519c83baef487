"""`python -m tests.bench_hook`: what a whole call of the hook costs beside a bare interpreter."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.live import Live
from watcher.agents import client

CALLS = 200
EVENTS: dict[str, dict[str, Any]] = {
    "PreToolUse": {"tool_name": "Bash", "tool_input": {"command": "ls"}},
    "UserPromptSubmit": {"prompt": "x" * 300},
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
    hook = str(client.hook_path(live.context))
    bare = _measure(lambda _: ([client.interpreter(), "-IS", "-c", "pass"], b""), live)
    print(f"{title}: {_words('bare python -IS -c pass', bare, None)}")
    for event, more in EVENTS.items():
        call = partial(_call, hook, work, title, event, more)
        print(f"{title}: {_words(event, _measure(call, live), bare)}")


def _call(
    hook: str, work: Path, title: str, event: str, more: dict[str, Any], n: int
) -> tuple[list[str], bytes]:
    base = {"session_id": "bench", "cwd": str(work), "hook_event_name": event}
    data = json.dumps({**base, "prompt_id": f"{title}-{n}", **more}).encode()
    return [hook, "claude-code", event], data


def _measure(call: Callable[[int], tuple[list[str], bytes]], live: Live) -> list[float]:
    took = []
    for n in range(CALLS):
        command, data = call(n)
        began = time.perf_counter()
        subprocess.run(command, input=data, capture_output=True, check=True, env=live.env)
        took.append((time.perf_counter() - began) * 1000)
    return sorted(took)


def _words(name: str, took: list[float], bare: list[float] | None) -> str:
    median, p99 = statistics.median(took), took[int(len(took) * 0.99)]
    times = f", {median / statistics.median(bare):.2f} x" if bare else ""
    return f"{name:26} median {median:6.1f} ms, p99 {p99:6.1f} ms{times}"


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
