"""Where one campaign takes place: a workspace, its store, and what around them must not change.

The oracle's directory lies elsewhere, so that a cut of the ground's file system does not reach it.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from core.disk import REAL
from core.roots import Root, check_root
from core.store import Store
from tests.trees import Image, image

from .child import in_child, wait_for
from .volume import sync_for_certain

CANARIES = {"outside/secret": "not yours", "outside/d/e": "nor this", "work/.git/config": "[core]"}


@dataclass
class Ground:
    """The paths of one; `cut` says that its file system may lose what was not synced."""

    base: Path
    told: Path
    cut: bool = False
    oracle_name: str = "oracle"
    tree: Path = field(init=False)
    store: str = field(init=False)

    def __post_init__(self) -> None:
        self.tree = self.base / "work"
        self.store = f"{self.base}/home/store"

    @property
    def oracle(self) -> Path:
        return self.told / self.oracle_name

    @property
    def root(self) -> Root:
        return check_root(REAL, str(self.tree), home="/nonexistent", store=self.store)

    def build(self, *, with_store: bool = True) -> Ground:
        """The empty store, the empty workspace, and the canaries with a link to them."""
        self.told.mkdir(parents=True)
        for name, text in CANARIES.items():
            path = self.base / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (self.tree / "way-out").symlink_to("../outside/d")
        self.settle()
        if with_store:
            assert not wait_for(in_child(partial(Store.create, self.store)))
        return self

    def settle(self) -> None:
        """What the user's own programs wrote is on disk, whatever comes."""
        if self.cut:
            sync_for_certain(self.base)

    def canaries(self) -> list[tuple[object, ...]]:
        """Everything about them that a write, or a replacement, would change."""
        found: list[tuple[object, ...]] = []
        for top in (self.base / "outside", self.tree / ".git"):
            for path in (top, *sorted(top.rglob("*"))):
                info = path.lstat()
                data = path.read_bytes() if path.is_file() else b""
                name = str(path.relative_to(self.base))
                # Not the change time of directories: the log of a cut file system may move it.
                found.append((name, info.st_ino, info.st_mode, info.st_mtime_ns, data))
        return found

    def image(self) -> Image:
        return image(self.tree)

    def keep_image(self, seen: Image) -> str:
        """Leaves an image where the driver finds it; returns its name."""
        name = digest(seen)
        path = self.told / name
        if not path.exists():
            fresh = self.told / f"{name}.{os.getpid()}"
            fresh.write_bytes(pickle.dumps(seen))
            fresh.rename(path)
        return name

    def kept_image(self, name: str) -> Image:
        found: Image = pickle.loads((self.told / name).read_bytes())
        return found


def digest(seen: Image) -> str:
    return hashlib.sha256(repr(sorted(seen.items())).encode()).hexdigest()
