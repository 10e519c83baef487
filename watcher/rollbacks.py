"""Rollback, undo and redo as people and programs meet them: preview, question, result."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import click

from core.model import RelPath, is_within, show_path
from core.plan import Left, Plan, Step
from core.recorder import Recorder
from core.rollback import Request, Result, preview, rollback

from .access import locked, recording
from .asking import agreed
from .context import Context
from .output import answer, fail, is_terminal
from .words import capped, count, named, octal, one_line


class Wish(NamedTuple):
    """What is wanted, and the words that the preview begins with."""

    request: Request
    title: str


Wanted = Callable[[Recorder], Wish | None]

DONE, FAILED, EXCEPTIONS = 0, 1, 3


@dataclass(frozen=True)
class How:
    """What the options say; `words` is the command line that led here."""

    words: tuple[str, ...]
    dry_run: bool = False
    plan: str = ""
    yes: bool = False
    full: bool = False
    directory: str | None = None

    def with_plan(self, plan: str) -> str:
        return shlex.join(["turnmark", *self.words, "--plan", plan])


def options(command: Callable[..., int]) -> Callable[..., int]:
    """What rollback, undo and redo have in common."""
    for add in (
        click.option("--full", is_flag=True, help="Name every path, however many."),
        click.option("--dir", "directory", metavar="DIR", help="A workspace other than this."),
        click.option("-y", "--yes", is_flag=True, help="Do not ask."),
        click.option("--plan", metavar="HASH", default="", help="Do exactly what was shown."),
        click.option("--dry-run", is_flag=True, help="Only show what would be done."),
    ):
        command = add(command)
    return command


def run(context: Context, how: How, wanted: Wanted, none: str) -> int:
    """Shows, asks, does; `none` says what it means when there is nothing to go to."""
    if how.yes or how.plan or how.dry_run:
        plan = how.plan
    else:
        _check_somebody_is_there(context)
        plan = None
    if how.dry_run or plan is None:
        shown = _look(context, how, wanted)
        if shown is None:
            answer(context, _nothing(), none)
        if shown is None or shown.outcome == "nothing" or plan is not None:
            return DONE
        if not agreed(context, "Go on?"):
            return FAILED
        plan = shown.plan.hash
    return _do(context, how, wanted, plan, none)


def _check_somebody_is_there(context: Context) -> None:
    if context.json or not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        raise click.UsageError("Nobody can be asked here: pass --yes, or --dry-run to only look.")


def _look(context: Context, how: How, wanted: Wanted) -> Result | None:
    """Shows what would be done; the workspace is not locked while somebody thinks about it."""
    with locked(context, how.directory, create=False) as recorder:
        wish = wanted(recorder)
        if wish is None:
            return None
        result = preview(recorder, replace(wish.request, plan=how.plan))
    answer(context, as_json(result), "\n".join([wish.title, *_preview(result, how)]))
    return result


def _do(context: Context, how: How, wanted: Wanted, plan: str, none: str) -> int:
    with recording(context, how.directory, create=False) as recorder:
        wish = wanted(recorder)
        if wish is None:
            answer(context, _nothing(), none)
            return DONE
        return _report(context, how, rollback(recorder, replace(wish.request, plan=plan)))


def _report(context: Context, how: How, result: Result) -> int:
    lines = _result_lines(result, how)
    answer(context, as_json(result), *(["\n".join(lines)] if lines else []))
    if result.outcome == "refused" and not context.json:
        fail(f"Refused: {result.reason}.", _way_out(how, result))
    if result.outcome in ("refused", "conflicts"):
        return FAILED
    partly = result.outcome == "done" and (result.kept or result.conflicts)
    return EXCEPTIONS if partly else DONE


def _way_out(how: How, result: Result) -> str:
    if how.plan and not result.plan.hash.startswith(how.plan):
        return "Look again with --dry-run."
    return f"Look at it with --dry-run; go ahead with: {how.with_plan(result.plan.hash)}"


# For programs


@dataclass(frozen=True)
class Groups:
    """The paths of a plan by what becomes of them."""

    created: list[RelPath]
    replaced: list[RelPath]
    deleted: list[RelPath]
    modes: list[Step]


def grouped(plan: Plan, conflicts: Iterable[Left] = ()) -> Groups:
    """Without those that turned out to be in conflict."""
    failed = {left.path for left in conflicts}
    steps = [step for step in plan.steps if step.path not in failed]
    created = _paths(steps, "create", "mkdir")
    replaced = _paths(steps, "replace")
    deleted = _paths(steps, "delete", "clear", "rmdir")
    listed = {*created, *replaced, *deleted}
    modes = [s for s in steps if s.action == "chmod" and s.old != s.new and s.path not in listed]
    return Groups(created, replaced, deleted, sorted(modes, key=lambda step: step.path))


def _paths(steps: list[Step], *actions: str) -> list[RelPath]:
    return sorted({step.path for step in steps if step.action in actions})


def as_json(result: Result) -> dict[str, object]:
    groups = grouped(result.plan, result.conflicts)
    refused = result.outcome == "refused"
    return {
        "outcome": result.outcome,
        "plan": result.plan.hash,
        "created": [show_path(path) for path in groups.created],
        "replaced": [show_path(path) for path in groups.replaced],
        "deleted": [show_path(path) for path in groups.deleted],
        "modes": [show_path(step.path) for step in groups.modes],
        "kept": [_left_json(left) for left in result.kept],
        "conflicts": [_left_json(left) for left in result.conflicts],
        "undo": result.undo.hex() if result.undo else None,
        "turns_undone": [dict(turn) for turn in result.turns_undone],
        "fuses": list(result.plan.fuses),
        "open_turns": list(result.open_turns),
        **({"reason": result.reason} if refused else {}),
    }


def _left_json(left: Left) -> dict[str, str]:
    return {"path": show_path(left.path), "reason": left.reason}


def _nothing() -> dict[str, object]:
    lists = ("created", "replaced", "deleted", "modes", "kept", "conflicts", "turns_undone")
    empty: dict[str, object] = {name: [] for name in lists}
    return {"outcome": "nothing", "plan": "", **empty, "undo": None, "fuses": [], "open_turns": []}


# For people


def _preview(result: Result, how: How) -> Iterator[str]:
    if result.outcome == "nothing":
        yield "Nothing to do: everything is as it was then."
        yield from _left_lines("Stays as it is", result.kept, how.full)
        return
    yield from _group_lines(result, how.full)
    yield from _left_lines("Stays as it is", result.kept, how.full)
    yield from _turn_lines(result, how.full)
    for turn in result.open_turns:
        yield f"Turn {turn} is still open: its agent may go on writing."
    for fuse in result.plan.fuses:
        yield f"Careful: {fuse}."
    if how.dry_run:
        yield f"Nothing was changed. To go ahead: {how.with_plan(result.plan.hash)}"


def _group_lines(result: Result, full: bool) -> Iterator[str]:
    groups = grouped(result.plan)
    dirs = set(result.plan.paths("mkdir", "rmdir"))
    for title, paths in (
        ("Create", groups.created),
        ("Put back", groups.replaced),
        ("Delete", groups.deleted),
    ):
        if paths:
            yield f"{title} {count(len(paths), 'path')}:"
            lines = _every(paths, dirs) if full else _folded(paths, dirs)
            yield from capped(list(lines), full=full)
    if groups.modes:
        yield f"Change the permissions of {count(len(groups.modes), 'path')}:"
        yield from capped([_mode_line(step) for step in groups.modes], full=full)


def _every(paths: list[RelPath], dirs: set[RelPath]) -> Iterator[str]:
    return (f"  {named(path)}{'/' * (path in dirs)}" for path in paths)


def _folded(paths: list[RelPath], dirs: set[RelPath]) -> Iterator[str]:
    """A directory that comes or goes whole stands for what is in it."""
    top: RelPath | None = None
    below = 0
    for path in [*paths, None]:
        if path is not None and top is not None and is_within(path, top):
            below += path not in dirs
            continue
        if top is not None:
            yield f"  {named(top)}/" + (f"  ({count(below, 'file')})" if below else "")
            top = None
        if path is not None and path in dirs:
            top, below = path, 0
        elif path is not None:
            yield f"  {named(path)}"


def _mode_line(step: Step) -> str:
    old, new = step.old and step.old.mode, step.new and step.new.mode
    return f"  {named(step.path)}  {octal(old or 0)} -> {octal(new or 0)}"


def _left_lines(title: str, left: tuple[Left, ...], full: bool) -> Iterator[str]:
    if left:
        yield f"{title} {count(len(left), 'path')}:"
        lines = [f"  {named(one.path)}  ({one.reason})" for one in left]
        yield from capped(lines, full=full)


def _turn_lines(result: Result, full: bool) -> Iterator[str]:
    turns = result.turns_undone
    if turns:
        yield f"Takes back {count(len(turns), 'turn')}:"
        yield from capped([_turn_line(turn) for turn in turns], full=full)


def _turn_line(turn: dict[str, object]) -> str:
    label = f"  {one_line(str(turn['label']), 60)}" if turn.get("label") else ""
    return f"  {turn['session']}/{turn['turn']}{label}"


def _result_lines(result: Result, how: How) -> list[str]:
    if result.outcome == "refused":
        return []
    if result.outcome == "nothing":
        left = _left_lines("Stays as it is", result.kept, how.full)
        return ["Nothing to do: everything is as it was then.", *left]
    back = "redo" if how.words[0] == "undo" else "undo"
    lines = [f"{_done_words(result)} `turnmark {back}` takes this back."]
    if result.outcome == "conflicts":
        lines = ["Nothing could be brought back."]
    lines += _left_lines("Stays as it is", result.kept, how.full)
    lines += _left_lines("In conflict", result.conflicts, how.full)
    return lines


def _done_words(result: Result) -> str:
    groups = grouped(result.plan, result.conflicts)
    parts = (
        (len(groups.created), "created"),
        (len(groups.replaced), "put back"),
        (len(groups.deleted), "deleted"),
        (len(groups.modes), "with other permissions"),
    )
    return "Done: " + ", ".join(f"{number:,} {word}" for number, word in parts if number) + "."
