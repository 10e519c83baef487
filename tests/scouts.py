"""A scout that has done all it can before the look begins."""

from __future__ import annotations

import os
import select
from collections.abc import Callable

import pytest

import core.scouting
import core.station
from core.model import ROOT, RelPath
from core.scouting import Scouting
from core.station import Post, Station

PATIENCE = 20.0


class Patient:
    """Of each look, what was asked of the scout, what it vouched for, and what is to come then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent = 0
        self.asked: list[RelPath] = []
        self.said: list[RelPath] = []
        self.then: Callable[[], object] = lambda: None
        self.station = Station(start_above=0)
        real = Scouting.go_on

        def go_on(scouting: Scouting, reached: RelPath) -> None:
            real(scouting, reached)
            if reached == ROOT:
                while not scouting._post.gone and (not self._is_done(scouting)):
                    wait_for_answers(scouting._post)
                    real(scouting, reached)
                self._note(scouting)

        monkeypatch.setattr(core.scouting, "SCOUT_ABOVE", 0)
        monkeypatch.setattr(core.station, "can_be_sent", lambda: True)
        monkeypatch.setattr(core.scouting, "STATION", self.station)
        monkeypatch.setattr(Scouting, "go_on", go_on)
        real_part = Scouting._part

        def part(scouting: Scouting, reached: RelPath) -> list[tuple[RelPath, object]]:
            found = real_part(scouting, reached)
            self.asked += [question[0] for question in found]
            return found  # type: ignore[return-value]

        monkeypatch.setattr(Scouting, "_part", part)

    @staticmethod
    def _is_done(scouting: Scouting) -> bool:
        """Where nothing can be asked nothing is begun."""
        post = scouting._post
        nothing = post.greeted and next(iter(scouting._far_end()), None) is None
        return nothing or (scouting._begun and not post.told)

    def _note(self, scouting: Scouting) -> None:
        self.sent += 1
        self.said = sorted(scouting._vouched)
        self.then()


def wait_for_answers(post: Post) -> None:
    found, _, _ = select.select([post._answers], [], [], PATIENCE)
    assert found, "the scout says nothing"


def is_alive(process: int) -> bool:
    """A child that has not ended."""
    try:
        return os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except ChildProcessError:
        return False
