"""The rollback of several workspaces at once, where it is done: in the service, or here and now.

Whoever does it has all the recorders; a loop of the service lends its own, and stands still.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from core.errors import BadInput
from core.model import RelPath
from core.recorder import Recorder
from core.together import Part, preview_all, rollback_all

from .actions import texts, way_back
from .answers import Gone, answer_of, settle
from .outcomes import as_json, for_people

if TYPE_CHECKING:
    from .workspace import Workspace

Params = Mapping[str, Any]


def go_back_together(recorders: Sequence[Recorder], params: Params) -> dict[str, Any]:
    """Each to its own of the `points`; `plans` are the hashes that were shown of each."""
    points, plans = texts(params, "points"), texts(params, "plans")
    if len(points) != len(recorders) or len(plans) not in (0, len(recorders)):
        raise BadInput("There is not one point, or plan, for each directory.")
    parts, titles = [], []
    for number, recorder in enumerate(recorders):
        request, target = way_back(recorder, {**params, "point": points[number], "paths": []})
        parts.append(Part(recorder, replace(request, plan=plans[number] if plans else "")))
        titles.append(f"Rollback to {target.label}")
    found = (preview_all if params.get("dry_run") else rollback_all)(parts)
    rows = [
        {**as_json(result), "people": for_people(result, title)}
        for result, title in zip(found.results, titles, strict=True)
    ]
    return {"reason": found.reason, "workspaces": rows}


@contextmanager
def borrowed(workspace: Workspace, seconds: float, gone: Gone) -> Iterator[Recorder]:
    """The recorder of a workspace of the service, whose loop does nothing until it is back."""
    loan = _Loan()
    workspace.ask(loan.task).add_done_callback(loan.refused)
    settle([loan.lent], seconds, gone, cancel=True)
    recorder: Recorder = answer_of(loan.lent)
    try:
        yield recorder
    except Exception as error:
        loan.back.set_exception(error)  # the loop judges whether its records can still be trusted
        raise
    finally:
        if not loan.back.done():
            loan.back.set_result(None)


class _Loan:
    """Owns the two moments at which a recorder changes hands."""

    def __init__(self) -> None:
        self.lent: Future[Recorder] = Future()
        self.back: Future[None] = Future()

    def task(self, recorder: Recorder, paths: list[RelPath] | None) -> None:
        """In the loop: what was dirty is looked at first, since nobody else will."""
        recorder.take(paths)
        if self.lent.set_running_or_notify_cancel():
            self.lent.set_result(recorder)
            self.back.result()

    def refused(self, asked: Future[Any]) -> None:
        error = asked.exception()
        if error is not None and not self.lent.done() and self.lent.set_running_or_notify_cancel():
            self.lent.set_exception(error)
