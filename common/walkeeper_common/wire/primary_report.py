"""The leading proposer's report on its primary, which safekeepers show in `status`. Pure.

The consensus does not depend on it, and no disk keeps it. The proposer sends it on a connection of
its own, so appends do not wait for it. A safekeeper without this message closes that connection on
it, as on any unknown tag, and the proposer's other connection goes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.wire.fields import Reader, Writer

LOWERED_MAX = 32
TEXT_BYTES_MAX = 1024


@dataclass(frozen=True, slots=True)
class PrimaryReport:
    """From the proposer `proposer_id` to each safekeeper of `cluster`; never answered.

    `since` is the Unix time at which the first three facts last changed. `sync_state` is
    pg_stat_replication's, or empty if unknown. An older version also says "absent". `waiting`
    counts commits that wait for longer than WAITING_S, and `waiting_since` is the oldest one's Unix
    time. `lowered` lists the settings of synchronous_commit with which commits do not wait.
    `repair` is a text for people: a spare takes a member's place, or may not. A version without
    that field reads a report without such a text.
    """

    TAG: ClassVar[int] = ord("b")
    cluster: str
    proposer_id: bytes
    connected: bool
    streaming: bool
    sync_state: str
    since: int
    waiting: int
    waiting_since: int
    lowered: tuple[str, ...]
    error: str
    repair: str = ""

    def pack(self, w: Writer) -> None:
        w.text(self.cluster)
        w.raw(self.proposer_id, 16)
        w.boolean(self.connected)
        w.boolean(self.streaming)
        w.text(self.sync_state)
        w.u64(self.since)
        w.u32(self.waiting)
        w.u64(self.waiting_since)
        w.u16(len(self.lowered))
        for one in self.lowered:
            w.text(one)
        w.text(self.error)
        if self.repair:
            w.text(self.repair)

    @classmethod
    def unpack(cls, r: Reader) -> Self:
        head = (r.text(), r.raw(16), r.boolean(), r.boolean(), r.text())
        since, waiting, waiting_since = r.u64(), r.u32(), r.u64()
        count = r.u16()
        if count > LOWERED_MAX:
            raise RemoteProtocolError(f"a report of {count} lowered settings")
        lowered, error = tuple(r.text() for _ in range(count)), r.text()
        repair = r.text() if r.remaining else ""
        report = cls(*head, since, waiting, waiting_since, lowered, error, repair)
        texts = (report.sync_state, report.error, report.repair, *report.lowered)
        longest = max(len(text.encode()) for text in texts)
        if longest > TEXT_BYTES_MAX:
            raise RemoteProtocolError(f"a report with a text of {longest} bytes")
        return report


def clipped(text: str) -> str:
    """Return the text, cut so that a report may carry it."""
    return text.encode()[:TEXT_BYTES_MAX].decode(errors="ignore")
