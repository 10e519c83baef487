"""One pass over a tree: its new contents wait beside it until it goes on, or is given up.

Owns the journal and the staging of that pass, and looks at what came of it; `apply` says in which
order things happen and what is true if the process dies in between.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .apply import Transaction
from .beneath import Beneath
from .errors import TurnmarkError, explain
from .history import MarkSpec
from .journal import Journal, JournalFile
from .model import Oid, show_path
from .plan import Left, State, Step, make_plan
from .recorder import Recorder
from .staging import Staging, clear, sort_out
from .states import stored_state


@dataclass(frozen=True)
class Work:
    """What is to be done: the steps from one snapshot towards another, and what undo must know."""

    steps: tuple[Step, ...]
    then: State
    before: Oid
    target: Oid
    extra: dict[str, Any]


class Staged:
    """Owns a pass that has not touched the tree yet, and can still be given up."""

    def __init__(self, recorder: Recorder, work: Work, beneath: Beneath, journal: Journal) -> None:
        self.recorder = recorder
        self.work = work
        self.transaction = Transaction(beneath, journal.tx, work.steps)
        self._journal = journal
        self._file = journal_file(recorder)

    def stage(self) -> None:
        """If it fails, nothing is left of it."""
        self._file.begin(self._journal)
        try:
            self.transaction.stage(self.work.then.read_blob)
        except (OSError, TurnmarkError) as error:
            self.give_up()
            if isinstance(error, OSError):
                root = self.recorder.root.shown
                raise explain(error, "stage the rollback", root) from error
            raise

    def give_up(self) -> None:
        take_back(self.recorder, self.transaction.staging, self.work.steps)
        self._file.finish(self._journal.group)

    def go_on(self) -> list[Left]:
        """The steps, and what they came to; the next command finishes what this one could not.

        Of a path that several things are to be said of, where its content is now comes first.
        """
        try:
            self._file.mark_applying()
            self.transaction.run()
            left = self._verify()
            left = clear_staging(self.recorder, self.transaction.staging, self.work.steps) + left
            self._file.finish(self._journal.group)
        except OSError as error:
            raise _interrupted(self.recorder, error) from error
        return left

    def _verify(self) -> list[Left]:
        """Records what is there now, and says what is still not as the point has it."""
        work, conflicts = self.work, self.transaction.conflicts
        extra = work.extra | {"tx": self._journal.tx}
        spec = MarkSpec("rollback", label=str(extra["title"]), extra=extra)
        taken = self.recorder.take({step.path for step in work.steps}, spec, sync=True)
        now = stored_state(self.recorder.store, taken.snapshot)
        after = make_plan(now, work.then, work.target)
        known = {left.path for left in conflicts}
        aims = {(step.path, step.new) for step in work.steps}  # of one only opened: as it was
        late = {s.path for s in after.steps if s.old != s.new and (s.path, s.new) in aims} - known
        return [*conflicts, *(Left(path, "changed while rolling back") for path in sorted(late))]


@contextmanager
def staged(
    recorder: Recorder, work: Work, *, resumed: bool = False, group: str = ""
) -> Iterator[Staged]:
    """Ready to go on. Who leaves without having done so, or having given up, leaves it to the next
    command."""
    with Beneath(recorder.store.disk, recorder.root.path) as beneath:
        if beneath.identity != recorder.tree.identity:
            raise TurnmarkError(
                f"Another directory has taken the place of {recorder.root.shown}.",
                "Nothing was changed; look again.",
            )
        tx = secrets.token_hex(8)
        known = (work.target, work.before, work.steps, work.extra)
        journal = Journal(tx, beneath.identity, *known, resumed, group)
        one = Staged(recorder, work, beneath, journal)
        try:
            one.stage()
            yield one
        except OSError as error:
            raise _interrupted(recorder, error) from error
        finally:
            one.transaction.staging.close()


def journal_file(recorder: Recorder) -> JournalFile:
    return JournalFile(recorder.store.disk, recorder.store.base, recorder.root.id)


def take_back(recorder: Recorder, staging: Staging, steps: tuple[Step, ...]) -> None:
    """Of a pass that has not begun to change the tree, nothing is left in it."""
    if staging.fd >= 0 or staging.open():
        clear(staging, steps)
        _remove(recorder, staging)
        staging.close()


def clear_staging(recorder: Recorder, staging: Staging, steps: tuple[Step, ...]) -> list[Left]:
    """Empties staging; bytes that the store does not hold are stored first, and named."""
    found = sort_out(staging, steps)
    left = found.given_back
    if found.unknown:
        kept = recorder.keep_displaced(found.unknown, "written while a rollback was under way")
        shown = kept.id.hex()[:12]
        left += [
            Left(path, f"written while rolling back; saved: turnmark cat {shown} {show_path(path)}")
            for path in found.unknown
        ]
    recorder.store.disk.unlink_all(found.names)
    _remove(recorder, staging)
    return left


def _remove(recorder: Recorder, staging: Staging) -> None:
    """For certain, before the journal goes: nobody would come for one that a power cut brought
    back. While its descriptors are open, so that nothing else has its blocks by then."""
    disk, store = recorder.store.disk, recorder.store.base
    staging.remove()
    if not disk.keeps_order([os.fsdecode(recorder.root.path), f"{store}/turnmark/journal"]):
        disk.fsync(staging.beneath.fd)


def _interrupted(recorder: Recorder, error: OSError) -> TurnmarkError:
    cause = explain(error, "finish the rollback", recorder.root.shown)
    return TurnmarkError(
        cause.message, "Nothing is lost; the next turnmark command finishes it. " + cause.hint
    )
