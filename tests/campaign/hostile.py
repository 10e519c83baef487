"""Workspaces, configurations and users that mean harm: nothing of theirs runs, shows or gets in.

Each scene is set with other details drawn by the seed, and played with the command line as people
use it. The attacks that have tests of their own (tests/test_attacks.py) are run as one of them.
"""

from __future__ import annotations

import json
import os
import pty
import random
import re
import resource
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from core.diff import files_of
from core.model import EXEC, FILE
from tests.stores import Bench
from tests.test_attacks import forge
from tests.trees import build, image
from watcher.server import Server

from .frame import Figures, Job, Part
from .paths import CHANGED, Sentry

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
NOBODY = 65534
MEMORY = 1 << 30
SHOWN = re.compile(rb"\x1b\[[0-9;]*m")
"""What a terminal is told on purpose: colours."""
CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xaa-\xae]")

ALIASES = (
    *(".GIT", ".Git", "git~1", "GIT~1", ".git ", ".git.", ".git . .", ".git:x", ".git\\x"),
    *(
        ".g\u200cit",
        ".gi\u200dt",
        "\ufeff.git",
        ".git\u206f",
        ".\u202egit",
        ".git::$INDEX_ALLOCATION",
    ),
)
NAMES = (
    *("\x1b[2J\x1b[31mred", "two\nlines", "\x1b]0;title\x07", "tab\there", "\u202egnp.sh"),
    *("-rf", "--help", "\x9b31m", "\x7f", "caf\u00e9", "\udcff\udcfe", "a" * 255, "\r over"),
)
CONFIGS: tuple[str, ...] = (
    "a: &a [x,x]\nb: &b [*a,*a]\nwatch: [*b,*b]\n",
    "!!python/object/apply:os.system ['touch CANARY']\n",
    "watch: !!python/object/new:os.system ['touch CANARY']\n",
    "[" * 100_000,
    "{" * 50_000 + "}" * 50_000,
    "watch: [" + "~/a," * 300_000 + "]\n",
    "? [a, b]\n: c\n",
    "<<: {watch: [/]}\n",
    "watch: ['" + "*/" * 2000 + "']\n",
    "\x00\x01\x02",
    "store: {max_points: 1e999}\n",
    "defaults: {exclude: ['" + "**/" * 1300 + "x']}\n",
)


class Wrong(Exception):
    """What an attack has come to."""


