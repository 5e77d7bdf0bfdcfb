"""May this primary go on with this logical log, and from which LSN? Pure.

    start() -> effects, then feed it the answers; `verdict` is set when it is over

The logical counterpart of primary_check.py and admission.py. There are no bytes to compare. The
end LSN E of the log, read from the donor, is compared with the primary's slot and timeline instead
(docs/logical.md). The log's last transaction is compared with the one that the slot sends again
(past_comparison.py). The slot's confirmed_flush_lsn never passes E, because the proposer reports
only what a quorum has. So a slot beyond E was moved or made anew, and the changes in between are
in no log.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from walkeeper_common.buffers import Buffer
from walkeeper_common.entries import EntryKind, EntryWalk, Frame
from walkeeper_common.errors import CorruptWal
from walkeeper_common.history import NO_BALLOT
from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.postgres.pgoutput import BEGIN_BYTES, COMMIT_BYTES, Commit
from walkeeper_common.wire.messages import WAL_PAYLOAD_BYTES_MAX
from walkeeper_common.wire.requests import ReadRequest, ReadResponse
from walkeeper_common.wire.wal_crc import crc_of
from walkeeper_proposer.consensus import admission
from walkeeper_proposer.consensus.primary_check import HeldWal, Range, Verdict
from walkeeper_proposer.consensus.proposer_events import Effect, PrimaryIdentity, Send
from walkeeper_proposer.logical.change_stream import ChangeStream
from walkeeper_proposer.logical.past_comparison import NEW_LOG, LoggedTail

EMPTY_BYTES = BEGIN_BYTES + COMMIT_BYTES  # a transaction that publishes nothing, before 15


@dataclass(frozen=True, slots=True)
class LogicalIdentity(PrimaryIdentity):
    """A primary with the slot from which the proposer reads.

    confirmed_lsn is None if the slot is not there; `unusable` says why it cannot be read.
    """

    database: str = ""
    slot: str = ""
    confirmed_lsn: Lsn | None = None
    unusable: str = ""
    publications: tuple[str, ...] = ()  # those of the proposer's options
    missing_publications: tuple[str, ...] = ()
    tables: tuple[tuple[str, str], ...] = ()  # the publications have these now
    has_origins: bool = False  # some of its commits were replicated to it
    encoding: str = "UTF8"


@dataclass(frozen=True, slots=True)
class LogEndLsn:
    """The end of a logical log: at `position`, after an entry that ended at end_lsn on `timeline`.

    end_lsn is ZERO_LSN if the log has no entry yet.
    """

    position: Lsn
    end_lsn: Lsn
    timeline: int
    settings: bytes = b""  # the last that the log has, with its consumers' slots
    tail: LoggedTail = field(default_factory=LoggedTail)


def refusal(
    primary: LogicalIdentity, log: admission.LogEnd, end: LogEndLsn, waivers: admission.Waivers
) -> str | None:
    """Return why the primary may not go on, and what to do.

    Return None if it may stream from `end.end_lsn`.
    """
    unfit = admission.another_system(primary, log.configuration)
    unfit = unfit or admission.unsafe(primary, waivers)
    if unfit is not None:
        return unfit
    is_promoted = end.end_lsn > ZERO_LSN and primary.timeline > end.timeline
    if log.history[-1].sealed and not is_promoted and not waivers.resume:
        return (
            "the log was sealed by `walkeeper settle --seal` for a failover; start the proposer at "
            "the promoted server, or with --resume to go on here"
        )
    if primary.missing_publications:
        names = ", ".join(primary.missing_publications)
        return (
            f"database {primary.database} has no publication {names}, and what was written "
            "without it cannot be decoded for it: CREATE PUBLICATION (`walkeeper detach` first, if "
            f"commits wait for this log), and then {NEW_LOG}"
        )
    return (
        _other_publications(primary, end)
        or flaw_of_encoding(primary.database, primary.encoding)
        or _other_branch(primary, end)
        or _unfit_slot(primary, end)
    )


def _other_publications(primary: LogicalIdentity, end: LogEndLsn) -> str | None:
    """Return the refusal of publications that are not the log's, or None.

    A consumer asks for exactly those of the log. With others it would get other tables' rows, and
    lack the rows that its own publications have published meanwhile.
    """
    kept = json.loads(end.settings).get("publications", []) if end.settings else []
    if not kept or set(kept) == set(primary.publications):
        return None
    options = " ".join(f"--publication {shlex.quote(name)}" for name in kept)
    return (
        f"the log keeps {_listed(kept)}, and not {_listed(primary.publications)}; start the "
        f"proposer with {options}. For others make a log of their own (`walkeeper create --logical`"
        " under another --cluster), or change what a publication has: ALTER PUBLICATION"
    )


def _listed(names: Sequence[str]) -> str:
    return f"publication{'s' if len(names) > 1 else ''} {', '.join(names)}"


def flaw_of_encoding(database: str, encoding: str) -> str | None:
    """Return why a database of this encoding can have no logical log, or None.

    The log has its text as UTF-8. The server converts text whose encoding it knows. Bytes without
    an encoding cause an error, at the same place again and again.
    """
    if encoding != "SQL_ASCII":
        return None
    return (
        f"database {database} is SQL_ASCII, so its text may be any bytes, which a log of changes "
        "cannot have: only a physical log can be kept of it"
    )


def _other_branch(primary: LogicalIdentity, end: LogEndLsn) -> str | None:
    """Return the refusal of a primary whose history does not contain the log's end, or None."""
    if end.end_lsn == ZERO_LSN:
        return None
    if primary.timeline < end.timeline:
        return (
            f"the primary is on timeline {primary.timeline}, behind a promotion: the log is on "
            f"timeline {end.timeline}; pg_rewind or rebuild this server"
        )
    reach_lsn = primary.flush_lsn
    if primary.timeline > end.timeline:
        reach_lsn = dict(primary.timeline_ends).get(end.timeline, ZERO_LSN)
    if reach_lsn >= end.end_lsn:
        return None
    if primary.timeline > end.timeline:
        return (
            f"the primary left timeline {end.timeline} at {reach_lsn}, and the log has changes up "
            f"to {end.end_lsn}, which this server lacks. (If it was promoted where a physical log "
            f"ends, nobody was promised them.) Consumers may have them: {NEW_LOG}"
        )
    return (
        f"the primary's WAL ends at {reach_lsn}, the log at {end.end_lsn}: this primary lost WAL "
        "whose changes may have been acknowledged"
    )


