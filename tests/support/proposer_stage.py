"""The proposer alone on a stage: a scenario's lines are its events, its effects the answers.

    proposer B [members=N] [ack=K] [settle=yes] [take_over=yes] [window=BYTES] [nonces=yes]
               [to=1,2,4/2]   the members change to these, with this ack quorum
    link N | lost N | tick [N: bytes of a message have come] | back | announce | primary_lost
    nonce L | nonce refused
    primary flush=L [timeline=T ended=1@L,2@L]
    primary_read BYTES [other=yes] | primary_removed
    greeting N flush=L [first=L] [record=L] [commit=L] [ballot=B] [history=H] [live=B]
               [wiped=yes] [log=other]
    vote N ballot=B flush=L [first=L] [record=L] [history=H|none] [refused=yes]
    ack N flush=L [durable_commit=L] | wal BYTES | donor N begin=L bytes=BYTES [other=yes]
    reject N CODE ballot=B
    lead B                 in one line: B elected by all members with empty logs, nothing attached

N is a safekeeper, 1 to `members`. WAL is bytes of no meaning; `primary_read` and a `donor` that was
asked for WAL give the same, unless it is `other`. `primary_removed` is PostgreSQL's 58P01. `wal` is
contiguous with what came before.
"""

from __future__ import annotations

from dataclasses import replace

from tests.support.scenario_words import (
    CREATION_LSN,
    LOG_UUID,
    SEGMENT_BYTES,
    SYSTEM_ID,
    configuration_of,
    incarnation_of,
    lsn_of,
    parse_ballot,
    parse_command,
    parse_history,
    parse_set,
    shown_facts,
    shown_message,
)
from tests.support.sound_server import SOUND_SERVER
from walkeeper_common.history import Ballot
from walkeeper_common.lsn import Lsn
from walkeeper_common.operator_text.note import Note
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.member_change import joint_with
from walkeeper_common.wire.messages import (
    AcceptorGreeting,
    AppendResponse,
    Feedback,
    Reject,
    RejectCode,
    VoteResponse,
)
from walkeeper_common.wire.requests import ReadResponse
from walkeeper_common.wire.wal_crc import crc_of
from walkeeper_proposer.consensus.campaign import Campaign, Purpose
from walkeeper_proposer.consensus.proposer import Proposer
from walkeeper_proposer.consensus.proposer_events import (
    AnnounceDue,
    AnnounceSoon,
    BackedOff,
    BackOff,
    DropLink,
    Effect,
    Event,
    IdentifyPrimary,
    LinkLost,
    LinkUp,
    NonceWritten,
    Outcome,
    PauseStreaming,
    PrimaryIdentified,
    PrimaryIdentity,
    PrimaryLost,
    PrimaryRead,
    PrimaryReadFailed,
    ReadPrimary,
    Received,
    Report,
    ResumeStreaming,
    RetainWal,
    Send,
    StartStreaming,
    Stop,
    Tick,
    WalArrived,
)
from walkeeper_proposer.consensus.wal_window import WINDOW_BYTES_MAX
from walkeeper_proposer.postgres.standby_feedback import applied_lsn, needed_xmins

OTHER_UUID = b"o" * 16


