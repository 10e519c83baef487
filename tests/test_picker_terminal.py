"""`turnmark rollback` without a point, on real terminals: the picker, and what is there without."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.data_structures import Size
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output.vt100 import Vt100_Output

from core import turns
from core.counts import CountBook
from core.disk import REAL
from core.history import MarkSpec
from core.recorder import Recorder
from core.roots import check_root
from core.store import Store
from core.timeline import Timeline
from tests.screens import TMUX, Screen
from tests.terminal import on_terminal
from tests.trees import File, build, image
from watcher.picking import choices_of
from watcher.picking.app import Picking

needs_tmux = pytest.mark.skipif(TMUX is None, reason="tmux is not installed")
pytestmark = pytest.mark.live

ROOT = Path(__file__).parent.parent
DAY = 86_400_000_000_000
SECOND = 1_000_000_000
PREVIEW = "Rollback to point"


class History:
    """A workspace whose points are three days old, so that their ages do not pass."""

    def __init__(self, base, home, rules):
        self.path = base / "work"
        self.path.mkdir()
        self.store = Store.create(str(home / "turnmark/store"))
        self.root = check_root(REAL, str(self.path), home=str(home), store=self.store.base)
        self.now = time.time_ns() - 3 * DAY - 3600 * SECOND
        self.recorder = Recorder(self.store, self.root, rules, self._clock)

    def _clock(self):
        self.now += SECOND
        return self.now

    def turn(self, prompt, tree):
        turns.begin(self.recorder, "s1", prompt=prompt, agent="codex")
        build(self.path, tree)
        turns.end(self.recorder, "s1")

    def mark(self, label=""):
        self.recorder.take(mark=MarkSpec("manual", label=label))

    def count_lines(self):
        CountBook(self.store).fill(Timeline(self.store, self.root.id).pairs(), 20)


@pytest.fixture
def past(tmp_path, nobody, make_context):
    rules = make_context().config.listed().captured_by(os.fsencode(tmp_path / "work"))
    made = History(tmp_path, nobody, rules)
    yield made
    made.recorder.close()


@pytest.fixture
def lived_in(past):
    """Six turns of all kinds, and an edit of the person's since."""
    build(past.path, {"a.txt": "one\n", "src/app.py": "def f():\n    return 1\n", ".env": "K=1\n"})
    past.mark("before everything")
    past.turn("add the parser", {"parser.py": "import re\n"})
    past.turn("evil \x1b[31mred\x1b[2J \u202e bidi", {"src/app.py": "def f():\n    return 2\n"})
    past.turn("日本語のラベル です", {"wide/日本語.txt": "x\n", ".env": "K=2\n"})
    past.turn("fix all of the tests, and then write down at length what was wrong", {"b": "1\n"})
    past.turn("tests for the PARSER", {"test_parser.py": "assert True\n" * 12})
    past.count_lines()
    build(past.path, {"a.txt": "one\nmine\n", "script": File("#!/bin/sh\n", 0o755)})
    return past


@pytest.fixture
def rollback(nobody):
    """`turnmark rollback` in a tmux; closed when the test is over."""
    opened = []

    def start(work, *words, size=(80, 24), **env):
        names = ("HOME", "TURNMARK_HOME", "TURNMARK_RUNTIME_DIR", "XDG_CONFIG_HOME")
        given = {name: os.environ[name] for name in names}
        opened.append(Screen(work, "rollback", *words, size=size, env={**given, **env}))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


@needs_tmux
def test_the_picker_looks_as_it_was_looked_at(lived_in, rollback):
    before = image(lived_in.path)
    with lived_in.store.workspace_lock(lived_in.root.id):  # whoever looks waits for nobody
        shown = rollback(lived_in.path)
        shown.looks_like("picker")
        shown.press("Down", "Down", "Down")
        shown.looks_like("picker_moved")
        shown.press(*["C-f"] * 9)
        shown.looks_like("picker_scrolled")
        shown.write("PARS")
        shown.looks_like("picker_filtered")
        shown.write("zz")
        shown.looks_like("picker_empty")
    shown.press("Escape")
    assert shown.code() == 1
    assert shown.text() == "Nothing was changed.\n\nPane is dead" or shown.until_shows(
        "Nothing was"
    )
    assert image(lived_in.path) == before


@needs_tmux
def test_a_narrow_or_tiny_terminal_shows_what_it_can(lived_in, rollback):
    shown = rollback(lived_in.path, size=(40, 24))
    shown.until_shows(f"{PREVIEW} 1")
    shown.press("Down", "Down")
    shown.looks_like("picker_40x24")
    for columns, rows in ((40, 8), (24, 5), (16, 2)):
        shown.resize(columns, rows)
        shown.looks_like(f"picker_{columns}x{rows}")
    shown.press("C-c")
    assert shown.code() == 130


@needs_tmux
def test_what_is_chosen_is_shown_asked_about_and_done(lived_in, rollback):
    shown = rollback(lived_in.path)
    shown.until_shows("Roll back to")
    shown.write("add the")
    shown.until_shows("1 of 6")
    shown.press("Enter")
    asked = shown.until_shows("Go on? [y/N]")
    assert "Rollback to point 5" in asked
    assert (lived_in.path / "parser.py").exists()
    shown.press("y", "Enter")
    assert shown.code() == 0
    assert not (lived_in.path / "parser.py").exists()
    assert (lived_in.path / "a.txt").read_text() == "one\n"


