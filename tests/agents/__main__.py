"""`python -m tests.agents [DIR]`: installs the agents by npm into DIR, then drives them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.agents.drive import REAL


def main() -> int:
    given = sys.argv[1:2]
    prefix = Path(given[0]).resolve() if given else Path(tempfile.gettempdir()) / "turnmark-agents"
    prefix.mkdir(mode=0o700, parents=True, exist_ok=True)
    there = prefix / "node_modules/.bin"
    missing = [real.package for real in REAL.values() if not (there / real.program).exists()]
    if missing:
        npm = ["npm", "install", "--prefix", str(prefix), "--no-audit", "--no-fund"]
        (prefix / "package.json").write_text("{}\n")
        quiet = [*npm, "--loglevel=error", *missing]
        subprocess.run(quiet, cwd=prefix, env=_env(prefix), check=True)
    for real in REAL.values():
        subprocess.run([there / real.program, "--version"], check=False, env=_env(prefix))
    tests = [sys.executable, "-m", "pytest", "-q", "-m", "agents", "-rs", "tests/agents"]
    return subprocess.run(tests, env=_env(prefix), check=False).returncode


def _env(prefix: Path) -> dict[str, str]:
    return {**os.environ, "TURNMARK_AGENTS": str(prefix), "HOME": str(prefix)}


if __name__ == "__main__":
    sys.exit(main())
