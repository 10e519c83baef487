"""Hostile bytes for everything that decodes: the protocol, packs, records, rules, configuration.

Each target takes bytes and may raise only what its module declares; anything else, or taking long,
is a finding. Where atheris is installed the inputs are guided by coverage, in a process of their
own; everywhere else, and also there for a tenth, they are seeds that are mutated blindly: byte by
byte, and documents value by value.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

from core.about import decode_about
from core.disk import REAL
from core.errors import BadInput, ConfigError, Damaged, TurnmarkError
from core.gitignore import parse_gitignore
from core.history import read_mark, read_snapshot
from core.journal import NO_JOURNAL, decode_journal
from core.model import ROOT, Oid
from core.objects import Kind, encode_tree, hash_object, parse_tree, references
from core.packs import Pack
from core.refs import parse_packed
from core.rules import DirRules, RuleSet
from core.sessions import parse_input
from core.store import Store
from core.sweep import parse_dropped
from core.verify import is_possible, parse_packed_strictly
from watcher import agents
from watcher.config import parse_config
from watcher.protocol import ProtocolError, decode_answer, decode_request

from .frame import Figures, Job, Part

SLOW_SECONDS = 5
GUIDED_SHARE = 0.9
WORDS = (
    *(b"\0", b"\xff", b"\n", b"..", b"/", b"{", b"[", b'"', b"null", b"1e999", b"-1", b"NaN"),
    *(b"\\ud800", b"!!python/object/apply:os.system", b"&a", b"*a", b"<<: ", b"**/", b"[!-]"),
    *(b"9" * 400, b"[" * 2000, b"100644 ", b"tree ", b"object ", b"end\n", b"\xfftOc"),
)
VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1 << 80, 1e300, float("inf"), "", "x", "\0", "\udcff", "../x", "00" * 20),
    *([], {}, [None], {"a": None}, [[[[]]]], "ff", "9" * 400),
)


@dataclass(frozen=True)
class Target:
    """Something that decodes: what it may raise, and where mutation begins."""

    run: Callable[[bytes], object]
    allowed: tuple[type[BaseException], ...]
    seeds: Callable[[], list[bytes]]


# Protocol


def protocol(data: bytes) -> None:
    with suppress(ProtocolError):
        decode_request(data)
    with suppress(ProtocolError):
        decode_answer(data)


def payloads(data: bytes) -> None:
    """What an agent's hook hands over, for each agent that turnmark knows."""
    try:
        payload = json.loads(data)
    except (ValueError, RecursionError):
        return
    for name in agents.AGENTS:
        for event in ("UserPromptSubmit", "Stop", "SessionStart", "beforeSubmitPrompt", ""):
            agents.read(name, payload, event, {})


def protocol_seeds() -> list[bytes]:
    params = {"dirs": ["/a"], "session": "s", "prompt": "p", "pid": 1, "messages": 3}
    request = {"jsonrpc": "2.0", "id": 1, "method": "turn.begin", "params": params}
    answer = {"jsonrpc": "2.0", "id": 1, "result": {"marks": []}}
    error = {"jsonrpc": "2.0", "id": "x", "error": {"code": -1, "message": "m", "data": {}}}
    return [json.dumps(doc).encode() for doc in (request, answer, error)]


def payload_seeds() -> list[bytes]:
    claude = {"session_id": "s", "cwd": "/w", "prompt": "p", "hook_event_name": "Stop"}
    codex = {"type": "agent-turn-complete", "turn-id": "1", "thread-id": "s", "cwd": "/w"}
    other = {"conversation_id": "c", "workspace_roots": ["/w"], "extra": {"status": "ok"}}
    return [json.dumps(doc).encode() for doc in (claude, codex, other)]


# Packs


@cache
def _own_pack() -> tuple[bytes, bytes, tuple[Oid, ...]]:
    """A pack and an index as we write them."""
    with tempfile.TemporaryDirectory() as place:
        store = Store.create(f"{place}/store")
        with store.writing() as writer:
            blob = writer.add("blob", b"contents " * 99)
            entries = b"100644 f\0" + blob + b"100755 g\0" + writer.add("blob", b"")
            writer.add("tree", entries)
            (path,) = writer.settle(sync=False).packs
        pack = Pack(REAL, path)
        oids = tuple(pack.oids())
        pack.close()
        return Path(path + ".pack").read_bytes(), Path(path + ".idx").read_bytes(), oids


@cache
def _place() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="turnmark-fuzz-")


def _write_both(pack: bytes, index: bytes) -> str:
    path = f"{_place().name}/pack-x"
    for end, data in ((".pack", pack), (".idx", index)):
        Path(path + end).write_bytes(data)
    return path


