"""The events that must never happen: small named judges, most of which compare bytes.

    Acknowledged   no WAL acknowledged to PostgreSQL is lost or changed; enough disks keep it
    Committed      no two different bytes at one committed LSN, for any reader, for ever
    Authorship     a log is what its history says: each byte is from its ballot's proposer
    Durability     a power cut leaves all that is acknowledged, voted or reported
    Survival       the winner of any election that is possible now has all committed WAL
    Retention      a segment goes only when every member has it
    Leaders        one leader a ballot, one ballot a leader
    Promises       a promised ballot is never forgotten; the log of a vote is final
    Closed         a log that was closed ends there, and nobody leads it to write
    Admission      another timeline, another branch or a sealed log never gets a leader
    Reading        a voter that no leader was announced to gives no more than its vote said
    Recovery       no trouble of these disks makes a safekeeper call itself damaged

A judge knows what really happened from the simulated primaries, disks and wires. It believes
nothing that the code under test says of itself. Each raises Violation with its own name. healing.py
demands progress.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from walkeeper_common.errors import StorageError
from walkeeper_common.history import Ballot, Fragment, History, cut
from walkeeper_common.lsn import Lsn
from walkeeper_common.timelines import Ends
from walkeeper_safekeeper.storage.wal_store import WalStore


class Violation(Exception):
    """Lost, forked or uncommitted bytes, two leaders, a broken promise: exit code 2."""

    def __init__(self, oracle: str, text: str) -> None:
        super().__init__(f"{oracle}: {text}")
        self.oracle = oracle


class NoProgress(Exception):
    """The world was healed and nothing moved: exit code 3."""


class Oracle:
    """One judge."""

    def fail(self, text: str) -> NoReturn:
        raise Violation(type(self).__name__, text)


class Acknowledged(Oracle):
    """Every byte that a proposer acknowledged to PostgreSQL; it grows and never changes.

    An elected proposer needs all bytes that were acknowledged under smaller ballots. A late winner
    of a ballot that has been passed may lack some: no member accepts its messages any more.
    """

    def __init__(self, start_lsn: Lsn) -> None:
        self.start_lsn = start_lsn
        self.wal = bytearray()
        self._ends: dict[Ballot, Lsn] = {}
        self._term_starts: dict[Ballot, Lsn] = {}

    @property
    def end_lsn(self) -> Lsn:
        return self.start_lsn + len(self.wal)

    def end_below(self, ballot: Ballot) -> Lsn:
        """Return the end of all WAL that was acknowledged under smaller ballots."""
        return max((e for b, e in self._ends.items() if b < ballot), default=self.start_lsn)

    def elected(self, ballot: Ballot, start_lsn: Lsn) -> None:
        """Note a term's start: smaller ballots may acknowledge nothing after it from here on."""
        self._term_starts[ballot] = start_lsn

    def acknowledge(self, who: str, begin_lsn: Lsn, wal: bytes, ballot: Ballot) -> None:
        """Add `wal`, which ends with the last whole record that this primary may acknowledge."""
        at = begin_lsn - self.start_lsn
        known = self.wal[at : at + len(wal)]
        if wal[: len(known)] != known:
            differs = next(i for i in range(len(known)) if wal[i] != known[i])
            self.fail(f"{who} was told of other bytes at {begin_lsn + differs}: a fork")
        self.wal += wal[len(known) :]
        end_lsn = begin_lsn + len(wal)
        fences = ((b, start_lsn) for b, start_lsn in self._term_starts.items() if b > ballot)
        for newer, start_lsn in fences:
            if end_lsn > start_lsn:
                text = f"{who} was told of {end_lsn} by {ballot}"
                self.fail(f"{text}, although {newer} had been elected at {start_lsn}")
        self._ends[ballot] = max(self._ends.get(ballot, self.start_lsn), end_lsn)

    def hold_against(
        self, who: str, wal: bytes, begin_lsn: Lsn, end_lsn: Lsn | None = None
    ) -> None:
        """Check that `wal`, from which `who` would go on, has all acknowledged bytes."""
        wanted = bytes(self.wal[begin_lsn - self.start_lsn :])
        if end_lsn is not None:
            wanted = wanted[: max(0, end_lsn - begin_lsn)]
        if wal[: len(wanted)] != wanted:
            same = next(
                (i for i, (a, b) in enumerate(zip(wal, wanted, strict=False)) if a != b), len(wal)
            )
            self.fail(f"{who} lacks acknowledged bytes from {begin_lsn + same} to {self.end_lsn}")

    def tail(self, bytes_max: int) -> tuple[Lsn, bytes]:
        """Return the end of the acknowledged WAL, which a cut or a crash would take first."""
        wal = bytes(self.wal[-bytes_max:])
        return Lsn(self.end_lsn - len(wal)), wal


