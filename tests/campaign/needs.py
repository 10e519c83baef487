"""What a part may need of a machine, and whether it is there: each asked by trying it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

MOUNTS = "mounts"
"""Mounts of its own, in a namespace of its own."""


def _root() -> str:
    return "" if os.geteuid() == 0 else "root"


def _mounts() -> str:
    if _root() or shutil.which("unshare") is None:
        return "root and unshare"
    done = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False)
    return "" if done.returncode == 0 else "mount namespaces"


def _loop() -> str:
    return "" if Path("/dev/loop-control").exists() else "loop devices"


def _fuse() -> str:
    return "" if Path("/dev/fuse").exists() and not _root() else "/dev/fuse and root"


def _program(name: str, *, from_package: str = "") -> Callable[[], str]:
    def ask() -> str:
        found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
        return "" if found else name + (f" ({from_package})" if from_package else "")

    return ask


def _module(name: str) -> Callable[[], str]:
    return lambda: "" if importlib.util.find_spec(name) else f"{name} (pip)"


def _file_system(name: str, package: str) -> Callable[[], str]:
    made_by = _program(f"mkfs.{name}", from_package=package)

    def ask() -> str:
        known = name in Path("/proc/filesystems").read_text().split()
        return made_by() if known else f"{name} in the kernel"

    return ask


NEEDS: dict[str, Callable[[], str]] = {
    "root": _root,
    MOUNTS: _mounts,
    "loop": _loop,
    "fuse": _fuse,
    "gcc": _program("gcc"),
    "git": _program("git"),
    "ext4": _file_system("ext4", "e2fsprogs"),
    "xfs": _file_system("xfs", "xfsprogs"),
    "atheris": _module("atheris"),
}
"""Each answers with what is missing, in words, or nothing."""


@cache
def _lacks(need: str) -> str:
    return NEEDS[need]()


def missing(needs: tuple[str, ...]) -> str:
    """What this machine lacks of them, in words."""
    lacking = [lack for need in needs if (lack := _lacks(need))]
    return "needs " + ", ".join(lacking) if lacking else ""
