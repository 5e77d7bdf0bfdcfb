"""A stock primary, as far as a proposer sees it: valid WAL, one slot, honest flush positions."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Protocol

from tests.sim.oracle import Acknowledged
from tests.sim.world import World
from tests.wal_maker import WalMaker
from walkeeper_common.history import Ballot
from walkeeper_common.lsn import WAL_PAGE_BYTES, Lsn
from walkeeper_proposer.proposer_events import PrimaryIdentity

COMMIT_RMID = 1
CHUNK_BYTES_MAX = 20_000


class Standby(Protocol):
    """A proposer's side of the walsender's connection."""

    def wal_arrived(self, begin_lsn: Lsn, wal: bytes) -> None: ...
    def primary_lost(self, text: str) -> None: ...
    @property
    def ballot(self) -> Ballot: ...


class Primary:
    """One server; `clone` makes another one with the same past."""

    def __init__(self, world: World, name: str, maker: WalMaker, acked: Acknowledged) -> None:
        self.world, self.name, self.maker, self.acked = world, name, maker, acked
        self.is_up = True
        self.flush_lsn = maker.end_lsn
        self._standby: Standby | None = None
        self._sent_lsn = Lsn(0)
        self._told: list[Standby] = []

    def identity(self) -> PrimaryIdentity:
        return PrimaryIdentity(
            system_id=7_000_000_000_000_000_001,
            timeline=1,
            flush_lsn=self.flush_lsn,
            segment_bytes=self.maker.segment_bytes,
            server_version="15.18",
            server_version_num=150018,
            in_recovery=False,
            fsync=True,
            full_page_writes=True,
        )

    def write(self) -> None:
        """One more transaction, flushed now or at the next page boundary only."""
        if not self.is_up:
            return
        random = self.world.random
        self.maker.record(random.randrange(self.world.options.record_bytes_max), 0, COMMIT_RMID)
        end_lsn = self.maker.end_lsn
        if not self.world.is_healed and random.random() < 0.2:
            end_lsn = max(self.flush_lsn, end_lsn.round_down(WAL_PAGE_BYTES))
        self.flush_lsn = end_lsn
        self._send()

    def _send(self) -> None:
        while self._standby is not None and self._sent_lsn < self.flush_lsn:
            begin_lsn = self._sent_lsn
            self._sent_lsn = min(begin_lsn + CHUNK_BYTES_MAX, self.flush_lsn)
            self._standby.wal_arrived(begin_lsn, self.maker.read(begin_lsn, self._sent_lsn))

    def stream(self, standby: Standby, start_lsn: Lsn) -> None:
        """START_REPLICATION with the slot: whoever had it before is ended."""
        if self._standby is not None and self._standby is not standby:
            self._standby.primary_lost("the slot was taken")
        self._standby, self._sent_lsn = standby, start_lsn
        self._send()

    def leave(self, standby: Standby) -> None:
        if self._standby is standby:
            self._standby = None

    def report(self, standby: Standby, commit_lsn: Lsn) -> None:
        """A status update: every transaction that ends below is acknowledged to its client."""
        if not self.is_up or self._standby is not standby:
            return
        assert commit_lsn <= self._sent_lsn, f"{commit_lsn=} beyond what was sent {self._sent_lsn}"
        _, end_lsn = self.maker.end_before(commit_lsn)
        if end_lsn > self.acked.start_lsn:
            wal = self.maker.read(self.maker.start_lsn, end_lsn)
            self.acked.acknowledge(self.name, wal, standby.ballot)

    def crash(self, *, then: Callable[[], None]) -> None:
        """Keeps what was flushed; goes on with the same bytes, or ends the record that was cut."""
        if not self.is_up:
            return
        self.world.say(self.name, f"CRASH flush={self.flush_lsn}")
        self.is_up = False
        standby, self._standby = self._standby, None
        if standby is not None:
            standby.primary_lost("the server crashed")
        self.world.later(self.world.random.uniform(100, 3000), lambda: self._restart(then))

    def _restart(self, then: Callable[[], None]) -> None:
        goes_on_lsn = self.maker.crash(self.flush_lsn)
        self.is_up, self.flush_lsn = True, self.maker.end_lsn
        self.world.say(self.name, f"boot from={goes_on_lsn} flush={self.flush_lsn}")
        then()

    def clone(self, name: str, at_lsn: Lsn) -> Primary:
        """A copy as of `at_lsn`, which goes on with other transactions than ours."""
        maker = copy.deepcopy(self.maker)
        maker._random = self.world.random
        _, end_lsn = maker.end_before(at_lsn)
        maker.forget_after(end_lsn)
        return Primary(self.world, name, maker, self.acked)
