"""A server with a logical slot in the simulated world: pgoutput's messages in place of WAL.

The walsender sends a small transaction whole at its commit. It sends a large one in pieces while
it is open. Large ones interleave, roll back subtransactions, and some never commit. A new
connection gets each open transaction again from its start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from tests.proof.sim.oracle import Acknowledged
from tests.proof.sim.scene import SEGMENT_BYTES
from tests.proof.sim.world import World
from tests.support.entry_maker import (
    LogBytes,
    begin,
    commit,
    insert,
    keepalive,
    relation,
    stream_abort,
    stream_commit,
    stream_start,
    stream_stop,
    streamed,
)
from tests.support.sound_server import SOUND_SERVER
from tests.support.wal_maker import SYSTEM_ID
from walkeeper_common.history import Ballot
from walkeeper_common.lsn import Lsn
from walkeeper_proposer.logical.logical_check import LogicalIdentity

FIRST_LSN = 0x100
ROWS_MAX = 4
TABLES = 3
ROW_BYTES = (10, 10, 100, 500, 4000)
OPEN_MAX = 3

Row = tuple[int, int, bytes]  # (sub)transaction, table, value


@dataclass(slots=True, eq=False)
class Transaction:
    """A transaction, and its `rows` without those that were rolled back.

    end_lsn is 0 while it is open. An aborted transaction has an end_lsn and no commit_lsn.
    """

    xid: int
    rows: list[Row] = field(default_factory=list)
    # Open subtransactions, inner ones last, each with those that it has released.
    subxids: list[list[int]] = field(default_factory=list)
    is_streamed: bool = False
    commit_lsn: int = 0
    end_lsn: int = 0

    @property
    def content(self) -> tuple[tuple[int, bytes], ...]:
        """(table, value) of each row."""
        return tuple((table, value) for _, table, value in self.rows)


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to send: rows, the rollback of `undone`, or, without both, the end of all."""

    of: Transaction
    rows: tuple[Row, ...] = ()
    undone: int = 0


class Decoding:
    """The relations that one connection has described."""

    def __init__(self) -> None:
        self._described: set[int] = set()
        self._in_stream: dict[int, set[int]] = {}

    def messages(self, step: Step) -> Iterator[bytes]:
        of = step.of
        if not of.is_streamed:
            yield begin(of.commit_lsn, of.xid)
            yield from self._rows(step, self._described)
            yield commit(of.commit_lsn, of.end_lsn)
        elif step.rows:
            is_first = of.xid not in self._in_stream
            yield stream_start(of.xid, first=is_first)
            yield from self._rows(step, self._in_stream.setdefault(of.xid, set()))
            yield stream_stop()
        elif step.undone:
            self._in_stream[of.xid] = set()
            yield stream_abort(of.xid, step.undone)
        else:
            described = self._in_stream.pop(of.xid)
            if of.commit_lsn:
                self._described |= described
                yield stream_commit(of.commit_lsn, of.end_lsn, of.xid)
            else:
                yield stream_abort(of.xid, of.xid)

    def _rows(self, step: Step, described: set[int]) -> Iterator[bytes]:
        for xid, table, value in step.rows:
            made = [] if table in described else [relation(table)]
            described.add(table)
            for message in (*made, insert(table, value)):
                yield streamed(message, xid) if step.of.is_streamed else message


class Standby(Protocol):
    """The proposer's side of a connection to the slot (logical.py)."""

    @property
    def ballot(self) -> Ballot: ...
    @property
    def is_inside_transaction(self) -> bool: ...
    def changes_arrived(self, message: bytes) -> None: ...
    def primary_lost(self, text: str) -> None: ...


