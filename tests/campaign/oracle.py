"""What the worker said it did, and whether what is on disk agrees: the judge outside the system.

The worker appends a line to a file before and after whatever it does. Read back after its death:

  changing          the user's own programs write; nothing is known of the tree until
  tree IMAGE        what was there when they had ended, and is there still but for what follows
  verb NAME         a command begins
  aim COMMIT        it may bring any path into the state of that snapshot
  astray            it may bring paths into states that nobody wrote before (a merge)
  done IMAGE EXTENT it ended, and left this: whole, all is now as the aim; partly; or troubled:
                    it said that something could not be done
  found IMAGE       what the next process found, or made of it, before it changed anything
  ack COMMIT IMAGE  acknowledged, durably; soft: acknowledged, but for a power cut
  refused           it was told that this could not be done
  calls N           so many calls to the disk could have failed
  prune             from here on acknowledged snapshots may have been dropped
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

from core.errors import NoStore
from core.store import Store
from core.verify import verify
from tests.stores import fsck
from tests.trees import Image

from .child import in_child, wait_for
from .gitreader import Reader, blob_id, object_ids, references
from .ground import Ground, digest

STAGING = b".turnmark"


class Wrong(Exception):
    """A promise that was not kept."""


@dataclass
class Judge:
    """Owns what was told so far, and reads on from there."""

    ground: Ground
    acks: dict[str, tuple[int, str, bool]] = field(default_factory=dict)
    words: Counter[str] = field(default_factory=Counter)
    verb: str = ""
    may_be: list[Image] = field(default_factory=list)
    """States that a path of the tree may be in; empty while nothing is known."""
    must_keep: Image = field(default_factory=dict)
    last_prune: int = -1
    calls: int = 0
    forgiving: bool = False
    """Whether the file system has lost directories, or found some again, by its own account: what
    is where in the tree is then not asked, only that no content is lost."""
    _lines: int = 0
    _offset: int = 0
    _canaries: list[tuple[object, ...]] = field(default_factory=list)
    _aim: str = ""

    def __post_init__(self) -> None:
        self.look_at_canaries()

    def look_at_canaries(self) -> None:
        self._canaries = self.ground.canaries()

    def forget(self) -> None:
        """The store was taken away: it need not hold anything; the tree is as ever."""
        self.acks, self.must_keep = {}, {}

    # What was said

    def read_on(self, to: int | None = None) -> None:
        """Follows the worker to where it died; a line that was cut short was never said.

        With `to`, no further than so many bytes: what was said later had not been said yet.
        """
        for line in self._new_lines(to):
            self._lines += 1
            word, *rest = line.split(" ")
            self.words[word] += 1
            getattr(self, f"_on_{word}")(*rest)

    def begin_anew(self, name: str) -> None:
        """Another file to follow, for what did not happen after what did."""
        self.ground = replace(self.ground, oracle_name=name)
        self._offset = 0

    def _new_lines(self, to: int | None) -> Iterator[str]:
        if not self.ground.oracle.exists():
            return
        with self.ground.oracle.open("rb") as file:
            file.seek(self._offset)
            data = file.read(-1 if to is None else max(0, to - self._offset))
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        yield from whole.decode().splitlines()

    def _on_changing(self) -> None:
        self.may_be, self.must_keep, self.verb = [], {}, ""

    def _on_tree(self, image: str) -> None:
        self.must_keep = self.ground.kept_image(image)
        self.may_be = [self.must_keep]

    def _on_verb(self, *words: str) -> None:
        name = " ".join(words)
        self.verb = name
        self.words[f"verb {name}"] += 1

    def _on_aim(self, commit: str) -> None:
        self._aim = commit
        image = self._acked_image(commit)
        if image is None:
            image = self._referenced_image(commit)
        if image is None:  # pruned since, by the same life: nothing to compare with
            self._on_astray()
        elif self.may_be:
            self.may_be.append(image)

    def _on_astray(self) -> None:
        self.may_be, self._aim = [], ""

    def _acked_image(self, commit: str) -> Image | None:
        found = self.acks.get(commit)
        return self.ground.kept_image(found[1]) if found else None

    def _referenced_image(self, commit: str) -> Image | None:
        """Of what nothing refers to any more, a sweep may have left the commit without its tree."""
        if commit not in references(self.ground.store).values():
            return None
        with Reader(self.ground.store) as reader:
            return reader.snapshot(commit)

    def _on_done(self, image: str, extent: str) -> None:
        now = self.ground.kept_image(image)
        if extent == "whole" and len(self.may_be) > 1:
            self._same(now, self.may_be[-1], f"{self.verb} left another tree than its target")
        elif extent == "troubled":
            states = [_modes_of_dirs_aside(one) for one in self.may_be]
            self._among(_modes_of_dirs_aside(now), self.verb, states)
        else:
            self._among(now, self.verb, self.may_be)
        self.may_be = [now]

    def _on_found(self, image: str) -> None:
        now = self.ground.kept_image(image)
        if not self.forgiving:
            self._among(now, f"{self.verb or 'a death'}, finished by the next command", self.may_be)
        self.may_be = [now]

    def _on_ack(self, commit: str, image: str) -> None:
        self.acks[commit] = (self._lines, image, True)

    def _on_soft(self, commit: str, image: str) -> None:
        if not self.acks.get(commit, (0, "", False))[2]:
            self.acks[commit] = (self._lines, image, False)

    def _on_calls(self, number: str) -> None:
        self.calls = int(number)

    def _on_refused(self) -> None:
        """What it may have begun is in the states that were said before it."""

    def _on_prune(self) -> None:
        self.last_prune = self._lines

    # What is there

    def check_tree(self) -> None:
        """No content of before is gone, no path is in a state that nobody wrote, no canary sang."""
        self._open_store()
        now = self.ground.image()
        lost = {blob_id(data) for data in _contents(self.must_keep)}
        lost -= {blob_id(data) for data in _contents(now)}
        if lost and (lost := lost - object_ids(self.ground.store)):
            raise Wrong(f"{len(lost)} contents were lost in {self.verb}")
        settled = {path: leaf for path, leaf in now.items() if not path.startswith(STAGING)}
        if len(self.may_be) == 1 and not self.forgiving:
            self._same(settled, self.may_be[0], f"{self.verb} changed the tree")
        if self.ground.canaries() != self._canaries:
            raise Wrong(f"{self.verb} changed something outside, or .git")

    def check_store(self) -> int:
        """Every acknowledged snapshot that no prune may have dropped is exact; all is whole."""
        self._open_store()
        fsck(self.ground.store)
        there = set(references(self.ground.store).values())
        with Reader(self.ground.store) as reader:
            for commit, (line, image, durable) in self.acks.items():
                self._check_ack(reader, commit, there, image, line, durable=durable)
        if wait_for(in_child(self._verify)):
            raise Wrong("`store verify` finds damage")
        return len(there)

    def _open_store(self) -> None:
        """As the next command does, before git is asked: it puts in place what a power cut left in
        a log."""
        if wait_for(in_child(self._open)):
            raise Wrong("the store cannot be opened")

    def _open(self) -> None:
        with suppress(NoStore):  # its creation was cut short
            Store.open(self.ground.store)

    def _verify(self) -> None:
        """In a child, so that nothing of the ground stays open in this process."""
        found = verify(Store.open(self.ground.store))
        assert found.ok, found.damaged

    def _check_ack(
        self, reader: Reader, commit: str, there: set[str], image: str, line: int, *, durable: bool
    ) -> None:
        if commit in there:
            self._check_exact(reader, commit, image)
        elif line > self.last_prune and (durable or not self.ground.cut):
            raise Wrong(f"the acknowledged snapshot {commit} is gone")

    def _check_exact(self, reader: Reader, commit: str, image: str) -> None:
        """But for what it lists as not captured."""
        seen, gaps = reader.snapshot(commit), reader.gaps(commit)
        if seen is not None and digest(seen) == image:
            return
        wanted = self.ground.kept_image(image)
        self._same(
            _without(seen or {}, gaps),
            _without(wanted, gaps),
            f"the acknowledged snapshot {commit} is not exact",
        )

    def _same(self, now: Image, wanted: Image, what: str) -> None:
        if now != wanted:
            paths = [p for p in sorted(now.keys() | wanted.keys()) if now.get(p) != wanted.get(p)]
            raise Wrong(f"{what}: {_show(paths[0], now, wanted)}, and {len(paths) - 1} more")

    def _among(self, now: Image, who: str, states: list[Image]) -> None:
        for path in set(now).union(*states) if states else ():
            if now.get(path) not in [one.get(path) for one in states]:
                what = f"{who}, left a path in a state that nobody wrote"
                raise Wrong(f"{what}: {_show(path, now, states[0])}")


def _modes_of_dirs_aside(image: Image) -> Image:
    """A directory that was made, or opened, and could not be given its mode is told as such."""
    return {path: leaf[:1] if leaf[0] == "dir" else leaf for path, leaf in image.items()}


def _contents(image: Image) -> Iterator[bytes]:
    for leaf in image.values():
        if leaf[0] in ("file", "link"):
            assert isinstance(leaf[-1], bytes)
            yield leaf[-1]


def _without(image: Image, gaps: set[bytes]) -> Image:
    """What no gap is said of: neither of it, nor of anything above it."""
    tops = tuple(gap + b"/" for gap in gaps)
    return {p: leaf for p, leaf in image.items() if p not in gaps and not p.startswith(tops)}


def _show(path: bytes, now: Image, wanted: Image) -> str:
    return f"{path!r} is {_short(now.get(path))}, not {_short(wanted.get(path))}"


def _short(leaf: tuple[object, ...] | None) -> str:
    return "absent" if leaf is None else repr(leaf)[:60]
