"""A logical log as its consumers read it: LSNs found in positions, whole entries only.

    EntryCursor      frames from a segment's or an entry's start on, as far as they are committed
    LogicalLog       where the log ends, what it decodes, and where an LSN is (docs/logical.md)

Segment headers are the index by LSN; they are read once and kept. Reading is in chunks off the
event loop, and a frame is handed on when all of it is committed. An entry that is not
whole may still be cut away (R7): a consumer's connection ends then, as for WAL.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from walkeeper_common.entries import EntryKind, EntryWalk, Frame, SegmentHeader
from walkeeper_common.errors import WalkeeperError
from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.postgres.pgoutput import Descriptions, MessageSplitter
from walkeeper_common.postgres.pgwire import SqlRefused
from walkeeper_common.wire.consumer_slots import NEWS_MAX, TablesQuery
from walkeeper_safekeeper.replication.consumer_positions import ConsumerPositions
from walkeeper_safekeeper.replication.log_settings import LogSettings
from walkeeper_safekeeper.replication.primary_snapshot import TableCopies
from walkeeper_safekeeper.replication.served_log import Reader, ServedLog

logger = logging.getLogger("walkeeper.logical")

CHUNK_BYTES_MAX = 128 << 10
FOLLOW_S, FOLLOW_HURRIED_S = 0.5, 0.02
REPLICATE_S = 10.0
FIXED_SLOTS = "slots cannot be changed now: no quorum has the change"
MAY_COME = (
    "Try again at this safekeeper: it gives you the slot, also if it comes meanwhile. If nobody "
    "needs the slot then, drop it: the log keeps entries for it."
)
UNKNOWN_TABLES = "no quorum has an answer to which tables the primary publishes now"


@dataclass(slots=True)
class LogicalReader(Reader):
    """A consumer. Its LSNs are PostgreSQL's; `position` is where its next entry begins."""

    position: Lsn = ZERO_LSN

    @property
    def retention_lsn(self) -> Lsn:
        return self.position


class _Held:
    """Bytes that were read and not yet handed on."""

    def __init__(self, begin: Lsn) -> None:
        self.begin, self.data = begin, b""

    @property
    def end(self) -> Lsn:
        return self.begin + len(self.data)

    def read(self, begin: Lsn, end: Lsn) -> bytes:
        return self.data[begin - self.begin : end - self.begin]

    def drop(self, below: Lsn) -> None:
        self.begin, self.data = below, self.data[below - self.begin :]


class EntryCursor:
    """Reads on from `position`, a segment's start or an entry's."""

    def __init__(self, log: ServedLog, position: Lsn) -> None:
        self._log, self._held = log, _Held(position)
        self._walk = EntryWalk(self._held, position, position, log.segment_bytes)

    @property
    def is_at_end(self) -> bool:
        """True if all committed bytes were read."""
        return self._held.end >= self._log.readable_lsn

    @property
    def read_position(self) -> Lsn:
        """The end of the bytes that it has read, perhaps inside a frame."""
        return self._held.end

    @property
    def next_position(self) -> Lsn:
        """The end of the bytes that the next `more` reads."""
        begin, log = self._held.end, self._log
        segment_end = begin.round_down(log.segment_bytes) + log.segment_bytes
        return max(begin, min(log.readable_lsn, segment_end, begin + CHUNK_BYTES_MAX))

    @property
    def last(self) -> tuple[Lsn | None, Lsn]:
        """(where the last whole entry ends, its end LSN); the LSN alone from a segment's header."""
        record = self._walk.record
        return None if record is None else record.end_lsn, self._walk.end_lsn

    @property
    def timeline(self) -> int:
        """The primary's timeline in what was read last; 0 if nothing whole was read."""
        return self._walk.timeline

    async def more(self) -> list[Frame]:
        """Read one chunk and return its whole frames, perhaps none.

        Raise CorruptWal, WalRemoved or Refused.
        """
        begin, end = self._held.end, self.next_position
        if begin == end:
            return []
        self._held.data += await self._log.read_committed(begin, end)
        self._walk.limit = end
        frames = list(self._walk)
        self._held.drop(self._walk.position)
        return frames


