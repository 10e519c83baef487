"""What every test stands on: nothing of the real user's is read or written."""

from __future__ import annotations

import os
import pwd
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from watcher import cli
from watcher.context import Context, context_from

settings.register_profile(
    "default",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("deep", parent=settings.get_profile("default"), max_examples=2000)
settings.load_profile("deep" if os.environ.get("TURNMARK_DEEP") else "default")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # as in a shell's background job: programs that the tests interrupt would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

FOREIGN = ("GIT_", "XDG_", "TURNMARK_", "_TURNMARK_")


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user with an empty home; asking the system for the real one fails the test."""
    home = tmp_path_factory.mktemp("home")
    for name in [name for name in os.environ if name.startswith(FOREIGN)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home / "run"))
    monkeypatch.setenv("TURNMARK_HOME", str(home / "turnmark"))
    monkeypatch.setenv("TURNMARK_RUNTIME_DIR", str(home / "run"))
    monkeypatch.setattr(pwd, "getpwuid", _no_real_home)
    assert context_from(os.environ).store_path.is_relative_to(home)
    return home


def _no_real_home(uid: int) -> pwd.struct_passwd:
    raise AssertionError("a test asked the system for the home directory of the real user")


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str


@pytest.fixture
def turnmark(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """The command line, run in this process."""

    def run(*arguments: str) -> Result:
        code = cli.main(arguments)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture
def make_context() -> Callable[..., Context]:
    """What a command is handed, with some of it as the test wants it."""
    return lambda **changes: replace(context_from(os.environ), **changes)
