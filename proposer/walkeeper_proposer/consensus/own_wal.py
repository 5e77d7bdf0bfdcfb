"""A check that the WAL which a voter has of our own term is the WAL that we sent. Pure.

A leader meets its own ballot in the vote of a safekeeper that was lost and is back. The safekeeper
may have WAL after the last acknowledgement that we saw. That WAL was written under our ballot, but
perhaps at a time that we do not remember. Our machine may have been set back to an older image,
with its memory and the primary. Positions tell nothing, as the WAL that we sent since then may be
as long. So the bytes are read back and compared before the leader tells the voter to go on (R24,
scenarios/leader_from_a_memory_image_compares_bytes.txt). Our bytes are in the window, or at a
safekeeper that has attached: it has acknowledged them to us.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from walkeeper_common.buffers import Buffer
from walkeeper_common.errors import WalkeeperError
from walkeeper_common.history import Ballot
from walkeeper_common.lsn import Lsn
from walkeeper_common.wire.requests import ReadRequest, ReadResponse
from walkeeper_common.wire.wal_crc import crc_of
from walkeeper_proposer.consensus.proposer_events import Effect, Send

Held: TypeAlias = Callable[[Lsn, int], memoryview | None]  # our WAL at an LSN, or None


class Forgotten(WalkeeperError):
    """We are older than the WAL that we have written: our whole state must be learned anew."""


class Source(Protocol):
    """The five facts of a safekeeper that a comparison needs; progress.Member has them."""

    @property
    def link(self) -> int: ...
    @property
    def attached(self) -> bool: ...
    @property
    def flush_lsn(self) -> Lsn: ...
    @property
    def donates_lsn(self) -> Lsn: ...
    @property
    def append_bytes(self) -> int: ...


@dataclass(slots=True)
class OwnWalCheck:
    """A comparison of one voter's [at_lsn, end_lsn), piece by piece.

    The voter goes on at `start_lsn` afterwards. `record_lsn` is its vote's. After a restart the
    voter is not read beyond it, where only the padding of a segment can be.
    """

    name: str | None
    at_lsn: Lsn
    end_lsn: Lsn
    record_lsn: Lsn
    start_lsn: Lsn
    theirs: Buffer | None = None
    ours: Buffer | None = None
    size: int = 0
    donor: int | None = None  # the link of the safekeeper from which ours are read

    @property
    def is_done(self) -> bool:
        return self.at_lsn >= self.end_lsn

    def ask(
        self, voter: Source, members: Sequence[Source], ballot: Ballot, held: Held
    ) -> list[Effect]:
        """Read the next piece from the voter, and from a donor too if we do not hold it."""
        self.size = min(self.end_lsn - self.at_lsn, voter.append_bytes)
        ask = Send(voter.link, ReadRequest(ballot, self.at_lsn, self.size))
        return [ask, *self.ask_donor(members, ballot, held)]

    def ask_donor(self, members: Sequence[Source], ballot: Ballot, held: Held) -> list[Effect]:
        """Read our bytes from a donor, unless we have them or the last donor may still answer."""
        if self.ours is not None or held(self.at_lsn, self.size) is not None:
            return []
        able = [m for m in members if m.attached and m.donates_lsn <= self.at_lsn < m.flush_lsn]
        if not able or any(m.link == self.donor for m in able):
            return []
        self.donor = max(able, key=lambda m: (m.flush_lsn, -m.link)).link
        return [Send(self.donor, ReadRequest(ballot, self.at_lsn, self.size))]

    def take(self, voter: Source, source: Source, response: ReadResponse, held: Held) -> bool:
        """Return True if this answer brings it on; raise Forgotten where the two differ."""
        payload = response.payload
        if response.begin_lsn != self.at_lsn or crc_of(payload) != response.crc:
            return False
        if source is voter:
            self.theirs = payload
        elif source.link == self.donor:
            self.ours = payload
        if self.theirs is None:
            return False
        if not self.theirs:
            return self._take_nothing()
        ours = self.ours or held(self.at_lsn, len(self.theirs))
        size = 0 if ours is None else min(len(self.theirs), len(ours))
        if ours is None or not size:
            return False
        if bytes(self.theirs[:size]) != bytes(ours[:size]):
            raise Forgotten(
                f"safekeeper {self.name} has other WAL of this term at {self.at_lsn} than was sent "
                "from here: was this machine set back to an older image?"
            )
        self.at_lsn, self.theirs, self.ours, self.donor = self.at_lsn + size, None, None, None
        return True

    def _take_nothing(self) -> bool:
        """Return True if the empty answer ends it: only the padding of a segment is left."""
        if self.at_lsn >= self.record_lsn:
            self.at_lsn = self.end_lsn
        return self.is_done
