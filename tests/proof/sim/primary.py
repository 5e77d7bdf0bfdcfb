"""A stock primary, as far as a proposer sees it: valid WAL, one slot, honest flush positions."""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Callable
from typing import Protocol

from tests.proof.sim.oracle import Acknowledged
from tests.proof.sim.world import World
from tests.support.sound_server import SOUND_SERVER
from tests.support.wal_maker import SYSTEM_ID, WalMaker, nonce_message
from walkeeper_common.history import Ballot
from walkeeper_common.lsn import LSN_MAX, WAL_PAGE_BYTES, Lsn
from walkeeper_common.postgres.nonce_message import NONCE_BYTES, RMGR_LOGICAL_MESSAGE
from walkeeper_common.postgres.walformat import has_telling_record
from walkeeper_common.timelines import Ends, Timelines
from walkeeper_proposer.consensus.proposer_events import PrimaryIdentity

COMMIT_RMID, HEAP_RMID = 1, 10
COMMITS_IN_BULK = 0.01  # the share of writes
COMMIT_BYTES = 40
CHUNK_BYTES_MAX = 20_000
STREAMING_SLOT, RETENTION_SLOT = "s", "s_retention"
# the first is a share of writes, the second of crashes, in a recycled segment
SWITCHES, DEATHS_IN_SWITCHES = 0.02, 0.3


class Standby(Protocol):
    """A proposer's side of the walsender's connection."""

    def wal_arrived(self, begin_lsn: Lsn, wal: bytes) -> None: ...
    def primary_lost(self, text: str) -> None: ...
    def timeline_over(self, end_lsn: Lsn) -> None: ...
    @property
    def ballot(self) -> Ballot: ...