class Stage:
    """Owns one home and one workspace, and runs commands there as a user would."""

    def __init__(self, base: Path, rng: random.Random) -> None:
        self.base = base
        self.random = rng
        self.work = base / "work"
        self.work.mkdir(parents=True)
        self.canary = base / "canary"
        self.env = {
            "HOME": str(base),
            "PATH": os.environ["PATH"],
            "TURNMARK_HOME": str(base / "home"),
            "TURNMARK_RUNTIME_DIR": str(base / "run"),
            "XDG_CONFIG_HOME": str(base / "config"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    def run(
        self, *words: str, env: Mapping[str, str] = {}, limited: bool = False
    ) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(
            [sys.executable, "-EP", "-m", "watcher", *words],
            cwd=self.work,
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE,
            preexec_fn=_little_memory if limited else None,
            check=False,
        )
        if b"Traceback" in done.stderr or done.returncode == 2:
            raise Wrong(f"{' '.join(words)[:60]}: {done.returncode}: {done.stderr[-300:]!r}")
        return done

    def well(self, *words: str, env: Mapping[str, str] = {}) -> bytes:
        done = self.run(*words, env=env)
        if done.returncode not in (0, 3):
            raise Wrong(f"{' '.join(words)[:60]} ended with {done.returncode}: {done.stderr!r}")
        return done.stdout

    def nothing_ran(self) -> None:
        if self.canary.exists():
            raise Wrong("something of the workspace was run")


def _little_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


Scene = Callable[[Stage], None]


def planted(stage: Stage) -> None:
    """Configuration, hooks, filters and programs in the workspace; `.` in PATH; GIT_* variables."""
    touch = f"#!/bin/sh\ntouch {stage.canary}\n"
    run = f"touch {stage.canary}"
    config = (
        f"[core]\n\tfsmonitor = {run}\n\tsshCommand = {run}\n\tpager = {run}\n\thooksPath = hooks\n"
        f'[filter "evil"]\n\tclean = {run}\n\tsmudge = {run}\n\trequired = true\n'
        f"[diff]\n\texternal = {run}\n[alias]\n\trepack = !{run}\n[include]\n\tpath = /dev/stdin\n"
    )
    build(
        stage.work,
        {
            ".git/config": config,
            ".git/HEAD": "ref: refs/heads/main\n",
            "a": "1",
            "b/c": "2",
            ".gitattributes": "* filter=evil diff=evil\n",
            "b/.gitattributes": "* text=auto\n",
        },
    )
    programs = ("git", "nice", "python3", "less", "sh", ".git/hooks/post-checkout", "hooks/x")
    for name in programs:
        build(stage.work, {name: touch})
        (stage.work / name).chmod(0o755)
    env = {"PATH": f".:{os.environ['PATH']}", "PAGER": "less", "LESSOPEN": f"|{run}"}
    env |= {"GIT_DIR": str(stage.work / ".git"), "GIT_EXTERNAL_DIFF": run, "GIT_PAGER": run}
    env |= {"PYTHONPATH": ".", "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.fsmonitor"}
    env |= {"GIT_CONFIG_VALUE_0": run}
    build(stage.work, {f"{name}/__init__.py": f"import os; os.system({run!r})" for name in MODULES})
    before = image(stage.work, skip=())
    sentry = Sentry(stage.work, CHANGED)
    stage.well("mark", "-m", "begun", env=env)
    told = sentry.told()
    sentry.close()
    if told or image(stage.work, skip=()) != before:
        raise Wrong(f"capturing has written into the workspace: {sorted(told)[:3]}")
    git = image(stage.work / ".git", skip=())
    build(stage.work, {"a": "changed", "b/new": "x"})
    for words in (["diff"], ["list", "--all"], ["show", "@"], ["find", "--text", "chang"]):
        stage.well(*words, env=env)
    stage.well("rollback", "@", "--yes", env=env)
    for words in (["undo", "--yes"], ["redo", "--yes"], ["store", "prune"], ["store", "verify"]):
        stage.well(*words, env=env)
    if (stage.work / "a").read_text() != "1" or image(stage.work / ".git", skip=()) != git:
        raise Wrong("the rollback is not exact, or .git has changed")
    stage.nothing_ran()


MODULES = ("core", "watcher", "yaml", "click", "sitecustomize")


def aliases(stage: Stage) -> None:
    """`.git` by another name is neither captured nor written, whatever a point claims."""
    bench = Bench(stage.base / "bench")
    here = stage.random.sample(ALIASES, 6)
    build(bench.path, {"a": "now", **{f"{name}/config": "mine" for name in here}})
    build(bench.path, {f"sub/{name}": "a file" for name in here})
    taken = bench.point()
    held = [os.fsdecode(path) for path, _ in files_of(bench.store.tree, taken.snapshot.files)]
    if held != ["a"]:
        raise Wrong(f"captured by another name: {held}")
    before = image(bench.path, skip=())
    names = stage.random.sample(ALIASES, 6)
    tree = {f"{name}/hooks/x".encode(): (EXEC, b"#!/bin/sh\n") for name in names}
    tree |= {f"new/{name}".encode(): (FILE, b"x") for name in names}
    bench.go(forge(bench, {**tree, b"a": (FILE, b"then")}))
    after = image(bench.path, skip=())
    wrong = sorted(path for path in after if before.get(path) != after[path] and path != b"a")
    if [path for path in wrong if path != b"new"] or after[b"a"][-1] != b"then":
        raise Wrong(f"written by another name: {wrong}")
    bench.close()


def names(stage: Stage) -> None:
    """Names that a terminal would obey, options, halves of characters: shown safely, told whole."""
    chosen = stage.random.sample(NAMES, 8)
    root = os.fsencode(stage.work)
    for name in chosen:
        with open(root + b"/" + os.fsencode(name), "wb") as file:
            file.write(b"one\n")
    label = stage.random.choice(NAMES[:5])
    stage.well("mark", f"-m{label}")
    for name in chosen:
        with open(root + b"/" + os.fsencode(name), "wb") as file:
            file.write(b"two\n")
    os.unlink(root + b"/" + os.fsencode(chosen[0]))
    for words in (["list"], ["diff"], ["diff", "--stat"], ["show", "@"], ["find", "*"], ["status"]):
        shown = on_a_terminal(stage, words)
        bad = CONTROL.search(SHOWN.sub(b"", shown).replace(b"\r\n", b"\n"))
        if bad:
            raise Wrong(
                f"{words} shows {bad[0]!r} to a terminal: {shown[bad.start() - 40 :][:90]!r}"
            )
    told = json.loads(stage.well("rollback", "@", "--dry-run", "--json"))
    said = {*told["replaced"], *told["created"]}
    if said != set(chosen):
        raise Wrong(f"JSON names {sorted(said ^ set(chosen))}")
    stage.well("rollback", "@", "--yes")
    left = {leaf[-1] for leaf in image(stage.work).values()}
    if left != {b"one\n"}:
        raise Wrong("hostile names did not come back")


def on_a_terminal(stage: Stage, words: list[str]) -> bytes:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-EP", "-m", "watcher", *words],
        cwd=stage.work,
        env={**stage.env, "TERM": "xterm", "PAGER": "cat"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    ) as child:
        os.close(theirs)
        out = b""
        try:
            while part := os.read(ours, 1 << 16):
                out += part
        except OSError:  # the last of them closed the terminal
            out += b""
        finally:
            os.close(ours)
        child.wait(PATIENCE)
    return out


def configs(stage: Stage) -> None:
    """A hostile configuration is an error with its place, soon and in little memory."""
    path = stage.base / "config/turnmark/config.yaml"
    path.parent.mkdir(parents=True)
    for text in stage.random.sample(CONFIGS, 4):
        path.write_text(text.replace("CANARY", str(stage.canary)))
        done = stage.run("config", "check", limited=True)
        if done.returncode not in (0, 78):
            raise Wrong(f"{text[:40]!r}: {done.returncode}: {done.stderr[-200:]!r}")
    stage.nothing_ran()


def others(stage: Stage) -> None:
    """Another user reads nothing, connects to nothing, and is answered nothing."""
    build(stage.work, {"a": "secret"})
    stage.well("mark")
    open_to = [
        str(path)
        for top in (stage.base / "home", stage.base / "run")
        for path in (top, *top.rglob("*"))
        if path.exists() and not path.is_symlink() and stat.S_IMODE(path.lstat().st_mode) & 0o077
    ]
    if open_to:
        raise Wrong(f"others may use {open_to[:3]}")
    if os.geteuid() == 0:
        _as_nobody(stage)


def _as_nobody(stage: Stage) -> None:
    """Even where the directories and the socket's mode would let them."""
    place = Path("/tmp") / f"turnmark-hostile-{os.getpid()}-{stage.random.randrange(1 << 30)}"
    place.mkdir(mode=0o755)
    server = Server(str(place / "s"), lambda connection, method, params: {"told": "all"})
    server.start()
    try:
        os.chmod(server.path, 0o666)
        pid = os.fork()
        if pid == 0:
            os._exit(_try_as_nobody(server.path, stage.base / "home/store/HEAD"))
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
            raise Wrong("another user got in")
    finally:
        server.stop()
        server.close()
        shutil.rmtree(place)


def _try_as_nobody(path: str, file: Path) -> int:
    """In a child: 0 if nothing was to be had."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    if os.access(file, os.R_OK):
        return 1
    try:
        link = socket.socket(socket.AF_UNIX)
        link.settimeout(5)
        link.connect(path)
        link.sendall(b'{"jsonrpc":"2.0","id":1,"method":"status","params":{}}\n')
        return 1 if link.recv(100) else 0
    except OSError:
        return 0


def known(stage: Stage) -> None:
    """What has a test of its own."""
    order = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider"]
    chosen = stage.random.choice(("record", "journal", "staging", "git", "link", "permission"))
    order += ["tests/test_attacks.py", "-k", chosen, f"--basetemp={stage.base / 'known'}"]
    done = subprocess.run(order, cwd=ROOT, capture_output=True, timeout=300, check=False)
    if done.returncode:
        raise Wrong(f"tests/test_attacks.py -k {chosen}: {done.stdout[-300:]!r}")


SCENES: tuple[Scene, ...] = (planted, aliases, names, configs, others, known)


def run(job: Job) -> Figures:
    figures = Figures()
    for number in job.turns(figures):
        scene = SCENES[number % len(SCENES)]
        base = job.scratch / f"{number}-{scene.__name__}"
        try:
            scene(Stage(base, job.rng("hostile", number)))
        except (Wrong, subprocess.TimeoutExpired) as wrong:
            figures.found.append(f"{scene.__name__} ({number}): {wrong}")
            continue
        shutil.rmtree(base)
        figures.count(scene.__name__)
    return figures


PART = Part(
    "hostile",
    "hostile workspaces, names, configurations and users",
    run,
    {"ci": 6, "night": 300, "release": 1_200},
)
