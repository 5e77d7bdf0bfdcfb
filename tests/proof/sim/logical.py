"""A logical log in the simulated world: transactions become entries, and each is there once.

    LogicalStory(seed).run()        python -m tests.proof.sim.logical --seeds 100

The core, driver, acceptor, entry store, change stream and examination of the log's end are the
shipping ones. Network, disks, clocks and oracles are those of WAL; they compare bytes by position.
In place of WAL the primary sends pgoutput's messages (changing_primary.py), again at each new
connection. The proposer reports LSNs to it. In the end the log is read as a consumer reads it
(judge_stream). There are no copies of the server and no retention: a logical log has neither.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

from tests.proof.sim import closing, faults, healing
from tests.proof.sim.archive import Archived
from tests.proof.sim.changing_primary import ChangingPrimary
from tests.proof.sim.command_line import main
from tests.proof.sim.network import Network
from tests.proof.sim.oracle import NoProgress, Oracle, Oracles
from tests.proof.sim.proposer_claims import PROBE_BYTES
from tests.proof.sim.proposer_node import ProposerNode
from tests.proof.sim.scene import SEGMENT_BYTES
from tests.proof.sim.search import ASKED, Run, run_story
from tests.proof.sim.story import Story
from tests.proof.sim.world import World
from tests.support.entry_maker import SETTINGS, LogBytes
from walkeeper_common.entries import EntryKind, EntryWalk, record_end_before
from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.postgres.pgoutput import (
    BEGIN,
    COMMIT,
    RELATION,
    Commit,
    MessageSplitter,
    relations_of,
)
from walkeeper_common.quorum import LogKind
from walkeeper_common.wire.messages import Feedback
from walkeeper_proposer.consensus.campaign import Purpose
from walkeeper_proposer.consensus.proposer_events import WalArrived
from walkeeper_proposer.logical import entry_writer
from walkeeper_proposer.logical.change_stream import ChangeStream
from walkeeper_proposer.logical.logical_check import LogicalEnd, LogicalIdentity
from walkeeper_proposer.logical.past_comparison import DiffersFromLog

SPOOL_BYTES_MAX = 1 << 20
REPLAY_BYTES = 1000
FRAME_BYTES_MAX = 2000  # so that a part of many a transaction is in the log before its commit


class ChangesNode(ProposerNode):
    """A proposer of a logical log: what logical_primary.py does, without sockets."""

    primary: ChangingPrimary  # type: ignore[assignment]

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.log_end = LogicalEnd()
        self._payloads: list[bytes] = []
        self._log = LogBytes(Lsn(0))  # all of it, as this leader has it
        self._flushed: tuple[Lsn, Lsn] | None = None  # (LSN, position), not reported yet
        self._differed_lsn: Lsn | None = None
        super().__init__(*arguments, **options)

    def campaign_options(self) -> dict[str, Any]:
        if self.purpose is not Purpose.ATTACH:
            return {}
        return {"kind": LogKind.LOGICAL, "examine": self.log_end.examine}

    @property
    def is_inside_transaction(self) -> bool:
        """True after a part of a transaction is handed over, until its end."""
        stream = self.log_end.stream
        return stream is not None and stream.writer.is_inside

    def _on_elected(self) -> None:
        super()._on_elected()
        self._log = LogBytes(self.oracles.acknowledged.start_lsn)
        self._log.data += self.oracles.authorship.log_of(self.leader.history, self.leader.start_lsn)

    # The primary

    def stream(self, start_lsn: Lsn, timeline: int) -> None:
        self._is_paused = False
        self._payloads.clear()
        self._stream_serial += 1
        serial = self._stream_serial

        def start() -> None:
            if self._reaches_primary(serial):
                stream = self.log_end.stream = self._stream_at(start_lsn)
                overlap = stream.overlap(self._confirmed_lsn)
                stream.on_connected(overlap, streams=True)
                self.world.facts["comparisons"] += stream.is_comparing
                self._hand_over()
                self.primary.stream(self, overlap.begin_lsn)

        self._later(self.world.delay_ms(), start)

    @property
    def _confirmed_lsn(self) -> Lsn:
        """The slot's position as this node read it when it connected."""
        identity = self.core.primary
        assert isinstance(identity, LogicalIdentity) and identity.confirmed_lsn is not None
        return identity.confirmed_lsn

    def _stream_at(self, position: Lsn) -> ChangeStream:
        stream, found = self.log_end.stream, self.log_end.found
        if stream is not None:
            assert stream.writer.position == position, f"{stream.writer.position=} {position=}"
            return stream
        assert found is not None and found.position == position, f"{found=} {position=}"
        end_lsn = found.end_lsn if found.end_lsn != ZERO_LSN else Lsn(self.primary.confirmed_lsn)
        return ChangeStream(
            position,
            end_lsn=end_lsn,
            timeline=1,
            segment_bytes=SEGMENT_BYTES,
            settings=SETTINGS,
            new_spool=io.BytesIO,
            spool_bytes_max=SPOOL_BYTES_MAX,
        )

    def changes_arrived(self, payload: bytes) -> None:
        self._payloads.append(payload)
        self._later(self.world.delay_ms(), self._take_arrived)

    def _take_arrived(self) -> None:
        """Take a few messages at a time, so that a connection also breaks inside a transaction."""
        stream = self.log_end.stream
        if stream is None:
            return
        for _ in range(self.world.random.randint(1, 4)):
            if self._is_paused or not self._has_primary:
                return
            try:
                if stream.is_replaying:
                    stream.replay(REPLAY_BYTES)
                elif self._payloads:
                    stream.on_copy_data(self._payloads.pop(0))
            except DiffersFromLog as error:
                self._on_other_branch(error)
                return
            self._hand_over()
            self._report_flushed(stream)
        if self._payloads or stream.is_replaying:
            self._later(self.world.delay_ms(), self._take_arrived)

    def _on_other_branch(self, error: DiffersFromLog) -> None:
        """Connect again: the slot may have moved since it was read. Fail if it has not moved.

        There is no other branch.
        """
        self.world.facts["comparisons made again"] += 1
        if self._differed_lsn == self._confirmed_lsn:
            self.oracles.durability.fail(f"{self.name}: {error}")
        self._differed_lsn = self._confirmed_lsn
        self.primary.leave(self)
        self.primary_lost(str(error))

    def primary_lost(self, text: str) -> None:
        self._payloads.clear()
        if self.log_end.stream is not None:
            self.log_end.stream.on_disconnected()
        super().primary_lost(text)

    def _hand_over(self) -> None:
        assert self.log_end.stream is not None
        position, data = self.log_end.stream.take()
        if data:
            assert position == self._log.end, f"{position=} {self._log.end=}"
            self._log.data += data
            self.oracles.authorship.wrote(self.ballot, position, bytes(data))
            self.post(WalArrived(position, data))

    def report(self, commit_lsn: Lsn, feedback: Sequence[Feedback]) -> None:
        stream = self.log_end.stream
        if stream is None:
            return
        self._judge_report(commit_lsn)
        lsn = stream.on_committed(commit_lsn)
        if lsn is not None:
            self._flushed = lsn, self._whole_end(commit_lsn)
        self._report_flushed(stream)
        self._hand_over()  # a progress entry may have waited for this one

    def _report_flushed(self, stream: ChangeStream) -> None:
        if self._flushed is not None and not stream.is_comparing:
            lsn, position = self._flushed
            self._flushed = None
            self.primary.report(self, lsn, self._log, position)

    def _whole_end(self, position: Lsn) -> Lsn:
        first = self._log.begin
        found = record_end_before(
            self._log, first_lsn=first, flush_lsn=position, segment_bytes=SEGMENT_BYTES
        )
        return found.end_lsn

    # The claims of a logical log's proposer

    def _judge_leader(self, start_lsn: Lsn) -> None:
        """Do nothing: the primary has none of the log's bytes."""

    def _judge_report(self, commit_lsn: Lsn) -> None:
        configuration, end = self.core.configuration, self._whole_end(commit_lsn)
        assert configuration is not None
        begin_lsn = Lsn(max(self._log.begin, self.reported_lsn, int(end) - PROBE_BYTES))
        if end > begin_lsn:
            data = self._log.read(begin_lsn, end)
            holding = [n.member for n in self.safekeepers if n.disks.held(begin_lsn, data)]
            commits = configuration.commits
            self.oracles.durability.check_quorum(self.name, commit_lsn, holding, commits)
            self.reported_lsn = end