class Committed(Oracle):
    """Whole records that any safekeeper calls committed: the same bytes everywhere, for ever."""

    def __init__(self, start_lsn: Lsn) -> None:
        self.start_lsn = start_lsn
        self.wal = bytearray()

    def check(self, who: str, begin_lsn: Lsn, wal: bytes) -> bool:
        """Compare `wal` with the known committed bytes; return True if any byte is new."""
        offset = begin_lsn - self.start_lsn
        known = self.wal[offset : offset + len(wal)]
        if wal[: len(known)] != known:
            self.fail(f"{who} committed other bytes within {len(wal)} of {begin_lsn}")
        is_new = offset <= len(self.wal) < offset + len(wal)
        if is_new:
            self.wal[offset:] = wal
        return is_new

    def read(self, begin_lsn: Lsn, end_lsn: Lsn) -> bytes:
        """Return the range, as far as it is known to be committed."""
        return bytes(self.wal[begin_lsn - self.start_lsn : end_lsn - self.start_lsn])

    def tail(self, bytes_max: int) -> tuple[Lsn, bytes]:
        """Return the end of the committed WAL, which a cut or a crash would take first."""
        wal = bytes(self.wal[-bytes_max:])
        return Lsn(self.start_lsn + len(self.wal) - len(wal)), wal

    def whole_end(self, who: str, store: WalStore, lsn: Lsn) -> Lsn:
        """Return the end of the last whole record below a committed LSN."""
        try:
            return store.record_end(lsn).end_lsn
        except StorageError as error:
            self.fail(f"{who} committed {lsn}, but {error}")


class Reading(Oracle):
    """A ballot is no key to WAL that its leader does not know of (R13)."""

    def check_voter(self, who: str, end_lsn: Lsn, voted_lsn: Lsn) -> None:
        if end_lsn > voted_lsn:
            self.fail(f"{who} gave WAL up to {end_lsn}, its vote ended at {voted_lsn}")


class Authorship(Oracle):
    """The bytes that each ballot's leader got from its primary, and so each log's content."""

    def __init__(self) -> None:
        self._written: dict[Ballot, tuple[Lsn, bytearray]] = {}
        self._folded = b""  # the common log below the LSN up to which a history was folded

    def begins(self, ballot: Ballot, start_lsn: Lsn) -> None:
        self._written[ballot] = (start_lsn, bytearray())

    def wrote(self, ballot: Ballot, begin_lsn: Lsn, wal: bytes) -> None:
        start_lsn, written = self._written[ballot]
        if begin_lsn != start_lsn + len(written):
            self.fail(f"{ballot} took WAL at {begin_lsn}, it had {len(written)} from {start_lsn}")
        written += wal

    def folds(self, who: str, history: History, folded_lsn: Lsn) -> None:
        """Note that a leader folds its donor's history: all folds share one log below."""
        data = self.log_of(history, folded_lsn) if folded_lsn else b""
        same = min(len(data), len(self._folded))
        if data[:same] != self._folded[:same]:
            self.fail(f"{who} folds below {folded_lsn} another log than was folded before")
        self._folded = max(data, self._folded, key=len)

    def log_of(self, history: History, end_lsn: Lsn) -> bytes:
        """Return the bytes that a log with this history has below end_lsn."""
        spans = self._spans(history, end_lsn)
        return b"".join(bytes(data[begin - at : end - at]) for _, begin, end, at, data in spans)

    def check(self, who: str, history: History, begin_lsn: Lsn, wal: bytes) -> None:
        """Check that `wal` may be in a log with this history."""
        for fragment, begins, end, start_lsn, written in self._spans(
            history, Lsn(begin_lsn + len(wal))
        ):
            begin = max(begin_lsn, begins)
            if begin >= end:
                continue
            wanted = written[begin - start_lsn : end - start_lsn]
            found = wal[begin - begin_lsn : end - begin_lsn]
            if begin < start_lsn or found != wanted:
                at = next(
                    (i for i, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b),
                    min(len(found), len(wanted)),
                )
                self.fail(f"{who} has bytes at {begin + at} that {fragment} never had there")

    def _spans(
        self, history: History, end_lsn: Lsn
    ) -> Iterator[tuple[Fragment, int, int, int, bytes | bytearray]]:
        """Yield each fragment, its begin and end, its author's start LSN and its author's bytes."""
        fragments, folded_lsn = cut(history, end_lsn), min(history[0].folded_lsn, end_lsn)
        first_lsn = history[0].start_lsn
        if folded_lsn:
            yield fragments[0], first_lsn, folded_lsn, first_lsn, self._folded
        ends = [*(fragment.start_lsn for fragment in fragments[1:]), end_lsn]
        for fragment, end in zip(fragments, ends, strict=True):
            written = self._written.get(fragment.ballot, (fragment.start_lsn, b""))
            begin = max(fragment.start_lsn, folded_lsn)
            if begin < end:
                yield fragment, begin, end, *written


