"""Questions before something is lost: an end of input is a no, and so is Ctrl-C, which also ends
the command.
"""

from __future__ import annotations

import sys

from .context import Context
from .output import confirm, note

NO_CHANGE = "Nothing was changed."


def agreed(context: Context, question: str, *, yes: bool = False) -> bool:
    """Whether to go on; says so when not. Where nobody can be asked it is a usage error."""
    try:
        if confirm(question, yes=yes):
            return True
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        note(context, NO_CHANGE)
        raise
    note(context, NO_CHANGE)
    return False
