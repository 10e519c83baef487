"""Whether the directory of a workspace is still there, or is gone for sure."""

from __future__ import annotations

import json
import os
import stat
from typing import Literal

from .disk import Disk
from .errors import Damaged
from .model import parse_path
from .objects import parse_headers
from .refs import TOP
from .roots import root_of
from .store import Store, registry_path

NO_RECORD = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
State = Literal["live", "orphan", "away"]


def state_of(disk: Disk, record: object) -> State:
    """`orphan` only on proof: the directory that held the root is the one of then, in use, and
    the root is not in it. A volume that is not mounted proves nothing."""
    if not isinstance(record, dict) or not isinstance(record.get("root"), str):
        return "away"
    root = parse_path(record["root"])
    try:
        return "live" if stat.S_ISDIR(disk.lstat(root).st_mode) else "away"
    except FileNotFoundError:
        return "orphan" if _parent_proves(disk, os.path.dirname(root), record) else "away"
    except OSError:
        return "away"


def _parent_proves(disk: Disk, parent: bytes, record: dict[str, object]) -> bool:
    try:
        info = disk.lstat(parent)
        if [info.st_dev, info.st_ino] != record.get("parent"):
            return False
        with disk.scandir(os.fsdecode(parent)) as found:
            in_use = next(found, None) is not None
        above = disk.lstat(os.path.dirname(parent))
    except OSError:
        return False
    if info.st_dev != above.st_dev and parent != b"/":
        # the top of a file system: the next disk in the same place has the same numbers
        return record.get("fs") == disk.fs_id(parent) != 0
    return in_use or parent == b"/"


def record_of(store: Store, workspace: str) -> object:
    """The register, or what a snapshot says of the root: then nothing proves it gone.

    A workspace's id is that of its root: a register that names another is damaged, and whatever
    is not to be found at that other place proves nothing.
    """
    try:
        found = json.loads(store.disk.read_file(registry_path(store, workspace)))
        if root_of(parse_path(found["root"])).id == workspace:
            return found
    except (OSError, *NO_RECORD):
        pass
    return _record_in_snapshots(store, workspace)


def _record_in_snapshots(store: Store, workspace: str) -> object:
    ids = store.refs.below(f"{TOP}/{workspace}/s").values()
    for oid in ids:
        try:
            _, _, text = parse_headers(store.read(oid)[1])[1].partition(b"\n\n")
            return {"root": json.loads(text)["root"]}
        except (Damaged, *NO_RECORD):
            continue
    return None