class Durability(Oracle):
    """A power cut now leaves what was just said to be durable."""

    def check(self, who: str, said: str, lsn: Lsn, kept: bytes, wanted: bytes) -> None:
        if kept != wanted:
            self.fail(f"{who} {said} {lsn}, a power cut would lose some of it")

    def check_quorum(
        self, who: str, lsn: Lsn, holding: Sequence[str], commits: Callable[[Sequence[str]], bool]
    ) -> None:
        if not commits(holding):
            self.fail(f"{who} reports {lsn}, only {list(holding)} have it on disk")

    def check_applied(self, who: str, lsn: Lsn, applied: Lsn, said: Sequence[Lsn]) -> None:
        """Check that the reported apply_lsn is durable, and that all standbys have applied it.

        `remote_apply` releases a commit at this LSN.
        """
        if applied > lsn or any(applied > one for one in said):
            self.fail(f"{who} reports {applied} as applied, {lsn} as flushed; standbys: {said}")


@dataclass(frozen=True, slots=True)
class Standing:
    """One member's log as an election would see it, and whether it has the wanted bytes."""

    who: str
    rank: tuple[Ballot, Lsn]  # last log ballot, flush_lsn (R4)
    has_it: bool


class Survival(Oracle):
    """Any proposer that could be elected now has a log with all committed WAL (Raft 5.4.3).

    It looks ahead: a rule that is missing shows here before an election makes it come true.
    """

    def check(
        self,
        what: str,
        end_lsn: Lsn,
        standings: Sequence[Standing],
        elects: Callable[[Sequence[str]], bool],
    ) -> None:
        for lacking in standings:
            voters = [s.who for s in standings if s.rank <= lacking.rank]
            if not lacking.has_it and elects(voters):
                voters.remove(lacking.who)
                self.fail(
                    f"{what} up to {end_lsn}, but {lacking.who} lacks some of it and would win an "
                    f"election with {voters}"
                )


class Retention(Oracle):
    """Every member has the WAL that one safekeeper has removed, so that none lags below it."""

    def check(self, who: str, first_lsn: Lsn, lacking: Sequence[str]) -> None:
        if lacking:
            self.fail(f"{who} removed WAL below {first_lsn}, which {list(lacking)} lack")


class Leaders(Oracle):
    """At most one leader a ballot (Raft's election safety), one ballot a leader (R20)."""

    def __init__(self) -> None:
        self._by_ballot: dict[Ballot, str] = {}
        self._ballots: dict[str, Ballot] = {}

    def elected(self, ballot: Ballot, who: str) -> None:
        if self._by_ballot.setdefault(ballot, who) != who:
            self.fail(f"{ballot} was won by {self._by_ballot[ballot]} and by {who}")
        if self._ballots.setdefault(who, ballot) != ballot:
            self.fail(f"{who} was elected with {self._ballots[who]}, and again with {ballot}")


