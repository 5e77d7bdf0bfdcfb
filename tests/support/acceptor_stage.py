"""The acceptor alone on a stage: a scenario's lines are its events, its effects the answers.

    acceptor flush=L [record=L] [commit=L] [ballot=B] [history=H] [wiped=yes]   one of 3 members
    greet P | vote P ballot=B [member=N] | elected P ballot=B start=L history=H
    append P ballot=B begin=L bytes=N [commit=L] [restart=L] [timeline=T] [damaged=yes]
    heartbeat P ballot=B at=L [commit=L] [restart=L] [timeline=T] | flushed L | record_end L
    read P ballot=B begin=L bytes=N | wal_read | lost P | tick [P: bytes of a message have come]
    install P generation=2|3 [leaving=N | to=1,2,4/2] | ask_members P
    no_space at=L | storage_failed | restart flush=L

P is a connection. Messages are of generation 1, or of `generation=N`. `install` brings the joint
members, in which safekeeper 4 comes for safekeeper `leaving` (3), or the final ones. `record_end`
answers the oldest FindRecordEnd, `wal_read` the oldest ReadWal. `restart` goes on with what was
persisted, and with WAL up to `flush`, a record's end. A wiped one has been prepared again: another
incarnation, not configured.
"""

from __future__ import annotations

from collections import deque
from dataclasses import fields

from tests.support.scenario_words import (
    CREATION_LSN,
    LOG_UUID,
    SYSTEM_ID,
    configuration_of,
    incarnation_of,
    lsn_of,
    parse_ballot,
    parse_command,
    parse_history,
    parse_set,
    shown,
    shown_facts,
    shown_message,
)
from walkeeper_common.lsn import Lsn
from walkeeper_common.operator_text.note import Note
from walkeeper_common.quorum import LogKind, member_name
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.member_change import (
    InstallMembers,
    MembersQuery,
    cancelled,
    final,
    joint,
    joint_with,
)
from walkeeper_common.wire.messages import (
    PROTOCOL_VERSION,
    AppendRequest,
    ProposerElected,
    ProposerGreeting,
    VoteRequest,
)
from walkeeper_common.wire.requests import ReadRequest
from walkeeper_common.wire.wal_crc import crc_of
from walkeeper_safekeeper.consensus.acceptor import Acceptor
from walkeeper_safekeeper.consensus.acceptor_events import (
    CommitMoved,
    ConnectionLost,
    Effect,
    EndReaders,
    Event,
    FindRecordEnd,
    Persist,
    ReadWal,
    Received,
    RecordEndFound,
    Send,
    StorageFailed,
    Tick,
    TruncateWal,
    WalFlushed,
    WalRead,
    WriteRefused,
    WriteWal,
)
from walkeeper_safekeeper.consensus.durable import Durable


