"""The players on the cluster stage: safekeepers with letters for WAL, proposers with a primary.

Both perform the effects of the real cores. A safekeeper's disk is instant unless it is `slow`. A
slow disk loses written WAL in a crash until it is synced. It writes in place, as files do: bytes
that are not cut stay after the bytes that are written over them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tests.support.cluster_oracle import Log, Oracle, taken_back
from tests.support.scenario_words import (
    CREATION_LSN,
    LOG_UUID,
    SEGMENT_BYTES,
    SYSTEM_ID,
    incarnation_of,
    parse_history,
)
from walkeeper_common.buffers import Buffer
from walkeeper_common.lsn import Lsn
from walkeeper_common.operator_text.note import Note
from walkeeper_common.quorum import Configuration, member_id
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.messages import ProposerElected, Reject
from walkeeper_proposer.consensus import proposer_events as p
from walkeeper_proposer.consensus.campaign import TERMS_MAX, Campaign, Purpose
from walkeeper_proposer.consensus.proposer import Proposer
from walkeeper_proposer.consensus.wal_window import WINDOW_BYTES_MAX
from walkeeper_safekeeper.consensus import acceptor_events as a
from walkeeper_safekeeper.consensus.acceptor import Acceptor
from walkeeper_safekeeper.consensus.durable import Durable

RECORD_BYTES = 0x100


def bytes_of(letters: str) -> bytes:
    whole = letters.rstrip("-").encode()
    wal = b"".join(bytes([letter]) * RECORD_BYTES for letter in whole)
    return wal[: -RECORD_BYTES // 2] if letters.endswith("-") else wal


def letters_of(wal: bytes | bytearray) -> str:
    half = "-" if len(wal) % RECORD_BYTES else ""
    return wal[::RECORD_BYTES].decode() + half


def end_of(lsn: Lsn) -> str:
    """Format a position as the record that ends there: R2, or `R2+` inside the one that follows."""
    number, rest = divmod(lsn - CREATION_LSN, RECORD_BYTES)
    return f"R{number}" + ("+" if rest else "")


def lsn_at(record: str) -> Lsn:
    """Return the LSN at which the record `R2` ends."""
    return CREATION_LSN + int(record.removeprefix("R")) * RECORD_BYTES


class Player(Log, Protocol):
    """A safekeeper on a stage."""

    @property
    def persisted(self) -> int: ...
    def post(self, event: a.Event) -> None: ...


class Stage(Protocol):
    """The part of a stage that the players need."""

    configuration: Configuration
    safekeepers: list[Player]
    oracle: Oracle

    def soon(self, what: Callable[[], None]) -> None: ...
    def tell(self, text: str, *, at: Lsn | None = None) -> None: ...
    def to_safekeeper(self, proposer: PlayedProposer, number: int, message: Message) -> None: ...
    def to_proposer(self, number: int, connection: int, message: Message) -> None: ...
    def unlink(self, proposer: PlayedProposer, number: int) -> None: ...
    def kill(self, name: str) -> None: ...
    def whole_end(self, lsn: Lsn) -> Lsn:
        """Return the end of the last whole record below."""
        ...


class Safekeeper:
    """A safekeeper's core on a disk: `wal` is what is written, of which a crash leaves
    `synced_bytes`."""

    def __init__(self, stage: Stage, number: int) -> None:
        self.stage, self.number, self.wal = stage, number, bytearray()
        self.synced_bytes = self.persisted = 0
        self.is_slow = self.is_full = self._is_refusing = False
        self._readable_lsn = CREATION_LSN
        configuration = stage.configuration
        self.durable = Durable(
            acceptor_id=number,
            incarnation=incarnation_of(number),
            log_uuid=LOG_UUID,
            configuration=configuration,
            history=parse_history(f"0:-@{CREATION_LSN}", configuration),
            commit_lsn=CREATION_LSN,
            restart_lsn=CREATION_LSN,
            reached_lsn=CREATION_LSN,
        )
        self.acceptor: Acceptor
        self.start()

    def put(self, wal: bytes) -> None:
        """Put WAL on the disk, durable, as from before the story began."""
        self.wal, self.synced_bytes = bytearray(wal), len(wal)

    def start(self) -> None:
        """Start with the WAL that a scan after a crash finds: whole records that were synced."""
        del self.wal[self.synced_bytes // RECORD_BYTES * RECORD_BYTES :]
        self.synced_bytes = len(self.wal)
        end_lsn = CREATION_LSN + len(self.wal)
        self.acceptor = Acceptor(
            self.durable, oldest_lsn=CREATION_LSN, flush_lsn=end_lsn, record_lsn=end_lsn
        )

    def durable_wal(self) -> bytes:
        end = min(self.synced_bytes, self.acceptor.flush_lsn - CREATION_LSN)
        return bytes(self.wal[:end])

    def post(self, event: a.Event) -> None:
        for effect in self.acceptor.step(event):
            self._perform(effect)

    def sync(self, flush_lsn: Lsn) -> None:
        """Make the WAL that was written up to there durable."""
        self.synced_bytes = max(self.synced_bytes, flush_lsn - CREATION_LSN)
        if flush_lsn > self.acceptor.flush_lsn:
            self.post(a.WalFlushed(flush_lsn))

    def _perform(self, effect: a.Effect) -> None:
        match effect:
            case a.Persist(state):
                self.durable = state
                self.persisted += 1
            case a.TruncateWal(to_lsn):
                self._truncate(to_lsn)
            case a.WriteWal(begin_lsn, payload):
                self._write(begin_lsn, payload)
            case a.FindRecordEnd():
                end_lsn = self.stage.whole_end(effect.flush_lsn)
                self.stage.soon(lambda: self.post(a.RecordEndFound(effect, end_lsn)))
            case a.ReadWal(connection, request, truncations, end_lsn):
                wal = bytes(self.wal[request.begin_lsn - CREATION_LSN : end_lsn - CREATION_LSN])
                read = a.WalRead(connection, request, truncations, wal)
                self.stage.soon(lambda: self.post(read))
            case a.Send(connection, message):
                if isinstance(message, Reject):
                    self.stage.tell(f"sk{self.number} rejects: {message.code.name}")
                self.stage.to_proposer(self.number, connection, message)
            case a.CommitMoved(commit_lsn):
                self._readable_lsn = max(self._readable_lsn, self.stage.whole_end(commit_lsn))
            case a.EndReaders(above_lsn):
                self.stage.tell(f"sk{self.number} ends readers", at=above_lsn)

    def _truncate(self, to_lsn: Lsn) -> None:
        self.stage.tell(f"sk{self.number} cuts {letters_of(self.wal)}", at=to_lsn)
        for verdict in taken_back(cut_lsn=to_lsn, readable_lsn=self._readable_lsn):
            self.stage.tell(f"sk{self.number} {verdict}")
        del self.wal[to_lsn - CREATION_LSN :]
        self.synced_bytes = min(self.synced_bytes, len(self.wal))

    def _write(self, begin_lsn: Lsn, payload: Buffer) -> None:
        if self.is_full or self._is_refusing:
            if not self._is_refusing:
                self._is_refusing = True
                self.stage.soon(self._refuse)
            return
        offset = begin_lsn - CREATION_LSN
        self.wal[offset : offset + len(payload)] = payload
        if not self.is_slow:
            self.stage.soon(lambda: self.sync(begin_lsn + len(payload)))

    def _refuse(self) -> None:
        """Refuse a write, and keep the WAL that fitted before it."""
        self._is_refusing = False
        end_lsn = min(CREATION_LSN + len(self.wal), self.acceptor.write_lsn)
        self.synced_bytes = len(self.wal)
        self.post(a.WriteRefused(max(end_lsn, self.acceptor.flush_lsn), "no space"))


class PlayedProposer:
    """One proposer, and the primary that it streams from."""

    def __init__(
        self,
        stage: Stage,
        name: str,
        wal: bytes,
        purpose: Purpose,
        *,
        take_over: bool = True,
        window_bytes: int = WINDOW_BYTES_MAX,
        linger_ticks: int = 0,
        terms_max: int = TERMS_MAX,
    ) -> None:
        self.stage, self.name, self.wal = stage, name, bytearray(wal)
        self.reported = CREATION_LSN
        self.sent_lsn = Lsn(0)  # 0: does not stream
        self.is_paused = False
        self.links: dict[int, int] = {}  # safekeeper -> connection
        self.wanted: set[int] = set()
        self.donor = 0  # the donor of its election
        self.core = Proposer(
            Campaign(
                cluster="main",
                proposer_id=name.encode() * 16,
                links=len(stage.configuration.members),
                purpose=purpose,
                take_over=take_over,
                linger_ticks=linger_ticks,
                terms_max=terms_max,
                window_bytes_max=window_bytes,
            )
        )

    def identity(self) -> p.PrimaryIdentity:
        end_lsn = CREATION_LSN + len(self.wal)
        return p.PrimaryIdentity(
            SYSTEM_ID, 1, end_lsn, SEGMENT_BYTES, "15.18", 150018, False, True, True
        )

    def post(self, event: p.Event) -> None:
        for effect in self.core.step(event):
            self._perform(effect)

    def _perform(self, effect: p.Effect) -> None:
        stage = self.stage
        match effect:
            case p.Send(link, message):
                if isinstance(message, ProposerElected):
                    at = message.start_lsn
                    stage.tell(f"{self.name} elected, sk{link + 1} parts", at=at)
                stage.to_safekeeper(self, link + 1, message)
            case Note("elected", _):
                self._elected()
            case p.Report(commit_lsn):
                self._report(commit_lsn)
            case p.IdentifyPrimary():
                stage.soon(lambda: self.post(p.PrimaryIdentified(self.identity())))
            case p.ReadPrimary(begin_lsn, end_lsn):
                wal = bytes(self.wal[begin_lsn - CREATION_LSN : end_lsn - CREATION_LSN])
                stage.soon(lambda: self.post(p.PrimaryRead(begin_lsn, wal)))
            case p.StartStreaming(start_lsn):
                self.sent_lsn, self.is_paused = start_lsn, False
                self.stream()
            case p.PauseStreaming():
                self.is_paused = True
            case p.ResumeStreaming():
                self.is_paused = False
                self.stream()
            case p.AnnounceSoon():
                stage.soon(lambda: self.post(p.AnnounceDue()))
            case p.BackOff():
                stage.tell(f"{self.name} lost, and waits")
            case p.DropLink(link, text):
                stage.tell(f"{self.name} drops sk{link + 1}: {text}")
                stage.unlink(self, link + 1)
            case p.Stop(outcome, text, settled):
                stage.tell(f"{self.name} stops: {outcome.value}")
                if outcome in (p.Outcome.REFUSED, p.Outcome.CLOSED):
                    stage.tell(f"    {text}")
                if settled is not None:
                    stage.tell("    settled", at=settled.consensus_lsn)
                    if settled.behind and self.core.campaign.linger_ticks:
                        names = " ".join(f"sk{member_id(name)}" for name, _ in settled.behind)
                        stage.tell(f"    without {names}")
                stage.kill(self.name)

    def _elected(self) -> None:
        leader = self.core.leader
        assert leader is not None, f"{self.name} was elected without leading"
        candidate = self.core.candidate
        assert candidate is not None, f"{self.name} was elected without campaigning"
        voted = next(m for m in self.core.members if m.vote is candidate.donor_vote)
        self.donor = voted.link + 1
        donor = self.stage.safekeepers[voted.link]
        wal = donor.durable_wal()[: leader.start_lsn - CREATION_LSN]
        for verdict in self.stage.oracle.elected(self.core.ballot, wal):
            self.stage.tell(verdict)

    def _report(self, commit_lsn: Lsn) -> None:
        if commit_lsn <= self.reported:
            return
        stage, wal = self.stage, bytes(self.wal[: commit_lsn - CREATION_LSN])
        self.reported = commit_lsn
        stage.tell(f"{self.name} reports", at=commit_lsn)
        verdicts = stage.oracle.reported(
            self.core.ballot,
            wal,
            stage.safekeepers,
            whole_bytes=stage.whole_end(commit_lsn) - CREATION_LSN,
            ack_quorum=stage.configuration.ack_quorum,
        )
        for verdict in verdicts:
            stage.tell(verdict)

    def stream(self) -> None:
        """Send the WAL that the primary has flushed and not yet sent."""
        if not self.sent_lsn or self.is_paused:
            return
        begin_lsn, end_lsn = self.sent_lsn, CREATION_LSN + len(self.wal)
        wal = bytes(self.wal[begin_lsn - CREATION_LSN :])
        if wal:
            self.sent_lsn = end_lsn
            self.stage.soon(lambda: self.post(p.WalArrived(begin_lsn, memoryview(wal))))
