"""What can be chosen, what of it the filter leaves, and which is meant; pure: knows no terminal."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass, replace
from functools import cached_property

from core.model import Point

LEAST_OF_ID = 4
"""So many characters of an id are meant as one; fewer would be found in almost any."""


@dataclass(frozen=True)
class Choice:
    """A point, its row of the list, and a name for it that stays while others come and go."""

    point: Point
    spec: str
    cells: tuple[str, ...]
    """Safe to show."""

    @cached_property
    def _text(self) -> str:
        point = self.point
        words = (point.label, point.session, point.agent, *self.cells[2:3], *self.cells[6:7])
        return _folded(" ".join(filter(None, words)))

    def fits(self, word: str) -> bool:
        is_id = len(word) >= LEAST_OF_ID and self.point.id.hex().startswith(word)
        return word in self._text or word == str(self.point.n) or is_id


@dataclass(frozen=True)
class Picker:
    """One moment of the picker; what is typed makes another of it."""

    choices: tuple[Choice, ...]
    typed: str = ""
    at: int = 0
    """Which of the shown ones."""
    scroll: int = 0
    """How many lines of the preview are above what is seen of it."""

    @cached_property
    def shown(self) -> tuple[Choice, ...]:
        """Those that fit every word, in any order and case."""
        words = _folded(self.typed).split()
        return tuple(one for one in self.choices if all(map(one.fits, words)))

    @property
    def chosen(self) -> Choice | None:
        return self.shown[self.at] if self.shown else None

    def filtered(self, typed: str) -> Picker:
        """The one that was chosen stays so while it fits, else it is the first that does."""
        after = replace(self, typed=typed, at=0, scroll=0)
        if self.chosen in after.shown:
            kept = after.shown.index(self.chosen)
            return replace(after, at=kept, scroll=self.scroll)
        return after

    def with_more(self, text: str) -> Picker:
        """What is pasted may hold anything; on one line it is a filter."""
        line = "".join(char if char.isprintable() else " " for char in text)
        return self.filtered(self.typed + line)

    def without_last(self) -> Picker:
        return self.filtered(self.typed[:-1])

    def without_last_word(self) -> Picker:
        words = self.typed.rstrip()
        return self.filtered(words[: words.rfind(" ") + 1])

    def moved(self, by: int) -> Picker:
        """Up and down, but not beyond the ends."""
        at = max(0, min(self.at + by, len(self.shown) - 1))
        return self if at == self.at else replace(self, at=at, scroll=0)

    def scrolled(self, by: int, most: int) -> Picker:
        """The preview's lines up and down; `most` is where its last line is seen."""
        return replace(self, scroll=max(0, min(min(self.scroll, most) + by, most)))


def _folded(text: str) -> str:
    """Equal for what reads the same, however it was typed."""
    return unicodedata.normalize("NFKC", text).casefold()
