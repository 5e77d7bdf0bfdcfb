"""A timeline number is reserved for one server, on a quorum (docs/protocol.md R23). Pure.

Each safekeeper grants a number once: the first owner keeps it. An owner has the number when the
members of an ack quorum and of a vote quorum have granted it. Two such sets share a member, so no
two owners have one number. If nobody gets enough grants, the number is lost and all go on with the
next one. No election is needed, and nothing in the consensus depends on it.

A safekeeper without this message closes the connection on it, as on any unknown tag.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.quorum import Configuration
from walkeeper_common.wire.fields import Reader, Writer

OWNER_BYTES_MAX = 1024
TIMELINE_MAX = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class ReserveTimeline:
    """Grant `timeline` to `owner`, a server's name for people. Repeating it changes nothing."""

    TAG: ClassVar[int] = ord("t")
    cluster: str
    timeline: int
    owner: str

    def pack(self, w: Writer) -> None:
        w.text(self.cluster)
        w.u32(self.timeline)
        w.text(self.owner)

    @classmethod
    def unpack(cls, r: Reader) -> Self:
        ask = cls(r.text(), r.u32(), r.text())
        if not ask.timeline or not 0 < len(ask.owner.encode()) <= OWNER_BYTES_MAX:
            raise RemoteProtocolError(f"a reservation of {ask.timeline} for {len(ask.owner)} bytes")
        return ask


@dataclass(frozen=True, slots=True)
class TimelineReserved:
    """`owner` has the number at this member; it is durable here."""

    TAG: ClassVar[int] = ord("T")
    member: str
    configuration: Configuration
    timeline: int
    owner: str

    def pack(self, w: Writer) -> None:
        w.text(self.member)
        w.configuration(self.configuration)
        w.u32(self.timeline)
        w.text(self.owner)

    @classmethod
    def unpack(cls, r: Reader) -> Self:
        return cls(r.text(), r.configuration(), r.u32(), r.text())


def is_quorum(answers: Sequence[TimelineReserved], known: Sequence[TimelineReserved]) -> bool:
    """Return True if the members of `answers` are an ack quorum and a vote quorum.

    `known` has the answers of all members, which show the newest configuration."""
    if not known:
        return False
    configuration = max((a.configuration for a in known), key=lambda c: c.generation)
    members = {answer.member for answer in answers}
    return configuration.commits(members) and configuration.elects(members)
