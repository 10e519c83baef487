"""How a store is pruned: by the rules of `keeping`, workspace by workspace, and then to its size.

What is no longer referenced is `sweep`'s business.

Order of a prune, and what is true if the process dies after each step:
1. decided without a lock; under the exclusive lock decided again where references came or went;
2. the ids to be dropped are noted, the generation moves, references are folded, packed-refs is
   replaced: with this one step all of them are dropped;
3. of a workspace dropped whole its cache, journal and last its register go: a register without
   references is removed by the next prune;
4. swept: see there; 5. if the store is above its cap: from 2 again, with more.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import Literal

from . import reserve
from .consolidate import PATIENCE, compact, has_room
from .deep import repack
from .errors import NO_SPACE, Busy, Damaged
from .history import History, workspaces
from .keeping import HOUR_NS, Book, Kept, Policy, Row, ages, keep, states_of
from .model import Oid
from .presence import State, record_of, state_of
from .refs import TOP, ref_name
from .store import Store, registry_path
from .sweep import Reach, Swept, drop_refs, reclaim, size_on_disk

ROUNDS = 8
SLACK = 16384
"""Files take whole blocks."""
INDEX_BYTES = 32
"""What an object takes beside its bytes: its entry in the index, and a share of a reference."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a prune did, or would do; `orphans` and `stale` are workspaces dropped whole."""

    scanned: int
    orphans: tuple[str, ...]
    stale: tuple[str, ...]
    errors: tuple[str, ...]
    snapshots_dropped: int
    bytes_before: int
    bytes_after: int
    reclaimed: int
    over_cap_reason: str = ""


@dataclass(frozen=True, slots=True)
class Order:
    """What a prune is asked to do."""

    policy: Policy
    now_ns: int
    keep_orphans: bool = False
    protect: frozenset[Oid] = frozenset()
    agreed: frozenset[str] | None = None
    unfinished: Mapping[str, frozenset[Oid]] = field(default_factory=dict)
    attended: bool = True


