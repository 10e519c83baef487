"""Rollback, revert, undo and redo as people and programs meet them: preview, question, result."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import click

from core.errors import BadInput
from core.model import RelPath, is_within
from core.plan import Action, Left, Plan, Step
from core.rollback import Result

from .access import find_root, open_store
from .acting import acting
from .asking import agreed
from .context import Context
from .outcomes import grouped, nothing, result_of
from .output import answer, fail, is_terminal, width
from .words import capped, columns, count, named, octal, one_line, path_line, why_left

DONE, FAILED, EXCEPTIONS = 0, 1, 3
LABEL_ROOM = 60
GONE = "Gone, and not held by that point"
NESTED = "nested-root now"


@dataclass(frozen=True)
class How:
    """What the options say; `words` is the command line that led here."""

    words: tuple[str, ...]
    dry_run: bool = False
    plan: str = ""
    yes: bool = False
    full: bool = False
    directory: str | None = None
    then: Callable[[Mapping[str, Any]], tuple[dict[str, object], list[str]]] | None = None
    """What is to follow a rollback that was done: more for the answer, and more lines."""

    @property
    def asked(self) -> bool:
        return not (self.yes or self.plan)

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


def run(context: Context, how: How, action: str, params: Mapping[str, Any], none: str) -> int:
    """Shows, asks, does; `none` says what it means when there is nothing to go to."""
    check_directory(context, how.directory, how.words)
    plan = how.plan if how.yes or how.plan or how.dry_run else None
    if plan is None and context.json:
        check_somebody_is_there(context)
    if how.dry_run or plan is None:
        shown = _look(context, how, action, params, none)
        if shown is not None and shown.outcome == "conflicts":
            return FAILED
        if shown is None or shown.outcome == "nothing" or plan is not None:
            return DONE
        check_somebody_is_there(context, plan=shown.plan)  # here, as what was named may be wrong
        if not agreed(context, "Go on?"):
            return FAILED
        plan = shown.plan.hash
    return _do(context, how, action, {**params, "plan": plan}, none)


def check_directory(context: Context, directory: str | None, words: tuple[str, ...]) -> None:
    """The history outlives its directory; what a rollback fills has to be made by its user."""
    if not directory or os.path.lexists(context.cwd / directory):
        return
    root = find_root(context, open_store(context), directory)
    if not os.path.lexists(root.path):
        raise BadInput(
            f"{root.shown} does not exist any more; its history does.",
            f"Make it, then go back: mkdir -p {shlex.quote(root.shown)}; "
            + shlex.join(["turnmark", *words]),
        )


def check_somebody_is_there(context: Context, which: str = "", plan: Plan | None = None) -> None:
    """With a plan at whose fuses a mere yes would be refused."""
    if context.json or not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        asked = f" which {which} is meant: name one, and" if which else ":"
        yes = f"--plan {plan.hash}" if plan is not None and plan.fuses else "--yes"
        raise click.UsageError(
            f"Nobody can be asked here{asked} pass {yes}, or --dry-run to only look."
        )


def _look(
    context: Context, how: How, action: str, params: Mapping[str, Any], none: str
) -> Result | None:
    """Shows what would be done; the workspace is not locked while somebody thinks about it."""
    asked = {**params, "plan": how.plan, "dry_run": True}
    with acting(context, how.directory, action, asked, create=False, tidy=False) as (data, people):
        pass
    if "title" not in people:
        answer(context, nothing(), none)
        return None
    result = result_of(data, people)
    answer(context, data, "\n".join([people["title"], *preview_lines(result, how)]))
    return result


def _do(context: Context, how: How, action: str, params: Mapping[str, Any], none: str) -> int:
    with acting(context, how.directory, action, params, create=False) as (data, people):
        if "title" not in people:
            answer(context, nothing(), none)
            return DONE
        return _report(context, how, data, people)


def _report(context: Context, how: How, data: Mapping[str, Any], people: Mapping[str, Any]) -> int:
    result = result_of(data, people)
    lines = done_lines(result, how, people["title"])
    if how.then is not None and result.outcome == "done":
        more, says = how.then(data)
        data, lines = {**data, **more}, [*lines, *says]
    answer(context, data, *(["\n".join(lines)] if lines else []))
    if result.outcome == "refused" and not context.json:
        fail(f"Refused: {result.reason}.", _way_out(how, result))
    if result.outcome in ("refused", "conflicts"):
        return FAILED
    partly = result.outcome == "done" and (result.kept or result.conflicts or result.marked)
    return EXCEPTIONS if partly else DONE


def done_lines(result: Result, how: How, title: str) -> list[str]:
    """Who was not asked is told now what it meant."""
    lines = result_lines(result, how)
    if lines and not how.asked and result.outcome == "done":
        return [title, *_consequence_lines(result, how), *lines]
    return lines


def _way_out(how: How, result: Result) -> str:
    if how.plan and not result.plan.hash.startswith(how.plan):
        return "Look again with --dry-run."
    return f"Look at it with --dry-run; go ahead with: {how.with_plan(result.plan.hash)}"


# For people


def preview_lines(result: Result, how: How) -> Iterator[str]:
    if result.outcome == "nothing":
        yield from _nothing_lines(result, how)
        return
    yield from _group_lines(result, how.full)
    yield from _left_lines("Stays as it is", _staying(result), how.full)
    yield from _left_lines("Marks conflicts in", result.marked, how.full)
    yield from _left_lines(GONE, result.gone, how.full)
    yield from _consequence_lines(result, how)
    for fuse in result.plan.fuses:
        yield f"Careful: {fuse}."
    if result.outcome == "conflicts":
        yield from _conflict_lines(result, how)
    elif how.dry_run:
        yield f"Nothing was changed. To go ahead: {how.with_plan(result.plan.hash)}"


def _consequence_lines(result: Result, how: How) -> Iterator[str]:
    """What the paths alone do not say."""
    yield from _left_lines("Followed to a new name", result.followed, how.full)
    if any(left.reason == "ignored now" for left in result.kept) and _rules_go(result):
        yield "What a .gitignore leaves out that changes now comes back by going there once more."
    yield from _turn_lines(result, how.full)
    yield from _own_lines(result, how)
    for warning in result.warnings:
        yield f"Careful: {warning}."
    for turn in result.open_turns:
        yield f"Turn {turn} is still open: its agent may go on writing."


def _rules_go(result: Result) -> bool:
    return any(step.path.rpartition(b"/")[2] == b".gitignore" for step in result.plan.steps)


def _conflict_lines(result: Result, how: How) -> Iterator[str]:
    """What stops a revert, where the three versions of each are, and the ways out."""
    yield from _left_lines("In conflict", result.conflicts, how.full)
    for turn in result.turns_undone:
        name = f"{turn['session']}/{turn['turn']}"
        yield f"Compare: turnmark cat {name} PATH (before the turn), {name}.end (after it)."
    yield (
        "Nothing was changed. --markers writes conflict marks, --mine keeps what is there, "
        "--theirs takes the turn out regardless."
    )


def _own_lines(result: Result, how: How) -> Iterator[str]:
    """Where no turn is in it, they are among the paths above and need no second list."""
    keeps = how.words[0] == "rollback"
    for paths, whose, too in (
        (result.mine, "of your own", ""),
        (result.unattributed, "that nobody knows who made", " too"),
    ):
        if not paths:
            continue
        way_out = f" (--mine-stays keeps {'it' if len(paths) == 1 else 'them'}{too})" * keeps
        line = f"Takes back {count(len(paths), 'edit')} {whose}{way_out}"
        if not result.turns_undone:
            yield f"{line}."
            continue
        yield f"{line}:"
        rows = [path_line("  ", named(path), full=how.full) for path in paths]
        yield from capped(rows, full=how.full)


def _group_lines(result: Result, full: bool) -> Iterator[str]:
    groups = grouped(result.plan)
    kinds: tuple[tuple[str, list[RelPath], Action], ...] = (
        ("Create", groups.created, "mkdir"),
        ("Put back", groups.replaced, "mkdir"),
        ("Delete", groups.deleted, "rmdir"),
    )
    for title, paths, of_dirs in kinds:
        if paths:
            dirs = set(result.plan.paths(of_dirs))
            yield f"{title} {count(len(paths), 'path')}:"
            lines = _every(paths, dirs) if full else _folded(paths, dirs)
            yield from capped(list(lines), full=full)
    if groups.modes:
        yield f"Change the permissions of {count(len(groups.modes), 'path')}:"
        yield from capped([_mode_line(step, full) for step in groups.modes], full=full)


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
            after = f"  ({count(below, 'file')})" if below else ""
            yield path_line("  ", f"{named(top)}/", after)
            top = None
        if path is not None and path in dirs:
            top, below = path, 0
        elif path is not None:
            yield path_line("  ", named(path))


def _mode_line(step: Step, full: bool) -> str:
    old, new = step.old and step.old.mode, step.new and step.new.mode
    after = f"  {octal(old or 0)} -> {octal(new or 0)}"
    return path_line("  ", named(step.path), after, full=full)


def _nothing_lines(result: Result, how: How) -> Iterator[str]:
    if _staying(result):
        yield "Nothing can be put back: what differs stays."
        yield from _left_lines("Stays as it is", _staying(result), how.full)
        if any(one.reason == NESTED for one in _staying(result)):
            yield "What is a workspace of its own goes back by itself: turnmark rollback --dir DIR."
    else:
        of_turns = how.words[0] == "revert"
        then = "all that it held is" if result.gone else "everything is"
        same = "nothing of it is left" if of_turns else f"{then} as it was then"
        yield f"Nothing to do: {same}."
    yield from _left_lines(GONE, result.gone, how.full)


def _staying(result: Result) -> tuple[Left, ...]:
    """Of what is not as it was then, that which is there."""
    gone = {left.path for left in result.gone}
    return tuple(left for left in result.kept if left.path not in gone)


def _left_lines(title: str, left: tuple[Left, ...], full: bool) -> Iterator[str]:
    if left:
        yield f"{title}, {count(len(left), 'path')}:"
        rows = ((one, 1) for one in left) if full else _topmost(left)
        yield from capped([_left_line(one, number, full) for one, number in rows], full=full)


def _left_line(one: Left, number: int, full: bool) -> str:
    covered = f", with {number - 1:,} below it" if number > 1 else ""
    return path_line("  ", named(one.path), f"  ({why_left(one.reason)}{covered})", full=full)


def _topmost(left: tuple[Left, ...]) -> Iterator[tuple[Left, int]]:
    """Without what lies below one that stays for the same reason, but with how many these are."""
    rows: list[tuple[Left, int]] = []
    for one in left:
        top, number = rows[-1] if rows else (one, 0)
        if number and one.reason == top.reason and is_within(one.path, top.path):
            rows[-1] = top, number + 1
        else:
            rows.append((one, 1))
    return iter(rows)


def _turn_lines(result: Result, full: bool) -> Iterator[str]:
    turns = result.turns_undone
    if turns:
        yield f"Takes back {count(len(turns), 'turn')}:"
        yield from capped([_turn_line(turn) for turn in turns], full=full)


def _turn_line(turn: dict[str, object]) -> str:
    name = f"  {turn['session']}/{turn['turn']}"
    room = min(LABEL_ROOM, columns() - width(name) - 2)
    return f"{name}  {one_line(str(turn['label']), room)}" if turn.get("label") else name


def result_lines(result: Result, how: How) -> list[str]:
    if result.outcome == "refused":
        return []
    if result.outcome == "nothing":
        return list(_nothing_lines(result, how))
    back = "redo" if how.words[0] == "undo" else "undo"
    where = f" --dir {shlex.quote(how.directory)}" if how.directory else ""
    lines = [f"{_done_words(result)} `turnmark {back}{where}` takes this back."]
    if result.outcome == "conflicts" and how.words[0] == "revert" and result.undo is None:
        return list(_conflict_lines(result, how))
    if result.outcome == "conflicts":
        lines = ["Nothing could be brought back."]
    lines += _left_lines("Conflicts are marked in", result.marked, how.full)
    lines += _left_lines("Stays as it is", _staying(result), how.full)
    lines += _left_lines("In conflict", result.conflicts, how.full)
    lines += _left_lines(GONE, result.gone, how.full)
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
