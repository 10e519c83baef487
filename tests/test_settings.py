"""What turnmark puts into agents' settings is all that differs, and out again nothing does."""

from __future__ import annotations

import json
import os
import stat
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trees import build, image
from watcher.agents import AGENTS, inject, jsontext
from watcher.agents.client import hook_path

FOLDER = Path(__file__).parent / "settings"
CORPUS = sorted(path for path in FOLDER.iterdir() if path.is_file())
REFUSED = sorted((FOLDER / "refused").iterdir())
PLACES = {
    "claude-code": ".claude/settings.json",
    "codex": ".codex/config.toml",
    "gemini": ".gemini/settings.json",
    "qwen": ".qwen/settings.json",
    "cursor": ".cursor/hooks.json",
    "hermes": ".hermes/config.yaml",
}


def put(nobody: Path, sample: Path) -> tuple[str, Path]:
    """A sample where the agent's settings are."""
    name = sample.name.partition(".")[0]
    path = nobody / PLACES[name]
    path.parent.mkdir(parents=True)
    path.write_bytes(sample.read_bytes())
    return name, path


def named(path: Path) -> Path:
    return Path(path.name)


@pytest.mark.parametrize("sample", CORPUS, ids=named)
def test_what_is_put_in_comes_out_byte_by_byte(sample, nobody, turnmark):
    name, path = put(nobody, sample)
    path.chmod(0o640)
    before = image(path.parent)
    assert turnmark("init", name).code == 0
    assert b"turnmark-hook" in path.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert turnmark("remove", name).code == 0
    assert image(path.parent) == before


@pytest.mark.parametrize("sample", CORPUS, ids=named)
def test_a_second_time_changes_nothing(sample, nobody, turnmark):
    name, path = put(nobody, sample)
    turnmark("init", name)
    once = image(path.parent)
    assert turnmark("init", name).code == 0
    assert image(path.parent) == once
    turnmark("remove", name)
    assert path.read_bytes() == sample.read_bytes()
    assert turnmark("remove", name).code == 0


@pytest.mark.parametrize("sample", [p for p in CORPUS if p.suffix == ".json"], ids=named)
def test_what_somebody_changes_meanwhile_stays(sample, nobody, turnmark):
    name, path = put(nobody, sample)
    turnmark("init", name)
    path.write_bytes(path.read_bytes().replace(b"opus", b"haiku").rstrip() + b"\n\n")
    turnmark("remove", name)
    left = path.read_bytes()
    assert b"turnmark" not in left
    expected = json.loads(sample.read_text("utf-8-sig").strip().replace("opus", "haiku") or "{}")
    found = json.loads(left.decode("utf-8-sig"))
    for empty in (expected, found):
        if empty.get("hooks") in ({}, {"Stop": []}):
            del empty["hooks"]
    assert found == expected
    assert left.endswith(b"\n\n")


@pytest.mark.parametrize("sample", [p for p in CORPUS if p.suffix != ".json"], ids=named)
def test_lines_that_somebody_adds_to_other_formats_stay(sample, nobody, turnmark):
    name, path = put(nobody, sample)
    turnmark("init", name)
    path.write_bytes(path.read_bytes() + b"# more\n")
    turnmark("remove", name)
    left = path.read_bytes()
    assert left.replace(b"\r", b"").replace(b"\n", b"") == (
        sample.read_bytes().replace(b"\r", b"").replace(b"\n", b"") + b"# more"
    )


@pytest.mark.parametrize("sample", REFUSED, ids=named)
def test_what_cannot_be_changed_without_loss_is_left_alone(sample, nobody, turnmark):
    name, path = put(nobody, sample)
    told = turnmark("init", name)
    assert told.code in (1, 3)
    assert "left alone" in told.out
    assert "turnmark-hook" in told.out
    assert path.read_bytes() == sample.read_bytes()
    turnmark("remove", name)
    assert path.read_bytes() == sample.read_bytes()


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ('{"hooks": []}', "`hooks` is no object"),
        ('{"hooks": null}', "`hooks` is no object"),
        ('{"hooks": {"SessionEnd": {}}}', "`hooks.SessionEnd` is no list"),
    ],
)
def test_what_stands_in_our_place_is_named_and_left_alone(text, wrong, nobody, turnmark):
    path = nobody / ".claude/settings.json"
    path.parent.mkdir()
    path.write_text(text)
    told = turnmark("init", "claude-code").out
    assert f"{path}  left alone: it is not built as expected: {wrong}\n  Correct that" in told
    doctor = turnmark("doctor").out
    assert f"{path} is not built as expected: {wrong}.\n         -> Correct that" in doctor
    turnmark("remove", "claude-code")
    assert path.read_text() == text


