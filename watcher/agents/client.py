"""Puts the hook client and the /rollback helper where agents' settings will name them."""

from __future__ import annotations

import marshal
import os
import shlex
import struct
import sys
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import CodeType

from core.errors import BadInput
from core.model import show_path

from ..address import candidates, socket_in
from ..context import Context
from ..starting import own_command
from . import AGENTS

MARKER = "turnmark-hook"
MODULE = "turnmark_hook"
LONGEST_SHEBANG = 127


def hook_path(context: Context) -> Path:
    return context.home / "bin" / MARKER


def module_path(context: Context) -> Path:
    """What the hook does, which Python keeps compiled: in a script it would be at each call."""
    return context.home / "bin" / f"{MODULE}.py"


def rollback_path(context: Context) -> Path:
    return context.home / "bin" / "turnmark-rollback"


def files(context: Context) -> dict[Path, str]:
    """What is installed, by where; what others need comes first."""
    return {
        module_path(context): source(),
        hook_path(context): hook_text(context),
        rollback_path(context): rollback_text(context),
    }


def install(context: Context) -> None:
    _refuse_unnameable(context)
    for path, text in files(context).items():
        data = text.encode("utf-8", "surrogateescape")
        if not path.is_file() or path.read_bytes() != data:
            write(path, data, 0o600 if path == module_path(context) else 0o700)
    if not is_compiled(context):
        head, code = compiled(context)
        write(compiled_path(context), head + marshal.dumps(code), 0o600)


def _refuse_unnameable(context: Context) -> None:
    """Agents' settings are UTF-8, and could not say where the hook is."""
    try:
        str(context.home).encode()
    except UnicodeEncodeError as error:
        raise BadInput(
            f"{show_path(os.fsencode(context.home))} is not UTF-8: no settings can name it.",
            "Name another home with --home.",
        ) from error


def compiled_path(context: Context) -> Path:
    """Where Python looks for it; the hook itself never writes there, so that it is whole or not
    there at all."""
    return context.home / "bin" / "__pycache__" / f"{MODULE}.{sys.implementation.cache_tag}.pyc"


def compiled(context: Context) -> tuple[bytes, CodeType]:
    """As Python keeps a module: believed by it as long as the source has this time and size."""
    path = module_path(context)
    info, text = path.stat(), path.read_bytes()
    head = MAGIC_NUMBER + struct.pack("<III", 0, int(info.st_mtime) & 0xFFFFFFFF, len(text))
    return head, compile(text, str(path), "exec", dont_inherit=True)


def is_compiled(context: Context) -> bool:
    """Whether what is kept compiled is what the source says."""
    try:
        head, code = compiled(context)
        kept = compiled_path(context).read_bytes()
        return kept.startswith(head) and bool(marshal.loads(kept[len(head) :]) == code)
    except (OSError, SyntaxError, EOFError, ValueError, TypeError):
        return False


def source() -> str:
    return Path(__file__).parent.parent.joinpath("hook.py").read_text(encoding="utf-8")


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
    """The facts, and a first line that the kernel understands; without its module it is silent."""
    home = os.path.realpath(context.home)
    facts = {
        "HOME": home,
        "STORE": os.path.basename(socket_in("", str(context.store_path))),
        "RUNTIME": candidates(context.env)[0],
        "START": [*own_command(), "--home", home, *_config(context), "up"],
        "KINDS": {f"{a.name} {hook.event}": hook.kind for a in AGENTS.values() for hook in a.hooks},
    }
    lines = "\n".join(f"        {name}={value!a}," for name, value in facts.items())
    return f"""{first_line(interpreter())}# turnmark: what agents' hooks run; {MODULE}.py does it.
import sys

sys.path.insert(0, {f"{home}/bin"!a})
sys.dont_write_bytecode = True
try:
    try:
        from {MODULE} import main
    except Exception:  # what is kept compiled may be damaged
        with open({f"{home}/bin/{MODULE}.py"!a}, "rb") as source:
            exec(source.read())
    main(
{lines}
    )
except BaseException:
    sys.exit(0)  # half uninstalled; agents take most exit codes for a veto
"""


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
    if path.suffix == ".py":
        return ""
    if not os.access(path, os.X_OK):
        return "cannot be executed"
    first, _, rest = path.read_text(encoding="utf-8", errors="replace").partition("\n")
    if first == "#!/bin/sh" and rest.startswith("'''exec"):
        first = rest.partition("\n")[0]
    try:
        named = shlex.split(first.removeprefix("#!"))
    except ValueError:
        named = []
    program = next((word for word in named if word.startswith("/")), "")
    if not os.access(program, os.X_OK):
        return f"needs {program or 'an interpreter'}, which is not there"
    return ""
