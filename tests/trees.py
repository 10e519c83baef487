"""Trees as literals: what the tests build, and the exact image of what is there."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Image = dict[bytes, tuple[object, ...]]


@dataclass(frozen=True)
class Link:
    to: str


@dataclass(frozen=True)
class File:
    data: bytes | str = ""
    mode: int = 0o644


@dataclass(frozen=True)
class Dir:
    mode: int = 0o755


Leaf = str | bytes | Link | File | Dir


def build(root: Path, tree: Mapping[Any, Leaf]) -> Path:
    """Makes the tree: names ending in a slash are directories, modes as said."""
    root.mkdir(parents=True, exist_ok=True)
    late: list[tuple[bytes, int]] = []
    for name, leaf in tree.items():
        path = os.path.join(os.fsencode(root), os.fsencode(name).rstrip(b"/"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if isinstance(leaf, Link):
            os.symlink(leaf.to, path)
        elif isinstance(leaf, Dir) or os.fsencode(name).endswith(b"/"):
            os.makedirs(path, exist_ok=True)
            late.append((path, leaf.mode if isinstance(leaf, Dir) else 0o755))
        else:
            _write(path, leaf if isinstance(leaf, File) else File(leaf))
    for path, mode in reversed(late):
        os.chmod(path, mode)
    return root


def _write(path: bytes, leaf: File) -> None:
    data = leaf.data.encode() if isinstance(leaf.data, str) else leaf.data
    with open(path, "wb") as file:
        file.write(data)
    os.chmod(path, leaf.mode)


def image(root: Path | str | bytes, skip: tuple[bytes, ...] = (b".git",)) -> Image:
    """Everything below a root: kind, full mode, content or target; links are not followed."""
    out: Image = {}
    _walk(os.open(root, os.O_RDONLY | os.O_DIRECTORY), b"", out, skip)
    return out


def _walk(fd: int, above: bytes, out: Image, skip: tuple[bytes, ...]) -> None:
    try:
        for text in os.listdir(fd):
            name = os.fsencode(text)
            if name in skip:
                continue
            path = above + b"/" + name if above else name
            info = os.stat(name, dir_fd=fd, follow_symlinks=False)
            out[path] = _leaf(fd, name, info)
            if stat.S_ISDIR(info.st_mode):
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
                _walk(inner, path, out, skip)
    finally:
        os.close(fd)


def _leaf(fd: int, name: bytes, info: os.stat_result) -> tuple[object, ...]:
    mode = stat.S_IMODE(info.st_mode)
    if stat.S_ISLNK(info.st_mode):
        return "link", os.readlink(name, dir_fd=fd)
    if stat.S_ISDIR(info.st_mode):
        return "dir", mode
    if not stat.S_ISREG(info.st_mode):
        return "special", mode
    file = os.open(name, os.O_RDONLY, dir_fd=fd)
    try:
        data = b""
        while part := os.read(file, 1 << 20):
            data += part
    finally:
        os.close(file)
    return "file", mode, data