@needs_tmux
def test_the_point_that_was_chosen_is_meant_whatever_its_number_is_by_now(past, rollback):
    for number in range(3):
        build(past.path, {"a": f"{number}"})
        past.mark(f"state {number}")
    shown = rollback(past.path)
    shown.until_shows("state 1")
    shown.press("Down")
    shown.until_shows("> 2")
    build(past.path, {"a": "late"})
    past.mark("made meanwhile")
    shown.press("Enter")
    shown.until_shows('Rollback to point 3, "state 1"', "Go on?")
    shown.press("y", "Enter")
    assert shown.code() == 0
    assert (past.path / "a").read_text() == "1"


@needs_tmux
def test_what_is_typed_into_the_picker_in_one_go_is_no_answer_to_the_question(past, rollback):
    build(past.path, {"a": "1"})
    past.mark("first")
    build(past.path, {"a": "2"})
    shown = rollback(past.path)
    shown.until_shows(PREVIEW)
    shown.write("\ry\r")
    shown.until_shows("Go on? [y/N]")
    shown.press("Enter")
    assert shown.code() == 1
    assert (past.path / "a").read_text() == "2"


# Colours


@pytest.mark.parametrize(
    ("env", "there"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm-mono"}, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "nobody-knows-this-terminal"}, True),
    ],
)
def test_colours_are_where_the_terminal_and_the_person_want_them(env, there):
    # In a process of its own: of terminals a process knows but the first that it asked about.
    script = f"from watcher.picking.terminals import has_colour; print(has_colour({env}))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, check=True)
    assert done.stdout.decode() == f"{there}\n"


class OfADiff:
    def load(self, key, wanted):
        return [[("class:added", "+new")], [("class:deleted", "-old")]]

    def close(self):
        pass


@pytest.mark.parametrize("colour", [True, False])
def test_without_colour_there_is_none_and_the_chosen_row_is_seen_all_the_same(lived_in, colour):
    timeline = Timeline(lived_in.store, lived_in.root.id)
    choices = tuple(choices_of(timeline, timeline.points()))
    written = io.StringIO()
    output = Vt100_Output(written, lambda: Size(24, 80), term="xterm")
    with create_pipe_input() as typed, create_app_session(typed, output):
        picking = Picking(choices, OfADiff(), colour=colour)

        def leave_when_drawn(_):
            if "+new" in written.getvalue():
                typed.send_text("q")

        picking.app.after_render += leave_when_drawn
        assert picking.run() is None
    shown = written.getvalue()
    assert ("\x1b[0;32m+new" in shown, "\x1b[0;31m-old" in shown) == (colour, colour)
    assert "> 1" in shown
    assert "\x1b[31mred" not in shown
    assert "evil \\x1b[31mre" in shown


def test_whatever_a_row_holds_is_safe_to_show(past):
    turns.begin(past.recorder, "session \x1b[2J\u202e", agent="agent\x07")
    timeline = Timeline(past.store, past.root.id)
    (choice,) = choices_of(timeline, timeline.points())
    assert "agent\\x07 session \\x1b[2J\\u202e" in choice.cells


# Where there can be none


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_terminal_that_cannot_draw_gets_the_list(lived_in, term):
    before = image(lived_in.path)
    shown, code = on_terminal(lived_in.path, "rollback", env={"TERM": term})
    assert code == 64
    assert "add the parser" in shown
    assert "Name a point of the list, for example: turnmark rollback 1" in shown
    assert "pip install" not in shown
    assert "\x1b[?1049h" not in shown
    assert image(lived_in.path) == before


def test_without_the_optional_part_the_list_says_once_how_to_have_it(lived_in, tmp_path):
    (tmp_path / "without").mkdir()
    hide = "import sys; sys.modules['prompt_toolkit'] = None\n"
    (tmp_path / "without/sitecustomize.py").write_text(hide)
    path = f"{tmp_path}/without:{os.getcwd()}"
    shown, code = on_terminal(lived_in.path, "rollback", env={"PYTHONPATH": path})
    assert (code, shown.count("pip install prompt_toolkit")) == (64, 1)
    assert "add the parser" in shown


def test_a_long_list_is_cut_and_says_where_the_rest_is(past):
    for number in range(23):
        build(past.path, {"a": f"{number}"})
        past.mark(f"state {number}")
    shown, _ = on_terminal(past.path, "rollback", env={"TERM": "dumb"})
    assert "state 3" in shown
    assert "state 2\n" not in shown
    assert "... 3 more: turnmark list" in shown


def test_where_there_is_no_point_there_is_nothing_to_choose(past):
    build(past.path, {"a": "1"})
    past.recorder.take()
    shown, code = on_terminal(past.path, "rollback")
    assert (code, "There are no points yet" in shown) == (65, True)
    assert "\x1b[?1049h" not in shown


@pytest.mark.parametrize("words", [(), ("--json",), ("--mine-stays",)])
def test_where_nobody_can_be_asked_it_stays_a_usage_error(turnmark, lived_in, monkeypatch, words):
    monkeypatch.chdir(lived_in.path)
    refused = turnmark("rollback", *words)
    assert (refused.code, refused.out) == (64, "")
    assert "pass --yes" in refused.err


def test_without_a_point_the_newest_is_meant_where_nobody_is_to_choose(
    turnmark, lived_in, monkeypatch
):
    monkeypatch.chdir(lived_in.path)
    planned = json.loads(turnmark("rollback", "--dry-run", "--json").out)["plan"]
    assert planned == json.loads(turnmark("rollback", "@", "--dry-run", "--json").out)["plan"]
    assert turnmark("rollback", "--plan", planned).code == 0
