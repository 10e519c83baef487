"""What every peer can do, and how its programs are run: isolated, and never in doubt."""

from __future__ import annotations

import os
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from core.model import RelPath

from ..contenders import QUIET_GIT, Wrong

State = str


class Peer(ABC):
    """One who keeps states of one work tree in a place of its own.

    `keeps` says whether older states stay when a new one is taken; who keeps none is a floor to
    measure from, not somebody to be ahead of. So is who `borrows`: it stores nothing, and what it
    names is lost when its owner prunes it.
    """

    name: ClassVar[str]
    keeps: ClassVar[bool] = True
    borrows: ClassVar[bool] = False
    takes_large: ClassVar[bool] = True
    """False if its rules leave out files of a few megabytes."""

    def __init__(self, place: str, root: str) -> None:
        self.place = place
        self.root = root
        os.makedirs(place)

    def make_ready(self) -> None:
        """What has to be done before a state is taken, and is no part of taking it."""
        return

    @abstractmethod
    def take(self, changed: Iterable[RelPath] | None = None) -> State:
        """The state of the tree as it is now; changed is for who has watched it."""

    @abstractmethod
    def read(self, state: State, path: RelPath) -> bytes | None:
        """A file as it was; None if the state does not hold it."""

    @abstractmethod
    def restore(self, state: State) -> None:
        """The tree as it was, as far as the peer brings it back."""

    def remove(self) -> None:
        shutil.rmtree(self.place)


class Keeper(Peer):
    """A peer whose states can be counted, compared, and thinned."""

    @abstractmethod
    def points(self) -> int:
        """How many it lists."""

    @abstractmethod
    def differ(self, old: State, new: State) -> int:
        """How many files are not the same in both."""

    @abstractmethod
    def thin(self, keep: int) -> None:
        """Lets go of all but the newest, and of the room that they took."""


def installed(program: str) -> bool:
    return shutil.which(program) is not None


def run(
    words: list[str],
    cwd: str,
    env: dict[str, str] | None = None,
    *,
    stdin: bytes = b"",
    ok: tuple[int, ...] = (0,),
) -> subprocess.CompletedProcess[bytes]:
    """Runs a program that must end with one of the given codes."""
    done = subprocess.run(
        words, env=QUIET_GIT | (env or {}), cwd=cwd, input=stdin, capture_output=True, check=False
    )
    if done.returncode not in ok:
        error = os.fsdecode(done.stderr).strip()
        raise Wrong(f"{' '.join(words[:6])} ended with {done.returncode}: {error}")
    return done


def read_below(top: str, path: RelPath) -> bytes | None:
    try:
        with open(os.path.join(os.fsencode(top), path), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
