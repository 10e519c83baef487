"""What every command is told: where things are and how to answer; reads no file by itself."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import click

from core.errors import BadInput, TurnmarkError

if TYPE_CHECKING:
    from .config import Config


class Unavailable(TurnmarkError):
    """The service is needed and does not answer."""


@dataclass
class Context:
    """One run of the command line."""

    home: Path
    config_path: Path
    user_home: Path
    env: Mapping[str, str] = field(repr=False)
    config_named: bool = False
    json: bool = False
    quiet: bool = False

    @property
    def store_path(self) -> Path:
        return self.home / "store"

    @cached_property
    def cwd(self) -> Path:
        try:
            return Path.cwd()
        except FileNotFoundError as error:
            raise BadInput(
                "The current directory no longer exists.", "Change to one that does."
            ) from error

    @cached_property
    def config(self) -> Config:
        # Imported here so that commands that need no config do not pay for a YAML parser.
        from .config import load_config

        return load_config(
            self.config_path, named=self.config_named, home=str(self.user_home), env=self.env
        )


def context_from(env: Mapping[str, str]) -> Context:
    """The places that the environment names, or the XDG defaults."""
    user_home = Path(env.get("HOME") or Path.home())
    data = env.get("TURNMARK_HOME")
    config = env.get("TURNMARK_CONFIG")
    return Context(
        home=_absolute(data) if data else _xdg(env, "XDG_DATA_HOME", user_home / ".local/share"),
        config_path=_absolute(config)
        if config
        else _xdg(env, "XDG_CONFIG_HOME", user_home / ".config") / "config.yaml",
        user_home=user_home,
        env=env,
        config_named=bool(config),
    )


def _xdg(env: Mapping[str, str], name: str, default: Path) -> Path:
    # The XDG standard: a value that is not absolute is to be ignored.
    given = Path(env.get(name, ""))
    return (given if given.is_absolute() else default) / "turnmark"


def _absolute(text: str) -> Path:
    return Path(os.path.abspath(text))


pass_context = click.make_pass_decorator(Context)