class Primary:
    """One server; `clone` makes another one with the same past."""

    def __init__(
        self,
        world: World,
        name: str,
        maker: WalMaker,
        acked: Acknowledged,
        *,
        timeline: int = 1,
        timeline_ends: Ends = (),
    ) -> None:
        self.world, self.name, self.maker, self.acked = world, name, maker, acked
        self.timeline, self.timeline_ends = timeline, list(timeline_ends)
        self._until_lsn = LSN_MAX  # where the timeline ends that is being streamed
        self.is_up = True
        self.flush_lsn = maker.end_lsn
        self._standby: Standby | None = None
        self._sent_lsn = Lsn(0)
        self._told_lsn = acked.start_lsn  # a whole record's end
        self._slot_lsns: dict[str, Lsn] = {}  # the positions that its slots keep, by name

    def identity(self) -> PrimaryIdentity:
        return PrimaryIdentity(
            system_id=SYSTEM_ID,
            timeline=self.timeline,
            flush_lsn=self.flush_lsn,
            segment_bytes=self.maker.segment_bytes,
            **SOUND_SERVER,
            timeline_file="\n".join(f"{t}\t{lsn}\twhy\n" for t, lsn in self.timeline_ends).encode(),
        )

    def go_on_as(self, timelines: Timelines) -> None:
        """Go on as the log's timelines; it may have left one without a byte of the next one yet."""
        self.timeline_ends = timelines.ends()
        self.timeline = self.maker.timeline = timelines.last

    def begins(self, timeline: int) -> Lsn:
        """Return from where on there are segment files of this timeline."""
        numbers = [t for t, _ in self.timeline_ends] + [self.timeline]
        at = numbers.index(timeline)
        fork_lsn = self.timeline_ends[at - 1][1] if at else self.maker.start_lsn
        return fork_lsn.round_down(self.maker.segment_bytes)

    def ends(self, timeline: int) -> Lsn:
        """Return where a timeline ends: LSN_MAX for the one that it writes on."""
        return dict(self.timeline_ends).get(timeline, LSN_MAX)

    def has_all_of(self, acked: Acknowledged) -> bool:
        """Return True if every acknowledged byte is durable here."""
        if self.flush_lsn < acked.end_lsn:
            return False
        return self.maker.read(acked.start_lsn, acked.end_lsn) == acked.wal

    @property
    def kept_lsn(self) -> Lsn:
        """Where its pg_wal begins: checkpoints recycle the segments before."""
        recycled, first_lsn = self.world.options.recycled_bytes, self.maker.start_lsn
        if self.world.options.is_bulk:
            slots_lsn = min(self._slot_lsns.values(), default=first_lsn)
            return max(first_lsn, slots_lsn.round_down(self.maker.segment_bytes))
        if recycled is None or not self.world.is_rough:
            return first_lsn
        segment = self.flush_lsn.round_down(self.maker.segment_bytes)
        return max(first_lsn, Lsn(max(0, segment - recycled)).round_down(self.maker.segment_bytes))

    def write(self, size: int | None = None) -> None:
        """Write one more transaction, flushed now or at the next page boundary only."""
        if not self.is_up:
            return
        random, sizes = self.world.random, self.world.options.record_bytes
        if size is None:
            size = random.choice(sizes) if len(sizes) > 1 else random.randrange(sizes[0])
        options = self.world.options
        is_open = options.is_bulk and random.random() >= COMMITS_IN_BULK
        self.maker.record(size, 0, HEAP_RMID if is_open else COMMIT_RMID)
        if options.switches and random.random() < SWITCHES:
            self.maker.switch()
        has_to_tell = options.retention_bytes is not None or options.replaces
        if size > WAL_PAGE_BYTES // 2 and has_to_tell and not options.is_bulk:
            # As every real transaction does, or no page would tell of what retention keeps, or of
            # what members have that replaced others.
            self.maker.record(COMMIT_BYTES, 0, COMMIT_RMID)
        end_lsn = self.maker.end_lsn
        if not self.world.is_healed and random.random() < 0.2:
            end_lsn = max(self.flush_lsn, end_lsn.round_down(WAL_PAGE_BYTES))
        self.flush_lsn = end_lsn
        self._send()

    def _send(self) -> None:
        end_lsn = min(self.flush_lsn, self._until_lsn)
        while self._standby is not None and self._sent_lsn < end_lsn:
            begin_lsn = self._sent_lsn
            self._sent_lsn = min(begin_lsn + CHUNK_BYTES_MAX, end_lsn)
            self._standby.wal_arrived(begin_lsn, self.maker.read(begin_lsn, self._sent_lsn))
        if self._standby is not None and self._sent_lsn == self._until_lsn:
            self._standby.timeline_over(end_lsn)

    def stream(self, standby: Standby, start_lsn: Lsn, timeline: int) -> None:
        """Start as START_REPLICATION with the slot does: end the connection that had it before."""
        begin_lsn, end_lsn = self.begins(timeline), self.ends(timeline)
        assert begin_lsn <= start_lsn <= end_lsn, f"{start_lsn=} {timeline=}"
        if self._standby is not None and self._standby is not standby:
            self._standby.primary_lost("the slot was taken")
        self._standby, self._sent_lsn = standby, start_lsn
        self._until_lsn = end_lsn
        self.keep_from_now(STREAMING_SLOT)
        self._send()

    def keep_from_now(self, slot: str) -> None:
        """Make a slot that reserves WAL, as far back as it is there, unless it is made already."""
        self._slot_lsns.setdefault(slot, self.kept_lsn)

    def keep_as_standby(self, committed_lsn: Lsn) -> None:
        """Make the retention slot of a standby that was promoted, at the last telling page that
        ends at or before `committed_lsn`."""
        first_lsn = self.maker.start_lsn
        end_lsn = min(committed_lsn, self.flush_lsn)
        page_lsn = Lsn(max(0, end_lsn - 1)).round_down(WAL_PAGE_BYTES)
        while page_lsn > first_lsn:
            until_lsn = min(page_lsn + WAL_PAGE_BYTES, end_lsn)
            if has_telling_record(page_lsn, self.maker.read(page_lsn, until_lsn)):
                break
            page_lsn = page_lsn - WAL_PAGE_BYTES
        self._slot_lsns[RETENTION_SLOT] = max(first_lsn, page_lsn)

    def advance(self, slot: str, lsn: Lsn) -> None:
        """Move a slot, never back."""
        self._slot_lsns[slot] = max(self._slot_lsns[slot], min(lsn, self.flush_lsn))

    def write_nonce(self) -> Lsn:
        """Write a nonce, as pg_logical_emit_message and walwriter's flush do; return its end."""
        nonce = nonce_message(self.world.random.randbytes(NONCE_BYTES))
        self.flush_lsn = self.maker.record(nonce, 0, RMGR_LOGICAL_MESSAGE).end_lsn
        self._send()
        return self.flush_lsn

    def leave(self, standby: Standby) -> None:
        if self._standby is standby:
            self._standby = None

    def report(self, standby: Standby, commit_lsn: Lsn) -> None:
        """Take a status update: every transaction that ends below is acknowledged to its client."""
        if not self.is_up or self._standby is not standby:
            return
        assert commit_lsn <= self._sent_lsn, f"{commit_lsn=} beyond what was sent {self._sent_lsn}"
        if self.world.options.is_bulk:
            self.advance(STREAMING_SLOT, commit_lsn)
        end_lsn = max(self.record_end(commit_lsn), self._told_lsn)
        if end_lsn > self._told_lsn:
            wal = self.maker.read(self._told_lsn, end_lsn)
            self.acked.acknowledge(self.name, self._told_lsn, wal, standby.ballot)
            self.world.facts["commits acknowledged"] += self._records_in(self._told_lsn, end_lsn)
            self._told_lsn = end_lsn

    def record_end(self, lsn: Lsn) -> Lsn:
        """Return where the last record ends that is whole below `lsn`."""
        records = self.maker.records
        at = bisect_right(records, lsn, key=lambda made: made.own_end_lsn)
        while at and not records[at - 1].complete:
            at -= 1  # an aborted one ends nothing before the record behind it is whole
        return records[at - 1].own_end_lsn if at else self.maker.start_lsn

    def _records_in(self, begin_lsn: Lsn, end_lsn: Lsn) -> int:
        ends = [bisect_right(self.maker.records, x, key=lambda m: m.own_end_lsn)
                for x in (begin_lsn, end_lsn)]  # fmt: skip
        return ends[1] - ends[0]

    def crash(self, *, then: Callable[[], None] = lambda: None) -> None:
        """Crash and keep flushed WAL; go on with the same bytes, or end the record that was cut."""
        if not self.is_up:
            return
        self.world.trouble("primary crashes", self.name, f"CRASH flush={self.flush_lsn}")
        self.stop()
        self.world.later(self.world.random.uniform(100, 3000), lambda: self.restart(then))

    def stop(self) -> None:
        """Stop until somebody starts it again."""
        self.is_up = False
        standby, self._standby = self._standby, None
        if standby is not None:
            standby.primary_lost("the server crashed")

    def restart(self, then: Callable[[], None] = lambda: None) -> None:
        if self.is_up:
            return
        goes_on_lsn = self.maker.crash(self.flush_lsn)
        if self.world.options.switches and self.world.random.random() < DEATHS_IN_SWITCHES:
            self.maker.switch(stale=True)
        self.is_up, self.flush_lsn = True, self.maker.end_lsn
        self.world.say(self.name, f"boot from={goes_on_lsn} flush={self.flush_lsn}")
        then()

    def clone(self, name: str, at_lsn: Lsn, *, promoted_to: int | None = None) -> Primary:
        """Copy the server as of `at_lsn`; the copy goes on with other transactions than ours.

        It ends with the last whole record there; on the timeline of that, or promoted.
        """
        maker = copy.copy(self.maker)
        maker._data = bytearray(self.maker._data)
        maker.records = [m for m in maker.records if m.own_end_lsn <= at_lsn]
        while maker.records and not maker.records[-1].complete:
            maker.records.pop()  # else the record that ends it would have to be cloned as well
        maker.forget_after(maker.records[-1].own_end_lsn if maker.records else maker.start_lsn)
        ends = [(t, lsn) for t, lsn in self.timeline_ends if lsn < maker.end_lsn]
        later = [t for t, lsn in self.timeline_ends if lsn >= maker.end_lsn]
        timeline = later[0] if later else self.timeline
        if promoted_to is not None:
            ends.append((timeline, maker.end_lsn))
            timeline = promoted_to
        maker.timeline = timeline
        return Primary(self.world, name, maker, self.acked, timeline=timeline, timeline_ends=ends)
