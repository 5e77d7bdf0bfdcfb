"""A standby behind a safekeeper: what it was sent may never be different later (rule 13)."""

from __future__ import annotations

from tests.sim.oracle import Committed, whole_end
from tests.sim.world import World
from walkeeper_common.errors import WalkeeperError
from walkeeper_common.lsn import Lsn
from walkeeper_common.messages import Buffer
from walkeeper_safekeeper.driver import Driver

READ_BYTES_MAX = 20_000


class Reader:
    """Reads committed WAL as a replica session does, a piece at a time, as long as it is served.

    What it was promised counts, as in served_log.Readers: its end is noted before the read.
    """

    def __init__(self, world: World, name: str, driver: Driver, committed: Committed) -> None:
        self.world, self.name, self.driver, self.committed = world, name, driver, committed
        self.is_over = False
        acceptor = driver.acceptor
        self._checked_lsn = whole_end(name, driver.store, acceptor.commit_lsn)
        self.promised_lsn = self._checked_lsn
        self._unchecked = bytearray()  # received behind the last whole record
        self._soon()

    def _soon(self) -> None:
        self.world.later(self.world.random.uniform(1, 400), self._read)

    def _read(self) -> None:
        if self.is_over:
            return
        commit_lsn, begin_lsn = self.driver.acceptor.commit_lsn, self.promised_lsn
        end_lsn = min(commit_lsn, begin_lsn + self.world.random.randrange(1, READ_BYTES_MAX))
        if end_lsn <= begin_lsn:
            self._soon()
            return
        self.promised_lsn = end_lsn
        self.driver.read_committed(begin_lsn, end_lsn, self._received)

    def _received(self, result: Buffer | WalkeeperError) -> None:
        if self.is_over:
            return
        if isinstance(result, WalkeeperError):
            self.is_over = True
            return
        self._unchecked += result
        # Whole records as of now: what of them was received must be what everybody commits.
        whole_lsn = whole_end(self.name, self.driver.store, self.driver.acceptor.commit_lsn)
        size = min(whole_lsn, self.promised_lsn) - self._checked_lsn
        if whole_lsn >= self.promised_lsn or size > 0:
            self.committed.check(
                f"a reader of {self.name}", self._checked_lsn, bytes(self._unchecked[:size])
            )
            del self._unchecked[:size]
            self._checked_lsn = self._checked_lsn + size
        self._soon()

    def end_if_beyond(self, above_lsn: Lsn) -> bool:
        """Half a record is taken back; whoever was promised some of it must go."""
        self.is_over = self.is_over or self.promised_lsn > above_lsn
        return self.is_over
