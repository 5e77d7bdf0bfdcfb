"""`walkeeper logs drop`: one log goes from one safekeeper, and a tombstone stays (M7). Pure.

A LogState without a log answers DropLog. A safekeeper without this message closes the connection on
it, as on any unknown tag.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from walkeeper_common.wire.fields import Reader, Writer


@dataclass(frozen=True, slots=True)
class DropLog:
    """Drop the log of this uuid. Repeating it changes nothing."""

    TAG: ClassVar[int] = ord("x")
    cluster: str
    log_uuid: bytes

    def pack(self, w: Writer) -> None:
        w.text(self.cluster)
        w.raw(self.log_uuid, 16)

    @classmethod
    def unpack(cls, r: Reader) -> Self:
        return cls(r.text(), r.raw(16))
