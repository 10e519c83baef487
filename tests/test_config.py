"""The configuration file: what it may say, and what is said about its mistakes."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from core.errors import ConfigError
from core.rules import DEFAULT_EXCLUDE, DEFAULT_PROTECT
from watcher.config import (
    Config,
    Rules,
    StoreLimits,
    Watch,
    as_plain,
    example_text,
    expand_path,
    load_config,
    parse_config,
)
from watcher.readers import MAX_BYTES

HERE = Path(__file__).parent
VALID = sorted((HERE / "configs/valid").glob("*.yaml"))
INVALID = sorted((HERE / "configs/invalid").glob("*.yaml"))


def parsed(text: str | bytes, **env: str) -> Config:
    data = text if isinstance(text, bytes) else text.encode()
    return parse_config(data, "c.yaml", home="/home/me", env=env)


def error_of(text: str | bytes) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parsed(text)
    return caught.value


@pytest.mark.parametrize("path", VALID, ids=lambda path: path.stem)
def test_a_right_file_is_read_and_shown_config_reads_back_the_same(path):
    config = load_config(path)
    assert parsed(yaml.safe_dump(as_plain(config))) == config


@pytest.mark.parametrize("path", INVALID, ids=lambda path: path.stem)
def test_a_mistake_is_named_with_its_place_and_a_cure(path):
    expected, _, hint = path.read_text().splitlines()[0].removeprefix("# ").partition(" | ")
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert caught.value.message.startswith(f"{path}:{expected}")
    assert hint in caught.value.hint


def test_the_example_says_exactly_the_defaults():
    assert parsed(example_text()) == Config()


def test_the_example_names_every_key():
    shown = yaml.safe_load(example_text())
    assert shown == as_plain(Config())


def test_the_defaults_are_those_of_the_design():
    assert StoreLimits() == StoreLimits(100, 24, 10, 1000, 14, True, 24, True)
    assert Rules().exclude == DEFAULT_EXCLUDE
    assert Rules().protect == DEFAULT_PROTECT == (".env", ".env.*")
    assert (Rules().quiet_ms, Rules().longest_ms, Rules().max_file_size_mb) == (200, 2000, 10)
    assert Config().enabled
    assert Config().durability == "turns"


def test_a_list_replaces_the_defaults_and_add_and_remove_change_them():
    assert parsed("defaults: {exclude: [x/]}").defaults.exclude == ("x/",)
    assert parsed("defaults: {exclude: []}").defaults.exclude == ()
    changed = parsed('defaults: {exclude: {add: [x/], remove: ["*.log"]}}').defaults.exclude
    assert set(changed) == {*DEFAULT_EXCLUDE, "x/"} - {"*.log"}


def test_an_entry_starts_from_the_defaults_wherever_they_stand():
    text = "watch: [{path: /x, exclude: {add: [b/]}}]\ndefaults: {exclude: [a/], quiet_ms: 300}"
    rules = parsed(text).watch[0].rules
    assert (rules.exclude, rules.quiet_ms) == (("a/", "b/"), 300)


def test_adding_what_is_there_changes_nothing():
    assert parsed('defaults: {exclude: {add: ["*.log"]}}') == Config()


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("~", "/home/me"),
        ("~/a/../b/", "/home/me/b"),
        ("$P/x", "/p [1]/x"),
        ("${P}x", "/p [1]x"),
        ("~/*", "/home/me/*"),
        ("$P/*", "/p [[]1]/*"),
        ("/a$$", "/a$$"),
        ("//x", "/x"),
    ],
)
def test_a_path_may_hold_home_and_variables(written, path):
    assert expand_path(written, "/home/me", {"P": "/p [1]"}) == path


@pytest.mark.parametrize("written", ["", "x", "./x", "~you", "$UNSET/x", "$EMPTY/x", "/a\0b"])
def test_a_path_that_could_mean_anything_is_refused(written):
    with pytest.raises(ValueError, match=r"\.$"):
        expand_path(written, "/home/me", {"EMPTY": ""})


def test_a_glob_names_the_directories_that_are_there(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "file").touch()
    assert Watch(f"{tmp_path}/*").roots() == [os.fsencode(tmp_path / name) for name in "ab"]
    assert Watch(f"{tmp_path}/later").roots() == [os.fsencode(tmp_path / "later")]


def test_a_directory_with_brackets_in_its_name_is_itself(tmp_path):
    (tmp_path / "[id]").mkdir()
    assert Watch(f"{tmp_path}/[id]").roots() == [os.fsencode(tmp_path / "[id]")]


def test_an_own_entry_wins_over_a_glob_and_a_link_is_resolved(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    text = f"watch: [{{path: {tmp_path}/link, quiet_ms: 1}}, {{path: '{tmp_path}/*', quiet_ms: 9}}]"
    config = parsed(text.replace("ms: 1", "ms: 100").replace("ms: 9", "ms: 900"))
    assert config.listed().rules_of(os.fsencode(tmp_path / "a")).quiet_ms == 100
    assert config.listed().rules_of(b"/elsewhere").quiet_ms == 200


def test_core_is_told_bytes_and_the_roots_inside(tmp_path):
    (tmp_path / "in/side").mkdir(parents=True)
    config = parsed(f"watch: [{tmp_path}, {tmp_path}/in/side]\ndefaults: {{max_file_size_mb: 2}}")
    rules = config.listed().captured_by(os.fsencode(tmp_path))
    assert rules.max_file_size == 2 * 1024 * 1024
    assert rules.nested == {b"in/side"}
    assert rules.exclude == DEFAULT_EXCLUDE


def test_only_a_file_that_nobody_named_may_be_missing(tmp_path):
    assert load_config(tmp_path / "none", named=False) == Config()
    with pytest.raises(ConfigError, match=":1:1: The configuration cannot be read: No such file"):
        load_config(tmp_path / "none")
    (tmp_path / "dangling").symlink_to("none")
    with pytest.raises(ConfigError):
        load_config(tmp_path / "dangling", named=False)
    with pytest.raises(ConfigError, match="Is a directory"):
        load_config(tmp_path)


def test_a_file_of_any_size_is_refused_before_it_is_parsed():
    assert "larger than 1024 KB" in error_of(b"#" * (MAX_BYTES + 1)).message


def test_bytes_that_are_not_utf8_are_named_by_place():
    assert error_of(b"enabled: true\nwatch: [/\xff]").message.startswith("c.yaml:2:10: ")


@given(st.binary(max_size=60) | st.text(":-[]{}&*!|>'\"%@`#?, \n\tayes01~$", max_size=40))
def test_no_input_raises_anything_but_a_config_error(text):
    with suppress(ConfigError):
        assert parsed(yaml.safe_dump(as_plain(parsed(text)))) == parsed(text)
