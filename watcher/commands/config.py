"""`turnmark config`: is the file right, and what is in force."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import yaml

from core.disk import REAL
from core.errors import BadInput
from core.model import show_path
from core.roots import check_root

from ..cli import EXCEPTIONS, OK
from ..config import as_plain, example_text, load_config
from ..context import Context, pass_context
from ..output import answer


@click.group()
def command() -> None:
    """Check or show the configuration."""


@command.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@pass_context
def check(context: Context, file: Path | None) -> int:
    """Say whether FILE (default: the one in use) has a mistake, and where."""
    path = file or context.config_path
    named = file is not None or context.config_named
    config = load_config(path, named=named, home=str(context.user_home), env=context.env)
    count, exists = len(config.watch), path.exists()
    entries = f"{count} watch {'entry' if count == 1 else 'entries'}"
    says = f"{path}: ok, {entries}" if exists else f"{path}: not there, the defaults are in force"
    home, store = str(context.user_home), str(context.store_path)
    unusable = dict(_unusable(config.listed().rules, home, store))
    data = {"ok": True, "file": str(path), "exists": exists, "watch": count}
    lines = [f"Not watched: {reason}" for reason in unusable.values()]
    answer(context, {**data, "unusable": unusable}, says, *lines)
    return EXCEPTIONS if unusable else OK


def _unusable(roots: Iterable[bytes], home: str, store: str) -> Iterator[tuple[str, str]]:
    """The directories of the watch list that cannot be workspaces, and why."""
    for root in roots:
        try:
            check_root(REAL, os.fsdecode(root), home=home, store=store)
        except BadInput as error:
            yield show_path(root), error.message


@command.command()
@click.option("--example", is_flag=True, help="Print the documented example instead.")
@pass_context
def show(context: Context, example: bool) -> None:
    """Print the configuration in force, as YAML that could be the file."""
    if example:
        answer(context, {"example": example_text()}, example_text().rstrip("\n"))
        return
    plain = as_plain(context.config)
    path = context.config_path
    lines = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=10_000).rstrip("\n")
    answer(context, {"file": str(path), "exists": path.exists(), "config": plain}, lines)
