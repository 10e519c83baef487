"""Two contenders timed in turns, and what is said of the result; pure but for the clock."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Literal

Act = Callable[[], object]


@dataclass(frozen=True)
class Target:
    """What the ratio must be; `>=` says how many times faster, `<=` how many times as much."""

    sign: Literal[">=", "<="]
    value: float
    unit: str = "x"

    def met(self, ratio: float) -> bool:
        return ratio >= self.value if self.sign == ">=" else ratio <= self.value

    def __str__(self) -> str:
        return f"{self.sign} {self.value:g}{self.unit}"


@dataclass(frozen=True)
class Result:
    """One line of the table; `unit` is that of ours and other."""

    what: str
    ours: float
    other: float | None
    against: str
    ratio: float
    low: float
    high: float
    target: Target | None
    unit: Literal["s", "MB", "%", ""] = "s"
    less_is_better: bool = False

    def __post_init__(self) -> None:
        if self.target is not None and self.target.sign == "<=":
            object.__setattr__(self, "less_is_better", True)

    @property
    def verdict(self) -> str:
        if self.target is None:
            return "-"
        return "met" if self.target.met(self.ratio) else "MISSED"

    def to_json(self, *, judge: bool) -> dict[str, object]:
        target = str(self.target) if self.target else None
        return asdict(self) | {"target": target, "verdict": self.verdict if judge else None}


_settle: Act | None = os.sync


def settle_with(act: Act | None) -> None:
    """What brings the disk to rest before each act; None where times do not matter."""
    global _settle  # noqa: PLW0603 - one clock for all rows, as there is one disk
    _settle = act


def seconds(act: Act) -> float:
    """What an act takes on a disk that has nothing left to write from the one before."""
    gc.collect()
    if _settle is not None:
        _settle()
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


@dataclass(frozen=True)
class Times:
    """Seconds of both, repetition by repetition."""

    ours: list[float]
    other: list[float]

    def faster(self, what: str, least: float | None, against: str = "git") -> Result:
        """How many times faster than the other."""
        target = None if least is None else Target(">=", least)
        return self._result(what, against, target, inverse=False)

    def costs(self, what: str, most: float | None, against: str) -> Result:
        """How many times what the other costs."""
        target = None if most is None else Target("<=", most)
        return self._result(what, against, target, inverse=True)

    def _result(self, what: str, against: str, target: Target | None, inverse: bool) -> Result:
        ours, other = median(self.ours), median(self.other)
        pairs = list(zip(self.ours, self.other, strict=True))
        ratios = [a / b if inverse else b / a for a, b in pairs]
        ratio = ours / other if inverse else other / ours
        low, high = min(ratios), max(ratios)
        return Result(what, ours, other, against, ratio, low, high, target, less_is_better=inverse)


def in_turns(times: int, prepare: Act, ours: Act, other: Act) -> Times:
    """Each repetition times both on the same state; who goes first alternates."""
    found = Times([], [])
    for number in range(times):
        prepare()
        for act, out in _order(number, (ours, found.ours), (other, found.other)):
            out.append(seconds(act))
    return found


def _order(
    number: int, one: tuple[Act, list[float]], two: tuple[Act, list[float]]
) -> Iterator[tuple[Act, list[float]]]:
    yield from (one, two) if number % 2 == 0 else (two, one)


def one_round(
    number: int, acts: Mapping[str, Act], ready: Callable[[str], object]
) -> dict[str, float]:
    """Times all on the same state; in each round somebody else goes first."""
    found: dict[str, float] = {}
    for name in rotated(number, acts):
        ready(name)
        found[name] = seconds(acts[name])
    return found


def rotated(number: int, names: Iterable[str]) -> list[str]:
    every = list(names)
    first = number % len(every)
    return every[first:] + every[:first]


def within(what: str, values: list[float], most: float, against: str = "limit") -> Result:
    """Seconds that must stay below a number of milliseconds."""
    scaled = sorted(value * 1000 for value in values)
    target = Target("<=", most, " ms")
    return Result(
        what, median(values), None, against, median(scaled), scaled[0], scaled[-1], target
    )


def bytes_ratio(what: str, ours: int, other: int, against: str, most: float | None) -> Result:
    target = None if most is None else Target("<=", most)
    ratio = ours / other
    mb = ours / 1e6, other / 1e6
    return Result(what, *mb, against, ratio, ratio, ratio, target, "MB", less_is_better=True)
