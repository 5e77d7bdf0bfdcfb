"""One examination of the primary: the table of admission.py, then the bytes. Pure.

    start() -> effects, then feed it what comes; `verdict` is set when it is over

The range is the end's segment, up to the end, and the segment before it. It grows backwards, one
segment at a time, until it proves something (comparison.py) or reaches the log's creation. The
check reads WAL of an earlier timeline under that timeline. A checkpoint of the primary may recycle
the earlier segment at any time. The check then begins at the primary's oldest WAL, and refuses the
primary (58P01) if that part proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol, TypeAlias

from walkeeper_common.buffers import Buffer
from walkeeper_common.history import NO_BALLOT, Ballot, Corrupt, divergence
from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.operator_text.note import Note
from walkeeper_common.quorum import Configuration
from walkeeper_common.timelines import Timelines
from walkeeper_common.wire.messages import WAL_PAYLOAD_BYTES_MAX, AcceptorGreeting, VoteResponse
from walkeeper_common.wire.requests import ReadRequest, ReadResponse
from walkeeper_common.wire.wal_crc import crc_of
from walkeeper_proposer.consensus import admission
from walkeeper_proposer.consensus.comparison import Comparison, Different
from walkeeper_proposer.consensus.proposer_events import (
    Effect,
    PrimaryIdentity,
    ReadPrimary,
    Send,
)

HeldWal = Callable[[Lsn, int], Buffer | None]


class Verdict(Enum):
    PASSED = "passed"
    REFUSED = "refused"
    UNKNOWN = "unknown"  # a source went away: examine again


@dataclass(frozen=True, slots=True)
class Range:
    """The WAL to compare: [begin_lsn, end_lsn), read from `donor` as `ballot`.

    `older` has another donor for WAL below begin_lsn. The log of a member that has just replaced
    another one may hold too little to prove anything
    (scenarios/newcomer_alone_shows_no_primary.txt)."""

    begin_lsn: Lsn
    end_lsn: Lsn
    donor: int
    ballot: Ballot
    older: Range | None = None

    @property
    def is_empty(self) -> bool:
        return self.end_lsn <= self.begin_lsn and self.older is None

    def asks(self, link: int) -> bool:
        """Return True if the check reads from this link, or may do so later."""
        return self.donor == link or (self.older is not None and self.older.asks(link))


class Examination(Protocol):
    """The core's port of a check; a logical log has another one (logical_check.py)."""

    @property
    def verdict(self) -> Verdict | None:
        """None while it goes on."""
        ...

    @property
    def text(self) -> str: ...
    @property
    def scope(self) -> Range: ...
    def start(self) -> list[Effect]: ...
    def is_answered_by(self, link: int, response: ReadResponse) -> bool: ...
    def on_log_read(self, response: ReadResponse) -> list[Effect]: ...
    def on_primary_read(self, begin_lsn: Lsn, wal: Buffer) -> list[Effect]: ...
    def on_primary_read_failed(self, text: str, *, removed: bool) -> list[Effect]: ...


Examiner: TypeAlias = Callable[
    [PrimaryIdentity, admission.LogEnd, admission.Waivers, Range, HeldWal | None], Examination
]


def scope_of_greetings(
    configuration: Configuration, greeted: Sequence[tuple[AcceptorGreeting, int]]
) -> tuple[admission.LogEnd, Range]:
    """Return the log and the range before the votes: their likely end, as far as it is committed.

    Without a ballot only committed WAL may be read (R13). `greeted`: greeting and link. After a
    power failure an empty newcomer may know later commits than the members that have them
    (scenarios/newcomer_knows_of_commits_that_the_old_forgot.txt). Then their
    commit_lsn counts.
    """
    best = max((g for g, _ in greeted), key=lambda g: (g.history[-1].ballot, g.flush_lsn))
    log = admission.LogEnd(configuration, best.history, best.record_lsn, best.flush_lsn)
    scope = _committed(best, greeted)
    if scope.is_empty and best.oldest_lsn < scope.begin_lsn:
        holding = [(g, link) for g, link in greeted if g.oldest_lsn < g.commit_lsn]
        nothing = replace(scope, end_lsn=configuration.creation_lsn)
        scope = _committed(best, holding) if holding else nothing
    return log, scope


def _committed(best: AcceptorGreeting, greeted: Sequence[tuple[AcceptorGreeting, int]]) -> Range:
    reader, link = max(greeted, key=lambda pair: pair[0].commit_lsn)
    end_lsn = min(best.record_lsn, reader.commit_lsn)
    others = [(g.oldest_lsn, other, g.commit_lsn) for g, other in greeted]
    return with_older(Range(reader.oldest_lsn, end_lsn, link, NO_BALLOT), others)


