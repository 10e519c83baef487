"""What reaches a terminal or a program."""

from __future__ import annotations

import io
import json
import re

import pytest

from watcher.output import (
    Table,
    age,
    answer,
    clean,
    clean_text,
    document,
    plain_lines,
    show,
    size,
    width,
)


def test_a_name_that_is_not_utf8_survives_json():
    name = b"caf\xe9".decode("utf-8", "surrogateescape")
    text = document({"path": name})
    assert text.isascii()
    assert json.loads(text) == {"schema": 1, "path": name}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ü 文", "plain ü 文"),
        ("\x1b]0;owned\x07", "\\x1b]0;owned\\x07"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\x9b31m", "\\x9b31m"),
        ("txt.\u202eexe", "txt.\\u202eexe"),
        ("\udce9", "\\xe9"),
        ("a\u2028b", "a\\u2028b"),
    ],
)
def test_a_terminal_is_shown_what_it_must_not_obey(text, shown):
    assert clean(text) == shown


def test_text_of_several_lines_keeps_its_lines_and_loses_its_escapes():
    assert clean_text("a\n\tb\x1b[0m\rc") == "a\n\tb\\x1b[0m\\rc"


def test_columns_align_also_with_wide_characters():
    lines = plain_lines(Table(("n", "label", "time"), [(1, "文字", "x"), (10, "abc", "y")], ("n",)))
    assert lines == [" n  label  time", " 1  文字   x", "10  abc    y"]
    assert width("文字") == 4


def test_a_cell_cannot_begin_a_new_row():
    assert len(plain_lines(Table(("a",), [("x\ny",)]))) == 2


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KB"),
        (1023 << 10, "1.0 MB"),
        (15_000_000, "14 MB"),
        (1 << 30, "1.0 GB"),
        (5 << 50, "5120 TB"),
    ],
)
def test_sizes_are_short(count, text):
    assert size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "now"),
        (0, "now"),
        (59, "59 s ago"),
        (180, "3 min ago"),
        (7200, "2 h ago"),
        (86400, "1 day ago"),
        (864000, "10 days ago"),
    ],
)
def test_ages_are_short(seconds, text):
    assert age(0, seconds * 1_000_000_000) == text


def test_quiet_prints_nothing_and_json_prints_one_document(capsys, make_context):
    answer(make_context(quiet=True), {"a": 1}, "text", Table(("a",), [(1,)]))
    assert capsys.readouterr().out == ""
    answer(make_context(quiet=True, json=True), {"a": 1}, "text")
    assert json.loads(capsys.readouterr().out) == {"schema": 1, "a": 1}


def test_a_terminal_gets_no_line_wider_than_itself_and_only_long_text_is_cut(monkeypatch):
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    rows = [(1234, "[bold]x[/bold] " + "y" * 80, "3 min ago"), (1, "\x1b[2J", "now")]
    show(Table(("n", "label", "time"), rows, ("n",)))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue()).splitlines()
    assert max(map(len, lines)) <= 40
    assert lines[1].startswith("1234  [bold]x[/bold] yyy")
    assert lines[1].rstrip().endswith("…  3 min ago")
    assert "\\x1b[2J" in lines[2]