def packs(data: bytes) -> None:
    """First byte: whether it is an index or a pack, and whether its check sum is put right."""
    whole_pack, whole_index, oids = _own_pack()
    kind, body = data[:1], data[1:]
    if kind and kind[0] & 2:
        body += hashlib.sha1(body, usedforsecurity=False).digest()
    is_index = bool(kind) and bool(kind[0] & 1)
    path = _write_both(whole_pack, body) if is_index else _write_both(body, whole_index)
    try:
        pack = Pack(REAL, path)
    except (Damaged, OSError, ValueError):  # what Store._open_pack takes for a broken pack
        return
    try:
        for oid in (*oids, Oid(b"\xff" * 20)):
            with suppress(Damaged):
                found = pack.read(oid)
                assert found is None or hash_object(*found) == oid, "other bytes than asked for"
        with suppress(Damaged, OSError):
            pack.check()
    finally:
        pack.close()


def pack_seeds() -> list[bytes]:
    pack, index, _ = _own_pack()
    return [b"\0" + pack, b"\2" + pack[:-20], b"\1" + index, b"\3" + index[:-20]]


# Records


class _Given:
    """A store that holds one object."""

    def __init__(self, kind: Kind, data: bytes) -> None:
        self.found = kind, data

    def read(self, oid: Oid) -> tuple[Kind, bytes]:
        return self.found


def trees(data: bytes) -> None:
    entries = parse_tree(data)
    again = parse_tree(encode_tree(entries.items()))
    assert again == entries, "a tree is not what it was after a round trip"


def commits(data: bytes) -> None:
    with suppress(Damaged):
        read_snapshot(cast(Store, _Given("commit", data)), Oid(b"\0" * 20))
    with suppress(Damaged):
        read_mark(cast(Store, _Given("tag", data)), Oid(b"\0" * 20))
    kinds: tuple[Kind, ...] = ("commit", "tag", "tree")
    for kind in kinds:
        with suppress(Damaged):
            list(references(kind, data))


def refs(data: bytes) -> None:
    with suppress(ValueError):
        for name, oid in parse_packed(data).items():
            assert len(oid) == 20, name
            is_possible(name)
    parse_packed_strictly(data)
    with suppress(Damaged):
        assert all(len(oid) == 20 for oid in parse_dropped(data)), "a dropped id of another length"


def tree_seeds() -> list[bytes]:
    return [b"100644 a\0" + b"\1" * 20 + b"40000 d\0" + b"\2" * 20 + b"120000 l\0" + b"\3" * 20]


def about_seeds() -> list[bytes]:
    rules = RuleSet().to_json()
    head = {"about": 1, "coverage": "full", "usual": [420, 493, 493], "rules": rules}
    line = {"dir": "d", "mode": 448, "empty": True, "modes": {"a": 384}, "gaps": {"b": "torn"}}
    return [json.dumps(head).encode() + b"\n" + json.dumps(line).encode() + b"\n"]


def commit_seeds() -> list[bytes]:
    oid = "11" * 20
    told: dict[str, Any] = {"turnmark": 1, "workspace": "ab", "root": "/w", "seq": 1, "time_ns": 5}
    snapshot = {"files": oid, "about": oid, "changed": 1, "gaps": 0, "total": 1, "note": ""}
    snapshot |= {"partial": False, "prev": None}
    mark: dict[str, Any] = {
        "kind": "manual",
        "label": "x",
        "session": None,
        "turn": None,
        "turn_id": None,
    }
    mark |= {"agent": None, "status": "ok", "gaps": 0, "extra": {}, "prev": oid}
    who = "turnmark <turnmark@localhost> 5 +0000"
    commit = f"tree {oid}\nauthor {who}\ncommitter {who}\n\nsnapshot\n\n"
    tag = f"object {oid}\ntype commit\ntag t\ntagger {who}\n\nmanual\n\n"
    return [
        (commit + json.dumps({**told, **snapshot}) + "\n").encode(),
        (tag + json.dumps({**told, **mark}) + "\n").encode(),
    ]


def journal_seeds() -> list[bytes]:
    oid = "11" * 20
    step = ["replace", "a", ["file", oid, 420], ["link", oid, None]]
    doc = {"journal": 1, "tx": "0123456789abcdef", "root": [1, 2], "target": oid, "before": oid}
    return [json.dumps({**doc, "steps": [step], "extra": {"title": "t"}}).encode()]


def ref_seeds() -> list[bytes]:
    oid = b"11" * 20
    line = oid + b" refs/turnmark/0123456789abcdef/s/1\n"
    return [
        b"# pack-refs with: sorted \n" + line + b"^" + b"22" * 20 + b"\n",
        b"11" * 20 + b"\nend\n",
    ]