@dataclass(frozen=True)
class Ledger:
    """One workspace as it was read: its history, its references, and whether it is still there."""

    workspace: str
    state: State
    book: Book
    names: frozenset[str]
    errors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The references of one workspace that go; `whole` if no other is left."""

    names: frozenset[str]
    snapshots: int
    whole: Literal["", "orphan", "stale"] = ""


def prune(
    store: Store,
    policy: Policy,
    now_ns: int,
    *,
    keep_orphans: bool = False,
    dry_run: bool = False,
    protect: Collection[Oid] = (),
    git: str | None = None,
    agreed: Collection[str] | None = None,
) -> Pruned:
    """Drops what the policy does not keep, then more until the store is within its size.

    protect: snapshots or marks in use right now. git: compress with it before dropping for size.
    agreed: the only workspaces that may be dropped whole; None means any.
    """
    with store.maintaining():
        order = _order(store, policy, now_ns, keep_orphans, protect, agreed)
        return (_DryRun if dry_run else _Prune)(store, order, git).run()


def _order(
    store: Store,
    policy: Policy,
    now_ns: int,
    keep_orphans: bool,
    protect: Collection[Oid],
    agreed: Collection[str] | None,
    *,
    attended: bool = True,
) -> Order:
    only = None if agreed is None else frozenset(agreed)
    unfinished = _in_journals(store)
    fixed = frozenset(protect)
    return Order(policy, now_ns, keep_orphans, fixed, only, unfinished, attended)


def auto_prune(
    store: Store,
    policy: Policy,
    now_ns: int,
    *,
    protect: Collection[Oid] = (),
    git: str | None = None,
) -> Pruned | None:
    """Prunes unless that was done lately; a marker that is damaged or of the future says nothing.

    The marker is written first, so that a prune that kills its process does not do so in a loop.
    """
    marker = f"{store.base}/turnmark/last_prune"
    with store.maintaining(0.0):
        try:
            last = int(store.disk.read_file(marker))
        except (FileNotFoundError, ValueError):
            last = -1
        if last >= 0 and 0 <= now_ns - last < policy.min_interval_hours * HOUR_NS:
            return None
        reserve.give_up(store.disk, store.base)
        store.disk.replace(marker, b"%d\n" % now_ns)
        order = _order(store, policy, now_ns, False, protect, None, attended=False)
        return _Prune(store, order, git).run()


def _in_journals(store: Store) -> dict[str, frozenset[Oid]]:
    """By workspace every id in the journal of its unfinished rollback, which may need any."""
    directory = f"{store.base}/turnmark/journal"
    with store.disk.scandir(directory) as found:
        names = [entry.name[:-5] for entry in found if entry.name.endswith(".json")]
    return {name: _ids_in(store.disk.read_file(f"{directory}/{name}.json")) for name in names}


def _ids_in(text: bytes) -> frozenset[Oid]:
    found = re.findall(rb"\b[0-9a-f]{40}\b", text)
    return frozenset(Oid(bytes.fromhex(one.decode("ascii"))) for one in found)


def read_ledger(store: Store, workspace: str, order: Order) -> Ledger:
    """What cannot be read is not in the book, and so is never dropped."""
    history = History(store, workspace)
    state = state_of(store.disk, record_of(store, workspace))
    unfinished = order.unfinished.get(workspace, frozenset()) if state != "orphan" else frozenset()
    pins = frozenset(history.pins | order.protect | unfinished)
    book = Book(tuple(history.marks()), tuple(history.snapshots()), pins, live=True)
    agreed = order.agreed is None or workspace in order.agreed
    by_itself = state != "live" and not order.attended  # a disk may be in a drawer for long
    stays = state == "live" or by_itself or not agreed or not _is_stale(book, order)
    names = _names(workspace, history)
    return Ledger(workspace, state, replace(book, live=stays), names, tuple(history.damage))


def _is_stale(book: Book, order: Order) -> bool:
    """Whether nothing was added for so long that a workspace that is away goes as a whole."""
    limit = order.policy.retention_days * 24 * HOUR_NS
    youngest = min(ages(book, order.now_ns).values(), default=0)
    return bool(limit) and youngest > limit


def _names(workspace: str, history: History) -> frozenset[str]:
    return frozenset(
        (
            *(ref_name(workspace, "s", seq) for seq in history.snapshot_ids),
            *(ref_name(workspace, "m", seq) for seq in history.mark_ids),
            *(ref_name(workspace, "p", oid.hex()) for oid in history.pins),
        )
    )


def judge(ledger: Ledger, order: Order) -> Verdict:
    """What goes of one workspace by the rules, whatever the size of the store."""
    book, workspace = ledger.book, ledger.workspace
    if ledger.errors:  # nothing goes of a history that cannot be read whole
        return Verdict(frozenset(), 0)
    agreed = order.agreed is None or workspace in order.agreed
    ripe = order.attended or _is_stale(book, order)  # what was deleted just now may be wanted back
    if ledger.state == "orphan" and agreed and _orphans_go(order) and ripe:
        book = replace(book, live=False)
        rows = (*book.points, *book.bursts)
        return _verdict(ledger, book.held_by(filter(book.is_fixed, rows)), "orphan")
    kept = keep(book.marks, book.snapshots, book.pins, order.now_ns, order.policy, live=book.live)
    return _verdict(ledger, kept, "stale")


def confirm(ledger: Ledger, verdict: Verdict) -> Verdict:
    """What still goes of a workspace whose history has grown since the verdict."""
    if ledger.errors:
        return Verdict(frozenset(), 0)
    book = ledger.book
    gone = {row.seq for row in book.droppable() if verdict.names >= _row_names(ledger, row)}
    rows = [row for row in (*book.points, *book.bursts) if row.seq not in gone]
    return _verdict(ledger, book.held_by(rows), verdict.whole or "stale")


def _row_names(ledger: Ledger, row: Row) -> set[str]:
    if row.burst is not None:
        return {ref_name(ledger.workspace, "s", row.burst.seq)}
    return {ref_name(ledger.workspace, "m", mark.seq) for mark in row.marks}


def _orphans_go(order: Order) -> bool:
    return order.policy.delete_orphans and not order.keep_orphans


def _verdict(ledger: Ledger, kept: Kept, why: Literal["orphan", "stale"]) -> Verdict:
    book, workspace = ledger.book, ledger.workspace
    snapshots = {one.seq for one in book.snapshots} - kept.snapshots
    marks = {mark.seq for mark in book.marks} - kept.marks
    names = {ref_name(workspace, "s", seq) for seq in snapshots}
    names |= {ref_name(workspace, "m", seq) for seq in marks}
    whole = names == ledger.names and ledger.state != "live"
    return Verdict(frozenset(names), len(snapshots), why if whole else "")


class _DryRun:
    """Owns the course of one prune, without doing any of it."""

    def __init__(self, store: Store, order: Order, git: str | None) -> None:
        self.store = store
        self.order = order
        self.git = git
        self.errors: list[str] = []
        self.dropped = 0
        self.whole: dict[str, str] = {}
        self.scanned = 0
        self.gone: set[str] = set()

    def run(self) -> Pruned:
        before = size_on_disk(self.store)
        ledgers = self.read()
        self.scanned = len(ledgers)
        self.drop({one.workspace: judge(one, self.order) for one in ledgers}, ledgers)
        after = self.reclaim()
        reason = ""
        cap = self.order.policy.max_total_size
        if cap and after > cap:
            after, reason = self.shrink(after, cap)
        return Pruned(
            scanned=self.scanned,
            orphans=self._whole("orphan"),
            stale=self._whole("stale"),
            errors=tuple(dict.fromkeys(self.errors)),
            snapshots_dropped=self.dropped,
            bytes_before=before,
            bytes_after=after,
            reclaimed=max(0, before - after),
            over_cap_reason=reason,
        )

    def _whole(self, why: str) -> tuple[str, ...]:
        return tuple(sorted(one for one, reason in self.whole.items() if reason == why))

    def read(self) -> list[Ledger]:
        """A workspace whose references are damaged is left alone; the others are not."""
        out: list[Ledger] = []
        for workspace in self._known():
            try:
                found = read_ledger(self.store, workspace, self.order)
            except Damaged as error:
                self.errors.append(f"{workspace}: {error.message}")
                continue
            self.errors += found.errors
            out.append(self.without_gone(found))
        return out

    def _known(self) -> list[str]:
        """Those with a reference, and those of which a killed prune left the register."""
        with self.store.disk.scandir(f"{self.store.base}/turnmark/workspaces") as found:
            registered = {entry.name[:-5] for entry in found if entry.name.endswith(".json")}
        return sorted((registered | set(workspaces(self.store))) - self.whole.keys())

    def without_gone(self, ledger: Ledger) -> Ledger:
        book, workspace = ledger.book, ledger.workspace
        marks = [m for m in book.marks if ref_name(workspace, "m", m.seq) not in self.gone]
        left = [s for s in book.snapshots if ref_name(workspace, "s", s.seq) not in self.gone]
        fewer = replace(book, marks=tuple(marks), snapshots=tuple(left))
        return replace(ledger, book=fewer, names=ledger.names - self.gone)

    def drop(self, verdicts: dict[str, Verdict], ledgers: list[Ledger]) -> None:
        for workspace, verdict in verdicts.items():
            self.dropped += verdict.snapshots
            self.gone |= verdict.names
            if verdict.whole:
                self.whole.setdefault(workspace, verdict.whole)

    def reclaim(self, dead_share: float | None = None) -> int:
        """The size that is to be expected."""
        reach = Reach(self.store)
        try:
            known = self.store.refs.below("refs")
        except Damaged as error:
            self.errors.append(error.message)
            return size_on_disk(self.store)
        views = {f"{TOP}/{name.split('/')[2]}/view" for name in self.gone}
        reach.walk(oid for name, oid in known.items() if name not in self.gone | views)
        dead = sum(size for oid, size in sizes(self.store).items() if oid not in reach.oids)
        return max(0, size_on_disk(self.store) - dead)

    def shrink(self, size: int, cap: int) -> tuple[int, str]:
        """Drops more, in few rounds: each is estimated to be enough, and measured."""
        for _ in range(ROUNDS):
            ledgers = self.read()
            verdicts = choose(self.store, ledgers, size - cap + SLACK)
            if not any(verdict.names for verdict in verdicts.values()):
                break
            self.drop(verdicts, ledgers)
            size = self.reclaim(0.0)
            if size <= cap:
                return size, ""
        return size, self._reason(size, cap)

    def _reason(self, size: int, cap: int) -> str:
        over = f"The store takes {size} bytes, {size - cap} more than its cap of {cap}: "
        if self.errors:
            return f"{over}damage keeps it from being reclaimed ({self.errors[0]})"
        return (
            f"{over}what is left are the newest points of live workspaces, pinned points,"
            " states that undo needs, and caches."
        )


class _Prune(_DryRun):
    """The real thing."""

    def run(self) -> Pruned:
        reserve.give_up(self.store.disk, self.store.base)
        self._clear_up()
        done = super().run()
        reserve.keep(self.store.disk, self.store.base)
        return done

    def _clear_up(self) -> None:
        """Before anything is measured: no history is to go for what a killed process left."""
        if self.store.holds_rubbish():
            with suppress(Busy), self.store.exclusive(PATIENCE):
                self.store.sweep_leftovers()

    def drop(self, verdicts: dict[str, Verdict], ledgers: list[Ledger]) -> None:
        """Confirmed under the lock: a mark or pin that came meanwhile may need what would go.

        Where nothing is to go, as most often, nobody has to wait for that.
        """
        store = self.store
        if not any(one.names or one.whole for one in verdicts.values()):
            return
        with store.exclusive(PATIENCE):
            store.sweep_leftovers()
            store.reload()
            sure = {one.workspace: self._confirm(one, verdicts[one.workspace]) for one in ledgers}
            super().drop(sure, ledgers)
            self._drop_refs({name for one in sure.values() for name in one.names})
            for workspace, verdict in sure.items():
                if verdict.whole:
                    self._forget(workspace)

    def _drop_refs(self, names: set[str]) -> None:
        """On a full disk the caches are given up for the few bytes that this takes."""
        try:
            drop_refs(self.store, names)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            self._drop_caches("")
            drop_refs(self.store, names)

    def _drop_caches(self, workspace: str) -> None:
        directory = f"{self.store.base}/turnmark/cache"
        with self.store.disk.scandir(directory) as found:
            names = [entry.name for entry in found if entry.name.startswith(workspace)]
        for name in names:
            self.store.disk.discard(f"{directory}/{name}")

    def _confirm(self, ledger: Ledger, verdict: Verdict) -> Verdict:
        try:
            if _names(ledger.workspace, History(self.store, ledger.workspace)) == ledger.names:
                return verdict
            found = read_ledger(self.store, ledger.workspace, self.order)
            self.errors += found.errors
            return confirm(found, verdict)
        except Damaged as error:
            self.errors.append(f"{ledger.workspace}: {error.message}")
            return Verdict(frozenset(), 0)

    def _forget(self, workspace: str) -> None:
        base = f"{self.store.base}/turnmark"
        self._drop_caches(workspace)
        for end in (".json", ".applying", ".json.damaged"):
            self.store.disk.discard(f"{base}/journal/{workspace}{end}")
        self.store.disk.discard(registry_path(self.store, workspace))

    def reclaim(self, dead_share: float | None = None) -> int:
        done = reclaim(self.store) if dead_share is None else reclaim(self.store, dead_share)
        self._note(done)
        return size_on_disk(self.store)

    def _note(self, done: Swept) -> None:
        self.errors += done.errors

    def shrink(self, size: int, cap: int) -> tuple[int, str]:
        """First by thoroughness, then by compression, and only then by dropping history."""
        trim_caches(self.store)
        size = self.reclaim(0.0)
        if not self.errors:
            compact(self.store)
            size = size_on_disk(self.store)
        if size > cap and self.git is not None and has_room(self.store, self.store.packs()):
            self._note(repack(self.store, self.git))
            size = size_on_disk(self.store)
        return super().shrink(size, cap) if size > cap else (size, "")


# Dropping for size


def trim_caches(store: Store) -> None:
    """Empties the write-ahead logs of the caches, which grow to megabytes in a running service."""
    directory = f"{store.base}/turnmark/cache"
    with store.disk.scandir(directory) as found:
        names = [entry.name for entry in found if entry.name.endswith(".db")]
    for name in names:
        try:
            with closing(sqlite3.connect(f"{directory}/{name}", timeout=0)) as cache:
                cache.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error:  # in use, or damaged: its owner sees to that
            continue


def sizes(store: Store) -> dict[Oid, int]:
    """What each object takes in a pack, with its share of the index."""
    out: dict[Oid, int] = {}
    for pack in store.packs():
        out.update((oid, end - start + INDEX_BYTES) for oid, start, end in pack.spans())
    return out


def choose(store: Store, ledgers: Sequence[Ledger], excess: int) -> dict[str, Verdict]:
    """Takes again and again from whatever workspace holds the most, until so much is free."""
    weights = _Weights(store, ledgers)
    freed = 0
    while freed < excess:
        heaviest = weights.heaviest()
        if heaviest is None:
            break
        freed += heaviest.drop_next()
    return {one.ledger.workspace: one.verdict() for one in weights.shares}


class _Weights:
    """Owns the estimate of what each next row to go would free."""

    def __init__(self, store: Store, ledgers: Sequence[Ledger]) -> None:
        self.sizes = sizes(store)
        self.holders: Counter[Oid] = Counter()
        self.shares = [_Share(store, ledger, self) for ledger in ledgers]

    def heaviest(self) -> _Share | None:
        open_ones = [share for share in self.shares if share.waiting]
        return max(open_ones, key=lambda share: share.held, default=None)


class _Share:
    """Owns one workspace's rows in the order in which they may go, and what goes with each."""

    def __init__(self, store: Store, ledger: Ledger, weights: _Weights) -> None:
        self.ledger = ledger
        self.weights = weights
        self.waiting = ledger.book.droppable()[::-1]
        self.gone: list[Row] = []
        self.held = 0
        self.freed_with: dict[int, set[Oid]] = {}
        self._snapshots = {one.id for one in ledger.book.snapshots}
        self._measure(store)

    def _measure(self, store: Store) -> None:
        """From what never goes to what goes first: what is met anew goes with that row."""
        book = self.ledger.book
        kept = book.held_by(filter(book.is_fixed, (*book.points, *book.bursts)))
        met = Reach(store)
        met.walk(one.id for one in book.snapshots if one.seq in kept.snapshots)
        met.walk(mark.id for mark in book.marks if mark.seq in kept.marks)
        self._count(met.oids)
        for row in self.waiting:
            anew = Reach(store, met.oids)
            anew.walk(self._ids(row))
            self.freed_with[row.seq] = anew.oids
            self._count(anew.oids)
            met.oids |= anew.oids

    def _ids(self, row: Row) -> set[Oid]:
        """What the row holds, but for what has no reference any more."""
        undo = {oid for mark in row.marks if mark.kind == "rollback" for oid in states_of(mark)}
        return row.ids() | (undo & self._snapshots)

    def _count(self, oids: set[Oid]) -> None:
        self.weights.holders.update(oids)
        self.held += sum(self.weights.sizes.get(oid, 0) for oid in oids)

    def drop_next(self) -> int:
        """Counts only what no other workspace holds."""
        row = self.waiting.pop()
        self.gone.append(row)
        freed = 0
        for oid in self.freed_with[row.seq]:
            size = self.weights.sizes.get(oid, 0)
            self.held -= size
            self.weights.holders[oid] -= 1
            freed += 0 if self.weights.holders[oid] else size
        return freed

    def verdict(self) -> Verdict:
        gone = {row.seq for row in self.gone}
        book = self.ledger.book
        kept = book.held_by(r for r in (*book.points, *book.bursts) if r.seq not in gone)
        return _verdict(self.ledger, kept, "stale")
