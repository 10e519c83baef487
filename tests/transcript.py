"""Transcripts: files of commands and of what a person then sees, run again by the tests.

A line `$ turnmark ...` is run in this process, any other `$ ...` by the shell, both in the
workspace. Ids, times and places are replaced by words, columns by two blanks.
TURNMARK_UPDATE=1 writes the files anew.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

FOLDER = Path(__file__).parent / "transcripts"
UPDATE = os.environ.get("TURNMARK_UPDATE") == "1"
"""Read before the fixtures take every TURNMARK_ variable away."""

WORDS = (
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d, ", "TIME, "),
    (r"\b[0-9a-f]{40}\b", "ID"),
    (r"--plan [0-9a-f]{16}\b", "--plan HASH"),
    (r"(?<![0-9a-f.])[0-9a-f]{12}\b|(?<![0-9a-f.])[0-9a-f]{10}\b", "ID"),
    (r"\b(?:now|\d+ (?:s|min) ago|\d+ (?:s|min))(?=$| |,)", "AGE"),
    (r"(?<=\S)  +", "  "),
)


class Answer(Protocol):
    code: int
    out: str
    err: str


def check(name: str, turnmark: Callable[..., Answer], work: Path) -> None:
    """The commands of a transcript still say what it says; else the difference fails the test."""
    path = FOLDER / f"{name}.txt"
    old = path.read_text(encoding="utf-8")
    new = "".join(_run(old, turnmark, work)).lstrip("\n")
    if UPDATE:
        path.write_text(new, encoding="utf-8")
    assert new.splitlines() == old.splitlines()


def _run(text: str, turnmark: Callable[..., Answer], work: Path) -> Iterator[str]:
    """Comments and blank lines stay where they stand before a command."""
    for line in text.splitlines():
        if line.startswith("$ "):
            yield f"{line}\n"
            yield _said(line[2:], turnmark, work)
        elif line.startswith("# "):
            yield f"\n{line}\n"


def _said(command: str, turnmark: Callable[..., Answer], work: Path) -> str:
    words = shlex.split(command)
    if words[0] == "turnmark":
        answer = turnmark(*words[1:])
        code, text = answer.code, answer.out + answer.err
    else:
        done = subprocess.run(
            ["/bin/sh", "-c", command], cwd=work, capture_output=True, check=False
        )
        code, text = done.returncode, (done.stdout + done.stderr).decode()
    text = plain(text, work)
    text += "\n" if text and not text.endswith("\n") else ""
    return text + (f"[{code}]\n" if code else "")


def plain(text: str, work: Path) -> str:
    """Without what differs from run to run."""
    text = text.replace(str(work), "/work")
    for pattern, word in WORDS:
        text = re.sub(pattern, word, text, flags=re.MULTILINE)
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())
