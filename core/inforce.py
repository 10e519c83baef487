"""Which rules hold in which directory of a workspace while it is looked at."""

from __future__ import annotations

import errno
import stat

from .beneath import Beneath
from .disk import GONE
from .listing import Listing
from .model import ROOT, RelPath
from .reading import NO_ACCESS, READ
from .rules import DirRules, RuleSet
from .worktree import WorkTree

GITIGNORE = b".gitignore"
GITIGNORE_CAP = 1 << 20


class InForce:
    """Owns the rules found in one look: each rules file on the way is read once."""

    def __init__(self, tree: WorkTree, beneath: Beneath, rules: RuleSet) -> None:
        self.tree = tree
        self.beneath = beneath
        self.disk = beneath.disk
        self.ruleset = rules
        self._known: dict[RelPath, DirRules] = {}

    def at_root(self, fd: int, listed: Listing) -> DirRules:
        return self._of_root(self.listed(fd, listed))

    def _of_root(self, gitignore: bytes | None) -> DirRules:
        kept = self.tree.rules
        if kept is None or not kept.is_for(self.ruleset, gitignore):
            kept = self.tree.rules = DirRules.root(self.ruleset, gitignore)
        return kept

    def listed(self, fd: int, listed: Listing) -> bytes | None:
        """The rules file of a directory: most have none, and a failing open costs more than a look
        at the names."""
        return self._gitignore(fd) if GITIGNORE in listed.joined else None

    def of(self, path: RelPath) -> DirRules:
        """Those of a directory that is on record."""
        unknown: list[tuple[RelPath, bytes]] = []
        while (rules := self._known.get(path)) is None and path:
            head, _, name = path.rpartition(b"/")
            unknown.append((path, name))
            path = RelPath(head)
        if rules is None:
            rules = self._known[ROOT] = self._of_root(self._recorded(ROOT))
        while unknown:
            path, name = unknown.pop()
            rules = self._known[path] = rules.child(name, self._recorded(path))
        return rules

    def _recorded(self, path: RelPath) -> bytes | None:
        """Opened only where one was seen; a new one is among the paths to look at."""
        old = self.tree.get(path)
        if old is not None and GITIGNORE not in old.names:
            return None
        return self._gitignore(self.beneath.dir(path))

    def _gitignore(self, fd: int) -> bytes | None:
        """The rules file of a directory; a link, a directory or a FIFO of that name is none."""
        if not self.ruleset.gitignore:
            return None
        try:
            file = self.disk.open_quietly(GITIGNORE, READ, fd)
        except OSError as error:
            if error.errno in GONE or error.errno in NO_ACCESS or error.errno == errno.ENXIO:
                return None
            raise
        try:
            if not stat.S_ISREG(self.disk.fstat(file).st_mode):
                return None
            return self.disk.read_all(file, GITIGNORE_CAP)
        finally:
            self.disk.close(file)