class ProposerStage:
    """One proposer; safekeepers and primary are the scenario's lines."""

    def __init__(self) -> None:
        self.proposer: Proposer
        self._read = ReadPrimary(CREATION_LSN, CREATION_LSN, 1)
        self._wal_lsn = CREATION_LSN

    def run(self, line: str) -> str:
        """Run one line and return its effects, or `nothing`."""
        verb, plain, named = parse_command(line)
        if verb == "proposer":
            return self._start(plain[0], named)
        if verb == "lead":
            return self._lead(plain[0])
        return self._step(self._event(verb, plain, named))

    def _step(self, event: Event) -> str:
        effects = self.proposer.step(event)
        return "\n".join(self._show(effect) for effect in effects) or "nothing"

    def _start(self, name: str, named: dict[str, str]) -> str:
        members = int(named.get("members", "3"))
        self.configuration = configuration_of(members, int(named.get("ack", "0")))
        if "to" in named:
            target = parse_set(named["to"])
            self.configuration = joint_with(self.configuration, target, "")
        self.proposer = Proposer(
            Campaign(
                cluster="main",
                proposer_id=name.encode() * 16,
                links=len(self.configuration.everyone),
                purpose=Purpose.SETTLE if "settle" in named else Purpose.ATTACH,
                take_over="take_over" in named,
                writes_nonces="nonces" in named,
                window_bytes_max=int(named.get("window", WINDOW_BYTES_MAX)),
            )
        )
        return "ok"

    def _lead(self, ballot: str) -> str:
        """Lead at once, through the steps that the stories about elections show."""
        for member in self.proposer.members:
            self._step(LinkUp(member.link))
        lines = ["primary flush=0/100000"]
        lines += [f"greeting {m.link + 1} flush=0/100000" for m in self.proposer.members]
        lines += ["primary flush=0/100000"]
        for member in self.proposer.members:
            lines.append(f"vote {member.link + 1} ballot={ballot} flush=0/100000")
            if member.link + 1 == self.configuration.voters_min:
                lines.append("primary flush=0/100000")
        for line in lines:
            self.run(line)
        return f"{self.proposer.phase.value} as {ballot}"

    def _event(self, verb: str, plain: list[str], named: dict[str, str]) -> Event:
        match verb:
            case "tick":
                return Tick(frozenset(int(one) - 1 for one in plain))
            case "announce":
                return AnnounceDue()
            case "back":
                return BackedOff()
            case "nonce":
                return NonceWritten(None if plain[0] == "refused" else lsn_of(plain[0]))
            case "link":
                return LinkUp(int(plain[0]) - 1)
            case "lost":
                return LinkLost(int(plain[0]) - 1)
            case "primary":
                return PrimaryIdentified(_identity(named))
            case "primary_lost":
                return PrimaryLost("the connection was reset")
            case "primary_read":
                wal = (b"o" if "other" in named else b"w") * int(plain[0])
                return PrimaryRead(self._read.begin_lsn, wal)
            case "primary_removed":
                return PrimaryReadFailed("requested WAL segment has been removed", removed=True)
            case "wal":
                begin_lsn, size = self._wal_lsn, int(plain[0])
                self._wal_lsn = begin_lsn + size
                return WalArrived(begin_lsn, memoryview(b"w" * size))
            case _:
                return Received(int(plain[0]) - 1, self._message(verb, plain, named))

    def _message(self, verb: str, plain: list[str], named: dict[str, str]) -> Message:
        flush_lsn = lsn_of(named.get("flush", "0/0"))
        record_lsn = lsn_of(named["record"]) if "record" in named else flush_lsn
        oldest_lsn = lsn_of(named.get("first", str(CREATION_LSN)))
        history = parse_history(named.get("history", f"0:-@{CREATION_LSN}"), self.configuration)
        ballot = parse_ballot(named.get("ballot", "0:-"))
        match verb:
            case "greeting":
                number = int(plain[0])
                commit_lsn = lsn_of(named.get("commit", str(CREATION_LSN)))
                live = parse_ballot(named["live"]) if "live" in named else None
                incarnation = incarnation_of(99 if "wiped" in named else number)
                uuid = OTHER_UUID if "log" in named else LOG_UUID
                held = replace(self.configuration, log_uuid=uuid)
                return AcceptorGreeting(
                    number, incarnation, uuid, held, ballot, history,
                    oldest_lsn, flush_lsn, record_lsn, commit_lsn, live,
                )  # fmt: skip
            case "vote":
                return VoteResponse(
                    self.configuration.generation, ballot, "refused" not in named, oldest_lsn,
                    flush_lsn, record_lsn, CREATION_LSN, history,
                )  # fmt: skip
            case "ack":
                ours: Ballot = self.proposer.ballot
                generation = self.configuration.generation
                durable_lsn = lsn_of(named.get("durable_commit", "0/0"))
                applied = lsn_of(named.get("applied", "0/0"))
                feedback = Feedback(applied, int(named.get("xmin", "0")), 0)
                return AppendResponse(generation, ours, flush_lsn, durable_lsn, feedback)
            case "donor":
                wal = (b"o" if "other" in named else b"w") * int(named["bytes"])
                return ReadResponse(self.proposer.ballot, lsn_of(named["begin"]), crc_of(wal), wal)
            case "reject":
                return Reject(RejectCode[plain[1]], "", ballot)
        raise ValueError(f"unknown verb {verb!r}")

    def _show(self, effect: Effect) -> str:
        match effect:
            case Send(link, message):
                return f"Send sk{link + 1} {shown_message(message)}"
            case DropLink(link, text):
                return f"DropLink sk{link + 1}: {text}"
            case IdentifyPrimary():
                return "IdentifyPrimary"
            case ReadPrimary(begin_lsn, end_lsn):
                self._read = effect
                return f"ReadPrimary {begin_lsn} to {end_lsn}{_on(effect.timeline)}"
            case StartStreaming(start_lsn, timeline):
                self._wal_lsn = start_lsn
                return f"StartStreaming {start_lsn}{_on(timeline)}"
            case PauseStreaming() | ResumeStreaming():
                return type(effect).__name__
            case Report(commit_lsn, feedback):
                applied, xmin = applied_lsn(commit_lsn, feedback), needed_xmins(feedback)[0]
                standbys = f" applied={applied} xmin={xmin}" if applied or xmin else ""
                return f"Report {commit_lsn}{standbys}"
            case RetainWal(begin_lsn):
                return f"RetainWal {begin_lsn}"
            case AnnounceSoon():
                return "AnnounceSoon"
            case BackOff(attempt):
                return f"BackOff attempt={attempt}"
            case Stop(Outcome.REFUSED | Outcome.CLOSED as outcome, text):
                return f"Stop {outcome.value}: {text}"
            case Stop(outcome, _):
                return f"Stop {outcome.value}"
            case Note(text, facts):
                return f"Note {text}{shown_facts(facts)}"


def _on(timeline: int) -> str:
    return f" timeline={timeline}" if timeline > 1 else ""


def _identity(named: dict[str, str]) -> PrimaryIdentity:
    return PrimaryIdentity(
        system_id=SYSTEM_ID,
        timeline=int(named.get("timeline", "1")),
        flush_lsn=Lsn.parse(named["flush"]),
        segment_bytes=SEGMENT_BYTES,
        **SOUND_SERVER,
        timeline_file=_timeline_file(named["ended"]) if "ended" in named else b"",
    )


def _timeline_file(text: str) -> bytes:
    """Format `1@0/100200,2@0/100400` as PostgreSQL writes it."""
    lines = (word.replace("@", "\t") + "\tno reason\n" for word in text.split(","))
    return "\n".join(lines).encode()
