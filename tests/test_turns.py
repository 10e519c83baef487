"""Turns open, close and are numbered whatever agents forget to say."""

from __future__ import annotations

import pytest

from core import turns
from core.begun import Begun
from core.errors import TurnmarkError
from core.history import MarkSpec
from core.model import label_of
from core.refs import ref_name
from tests.stores import Bench, fsck


@pytest.fixture
def bench(tmp_path):
    made = Bench(tmp_path)
    yield made
    made.close()


def begin(bench, session="s", **words):
    """The mark of a begin."""
    mark = turns.begin(bench.recorder, session, **words).mark
    assert mark is not None
    return mark


def end(bench, session="s", **words):
    """The mark of an end."""
    mark = turns.end(bench.recorder, session, **words).mark
    assert mark is not None
    return mark


def marks(bench):
    return [(m.kind, m.session, m.turn, m.status) for m in bench.history().marks()]


def write(bench, text):
    (bench.path / "a").write_text(text)


def test_what_is_known_of_turns_as_they_come_is_what_the_whole_history_says(bench):
    for word in ("begin a", "begin b", "end a", "begin b", "begin c", "end c", "begin a", "end b"):
        what, session = word.split()
        {"begin": begin, "end": end}[what](bench, session)
        known, anew = bench.recorder.begun(), Begun(bench.history().marks())
        for one in "abcd":
            assert known.next(one) == anew.next(one)
            assert (known.running(one) or 0) == (anew.running(one) or 0)
        assert known.open() == anew.open()
    assert [(m.session, m.turn) for m in known.open()] == [("a", 2)]


def test_a_turn_has_a_begin_and_an_end_on_its_states(bench):
    write(bench, "1")
    begun = turns.begin(bench.recorder, "s", prompt="do it", agent="codex", messages=3, pid=7)
    write(bench, "2")
    ended = turns.end(bench.recorder, "s", status="error", messages=5)
    assert begun.durable
    assert ended.durable
    assert begun.snapshot.id != ended.snapshot.id
    assert marks(bench) == [("turn-begin", "s", 1, None), ("turn-end", "s", 1, "error")]
    opened, closed = bench.history().marks()
    assert (opened.label, opened.agent, opened.extra) == (
        "do it",
        "codex",
        {"messages": 3, "pid": 7},
    )
    assert (closed.agent, closed.extra) == ("codex", {"messages": 5})
    fsck(bench.store.base)


def test_turns_are_counted_per_session(bench):
    for session in ("s", "s", "r", "s"):
        turns.begin(bench.recorder, session)
        turns.end(bench.recorder, session)
    begun = [(m.session, m.turn) for m in bench.history().marks() if m.kind == "turn-begin"]
    assert begun == [("s", 1), ("s", 2), ("r", 1), ("s", 3)]


def test_a_number_does_not_come_twice_when_old_marks_are_gone(bench):
    for _ in range(2):
        begun = begin(bench)
        end(bench)
    first = next(bench.history().marks())
    bench.store.refs.delete([ref_name(bench.root.id, "m", first.seq)])
    assert begun.turn == 2
    assert begin(bench).turn == 3


def test_a_begin_interrupts_what_its_session_has_open_on_the_same_state(bench):
    turns.begin(bench.recorder, "s", turn_id="one")
    write(bench, "2")
    second = turns.begin(bench.recorder, "s", turn_id="two")
    assert marks(bench) == [
        ("turn-begin", "s", 1, None),
        ("turn-end", "s", 1, "interrupted"),
        ("turn-begin", "s", 2, None),
    ]
    _, closed, opened = bench.history().marks()
    assert closed.snapshot == opened.snapshot == second.snapshot.id
    assert (closed.turn_id, opened.turn_id) == ("one", "two")
    assert second.changed == 1


def test_the_same_begin_delivered_twice_is_one_turn(bench):
    first = turns.begin(bench.recorder, "s", turn_id="one")
    write(bench, "changed since")
    again = turns.begin(bench.recorder, "s", turn_id="one")
    assert (again.mark, again.snapshot, again.fresh) == (first.mark, first.snapshot, False)
    assert len(marks(bench)) == 1


def test_a_begin_without_an_id_is_never_taken_for_a_duplicate(bench):
    turns.begin(bench.recorder, "s")
    assert begin(bench).turn == 2


def test_sessions_do_not_close_each_other(bench):
    turns.begin(bench.recorder, "s")
    turns.begin(bench.recorder, "r")
    turns.end(bench.recorder, "s")
    assert marks(bench)[-1] == ("turn-end", "s", 1, "ok")
    turns.end(bench.recorder, "r")
    assert marks(bench)[-1] == ("turn-end", "r", 1, "ok")


@pytest.mark.parametrize("before", ["nothing", "ended", "another session"])
def test_an_end_without_an_open_turn_makes_no_mark(bench, before):
    if before != "nothing":
        turns.begin(bench.recorder, "s" if before == "ended" else "r")
    if before == "ended":
        turns.end(bench.recorder, "s")
    known = marks(bench)
    with pytest.raises(TurnmarkError, match="no open turn") as caught:
        turns.end(bench.recorder, "s")
    assert type(caught.value) is TurnmarkError
    assert caught.value.hint
    assert marks(bench) == known


def test_an_end_that_comes_too_late_does_not_close_the_next_turn(bench):
    turns.begin(bench.recorder, "s", turn_id="one")
    turns.begin(bench.recorder, "s", turn_id="two")
    with pytest.raises(TurnmarkError, match="is two, not one"):
        turns.end(bench.recorder, "s", turn_id="one")
    assert end(bench, turn_id="two").status == "ok"


def test_both_marks_of_a_turn_carry_the_ids_of_its_begin(bench):
    turns.begin(bench.recorder, "s")
    turns.end(bench.recorder, "s", turn_id="one")
    assert {(m.session, m.turn, m.turn_id) for m in bench.history().marks()} == {("s", 1, None)}


def test_other_marks_do_not_touch_an_open_turn(bench):
    turns.begin(bench.recorder, "s")
    bench.recorder.take(mark=MarkSpec("manual"))
    assert end(bench).turn == 1


def test_a_new_process_knows_the_open_turn(bench):
    turns.begin(bench.recorder, "s")
    bench.reopen()
    assert end(bench).turn == 1


@pytest.mark.parametrize(
    ("prompt", "label"),
    [
        ("", ""),
        ("fix it", "fix it"),
        ("\n  fix\tthis\n\nand that \n", "fix this and that"),
        ("x" * 200, "x" * 200),
        ("x" * 201, "x" * 199 + "…"),
    ],
)
def test_a_prompt_becomes_one_short_line(prompt, label):
    assert label_of(prompt) == label


def test_prompts_may_be_kept_out_of_the_store(bench):
    assert begin(bench, prompt="secret", labels=False).label == ""


@pytest.mark.parametrize("text", ["\0\x1b[2J", "\udcff", "日本語 🙂", '"\\'])
def test_words_of_agents_survive_whatever_they_are(bench, text):
    turns.begin(bench.recorder, text, prompt=f"p{text}", turn_id=text, agent=text)
    (mark,) = bench.history().marks()
    assert (mark.session, mark.turn_id, mark.agent) == (text, text, text)
    fsck(bench.store.base)


def test_a_turn_that_need_not_be_durable_says_so(bench):
    assert not turns.begin(bench.recorder, "s", sync=False).durable
    assert not turns.end(bench.recorder, "s", sync=False).durable
