"""The leading proposer's report on members that it has no answer of. Pure.

It follows the report on the primary (primary_report.py) on the same connection. A safekeeper
without this message has that report already, and closes the connection as on any unknown tag.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.wire.fields import Reader, Writer

AWAY_MAX = 64
ADDRESS_BYTES_MAX = 512


@dataclass(frozen=True, slots=True)
class AwayMember:
    """A member at `address` that is not attached since the Unix time `since`.

    `acceptor_id` is 0 if it has not greeted this proposer."""

    acceptor_id: int
    address: str
    since: int


@dataclass(frozen=True, slots=True)
class MembersReport:
    """From the proposer `proposer_id` to each safekeeper of `cluster`; never answered.

    It replaces that proposer's last one, so it is empty once all members are attached."""

    TAG: ClassVar[int] = ord("u")
    cluster: str
    proposer_id: bytes
    away: tuple[AwayMember, ...]

    def pack(self, w: Writer) -> None:
        w.text(self.cluster)
        w.raw(self.proposer_id, 16)
        w.u16(len(self.away))
        for one in self.away:
            w.u64(one.acceptor_id)
            w.text(one.address)
            w.u64(one.since)

    @classmethod
    def unpack(cls, r: Reader) -> Self:
        cluster, proposer_id, count = r.text(), r.raw(16), r.u16()
        if count > AWAY_MAX:
            raise RemoteProtocolError(f"a report of {count} members that are away")
        away = tuple(AwayMember(r.u64(), r.text(), r.u64()) for _ in range(count))
        longest = max((len(one.address.encode()) for one in away), default=0)
        if longest > ADDRESS_BYTES_MAX:
            raise RemoteProtocolError(f"a report with an address of {longest} bytes")
        return cls(cluster, proposer_id, away)
