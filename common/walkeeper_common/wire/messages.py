"""The messages between a proposer and a safekeeper (docs/protocol.md#messages).

One frozen dataclass per message, one tag, explicit `pack` and `unpack`; field order in the
dataclass is the order on the wire, big-endian (`fields.py`). A body that is short, long or of an
unknown tag raises RemoteProtocolError and no other exception. A WAL payload follows the fixed part
and is never copied (`framing.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import ClassVar, Self

from walkeeper_common.buffers import Buffer
from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.history import Ballot, History
from walkeeper_common.lsn import Lsn
from walkeeper_common.quorum import Configuration, LogKind
from walkeeper_common.values import value
from walkeeper_common.wire.fields import Reader, Writer

PROTOCOL_VERSION = 1
WAL_PAYLOAD_BYTES_MAX = 1 << 20
UNKNOWN_LOG_UUID = bytes(16)


class RejectCode(IntEnum):
    """Why a safekeeper turned a request down. STALE_BALLOT alone deposes a proposer."""

    STALE_BALLOT = 1  # a greater ballot was promised; the Reject carries it
    WRONG_LOG = 2  # another log uuid, system_id, segment size or kind under this cluster's name
    UNKNOWN_LOG = 3  # no log of this name here: never created, or the disk was wiped
    NOT_A_MEMBER = 4  # not configured yet, or configured without this incarnation
    NOT_ELECTED = 5  # an append without ProposerElected on this connection, or fenced since
    GAP = 6  # an append that does not start at the write position
    DIVERGENCE = 7  # the two sides compute different points of divergence
    BAD_PAYLOAD = 8  # the CRC or the length of a payload is wrong
    NO_SPACE = 9  # a segment could not be allocated; retry later
    STORAGE_FAILED = 10  # this safekeeper's disk failed; it acknowledges nothing any more
    CORRUPT = 11  # the bytes on disk are not those that were made durable
    WAL_REMOVED = 12  # a read below the oldest WAL kept
    NOT_READABLE = 13  # a read beyond what this reader may see
    REFUSED = 14  # anything else that asking again will not change; the text says why
    STALE_GENERATION = 15  # the two sides know different members; greet again


# The sender has another log, or is not a member of this one. A ballot that comes with such a code
# means nothing for our log (scenarios/another_logs_ballot_deposes_nobody.txt).
OF_NO_MEMBER = (RejectCode.WRONG_LOG, RejectCode.UNKNOWN_LOG, RejectCode.NOT_A_MEMBER)


@dataclass(frozen=True, slots=True)
class ProposerGreeting:
    """The first message. `log_uuid` is zero if not known yet, `system_id` if there is no primary.

    `settle` has no primary.
    """

    TAG: ClassVar[int] = ord("g")
    protocol_version: int
    cluster: str
    log_uuid: bytes
    system_id: int
    segment_bytes: int
    server_version: str
    proposer_id: bytes
    kind: LogKind
    application_name: str
    configuration: Configuration | None

    def pack(self, w: Writer) -> None:
        w.u16(self.protocol_version)
        w.text(self.cluster)
        w.raw(self.log_uuid, 16)
        w.u64(self.system_id)
        w.u32(self.segment_bytes)
        w.text(self.server_version)
        w.raw(self.proposer_id, 16)
        w.u8(self.kind.value)
        w.text(self.application_name)
        w.optional_configuration(self.configuration)

    @classmethod
    def unpack(cls, r: Reader) -> Self:
        version = r.u16()
        if version != PROTOCOL_VERSION:
            raise RemoteProtocolError(
                f"protocol version {version} is not spoken here (only {PROTOCOL_VERSION}); "
                "upgrade the older of the two programs"
            )
        return cls(
            version,
            r.text(),
            r.raw(16),
            r.u64(),
            r.u32(),
            r.text(),
            r.raw(16),
            _kind(r.u8()),
            r.text(),
            r.optional_configuration(),
        )


@dataclass(frozen=True, slots=True)
class AcceptorGreeting:
    """The sender's identity, and how far its log goes.

    `live` is the elected proposer whose last message is less than 3 heartbeats old. All of it is
    advice. Votes repeat flush_lsn and record_lsn, because an older proposer may append after a
    greeting (Neon #294).
    """

    TAG: ClassVar[int] = ord("G")
    acceptor_id: int
    incarnation: bytes
    log_uuid: bytes
    configuration: Configuration | None
    ballot: Ballot
    history: History
    oldest_lsn: Lsn
    flush_lsn: Lsn
    record_lsn: Lsn
    commit_lsn: Lsn
    live: Ballot | None

    def pack(self, w: Writer) -> None:
        w.u64(self.acceptor_id)
        w.raw(self.incarnation, 16)
        w.raw(self.log_uuid, 16)
        w.optional_configuration(self.configuration)
        w.ballot(self.ballot)
        w.history(self.history)
        for lsn in (self.oldest_lsn, self.flush_lsn, self.record_lsn, self.commit_lsn):
            w.lsn(lsn)
        w.boolean(self.live is not None)
        if self.live is not None:
            w.ballot(self.live)

    @classmethod
    def unpack(cls, r: Reader) -> Self:
        return cls(
            r.u64(),
            r.raw(16),
            r.raw(16),
            r.optional_configuration(),
            r.ballot(),
            r.history(),
            r.lsn(),
            r.lsn(),
            r.lsn(),
            r.lsn(),
            r.ballot() if r.boolean() else None,
        )


@dataclass(frozen=True, slots=True)
class VoteRequest:
    """`member` is the `id#incarnation` that the proposer expects on this connection (R17)."""

    TAG: ClassVar[int] = ord("v")
    generation: int
    ballot: Ballot
    log_uuid: bytes
    member: str

    def pack(self, w: Writer) -> None:
        w.u32(self.generation)
        w.ballot(self.ballot)
        w.raw(self.log_uuid, 16)
        w.text(self.member)

    @classmethod
    def unpack(cls, r: Reader) -> Self:
        return cls(r.u32(), r.ballot(), r.raw(16), r.text())


@dataclass(frozen=True, slots=True)
class VoteResponse:
    """`ballot` is the acceptor's own: the requested one iff granted. The rest is final for it."""

    TAG: ClassVar[int] = ord("V")
    generation: int
    ballot: Ballot
    granted: bool
    oldest_lsn: Lsn
    flush_lsn: Lsn
    record_lsn: Lsn
    restart_lsn: Lsn
    history: History

    def pack(self, w: Writer) -> None:
        w.u32(self.generation)
        w.ballot(self.ballot)
        w.boolean(self.granted)
        for lsn in (self.oldest_lsn, self.flush_lsn, self.record_lsn, self.restart_lsn):
            w.lsn(lsn)
        w.history(self.history)

    @classmethod
    def unpack(cls, r: Reader) -> Self:
        return cls(
            r.u32(),
            r.ballot(),
            r.boolean(),
            r.lsn(),
            r.lsn(),
            r.lsn(),
            r.lsn(),
            r.history(),
        )


@dataclass(frozen=True, slots=True)
class ProposerElected:
    """`start_lsn` is where this acceptor's log stops being a prefix of the leader's (R6)."""

    TAG: ClassVar[int] = ord("e")
    generation: int
    ballot: Ballot
    start_lsn: Lsn
    history: History

    def pack(self, w: Writer) -> None:
        w.u32(self.generation)
        w.ballot(self.ballot)
        w.lsn(self.start_lsn)
        w.history(self.history)

    @classmethod
    def unpack(cls, r: Reader) -> Self:
        return cls(r.u32(), r.ballot(), r.lsn(), r.history())


@value
class AppendRequest:
    """WAL [begin_lsn, end_lsn) of one timeline, or a heartbeat if it has no payload."""

    TAG: ClassVar[int] = ord("a")
    LAYOUT: ClassVar[Struct] = Struct("!IQ16sIQQQQI")
    generation: int
    ballot: Ballot
    timeline: int
    begin_lsn: Lsn
    end_lsn: Lsn
    commit_lsn: Lsn
    restart_lsn: Lsn
    crc: int
    payload: Buffer

    def head(self) -> bytes:
        """Return the fixed part; the payload follows it as it is."""
        return self.LAYOUT.pack(
            self.generation,
            self.ballot.term,
            self.ballot.proposer_id,
            self.timeline,
            self.begin_lsn,
            self.end_lsn,
            self.commit_lsn,
            self.restart_lsn,
            self.crc,
        )

    @classmethod
    def of(cls, body: memoryview) -> Self:
        size = cls.LAYOUT.size
        if len(body) < size:
            raise RemoteProtocolError(f"AppendRequest of {len(body)} bytes is too short")
        fixed = cls.LAYOUT.unpack_from(body)
        generation, term, proposer_id, timeline, begin, end, commit, restart, crc = fixed
        payload = body[size:]
        if end - begin != len(payload) or len(payload) > WAL_PAYLOAD_BYTES_MAX:
            raise RemoteProtocolError(
                f"AppendRequest [{Lsn(begin)}, {Lsn(end)}) carries {len(payload)} bytes"
            )
        return cls(
            generation,
            Ballot(term, proposer_id),
            timeline,
            Lsn(begin),
            Lsn(end),
            Lsn(commit),
            Lsn(restart),
            crc,
            payload,
        )


@value
class Feedback:
    """The report of the standbys of one safekeeper: the least apply_lsn, and xmin horizons.

    apply_lsn 0 means no standby. An xmin is 64 bits, epoch and xid, and 0 means none.
    """

    apply_lsn: Lsn
    xmin: int
    catalog_xmin: int


NO_FEEDBACK = Feedback(Lsn(0), 0, 0)


@value
class AppendResponse:
    """flush_lsn: the end of what an fdatasync covers here, never of what is merely written."""

    TAG: ClassVar[int] = ord("A")
    LAYOUT: ClassVar[Struct] = Struct("!IQ16sQQQQQ")
    generation: int
    ballot: Ballot
    flush_lsn: Lsn
    durable_commit_lsn: Lsn
    feedback: Feedback

    def head(self) -> bytes:
        """Return the whole message; it has no payload."""
        return self.LAYOUT.pack(
            self.generation,
            self.ballot.term,
            self.ballot.proposer_id,
            self.flush_lsn,
            self.durable_commit_lsn,
            self.feedback.apply_lsn,
            self.feedback.xmin,
            self.feedback.catalog_xmin,
        )

    @classmethod
    def of(cls, body: memoryview) -> Self:
        if len(body) != cls.LAYOUT.size:
            raise RemoteProtocolError(f"AppendResponse of {len(body)} bytes")
        fixed = cls.LAYOUT.unpack(body)
        generation, term, proposer_id, flush, commit, apply, xmin, catalog_xmin = fixed
        feedback = Feedback(Lsn(apply), xmin, catalog_xmin)
        return cls(generation, Ballot(term, proposer_id), Lsn(flush), Lsn(commit), feedback)


@dataclass(frozen=True, slots=True)
class Reject:
    """The request is refused. `ballot` is the acceptor's own."""

    TAG: ClassVar[int] = ord("R")
    code: RejectCode
    text: str
    ballot: Ballot

    def pack(self, w: Writer) -> None:
        w.u16(self.code.value)
        w.prose(self.text)
        w.ballot(self.ballot)

    @classmethod
    def unpack(cls, r: Reader) -> Self:
        try:
            code = RejectCode(r.u16())
        except ValueError:
            code = RejectCode.REFUSED  # a newer peer's reason; its text still says it
        return cls(code, r.text(), r.ballot())


def _kind(value: int) -> LogKind:
    try:
        return LogKind(value)
    except ValueError:
        raise RemoteProtocolError(f"unknown kind of log {value}") from None
