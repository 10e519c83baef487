"""What a scout does: walks a large tree from its far end, and vouches for what is as on record.

The look begins with the first name of each directory, the scout with the last. What the look would
have to take note of is left to it.
"""

from __future__ import annotations

from dataclasses import dataclass

from .beneath import Beneath
from .inforce import InForce
from .listing import Lister, is_same
from .model import ROOT, RelPath, join
from .rules import DirRules
from .scout import Scout, Vouch, can_be_sent
from .worktree import Dir, WorkTree

SCOUT_ABOVE = 2_000
"""So many files take longer to look at than a process takes to start."""


def send_scout(
    tree: WorkTree, beneath: Beneath, lister: Lister, in_force: InForce, rules: DirRules
) -> Scout | None:
    """None where it would not pay, or cannot be; `rules` are those of the root."""
    root = tree.root()
    if root is None or not tree.trusted or tree.files < SCOUT_ABOVE:
        return None
    if rules.fingerprint != root.rules or not can_be_sent(tree.files):
        return None
    walk = _Walk(tree, beneath, lister, in_force)
    top = _Step(ROOT, rules, root.entered())
    try:
        return Scout(tree.paths(), beneath.fd, lambda vouch: walk.run(top, vouch))
    except OSError:  # no process more for this user, or no room for one
        return None


@dataclass(slots=True)
class _Step:
    """A directory on the way: what is left of it, and whether all so far is as on record."""

    path: RelPath
    rules: DirRules
    names: list[bytes]
    same: bool = True


@dataclass(slots=True)
class _Walk:
    """Owns nothing; in the scout's process everything is its own copy."""

    tree: WorkTree
    beneath: Beneath
    lister: Lister
    in_force: InForce

    def run(self, top: _Step, vouch: Vouch) -> None:
        waiting = [top]
        while waiting:
            step = waiting[-1]
            if step.names:
                waiting.append(self._enter(step, step.names.pop()))
                continue
            waiting.pop()
            if not waiting:
                return
            if step.same:
                vouch(step.path, self.lister.stamps.pop(step.path, b""))
            else:
                waiting[-1].same = False

    def _enter(self, above: _Step, name: bytes) -> _Step:
        path = join(above.path, name)
        old = self.tree.get(path)
        try:
            rules, same = self._compare(above, name, path, old)
        except OSError:
            return _Step(path, above.rules, [], same=False)
        return _Step(path, rules, old.entered() if old else [], same)

    def _compare(
        self, above: _Step, name: bytes, path: RelPath, old: Dir | None
    ) -> tuple[DirRules, bool]:
        always = self.lister.always
        always.clear()
        fd = self.beneath.dir(path)
        listed = self.lister.listing(fd, path)
        rules = above.rules.child(name, self.in_force.listed(fd, listed))
        return rules, old is not None and not always and is_same(old, rules, listed)