class Promises(Oracle):
    """A voter's promise: no smaller ballot again, and no longer log for one."""

    def __init__(self) -> None:
        self._greatest: dict[str, Ballot] = {}
        self._voted: dict[str, tuple[Ballot, Lsn]] = {}

    def granted(self, who: str, ballot: Ballot, flush_lsn: Lsn) -> None:
        self.speaks_as(who, ballot)
        self._greatest[who] = ballot
        self._voted[who] = (ballot, flush_lsn)

    def speaks_as(self, who: str, ballot: Ballot) -> None:
        """Check that its messages and its disk have no smaller ballot than it has promised."""
        if who in self._greatest and ballot < self._greatest[who]:
            self.fail(f"{who} forgot its promise to {self._greatest[who]}, has {ballot}")

    def log_ends(self, who: str, last_ballot: Ballot, flush_lsn: Lsn) -> None:
        """Check that only the promised ballot's leader makes its log longer after its vote."""
        ballot, voted_lsn = self._voted.get(who, (last_ballot, flush_lsn))
        if last_ballot < ballot and flush_lsn > voted_lsn:
            self.fail(f"{who} voted {ballot} with a log up to {voted_lsn}, and has {flush_lsn} now")

    def forget(self, who: str) -> None:
        """Drop the member's vote: its disk is lost, and with it all its promises."""
        self._voted.pop(who, None)


class Admission(Oracle):
    """The primaries that may lead: docs/steps.md#check-of-the-primary."""

    def check_timelines(self, who: str, forks: Ends, known: Mapping[int, Lsn]) -> None:
        """Compare the log's timelines with the server's.

        `forks` has the LSN where the log left each timeline, and the log's end. `known` has the
        ends of the server's timelines.
        """
        *passed, (last, end_lsn) = forks
        for timeline, fork_lsn in passed:
            if known.get(timeline) != fork_lsn:
                self.fail(f"{who}: the log left timeline {timeline} at {fork_lsn}, not {known}")
        if last not in known or known[last] < end_lsn:
            text = f"the log on timeline {last} ends at {end_lsn}, the server has {known}"
            self.fail(f"{who}: {text}")

    def check_seal(self, who: str, last: Fragment, *, resumes: bool) -> None:
        if last.sealed and not resumes:
            self.fail(f"{who} writes on behind the seal of {last} without --resume")

    def check_lost(self, who: str, end_lsn: Lsn, *, has_it: bool) -> None:
        """Check a refusal for lost WAL: another leader of that server may have written it."""
        if has_it:
            self.fail(f"{who} refused a server for lost WAL below {end_lsn}, but the server has it")

    def check_member(self, who: str, *, is_lost: bool) -> None:
        if is_lost:
            self.fail(f"{who} votes or acknowledges although it has lost its promises")


class Closed(Oracle):
    """The first close that was reported: the log ends there for good (docs/protocol.md M7)."""

    def __init__(self) -> None:
        self.first: tuple[Ballot, Lsn] | None = None

    def report(self, who: str, ballot: Ballot, lsn: Lsn) -> None:
        self.first = self.first or (ballot, lsn)
        if lsn != self.first[1]:
            self.fail(f"{who} closes the log at {lsn}, {self.first} was reported")

    def check_leader(self, who: str, ballot: Ballot) -> None:
        if self.first is not None and ballot > self.first[0]:
            self.fail(f"{who} leads with {ballot} behind {self.first}")

    def check_commit(self, who: str, commit_lsn: Lsn) -> None:
        if self.first is not None and commit_lsn > self.first[1]:
            self.fail(f"{who} commits up to {commit_lsn} behind {self.first}")


class Recovery(Oracle):
    """A safekeeper whose disk did what disks may do starts again."""


class Oracles:
    """All of them, for one run."""

    def __init__(self, start_lsn: Lsn) -> None:
        self.acknowledged = Acknowledged(start_lsn)
        self.committed = Committed(start_lsn)
        self.authorship, self.reading = Authorship(), Reading()
        self.durability, self.retention = Durability(), Retention()
        self.survival = Survival()
        self.leaders, self.promises = Leaders(), Promises()
        self.admission, self.recovery = Admission(), Recovery()
        self.closed = Closed()