def _unfit_slot(primary: LogicalIdentity, end: LogEndLsn) -> str | None:
    slot, confirmed_lsn = primary.slot, primary.confirmed_lsn
    new_log = f"the changes in between are in no log: {NEW_LOG}"
    if primary.unusable:
        return f"slot {slot} {primary.unusable}; {new_log}"
    if end.end_lsn == ZERO_LSN:
        return None
    if confirmed_lsn is None:
        return f"slot {slot} is gone from the primary, and the log ends at {end.end_lsn}; {new_log}"
    if confirmed_lsn > end.end_lsn:
        return (
            f"slot {slot} was moved or made anew: it begins at {confirmed_lsn}, the log ends at "
            f"{end.end_lsn}; {new_log}"
        )
    return None


class LogicalCheck:
    """One examination. `known` is the end of the log if it is known here already."""

    def __init__(
        self,
        primary: PrimaryIdentity,
        log: admission.LogEnd,
        waivers: admission.Waivers,
        scope: Range,
        known: LogEndLsn | None,
        on_passed: Callable[[LogEndLsn], None],
    ) -> None:
        assert isinstance(primary, LogicalIdentity), f"{primary=}"
        self.primary, self.log, self.waivers, self.scope = primary, log, waivers, scope
        self.verdict: Verdict | None = None
        self.text = ""
        self._known: LogEndLsn | None = None
        if known is not None and known.position == scope.end_lsn:
            self._known = known if known.tail.is_enough(primary.confirmed_lsn) else None
        self._on_passed = on_passed
        self._begin_at(self._segment_before(scope.end_lsn))

    def _begin_at(self, segment: Lsn) -> None:
        self._segment = self._begin = segment
        self._wal = b""  # bytes from _begin on that were read and not walked
        self._settings = b""
        self._last: Commit | None = None  # the log's last one with rows
        self._since_lsn: Lsn | None = None  # where the walk began
        self._entry_bytes: int | None = None  # its size, or None if it began before the walk
        self._ending = b""
        segment_bytes = self.log.configuration.segment_bytes
        self._walk = EntryWalk(self, segment, segment, segment_bytes)

    def _segment_before(self, position: Lsn) -> Lsn:
        segment_bytes = self.log.configuration.segment_bytes
        segment = Lsn(max(position - Lsn(1), 0)).round_down(segment_bytes)
        return max(segment, self.scope.begin_lsn)

    def start(self) -> list[Effect]:
        if self._known is not None:
            return self._judge(self._known)
        if self.scope.end_lsn <= self.scope.begin_lsn:
            return self._judge(LogEndLsn(self.scope.end_lsn, ZERO_LSN, 0))
        return self._read_log()

    def _read_log(self) -> list[Effect]:
        at = self._begin + len(self._wal)
        size = min(self.scope.end_lsn - at, WAL_PAYLOAD_BYTES_MAX)
        return [Send(self.scope.donor, ReadRequest(self.scope.ballot, at, size))]

    def is_answered_by(self, link: int, response: ReadResponse) -> bool:
        return (
            self.verdict is None
            and link == self.scope.donor
            and response.ballot == self.scope.ballot
            and response.begin_lsn == self._begin + len(self._wal)
        )

    def on_log_read(self, response: ReadResponse) -> list[Effect]:
        if not response.payload or crc_of(response.payload) != response.crc:
            at = response.begin_lsn
            self.verdict, self.text = Verdict.UNKNOWN, f"the donor could not be read at {at}"
            return []
        self._wal += bytes(response.payload)
        walk = self._walk
        walk.limit = min(self._begin + len(self._wal), self.scope.end_lsn)
        try:
            for frame in walk:
                self._see(frame)
        except CorruptWal as error:
            self.verdict, self.text = Verdict.REFUSED, f"the log cannot be read: {error}"
            return []
        self._wal = self._wal[walk.position - self._begin :]
        self._begin = walk.position
        if walk.limit < self.scope.end_lsn:
            return self._read_log()
        return self._walked()

    def _see(self, frame: Frame) -> None:
        if self._since_lsn is None:
            self._since_lsn = frame.begin_lsn
        if frame.kind is EntryKind.SETTINGS:
            self._settings = b"" if frame.is_first else self._settings
            self._settings += bytes(frame.payload)
        elif frame.kind is EntryKind.TRANSACTION:
            self._see_transaction(frame)

    def _see_transaction(self, frame: Frame) -> None:
        if frame.is_first:
            self._entry_bytes, self._ending = 0, b""
        if self._entry_bytes is not None:
            self._entry_bytes += len(frame.payload)
        self._ending = (self._ending + bytes(frame.payload[-COMMIT_BYTES:]))[-COMMIT_BYTES:]
        if not frame.is_last:
            return
        commit = Commit.ending(self._ending)
        if commit is not None and (self._entry_bytes is None or self._entry_bytes > EMPTY_BYTES):
            self._last = commit
        elif self._entry_bytes is None:  # its Commit began before the walk
            self._since_lsn = frame.end_lsn

    def _walked(self) -> list[Effect]:
        """Judge the log if the walk has found enough; else walk again from further back.

        Settings precede an entry in the segment where the entry starts. The log's last transaction
        may be further back, before much WAL that the slot has not confirmed.
        """
        walk = self._walk
        tail = LoggedTail(self._last, walk.end_lsn if self._since_lsn is None else self._since_lsn)
        is_enough = tail.is_enough(self.primary.confirmed_lsn)
        if self._segment > self.scope.begin_lsn and not (self._settings and is_enough):
            start = walk.entry_start or (walk.record.start_lsn if walk.record else None)
            if self._settings:  # twice as much each time
                start = Lsn(max(0, 2 * self._segment - self.scope.end_lsn))
            self._begin_at(self._segment_before(start or self._segment))
            return self._read_log()
        end = LogEndLsn(self.scope.end_lsn, walk.end_lsn, walk.timeline, self._settings, tail)
        return self._judge(end)

    def read(self, begin: Lsn, end: Lsn) -> bytes:
        """Return bytes that the donor sent, for EntryWalk."""
        return bytes(self._wal[begin - self._begin : end - self._begin])

    def on_primary_read(self, begin_lsn: Lsn, wal: Buffer) -> list[Effect]:
        return []  # the check reads no WAL of the primary

    def on_primary_read_failed(self, text: str, *, removed: bool) -> list[Effect]:
        return []

    def _judge(self, end: LogEndLsn) -> list[Effect]:
        assert isinstance(self.primary, LogicalIdentity), f"{self.primary=}"
        # Before the votes only what is committed can be read. The slot may be beyond that and yet
        # not beyond the log's end, so a slot is judged by the end alone.
        is_end = self.scope.ballot != NO_BALLOT or self.scope.end_lsn == self.log.record_lsn
        primary = self.primary
        text = refusal(primary, self.log, end, self.waivers)
        if text is not None and (is_end or text != _unfit_slot(primary, end)):
            self.verdict, self.text = Verdict.REFUSED, text
            return []
        self.verdict = Verdict.PASSED
        self._on_passed(end)
        return []


class LogicalEnd:
    """The end of the log, as the last examination found it and as the stream goes on.

    The core, which examines, and the primary's shell, which streams, share it.
    """

    def __init__(self) -> None:
        self.found: LogEndLsn | None = None
        self.stream: ChangeStream | None = None

    def examine(
        self,
        primary: PrimaryIdentity,
        log: admission.LogEnd,
        waivers: admission.Waivers,
        scope: Range,
        held: HeldWal | None,
    ) -> LogicalCheck:
        """Make a check; this is Campaign's `examine`."""
        known = self.found
        if self.stream is not None:
            writer = self.stream.writer
            known = LogEndLsn(
                writer.position, writer.end_lsn, writer.timeline, tail=self.stream.tail
            )
        return LogicalCheck(primary, log, waivers, scope, known, self._on_passed)

    def _on_passed(self, end: LogEndLsn) -> None:
        self.found = end
        if self.stream is not None and self.stream.writer.position == end.position:
            self.stream.tail = end.tail