class Once(Oracle):
    """Every transaction that is acknowledged to a client is in the log once, in commit order."""

    def check(self, primary: ChangingPrimary, found: Sequence[tuple[int, tuple[Any, ...]]]) -> None:
        wanted = [(one.end_lsn, one.content) for one in primary.transactions]
        for number, (got, want) in enumerate(zip(found, wanted, strict=False)):
            if got != want:
                self.fail(f"transaction {number} is {got[0]:X}, {want[0]:X} was committed then")
        told = sum(end_lsn <= primary.told_lsn for end_lsn, _ in wanted)
        if not told <= len(found) <= len(wanted):
            self.fail(
                f"{len(found)} are there of {told} that were acknowledged, {len(wanted)} made"
            )


class Readable(Oracle):
    """A consumer can read each transaction, whatever segment it begins with."""

    def __init__(self) -> None:
        self._described: dict[int, Lsn] = {}  # where the last entry ends that describes a table

    def read(self, payload: bytes, begin: Lsn, end: Lsn) -> tuple[int, tuple[Any, ...]]:
        """Return (end LSN, rows) of the transaction in the entry [begin, end)."""
        rows, end_lsn = [], 0
        segment_start = begin.round_down(SEGMENT_BYTES)
        for number, (_, message) in enumerate(MessageSplitter().feed(payload)):
            if (message[0] == BEGIN) != (number == 0):
                self.fail(f"{bytes(message[:10])!r} is message {number} of the entry at {begin}")
            if message[0] == RELATION:
                self._described[int.from_bytes(message[1:5], "big")] = end
            elif message[0] == COMMIT:
                end_lsn = int(Commit.unpack(message).end_lsn)
            elif message[0] == ord("I"):
                (table,) = relations_of(message)
                if self._described.get(table, ZERO_LSN) <= segment_start:
                    self.fail(f"table {table} of the entry at {begin} is not described there")
                rows.append((table, bytes(message[13:])))
        if not end_lsn:
            self.fail(f"the entry at {begin} is a transaction without its Commit")
        return end_lsn, tuple(rows)


