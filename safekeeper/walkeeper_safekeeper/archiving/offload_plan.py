"""Decide which safekeeper archives which segment, and when. Pure.

    step(event) -> effects          no I/O, no clock: a tick is about a second

No safekeeper elects an offloader or takes a lock. Every member looks at the archive itself, which
all of them must reach anyway:

 1. Members have ranks, from their ids and the cluster's name, so that a safekeeper with many logs
    is not first in all of them. Rank 0 archives due segments at once.
 2. Rank r > 0 takes over when WAL has been due for r * TAKE_OVER_TICKS and the archive has not
    grown. The offloader is then dead, cut off or stuck. It also takes over when r * LAG_SEGMENTS
    are due, since the offloader is slow. It yields when it meets a segment that another member has
    archived meanwhile. A backlog alone lets it help again only after TAKE_OVER_TICKS: after an
    outage many segments are due, and the other member goes on archiving them.
 3. Two members that archive at once do no harm, since a put succeeds only if the name is free. The
    second one finds its own bytes there, or a conflict. So ranks are advice, never safety: a clock
    that runs wrong, or a partition, costs requests.

A segment counts as archived here when the archive has it with a receipt **and** the receipt agrees
with the bytes on our own disk. Any member may have put it there. So every member compares each
segment with the archive before it may remove its copy. `archived_lsn` is contiguous: segments are
put in parallel, lowest first, and one counts only when all before it do.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from walkeeper_common.lsn import Lsn
from walkeeper_common.operator_text.counts import counted

TAKE_OVER_TICKS = 10
LAG_SEGMENTS = 16
LOOK_TICKS = 5  # between two looks of a member that waits for the offloader
BACK_OFF_TICKS_MAX = 30
AHEAD_SEGMENTS_MAX = 32  # from archived_lsn on: so many may be put while the lowest one fails


@dataclass(frozen=True, slots=True)
class Grown:
    """Everything below `whole_lsn`, a segment's start, is committed for good."""

    whole_lsn: Lsn


@dataclass(frozen=True, slots=True)
class Looked:
    """These segments, from archived_lsn on, have receipts in the archive."""

    segments: frozenset[Lsn]


@dataclass(frozen=True, slots=True)
class SegmentArchived:
    """The segment is archived and agrees with our bytes. `by_us`: this very request has put it."""

    begin_lsn: Lsn
    by_us: bool


@dataclass(frozen=True, slots=True)
class TailArchived:
    """The committed part of the last segment is archived, by any member, or there is none."""


@dataclass(frozen=True, slots=True)
class OffloadTick:
    """About a second has passed."""


@dataclass(frozen=True, slots=True)
class Look:
    """List the archive from this segment on; answer Looked or ArchiveFailed."""

    begin_lsn: Lsn


@dataclass(frozen=True, slots=True)
class ArchiveSegment:
    """Compare this segment with the archive, putting it there if it is not."""

    begin_lsn: Lsn


@dataclass(frozen=True, slots=True)
class ArchiveTail:
    """Put the committed part of the segment after whole_lsn.

    `is_ours` is False where the offloader has let more than one interval pass.
    """

    is_ours: bool


Request: TypeAlias = Look | ArchiveSegment | ArchiveTail


@dataclass(frozen=True, slots=True)
class ArchiveFailed:
    """The request failed this time."""

    request: Request
    text: str


@dataclass(frozen=True, slots=True)
class ArchivedMoved:
    """This is the new archived_lsn."""

    archived_lsn: Lsn


@dataclass(frozen=True, slots=True)
class OffloadNote:
    """A line for the log."""

    text: str


Event: TypeAlias = Grown | Looked | SegmentArchived | TailArchived | ArchiveFailed | OffloadTick
Effect: TypeAlias = Request | ArchivedMoved | OffloadNote


def rank_of(acceptor_id: int, member_ids: Sequence[int], cluster: str) -> int:
    """Return the member's rank, from 0 on. All members of a cluster compute the same ranks."""
    ids = sorted({*member_ids, acceptor_id})
    first = zlib.crc32(cluster.encode()) % len(ids)
    return (ids.index(acceptor_id) - first) % len(ids)


