"""A store as git and forty lines of our own see it: nothing here knows the code under test."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from tests.trees import Image

LINK, TREE = 0o120000, 0o40000
ENVIRONMENT = {"GIT_CONFIG_NOSYSTEM": "1", "HOME": "/nonexistent"}


def git(base: str, *words: str) -> list[str]:
    program = shutil.which("git")
    assert program is not None, "the campaign needs git to read every store"
    return [program, f"--git-dir={base}", *words]


def environment() -> dict[str, str]:
    return {"PATH": os.environ["PATH"], **ENVIRONMENT}


def blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def object_ids(base: str) -> set[str]:
    """All objects that git finds in the store."""
    asked = git(base, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)")
    done = subprocess.run(
        asked, capture_output=True, text=True, cwd="/", env=environment(), check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def references(base: str) -> dict[str, str]:
    asked = git(base, "for-each-ref", "--format=%(refname) %(objectname)")
    done = subprocess.run(
        asked, capture_output=True, text=True, cwd="/", env=environment(), check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(line.split(" ") for line in done.stdout.splitlines())


class Reader:
    """Owns one `git cat-file --batch`."""

    def __init__(self, base: str) -> None:
        self._git = subprocess.Popen(
            git(base, "cat-file", "--batch"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd="/",
            env=environment(),
        )

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pipe in (self._git.stdin, self._git.stdout):
            assert pipe is not None
            pipe.close()
        self._git.wait()

    def read(self, name: str) -> bytes | None:
        """An object's bytes, or None where git finds none; git checks the hash on the way."""
        assert self._git.stdin is not None
        assert self._git.stdout is not None
        self._git.stdin.write(name.encode() + b"\n")
        self._git.stdin.flush()
        head = self._git.stdout.readline().split()
        if len(head) != 3:
            return None
        data = self._git.stdout.read(int(head[2]))
        self._git.stdout.read(1)
        return data

    def snapshot(self, commit: str) -> Image | None:
        """The image of a snapshot, as `tests.trees.image` gives it of the tree on disk."""
        data = self.read(commit)
        if data is None:
            return None
        top = {name: oid for _, name, oid in self._entries(data.split()[1].decode())}
        about = _About(self._there(top[b"about"]))
        out: Image = {}
        self._walk(top[b"files"], b"", about, out)
        for path in about.empty:
            out[path] = ("dir", about.mode(path, TREE))
        return out

    def gaps(self, commit: str) -> set[bytes]:
        """The paths that the snapshot says it did not capture."""
        data = self.read(commit)
        if data is None:
            return set()
        top = {name: oid for _, name, oid in self._entries(data.split()[1].decode())}
        return _About(self._there(top[b"about"])).gaps

    def _there(self, name: str) -> bytes:
        data = self.read(name)
        assert data is not None, f"git does not find {name}, which a snapshot needs"
        return data

    def _entries(self, tree: str) -> Iterator[tuple[int, bytes, str]]:
        rest = self._there(tree)
        while rest:
            head, _, rest = rest.partition(b"\0")
            mode, _, name = head.partition(b" ")
            yield int(mode, 8), name, rest[:20].hex()
            rest = rest[20:]

    def _walk(self, tree: str, above: bytes, about: _About, out: Image) -> None:
        for mode, name, oid in self._entries(tree):
            path = above + b"/" + name if above else name
            if mode == TREE:
                out[path] = ("dir", about.mode(path, mode))
                self._walk(oid, path, about, out)
            elif mode == LINK:
                out[path] = ("link", self._there(oid))
            else:
                out[path] = ("file", about.mode(path, mode), self._there(oid))


class _About:
    """Modes and empty directories, as the lines of the record say them."""

    def __init__(self, data: bytes) -> None:
        head, *lines = [json.loads(line) for line in data.splitlines()]
        self.usual: list[int] = head["usual"]
        self.modes: dict[bytes, int] = {}
        self.empty: list[bytes] = []
        self.gaps: set[bytes] = set()
        for line in lines:
            self._take(line)

    def _take(self, line: dict[str, Any]) -> None:
        path = line["dir"].encode()
        if "mode" in line:
            self.modes[path] = line["mode"]
        if line.get("empty") and path:
            self.empty.append(path)
        above = path + b"/" if path else b""
        for name, mode in line.get("modes", {}).items():
            self.modes[above + name.encode()] = mode
        self.gaps.update(above + name.encode() for name in line.get("gaps", {}))

    def mode(self, path: bytes, git_mode: int) -> int:
        number = {0o100644: 0, 0o100755: 1}.get(git_mode, 2)
        return self.modes.get(path, self.usual[number])
