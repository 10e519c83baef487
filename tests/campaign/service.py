"""The running service is killed while a client has it mark, roll back and undo, in two workspaces.

Real processes: the service, and a client which also rolls back both workspaces of a session as one.
After each death the next command works without the service, all that was acknowledged is exact, and
a new service takes up where the old one was killed.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from core.errors import TurnmarkError
from tests import live
from watcher.client import Client
from watcher.rollbacks import How
from watcher.together import run_together

from .child import in_child, kill
from .frame import Figures, Job, Part
from .ground import Ground
from .oracle import Judge, Wrong
from .worker import change

SESSION = "campaign"
LONGEST_LIFE = 1.5
NEW_PLACE = 20


@dataclass
class Place:
    """Owns a home with its service, two workspaces, and the judge of each."""

    live: live.Live
    judges: list[Judge]

    @property
    def grounds(self) -> list[Ground]:
        return [judge.ground for judge in self.judges]

    @property
    def dirs(self) -> list[str]:
        return [str(ground.tree) for ground in self.grounds]


def new_place(base: Path) -> Place:
    base.mkdir()
    grounds = []
    for name in ("one", "two"):
        ground = Ground(base / name, base / f"{name}.told")
        ground.store = str(base / "data/store")
        grounds.append(ground.build(with_store=False))
    home = live.Live(base)
    home.watch_list(*(ground.tree for ground in grounds))
    return Place(home, [Judge(ground) for ground in grounds])


def service(job: Job) -> Figures:
    figures, place = Figures(), None
    for number in job.turns(figures):
        if place is None or number % NEW_PLACE == 0:
            close(place)
            place = new_place(job.scratch / str(number))
        try:
            one_death(place, job, number, figures)
        except (Wrong, AssertionError) as wrong:
            figures.found.append(f"death {number}: {wrong}")
            place.live.close()
            place = None
    close(place)
    return figures


def close(place: Place | None) -> None:
    if place is not None:
        place.live.close()
        shutil.rmtree(place.live.base)


def one_death(place: Place, job: Job, number: int, figures: Figures) -> None:
    rng = job.rng("service", number)
    before = sum(judge.words["ack"] for judge in place.judges)
    pid = place.live.up()
    client = in_child(partial(talk, place, f"{job.seed}-{number}"))
    time.sleep(0.05 + rng.random() * LONGEST_LIFE)
    place.live.kill(pid)
    kill(client)
    for judge in place.judges:
        judge.read_on()
        judge.check_tree()
    for judge in place.judges:
        recover(place, judge)
    place.judges[0].check_store()
    place.judges[1].check_store()
    figures.count("acknowledgements", sum(j.words["ack"] for j in place.judges) - before)


def recover(place: Place, judge: Judge) -> None:
    """The next command, without a service; what it acknowledges is told to the judge as well."""
    answer = place.live.ask("snapshot", str(judge.ground.tree))
    image = judge.ground.keep_image(judge.ground.image())
    tell(judge.ground, "found", image)
    tell(judge.ground, "ack", answer["id"], image)
    judge.read_on()
    judge.check_tree()


def tell(ground: Ground, *words: str) -> None:
    with ground.oracle.open("a") as file:
        file.write(" ".join(words) + "\n")


# The client, in a child


def talk(place: Place, seed: str) -> None:
    rng = random.Random(seed)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - this process only ever ends by a kill
    with place.live.client() as client:
        while True:
            for ground in place.grounds:
                write(ground, rng)
            rng.choice(ASKS)(place, client, rng)


def write(ground: Ground, rng: random.Random) -> None:
    tell(ground, "changing")
    for _ in range(rng.randint(1, 5)):
        change(ground.tree, rng)
    tell(ground, "tree", ground.keep_image(ground.image()))


def mark(place: Place, client: Client, rng: random.Random) -> None:
    ground = rng.choice(place.grounds)
    tell(ground, "verb", "mark")
    answer = client.call("mark", patience=20, dir=str(ground.tree), label="a point")
    tell(ground, "ack", answer["id"], ground.keep_image(ground.image()))


def turn(place: Place, client: Client, rng: random.Random) -> None:
    """Begins, works in both, ends; each mark is acknowledged on its own."""
    for method in ("turn.begin", "turn.end"):
        for ground in place.grounds:
            tell(ground, "verb", method)
        answer = client.call(method, patience=20, dirs=place.dirs, session=SESSION)
        for found, ground in zip(answer["marks"], place.grounds, strict=True):
            tell(ground, "ack", found["id"], ground.keep_image(ground.image()))
        if method == "turn.begin":
            for ground in place.grounds:
                write(ground, rng)


def go_back(place: Place, client: Client, rng: random.Random) -> None:
    ground = rng.choice(place.grounds)
    if not ask_for(ground, client, "mark", label="before"):
        return
    way = {"dir": str(ground.tree), "point": rng.choice(["@-2", "@-3", "baseline"])}
    tell(ground, "verb", "rollback")
    tell(ground, "astray")
    ask_for(ground, client, "rollback", **way)


def undo(place: Place, client: Client, rng: random.Random) -> None:
    ground = rng.choice(place.grounds)
    tell(ground, "verb", "undo")
    tell(ground, "astray")
    ask_for(ground, client, "undo")


def ask_for(ground: Ground, client: Client, method: str, **params: str) -> bool:
    """False if the service says no: there may be no such point, or nothing to undo."""
    try:
        shown = client.call(method, patience=20, **{**params, "dir": str(ground.tree)})
    except TurnmarkError:
        if not client_is_alive(client):
            raise
        return False
    return bool(shown)


def client_is_alive(client: Client) -> bool:
    return bool(client.call("hello", patience=20))


def together(place: Place, client: Client, rng: random.Random) -> None:
    turn(place, client, rng)
    for ground in place.grounds:
        write(ground, rng)
        tell(ground, "verb", "rollback of a session")
        tell(ground, "astray")
    run_together(place.live.context, How((), yes=True), SESSION, "@", mine_stays=False)


ASKS: tuple[Callable[[Place, Client, random.Random], None], ...] = (
    *(mark, turn, go_back, undo, together),
)


PART = Part(
    "service",
    "the running service killed at a random instant, with two workspaces and a client",
    service,
    {"ci": 6, "night": 300, "release": 1_000},
    needs=("git",),
    in_memory=True,
)
