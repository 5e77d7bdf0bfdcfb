"""The words of scenario files: ballots, histories, messages as text, and back.

A ballot is `2:b`, term and proposer; `0:-` is that of the creation entry. A history is
`0:-@0/100000,2:b@0/100200`, a `!` after an entry means sealed, a `.` closed; `none` has no entry
at all. Facts that are the same in every line (uuid, generation, configuration, checksums) are left
out.
"""

from __future__ import annotations

import shlex
from dataclasses import fields

from walkeeper_common.history import NO_BALLOT, Ballot, Fragment, History
from walkeeper_common.lsn import Lsn
from walkeeper_common.quorum import (
    Configuration,
    LogKind,
    MemberSet,
    majority,
    member_id,
    member_name,
)
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.messages import (
    NO_FEEDBACK,
    UNKNOWN_LOG_UUID,
    AppendRequest,
    ProposerGreeting,
    RejectCode,
)
from walkeeper_common.wire.requests import ReadResponse

CREATION_LSN = Lsn(0x100000)
SEGMENT_BYTES = 1 << 20
LOG_UUID = b"L" * 16
SYSTEM_ID = 7
LEFT_OUT = {
    "acceptor_id", "application_name", "cluster", "configuration", "crc", "end_lsn", "generation",
    "incarnation", "kind", "log_uuid", "member", "proposer_id", "protocol_version", "restart_lsn",
    "segment_bytes", "server_version", "system_id", "text",
}  # fmt: skip


def configuration_of(members: int, ack_quorum: int | None = None) -> Configuration:
    """Return the configuration that every stage uses."""
    return Configuration(
        generation=1,
        log_uuid=LOG_UUID,
        system_id=SYSTEM_ID,
        segment_bytes=SEGMENT_BYTES,
        server_version="15.18",
        kind=LogKind.PHYSICAL,
        creation_lsn=CREATION_LSN,
        timeline=1,
        members=tuple(member_name(i, incarnation_of(i)) for i in range(1, members + 1)),
        ack_quorum=ack_quorum or majority(members),
    )


def incarnation_of(acceptor_id: int) -> bytes:
    return bytes([acceptor_id]) * 16


def parse_set(text: str) -> MemberSet:
    """Return the set of `1,2,4/2`: members 1, 2 and 4, of which 2 commit."""
    ids, ack_quorum = text.split("/")
    members = tuple(member_name(int(i), incarnation_of(int(i))) for i in ids.split(","))
    return MemberSet(members, int(ack_quorum))


def parse_command(line: str) -> tuple[str, list[str], dict[str, str]]:
    """Split a line into its verb, plain words and `name=value` words."""
    verb, *words = shlex.split(line)
    plain = [word for word in words if "=" not in word]
    return verb, plain, dict(word.split("=", 1) for word in words if "=" in word)


def lsn_of(text: str) -> Lsn:
    return Lsn.parse(text)


def parse_ballot(text: str) -> Ballot:
    term, _, proposer = text.partition(":")
    return NO_BALLOT if proposer == "-" else Ballot(int(term), proposer.encode() * 16)


def parse_history(text: str, configuration: Configuration) -> History:
    entries: list[Fragment] = []
    for word in text.split(",") if text != "none" else []:
        ballot, _, place = word.rstrip("!.").partition("@")
        start, _, timeline = place.partition("/tl")
        entries.append(
            Fragment(
                parse_ballot(ballot),
                Lsn.parse(start),
                int(timeline or 1),
                "!" in word,
                configuration.members,
                configuration.ack_quorum,
                closed=word.endswith("."),
            )
        )
    return tuple(entries)


def shown(value: object) -> str:
    """Format one value as the scenarios write it."""
    match value:
        case Ballot():
            return f"{value.term}:{value.proposer_id[:1].decode() if value.term else '-'}"
        case Fragment():
            seal = ("!" if value.sealed else "") + ("." if value.closed else "")
            timeline = f"/tl{value.timeline}" if value.timeline > 1 else ""
            return f"{shown(value.ballot)}@{value.start_lsn}{timeline}{seal}"
        case tuple():
            return ",".join(shown(part) for part in value)
        case Configuration():
            ids = ",".join(str(member_id(member)) for member in value.members)
            if value.target is None:
                return f"{value.generation}:{ids}"
            if not value.is_replacing:
                to = ",".join(str(member_id(member)) for member in value.target.members)
                return f"{value.generation}:{ids};{to}/{value.target.ack_quorum}"
            change = f"{member_id(value.leaving)}->{member_id(value.joining)}"
            return f"{value.generation}:{ids};{change}"
        case RejectCode():
            return value.name
        case bool():
            return "yes" if value else "no"
        case _:
            return str(value)


def shown_message(message: Message) -> str:
    """Format a message as its name and the facts that differ from line to line."""
    match message:
        case AppendRequest() if not message.payload:
            return f"heartbeat at={message.begin_lsn} commit={message.commit_lsn}"
        case AppendRequest():
            wal = f"{message.begin_lsn} +{len(message.payload)}"
            wal += f" timeline={message.timeline}" if message.timeline > 1 else ""
            return f"append {wal} commit={message.commit_lsn}"
        case ProposerGreeting() if message.log_uuid != UNKNOWN_LOG_UUID:
            return f"ProposerGreeting log={'ours' if message.log_uuid == LOG_UUID else 'other'}"
        case ReadResponse():
            return f"ReadResponse {message.begin_lsn} +{len(message.payload)}"
    facts = [
        f"{field.name}={shown(getattr(message, field.name))}"
        for field in fields(message)
        if field.name not in LEFT_OUT and getattr(message, field.name) not in (None, NO_FEEDBACK)
    ]
    return " ".join([type(message).__name__, *facts])


def shown_facts(facts: tuple[tuple[str, object], ...]) -> str:
    return "".join(f" {name}={shown(value)}" for name, value in facts)
