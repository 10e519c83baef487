"""What a rollback did or would do as JSON, and back again where people are to be told; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from core.model import Oid, RelPath, parse_path, show_path
from core.plan import Left, Node, Plan, Step
from core.rollback import Result


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
        "markers": [_left_json(left) for left in result.marked],
        "mine": [show_path(path) for path in result.mine],
        "unattributed": [show_path(path) for path in result.unattributed],
        "warnings": list(result.warnings),
        "gone": [_left_json(left) for left in result.gone],
        "followed": [_left_json(left) for left in result.followed],
        **({"reason": result.reason} if refused else {}),
    }


def _left_json(left: Left) -> dict[str, str]:
    return {"path": show_path(left.path), "reason": left.reason}


def nothing() -> dict[str, object]:
    lists = ("created", "replaced", "deleted", "modes", "kept", "conflicts", "turns_undone")
    more = (
        "fuses",
        "open_turns",
        "markers",
        "mine",
        "unattributed",
        "warnings",
        "gone",
        "followed",
    )
    empty: dict[str, object] = {name: [] for name in (*lists, *more)}
    return {"outcome": "nothing", "plan": "", **empty, "undo": None}


# For the command line, when the service has done it


def for_people(result: Result, title: str) -> dict[str, object]:
    """The steps, which say more than the groups of the JSON that other programs rely on."""
    return {"title": title, "steps": [_step_json(step) for step in result.plan.steps]}


def _step_json(step: Step) -> list[object]:
    return [step.action, show_path(step.path), _node_json(step.old), _node_json(step.new)]


def _node_json(node: Node | None) -> list[object] | None:
    return None if node is None else [node.kind, node.mode]


def result_of(data: Mapping[str, Any], people: Mapping[str, Any]) -> Result:
    """The result that as_json and for_people were made of, but for contents."""
    kept, conflicts, marked, gone, followed = (
        tuple(Left(RelPath(parse_path(left["path"])), left["reason"]) for left in data[name])
        for name in ("kept", "conflicts", "markers", "gone", "followed")
    )
    steps = tuple(_step(row) for row in people["steps"])
    plan = Plan(Oid(b""), steps, kept, tuple(data["fuses"]), data["plan"])
    return Result(
        data["outcome"],
        plan,
        kept,
        conflicts,
        Oid(bytes.fromhex(data["undo"])) if data["undo"] else None,
        tuple(data["turns_undone"]),
        tuple(data["open_turns"]),
        data.get("reason", ""),
        marked,
        tuple(RelPath(parse_path(path)) for path in data["mine"]),
        tuple(RelPath(parse_path(path)) for path in data["unattributed"]),
        tuple(data["warnings"]),
        gone,
        followed,
    )


def _step(row: list[Any]) -> Step:
    action, path, old, new = row
    return Step(action, RelPath(parse_path(path)), _node(old), _node(new))


def _node(row: list[Any] | None) -> Node | None:
    return None if row is None else Node(row[0], None, row[1])
