"""When to take a snapshot, and for whom; what a snapshot is belongs to `core`."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

__version__ = "0.1.0"


def _place_of(name: str) -> str:
    """Where a top-level package would be imported from; nothing of it is run."""
    if name in sys.modules and sys.modules[name].__spec__ is None:
        return str(getattr(sys.modules[name], "__file__", "") or "")
    spec = find_spec(name)
    if spec is None:
        return ""
    return next(iter(spec.submodule_search_locations or [spec.origin or ""]))


def _refuse_foreign_core() -> None:
    """`core` is a common name: a project's own one, found first, must not pass for ours."""
    ours = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "core")
    found = _place_of("core")
    if os.path.realpath(found) == ours:
        return
    raise ImportError(
        f"turnmark needs its own package 'core' at {ours}, but Python finds "
        f"{found or 'none at all'}. Start turnmark by its installed command with PYTHONPATH "
        f"unset, or by `{sys.executable} -EP -m watcher`; if that does not help, reinstall it "
        "into an environment of its own (pipx, uv tool, venv)."
    )


_refuse_foreign_core()
