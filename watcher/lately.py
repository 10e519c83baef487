"""What an agent has to be told once: files that went back since its last turn began."""

from __future__ import annotations

from collections.abc import Iterable

from core.diff import diff_trees
from core.history import History, read_snapshot
from core.model import Mark, show_path
from core.store import Store
from core.undo import past_of

from .words import count
from .workspace import Workspace

NAMES = 20


def files_gone_back(workspaces: Iterable[Workspace], session: str) -> str:
    """Words for the agent; none if no rollback came between its last two turns' begins."""
    told = [_told(Store.open(w.base), w.root.id, w.root.shown, session) for w in workspaces]
    return "\n".join(filter(None, told))


def _told(store: Store, workspace: str, shown: str, session: str) -> str:
    back = _rollbacks(list(History(store, workspace).marks()), session)
    if not back:
        return ""
    first = past_of(back[0])
    assert first is not None
    old, new = read_snapshot(store, first.before), read_snapshot(store, back[-1].snapshot)
    paths = [show_path(one.path) for one in diff_trees(store.tree, old.files, new.files)]
    return _words(shown, back[-1].label, paths) if paths else ""


def _rollbacks(marks: list[Mark], session: str) -> list[Mark]:
    """Those between the session's newest begin and the one before it."""
    begins = [n for n, m in enumerate(marks) if m.kind == "turn-begin" and m.session == session]
    if len(begins) < 2:
        return []
    return [mark for mark in marks[begins[-2] : begins[-1]] if mark.kind == "rollback"]


def _words(shown: str, label: str, paths: list[str]) -> str:
    names = paths[:NAMES] + [f"and {len(paths) - NAMES} more"] * (len(paths) > NAMES)
    return (
        f"Note from turnmark: since your last turn the user has gone back in {shown} ({label}), "
        f"which changed {count(len(paths), 'path')} on disk: {', '.join(names)}. What you know of "
        "these is out of date: read them again before you use or edit them."
    )