def scope_of_votes(
    configuration: Configuration,
    donor: tuple[VoteResponse, int],
    votes: Iterable[tuple[VoteResponse, int]],
    ballot: Ballot,
) -> tuple[admission.LogEnd, Range]:
    """Return the log and the range on the votes: up to the donor's record end, the term's start.

    `donor` and `votes` are each with their link."""
    vote, link = donor
    log = admission.LogEnd(configuration, vote.history, vote.record_lsn, vote.flush_lsn)
    others = [(v.oldest_lsn, other, _shared_lsn(vote, v)) for v, other in votes]
    return log, with_older(Range(vote.oldest_lsn, vote.record_lsn, link, ballot), others)


def _shared_lsn(donor: VoteResponse, vote: VoteResponse) -> Lsn:
    """Return the LSN up to which the voter's WAL is the donor's too."""
    try:
        return divergence(donor.history, vote.history, vote.flush_lsn)
    except Corrupt:
        return ZERO_LSN


def with_older(scope: Range, others: Iterable[tuple[Lsn, int, Lsn]]) -> Range:
    """Add a donor of older WAL. `others`: oldest_lsn, link, and the end of this log's WAL there."""
    able = [(oldest, link) for oldest, link, end in others if oldest < scope.begin_lsn <= end]
    if not able:
        return scope
    oldest_lsn, link = min(able)
    return replace(scope, older=replace(scope, begin_lsn=oldest_lsn, donor=link))


