"""`python -EP -m watcher`: the command line without its installed script."""

from __future__ import annotations

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
