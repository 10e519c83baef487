"""`turnmark demo`: a whole session in a throw-away directory, each step checked byte by byte."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click

from ..context import Context, pass_context
from ..output import answer, fail, put

PASSED_ON = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TERM", "COLUMNS", "NO_COLOR", "TZ", "TMPDIR")
PLACE = Path(__file__).parents[2]
# As `-EP -m watcher`, but also from a checkout that is not installed.
START = f"import sys; sys.path.append({str(PLACE)!r}); import watcher.cli as c; sys.exit(c.main())"

APP = """import sys


def greet(name):
    return "Hello, " + name


if __name__ == "__main__":
    print(greet(sys.argv[1]))
"""
FILES = {
    "README.md": "# Greeter\n\nSays hello.\n",
    "src/app.py": APP,
    "src/names.txt": "Ada\nGrace\n",
    "run.sh": '#!/bin/sh\nexec python3 src/app.py "$@"\n',
}

Image = dict[str, tuple[int, bytes]]


@dataclass
class Demo:
    """Owns a directory with a project and a home of its own; notes what was not as it should be."""

    context: Context
    top: Path
    wrong: list[str] = field(default_factory=list)
    steps: list[dict[str, object]] = field(default_factory=list)

    @property
    def project(self) -> Path:
        return self.top / "greeter"

    @property
    def silent(self) -> bool:
        return self.context.json or self.context.quiet

    def say(self, text: str) -> None:
        if not self.silent:
            put(f"\n# {text}\n")

    def turnmark(self, *words: str) -> None:
        start = [sys.executable, "-EP", "-c", START]
        self._run(["turnmark", *words], [*start, *words])

    def shell(self, line: str) -> None:
        self._run([line], ["/bin/sh", "-c", line])

    def _run(self, shown: list[str], command: list[str]) -> None:
        text = shown[0] if len(shown) == 1 else shlex.join(shown)
        if not self.silent:
            put(f"$ {text}\n")
        done = subprocess.run(
            command,
            cwd=self.project,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if self.silent else None,
            stderr=subprocess.STDOUT if self.silent else None,
            check=False,
        )
        said = (done.stdout or b"").decode(errors="replace")
        self.steps.append({"command": text, "exit_code": done.returncode, "output": said})
        if done.returncode:
            self.wrong.append(f"`{text}` ended with {done.returncode}")

    def _environment(self) -> dict[str, str]:
        """Nothing of the user's but what concerns language and terminal."""
        env = {name: self.context.env[name] for name in PASSED_ON if name in self.context.env}
        return {**env, "HOME": str(self.top), "TURNMARK_HOME": str(self.top / "turnmark")}

    def expect(self, image: Image, what: str) -> None:
        if image_of(self.project) != image:
            self.wrong.append(what)


@click.command()
@click.option("--keep", is_flag=True, help="Leave the directory for you to look at.")
@pass_context
def command(context: Context, keep: bool) -> int:
    """See it work: an agent deletes too much, and it comes back. Touches nothing of yours."""
    with _directory(keep) as top:
        demo = Demo(context, top)
        _session(demo)
        _conclude(demo, keep)
    return 1 if demo.wrong else 0


@contextmanager
def _directory(keep: bool) -> Iterator[Path]:
    top = Path(os.path.realpath(tempfile.mkdtemp(prefix="turnmark-demo-")))
    try:
        yield top
    finally:
        if not keep:
            shutil.rmtree(top)


def _session(demo: Demo) -> None:
    demo.say("A small project, and a first snapshot of it.")
    _make(demo.project)
    demo.turnmark("snapshot")

    demo.say("An agent's first turn: it edits a file. Its hooks tell turnmark so.")
    demo.turnmark("turn", "begin", "--session", "demo", "--prompt", "greet more warmly")
    _edit(demo.project / "src/app.py", "Hello, ", "Good to see you, ")
    demo.turnmark("turn", "end", "--session", "demo")

    demo.say("Its second turn: it renames a file, and a shell command goes too far.")
    before = image_of(demo.project)
    demo.turnmark("turn", "begin", "--session", "demo", "--prompt", "tidy up")
    demo.shell("mv README.md README.txt")
    demo.shell("rm -rf src")
    demo.turnmark("turn", "end", "--session", "demo")
    after = image_of(demo.project)

    demo.say("One point per turn: the state before it.")
    demo.turnmark("list")
    demo.turnmark("diff", "1", "--stat")
    demo.say("What would going back do? And then do it.")
    demo.turnmark("rollback", "1", "--dry-run")
    demo.expect(after, "the dry run changed something")
    demo.turnmark("rollback", "1", "--yes")
    demo.expect(before, "the rollback did not bring back exactly what was there")
    demo.shell("ls README.md src; grep -n see src/app.py")
    demo.say("Changed your mind? A rollback can be taken back too.")
    demo.turnmark("undo", "--yes")
    demo.expect(after, "the undo did not bring back exactly what was there")


def _conclude(demo: Demo, keep: bool) -> None:
    ok = not demo.wrong
    data: dict[str, object] = {"ok": ok, "wrong": demo.wrong, "steps": demo.steps}
    if keep:
        data["directory"] = str(demo.top)
    lines = ["", "Compared name by name, mode by mode, byte by byte: rollback and undo were exact."]
    if keep:
        home = shlex.quote(str(demo.top / "turnmark"))
        lines.append(f"Look around: cd {shlex.quote(str(demo.project))}; TURNMARK_HOME={home}")
    else:
        lines.append("The directory of this demo is removed again; nothing else was touched.")
    answer(demo.context, data, *(["\n".join(lines)] if ok else []))
    if not ok:
        fail(f"The demo went wrong: {'; '.join(demo.wrong)}.", "Run it again with --keep to look.")


def _make(project: Path) -> None:
    for name, text in FILES.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (project / "run.sh").chmod(0o755)


def _edit(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")


def image_of(top: Path) -> Image:
    """Every name below a directory with its full mode and its bytes."""
    paths = (path for path in sorted(top.rglob("*")))
    return {str(path.relative_to(top)): (path.lstat().st_mode, _bytes_of(path)) for path in paths}


def _bytes_of(path: Path) -> bytes:
    if path.is_symlink():
        return os.fsencode(path.readlink())
    return path.read_bytes() if path.is_file() else b""
