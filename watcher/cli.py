"""The command line: a table of commands that are imported when chosen, and one edge for errors."""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from click.exceptions import Exit, NoArgsIsHelpError
from click.shell_completion import shell_complete

from core.errors import BadInput, Busy, ConfigError, NoStore, TurnmarkError

from . import __version__
from .context import Context, Unavailable, context_from
from .output import drop_unwritten, fail, forget_stdout, reader_is_gone

OK, FAILED, EXCEPTIONS, USAGE, INTERRUPTED = 0, 1, 3, 64, 130
EXIT_CODES: dict[type[TurnmarkError], int] = {
    NoStore: 10,
    Busy: 11,
    BadInput: 65,
    Unavailable: 69,
    ConfigError: 78,
}
COMMANDS = {
    "run": "Run an agent with its directories watched.",
    "up": "Start the service.",
    "down": "Stop the service.",
    "status": "Show the service, what it watches, and who is at work.",
    "watch": "Have the service watch a directory.",
    "unwatch": "Have the service let go of a directory.",
    "init": "Have an agent tell turnmark when its turns begin and end.",
    "remove": "Take turnmark out of an agent's settings again.",
    "uninstall": "Take everything of turnmark's out again.",
    "doctor": "Look for what is wrong, with a cure for each.",
    "snapshot": "Take a snapshot now.",
    "mark": "Set a rollback point of your own.",
    "pin": "Keep a point from being pruned.",
    "unpin": "Let a pinned point be pruned again.",
    "list": "List the rollback points, newest first.",
    "show": "Show one point: its files, and what it does not hold.",
    "cat": "Print a file as it was.",
    "history": "List the versions of a file.",
    "find": "Find when a file or a text was there.",
    "diff": "Show what changed between two points, or since one.",
    "rollback": "Make the directory equal to a point.",
    "revert": "Take out what turns changed, and keep what came later.",
    "undo": "Take back the last rollback or revert.",
    "redo": "Do an undone rollback again.",
    "turn": "Tell turnmark that an agent's turn begins or ends.",
    "session": "Keep, show and resume the states of agents' sessions.",
    "store": "Sizes, pruning, checking and backup of the store.",
    "config": "Check or show the configuration.",
    "completion": "Print the completion script for a shell.",
    "demo": "See it work, in a throw-away directory.",
}
_MODULES = Path(__file__).with_name("commands")


class Commands(click.Group):
    """The table; a command is there when its module's file is."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in COMMANDS if (_MODULES / f"{name}.py").is_file()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f".commands.{cmd_name}", __package__)
        command: click.Command = module.command
        _share_options(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            import difflib

            near = difflib.get_close_matches(args[0], self.list_commands(ctx), 1)
            more = f" Did you mean '{near[0]}'?" if near else ""
            raise click.UsageError(f"There is no command '{args[0]}'.{more}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name]) for name in self.list_commands(ctx)])


def _set_flag(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and param.name:
        setattr(ctx.find_object(Context), param.name, True)


def _set_home(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    context = ctx.find_object(Context)
    if value and context:
        context.home = Path(os.path.abspath(value))


def _set_config(ctx: click.Context, _param: click.Parameter, value: str | None) -> None:
    context = ctx.find_object(Context)
    if value and context:
        context.config_path, context.config_named = Path(os.path.abspath(value)), True


def _flag(*names: str, text: str) -> click.Option:
    return click.Option(names, is_flag=True, expose_value=False, callback=_set_flag, help=text)


def _share_options(command: click.Command) -> None:
    """--json and --quiet mean the same before and after every command's name."""
    if not any(param.name == "json" for param in command.params):
        command.params.append(_flag("--json", text="Answer with one JSON document."))
        command.params.append(_flag("--quiet", text="Print errors only."))
    if isinstance(command, click.Group):
        for below in command.commands.values():
            _share_options(below)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 ok, 1 failed, 3 done with exceptions, 10 no store, 11 busy, 64 usage, "
    "65 bad input, 69 service unavailable, 78 config, 130 interrupted.",
)
@click.version_option(__version__, message="turnmark %(version)s")
@click.option(
    "--home",
    metavar="DIR",
    expose_value=False,
    callback=_set_home,
    help="Where turnmark keeps its data (or TURNMARK_HOME).",
)
@click.option(
    "--config",
    metavar="FILE",
    expose_value=False,
    callback=_set_config,
    help="The configuration file (or TURNMARK_CONFIG).",
)
def cli() -> None:
    """Snapshots of what an agent does to your files, and exact rollbacks to any turn."""


_share_options(cli)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line; the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    context = context_from(os.environ)
    _make_printable()
    try:
        code = _run(given, context)
        if sys.stdout is not None:
            sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the edge: nothing passes it
        context.json = context.json or "--json" in _options(given)
        return _report(error, context)
    return code


def _run(given: list[str], context: Context) -> int:
    if asked := context.env.get("_TURNMARK_COMPLETE"):
        return shell_complete(cli, {"obj": context}, "turnmark", "_TURNMARK_COMPLETE", asked)
    with cli.make_context("turnmark", given, obj=context) as ctx:
        result = cli.invoke(ctx)
    return result if isinstance(result, int) else OK


def _make_printable() -> None:
    # A stream of the C locale cannot encode every name; an answer must not die of that.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _options(given: list[str]) -> list[str]:
    return given[: given.index("--")] if "--" in given else given


def _report(error: BaseException, context: Context) -> int:
    """The one error handler: what is said, and the exit code."""
    if isinstance(error, Exit):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt | click.Abort):
        fail("Interrupted.", as_json=context.json)
        return INTERRUPTED
    if isinstance(error, click.ClickException):
        return _report_usage(error, context)
    if isinstance(error, TurnmarkError):
        fail(error.message, error.hint, as_json=context.json)
        return next((code for kind, code in EXIT_CODES.items() if isinstance(error, kind)), FAILED)
    if isinstance(error, OSError) and error.errno and not context.env.get("TURNMARK_DEBUG"):
        return _report_system(error, context)
    return _report_bug(error, context)


def _report_usage(error: click.ClickException, context: Context) -> int:
    if isinstance(error, NoArgsIsHelpError):
        error.show()
        return USAGE
    if not isinstance(error, click.UsageError):
        fail(error.format_message(), as_json=context.json)
        return FAILED
    path = error.ctx.command_path if error.ctx else "turnmark"
    fail(error.format_message(), f"See `{path} --help`.", as_json=context.json)
    return USAGE


def _report_system(error: OSError, context: Context) -> int:
    if isinstance(error, BrokenPipeError) and reader_is_gone():
        # Only click's own printing comes here, of help for example.
        forget_stdout()
        return FAILED
    drop_unwritten()
    place = f": {os.fsdecode(error.filename)}" if isinstance(error.filename, str | bytes) else ""
    fail(f"{error.strerror}{place}", as_json=context.json)
    return FAILED


def _report_bug(error: BaseException, context: Context) -> int:
    import traceback

    trace = "".join(traceback.format_exception(error))
    if context.env.get("TURNMARK_DEBUG"):
        sys.stderr.write(trace)
        return FAILED
    what = f"This is a bug in turnmark: {type(error).__name__}: {error}"
    try:
        where = f"The traceback is in {_keep(trace, context.home)}; please report it."
    except OSError:
        where = "Set TURNMARK_DEBUG=1 to see where it happened; please report it."
    fail(" ".join(what.split()), where, as_json=context.json)
    return FAILED


def _keep(trace: str, home: Path) -> Path:
    """Writes the one file of the last bug; the names in a traceback are nobody else's business."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = home / "bug.txt"
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(trace)
    return path