# Rules and configuration

NAMES = (
    b"a",
    b".git",
    b"GIT~1",
    b"\xff",
    b"a b",
    b".env",
    b"x" * 255,
    b"a.o",
    b"\n",
    b"node_modules",
)


def rules(data: bytes) -> None:
    """Any .gitignore, and any patterns of the user's: no error, and not slow."""
    parse_gitignore.cache_clear()
    text = data.decode("utf-8", "surrogateescape").split("\n")
    one = DirRules.root(RuleSet(exclude=(), protect=()), data)
    other = DirRules.root(RuleSet(exclude=tuple(text[:50]), protect=tuple(text[50:60])), None)
    for top in (one, other):
        below = top.child(b"d", data[:100]).child(b"e", None)
        for where in (top, below):
            for name in (*NAMES, data[:40].replace(b"/", b"").replace(b"\0", b"") or b"n"):
                where.verdict(name, True)
                where.verdict(name, False)
    assert one.path == ROOT


def rule_seeds() -> list[bytes]:
    return [
        b"*.o\n!keep.o\n/build/\n**/x/**\na/**/b\n[a-z]*[!0-9]\n\\#x\n foo\\ \n",
        b"a" * 50 + b"*",
    ]


def rule_records(data: bytes) -> None:
    try:
        doc = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(doc, dict):
        with suppress(Damaged):
            RuleSet.from_json(doc)


def config(data: bytes) -> None:
    parse_config(data, "f", home="/home/x", env={"A": "/a"})


def config_seeds() -> list[bytes]:
    example = Path(__file__).parents[2] / "config.example.yaml"
    small = b"watch:\n  - ~/a\n  - path: $A/*\n    exclude: {add: [x/]}\nstore: {max_points: 5}\n"
    return [example.read_bytes(), small]


def session_seeds() -> list[bytes]:
    return [b"session_id: s\nprogress: [a, 2026-01-01]\nstate: {a: 1}\n", b'{"a": [1, 2]}']


TARGETS: dict[str, dict[str, Target]] = {
    "protocol": {
        "messages": Target(protocol, (), protocol_seeds),
        "payloads": Target(payloads, (TurnmarkError,), payload_seeds),
    },
    "packs": {"packs": Target(packs, (), pack_seeds)},
    "records": {
        "trees": Target(trees, (Damaged,), tree_seeds),
        "about": Target(decode_about, (Damaged,), about_seeds),
        "commits": Target(commits, (), commit_seeds),
        "journals": Target(decode_journal, NO_JOURNAL, journal_seeds),
        "references": Target(refs, (), ref_seeds),
    },
    "rules": {
        "rules": Target(rules, (), rule_seeds),
        "rule records": Target(
            rule_records, (), lambda: [json.dumps(RuleSet().to_json()).encode()]
        ),
    },
    "config": {
        "config": Target(config, (ConfigError,), config_seeds),
        "session states": Target(parse_input, (BadInput,), session_seeds),
    },
}


# Running one input


class TooSlow(BaseException):
    """Not an Exception, so that no target takes it for one of its own."""


