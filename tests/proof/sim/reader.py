"""Readers of a safekeeper: the bytes that they receive may never be different later (R13)."""

from __future__ import annotations

from collections.abc import Mapping

from tests.proof.sim.oracle import Committed, Oracles
from tests.proof.sim.world import World
from walkeeper_common.buffers import Buffer
from walkeeper_common.errors import WalkeeperError
from walkeeper_common.history import NO_BALLOT, Ballot, History
from walkeeper_common.lsn import Lsn
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.requests import ReadRequest, ReadResponse
from walkeeper_safekeeper.consensus.acceptor_events import Received
from walkeeper_safekeeper.safekeeper_driver import Driver

READ_BYTES_MAX = 20_000


class Reader:
    """A standby: reads whole committed records as a replica session does, a piece at a time.

    Its promised WAL counts, as in served_log.Readers: the end is noted before the read.
    """

    def __init__(self, world: World, name: str, driver: Driver, committed: Committed) -> None:
        self.world, self.name, self.driver, self.committed = world, name, driver, committed
        self.is_over = False
        self._received_lsn = committed.whole_end(name, driver.store, driver.acceptor.commit_lsn)
        self.promised_lsn = self._kept_lsn = self._received_lsn
        self._padding = b""  # the padding that it has received
        self._pause_ms = world.random.choice((50, 400))
        self._soon()

    def _soon(self) -> None:
        self.world.later(self.world.random.uniform(1, self._pause_ms), self._read)

    def _read(self) -> None:
        if self.is_over:
            return
        begin_lsn = self.promised_lsn
        size = self.world.random.randrange(1, READ_BYTES_MAX)
        end_lsn = min(self.driver.whole_lsn, begin_lsn + size)
        if end_lsn > begin_lsn:
            self.promised_lsn = end_lsn
            if self.world.options.switches:  # a segment's padding may be cut off and sent again
                end_lsn = self.committed.whole_end(self.name, self.driver.store, end_lsn)
            self._kept_lsn = max(self._kept_lsn, end_lsn)
            self.driver.read_committed(begin_lsn, self.promised_lsn, self._received)
        elif not self.driver.find_whole(self._found):
            self._soon()

    def _found(self, error: WalkeeperError | None) -> None:
        self.is_over = self.is_over or error is not None
        self._soon()

    def _received(self, result: Buffer | WalkeeperError) -> None:
        if self.is_over:
            return
        if isinstance(result, WalkeeperError):
            self.is_over = True
            return
        # To the last byte what everybody commits, whatever is truncated later.
        wal = self._padding + bytes(result)
        begin_lsn = self._received_lsn - len(self._padding)
        whole, self._padding = wal[: self._kept_lsn - begin_lsn], wal[self._kept_lsn - begin_lsn :]
        self.committed.check(f"a reader of {self.name}", begin_lsn, whole)
        self._received_lsn = self._received_lsn + len(result)
        self._soon()

    def check_cut(self, at_lsn: Lsn) -> None:
        """Check that the log, which now ends here, still has all WAL promised to this reader."""
        if self._kept_lsn > at_lsn:
            seen = f"what a reader was promised up to {self.promised_lsn}"
            self.committed.fail(f"{self.name} cut at {at_lsn} {seen}")


class PinnedReader:
    """Reads on a proposer's connection, with a ballot or none.

    With the ballot of an elected leader that this member knows, it gets that leader's log. Before
    that it gets at most what the vote said, as a candidate reads its donor. Without a ballot it
    gets committed WAL.
    """

    def __init__(
        self,
        world: World,
        name: str,
        driver: Driver,
        oracles: Oracles,
        *,
        connection: int,
        votes: Mapping[Ballot, Lsn],
    ) -> None:
        """Take `votes`, the record ends that votes have reported, by ballot."""
        self.world, self.name, self.driver, self.oracles = world, name, driver, oracles
        self.connection = connection
        self.is_over = False
        self._histories: dict[Ballot, History] = {}
        self._votes = votes
        self._soon()

    def _soon(self) -> None:
        self.world.later(self.world.random.uniform(1, 300), self._read)

    def _read(self) -> None:
        if self.is_over:
            return
        self._soon()
        self._note_leader()
        acceptor, random = self.driver.acceptor, self.world.random
        ballots = [NO_BALLOT, acceptor.durable.ballot, *list(self._histories)[-2:]]
        behind = random.randrange(READ_BYTES_MAX)
        begin_lsn = Lsn(max(acceptor.oldest_lsn, int(acceptor.flush_lsn) - behind))
        ask = ReadRequest(random.choice(ballots), begin_lsn, READ_BYTES_MAX)
        self.driver.post(Received(self.connection, ask))

    def _note_leader(self) -> None:
        acceptor = self.driver.acceptor
        if acceptor.elected:
            self._histories[acceptor.durable.ballot] = acceptor.durable.history

    def on_message(self, message: Message) -> None:
        self._note_leader()
        if not isinstance(message, ReadResponse) or not message.payload:
            return
        begin_lsn, wal, ballot = message.begin_lsn, bytes(message.payload), message.ballot
        end_lsn, who = begin_lsn + len(wal), f"{self.name}, read as {message.ballot},"
        if ballot == NO_BALLOT:
            whole_lsn = self.oracles.committed.whole_end(who, self.driver.store, end_lsn)
            self.oracles.committed.check(who, begin_lsn, wal[: max(0, whole_lsn - begin_lsn)])
        elif ballot in self._histories:
            self.oracles.authorship.check(who, self._histories[ballot], begin_lsn, wal)
        elif self.driver.acceptor.failure is None:  # else the vote may have failed with the disk
            voted_lsn = self._votes.get(ballot, begin_lsn)
            self.oracles.reading.check_voter(who, end_lsn, voted_lsn)
