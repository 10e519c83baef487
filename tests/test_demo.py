"""The demo is a real session: it runs everywhere, checks itself, and touches nothing else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.terminal import on_terminal
from watcher.commands import demo

ROOT = Path(__file__).parent.parent


@pytest.fixture
def run(tmp_path, nobody):
    """`turnmark demo` in a process of its own, in an empty place."""
    scratch = tmp_path / "tmp"
    scratch.mkdir()

    def run(*words, **env):
        return subprocess.run(
            [sys.executable, "-m", "watcher", "demo", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(scratch), **env},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_the_demo_is_exact_quick_and_leaves_nothing(run, tmp_path, nobody):
    begun = time.monotonic()
    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - begun < 5 * 4  # 5 s on a machine that does nothing else
    assert "rollback and undo were exact" in done.stdout
    for shown in ("$ turnmark snapshot", "$ rm -rf src", "Takes back 1 turn", "$ turnmark undo"):
        assert shown in done.stdout
    assert list((tmp_path / "tmp").iterdir()) == []
    assert not (nobody / "turnmark").exists()


def test_the_demo_needs_no_git_and_no_configuration(run, tmp_path):
    (tmp_path / "bin").mkdir()
    for tool in ("rm", "mv", "ls", "grep"):
        os.symlink(f"/bin/{tool}", tmp_path / "bin" / tool)
    (tmp_path / "broken.yaml").write_text("{")
    config = str(tmp_path / "broken.yaml")
    done = run(PATH=str(tmp_path / "bin"), TURNMARK_CONFIG=config)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_demo_can_be_kept_and_read_by_programs(run, tmp_path):
    done = run("--keep", "--json")
    told = json.loads(done.stdout)
    assert (told["ok"], told["wrong"], done.returncode) == (True, [], 0)
    assert all(step["exit_code"] == 0 for step in told["steps"])
    assert Path(told["directory"]).parent == tmp_path / "tmp"
    assert sorted(path.name for path in Path(told["directory"], "greeter").iterdir()) == [
        "README.txt",
        "run.sh",
    ]


def test_the_demo_fails_when_anything_is_off(turnmark, monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "START", "import sys; sys.exit('rollback' in sys.argv)")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = turnmark("demo", "--quiet")
    assert (done.code, done.out) == (1, "")
    assert "rollback 1 --yes` ended with 1" in done.err
    assert "the rollback did not bring back exactly what was there" in done.err


def test_the_demo_is_readable_on_a_terminal(tmp_path):
    shown, code = on_terminal(tmp_path, "demo")
    assert code == 0
    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert max(map(len, lines)) <= 80
