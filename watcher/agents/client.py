"""Puts the hook client and the /rollback helper where agents' settings will name them."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from ..address import candidates, socket_in
from ..context import Context
from ..starting import own_command
from . import AGENTS

MARKER = "turnmark-hook"
LONGEST_SHEBANG = 127
BEGIN, END = "# Here `turnmark init` writes", "# }"


def hook_path(context: Context) -> Path:
    return context.home / "bin" / MARKER


def rollback_path(context: Context) -> Path:
    return context.home / "bin" / "turnmark-rollback"


def files(context: Context) -> dict[Path, str]:
    """What is installed, by where: agents' settings name these and nothing else of ours."""
    return {hook_path(context): hook_text(context), rollback_path(context): rollback_text(context)}


def install(context: Context) -> None:
    for path, text in files(context).items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            write(path, text.encode("utf-8", "surrogateescape"), 0o700)


def write(path: Path, data: bytes, mode: int) -> None:
    """Whole or not at all; the mode is there before the name is."""
    _make(path.parent)
    temporary = path.with_name(f".{path.name}.turnmark-{os.getpid()}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _make(folder: Path) -> None:
    """With those above it; mkdir's own `parents` would leave these open to others."""
    if not folder.is_dir():
        _make(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def interpreter() -> str:
    """The real one: a version manager's shim costs 60 ms a call, a venv's needs its own site."""
    return os.path.realpath(sys.executable)


def hook_text(context: Context) -> str:
    """The client with its facts and a first line that the kernel understands."""
    source = Path(__file__).parent.parent.joinpath("hook.py").read_text(encoding="utf-8")
    head, _, rest = source.partition(BEGIN)
    _, _, tail = rest.partition(END)
    kinds = {f"{a.name} {hook.event}": hook.kind for a in AGENTS.values() for hook in a.hooks}
    home = os.path.realpath(context.home)
    facts = {
        "HOME": home,
        "STORE": os.path.basename(socket_in("", str(context.store_path))),
        "RUNTIME": candidates(context.env)[0],
        "START": [*own_command(), "--home", home, *_config(context), "up"],
        "KINDS": kinds,
    }
    lines = "\n".join(f"{name} = {value!a}" for name, value in facts.items())
    return f"{first_line(interpreter())}{head}# As `turnmark init` found it:\n{lines}{tail}"


def _config(context: Context) -> list[str]:
    return ["--config", str(context.config_path)] if context.config_named else []


def first_line(python: str) -> str:
    """Kernels cut a long first line, and take a blank in it for its end."""
    line = f"#!{python} -IS\n"
    if len(os.fsencode(line)) <= LONGEST_SHEBANG and " " not in python:
        return line
    return f"#!/bin/sh\n'''exec' {shlex.quote(python)} -IS \"$0\" \"$@\"\n' '''\n"


def rollback_text(context: Context) -> str:
    """What the agents' /rollback runs; its answer is for the agent to read, whatever it is."""
    turnmark = shlex.join([*own_command(), "--home", os.path.realpath(context.home)])
    return f"""#!/bin/sh
# turnmark: behind the /rollback command of agents. `turnmark uninstall` takes it away.
exec 2>&1
turnmark() {{ {turnmark} "$@" || echo "(exit status $?)"; }}
case "${{1-}}" in
    "" | list) turnmark list --limit 30 ;;
    diff) shift; turnmark diff "$@" ;;
    *) turnmark rollback --yes "$@" ;;
esac
exit 0
"""


def is_whole(path: Path) -> str:
    """What is wrong with an installed client; empty if nothing is."""
    if not path.is_file():
        return "is missing"
    if not os.access(path, os.X_OK):
        return "cannot be executed"
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    named = shlex.split(lines[1] if lines[0] == "#!/bin/sh" else lines[0][2:])
    program = next((word for word in named if word.startswith("/")), "")
    if not os.access(program, os.X_OK):
        return f"needs {program or 'an interpreter'}, which is not there"
    return ""