class OffloadPlan:
    """The plan for one log on one safekeeper."""

    def __init__(
        self,
        *,
        rank: int,
        segment_bytes: int,
        archived_lsn: Lsn,
        parallel_max: int,
        tail_ticks: int,
    ) -> None:
        assert archived_lsn % segment_bytes == 0, f"{archived_lsn=} {segment_bytes=}"
        self.archived_lsn = self.whole_lsn = archived_lsn
        self.is_offloading = rank == 0
        self.problem: str | None = None
        self._rank, self._segment_bytes = rank, segment_bytes
        self._parallel_max, self._tail_ticks_max = parallel_max, tail_ticks
        self._running: set[Lsn] = set()
        self._done: set[Lsn] = set()
        self._receipted: frozenset[Lsn] = frozenset()
        self._is_looking = self._has_looked = self._is_tail_running = False
        self._failures = self._wait_ticks = self._gives_way_ticks = 0
        self.quiet_ticks = 0  # segments are due, and the archive has not been seen to grow
        self._look_ticks = self._tail_ticks = 0

    @property
    def due_segments(self) -> int:
        """The number of segments that are committed for good and not yet archived."""
        return (self.whole_lsn - self.archived_lsn) // self._segment_bytes

    def step(self, event: Event) -> list[Effect]:
        """Return one event's effects."""
        match event:
            case Grown(whole_lsn):
                return self.on_grown(whole_lsn)
            case Looked(segments):
                return self.on_looked(segments)
            case SegmentArchived():
                return self.on_segment_archived(event)
            case TailArchived():
                self._is_tail_running, self._tail_ticks = False, 0
                return []
            case ArchiveFailed():
                return self.on_failed(event)
            case OffloadTick():
                return self.on_tick()
            case _:
                assert_never(event)

    def on_grown(self, whole_lsn: Lsn) -> list[Effect]:
        assert whole_lsn % self._segment_bytes == 0, f"{whole_lsn=}"
        self.whole_lsn = max(self.whole_lsn, whole_lsn)
        return self._go_on()

    def on_looked(self, segments: frozenset[Lsn]) -> list[Effect]:
        self._is_looking, self._has_looked, self._look_ticks = False, True, 0
        if segments - self._receipted - self._done:
            self.quiet_ticks = 0  # the archive has grown, and not by us: another member is at work
        self._receipted = segments
        self._succeeded()
        return self._take_over_when_due() + self._go_on()

    def on_segment_archived(self, archived: SegmentArchived) -> list[Effect]:
        begin_lsn = archived.begin_lsn
        self._running.discard(begin_lsn)
        if begin_lsn >= self.archived_lsn:
            self._done.add(begin_lsn)
        self._succeeded()
        effects: list[Effect] = []
        before_lsn = self.archived_lsn
        while self.archived_lsn in self._done:
            self._done.discard(self.archived_lsn)
            self.archived_lsn = self.archived_lsn + self._segment_bytes
        if self.archived_lsn > before_lsn:
            self.quiet_ticks = self._tail_ticks = 0
            effects.append(ArchivedMoved(self.archived_lsn))
        met_another = not archived.by_us and begin_lsn not in self._receipted
        if met_another and self._rank and self.is_offloading:
            self.is_offloading = self._has_looked = False
            self._gives_way_ticks = TAKE_OVER_TICKS
            effects.append(OffloadNote("another safekeeper archives: giving way"))
        return effects + self._go_on()

    def on_failed(self, failed: ArchiveFailed) -> list[Effect]:
        """Record the failure and pause, longer each time; WAL stays here meanwhile and commits go
        on."""
        match failed.request:
            case Look():
                self._is_looking = False
            case ArchiveSegment(begin_lsn):
                self._running.discard(begin_lsn)
            case ArchiveTail():
                self._is_tail_running = False
        effects: list[Effect] = []
        if failed.text != self.problem:
            effects.append(OffloadNote(f"cannot archive: {failed.text}"))
        self.problem = failed.text
        self._has_looked = False  # a request that failed may have put its object all the same
        if not self._wait_ticks:
            self._failures += 1
            self._wait_ticks = min(2**self._failures, BACK_OFF_TICKS_MAX)
        return effects

    def on_tick(self) -> list[Effect]:
        self._wait_ticks = max(0, self._wait_ticks - 1)
        self._gives_way_ticks = max(0, self._gives_way_ticks - 1)
        if self.due_segments:
            self.quiet_ticks += 1
            self._look_ticks += 1
            if not self.is_offloading and self._look_ticks >= LOOK_TICKS:
                self._has_looked = False
        else:
            self.quiet_ticks = 0
        self._tail_ticks += 1
        return self._go_on() + self._tail_when_due()

    def _take_over_when_due(self) -> list[Effect]:
        """Start to offload if the offloader is late or lags far.

        Called after a look only, since the archive may have grown unseen before it.
        """
        late = self.quiet_ticks >= self._rank * TAKE_OVER_TICKS
        far = self.due_segments >= self._rank * LAG_SEGMENTS and not self._gives_way_ticks
        if self.is_offloading or not (late or far):
            return []
        self.is_offloading = True
        why = "does not move" if late else "falls behind"
        due = counted(self.due_segments, "segment", "segments")
        return [OffloadNote(f"the archive {why} ({due} due): taking over")]

    def _tail_when_due(self) -> list[Effect]:
        """Return the effect that puts the tail, if its interval has passed.

        Every member does so, in the order of ranks. With little WAL no segment is due, so nothing
        else shows that the offloader is gone.
        """
        patience = 0 if self.is_offloading else max(1, self._rank) * TAKE_OVER_TICKS
        due = self._tail_ticks >= self._tail_ticks_max + patience
        if not due or self.due_segments or self._is_tail_running or self._wait_ticks:
            return []
        self._is_tail_running = True
        return [ArchiveTail(is_ours=self.is_offloading)]

    def _go_on(self) -> list[Effect]:
        """Return the effects for everything that may start now, lowest segment first."""
        if not self.due_segments or self._wait_ticks:
            return []
        if not self._has_looked:
            if self._is_looking:
                return []
            self._is_looking = True
            return [Look(self.archived_lsn)]
        effects: list[Effect] = []
        lsn = self.archived_lsn
        end_lsn = min(self.whole_lsn, lsn + AHEAD_SEGMENTS_MAX * self._segment_bytes)
        while lsn < end_lsn and len(self._running) < self._parallel_max:
            is_ours = self.is_offloading or lsn in self._receipted
            if is_ours and lsn not in self._running and lsn not in self._done:
                self._running.add(lsn)
                effects.append(ArchiveSegment(lsn))
            lsn = lsn + self._segment_bytes
        return effects

    def _succeeded(self) -> None:
        self.problem, self._failures, self._wait_ticks = None, 0, 0
