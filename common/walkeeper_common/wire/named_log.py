"""The body of a message that names one log: its cluster and its uuid. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from walkeeper_common.wire.fields import Reader, Writer


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
