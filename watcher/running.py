"""Runs an agent as a child while its directories are watched; the terminal is the child's.

Signals: the terminal sends Ctrl-C to both, so here it is let pass; what only this process is sent
(TERM, HUP) is handed on. Whatever becomes of the service, the child is left alone.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

from core.errors import BadInput, TurnmarkError

from .access import find_root, open_store, opened
from .acting import tell, tidy_after
from .agents.inject import inject
from .client import PATIENCE, Client, connect
from .context import Context, Unavailable
from .output import clean, is_terminal, note
from .starting import ensure_service
from .upkeep import SOON_SECONDS, count_lines
from .words import count

IDLE_SECONDS = 900
NOT_FOUND, NOT_RUNNABLE = 127, 126
LOOK_SECONDS = 0.05
SHOW_SECONDS = 0.4
PAUSE_SECONDS = 6.0
"""Another command may have the workspace for a moment."""
CLOSE_SECONDS = 90.0


@dataclass(frozen=True)
class Wish:
    """What is to be run, where, and in which session."""

    command: tuple[str, ...]
    directories: tuple[str, ...]
    session: str | None


@dataclass
class Run:
    """One run: its session, its directories, and the service that watches them."""

    session: str
    dirs: list[str]
    service: int
    agent: str


def run(context: Context, wish: Wish) -> int:
    missing = _why_not(wish.command[0], context)
    if missing:
        raise missing
    session = wish.session or f"run-{secrets.token_hex(4)}"
    if not context.config.enabled:
        note(context, "turnmark is switched off in the configuration: nothing is kept.")
        return _run_child(context, session, wish.command)
    agent = os.path.basename(wish.command[0])
    client, _ = ensure_service(context, IDLE_SECONDS)
    with client:
        watched = [os.fsencode(root) for root in client.call("roots")["roots"]]
        dirs = [
            opened(context, directory, True, watched)[1].shown
            for directory in dict.fromkeys(wish.directories) or (None,)
        ]
        one = Run(session, dirs, client.hello()["pid"], agent)
        _begin(context, client, one, wish.command)
    code = _run_child(context, session, inject(context, wish.command))
    _end(context, one, code)
    return code


def _why_not(program: str, context: Context) -> TurnmarkError | None:
    """Said before anything is watched, not after a long first look."""
    if shutil.which(program, path=context.env.get("PATH")):
        return None
    return BadInput(f"There is no program {program}.", "What comes after -- is run as it is.")


# Before


def _begin(context: Context, client: Client, one: Run, command: Sequence[str]) -> None:
    """The session is open and the state before the agent is a point; or nothing is begun."""
    given: dict[str, Any] = {"session": one.session, "agent": one.agent, "dirs": one.dirs}
    answer = client.call("session.open", **given, pid=os.getpid())
    try:
        _raise_first(answer["errors"])
        _await_baseline(context, client, one)
        turn = {**given, "prompt": shlex.join(command), "pid": os.getpid(), "own": True}
        marks = client.call("turn.begin", patience=PATIENCE, **turn)
        _raise_first(marks["errors"])
    except (TurnmarkError, KeyboardInterrupt):
        client.call("session.close", patience=CLOSE_SECONDS, session=one.session)
        raise


def _raise_first(errors: list[dict[str, str]]) -> None:
    if errors:
        raise TurnmarkError(errors[0]["error"], errors[0]["hint"])


def _await_baseline(context: Context, client: Client, one: Run) -> None:
    """With a line that moves on a terminal, and stands elsewhere; none if it takes no time."""
    began, line, paused_since = time.monotonic(), Line(context), None
    try:
        while True:
            rows = client.call("progress", dirs=one.dirs)["workspaces"]
            now = time.monotonic()
            paused = next((row for row in rows if row["state"] == "paused"), None)
            paused_since = (paused_since or now) if paused else None
            if paused and paused_since and now - paused_since > PAUSE_SECONDS:
                raise TurnmarkError(f"{paused['root']} cannot be watched: {paused['reason']}.")
            waiting = [row for row in rows if not row["ready"] or row is paused]
            if not waiting:
                return
            if now - began > SHOW_SECONDS:
                line.show(_progress(waiting, now - began))
            time.sleep(LOOK_SECONDS)
    finally:
        line.clear()


def _progress(rows: Sequence[dict[str, Any]], seconds: float) -> str:
    done, known, files = (
        sum(row[name] for row in rows) for name in ("dirs_done", "dirs_known", "files")
    )
    text = f"First look: {count(files, 'file')}"
    if done:
        text += f", {files / seconds:,.0f} a second"
    if done and known >= done and seconds > 1:
        left = seconds * (known - done) / done
        text += f", {100 * done // known} %, {left:.0f} s left"
    return f"{text} ({', '.join(row['root'] for row in rows)})"


class Line:
    """Owns one line of stderr: rewritten on a terminal, elsewhere written once."""

    def __init__(self, context: Context) -> None:
        self.moves = is_terminal(sys.stderr)
        self.quiet = context.quiet or context.json
        self.shown = False

    def show(self, text: str) -> None:
        if self.quiet or (self.shown and not self.moves):
            return
        self.shown = True
        if self.moves:
            room = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r\x1b[K{clean(text)[:room]}")
        else:
            sys.stderr.write(f"First look ...{clean(text[text.index(' (') :])}\n")
        sys.stderr.flush()

    def clear(self) -> None:
        if self.shown and self.moves:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


# While it runs


def _run_child(context: Context, session: str, command: Sequence[str]) -> int:
    env = {**context.env, "TURNMARK_SESSION": session}
    with _signals() as pass_on:
        try:
            child = subprocess.Popen(command, env=env)
        except OSError as error:
            note(context, f"error: {command[0]}: {error.strerror}")
            return NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_RUNNABLE
        pass_on(child)
        _name_child(context, session, child.pid)
        code = child.wait()
    return code if code >= 0 else 128 - code


@contextmanager
def _signals() -> Iterator[Any]:
    """Handlers while a child runs. Functions, not SIG_IGN, which the child would inherit."""
    children: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def let_pass(number: int, frame: FrameType | None) -> None:
        return

    def hand_on(number: int, frame: FrameType | None) -> None:
        early.append(number)
        for child in children:
            child.send_signal(number)

    def pass_on(child: subprocess.Popen[bytes]) -> None:
        children.append(child)
        for number in early:
            child.send_signal(number)

    ours = {signal.SIGINT: let_pass, signal.SIGQUIT: let_pass}
    ours |= {signal.SIGTERM: hand_on, signal.SIGHUP: hand_on}
    before = {number: signal.signal(number, handler) for number, handler in ours.items()}
    try:
        yield pass_on
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _name_child(context: Context, session: str, pid: int) -> None:
    """Should this process be killed, the session lasts as long as the child."""
    try:
        client = connect(context)
        if client is not None:
            with client:
                client.call("session.pid", session=session, pid=pid)
    except TurnmarkError:
        return  # the end of the run says that the service was away


# Afterwards


def _end(context: Context, one: Run, code: int) -> None:
    """Nothing here may change the exit status: it is the agent's."""
    status = "ok" if code == 0 else "interrupted" if code > 128 else "error"
    if status == "interrupted" and is_terminal(sys.stderr):
        note(context, "")  # the terminal shows ^C, and the line goes on
    try:
        done = _close(context, one, status)
        if done is not None:
            for line in _closing_lines(context, one, done):
                note(context, line)
            if done["files"]:
                _count(context, one)
            return
        told = tell(
            context, one.dirs, "turn.end", {"session": one.session, "status": status}, create=False
        )
        for _, error in told.failed:
            note(context, f"turnmark: {error.message}")
        tidy_after(context, told)
        note(
            context,
            "turnmark: the service ended while the agent ran. The state at the end is kept, states "
            "in between may not be; `turnmark list` shows what is.",
        )
    except (TurnmarkError, OSError) as error:
        note(context, f"turnmark: the end of the session could not be recorded: {error}")


