"""A few edits as an agent, or a person, makes them: texts, names, kinds, permissions."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

NAMES = ("a", "b", "d/a", "d/b", "d/e/a", "x/y")
KINDS = ("write", "write", "line", "line", "delete", "chmod", "move", "dir")


def scribble(dice: random.Random, path: Path) -> None:
    for _ in range(dice.randint(1, 6)):
        name = path / dice.choice(NAMES)
        kind = dice.choice(KINDS)
        if kind == "write" and not name.is_dir():
            _make_room(path, name)
            name.write_text("".join(f"{dice.randint(0, 9)}\n" for _ in range(20)))
        elif kind == "line" and name.is_file():
            lines = name.read_text().splitlines(keepends=True) or [""]
            lines[dice.randrange(len(lines))] = f"{dice.random()}\n"
            name.write_text("".join(lines))
        elif kind == "chmod" and name.exists():
            name.chmod(dice.choice((0o755, 0o700)) if name.is_dir() else 0o600)
        elif kind == "delete" and name.exists():
            shutil.rmtree(name) if name.is_dir() else name.unlink()
        elif kind == "move" and name.exists() and not (path / "moved").exists():
            name.rename(path / "moved")
        elif kind == "dir" and not name.exists():
            _make_room(path, name)
            name.mkdir()


def _make_room(top: Path, name: Path) -> None:
    for above in reversed(name.relative_to(top).parents):
        if (top / above).is_file():
            (top / above).unlink()
    name.parent.mkdir(parents=True, exist_ok=True)
