"""Questions before something is lost: an end of input or Ctrl-C is a no."""

from __future__ import annotations

import sys

from .context import Context
from .output import confirm, note


def agreed(context: Context, question: str, *, yes: bool = False) -> bool:
    """Whether to go on; says so when not. Where nobody can be asked it is a usage error."""
    try:
        if confirm(question, yes=yes):
            return True
    except KeyboardInterrupt:
        sys.stderr.write("\n")
    note(context, "Nothing was changed.")
    return False
