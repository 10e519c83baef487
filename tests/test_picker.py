"""The picker without a terminal: what the filter leaves, what a screen shows, what is loaded."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from core.model import Counts, Oid, Point
from watcher.commands.list import row_of
from watcher.output import clean, width
from watcher.picking.app import Picking
from watcher.picking.choices import Choice, Picker
from watcher.picking.layout import cut, padded, rooms, screen
from watcher.picking.loader import GivenUp, Loader

ROOT = Path(__file__).parent.parent
EVIL = "evil \x1b[2J\u202e\x00 label"
WIDE = "日本語のラベル"


def choice(number, label="", **more):
    oid = Oid(bytes([number % 256]) * 20)
    point = Point(
        number, oid, number, 0, "turn", label, "s1", number, agent="codex", counts=Counts(1, 2, 3)
    )
    cells = tuple(clean(str(cell)) for cell in row_of(point))
    return Choice(point, f"mark{number}", cells, **more)


def picker(*labels):
    return Picker(tuple(choice(n, label) for n, label in enumerate(labels, 1)))


def numbers(found):
    return [one.point.n for one in found.shown]


def texts(seen):
    return ["".join(text for _, text in line) for line in seen.lines]


# The filter


@pytest.mark.parametrize(
    ("typed", "left"),
    [
        ("", [1, 2, 3, 4]),
        ("PARSE", [1, 3]),
        ("tests parse", [3]),
        ("parse tests", [3]),
        ("  ", [1, 2, 3, 4]),
        ("2", [2]),
        ("turn 4", [4]),
        ("CODEX", [1, 2, 3, 4]),
        ("0202", [2]),
        ("e\u0301tage", [4]),
        ("nothing", []),
    ],
)
def test_a_filter_leaves_what_fits_every_word(typed, left):
    found = picker("add the parser", "tidy up", "Tests of the PARSER", "une étage").with_more(typed)
    assert numbers(found) == left


def test_the_chosen_one_stays_chosen_while_it_fits():
    found = picker("aa", "ab", "b").moved(1).with_more("a")
    assert found.chosen.point.n == 2
    found = found.with_more("a")
    assert found.chosen.point.n == 1
    assert found.without_last().chosen.point.n == 1
    assert found.with_more("x").chosen is None
    assert found.with_more("x").without_last().chosen.point.n == 1


def test_what_is_typed_can_be_taken_back():
    found = picker("a").with_more("two words ")
    assert found.without_last_word().typed == "two "
    assert found.without_last_word().without_last_word().typed == ""
    assert found.without_last().typed == "two words"
    assert picker("a").without_last().typed == ""


def test_what_is_pasted_becomes_one_harmless_line():
    assert picker("a").with_more("a\r\n\x1b[2J\u202eb\tc").typed == "a   [2J b c"


def test_moves_end_at_the_ends_and_begin_a_new_preview():
    found = picker("a", "b", "c").scrolled(5, 10)
    assert (found.scroll, found.moved(1).scroll) == (5, 0)
    assert found.moved(99).at == 2
    assert found.moved(-99).at == 0
    assert found.moved(-99).scroll == 5  # not moved at all
    assert picker("a").with_more("zz").moved(1).chosen is None
    assert found.scrolled(99, 10).scroll == 10
    assert found.scrolled(99, 10).scrolled(-1, 3).scroll == 2  # the screen has grown


# The screen


def test_a_preview_that_is_longer_says_so_until_its_end():
    lines = [[("", f"line {n}")] for n in range(40)]
    found = picker("a")
    seen = screen(found, lines, 80, 24)
    assert any("more lines: ^F" in text for text in texts(seen))
    seen = screen(found.scrolled(99, seen.last_scroll), lines, 80, 24)
    assert "line 39" in texts(seen)[-2]
    assert not any("more lines" in text for text in texts(seen))


def test_pages_of_the_preview_leave_no_line_out():
    lines = [[("", f"line {n}")] for n in range(40)]
    found, shown = picker("a"), set()
    for _ in range(10):
        seen = screen(found, lines, 80, 24)
        shown |= set(texts(seen))
        found = found.scrolled(seen.preview_page, seen.last_scroll)
    assert {f"line {n}" for n in range(40)} <= shown


def test_numbers_are_never_cut_on_a_usual_screen():
    seen = screen(picker("x" * 200), [], 80, 24)
    assert all(f"  {number}" in texts(seen)[2] for number in (1, 2, 3))
    assert "..." in texts(seen)[2]


@pytest.mark.parametrize("height", range(1, 40))
def test_the_rooms_fill_the_screen_and_the_rows_always_have_one(height):
    for choices in (1, 3, 1000):
        room = rooms(height, choices)
        parts = (room.filter, room.heading, room.rows, room.rule, room.preview, room.ways)
        assert sum(parts) == height
        assert room.rows >= 1
        assert min(parts) >= 0


LABELS = st.lists(st.text(max_size=40) | st.sampled_from([EVIL, WIDE]), min_size=1, max_size=12)


@given(
    LABELS,
    st.text(max_size=20),
    st.integers(1, 120),
    st.integers(1, 40),
    st.lists(st.integers(-3, 9)),
)
def test_any_screen_holds_its_size_and_shows_the_chosen_one(labels, typed, columns, height, moves):
    found = picker(*labels).with_more(typed)
    for by in moves:
        found = found.moved(by).scrolled(by, 9)
    preview = [[("class:added", "+"), ("", clean(label))] for label in labels]
    seen = screen(found, preview, columns, height)
    shown = texts(seen)
    assert len(shown) == height
    assert max(map(width, shown)) <= columns
    assert 0 <= seen.cursor[0] < columns
    assert all(clean(text) == text for text in shown)
    assert sum(text.startswith(">") for text in shown) >= bool(found.chosen)


@given(st.text(max_size=20), st.integers(-3, 30))
def test_a_cell_has_exactly_its_width(text, room):
    text = clean(text)
    assert width(padded(text, room)) == max(0, room)
    assert cut(text, width(text)) == text


# The loader


class Slow:
    """A source whose loads wait for the test, and look whether they are still wanted."""

    def __init__(self) -> None:
        self.begun: queue.Queue[str] = queue.Queue()
        self.go_on: queue.Queue[str] = queue.Queue()
        self.closed_by = ""

    def load(self, key, wanted):
        self.begun.put(key)
        while self.go_on.get(timeout=20) != "end":
            if wanted.is_stale():
                raise GivenUp
        return f"of {key}"

    def close(self):
        self.closed_by = threading.current_thread().name


def test_a_stale_load_is_given_up_and_never_shown():
    source, told = Slow(), threading.Event()
    loader = Loader(source, told.set)
    loader.want("first")
    assert source.begun.get(timeout=20) == "first"
    loader.want("second")
    source.go_on.put("look")
    assert source.begun.get(timeout=20) == "second"
    source.go_on.put("end")
    assert told.wait(20)
    assert (loader.found("first"), loader.found("second")) == (None, "of second")
    loader.close()
    assert source.closed_by == "preview"


def test_nobody_waits_for_a_load_to_ask_for_another_or_to_leave():
    source = Slow()
    loader = Loader(source, lambda: None)
    loader.want("one")
    source.begun.get(timeout=20)
    for number in range(1000):
        loader.want(str(number))
    assert loader.found("999") is None
    source.go_on.put("look")
    loader.close()
    assert source.closed_by == "preview"


def test_nothing_is_loaded_while_somebody_goes_on_typing(monkeypatch):
    monkeypatch.setattr("watcher.picking.loader.PAUSE", 20)
    source = Slow()
    loader = Loader(source, lambda: None)
    for key in "abc":
        loader.want(key)
        with pytest.raises(queue.Empty):
            source.begun.get(timeout=0.05)
    loader.close()
    assert source.closed_by == "preview"


# Keys


class Instant:
    """A source of one line; or of a bug."""

    def __init__(self, error=None):
        self.error = error

    def load(self, key, wanted):
        if self.error:
            raise self.error
        return [[("", f"preview of {key.point.n}")]]

    def close(self):
        pass


def pick(keys, source=None, labels=("first", "second", "third")):
    with create_pipe_input() as typed, create_app_session(typed, DummyOutput()):
        if keys:
            typed.send_text(keys)
        found = Picking(picker(*labels).choices, source or Instant(), colour=True).run()
    return found and found.point.n


@pytest.mark.parametrize(
    ("keys", "number"),
    [
        ("\r", 1),
        ("\x1b[B\r", 2),
        ("\x0e\x0e\x10\r", 2),
        ("\x1b[F\r", 3),
        ("\x1b[F\x1b[H\r", 1),
        ("\x1b[6~\r", 3),
        ("thi\r", 3),
        ("third\x15\x1b[B\r", 3),  # the last stays chosen when the filter goes
        ("second x\x17\r", 2),
        ("nothing\r\x7f\x7f\x7f\x7f\x7f\x7f\x7f\r", 1),
        ("\x1b[200~sec\nond\x1b[201~\x15\r", 2),
        ("\x1b[200~sec\x1b[201~\r", 2),
        ("q", None),
        ("sq\x7f\x7f\x1b[B\r", 2),
        ("\x1b", None),
        ("\x04", None),
    ],
)
def test_keys_choose_or_leave(keys, number):
    assert pick(keys) == number


def test_ctrl_c_interrupts():
    with pytest.raises(KeyboardInterrupt):
        pick("\x03")


def test_a_bug_in_a_preview_ends_the_picker_and_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        pick("", Instant(ZeroDivisionError()))


# What the others pay


def test_no_other_command_pays_for_the_picker():
    script = (
        "import sys; from watcher.cli import cli; import click; context = click.Context(cli); "
        "names = [cli.get_command(context, name) for name in cli.list_commands(context)]; "
        "heavy = {'prompt_toolkit', 'curses', 'asyncio', 'watcher.picking'}; "
        "print(len(names) > 20, sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "True []\n"