class PrimaryCheck:
    """Invariant: at most one read of the primary and one of the donor are under way."""

    def __init__(
        self,
        primary: PrimaryIdentity,
        log: admission.LogEnd,
        waivers: admission.Waivers,
        scope: Range,
        held: HeldWal | None,
    ) -> None:
        self.primary, self.log, self.waivers, self.scope = primary, log, waivers, scope
        self.verdict: Verdict | None = None
        self.text = ""
        # With equal timelines, a refusal only for a server whose bytes are the log's (R23).
        self._lost = admission.lost_wal(primary, log)
        self._held = held
        self._segment_bytes = log.configuration.segment_bytes
        self._comparison = Comparison(scope.end_lsn, scope.end_lsn)
        self._primary_oldest_lsn = Lsn(0)  # raised when the primary says that WAL is gone
        self._timelines = Timelines(log.borne_out)
        self._read_end_lsn = scope.end_lsn  # where the primary's read under way ends

    def start(self) -> list[Effect]:
        ask = admission.refusal if self._lost is None else admission.refusal_at_sight
        refusal = ask(self.primary, self.log, self.waivers)
        if refusal is not None:
            return self._refuse(refusal)
        if self._lost is not None:
            return self._compare_what_is_left(self._lost)
        effects: list[Effect] = []
        warning = admission.warning(self.primary, self.log)
        if warning is not None:
            effects.append(Note(warning))
        if self.scope.end_lsn <= self.log.configuration.creation_lsn:
            self.verdict = Verdict.PASSED  # a log without a byte yet
            return effects
        if self.scope.is_empty:
            self.verdict = Verdict.UNKNOWN
            self.text = f"the donor keeps nothing below {self.scope.end_lsn} to compare with"
            return effects
        segment = self.scope.end_lsn.round_down(self._segment_bytes)
        return effects + self._compare(segment - self._segment_bytes, self.scope.end_lsn)

    def _compare_what_is_left(self, lost: str) -> list[Effect]:
        """Compare up to the end of the primary's WAL; it is refused, and this finds the reason."""
        end_lsn = min(self.scope.end_lsn, self.primary.flush_lsn)
        begin_lsn = max(self.scope.begin_lsn, self.log.configuration.creation_lsn)
        segment_lsn = Lsn(max(0, end_lsn - 1)).round_down(self._segment_bytes)
        if max(begin_lsn, segment_lsn) >= end_lsn:
            return self._refuse(lost)
        return self._compare(segment_lsn, end_lsn)

    def _compare(self, begin_lsn: Lsn, end_lsn: Lsn) -> list[Effect]:
        if end_lsn <= self.scope.begin_lsn and self.scope.older is not None:
            self.scope = self.scope.older
        begin_lsn = max(begin_lsn, self.scope.begin_lsn)
        self._comparison = Comparison(begin_lsn, end_lsn)
        return [*self._read_primary(begin_lsn), *self._read_log()]

    def _read_primary(self, at_lsn: Lsn) -> list[Effect]:
        """Read the primary from `at_lsn` on, as far as one timeline's segment files go."""
        until_lsn = self._timelines.shown_until(at_lsn, self._segment_bytes)
        self._read_end_lsn = min(self._comparison.end_lsn, until_lsn)
        timeline = self._timelines.shown_by(at_lsn, self._segment_bytes)
        return [ReadPrimary(at_lsn, self._read_end_lsn, timeline)]

    def _read_log(self) -> list[Effect]:
        at = self._comparison.log_next_lsn
        wanted = min(self._comparison.end_lsn - at, WAL_PAYLOAD_BYTES_MAX)
        while wanted:
            local = self._held(at, wanted) if self._held is not None else None
            if local is None:
                return [Send(self.scope.donor, ReadRequest(self.scope.ballot, at, wanted))]
            self._comparison.feed_log(at, local)
            at = self._comparison.log_next_lsn
            wanted = min(self._comparison.end_lsn - at, WAL_PAYLOAD_BYTES_MAX)
        return []

    def is_answered_by(self, link: int, response: ReadResponse) -> bool:
        """Return True if this is the answer to the read that is under way."""
        return (
            self.verdict is None
            and link == self.scope.donor
            and response.ballot == self.scope.ballot
            and response.begin_lsn == self._comparison.log_next_lsn < self._comparison.end_lsn
        )

    def on_log_read(self, response: ReadResponse) -> list[Effect]:
        at, room = response.begin_lsn, self._comparison.end_lsn - response.begin_lsn
        wal = memoryview(response.payload)[:room]
        if not wal or crc_of(response.payload) != response.crc:
            self.verdict, self.text = Verdict.UNKNOWN, f"the donor could not be read at {at}"
            return []
        return self._feed(lambda: self._comparison.feed_log(at, wal), self._read_log)

    def on_primary_read(self, begin_lsn: Lsn, wal: Buffer) -> list[Effect]:
        """Compare the next bytes of a piece; pieces of an earlier read may still come in."""
        next_lsn, end_lsn = self._comparison.primary_next_lsn, self._comparison.end_lsn
        if self.verdict is not None or not begin_lsn <= next_lsn < begin_lsn + len(wal):
            return []
        rest = memoryview(wal)[next_lsn - begin_lsn : end_lsn - begin_lsn]
        return self._feed(
            lambda: self._comparison.feed_primary(next_lsn, rest), self._go_on_reading
        )

    def _go_on_reading(self) -> list[Effect]:
        """Read the primary on the next timeline when this one's files are read."""
        at_lsn = self._comparison.primary_next_lsn
        is_over = at_lsn < self._read_end_lsn or at_lsn == self._comparison.end_lsn
        return [] if is_over else self._read_primary(at_lsn)

    def _feed(self, feed: Callable[[], None], more: Callable[[], list[Effect]]) -> list[Effect]:
        try:
            feed()
            effects = more()
        except Different as error:
            return self._refuse(f"{error}: {self._another_branch()}")
        if self._comparison.is_done:
            return self._compared()
        return effects

    def _another_branch(self) -> str:
        timeline, right = self.primary.timeline, "or point --dsn at the right primary"
        if timeline != self.log.timeline:
            return f"this server's WAL is another branch; rebuild it with pg_basebackup, {right}"
        return (
            f"this server's WAL is another branch with the same number, timeline {timeline}; "
            "rebuild it from a base backup with walkeeper restore as restore_command, or with "
            "pg_basebackup from the right primary (pg_rewind sees equal numbers and does nothing), "
            f"{right}"
        )

    def _compared(self) -> list[Effect]:
        if self._lost is not None:
            return self._refuse(self._lost)
        begin_lsn = self._comparison.begin_lsn
        if self._comparison.is_telling or begin_lsn <= self.log.configuration.creation_lsn:
            self.verdict = Verdict.PASSED
            return []
        if begin_lsn <= self.scope.begin_lsn and self.scope.older is None:
            return self._refuse(
                f"no commit and no checkpoint lies in the log's WAL between {begin_lsn}, the "
                f"oldest kept, and {self.scope.end_lsn}: nothing shows that this primary wrote it; "
                "give the safekeepers a greater --wal-keep-size"
            )
        if begin_lsn <= self._primary_oldest_lsn:
            return self._removed(begin_lsn)
        return self._compare(begin_lsn - self._segment_bytes, begin_lsn)

    def on_primary_read_failed(self, text: str, *, removed: bool) -> list[Effect]:
        if self.verdict is not None:
            return []
        begin_lsn = self._comparison.begin_lsn
        if not removed:
            self.verdict, self.text = Verdict.UNKNOWN, text
            return []
        if self._lost is not None:
            return self._refuse(self._lost)
        kept_lsn = self.scope.end_lsn.round_down(self._segment_bytes)
        if begin_lsn >= kept_lsn or self._comparison.end_lsn < self.scope.end_lsn:
            return self._removed(begin_lsn)
        self._primary_oldest_lsn = kept_lsn
        if kept_lsn == self.scope.end_lsn:
            return self._removed(begin_lsn)
        return self._compare(kept_lsn, self.scope.end_lsn)

    def _removed(self, begin_lsn: Lsn) -> list[Effect]:
        return self._refuse(
            f"the primary no longer has its WAL below {begin_lsn + self._segment_bytes} (58P01) "
            "and cannot be shown to be the one that wrote this log. If it has gone on without a "
            "quorum since (detached), it has commits that this log lacks: do not rebuild it, make "
            "a new log for it (`walkeeper create` with another --cluster). Else rebuild it from "
            "the safekeepers. The slot NAME_retention keeps what is compared: see that it is there"
        )

    def _refuse(self, text: str) -> list[Effect]:
        self.verdict, self.text = Verdict.REFUSED, text
        return []
