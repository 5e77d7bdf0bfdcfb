"""The fields by which messages name a cluster, a log of it or its members. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from walkeeper_common.quorum import Configuration
from walkeeper_common.wire.fields import Reader, Writer


@dataclass(frozen=True, slots=True)
class NamedCluster:
    """The name alone, of a question that changes nothing; each message has a tag of its own."""

    cluster: str

    def pack(self, w: Writer) -> None:
        w.text(self.cluster)

    @classmethod
    def unpack(cls, r: Reader) -> Self:
        return cls(r.text())


@dataclass(frozen=True, slots=True)
class NamedLog:
    """The two fields and their layout; each message has a tag of its own."""

    cluster: str
    log_uuid: bytes

    def pack(self, w: Writer) -> None:
        w.text(self.cluster)
        w.raw(self.log_uuid, 16)

    @classmethod
    def unpack(cls, r: Reader) -> Self:
        return cls(r.text(), r.raw(16))


@dataclass(frozen=True, slots=True)
class NamedMembers:
    """A cluster and its configuration; each message has a tag of its own."""

    cluster: str
    configuration: Configuration

    def pack(self, w: Writer) -> None:
        w.text(self.cluster)
        w.configuration(self.configuration)

    @classmethod
    def unpack(cls, r: Reader) -> Self:
        return cls(r.text(), r.configuration())
