"""Which directories may be workspaces, and what they are called.

Knows paths and stat; is told where home and store are.
"""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass

from .disk import Disk
from .errors import BadInput
from .model import show_path
from .proofs import DIRECTORY
from .rules import is_git_alias

SYSTEM = (
    *(b"/bin", b"/boot", b"/dev", b"/etc", b"/lib", b"/lib32", b"/lib64", b"/proc", b"/run"),
    *(b"/sbin", b"/sys", b"/usr", b"/var", b"/opt", b"/root", b"/home", b"/tmp", b"/srv"),
    *(b"/mnt", b"/media", b"/System", b"/Library", b"/Users", b"/private", b"/Applications"),
)
CLOSED = (b"/boot", b"/dev", b"/etc", b"/proc", b"/sys", b"/usr", b"/bin", b"/sbin", b"/System")
"""Refused with everything below them; of the others only the directory itself."""


@dataclass(frozen=True, slots=True)
class Root:
    """A workspace's directory, resolved once, and its id."""

    path: bytes
    id: str

    @property
    def shown(self) -> str:
        return show_path(self.path)


def root_of(path: bytes) -> Root:
    return Root(path, hashlib.sha256(path).hexdigest()[:16])


def can_be_path(text: str) -> bool:
    """Not: an empty one, one with a NUL, or with what no file name can be."""
    try:
        return bool(text) and b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def check_root(disk: Disk, path: str, *, home: str, store: str) -> Root:
    """The root for a path that a user named; a dangerous or impossible one is refused."""
    if not can_be_path(path):
        raise BadInput(
            "The path of the workspace is empty or holds a NUL, or half a character.",
            "Name a directory.",
        )
    resolved = os.path.realpath(os.fsencode(path))
    _check_directory(disk, resolved, path)
    reason = _refusal(disk, resolved, os.fsencode(home), os.fsencode(store))
    if reason:
        raise BadInput(
            f"{path} cannot be a workspace: it {reason}.",
            "Name the directory of one project.",
        )
    return root_of(resolved)


def _check_directory(disk: Disk, resolved: bytes, named: str) -> None:
    try:
        info = disk.lstat(resolved)
        if stat.S_ISDIR(info.st_mode):
            disk.close(disk.open(resolved, DIRECTORY))
    except FileNotFoundError as error:
        raise BadInput(f"{named} does not exist.", "Check the path.") from error
    except OSError as error:
        raise BadInput(
            f"{named} cannot be read: {error.strerror}.", "Check its permissions."
        ) from error
    if not stat.S_ISDIR(info.st_mode):
        raise BadInput(f"{named} is not a directory.", "Name the directory that holds it.")


def _refusal(disk: Disk, path: bytes, home: bytes, store: bytes) -> str:
    home, store = os.path.realpath(home), os.path.realpath(store)
    reason = _by_name(path, home, store) or _same_directory(disk, path, home, store)
    if not reason and disk.lstat(path).st_dev != disk.lstat(os.path.dirname(path)).st_dev:
        return "is the root of a mounted file system"
    return reason


def _by_name(path: bytes, home: bytes, store: bytes) -> str:
    refused = {
        "is the root of the file system": path == b"/",
        "is your home directory, or holds it": path == home or _inside(home, path),
        "is turnmark's own store, or lies in it": path == store or _inside(path, store),
        "holds turnmark's own store": _inside(store, path),
        "is a repository's own .git, or lies in one": any(map(is_git_alias, path.split(b"/"))),
        "is a directory of the system": path in SYSTEM or any(_inside(path, top) for top in CLOSED),
    }
    return next((reason for reason, is_so in refused.items() if is_so), "")


def _same_directory(disk: Disk, path: bytes, home: bytes, store: bytes) -> str:
    """By identity, not by name: a bind mount shows a directory in a second place."""
    here = _identities(disk, path)
    if here[0] in _identities(disk, home):
        return "is your home directory, or holds it, under another name"
    if disk.exists(store) and _identities(disk, store)[0] in here:
        return "is turnmark's own store, or lies in it, under another name"
    if here[0] in _identities(disk, store):
        return "holds turnmark's own store under another name"
    return ""


def _identities(disk: Disk, path: bytes) -> list[tuple[int, int]]:
    """Of a directory and of those above it, as far as they exist."""
    out: list[tuple[int, int]] = []
    while True:
        if disk.exists(path):
            info = disk.lstat(path)
            out.append((info.st_dev, info.st_ino))
        if path == os.path.dirname(path):
            return out
        path = os.path.dirname(path)


def _inside(path: bytes, top: bytes) -> bool:
    return path.startswith(top.rstrip(b"/") + b"/")


def place_of(disk: Disk, path: bytes) -> dict[str, object]:
    """What is noted of the directory above a root: by it a root that was deleted is told from one
    whose disk is away, and that disk from the next in its place."""
    above = os.path.dirname(path) or b"/"
    info = disk.lstat(above)
    return {"parent": [info.st_dev, info.st_ino], "fs": disk.fs_id(above)}
