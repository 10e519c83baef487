"""`turnmark cat`: a file's bytes as they were at a point."""

from __future__ import annotations

import base64
import shlex
import sys
from dataclasses import dataclass

import click

from core.diff import entry_at
from core.errors import BadInput
from core.lines import is_binary
from core.model import LINK, TREE, Entry, RelPath, is_within, show_path
from core.objects import parse_tree
from core.plan import State
from core.timeline import Target

from ..access import rel_path
from ..context import Context, pass_context
from ..following import name_at
from ..output import answer, clean, clean_text, is_terminal, note, put, size
from ..views import dir_option, open_view
from ..words import MEANING, named, octal


@click.command(epilog="A directory lists its names; of a link its target is printed.")
@click.argument("point")
@click.argument("path", metavar="PATH", required=False)
@dir_option
@pass_context
def command(context: Context, point: str, path: str | None, directory: str | None) -> None:
    """Print the file PATH as it was at POINT."""
    if path is None:
        newest = shlex.join(["turnmark", "cat", "@", point])
        raise BadInput("A point and a path are needed.", f"At the newest point: `{newest}`.")
    view = open_view(context, directory)
    target = view.resolve(point)
    state = view.state(target.snapshot)
    asked = rel_path(context, view.root, path)
    where = name_at(view, asked, state, target.snapshot)
    if where is None:
        raise _missing(state, target, asked)
    if where != asked:
        note(context, f"{named(asked)} was called {named(where)} at {target.label}.")
    entry = entry_at(state.read_tree, state.files, where)
    shown = _Shown(state, where, asked)
    if entry is None:
        _list(context, shown, [])
    elif entry.mode == TREE:
        _list(context, shown, _names(state, where, entry))
    else:
        _print(context, shown, entry)


@dataclass(frozen=True)
class _Shown:
    """A path as it is called in a state, and as it was asked for."""

    state: State
    path: RelPath
    asked: RelPath

    def document(self, kind: str, mode: int | None, **more: object) -> dict[str, object]:
        return {
            "path": show_path(self.path),
            "asked": show_path(self.asked),
            "kind": kind,
            "mode": None if mode is None else octal(mode),
            **more,
        }


def _missing(state: State, target: Target, path: RelPath) -> BadInput:
    reason = state.about.gap_at(path)
    if reason:
        return BadInput(
            f"{named(path)} is not held by {target.label}: {reason} ({MEANING[reason]}).",
            f"`turnmark history {named(path)}` shows whether another point holds it.",
        )
    return BadInput(
        f"{named(path)} was not there at {target.label}.",
        f"`turnmark find {named(RelPath(path.rpartition(b'/')[2]))}` shows when it was.",
    )


def _names(state: State, path: RelPath, entry: Entry) -> list[bytes]:
    """What the directory held, with a slash behind directories; empty ones are in no tree."""
    entries = parse_tree(state.read_tree(entry.oid))
    found = [name + b"/" * (below.mode == TREE) for name, below in entries.items()]
    top = path + b"/" if path else b""
    empty = [e[len(top) :] for e in state.about.empty if e != path and is_within(e, path)]
    return sorted({*found, *(name.split(b"/")[0] + b"/" for name in empty)})


def _list(context: Context, shown: _Shown, names: list[bytes]) -> None:
    lines = [show_path(name) for name in names]
    data = shown.document("dir", shown.state.about.mode(shown.path, TREE), names=lines)
    answer(context, data, *(["\n".join(map(clean, lines))] if lines else []))


def _print(context: Context, shown: _Shown, entry: Entry) -> None:
    state, path = shown.state, shown.path
    data = state.read_blob(entry.oid)
    if state.about.gaps.get(path) == "torn":
        note(context, f"warning: {named(path)} kept changing while it was read; this is a mixture.")
    if context.json:
        answer(context, _document(shown, entry, data))
    elif entry.mode == LINK:
        answer(context, {}, show_path(data))
    elif not is_terminal(sys.stdout):
        put(data)
    elif is_binary(data):
        note(context, f"{named(path)} is binary, {size(len(data))}: send it to a file with >.")
    else:
        # What a terminal would obey is shown instead; a file or pipe gets every byte.
        put(clean_text(data.decode("utf-8", "surrogateescape")))


def _document(shown: _Shown, entry: Entry, data: bytes) -> dict[str, object]:
    if entry.mode == LINK:
        return shown.document("link", None, size=len(data), target=show_path(data))
    mode = shown.state.about.mode(shown.path, entry.mode)
    content = base64.b64encode(data).decode()
    return shown.document("file", mode, size=len(data), base64=content)
