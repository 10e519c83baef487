"""Where the service of a store is to be found: runtime directory, socket and locks; no sockets."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping

from core.errors import TurnmarkError

LONGEST = 107
"""Bytes that fit into a socket's address on Linux; macOS has four fewer."""


def candidates(env: Mapping[str, str]) -> list[str]:
    """The runtime directories, best first; the last two are found by programs without any
    environment, as hooks and cron jobs may be."""
    named = env.get("TURNMARK_RUNTIME_DIR")
    if named:
        return [os.path.abspath(named)]
    given = env.get("XDG_RUNTIME_DIR", "")
    uid = os.geteuid()
    above = [given] if os.path.isabs(given) else []
    above.append(f"/run/user/{uid}")
    found = [f"{path.rstrip('/')}/turnmark" for path in above if _is_ours(path)]
    return [*dict.fromkeys(found), f"/tmp/turnmark-{uid}"]


def _is_ours(path: str) -> bool:
    try:
        return os.stat(path).st_uid == os.geteuid()
    except OSError:
        return False


def socket_in(directory: str, store: str) -> str:
    """One service for each store and user; what belongs to it has the same name with a suffix."""
    return f"{directory}/{hashlib.sha256(os.fsencode(os.path.realpath(store))).hexdigest()[:16]}"


def sockets(env: Mapping[str, str], store: str) -> list[str]:
    """Where a service of the store may listen; only directories that nobody else can write to."""
    return [socket_in(path, store) for path in candidates(env) if not distrust(path)]


def make_private(directory: str) -> None:
    """Makes the directory, or refuses one that another user could have prepared."""
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
    except OSError as error:
        raise TurnmarkError(
            f"The runtime directory {directory} cannot be made: {error.strerror}.",
            "Name another one with TURNMARK_RUNTIME_DIR.",
        ) from error
    reason = distrust(directory)
    if reason:
        raise TurnmarkError(
            f"The runtime directory {directory} {reason}.",
            "Remove it, or name another one with TURNMARK_RUNTIME_DIR.",
        )


def distrust(directory: str) -> str:
    """Why a directory is no place for a socket of ours; empty if it is one."""
    try:
        info = os.lstat(directory)
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    if not stat.S_ISDIR(info.st_mode):
        return "is not a directory"
    if info.st_uid != os.geteuid():
        return f"belongs to user {info.st_uid}"
    return "is open to other users" if info.st_mode & 0o077 else ""


def place_for_socket(env: Mapping[str, str], store: str) -> str:
    """The socket's path for a service that starts now."""
    directory = candidates(env)[0]
    make_private(directory)
    path = socket_in(directory, store)
    if len(os.fsencode(path)) > LONGEST - len(".cookies"):
        raise TurnmarkError(
            f"The path of the socket would be too long: {path}.",
            "Name a shorter directory with TURNMARK_RUNTIME_DIR.",
        )
    return path