def _count(context: Context, one: Run) -> None:
    """A list asked for at once is to show what the last turns changed. The service counts later
    what is not counted here, and says what is wrong with it."""
    until = time.monotonic() + SOON_SECONDS
    with suppress(TurnmarkError, OSError):
        store = open_store(context)
        for directory in one.dirs:
            left = max(0.0, until - time.monotonic())
            count_lines(store, find_root(context, store, directory), left)


def _close(context: Context, one: Run, status: str) -> dict[str, Any] | None:
    """What the session came to; None if the service that knew it is gone."""
    client = connect(context)
    if client is None:
        return None
    ended = {"session": one.session, "status": status}
    try:
        with client:
            done = client.call("session.close", patience=CLOSE_SECONDS, **ended)
    except Unavailable:
        return None
    return done if done["known"] else None


def _closing_lines(context: Context, one: Run, done: Mapping[str, Any]) -> Iterator[str]:
    """How many files changed is not known of a directory that could not be looked at any more."""
    unseen = done.get("errors") or []
    for error in unseen:
        yield f"turnmark: {error['error']}"
        where = shlex.quote(error["dir"])
        make = "" if os.path.isdir(error["dir"]) else f"mkdir -p {where}; "
        yield f"  to bring back what was there: {make}turnmark rollback @ --dir {where}"
    if done["files"] or not unseen:
        yield _closing_line(context, one, done["turns"], done["files"])


def _closing_line(context: Context, one: Run, turns: int, files: int) -> str:
    if not files:
        return f"turnmark: {count(turns, 'turn')}, no files changed"
    here = any(str(context.cwd) == d or str(context.cwd).startswith(f"{d}/") for d in one.dirs)
    if len(one.dirs) > 1:
        point, where = "@", f" --session {shlex.quote(one.session)}"
    else:
        point = _last_turn(context, one.dirs[0])
        where = "" if here else f" --dir {shlex.quote(one.dirs[0])}"
    return (
        f"turnmark: {count(turns, 'turn')}, {count(files, 'file')} changed; "
        f"take the last one back: turnmark rollback {point}{where}"
    )


def _last_turn(context: Context, directory: str) -> str:
    """A mark or a rollback that was made within the run may be newer than the turn is."""
    from core.timeline import Timeline  # while the agent's command starts, nobody waits for it

    with suppress(TurnmarkError, OSError):  # whoever asks for the point is told
        store = open_store(context)
        rows = Timeline(store, find_root(context, store, directory).id).numbered
        for row in rows[1:] if rows and rows[0].mark.kind != "turn-begin" else ():
            if row.mark.kind == "turn-begin":
                return shlex.quote(f"{row.mark.session}/{row.mark.turn}")
    return "@"