def test_an_empty_file_is_an_error_where_the_agent_takes_it_for_one(nobody, turnmark):
    path = nobody / ".gemini/settings.json"
    path.parent.mkdir()
    path.write_text(" \n")
    assert "is empty, which is no JSON: delete it, or write {} into it" in (
        turnmark("init", "gemini").out
    )
    assert f"{path} is empty" in turnmark("doctor").out
    assert path.read_text() == " \n"


@pytest.mark.parametrize("sample", [p for p in REFUSED if ".taken." in p.name], ids=named)
def test_what_somebody_else_uses_is_not_taken_away(sample, nobody, turnmark):
    name, _ = put(nobody, sample)
    assert "of its own already" in turnmark("init", name).out


def test_json_keeps_its_order_indentation_and_line_ends(nobody, turnmark):
    _, path = put(nobody, FOLDER / "claude-code.crlf.json")
    turnmark("init", "claude-code")
    text = path.read_bytes().decode()
    assert text.count("\n") == text.count("\r\n")
    assert text.startswith((FOLDER / "claude-code.crlf.json").read_bytes().decode()[:80])
    assert '\r\n        "SessionStart": [' in text
    assert list(json.loads(text)) == ["model", "hooks"]
    assert json.loads(text)["hooks"]["Stop"][0]["hooks"][0]["command"] == "say done"


def test_a_link_stays_a_link(nobody, turnmark):
    name, path = put(nobody, FOLDER / "claude-code.plain.json")
    real = nobody / "dotfiles" / "claude.json"
    real.parent.mkdir()
    path.rename(real)
    path.symlink_to("../dotfiles/claude.json")
    turnmark("init", name)
    assert os.readlink(path) == "../dotfiles/claude.json"
    assert "turnmark-hook" in real.read_text()
    turnmark("remove", name)
    assert real.read_bytes() == (FOLDER / "claude-code.plain.json").read_bytes()
    assert path.is_symlink()


def test_a_read_only_file_is_somebody_elses_decision(nobody, turnmark):
    name, path = put(nobody, FOLDER / "claude-code.plain.json")
    path.chmod(0o444)
    told = turnmark("init", name)
    assert told.code == 3
    assert "read-only" in told.out
    assert '"SessionStart"' in told.out
    assert "turnmark" not in path.read_text()


def test_files_that_were_not_there_are_gone_again(nobody, turnmark):
    for name in AGENTS:
        before = image(nobody, skip=(b"turnmark",))
        assert turnmark("init", name).code == 0
        assert image(nobody, skip=(b"turnmark",)) != before
        assert turnmark("remove", name).code == 0
        assert image(nobody, skip=(b"turnmark",)) == before


def test_without_the_ledger_entries_are_known_by_their_command(nobody, turnmark):
    name, path = put(nobody, FOLDER / "claude-code.others.json")
    turnmark("init", name)
    (nobody / "turnmark/agents.json").unlink()
    assert turnmark("remove", name).code == 0
    assert path.read_bytes() == (FOLDER / "claude-code.others.json").read_bytes()


def test_an_entry_that_somebody_moved_is_found(nobody, turnmark):
    name, path = put(nobody, FOLDER / "claude-code.others.json")
    turnmark("init", name)
    value = json.loads(path.read_text())
    ours = value["hooks"]["Stop"].pop()
    value["hooks"]["PreToolUse"][0]["hooks"] += ours["hooks"]
    path.write_text(json.dumps(value))
    turnmark("remove", name)
    left = json.loads(path.read_text())
    assert "turnmark" not in path.read_text()
    assert [h["command"] for h in left["hooks"]["PreToolUse"][0]["hooks"]] == [
        "~/bin/guard --strict"
    ]


