"""`turnmark diff`: what changed between two points, or between a point and now."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import click

from core.errors import BadInput
from core.model import Oid, RelPath, is_within, show_path
from core.patch import quoted, render
from core.plan import State
from core.renames import FileChange
from core.timeline import Target

from ..access import rel_path
from ..context import Context, pass_context
from ..differences import (
    Difference,
    Private,
    as_json,
    change_lines,
    difference,
    is_private,
    made_by,
    total,
)
from ..following import holds, name_at, name_now
from ..output import answer, clean_text, is_terminal, note, put
from ..views import View, dir_option, full_option, open_view, private_paths, say_damage
from ..words import MEANING, count, named, octal

MOST_LINES = 80
MAKERS = ("turn", "person")
PATHS = "turnmark.diff.paths"
BOLD, RED, GREEN, CYAN, PLAIN = "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[36m", "\x1b[0m"
MARKS = {"+": GREEN, "-": RED, "@": CYAN}


class WithPaths(click.Command):
    """Takes what stands behind `--` as paths, which else could not be told from points."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        ctx.meta[PATHS] = args[end + 1 :]
        return super().parse_args(ctx, args[:end])

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[-- PATH...]"]


@click.command(cls=WithPaths, epilog="Without a point: what changed since the newest one.")
@click.argument("points", nargs=-1, metavar="[POINT [POINT]]")
@click.option("--stat", is_flag=True, help="Only which files, and how many lines.")
@click.option("--by", type=click.Choice(MAKERS), help="Only what turns, or you, changed.")
@click.option("--private", is_flag=True, help="Show the contents of private files too.")
@full_option
@dir_option
@pass_context
@click.pass_context
def command(
    ctx: click.Context,
    context: Context,
    points: tuple[str, ...],
    stat: bool,
    by: str | None,
    private: bool,
    full: bool,
    directory: str | None,
) -> None:
    """Show what changed from POINT to POINT, or from POINT until now."""
    if len(points) > 2:
        raise click.UsageError("At most two points; paths stand behind --.")
    view = open_view(context, directory)
    tops = tuple(rel_path(context, view.root, path) for path in ctx.meta[PATHS])
    names, states, ids = _sides(view, points)
    followed = [Followed(top, *_names_of(view, top, states, ids)) for top in tops]
    found = difference(*states, _all_names(followed), {f.new: f.old for f in followed if f.moved})
    for one in () if found else followed:
        _check_there(one, names, states)
    if by or context.json:
        found = replace(found, by=view.made_by(*ids, states[1]))
    found = made_by(found, by) if by else found
    hidden = (lambda _: False) if private else private_paths(context, view.root)
    if context.json:
        doc = {"from": names[0], "to": names[1], "followed": [_followed_json(f) for f in followed]}
        answer(context, doc | as_json(found))
    elif not context.quiet:
        _print(context, _stat(found, full=full) if stat else patch_of(found, hidden), full=full)
        _say_same(context, found, names, by)
        _say_names(context, followed, names)
    say_damage(context, view.timeline.damage)


def _say_same(context: Context, found: Difference, names: tuple[str, str], by: str | None) -> None:
    if not found:
        who = {"turn": " by a turn", "person": " by you"}.get(by or "", "")
        note(context, f"Nothing differs{who} between {names[0]} and {names[1]}.")


def _sides(
    view: View, points: tuple[str, ...]
) -> tuple[tuple[str, str], tuple[State, State], tuple[Oid, Oid | None]]:
    """From, and to."""
    if not points and not view.points:
        say_damage(view.context, view.timeline.damage)
        raise BadInput("There is no point yet to compare with.", "`turnmark snapshot` makes one.")
    first = _resolve(view, points[0] if points else "@")
    old = view.state(first.snapshot)
    if len(points) < 2:
        return (first.label, "now"), (old, view.state_now()), (first.snapshot, None)
    second = _resolve(view, points[1])
    states = old, view.state(second.snapshot)
    return (first.label, second.label), states, (first.snapshot, second.snapshot)


def _resolve(view: View, point: str) -> Target:
    """Whoever names a path is told where it stands."""
    try:
        return view.resolve(point)
    except BadInput as error:
        if not os.path.lexists(view.context.cwd / point):
            raise
        command = shlex.join(["turnmark", "diff", "--", point])
        raise BadInput(error.message, f"Paths stand behind --: `{command}`.") from error


@dataclass(frozen=True)
class Followed:
    """A path that was asked for, and what it is called on either side."""

    path: RelPath
    old: RelPath
    new: RelPath

    @property
    def moved(self) -> bool:
        return self.old != self.new


