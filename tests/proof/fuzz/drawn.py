"""Messages and their fields, drawn from choices: mostly what a peer may say, always well-formed.

`Scope` has the values that matter in a story: LSNs and ballots that somebody has used before, so
that two draws meet. Now and then it draws any value that a field's type can hold.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tests.proof.fuzz.choices import Choices
from tests.proof.fuzz.contract import require
from tests.support.scenario_words import CREATION_LSN, LOG_UUID, SYSTEM_ID, incarnation_of
from walkeeper_common.history import NO_BALLOT, TERM_MAX, Ballot, Fragment, History
from walkeeper_common.lsn import LSN_MAX, Lsn
from walkeeper_common.quorum import Configuration, LogKind
from walkeeper_common.wire.framing import FRAME_BYTES_MAX, Message, encode
from walkeeper_common.wire.messages import (
    PROTOCOL_VERSION,
    UNKNOWN_LOG_UUID,
    AcceptorGreeting,
    AppendRequest,
    AppendResponse,
    Feedback,
    ProposerElected,
    ProposerGreeting,
    Reject,
    RejectCode,
    VoteRequest,
    VoteResponse,
)
from walkeeper_common.wire.requests import ReadRequest, ReadResponse
from walkeeper_common.wire.wal_crc import crc_of

PROPOSERS = (b"a" * 16, b"b" * 16, b"\xff" * 16, bytes(16))
PAYLOAD = bytes(range(256)) * 8
TEXTS = ("", "main", "1#" + "01" * 16, "\0" * 20_000, "ü" * 99, "a" * 65535)


@dataclass
class Scope:
    """The values that this story has used."""

    configuration: Configuration
    lsns: list[Lsn] = field(default_factory=list)  # where logs end and terms start now
    ballots: list[Ballot] = field(default_factory=list)
    history: History = ()

    def lsn(self, choices: Choices) -> Lsn:
        kind = choices.byte()
        if kind < 160 and self.lsns:
            return self.lsns[kind % len(self.lsns)]
        if kind < 240:
            return CREATION_LSN + 8 * choices.byte()
        if kind < 250:
            near = self.lsns[kind % len(self.lsns)] if self.lsns else CREATION_LSN
            return Lsn(min(max(near + choices.byte() - 128, 0), LSN_MAX))
        return (Lsn(0), LSN_MAX, Lsn(LSN_MAX - 8), Lsn(1 << 32))[kind % 4]

    def ballot(self, choices: Choices) -> Ballot:
        kind = choices.byte()
        if kind < 150 and self.ballots:
            return self.ballots[kind % len(self.ballots)]
        if kind < 250:
            return Ballot(1 + kind % 5, PROPOSERS[kind // 5 % 3])
        return (NO_BALLOT, Ballot(TERM_MAX, PROPOSERS[2]), Ballot(0, PROPOSERS[0]))[kind % 3]

    def fragment(self, choices: Choices) -> Fragment:
        members = self.configuration.members
        if choices.one_in(60):
            members = ("m" * 3000,) * choices.below(33)
        return Fragment(
            ballot=self.ballot(choices),
            start_lsn=self.lsn(choices),
            timeline=2 if choices.one_in(40) else 1,
            sealed=choices.one_in(30),
            members=members,
            ack_quorum=self.configuration.ack_quorum,
        )

    def changed_history(self, choices: Choices) -> History:
        """Draw the story's history, cut and gone on with; seldom without any sense."""
        kind, cut = choices.below(16), choices.byte()
        kept = self.history[: len(self.history) - cut % 3] if kind < 13 else self.history
        match kind:
            case 13:
                return self.history[1:]
            case 14:
                return (*self.history[:1], self.fragment(choices), *self.history[1:])
            case 15:
                return tuple(self.fragment(choices) for _ in range(cut % 4))
            case number if number % 3 == 0:
                return kept
            case _:
                return (*kept, self.fragment(choices))

    def history_of(self, choices: Choices, ballot: Ballot, start_lsn: Lsn) -> History:
        """Draw a leader's history: the entries that it found below its start, and its own."""
        if choices.one_in(12):
            return self.changed_history(choices)
        kept = [e for e in self.history[1:] if e.start_lsn < start_lsn and e.ballot < ballot]
        mine = Fragment(
            ballot, start_lsn, 1, choices.one_in(20), self.configuration.members,
            self.configuration.ack_quorum,
        )  # fmt: skip
        return (*self.history[:1], *kept, mine)

    def generation(self, choices: Choices) -> int:
        return 2**32 - 1 if choices.one_in(60) else self.configuration.generation

    # Messages of a proposer

    def proposer_greeting(self, choices: Choices) -> ProposerGreeting:
        uuid = UNKNOWN_LOG_UUID if choices.one_in(4) else LOG_UUID
        return ProposerGreeting(
            PROTOCOL_VERSION,
            choices.pick(TEXTS) if choices.one_in(8) else "main",
            b"X" * 16 if choices.one_in(20) else uuid,
            choices.pick((SYSTEM_ID, 0, 1, 2**64 - 1)),
            choices.pick((self.configuration.segment_bytes, 0, 2**32 - 1)),
            "15.18",
            choices.pick(PROPOSERS),
            LogKind.LOGICAL if choices.one_in(20) else LogKind.PHYSICAL,
            choices.pick(TEXTS) if choices.one_in(8) else "walkeeper",
            None if choices.one_in(3) else self.configuration,
        )

    def vote_request(self, choices: Choices, member: str) -> VoteRequest:
        wanted = choices.pick(TEXTS) if choices.one_in(12) else member
        uuid = UNKNOWN_LOG_UUID if choices.one_in(30) else LOG_UUID
        return VoteRequest(self.generation(choices), self.ballot(choices), uuid, wanted)

    def elected(self, choices: Choices, ballot: Ballot) -> ProposerElected:
        ballot = self.ballot(choices) if choices.one_in(4) else ballot
        parts_lsn, start_lsn = self.lsn(choices), self.lsn(choices)
        history = self.history_of(choices, ballot, start_lsn)
        return ProposerElected(self.generation(choices), ballot, parts_lsn, history)

    def append(self, choices: Choices, ballot: Ballot, write_lsn: Lsn) -> AppendRequest:
        ballot = self.ballot(choices) if choices.one_in(8) else ballot
        begin = self.lsn(choices) if choices.one_in(8) else write_lsn
        size = choices.pick((0, 0, 8, 16, 24, 40, 100, 1000))
        size = min(size, LSN_MAX - begin)
        wal = PAYLOAD[:size]
        crc = crc_of(wal) ^ choices.one_in(20)
        timeline = 2 if choices.one_in(30) else 1
        return AppendRequest(
            self.generation(choices), ballot, timeline, begin, begin + size, self.lsn(choices),
            self.lsn(choices), crc, wal,
        )  # fmt: skip

    def read(self, choices: Choices) -> ReadRequest:
        size = choices.pick((1, 8, 100, 1 << 20))
        ballot = NO_BALLOT if choices.one_in(3) else self.ballot(choices)
        return ReadRequest(ballot, self.lsn(choices), size)

    # Messages of a safekeeper

    def acceptor_greeting(self, choices: Choices, number: int) -> AcceptorGreeting:
        number = choices.below(6) if choices.one_in(16) else number
        configuration: Configuration | None = self.configuration
        if choices.one_in(16):
            configuration = self.odd_configuration(choices)
        flush_lsn = self.lsn(choices)
        return AcceptorGreeting(
            number,
            incarnation_of(99 if choices.one_in(40) else number),
            LOG_UUID,
            configuration,
            self.ballot(choices) if choices.one_in(3) else NO_BALLOT,
            self.changed_history(choices) if choices.one_in(3) else self.history,
            self.lsn(choices) if choices.one_in(10) else CREATION_LSN,
            flush_lsn,
            self.lsn(choices) if choices.one_in(4) else flush_lsn,
            self.lsn(choices) if choices.one_in(4) else flush_lsn,
            self.ballot(choices) if choices.one_in(10) else None,
        )

    def odd_configuration(self, choices: Choices) -> Configuration | None:
        """Draw a configuration that `create` would not make."""
        base, value = self.configuration, choices.byte()
        match choices.below(8):
            case 0:
                return None
            case 1:
                return replace(base, ack_quorum=value)
            case 2:
                return replace(base, generation=choices.pick((0, 2**32, TERM_MAX)))
            case 3:
                return replace(base, members=base.members[: value % 4])
            case 4:
                return replace(base, members=(base.members[0],) * (value % 33))
            case 5:
                return replace(base, segment_bytes=choices.pick((0, 1, 2**32 - 1)))
            case 6:
                return replace(base, server_version=choices.pick(TEXTS), timeline=value)
            case _:
                return replace(base, creation_lsn=self.lsn(choices), system_id=value)

    def vote(self, choices: Choices, ballot: Ballot) -> VoteResponse:
        ballot = self.ballot(choices) if choices.one_in(10) else ballot
        flush_lsn = self.lsn(choices)
        return VoteResponse(
            self.generation(choices),
            ballot,
            not choices.one_in(10),
            self.lsn(choices) if choices.one_in(10) else CREATION_LSN,
            flush_lsn,
            self.lsn(choices) if choices.one_in(4) else flush_lsn,
            self.lsn(choices) if choices.one_in(4) else CREATION_LSN,
            self.changed_history(choices) if choices.one_in(3) else self.history,
        )

    def append_response(self, choices: Choices, ballot: Ballot) -> AppendResponse:
        ballot = self.ballot(choices) if choices.one_in(12) else ballot
        feedback = Feedback(
            self.lsn(choices) if choices.one_in(3) else Lsn(0),
            choices.pick((0, 0, 5, 1 << 40, TERM_MAX)),
            choices.pick((0, 0, 7, TERM_MAX)),
        )
        return AppendResponse(
            self.generation(choices), ballot, self.lsn(choices), self.lsn(choices), feedback
        )

    def read_response(
        self, choices: Choices, asked: ReadRequest | None, wal: bytes
    ) -> ReadResponse:
        """Draw an answer to a request, shorter or longer now and then, or to no request."""
        ballot = asked.ballot if asked is not None else self.ballot(choices)
        begin = asked.begin_lsn if asked is not None else self.lsn(choices)
        if choices.one_in(8):
            wal = wal[: choices.byte()]
        elif choices.one_in(8):
            wal = wal + PAYLOAD[: choices.byte()]
        return ReadResponse(ballot, begin, crc_of(wal) ^ choices.one_in(16), wal)

    def reject(self, choices: Choices) -> Reject:
        codes = list(RejectCode)
        code = choices.pick(codes)
        text = choices.pick(TEXTS) if choices.one_in(8) else "no"
        ballot = NO_BALLOT if choices.one_in(2) else self.ballot(choices)
        return Reject(code, text, ballot)


def check_sendable(message: Message) -> None:
    """Check that a core's message fits into a frame; the round trip is the job of `messages`."""
    size = sum(len(buffer) for buffer in encode(message))
    require(size <= FRAME_BYTES_MAX, "a frame of {} bytes", size)