class LogicalStory(Story):
    """One seed's story of a logical log."""

    kind = LogKind.LOGICAL
    proposer_type = ChangesNode

    def __init__(
        self, seed: int, *, show: Callable[[str], None] | None = None, closes: bool = False
    ) -> None:
        self.world = world = World(seed, show=show)
        world.options = replace(
            world.options, plots=(), clones=0.0, retention_bytes=None, recycled_bytes=None,
            starts_inside_record=False, closes=closes,
        )  # fmt: skip
        self.network = Network(world)
        start_lsn = Lsn(SEGMENT_BYTES * world.random.choice((1, 3, 65536)))
        self.oracles = Oracles(start_lsn)
        self.configuration = self._configuration(start_lsn)
        self.archived = Archived()
        self.safekeepers = self._safekeepers()
        server: Any = ChangingPrimary(world, "pg1", self.oracles.acknowledged)
        self.primary = server
        self.primaries = [self.primary]
        self.writing = None
        self.proposers, self.operators, self.is_staged, self._names = [], [], False, 0

    def run(self) -> None:
        with mock.patch.object(entry_writer, "FRAME_BYTES_MAX", FRAME_BYTES_MAX):
            self._run()

    def _run(self) -> None:
        world, options = self.world, self.world.options
        world.say("----", f"seed {world.seed} {options}")
        faults.schedule(self)
        if options.closes:
            closing.schedule(self)
        primary: Any = self.primary
        world.every(world.random.choice((0.0, 10.0, 60.0)), primary.end_connection)
        for _ in range(options.proposers):
            self.start_proposer()
        self._write_for_ever()
        world.run_until(options.safety_s * 1000)
        healing.heal(self)
        if options.closes:
            closing.demand_close(self)
        else:
            self._demand_progress()
        self.judge_stream()

    def _demand_progress(self) -> None:
        """Break one thing at a time, then stop writing and wait until all of it is acknowledged.

        Raise NoProgress if that takes too long.
        """
        primary: Any = self.primary
        primary.restart()
        proposer = self.start_proposer(take_over=True, resumes=True)
        proposer = healing._wait_for_more(self, proposer)
        victim = self.world.random.choice(self.members())
        for shock in (primary.crash, victim.crash, proposer.break_one):
            shock()
            proposer = healing._wait_for_more(self, proposer)
        self.writing, last = [], primary.transactions[-1].end_lsn
        stop_ms = self.world.now_ms + healing.HEAL_S * 1000

        def is_done() -> bool:
            return primary.told_lsn >= last and healing._are_equal(self)

        self.world.run_until(stop_ms, stop=is_done)
        if not is_done():
            raise NoProgress(f"told up to {primary.told_lsn:X}, committed up to {last:X}")

    def judge_stream(self) -> None:
        """Read all acknowledged entries as a consumer does, and judge the transactions."""
        acked = self.oracles.acknowledged
        log = LogBytes(acked.start_lsn)
        log.data += acked.wal
        found: list[tuple[int, tuple[Any, ...]]] = []
        entry: list[bytes] = []
        begin, readable = log.begin, Readable()
        for frame in EntryWalk(log, log.begin, log.end, SEGMENT_BYTES):
            if frame.is_first:
                entry, begin = [], frame.position
            entry.append(bytes(frame.payload))
            if frame.is_last and frame.kind is EntryKind.TRANSACTION:
                found.append(readable.read(b"".join(entry), begin, frame.end_position))
            if frame.is_last and frame.kind is EntryKind.ABANDONED:
                self.world.facts["transactions that were cut off"] += 1
        self.world.facts["transactions in the log"] += len(found)
        primary: Any = self.primary
        Once().check(primary, found)


def run(seed: int, *, show: Callable[[str], None] | None = None, **asked: bool) -> Run:
    """Return the seed's outcome. With `closes`, an operator closes the log."""
    return run_story(LogicalStory(seed, show=show, **asked))


if __name__ == "__main__":
    sys.exit(main("tests.proof.sim.logical", __doc__, run, {"--close": ASKED["--close"]}))