def _names_of(
    view: View, path: RelPath, states: tuple[State, State], ids: tuple[Oid, Oid | None]
) -> tuple[RelPath, RelPath]:
    """The path itself where it is not there under any name."""
    (old, new), (first, second) = states, ids
    was = name_at(view, path, old, first)
    now = name_at(view, path, new, second) if second else name_now(view, path, new)
    return was or path, now or path


def _all_names(followed: list[Followed]) -> tuple[RelPath, ...]:
    return tuple(dict.fromkeys(name for f in followed for name in (f.path, f.old, f.new)))


def _followed_json(one: Followed) -> dict[str, object]:
    return {"path": show_path(one.path), "from": show_path(one.old), "to": show_path(one.new)}


def _say_names(context: Context, followed: list[Followed], names: tuple[str, str]) -> None:
    """Those that were used and lie in none of the paths that were asked for."""
    for one in followed:
        for name, side in zip((one.old, one.new), names, strict=True):
            if not any(is_within(name, asked.path) for asked in followed):
                when = "is now called" if side == "now" else f"at {side} was called"
                note(context, f"{named(one.path)} {when} {named(name)}.")


def _check_there(followed: Followed, names: tuple[str, str], states: tuple[State, State]) -> None:
    """That nothing differs is no answer about a path that neither side holds."""
    path = followed.path
    if holds(states[0], followed.old) or holds(states[1], followed.new):
        return
    reason = next((gap for s in states if (gap := s.about.gap_at(path))), None)
    if reason:
        raise BadInput(
            f"{named(path)} is not held: {reason} ({MEANING[reason]}).",
            "Whether it differs cannot be said.",
        )
    end = names[1] if names[1] == "now" else f"at {names[1]}"
    raise BadInput(
        f"{named(path)} was not there at {names[0]}, nor {end}.",
        "`turnmark find` shows when a path was there.",
    )


# As text


def patch_of(found: Difference, hidden: Private) -> Iterator[bytes]:
    """What `git apply` takes, but for private files and what git has no words for."""
    for change in found.changes:
        if is_private(change, hidden):
            yield from _hidden(change)
        else:
            yield from render([change], found.read)
    yield from (line.encode("utf-8", "surrogateescape") + b"\n" for line in _extras(found))


def _hidden(change: FileChange) -> Iterator[bytes]:
    old = change.old_path or change.path
    yield b"diff --git %s %s\n" % (quoted(b"a/" + old), quoted(b"b/" + change.path))
    yield b"private file, content not shown (--private shows it)\n"


def _extras(found: Difference) -> Iterator[str]:
    for path in found.came:
        yield f"create empty directory {named(path)}"
    for path in found.went:
        yield f"delete empty directory {named(path)}"
    for moded in found.modes:
        yield f"mode change {octal(moded.old)} => {octal(moded.new)} {named(moded.path)}"


def _stat(found: Difference, *, full: bool) -> Iterator[bytes]:
    """One line per path, and the sum."""
    lines = [*change_lines(found, full=full), f"  {total(found)}"] if found else []
    yield from (line.encode("utf-8", "surrogateescape") + b"\n" for line in lines)


def _print(context: Context, pieces: Iterable[bytes], *, full: bool) -> None:
    """Bytes as they are into files and pipes; on a terminal safe, coloured and not too much."""
    if not is_terminal(sys.stdout):
        for piece in pieces:
            put(piece)
        return
    colour = not context.env.get("NO_COLOR")
    shown = hidden = 0
    for line in _terminal_lines(pieces, colour):
        if full or shown < MOST_LINES:
            put(line)
            shown += 1
        else:
            hidden += 1
    if hidden:
        put(f"... {count(hidden, 'more line')}; --full shows them, --stat only counts.\n")


def _terminal_lines(pieces: Iterable[bytes], colour: bool) -> Iterator[str]:
    for piece in pieces:
        in_hunk = piece.startswith(b"@@ ")
        for line in piece.decode("utf-8", "surrogateescape").removesuffix("\n").split("\n"):
            text = clean_text(line)
            yield (_coloured(text, in_hunk) if colour else text) + "\n"


def _coloured(line: str, in_hunk: bool) -> str:
    if not in_hunk:
        bold = line.startswith(("diff ", "index ", "--- ", "+++ ", "new ", "deleted ", "rename "))
        return f"{BOLD}{line}{PLAIN}" if bold else line
    mark = MARKS.get(line[:1])
    return f"{mark}{line}{PLAIN}" if mark else line
