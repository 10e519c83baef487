"""The edge to people and programs: exit codes, what is said where, and what is not loaded."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

import core.errors
from watcher import cli
from watcher.context import Unavailable

ROOT = Path(__file__).parent.parent
FLAGS = ("--json", "--quiet")
ERRORS = [
    (core.errors.NoStore("m", "h"), 10),
    (core.errors.Busy("m", "h"), 11),
    (core.errors.BadInput("m", "h"), 65),
    (Unavailable("m", "h"), 69),
    (core.errors.ConfigError("m", "h"), 78),
    (core.errors.Damaged("m", "h"), 1),
    (core.errors.Refused("m", "h"), 1),
    (PermissionError(13, "Permission denied", "/x"), 1),
    (KeyboardInterrupt(), 130),
    (click.Abort(), 130),
    (ValueError("m"), 1),
]


@pytest.fixture
def raising(monkeypatch):
    """Makes `turnmark demo` a command that raises, or returns, what the test wants."""

    def install(outcome):
        @click.command()
        def command():
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

        cli._share_options(command)
        monkeypatch.setattr(cli.Commands, "list_commands", lambda *_: ["demo"])
        monkeypatch.setattr(cli.Commands, "get_command", lambda *_: command)

    return install


def python(*arguments, **options):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


@pytest.mark.parametrize(("error", "code"), ERRORS, ids=lambda value: type(value).__name__)
def test_every_kind_of_error_has_its_exit_code(turnmark, raising, error, code):
    raising(error)
    result = turnmark("demo")
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith("error: ")
    assert "Traceback" not in result.err


@pytest.mark.parametrize(("error", "code"), ERRORS, ids=lambda value: type(value).__name__)
def test_an_error_with_json_is_one_document_on_stderr(turnmark, raising, error, code):
    raising(error)
    result = turnmark("demo", "--json")
    assert (result.code, result.out) == (code, "")
    assert set(json.loads(result.err)) == {"error", "hint"}


def test_a_hint_is_said_below_its_error(turnmark, raising):
    raising(core.errors.NoStore("There is none.\x1b[2J", "Make one."))
    assert turnmark("demo").err == "error: There is none.\\x1b[2J\nhint: Make one.\n"


def test_a_command_names_its_own_exit_code(turnmark, raising):
    raising(3)
    assert turnmark("demo").code == 3


@pytest.mark.parametrize(
    "line",
    [
        "--nope",
        "nope",
        "config check --nope",
        "config nope",
        "completion tcsh",
        "completion",
        "--home",
    ],
)
def test_wrong_usage_is_64_and_never_2(turnmark, line):
    result = turnmark(*line.split())
    assert (result.code, result.out) == (64, "")
    assert "hint: See `turnmark" in result.err


@pytest.mark.parametrize("line", ["", "config"])
def test_no_command_is_usage_too_and_shows_the_help(turnmark, line):
    result = turnmark(*line.split())
    assert (result.code, result.out) == (64, "")
    assert "Commands:" in result.err


def test_wrong_usage_with_json_is_json(turnmark):
    assert "nope" in json.loads(turnmark("config", "check", "--nope", "--json").err)["error"]


def test_a_mistyped_command_is_guessed(turnmark):
    assert "Did you mean 'config'?" in turnmark("confg").err


@pytest.mark.parametrize("line", ["-h", "--help", "config -h", "config check --help"])
def test_help_is_on_stdout(turnmark, line):
    result = turnmark(*line.split())
    assert (result.code, result.err) == (0, "")
    assert "Usage: turnmark" in result.out


@pytest.mark.parametrize(
    "line", ["--json config check", "config --json check", "config check --json"]
)
def test_json_may_stand_anywhere(turnmark, line):
    result = turnmark(*line.split())
    assert result.code == 0
    assert json.loads(result.out)["schema"] == 1


@pytest.mark.parametrize("line", ["--quiet config show", "config show --quiet"])
def test_quiet_may_stand_anywhere(turnmark, line):
    result = turnmark(*line.split())
    assert (result.code, result.out, result.err) == (0, "", "")


def test_one_run_does_not_set_the_flags_of_the_next(turnmark):
    assert turnmark("--json", "config", "check").out.startswith("{")
    assert not turnmark("config", "check").out.startswith("{")


def test_only_commands_whose_file_is_there_are_listed(turnmark):
    there = {path.stem for path in (ROOT / "watcher/commands").glob("[!_]*.py")}
    shown = turnmark("--help").out.partition("Commands:")[2].partition("Exit codes")[0]
    listed = set(re.findall(r"^  (\w+)", shown, re.MULTILINE))
    assert listed == there & set(cli.COMMANDS)


def test_every_command_loads_has_help_and_takes_the_shared_flags():
    context = click.Context(cli.cli)
    for name in cli.cli.list_commands(context):
        command = cli.cli.get_command(context, name)
        assert command is not None
        assert command.help, name
        assert {"json", "quiet"} <= {param.name for param in command.params}, name


def test_the_home_is_where_the_option_the_variable_or_xdg_says(make_context, nobody, monkeypatch):
    assert make_context().store_path == nobody / "turnmark/store"
    monkeypatch.delenv("TURNMARK_HOME")
    assert make_context().home == nobody / "data/turnmark"
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    assert make_context().home == nobody / ".local/share/turnmark"
    assert make_context().config_path == nobody / "config/turnmark/config.yaml"


def test_a_config_that_was_named_must_be_there(turnmark, tmp_path, monkeypatch):
    assert turnmark("config", "check").code == 0
    assert turnmark("--config", str(tmp_path / "none"), "config", "check").code == 78
    monkeypatch.setenv("TURNMARK_CONFIG", str(tmp_path / "none"))
    assert turnmark("config", "show").code == 78


def test_config_check_names_the_mistake(turnmark, tmp_path):
    (tmp_path / "c.yaml").write_text("enabled: true\nwach: []\n")
    result = turnmark("config", "check", str(tmp_path / "c.yaml"))
    assert result.code == 78
    assert result.err.splitlines() == [
        f"error: {tmp_path}/c.yaml:2:1: Unknown key 'wach'.",
        "hint: Did you mean 'watch'?",
    ]


def test_config_check_names_the_directories_that_cannot_be_watched(turnmark, tmp_path):
    (tmp_path / "c.yaml").write_text(f"watch: [/, {tmp_path}/none, {tmp_path}]\n")
    result = turnmark("config", "check", str(tmp_path / "c.yaml"))
    assert (result.code, result.err) == (3, "")
    assert result.out.splitlines()[1:] == [
        "Not watched: / cannot be a workspace: it is the root of the file system.",
        f"Not watched: {tmp_path}/none does not exist.",
    ]
    told = json.loads(turnmark("config", "check", str(tmp_path / "c.yaml"), "--json").out)
    assert (told["ok"], list(told["unusable"])) == (True, ["/", f"{tmp_path}/none"])


def test_config_show_prints_a_file_that_means_the_same(turnmark, tmp_path):
    (tmp_path / "c.yaml").write_text("watch: [{path: ~/x, exclude: [a/]}]\nlog: {keep: 9}\n")
    shown = turnmark("--config", str(tmp_path / "c.yaml"), "config", "show").out
    (tmp_path / "d.yaml").write_text(shown)
    assert turnmark("--config", str(tmp_path / "d.yaml"), "config", "show").out == shown
    assert "keep: 9" in shown


def test_config_show_prints_the_documented_example(turnmark):
    assert turnmark("config", "show", "--example").out == (ROOT / "config.example.yaml").read_text()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(turnmark, shell):
    assert "_TURNMARK_COMPLETE" in turnmark("completion", shell).out


def test_a_shell_is_told_the_commands(turnmark, monkeypatch):
    monkeypatch.setenv("_TURNMARK_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "turnmark conf")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert turnmark().out == "plain,config\n"


def test_a_bug_is_said_to_be_one_and_its_traceback_kept_private(turnmark, raising, nobody):
    raising(ZeroDivisionError("x"))
    result = turnmark("demo")
    kept = nobody / "turnmark/bug.txt"
    assert "bug in turnmark: ZeroDivisionError: x" in result.err
    assert str(kept) in result.err
    assert "Traceback" in kept.read_text()
    assert kept.stat().st_mode & 0o777 == 0o600
    assert kept.parent.stat().st_mode & 0o777 == 0o700


def test_a_bug_is_told_also_where_nothing_can_be_written(turnmark, raising, nobody):
    (nobody / "turnmark").touch()
    raising(ZeroDivisionError("x"))
    assert "TURNMARK_DEBUG=1" in turnmark("demo").err


def test_debugging_shows_the_traceback(turnmark, raising, monkeypatch):
    monkeypatch.setenv("TURNMARK_DEBUG", "1")
    raising(ZeroDivisionError("x"))
    result = turnmark("demo")
    assert result.code == 1
    assert "Traceback" in result.err


def test_the_version_costs_no_library_that_it_does_not_need():
    script = (
        "import sys; from watcher.cli import main; code = main(['--version']); "
        "heavy = {'yaml', 'rich', 'sqlite3', 'watchdog', 'subprocess', 'socket', 'asyncio', "
        "'prompt_toolkit', 'curses'}; "
        "print(sorted(heavy & set(sys.modules))); sys.exit(code)"
    )
    done = python("-c", script)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["turnmark 0.1.0", "[]"]


def printing_to(fd: int, line: str, buffering: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "watcher", *line.split()],
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": buffering},
        stdout=fd,
        stderr=subprocess.PIPE,
        check=False,
    )


@pytest.mark.parametrize("buffering", ["", "1"])
@pytest.mark.parametrize(
    ("line", "code"), [("config show", 0), ("config show --json", 0), ("--help", 1)]
)
def test_a_reader_that_goes_away_is_passed_over_in_silence(line, code, buffering):
    read, write = os.pipe()
    os.close(read)
    done = printing_to(write, line, buffering)
    os.close(write)
    assert (done.returncode, done.stderr) == (code, b"")


def test_a_pipe_that_breaks_elsewhere_is_no_success(turnmark, raising):
    raising(BrokenPipeError(32, "Broken pipe"))
    result = turnmark("demo")
    assert (result.code, result.err) == (1, "error: Broken pipe\n")


def test_bytes_and_text_are_put_in_order():
    script = "from watcher.output import put; put('a'); put(b'\\xff'); put('b')"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, check=True)
    assert done.stdout == b"a\xffb"


@pytest.mark.parametrize("buffering", ["", "1"])
@pytest.mark.parametrize("line", ["config show", "--help"])
def test_a_full_disk_is_no_success(line, buffering):
    with open("/dev/full", "w") as full:
        done = printing_to(full.fileno(), line, buffering)
    assert (done.returncode, done.stderr) == (1, b"error: No space left on device\n")


def test_the_current_directory_may_be_gone(tmp_path):
    script = (
        "import os; os.rmdir(os.getcwd()); from watcher.cli import main; main(['config', 'check'])"
    )
    (tmp_path / "gone").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path / "gone",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("ignored", [False, True])
def test_ctrl_c_while_modules_are_loaded_ends_without_a_word(tmp_path, ignored):
    (tmp_path / "click.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nraise SystemExit('went on')\n"
    )
    begin = "import signal; signal.signal(signal.SIGINT, signal.{}); ".format(
        "SIG_IGN" if ignored else "default_int_handler"
    )
    script = begin + "import sys; from watcher.__main__ import main; sys.exit(main())"
    done = python("-c", script, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stderr) == ((1, "went on\n") if ignored else (130, ""))


def test_the_installed_command_is_the_one_that_loads_with_care():
    with open(ROOT / "pyproject.toml", "rb") as file:
        scripts = tomllib.load(file)["project"]["scripts"]
    assert scripts == {"turnmark": "watcher.__main__:main"}
    done = python("-m", "watcher", "--version")
    assert (done.returncode, done.stdout) == (0, "turnmark 0.1.0\n")


def test_a_foreign_core_is_named_together_with_the_cure(tmp_path):
    (tmp_path / "core").mkdir()
    (tmp_path / "core/__init__.py").write_text("raise SystemExit('this is a decoy')")
    done = python("-m", "watcher", "--version", env={**os.environ, "PYTHONPATH": ""})
    assert done.returncode == 0
    script = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; import watcher"
    done = python("-c", script)
    assert f"Python finds {tmp_path}/core" in done.stderr
    assert "-EP -m watcher" in done.stderr
    assert "decoy" not in done.stderr


def test_an_agent_that_nobody_knows_is_answered_with_those_there_are(turnmark):
    result = turnmark("init", "clod")
    known = "error: There is no agent 'clod'; those known are claude-code, codex,"
    assert (result.code, result.err.startswith(known)) == (64, True)
    assert result.err.count("codex") == 1


def test_whoever_names_a_snapshot_is_told_how_a_point_gets_a_name(turnmark):
    result = turnmark("snapshot", "-m", "before")
    assert result.code == 64
    assert "`turnmark mark -m LABEL`" in result.err
