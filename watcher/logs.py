"""Where the service's log goes: a file of bounded size, or stderr as journald likes it."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from logging.handlers import RotatingFileHandler
from pathlib import Path

from core.model import rfc3339

from .config import Log
from .output import clean

MEGABYTE = 1 << 20
LEVELS = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}


def log_path(home: Path) -> Path:
    return home / "log" / "turnmark.log"


class _Plain(logging.Formatter):
    """One line for one entry, whatever names it holds; times in UTC."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return rfc3339(int(record.created * 1e9))

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(clean, super().format(record).splitlines()))


class _Journal(logging.Formatter):
    """journald keeps the time by itself and reads the level from a prefix."""

    def format(self, record: logging.LogRecord) -> str:
        level = LEVELS[record.levelname.lower()]
        return "\n".join(f"<{level}>{clean(line)}" for line in super().format(record).splitlines())


def to_file(home: Path, settings: Log) -> None:
    path = log_path(home)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handler = RotatingFileHandler(
        path,
        maxBytes=settings.max_size_mb * MEGABYTE,
        backupCount=settings.keep,
        encoding="utf-8",
        errors="backslashreplace",
    )
    os.chmod(path, 0o600)
    _use(handler, _Plain(), settings)


def to_stderr(env: Mapping[str, str], settings: Log) -> None:
    formatter = _Journal() if "JOURNAL_STREAM" in env else _Plain()
    _use(logging.StreamHandler(sys.stderr), formatter, settings)


def _use(handler: logging.Handler, formatter: logging.Formatter, settings: Log) -> None:
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    change(settings)


def change(settings: Log) -> None:
    """The size and number of files too, where there are files."""
    root = logging.getLogger()
    root.setLevel(settings.level.upper())
    for handler in root.handlers:
        if isinstance(handler, RotatingFileHandler):
            handler.maxBytes = settings.max_size_mb * MEGABYTE
            handler.backupCount = settings.keep