@contextmanager
def in_time() -> Iterator[None]:
    def strike(_number: int, _frame: object) -> None:
        raise TooSlow

    old = signal.signal(signal.SIGALRM, strike)
    signal.setitimer(signal.ITIMER_REAL, SLOW_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def trouble(target: Target, data: bytes) -> str:
    """What was wrong with how the input was taken; nothing, if all was well."""
    try:
        with in_time():
            target.run(data)
    except target.allowed:
        return ""
    except TooSlow:
        return f"more than {SLOW_SECONDS} s"
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        return f"{type(error).__name__}: {str(error)[:100]}"
    return ""


# Blind mutation


def mutated(rng: random.Random, seeds: list[bytes]) -> bytes:
    seed = rng.choice(seeds)
    if rng.random() < 0.5 and (changed := document(rng, seed)) is not None:
        return changed
    data = bytearray(seed)
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        rng.choice((_flip, _insert, _cut, _repeat, _splice))(rng, data, seeds)
    return bytes(data)


def _flip(rng: random.Random, data: bytearray, _: list[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _insert(rng: random.Random, data: bytearray, _: list[bytes]) -> None:
    at = rng.randint(0, len(data))
    data[at:at] = rng.choice(WORDS)


def _cut(rng: random.Random, data: bytearray, _: list[bytes]) -> None:
    at = rng.randint(0, len(data))
    del data[at : at + rng.choice((1, 2, 20, 1000))]


def _repeat(rng: random.Random, data: bytearray, _: list[bytes]) -> None:
    at = rng.randint(0, len(data))
    data[at:at] = data[at : at + rng.choice((1, 4, 40))] * rng.choice((1, 2, 50))


def _splice(rng: random.Random, data: bytearray, seeds: list[bytes]) -> None:
    other = rng.choice(seeds)
    data[rng.randint(0, len(data)) :] = other[rng.randint(0, len(other)) :]


def document(rng: random.Random, seed: bytes) -> bytes | None:
    """One of the JSON documents in a seed, with some of its values replaced, left out or added."""
    lines = seed.split(b"\n")
    places = [n for n, line in enumerate(lines) if line.startswith((b"{", b"["))]
    if not places:
        return None
    place = rng.choice(places)
    try:
        doc = json.loads(lines[place])
    except ValueError:
        return None
    for _ in range(rng.choice((1, 1, 2, 4))):
        doc = _value_changed(rng, doc)
    lines[place] = json.dumps(doc).encode()
    return b"\n".join(lines)


def _value_changed(rng: random.Random, doc: Any) -> Any:
    if isinstance(doc, dict) and doc and rng.random() < 0.9:
        key = rng.choice(sorted(doc))
        if rng.random() < 0.15:
            return {name: value for name, value in doc.items() if name != key}
        if rng.random() < 0.1:
            return {**doc, str(rng.choice(("..", "/", "", "\0", "\udc80"))): doc[key]}
        return {**doc, key: _value_changed(rng, doc[key])}
    if isinstance(doc, list) and doc and rng.random() < 0.9:
        at = rng.randrange(len(doc))
        return [*doc[:at], _value_changed(rng, doc[at]), *doc[at + 1 :]]
    return rng.choice(VALUES)


def blindly(job: Job, name: str, count: int, figures: Figures) -> None:
    rng = job.rng("fuzz", name)
    targets = [(title, target, target.seeds()) for title, target in TARGETS[name].items()]
    for number in range(count):
        title, target, seeds = targets[number % len(targets)]
        data = mutated(rng, seeds)
        if wrong := trouble(target, data):
            figures.found.append(f"{title}: {wrong}; input {keep(job, data)}")
        figures.done += 1
        if number % 500 == 0:
            job.keep(figures)
            if time.monotonic() > job.until or len(figures.found) > 10:
                break
    figures.count("blindly", count)


def keep(job: Job, data: bytes) -> Path:
    """What was found stays for a look, and for the corpus."""
    path = job.scratch / f"found-{hashlib.sha256(data).hexdigest()[:12]}"
    path.write_bytes(data)
    return path


# Guided by coverage


def guided(job: Job, name: str, count: int, figures: Figures) -> None:
    for title, target in TARGETS[name].items():
        place = job.scratch / title.replace(" ", "-")
        (place / "corpus").mkdir(parents=True)
        for number, seed in enumerate(target.seeds()):
            (place / "corpus" / f"seed-{number}").write_bytes(seed)
        runs = count // len(TARGETS[name])
        order = [f"{name}/{title}", str(runs), str(job.seed), str(place)]
        with (place / "log").open("wb") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "tests.campaign.guided", *order],
                env={**os.environ, "TMPDIR": str(place)},  # it ends without tidying up
                stdout=log,
                stderr=log,
            )
            try:
                child.wait(max(1.0, min(job.until - time.monotonic(), 1e7)))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
                figures.count("stopped by the clock")
                continue
        figures.done += runs
        figures.count("guided by coverage", runs)
        found = sorted(str(p) for p in place.iterdir() if p.name.startswith(("crash", "timeout")))
        if found or child.returncode:
            figures.found.append(f"{title}: see {place}/log, input {found}")
        job.keep(figures)


def run(name: str) -> Callable[[Job], Figures]:
    def fuzz(job: Job) -> Figures:
        figures = Figures()
        with_atheris = importlib.util.find_spec("atheris") is not None
        share = int(job.count * GUIDED_SHARE) if with_atheris else 0
        blindly(job, name, job.count - share, figures)
        if share:
            guided(job, name, share, figures)
        return figures

    return fuzz


def part(name: str, title: str, ci: int, release: int) -> Part:
    counts = {"ci": ci, "night": release // 10, "release": release}
    return Part(f"fuzz-{name}", title, run(name), counts)  # type: ignore[arg-type]


PARTS = (
    part("protocol", "hostile messages and agents' payloads", 4_000, 10_000_000),
    part("packs", "hostile packs and indexes", 1_500, 2_000_000),
    part("records", "hostile trees, records, journals, references", 10_000, 20_000_000),
    part("rules", "hostile patterns", 1_000, 1_000_000),
    part("config", "hostile configuration and session states", 600, 1_000_000),
)