@dataclass(slots=True)
class LogicalLog:
    """One log's index and end. `refresh` brings the end up to date; the rest uses what is known."""

    log: ServedLog
    copies: TableCopies = field(default_factory=TableCopies)  # the primaries that copy tables
    end_lsn: Lsn = ZERO_LSN  # end of the last whole entry that is committed
    timeline: int = 0  # the primary's, at end_lsn
    needed_lsn: Lsn | None = None  # the position from which slots and readers need entries
    settings: LogSettings | None = None
    positions: ConsumerPositions = field(init=False)
    _answers: dict[str, LogSettings | None] = field(default_factory=dict)  # to queries, by token
    _end_position: Lsn = ZERO_LSN
    _headers: dict[Lsn, SegmentHeader] = field(default_factory=dict)
    _refreshing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.positions = ConsumerPositions(self.log.slots.slots)

    async def follow(self) -> None:
        """Keep up with readable_lsn, until cancelled."""
        while True:
            waits = self.positions.waits or self._answers
            await asyncio.sleep(FOLLOW_HURRIED_S if waits else FOLLOW_S)
            try:
                await self.refresh()
            except WalkeeperError as error:  # cut or removed while it was read
                logger.info("cluster %s: %s", self.log.cluster, error)

    async def make_slot(self, name: str) -> Lsn:
        """Make a slot, and return where it begins once a quorum has it.

        The proposer knows what is committed, and this safekeeper perhaps not yet. Raise SqlRefused
        57P03 if no quorum gets the slot in time. It may come later: then the next call takes it.
        """
        positions = self.positions
        if (late_lsn := positions.take_late_slot(name)) is not None:
            return late_lsn
        self.log.slots.slots.check_new(name)
        await self._until(lambda: name not in positions.pending)  # or its drop takes this one
        positions.wanted[name] = self.end_lsn
        try:
            await self._until(lambda: name not in positions.wanted, hint=MAY_COME)
        finally:
            if positions.wanted.pop(name, None) is not None:
                positions.give_up(name)
        return self.log.slots.slots.get(name).restart_lsn or ZERO_LSN

    async def drop_slot(self, name: str, *, pid: int, wait: bool) -> bool:
        """Drop a slot, and return True when a quorum knows that.

        Return False after REPLICATE_S without one, such as behind a proposer that has ended because
        the publication is gone. The drop is pending then, and reaches the next proposer.
        """
        slots, positions = self.log.slots, self.positions
        if slots.slots.get(name).temporary:
            await slots.drop(name, pid=pid, wait=wait)
            return True
        try:
            # The log still has the slot, and may be read meanwhile: that must not bring it back.
            await slots.drop(
                name, pid=pid, wait=wait, on_dropped=lambda: positions.unwanted.add(name)
            )
            return await self._drop_everywhere(name)
        finally:
            positions.unwanted.discard(name)

    async def _drop_everywhere(self, name: str) -> bool:
        """Return True when the log does not have the slot, or False if its drop is pending."""
        lsn = (self.positions.replicated or {}).get(name)
        if lsn is None:
            return True
        try:
            await self._until(lambda: name not in self.positions.unwanted)
        except SqlRefused:
            self.positions.pending[name] = (self.positions.replicated or {}).get(name, lsn)
            return False
        return True

    def tables_query(self) -> TablesQuery | None:
        """Return the query for the proposer, or None if nothing waits for an answer."""
        tokens = tuple(token for token, found in self._answers.items() if found is None)
        return TablesQuery(tokens[:NEWS_MAX]) if tokens else None

    async def published_now(self, token: str) -> LogSettings:
        """Return settings with the tables that the primary had after this call began.

        `token` is unlike any other one of this log.
        The proposer asks the primary, and a quorum has its answer. SqlRefused 57P03 if no answer
        arrives within REPLICATE_S, and 0A000 if the proposer is too old to answer."""
        settings = await self.known_settings()
        if not settings.encoding:
            raise SqlRefused(
                "0A000",
                f'the proposer of cluster "{self.log.cluster}" cannot say which tables are '
                "published now: it runs an older version",
                hint="Start a proposer of the safekeepers' version.",
            )
        self._answers[token] = None
        try:
            await self._until(lambda: self._answers[token] is not None, UNKNOWN_TABLES)
            return self._answers[token] or settings
        finally:
            del self._answers[token]

    async def wait_for_end(self, lsn: Lsn) -> None:
        """Return when the log has what the primary had at `lsn`. SqlRefused 57P03 if too late."""
        await self._until(lambda: self.end_lsn >= lsn, f"it does not reach {lsn}")

    async def _until(
        self, is_replicated: Callable[[], bool], what: str = FIXED_SLOTS, hint: str = "Try again."
    ) -> None:
        try:
            async with asyncio.timeout(REPLICATE_S):
                while not is_replicated():  # noqa: ASYNC110  (what is waited for is in the log)
                    await asyncio.sleep(FOLLOW_HURRIED_S)
        except TimeoutError:
            raise SqlRefused(
                "57P03",
                f'cluster "{self.log.cluster}": {what} after {REPLICATE_S:g} s',
                hint="A proposer that reaches its primary and a quorum of safekeepers are needed. "
                f"{hint}",
            ) from None

    async def refresh(self) -> None:
        """Bring the end up to date, at the cost of the new WAL or about one segment."""
        async with self._refreshing:
            await self._refresh()
        if self.settings is not None and self.settings.slots != self.positions.replicated:
            self.positions.on_replicated(self.settings.slots)

    async def _refresh(self) -> None:
        log = self.log
        segment = Lsn(max(log.readable_lsn - Lsn(1), 0)).round_down(log.segment_bytes)
        while segment >= log.oldest_lsn:
            known = self._end_position >= segment
            cursor = EntryCursor(log, self._end_position if known else segment)
            await self._walk(cursor)
            if known or cursor.last[1]:
                break
            # not even the header of the newest segment is here
            segment = segment - log.segment_bytes
        if self.settings is None:
            await self._find_settings()

    async def _walk(self, cursor: EntryCursor) -> None:
        settings = b""
        while not cursor.is_at_end:
            for frame in await cursor.more():
                if frame.kind is EntryKind.SETTINGS:
                    settings = (b"" if frame.is_first else settings) + frame.payload
                if frame.kind is EntryKind.SETTINGS and frame.is_last:
                    found = LogSettings.parse(settings, self.settings)
                    for token in self._answers.keys() & set(found.answered):
                        self._answers[token] = self._answers[token] or found
                    self.settings = replace(found, clashing=())  # these may be mended by now
        position, end_lsn = cursor.last
        self._end_position = position or self._end_position
        self.end_lsn = end_lsn or self.end_lsn
        self.timeline = cursor.timeline or self.timeline

    async def _find_settings(self) -> None:
        """Read the settings in the newest segment in which an entry starts."""
        log = self.log
        segment = Lsn(max(log.readable_lsn - Lsn(1), 0)).round_down(log.segment_bytes)
        while self.settings is None and segment >= log.oldest_lsn:
            cursor = EntryCursor(log, segment)
            while self.settings is None and not cursor.is_at_end:
                for frame in await cursor.more():
                    if frame.kind is EntryKind.SETTINGS and frame.is_first and frame.is_last:
                        self.settings = LogSettings.parse(frame.payload)
            segment = segment - log.segment_bytes

    async def known_settings(self) -> LogSettings:
        """Return the settings; wait for those of a first proposer.

        That proposer is ready before a quorum has its settings, and before this safekeeper knows of
        it. Raise SqlRefused 57P03 if the settings do not come.
        """
        clock = asyncio.get_running_loop().time
        until_s = clock() + REPLICATE_S
        while True:
            readable_lsn = self.log.readable_lsn
            try:
                await self.refresh()
            except WalkeeperError as error:  # cut while it was read: what is known still holds
                logger.info("cluster %s: %s", self.log.cluster, error)
            if self.settings is not None:
                return self.settings
            if (left_s := until_s - clock()) <= 0:
                break
            await self.log.wait_for_readable(readable_lsn, left_s)
        raise SqlRefused(
            "57P03",
            f'no proposer has streamed into cluster "{self.log.cluster}" yet, as far as this '
            f"safekeeper knows after {REPLICATE_S:g} s",
            hint="Start walkeeper proposer --logical --publication NAME. If one runs, it has to "
            "reach a quorum of safekeepers with this one among them.",
        )

    async def _header(self, segment: Lsn) -> SegmentHeader | None:
        """Return the header of a segment, or None while it is not committed."""
        known = self._headers.get(segment)
        if known is None and segment + SegmentHeader.BYTES <= self.log.readable_lsn:
            data = await self.log.read_committed(segment, segment + SegmentHeader.BYTES)
            known = self._headers[segment] = SegmentHeader.unpack(data, segment)
        return known

    async def segment_of(self, lsn: Lsn) -> Lsn | None:
        """Return the segment to read from, to get every entry that ends after `lsn`.

        Return None if some of them are no longer kept here.
        """
        log = self.log
        for gone in [segment for segment in self._headers if segment < log.oldest_lsn]:
            del self._headers[gone]
        low, high = log.oldest_lsn, log.readable_lsn.round_down(log.segment_bytes)
        header = await self._header(low)
        if header is None:
            return low  # no byte is committed yet
        if header.end_lsn > lsn:
            return None
        while low < high:  # headers' end LSNs never decrease
            middle = Lsn((low + high + log.segment_bytes) // 2).round_down(log.segment_bytes)
            tried = await self._header(middle)
            if tried is None or tried.end_lsn > lsn:
                high = middle - log.segment_bytes
            else:
                low, header = middle, tried
        start = (header.entry_start or low).round_down(log.segment_bytes)
        if start >= log.oldest_lsn:
            return start
        # The entry that goes on here began below what is kept (a newcomer's log starts inside of
        # one, most often). A consumer that has this entry lacks none.
        end_lsn = header.rest_end_lsn or await self._first_end_lsn(low)
        return low if ZERO_LSN < end_lsn <= lsn else None

    async def _first_end_lsn(self, segment: Lsn) -> Lsn:
        """Return the end of the entry that goes on at the segment's start, or ZERO_LSN before."""
        cursor = EntryCursor(self.log, segment)
        while not cursor.is_at_end:
            for frame in await cursor.more():
                if frame.is_last:
                    return frame.end_lsn
        return ZERO_LSN

    async def horizon(self, keep_bytes_max: int) -> Lsn:
        """Look up `needed_lsn`, and return the position from which entries are kept for it.

        Consumers hold back at most `keep_bytes_max`, so that no consumer fills the disk. A consumer
        that lags further is fed from the archive. Without one it has to start anew.
        """
        log, wanted = self.log, [self.log.readable_lsn]
        slots_lsn, readers = log.slots.slots.retention_lsn(), log.readers.retention_lsn()
        if slots_lsn is not None:
            wanted.append(await self.segment_of(slots_lsn) or log.oldest_lsn)
        if readers is not None:
            wanted.append(readers)
        self.needed_lsn = min(wanted)
        return max(self.needed_lsn, Lsn(max(0, log.readable_lsn - Lsn(keep_bytes_max))))


class Describer:
    """Puts the descriptions that a consumer lacks in front of what needs them.

    Only for entries that start in the segment of the first one sent: later ones have their own.
    """

    def __init__(self, without: frozenset[int] = frozenset()) -> None:
        """Leave out messages of the kinds `without`, which the consumer did not ask for."""
        self._descriptions, self._splitter = Descriptions(), MessageSplitter()
        self._without = without

    def begin(self) -> None:
        """Begin an entry, whatever the one before ended with."""
        self._splitter = MessageSplitter()

    def skip(self, payload: memoryview) -> None:
        """Remember the descriptions of an entry that the consumer has; they are not valid."""
        for copy_data, message in self._splitter.feed(payload):
            self._descriptions.see(copy_data, message)
        self._descriptions.forget_valid()

    def complete(self, payload: memoryview) -> bytes:
        """Return all messages that are whole by now, each after the descriptions that it needs."""
        return b"".join(
            self._descriptions.see(copy_data, message) + copy_data
            for copy_data, message in self._splitter.feed(payload)
            if message[0] not in self._without
        )
