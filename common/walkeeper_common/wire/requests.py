"""The requests beside the consensus: reads of WAL, the creation of a log, status.

They share the port, the framing and the rules of `messages.py`. A read feeds a laggard from a
donor, or serves the check of the primary (docs/protocol.md R13, docs/steps.md). The two phases of
creation are R17.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import ClassVar, Self

from walkeeper_common.buffers import Buffer
from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.history import Ballot
from walkeeper_common.lsn import Lsn
from walkeeper_common.quorum import Configuration
from walkeeper_common.wire.fields import Reader, Writer
from walkeeper_common.wire.messages import WAL_PAYLOAD_BYTES_MAX
from walkeeper_common.wire.named_log import NamedCluster, NamedLog, NamedMembers


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """Read up to `size_max` bytes at begin_lsn: committed WAL with NO_BALLOT, else pinned (R13)."""

    TAG: ClassVar[int] = ord("r")
    ballot: Ballot
    begin_lsn: Lsn
    size_max: int

    def pack(self, w: Writer) -> None:
        w.ballot(self.ballot)
        w.lsn(self.begin_lsn)
        w.u32(self.size_max)

    @classmethod
    def unpack(cls, r: Reader) -> Self:
        ballot, begin, size_max = r.ballot(), r.lsn(), r.u32()
        if not 0 < size_max <= WAL_PAYLOAD_BYTES_MAX:
            raise RemoteProtocolError(f"a read of {size_max} bytes")
        return cls(ballot, begin, size_max)


@dataclass(frozen=True, slots=True)
class ReadResponse:
    """WAL from begin_lsn on. The payload is empty if no WAL is readable there yet."""

    TAG: ClassVar[int] = ord("D")
    LAYOUT: ClassVar[Struct] = Struct("!Q16sQI")
    ballot: Ballot
    begin_lsn: Lsn
    crc: int
    payload: Buffer

    def head(self) -> bytes:
        """Return the fixed part; the payload follows it as it is."""
        return self.LAYOUT.pack(self.ballot.term, self.ballot.proposer_id, self.begin_lsn, self.crc)

    @classmethod
    def of(cls, body: memoryview) -> Self:
        size = cls.LAYOUT.size
        if not size <= len(body) <= size + WAL_PAYLOAD_BYTES_MAX:
            raise RemoteProtocolError(f"ReadResponse of {len(body)} bytes")
        term, proposer_id, begin, crc = cls.LAYOUT.unpack_from(body)
        return cls(Ballot(term, proposer_id), Lsn(begin), crc, body[size:])


@dataclass(frozen=True, slots=True)
class LogQuery(NamedCluster):
    """The first question of `create`: the log that the safekeeper has under this name."""

    TAG: ClassVar[int] = ord("q")


@dataclass(frozen=True, slots=True)
class LogState:
    """The answer to LogQuery, PrepareLog and ConfigureLog. A `log_uuid` of zero means no log."""

    TAG: ClassVar[int] = ord("Q")
    acceptor_id: int
    incarnation: bytes
    log_uuid: bytes
    ballot: Ballot
    configuration: Configuration | None

    def pack(self, w: Writer) -> None:
        w.u64(self.acceptor_id)
        w.raw(self.incarnation, 16)
        w.raw(self.log_uuid, 16)
        w.ballot(self.ballot)
        w.optional_configuration(self.configuration)

    @classmethod
    def unpack(cls, r: Reader) -> Self:
        return cls(r.u64(), r.raw(16), r.raw(16), r.ballot(), r.optional_configuration())


@dataclass(frozen=True, slots=True)
class PrepareLog(NamedLog):
    """Creation, phase 1: make an incarnation durable under this uuid (R17)."""

    TAG: ClassVar[int] = ord("p")


@dataclass(frozen=True, slots=True)
class ConfigureLog(NamedMembers):
    """Creation, phase 2: the same record on every member."""

    TAG: ClassVar[int] = ord("c")


@dataclass(frozen=True, slots=True)
class StatusRequest(NamedCluster):
    """A question of people and monitoring; the consensus does not depend on it."""

    TAG: ClassVar[int] = ord("s")


@dataclass(frozen=True, slots=True)
class StatusResponse:
    """One safekeeper's part of `walkeeper status --json`, as JSON text."""

    TAG: ClassVar[int] = ord("S")
    document: bytes

    def pack(self, w: Writer) -> None:
        w.blob(self.document)

    @classmethod
    def unpack(cls, r: Reader) -> Self:
        return cls(r.blob())
