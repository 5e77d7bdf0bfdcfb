"""The digest of a range of committed WAL, with which members compare their copies. Pure.

The scrub of a safekeeper asks the others (archiving/range_digests). A range is at most a segment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.lsn import Lsn
from walkeeper_common.wire.fields import Reader, Writer

RANGE_BYTES_MAX = 1 << 30  # PostgreSQL's largest segment
SHA256_BYTES = 32


@dataclass(frozen=True, slots=True)
class DigestQuery:
    """Ask for the SHA-256 of [begin_lsn, end_lsn) on this member's disk."""

    TAG: ClassVar[int] = ord("h")
    cluster: str
    log_uuid: bytes
    begin_lsn: Lsn
    end_lsn: Lsn

    def pack(self, w: Writer) -> None:
        w.text(self.cluster)
        w.raw(self.log_uuid, 16)
        w.lsn(self.begin_lsn)
        w.lsn(self.end_lsn)

    @classmethod
    def unpack(cls, r: Reader) -> Self:
        ask = cls(r.text(), r.raw(16), r.lsn(), r.lsn())
        if not 0 < ask.end_lsn - ask.begin_lsn <= RANGE_BYTES_MAX:
            raise RemoteProtocolError(f"a digest of {ask.begin_lsn} to {ask.end_lsn}")
        return ask


@dataclass(frozen=True, slots=True)
class RangeDigest:
    """The answer. A member that does not have all of the range rejects the query."""

    TAG: ClassVar[int] = ord("d")
    begin_lsn: Lsn
    end_lsn: Lsn
    sha256: bytes

    def pack(self, w: Writer) -> None:
        w.lsn(self.begin_lsn)
        w.lsn(self.end_lsn)
        w.raw(self.sha256, SHA256_BYTES)

    @classmethod
    def unpack(cls, r: Reader) -> Self:
        return cls(r.lsn(), r.lsn(), r.raw(SHA256_BYTES))