class ChangingPrimary:
    """A server with a logical slot, as far as a proposer sees it."""

    timeline = 1
    flush_lsn = Lsn(0)  # in positions of the log, which it does not know

    def __init__(self, world: World, name: str, acked: Acknowledged) -> None:
        self.world, self.name, self.acked = world, name, acked
        self.is_up = True
        self.timeline_ends: list[tuple[int, Lsn]] = []
        self.transactions: list[Transaction] = []  # as they have committed
        self.wal_end = FIRST_LSN
        self.confirmed_lsn = self._saved_lsn = FIRST_LSN  # the slot's; a crash may set it back
        self.told_lsn = FIRST_LSN
        self._told_position = acked.start_lsn
        self._standby: Standby | None = None
        self._steps: list[Step] = []
        self._open: list[Transaction] = []
        self._xids = 100
        self._next = 0
        self._skipped: set[Transaction] = set()
        self._decoding = Decoding()

    def identity(self) -> LogicalIdentity:
        return LogicalIdentity(
            system_id=SYSTEM_ID,
            timeline=1,
            flush_lsn=Lsn(self.wal_end),
            segment_bytes=SEGMENT_BYTES,
            **SOUND_SERVER,
            timeline_file=b"",
            database="shop",
            slot="s",
            publications=("p",),
            confirmed_lsn=Lsn(self.confirmed_lsn),
        )

    def has_all_of(self, acked: Acknowledged) -> bool:
        return True

    def write(self) -> None:
        """Write a transaction, or a step of a large one, or WAL that publishes no change."""
        if not self.is_up:
            return
        random = self.world.random
        if random.random() < 0.2:
            self.wal_end += 0x20
        elif random.random() < 0.3:
            self._write_large()
        else:
            one = Transaction(self._xid())
            self._steps.append(Step(one, self._rows(one)))
            self._end(one, commits=True)
        self._send()

    def _write_large(self) -> None:
        random = self.world.random
        if len(self._open) < OPEN_MAX and random.random() < 0.4:
            self._open.append(Transaction(self._xid(), is_streamed=True))
        if not self._open:
            return
        one = random.choice(self._open)
        if random.random() < 0.3:
            one.subxids.append([self._xid()])
        if not one.rows or random.random() < 0.6:
            self._steps.append(Step(one, self._rows(one)))
        elif one.subxids and random.random() < 0.5:
            self._roll_back(one, random.randrange(len(one.subxids)))
        elif any(step.of is one for step in self._steps):
            self._open.remove(one)
            self._end(one, commits=random.random() < 0.7)
            self._steps.append(Step(one))

    def _xid(self) -> int:
        self._xids += 1
        return self._xids

    def _rows(self, one: Transaction) -> tuple[Row, ...]:
        random = self.world.random
        rows = tuple(
            (
                self._writes(one),
                random.randint(1, TABLES),
                random.randbytes(random.choice(ROW_BYTES)),
            )
            for _ in range(random.randint(1, ROWS_MAX))
        )
        one.rows += rows
        return rows

    def _writes(self, one: Transaction) -> int:
        """Return the innermost open subtransaction, perhaps after the release of one."""
        if one.subxids and self.world.random.random() < 0.2:
            released = one.subxids.pop()
            if one.subxids:
                one.subxids[-1] += released
        return one.subxids[-1][0] if one.subxids else one.xid

    def _roll_back(self, one: Transaction, depth: int) -> None:
        """Roll back the subtransaction at `depth`, all inside it, and all rows since its first."""
        inner = one.subxids[depth:]
        del one.subxids[depth:]
        gone = {xid for group in inner for xid in group}
        first = next((n for n, row in enumerate(one.rows) if row[0] in gone), len(one.rows))
        del one.rows[first:]
        for own, *released in reversed(inner):
            self._steps += [Step(one, undone=each) for each in (*released, own)]
        self.world.facts["subtransactions that were rolled back"] += 1

    def _end(self, one: Transaction, *, commits: bool) -> None:
        commit_lsn = self.wal_end + self.world.random.randrange(0x10, 0x200)
        one.end_lsn = self.wal_end = commit_lsn + 0x30
        if commits:
            one.commit_lsn = commit_lsn
            self.transactions.append(one)
            self.world.facts["transactions that were streamed"] += one.is_streamed

    def stream(self, standby: Standby, start_lsn: Lsn) -> None:
        """End the slot's older connection, then send (START_REPLICATION … LOGICAL).

        A transaction is sent if its commit record starts at `start_lsn` or after it.
        """
        if self._standby is not None and self._standby is not standby:
            self._standby.primary_lost("the slot was taken")
        self._standby, self._decoding, self._next = standby, Decoding(), 0
        from_lsn = max(start_lsn, self.confirmed_lsn)
        ended = {step.of for step in self._steps if step.of.end_lsn}
        self._skipped = {of for of in ended if (of.commit_lsn or of.end_lsn - 1) < from_lsn}
        had = [one for one in self.transactions if one in self._skipped]
        if had and self.world.random.random() < 0.3:
            self._skipped.discard(had[-1])  # a proposer has to drop what it has
        self._send()

    def _send(self) -> None:
        while self._standby is not None and self._next < len(self._steps):
            step = self._steps[self._next]
            self._next += 1
            if step.of not in self._skipped:
                for message in self._decoding.messages(step):
                    self._standby.changes_arrived(message)
        if self._standby is not None and self.world.random.random() < 0.5:
            self._standby.changes_arrived(keepalive(self.wal_end))

    def leave(self, standby: object) -> None:
        if self._standby is standby:
            self._standby = None

    def report(self, standby: Standby, lsn: Lsn, log: LogBytes, position: Lsn) -> None:
        """Take a status update: acknowledge the commits up to `lsn`, at `position` in the log."""
        if not self.is_up or self._standby is not standby:
            return
        assert lsn <= self.wal_end, f"{lsn} was never written, {self.wal_end=:X}"
        self.confirmed_lsn = max(self.confirmed_lsn, lsn)
        if self.world.random.random() < 0.2:
            self._saved_lsn = self.confirmed_lsn
        self.told_lsn = max(self.told_lsn, lsn)
        if position > self._told_position:
            data = log.read(self._told_position, position)
            self.acked.acknowledge(self.name, self._told_position, data, standby.ballot)
            self._told_position = position

    def crash(self) -> None:
        """Crash and restart later. The WAL that was sent is flushed; the slot may move back."""
        if not self.is_up:
            return
        self.world.trouble("primary crashes", self.name, f"CRASH end={self.wal_end:X}")
        self.is_up = False
        standby, self._standby = self._standby, None
        if standby is not None:
            standby.primary_lost("the server crashed")
        self.world.later(self.world.random.uniform(100, 3000), self.restart)

    def end_connection(self, tries: int = 300) -> None:
        """End the connection (pg_terminate_backend), inside a transaction if one comes soon."""
        standby = self._standby
        if standby is not None and tries and not standby.is_inside_transaction:
            self.world.later(1, lambda: self.end_connection(tries - 1))
        elif standby is not None:
            self._standby = None
            self.world.trouble("walsenders ended", self.name, "ends the connection")
            standby.primary_lost("terminating connection due to administrator command")

    def restart(self) -> None:
        """Start again: abort each open transaction, as the first xl_running_xacts says."""
        self.is_up, self.confirmed_lsn = True, self._saved_lsn
        for one in self._open:
            if any(step.of is one for step in self._steps):
                self._end(one, commits=False)
                self._steps.append(Step(one))
        self._open.clear()
        self.world.say(self.name, f"boot end={self.wal_end:X} confirmed={self.confirmed_lsn:X}")