def test_a_command_of_the_users_with_the_same_name_stays(nobody, turnmark):
    mine = nobody / ".claude/commands/rollback.md"
    mine.parent.mkdir(parents=True)
    mine.write_text("deploy the previous release\n")
    assert turnmark("init", "claude-code").code == 0
    turnmark("remove", "claude-code")
    assert mine.read_text() == "deploy the previous release\n"


def test_a_dry_run_shows_and_changes_nothing(nobody, turnmark):
    name, path = put(nobody, FOLDER / "claude-code.plain.json")
    before = image(nobody)
    told = turnmark("init", name, "--dry-run")
    assert told.code == 0
    assert f"+++ {path}" in told.out
    assert '+            "command": ' in told.out or '"command": ' in told.out
    assert image(nobody) == before


def test_print_shows_what_belongs_where(nobody, turnmark):
    told = turnmark("init", "codex", "--print")
    assert f"# {nobody}/.codex/config.toml" in told.out
    assert tomllib.loads(told.out.split("config.toml\n")[1].split("\n")[0])["notify"][1] == "codex"
    assert not (nobody / ".codex").exists()


def test_all_means_those_that_are_here(nobody, turnmark, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    (nobody / ".gemini").mkdir()
    told = json.loads(turnmark("init", "--all", "--json").out)
    assert [row["agent"] for row in told["agents"]] == ["gemini"]


def test_a_project_has_its_own_settings(nobody, turnmark, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert turnmark("init", "claude-code", "--project").code == 0
    assert "turnmark-hook" in (tmp_path / ".claude/settings.local.json").read_text()
    assert not (nobody / ".claude").exists()
    assert turnmark("init", "gemini", "--project").code == 64
    monkeypatch.chdir("/")
    assert turnmark("remove", "claude-code").code == 0
    assert list(tmp_path.iterdir()) == []


def test_uninstall_leaves_settings_and_home_as_they_were(nobody, turnmark):
    name, _ = put(nobody, FOLDER / "claude-code.others.json")
    before = image(nobody)
    turnmark("init", name)
    turnmark("init", "codex")
    assert turnmark("uninstall", "--yes").code == 0
    assert image(nobody) == before


def test_uninstall_with_the_store_leaves_nothing_behind(nobody, turnmark, monkeypatch):
    work = build(nobody / "work", {"a": "1"})
    monkeypatch.chdir(work)
    before = image(nobody)
    turnmark("turn", "begin", "--session", "s", "--prompt", "a secret")
    assert turnmark("uninstall", "--yes").code == 0
    assert list((nobody / "turnmark/sessions").glob("*.yaml"))
    assert turnmark("uninstall", "--yes", "--store").code == 0
    assert image(nobody) == before


def test_uninstall_keeps_what_is_not_turnmarks(nobody, turnmark):
    turnmark("init", "codex")
    (nobody / "turnmark/bin/mine").write_text("x")
    assert turnmark("uninstall", "--yes").code == 0
    assert (nobody / "turnmark/bin/mine").read_text() == "x"


def test_uninstall_keeps_its_files_while_something_still_names_them(nobody, turnmark, make_context):
    _, path = put(nobody, FOLDER / "claude-code.plain.json")
    turnmark("init", "claude-code")
    path.write_text(path.read_text() + "// a comment\n")
    assert turnmark("uninstall", "--yes").code == 3
    assert hook_path(make_context()).exists()


def test_doctor_has_a_cure_for_each_finding(nobody, turnmark):
    turnmark("init", "claude-code")
    told = turnmark("doctor")
    assert "Claude Code tells turnmark." in told.out
    assert str(nobody / "turnmark/bin") not in told.out
    hook = nobody / "turnmark/bin/turnmark-hook"
    hook.write_text("")
    told = turnmark("doctor").out
    assert f"{hook} needs an interpreter" in told
    assert "-> Run `turnmark init claude-code`." in told
    hook.unlink()
    (nobody / ".claude/settings.json").write_text('{"disableAllHooks": true}')
    told = json.loads(turnmark("doctor", "--json").out)
    sick = [one for one in told["findings"] if one["level"] == "problem"]
    assert told["ok"] is False
    assert len(sick) >= 3
    assert all(one["cure"] for one in sick)
    assert turnmark("doctor").code == 1


def pasted(turnmark, name, path):
    """What `init` printed for a file with comments, put there by hand."""
    path.parent.mkdir(parents=True)
    path.write_text("// mine\n{}")
    told = json.loads(turnmark("init", name, "--json").out)
    [refused] = told["agents"][0]["refused"]
    path.write_text("// https://mine\n" + refused["snippet"].replace("\n  }", ",\n  }, // more"))


def test_what_somebody_put_into_a_file_with_comments_counts(nobody, turnmark):
    path = nobody / ".gemini/settings.json"
    pasted(turnmark, "gemini", path)
    assert "ok       Gemini CLI tells turnmark." in turnmark("doctor").out
    told = turnmark("init", "gemini")
    assert told.code == 0
    assert f"{path}  left alone: it has what belongs into it" in told.out
    path.write_text(path.read_text().replace("BeforeAgent", "AfterModel"))
    told = turnmark("doctor")
    assert told.code == 1
    assert "put in by hand what `turnmark init gemini --print` shows" in told.out


def test_what_remove_leaves_in_a_file_with_comments_is_said(nobody, turnmark):
    path = nobody / ".gemini/settings.json"
    pasted(turnmark, "gemini", path)
    told = turnmark("remove", "gemini")
    assert told.code == 3
    assert "take out by hand what names turnmark-hook, and run this again" in told.out
    assert "ok       Gemini CLI tells turnmark." in turnmark("doctor").out
    path.write_text("// turnmark-hook was here\n{}")
    assert turnmark("remove", "gemini").code == 0
    assert "Gemini CLI is here and does not tell turnmark." in turnmark("doctor").out


def test_what_was_taken_out_by_hand_is_forgotten(nobody, turnmark):
    path = nobody / ".gemini/settings.json"
    turnmark("init", "gemini")
    path.write_text("// mine\n{}")
    assert turnmark("doctor").code == 1
    assert turnmark("remove", "gemini").code == 0
    assert "Gemini CLI is here and does not tell turnmark." in turnmark("doctor").out
    assert path.read_text() == "// mine\n{}"


def test_claude_code_may_discard_a_file_with_comments(nobody, turnmark):
    path = nobody / ".claude/settings.json"
    pasted(turnmark, "claude-code", path)
    told = turnmark("doctor")
    assert told.code == 0
    assert f"hint     Claude Code may discard {path}: it has comments" in told.out


def test_entries_beside_others_are_as_good(nobody, turnmark):
    turnmark("init", "claude-code")
    path = nobody / ".claude/settings.json"
    value = json.loads(path.read_text())
    value["hooks"]["Stop"][0]["hooks"][0]["timeout"] = 30
    value["hooks"]["Stop"].append({"hooks": [{"type": "command", "command": "say done"}]})
    path.write_text(json.dumps(value))
    assert "ok       Claude Code tells turnmark." in turnmark("doctor").out
    del value["hooks"]["Stop"][0]
    path.write_text(json.dumps(value))
    assert f"{path} lacks what belongs into it." in turnmark("doctor").out


def test_a_project_is_judged_by_its_own_settings(nobody, turnmark, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    turnmark("init", "claude-code", "--project")
    assert f"ok       Claude Code tells turnmark in {tmp_path}, " in turnmark("doctor").out
    monkeypatch.chdir("/")
    told = turnmark("doctor").out
    assert f"hint     Claude Code tells turnmark only in {tmp_path}; not here." in told
    (tmp_path / ".claude/settings.local.json").unlink()
    told = turnmark("doctor")
    assert told.code == 1
    assert f"-> Run `cd {tmp_path} && turnmark init claude-code --project`." in told.out
    turnmark("init", "claude-code")
    assert f"{tmp_path}/.claude/settings.local.json lacks" in turnmark("doctor").out


@pytest.mark.parametrize("name", ["claude-code", "codex", "copilot", "hermes"])
def test_a_hook_that_is_named_and_gone_is_found_and_cured(name, nobody, turnmark):
    turnmark("init", name)
    (nobody / "turnmark").rename(nobody / "moved")
    told = turnmark("doctor")
    assert told.code == 1
    assert f"names {nobody}/turnmark/bin/turnmark-hook, which cannot be run." in told.out
    assert f"-> Run `turnmark init {name}`, or `turnmark remove {name}`" in told.out
    assert turnmark("remove", name).code == 0
    assert "turnmark-hook" not in turnmark("doctor").out


def test_a_project_that_was_moved_is_found_where_it_is(nobody, turnmark, monkeypatch, tmp_path):
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    turnmark("init", "claude-code", "--project")
    (tmp_path / "a").rename(tmp_path / "b")
    assert f"{tmp_path}/a/.claude/settings.local.json  is not there" in (
        turnmark("uninstall", "--yes").out
    )
    monkeypatch.chdir(tmp_path / "b")
    assert f"cd {tmp_path}/b && turnmark remove claude-code --project`" in turnmark("doctor").out
    assert turnmark("remove", "claude-code", "--project").code == 0
    assert "settings.local.json" not in turnmark("doctor").out


def test_without_the_ledger_a_file_of_ours_goes_as_a_whole(nobody, turnmark):
    turnmark("init", "claude-code")
    (nobody / "turnmark/agents.json").unlink()
    turnmark("remove", "claude-code")
    assert not (nobody / ".claude/commands/rollback.md").exists()


def test_a_command_of_the_users_that_speaks_of_turnmark_stays(nobody, turnmark):
    mine = nobody / ".claude/commands/rollback.md"
    mine.parent.mkdir(parents=True)
    mine.write_text("Run `turnmark list` and explain it to me.\n")
    turnmark("init", "claude-code")
    turnmark("remove", "claude-code")
    assert mine.read_text() == "Run `turnmark list` and explain it to me.\n"


def test_one_session_needs_no_file(nobody, make_context):
    words = inject.inject(make_context(), ["claude", "-p", "hi"])
    assert words[0::2][0] == "claude"
    assert words[3:] == ["-p", "hi"]
    assert "turnmark-hook claude-code Stop" in words[2]
    assert json.loads(words[2])["hooks"]["Stop"]
    notify = inject.inject(make_context(), ["/usr/bin/codex", "exec", "hi"])
    assert notify[1] == "-c"
    assert tomllib.loads(notify[2])["notify"][1:] == ["codex", "notify"]
    assert inject.inject(make_context(), ["vim", "x"]) == ["vim", "x"]
    assert inject.inject(make_context(), ["claude", "--settings", "x"]) == [
        "claude",
        "--settings",
        "x",
    ]
    assert [path.name for path in nobody.iterdir()] == ["turnmark"]


# The text of JSON


SCALARS = st.none() | st.booleans() | st.integers() | st.text()
TREES = st.dictionaries(
    st.text(),
    st.recursive(
        SCALARS,
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
        max_leaves=10,  # of each value; with 100 nearly all the time goes into drawing them
    ),
)


@given(TREES, st.sampled_from([None, 2, "\t"]), st.booleans(), st.booleans())
def test_an_element_added_and_cut_leaves_the_text_as_it_was(value, indent, crlf, there):
    value.pop("hooks", None)
    if there:
        value["hooks"] = {"Stop": [{"command": "theirs"}]}
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    text = text.replace("\n", "\r\n") if crlf else text
    added = jsontext.append(text, ("hooks", "Stop"), {"command": "ours"})
    changed = jsontext.load(added)
    assert changed["hooks"]["Stop"][-1] == {"command": "ours"}
    [path] = jsontext.find(changed, lambda one: one == {"command": "ours"})
    assert {**changed, "hooks": value.get("hooks")} == {**value, "hooks": value.get("hooks")}
    if there:
        assert jsontext.remove(added, path) == text
    elif value:
        assert jsontext.remove(added, ("hooks",)) == text


@given(TREES, st.sampled_from([None, 2, "\t"]))
def test_comments_and_commas_too_many_change_no_value(value, indent):
    value["address"] = ["https://x/*y*/", ",]", '\\" // }', "\\"]
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    loose = f'// " one\n{text[:-1]}, /* ] two // */\n // three\n}} // four'
    assert jsontext.lenient(text) == jsontext.lenient(loose) == value
    with pytest.raises(ValueError, match=r"."):
        jsontext.load(loose)
