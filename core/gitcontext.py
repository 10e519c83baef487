"""What the user's own git says of a moment: HEAD, branch, and what is under way.

Read from files of `.git`, only where that is a real directory in the root; no git is run, no link
is followed, no file is read further than it needs, and whatever is odd is left out.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from .beneath import Beneath
from .disk import Disk
from .errors import BadInput
from .model import RelPath

SMALL, PACKED = 4096, 16 << 20
READ = os.O_RDONLY | os.O_NONBLOCK
DIR = b".git/"
REFTABLE = b"refs/heads/.invalid"
"""What HEAD says where git keeps its references in a database."""
_ID = re.compile(rb"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_REF = re.compile(rb"refs/[^\x00-\x20\x7f~^:?*\[\\]{1,1000}")
UNDER_WAY = {
    b"rebase-merge": "rebase",
    b"rebase-apply": "rebase",
    b"MERGE_HEAD": "merge",
    b"CHERRY_PICK_HEAD": "cherry-pick",
    b"REVERT_HEAD": "revert",
    b"BISECT_LOG": "bisect",
}


@dataclass(frozen=True, slots=True)
class GitContext:
    """None and "" where there is none: a branch without a commit, or a commit without a branch."""

    head: str | None
    branch: str | None
    doing: str = ""

    def as_json(self) -> dict[str, object]:
        return {"head": self.head, "branch": self.branch, "doing": self.doing}

    @property
    def words(self) -> str:
        name = self.branch or "no branch"
        commit = self.head[:10] if self.head else "no commit yet"
        return f"{name} at {commit}" + (f", {self.doing} under way" if self.doing else "")


def from_json(doc: object) -> GitContext | None:
    """As a mark keeps it; None where it kept nothing."""
    if not isinstance(doc, dict):
        return None
    head, branch, doing = (doc.get(name) for name in ("head", "branch", "doing"))
    return GitContext(
        head if isinstance(head, str) else None,
        branch if isinstance(branch, str) else None,
        doing if isinstance(doing, str) else "",
    )


def git_context(disk: Disk, root: bytes) -> GitContext | None:
    try:
        with Beneath(disk, root) as beneath:
            return _context(beneath)
    except (OSError, BadInput):
        return None


def _context(beneath: Beneath) -> GitContext | None:
    head = _line(beneath, b"HEAD")
    if head is None:
        return None
    names = (name for name in UNDER_WAY if beneath.lstat(RelPath(DIR + name)) is not None)
    doing = next((UNDER_WAY[name] for name in names), "")
    if _ID.fullmatch(head):
        return GitContext(head.decode(), None, doing)
    ref = head.removeprefix(b"ref: ").strip()
    if ref in (head, REFTABLE) or not _REF.fullmatch(ref) or b".." in ref:
        return None
    branch = ref.removeprefix(b"refs/heads/").decode("utf-8", "replace")
    return GitContext(_commit(beneath, ref), branch, doing)


def _commit(beneath: Beneath, ref: bytes) -> str | None:
    loose = _line(beneath, ref)
    if loose is not None:
        return loose.decode() if _ID.fullmatch(loose) else None
    packed = _read(beneath, b"packed-refs", PACKED) or b""
    found = re.search(rb"^([0-9a-f]{40,64}) " + re.escape(ref) + rb"$", packed, re.MULTILINE)
    return found[1].decode() if found else None


def _line(beneath: Beneath, name: bytes) -> bytes | None:
    data = _read(beneath, name, SMALL)
    return None if data is None else data.partition(b"\n")[0].rstrip()


def _read(beneath: Beneath, name: bytes, most: int) -> bytes | None:
    """An ordinary file below .git; nothing if it is something else, or too long."""
    disk = beneath.disk
    try:
        at, last = beneath.parent(RelPath(DIR + name))
        fd = disk.open_quietly(last, READ, at=at)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(disk.fstat(fd).st_mode):
            return None
        data = disk.read_all(fd, most)
        return data if len(data) <= most else None
    finally:
        disk.close(fd)


def moved(then: GitContext | None, now: GitContext | None) -> Iterator[str]:
    """What of the user's own git a rollback leaves as it is, though it may not expect that."""
    if then is None or now is None:
        return
    if (then.head, then.branch) != (now.head, now.branch):
        yield f"git was on {then.words}, and is on {now.words}; a rollback moves files only"
    elif now.doing and now.doing != then.doing:
        yield f"a {now.doing} of git's is under way, which the rollback knows nothing of"
