"""What a look at a large tree asks a scout, from the far end, and what that has vouched for.

Only a favour: what it has not vouched for is looked at as if there were no scout, and where it is
slow, dies, or cannot be started, nothing is lost but time. The look begins with the first name of
each directory, the scout with the last; it is told of a few directories at a time, until they meet.
`scout` says what it does with a question, `station` where it comes from.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .beneath import Beneath
from .inforce import GITIGNORE
from .listing import has_mapped
from .model import ROOT, RelPath, join
from .proofs import ROW, Stamp
from .rules import DirRules
from .scout import ANSWER_BYTES, NO_STAMP, YES
from .station import STATION, Post
from .worktree import Dir, WorkTree

if TYPE_CHECKING:
    from .scout import Question

SCOUT_ABOVE = 2_000
"""So many files take longer to look at than it takes to tell of half of them."""
PART_BYTES, PARTS = 12_000, 2
"""Told at a time, about 200 files: it looks at as many for a few tenths of a millisecond, and is to
have the next part by then."""
OFTEN = 8
"""After so many directories it is heard, and told of more."""


class Scouting:
    """Owns what the scout is asked in one look, and what it has vouched for."""

    def __init__(self, post: Post, tree: WorkTree, beneath: Beneath, keeps_times: bool) -> None:
        self.stamps: dict[RelPath, Stamp] = {}
        """Of what it has listed."""
        self._post, self._tree = post, tree
        self._root = beneath.root, *beneath.identity, keeps_times
        self._begun = False
        self._vouched: set[RelPath] = set()
        """With all below them."""
        self._spoiled: set[RelPath] = set()
        """In which something is not as on record, or is left to the look."""
        self._left = self._far_end()
        self._share = post.room // (2 * PARTS)
        """A part may be as large before its last directory, which may be as large again."""
        self._calls = 0

    def vouches_for(self, path: RelPath) -> bool:
        """Of a directory and all below it; the look has come as far as that."""
        self._calls += 1
        if self._calls % OFTEN == 0:
            self.go_on(path)
        return path in self._vouched

    def go_on(self, reached: RelPath) -> None:
        """Hears what there is to hear, and sees to it that the scout has something to do."""
        for paths, answers in self._post.hear():
            if self._begun:  # else an earlier look asked
                self._note(paths, answers)
        if self._post.gone or not self._post.greeted:
            return
        if not self._begun and self._post.told:  # it has yet to answer an earlier look
            return
        while len(self._post.told) < PARTS and (questions := self._part(reached)):
            if not self._begun:
                self._begun = True
                self._post.send_elsewhere()
                self._post.tell(self._root)
            self._post.ask(questions)
        self._post.push()

    def end(self) -> None:
        if self._begun and not self._post.gone:
            self._post.tell(None)
            self._post.push()
            self._post.gone |= self._post.unsent  # it would wait for the rest, with the root open

    def _note(self, paths: list[RelPath], answers: bytes) -> None:
        for path, at in zip(paths, range(0, len(answers), ANSWER_BYTES), strict=True):
            if not answers.startswith(YES, at) or path in self._spoiled:
                self._spoil(path)
                continue
            self._vouched.add(path)
            if (stamp := answers[at + 1 : at + ANSWER_BYTES]) != NO_STAMP:
                self.stamps[path] = stamp

    def _spoil(self, path: RelPath) -> None:
        self._spoiled.add(RelPath(path.rpartition(b"/")[0]))

    def _part(self, reached: RelPath) -> list[Question]:
        """What to ask next; nothing where the look has come to it."""
        part: list[Question] = []
        size = 0
        for path, record in self._left:
            if not part and path.split(b"/") <= reached.split(b"/"):
                self._left = iter(())
                break
            if path in self._spoiled:
                self._spoil(path)
                continue
            stamp = self._tree.stamps.get(path, b"")
            part.append((path, record.mode, record.names, record.stats, stamp))
            size += len(path) + _size(record)
            if size >= min(PART_BYTES, self._share):
                break
        return part

    def _far_end(self) -> Iterator[tuple[RelPath, Dir]]:
        """The directories on record that may be asked about, the last ones first, each after all
        that lie in it; what the look must take note of is left to it."""
        root = self._tree.root()
        assert root is not None
        waiting = [(ROOT, root, True, root.entered())]
        while waiting:
            path, record, may_be_asked, names = waiting[-1]
            if names:
                below = join(path, names.pop())
                found = self._tree.get(below)
                if found is None:
                    self._spoil(below)
                    continue
                may_be_asked = found.rules == record.rules and self._is_plain(found)
                waiting.append((below, found, may_be_asked, found.entered()))
                continue
            waiting.pop()
            if not may_be_asked:
                self._spoil(path)
            elif path != ROOT:
                yield path, record

    def _is_plain(self, record: Dir) -> bool:
        """Whether no name in it makes rules or is to be noted, and two parts with it have room."""
        small = _size(record) <= self._share
        return small and GITIGNORE not in record.names and not has_mapped(record.names)


def _size(record: Dir) -> int:
    return ROW + len(record.stats) + len(record.names)


@contextmanager
def scout_sent(
    tree: WorkTree, beneath: Beneath, keeps_times: bool, rules: DirRules
) -> Iterator[Scouting | None]:
    """For one look. None where it would not pay, or cannot be; with other rules of the root than
    those on record it would be asked in vain."""
    root = tree.root()
    as_known = root is not None and tree.trusted and rules.fingerprint == root.rules
    worth = as_known and tree.files >= SCOUT_ABOVE
    post = STATION.lend(tree.files) if worth else None
    if post is None:
        yield None
        return
    try:
        scouting = Scouting(post, tree, beneath, keeps_times)
        scouting.go_on(ROOT)
        yield scouting
        scouting.end()
    except BaseException:
        post.gone = True  # what was asked and answered may not agree any more
        raise
    finally:
        STATION.take_back()