class AcceptorStage:
    """Safekeeper 1 of three; its persisted state outlives `restart`."""

    def __init__(self) -> None:
        self.configuration = configuration_of(3)
        self.durable: Durable
        self.acceptor: Acceptor
        self._asked: deque[FindRecordEnd] = deque()
        self._reads: deque[ReadWal] = deque()

    def run(self, line: str) -> str:
        """Run one line and return its effects, or `nothing`."""
        verb, plain, named = parse_command(line)
        if verb == "acceptor":
            return self._start(named)
        if verb == "restart":
            self._asked.clear()
            self._reads.clear()
            return self._open(lsn_of(named["flush"]), lsn_of(named["flush"]))
        effects = self.acceptor.step(self._event(verb, plain, named))
        return "\n".join(self._show(effect) for effect in effects) or "nothing"

    def _start(self, named: dict[str, str]) -> str:
        flush_lsn = lsn_of(named["flush"])
        history = parse_history(named.get("history", f"0:-@{CREATION_LSN}"), self.configuration)
        self.durable = Durable(
            acceptor_id=1,
            incarnation=incarnation_of(1),
            log_uuid=LOG_UUID,
            configuration=self.configuration,
            ballot=parse_ballot(named.get("ballot", "0:-")),
            history=history,
            commit_lsn=lsn_of(named.get("commit", str(CREATION_LSN))),
            restart_lsn=CREATION_LSN,
            reached_lsn=max(e.start_lsn for e in history if e.start_lsn <= flush_lsn),
        )
        if "wiped" in named:
            self.durable = Durable(1, incarnation_of(99), LOG_UUID)
        return self._open(flush_lsn, lsn_of(named.get("record", named["flush"])))

    def _open(self, flush_lsn: Lsn, record_lsn: Lsn) -> str:
        self.acceptor = Acceptor(
            self.durable, oldest_lsn=CREATION_LSN, flush_lsn=flush_lsn, record_lsn=record_lsn
        )
        return "ok"

    def _event(self, verb: str, plain: list[str], named: dict[str, str]) -> Event:
        match verb:
            case "tick":
                return Tick(frozenset(map(_connection, plain)))
            case "flushed":
                return WalFlushed(lsn_of(plain[0]))
            case "record_end":
                return RecordEndFound(self._asked.popleft(), lsn_of(plain[0]))
            case "wal_read":
                read = self._reads.popleft()
                wal = b"w" * (read.end_lsn - read.request.begin_lsn)
                return WalRead(read.connection, read.request, read.truncations, wal)
            case "no_space":
                return WriteRefused(lsn_of(named["at"]), "no space")
            case "storage_failed":
                return StorageFailed("Input/output error")
            case "lost":
                return ConnectionLost(_connection(plain[0]))
            case _:
                return Received(_connection(plain[0]), self._message(verb, named))

    def _message(self, verb: str, named: dict[str, str]) -> Message:
        if verb == "ask_members":
            return MembersQuery("main")
        if verb == "install":
            return self._install(named)
        if verb == "greet":
            return ProposerGreeting(
                PROTOCOL_VERSION, "main", LOG_UUID, SYSTEM_ID, self.configuration.segment_bytes,
                "15.18", b"p" * 16, LogKind.PHYSICAL, "walkeeper", self.configuration,
            )  # fmt: skip
        ballot, generation = parse_ballot(named["ballot"]), int(named.get("generation", "1"))
        match verb:
            case "vote":
                name = self.configuration.members[int(named.get("member", "1")) - 1]
                return VoteRequest(generation, ballot, LOG_UUID, name)
            case "elected":
                history = parse_history(named["history"], self.configuration)
                return ProposerElected(generation, ballot, lsn_of(named["start"]), history)
            case "read":
                return ReadRequest(ballot, lsn_of(named["begin"]), int(named["bytes"]))
            case "append" | "heartbeat":
                begin_lsn = lsn_of(named["begin"] if verb == "append" else named["at"])
                wal = b"w" * int(named.get("bytes", "0"))
                crc = crc_of(wal) + (1 if "damaged" in named else 0)
                commit_lsn = lsn_of(named.get("commit", "0/0"))
                restart_lsn = lsn_of(named.get("restart", str(CREATION_LSN)))
                end_lsn, timeline = begin_lsn + len(wal), int(named.get("timeline", "1"))
                return AppendRequest(
                    generation, ballot, timeline, begin_lsn, end_lsn, commit_lsn, restart_lsn,
                    crc, wal,
                )  # fmt: skip
        raise ValueError(f"unknown verb {verb!r}")

    def _install(self, named: dict[str, str]) -> InstallMembers:
        leaving = self.configuration.members[int(named.get("leaving", "3")) - 1]
        newcomer = member_name(4, incarnation_of(4))
        both = joint(self.configuration, leaving=leaving, joining=newcomer, address="h4:5454")
        if "to" in named:
            both = joint_with(self.configuration, parse_set(named["to"]), "")
        if named["generation"] == "2":
            return InstallMembers("main", both)
        return InstallMembers("main", cancelled(both) if "cancel" in named else final(both))

    def _show(self, effect: Effect) -> str:
        match effect:
            case Persist(state):
                changed = [
                    f" {f.name}={shown(getattr(state, f.name))}"
                    for f in fields(state)
                    if getattr(state, f.name) != getattr(self.durable, f.name)
                ]
                self.durable = state
                return "Persist" + "".join(changed)
            case Send(connection, message):
                return f"Send p{connection} {shown_message(message)}"
            case WriteWal(begin_lsn, payload):
                return f"WriteWal {begin_lsn} +{len(payload)}"
            case FindRecordEnd():
                self._asked.append(effect)
                return f"FindRecordEnd below {effect.flush_lsn}"
            case ReadWal():
                self._reads.append(effect)
                return f"ReadWal {effect.request.begin_lsn} to {effect.end_lsn}"
            case TruncateWal(lsn):
                return f"TruncateWal {lsn}"
            case CommitMoved(lsn):
                return f"CommitMoved {lsn}"
            case EndReaders(lsn):
                return f"EndReaders above {lsn}"
            case Note(text, facts):
                return f"Note {text}{shown_facts(facts)}"


def _connection(text: str) -> int:
    return int(text.removeprefix("p"))
