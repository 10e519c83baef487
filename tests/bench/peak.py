"""Run as a module in a process of its own: a first snapshot, and the memory it took at most."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

from .contenders import Turnmark


def peak_bytes() -> int:
    """Of this program alone: what getrusage says may be the peak of who started it."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) * 1024


def main(base: str, root: str) -> None:
    ours = Turnmark(base, root)
    ours.take()
    ours.remove()
    print(json.dumps({"peak_bytes": peak_bytes()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
