"""Several safekeepers and proposers on a stage, with the real cores: whole stories in few lines.

    cluster N [ack=K]                     N safekeepers without WAL
    safekeeper N wal=W [history=H]        what it has had from before, all acknowledged by nobody
    attach B wal=W reach=N,N              proposer B with a primary that has W; it takes over
    settle B reach=N,N                    an election without a primary
    write B W                             B's primary writes more
    half B R                              B's primary writes the first half of a record
    reach B N,N | kill B | crash N | wipe N | tick B | show

WAL is written as letters, one a record of 256 bytes, `-` behind the last: only half of it is
there. Disks are instant; messages arrive in order, until nothing is left to do. After a crash a
safekeeper's log ends with its last whole record, as its scan finds it. A wiped one has lost its
disk and was prepared again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from tests.scenario_words import (
    CREATION_LSN,
    LOG_UUID,
    SEGMENT_BYTES,
    SYSTEM_ID,
    configuration_of,
    incarnation_of,
    parse_command,
    parse_history,
    shown,
)
from walkeeper_common.history import cut
from walkeeper_common.lsn import Lsn
from walkeeper_common.messages import ProposerElected, Reject
from walkeeper_proposer import proposer_events as p
from walkeeper_proposer.campaign import Campaign, Purpose
from walkeeper_proposer.consensus import Proposer
from walkeeper_safekeeper import acceptor_events as a
from walkeeper_safekeeper.acceptor import Acceptor
from walkeeper_safekeeper.durable import Durable

RECORD_BYTES = 0x100


def bytes_of(letters: str) -> bytes:
    whole = letters.rstrip("-").encode()
    wal = b"".join(bytes([letter]) * RECORD_BYTES for letter in whole)
    return wal[: -RECORD_BYTES // 2] if letters.endswith("-") else wal


def letters_of(wal: bytes) -> str:
    half = "-" if len(wal) % RECORD_BYTES else ""
    return wal[::RECORD_BYTES].decode() + half


def end_of(lsn: Lsn) -> str:
    """A position as the record that ends there: R2, or `R2+` inside the one that follows."""
    number, rest = divmod(lsn - CREATION_LSN, RECORD_BYTES)
    return f"R{number}" + ("+" if rest else "")


class _Safekeeper:
    def __init__(self, stage: ClusterStage, number: int) -> None:
        self.stage, self.number, self.wal = stage, number, bytearray()
        self.durable = Durable(
            acceptor_id=number,
            incarnation=incarnation_of(number),
            log_uuid=LOG_UUID,
            configuration=stage.configuration,
            history=parse_history(f"0:-@{CREATION_LSN}", stage.configuration),
            commit_lsn=CREATION_LSN,
            restart_lsn=CREATION_LSN,
            reached_lsn=CREATION_LSN,
        )
        self.acceptor: Acceptor
        self.start()

    def start(self) -> None:
        """What a scan after a crash finds: whole records."""
        del self.wal[len(self.wal) // RECORD_BYTES * RECORD_BYTES :]
        end_lsn = CREATION_LSN + len(self.wal)
        self.acceptor = Acceptor(
            self.durable, first_lsn=CREATION_LSN, flush_lsn=end_lsn, record_lsn=end_lsn
        )

    def post(self, event: a.Event) -> None:
        for effect in self.acceptor.step(event):
            self._perform(effect)

    def _perform(self, effect: a.Effect) -> None:
        match effect:
            case a.Persist(state):
                self.durable = state
            case a.TruncateWal(to_lsn):
                self.stage.tell(f"sk{self.number} cuts {letters_of(self.wal)}", at=to_lsn)
                del self.wal[to_lsn - CREATION_LSN :]
            case a.WriteWal(begin_lsn, payload):
                assert begin_lsn == CREATION_LSN + len(self.wal), f"{begin_lsn=}"
                self.wal += payload
                flush_lsn = CREATION_LSN + len(self.wal)
                self.stage.soon(lambda: self.post(a.WalFlushed(flush_lsn)))
            case a.FindRecordEnd():
                size = effect.flush_lsn - CREATION_LSN
                end_lsn = effect.flush_lsn - size % RECORD_BYTES
                self.stage.soon(lambda: self.post(a.RecordEndFound(effect, end_lsn)))
            case a.ReadWal(connection, request, truncations, end_lsn):
                wal = bytes(self.wal[request.begin_lsn - CREATION_LSN : end_lsn - CREATION_LSN])
                read = a.WalRead(connection, request, truncations, wal)
                self.stage.soon(lambda: self.post(read))
            case a.Send(connection, message):
                if isinstance(message, Reject):
                    self.stage.tell(f"sk{self.number} rejects: {message.code.name}")
                self.stage.to_proposer(self.number, connection, message)
            case a.EndReaders(above_lsn):
                self.stage.tell(f"sk{self.number} ends readers", at=above_lsn)


class _Proposer:
    def __init__(self, stage: ClusterStage, name: str, wal: bytes, purpose: Purpose) -> None:
        self.stage, self.name, self.wal = stage, name, bytearray(wal)
        self.reported = CREATION_LSN
        self._sent = Lsn(0)  # 0: does not stream
        self.links: dict[int, int] = {}  # safekeeper -> connection
        self.core = Proposer(
            Campaign(
                cluster="main",
                proposer_id=name.encode() * 16,
                links=len(stage.safekeepers),
                purpose=purpose,
                take_over=True,
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
                stage.to_safekeeper(link + 1, self.links.get(link + 1), message)
            case p.Report(commit_lsn):
                if commit_lsn > self.reported:
                    self.reported = commit_lsn
                    stage.tell(f"{self.name} reports", at=commit_lsn)
            case p.IdentifyPrimary():
                stage.soon(lambda: self.post(p.PrimaryIdentified(self.identity())))
            case p.ReadPrimary(begin_lsn, end_lsn):
                wal = bytes(self.wal[begin_lsn - CREATION_LSN : end_lsn - CREATION_LSN])
                stage.soon(lambda: self.post(p.PrimaryRead(begin_lsn, wal)))
            case p.StartStreaming(start_lsn):
                self._sent = start_lsn
                self.stream()
            case p.DropLink(link, text):
                stage.tell(f"{self.name} drops sk{link + 1}: {text}")
                stage.unlink(self, link + 1)
            case p.Stop(outcome, text, settled):
                stage.tell(f"{self.name} stops: {outcome.value}")
                if outcome is p.Outcome.REFUSED:
                    stage.tell(f"    {text}")
                if settled is not None:
                    stage.tell("    settled", at=settled.consensus_lsn)
                stage.kill(self.name)

    def stream(self) -> None:
        """Whatever the primary has flushed and not yet sent."""
        begin_lsn, wal = self._sent, bytes(self.wal[self._sent - CREATION_LSN :])
        if self._sent and wal:
            self._sent = begin_lsn + len(wal)
            self.stage.soon(lambda: self.post(p.WalArrived(begin_lsn, memoryview(wal))))


class ClusterStage:
    """Everybody, and what is under way between them."""

    def __init__(self) -> None:
        self.safekeepers: list[_Safekeeper] = []
        self.proposers: dict[str, _Proposer] = {}
        self._connections = 0
        self._told: list[str] = []
        self._todo: deque[Callable[[], None]] = deque()

    def run(self, line: str) -> str:
        """What became visible until nothing was left to do."""
        verb, plain, named = parse_command(line)
        if verb == "show":
            return self._show()
        self._told.clear()
        getattr(self, f"_do_{verb}")(plain, named)
        while self._todo:
            self._todo.popleft()()
        return "\n".join(self._told) or "ok"

    def soon(self, what: Callable[[], None]) -> None:
        self._todo.append(what)

    def tell(self, text: str, *, at: Lsn | None = None) -> None:
        self._told.append(text if at is None else f"{text} at {end_of(at)}")

    def to_safekeeper(self, number: int, connection: int | None, message: p.Message) -> None:
        def arrive() -> None:
            if any(connection == b.links.get(number) for b in self.proposers.values()):
                assert connection is not None
                self.safekeepers[number - 1].post(a.Received(connection, message))

        self.soon(arrive)

    def to_proposer(self, number: int, connection: int, message: p.Message) -> None:
        def arrive() -> None:
            for proposer in list(self.proposers.values()):
                if proposer.links.get(number) == connection:
                    proposer.post(p.Received(number - 1, message))

        self.soon(arrive)

    def unlink(self, proposer: _Proposer, number: int) -> None:
        connection = proposer.links.pop(number, None)
        if connection is not None:
            self.soon(lambda: proposer.post(p.LinkLost(number - 1)))
            self.soon(lambda: self.safekeepers[number - 1].post(a.ConnectionLost(connection)))

    def kill(self, name: str) -> None:
        proposer = self.proposers.pop(name)
        for number, connection in proposer.links.items():
            lost, node = a.ConnectionLost(connection), self.safekeepers[number - 1]
            self.soon(lambda node=node, lost=lost: node.post(lost))  # type: ignore[misc]

    # The commands

    def _do_cluster(self, plain: list[str], named: dict[str, str]) -> None:
        members = int(plain[0])
        self.configuration = configuration_of(members, int(named.get("ack", "0")))
        self.safekeepers = [_Safekeeper(self, n) for n in range(1, members + 1)]

    def _do_safekeeper(self, plain: list[str], named: dict[str, str]) -> None:
        node = self.safekeepers[int(plain[0]) - 1]
        node.wal = bytearray(bytes_of(named["wal"]))
        entries = [f"0:-@{CREATION_LSN}"]
        for word in named.get("history", "").split(",") if "history" in named else []:
            ballot, _, record = word.partition("@R")
            entries.append(f"{ballot}@{CREATION_LSN + int(record) * RECORD_BYTES}")
        history = parse_history(",".join(entries), self.configuration)
        end_lsn = CREATION_LSN + len(node.wal)
        node.durable = replace(
            node.durable,
            ballot=history[-1].ballot,
            history=history,
            reached_lsn=cut(history, end_lsn)[-1].start_lsn,
        )
        node.start()

    def _do_attach(self, plain: list[str], named: dict[str, str]) -> None:
        self._begin(plain[0], Purpose.ATTACH, bytes_of(named["wal"]), named["reach"])

    def _do_settle(self, plain: list[str], named: dict[str, str]) -> None:
        self._begin(plain[0], Purpose.SETTLE, b"", named["reach"])

    def _begin(self, name: str, purpose: Purpose, wal: bytes, reach: str) -> None:
        proposer = self.proposers[name] = _Proposer(self, name, wal, purpose)
        if purpose is Purpose.ATTACH:
            proposer.post(p.PrimaryIdentified(proposer.identity()))
        self._do_reach([name, reach], {})

    def _do_reach(self, plain: list[str], named: dict[str, str]) -> None:
        proposer = self.proposers[plain[0]]
        wanted = {int(number) for number in plain[1].split(",")}
        for number in set(proposer.links) - wanted:
            self.unlink(proposer, number)
        for number in sorted(wanted - set(proposer.links)):
            self._connections += 1
            proposer.links[number] = self._connections
            self.soon(lambda number=number: proposer.post(p.LinkUp(number - 1)))

    def _do_write(self, plain: list[str], named: dict[str, str]) -> None:
        proposer = self.proposers[plain[0]]
        del proposer.wal[len(proposer.wal) // RECORD_BYTES * RECORD_BYTES :]
        sent_half = max(0, proposer._sent - CREATION_LSN - len(proposer.wal))
        proposer.wal += bytes_of(plain[1])
        assert sent_half <= len(proposer.wal), f"{sent_half=}"
        proposer.stream()

    def _do_half(self, plain: list[str], named: dict[str, str]) -> None:
        proposer = self.proposers[plain[0]]
        proposer.wal += bytes_of(plain[1] + "-")
        proposer.stream()

    def _do_kill(self, plain: list[str], named: dict[str, str]) -> None:
        self.kill(plain[0])

    def _do_tick(self, plain: list[str], named: dict[str, str]) -> None:
        self.proposers[plain[0]].post(p.Tick())

    def _do_crash(self, plain: list[str], named: dict[str, str]) -> None:
        number = int(plain[0])
        for proposer in self.proposers.values():
            if number in proposer.links:
                del proposer.links[number]
                self.soon(lambda b=proposer: b.post(p.LinkLost(number - 1)))  # type: ignore[misc]
        self.safekeepers[number - 1].start()

    def _do_wipe(self, plain: list[str], named: dict[str, str]) -> None:
        node = self.safekeepers[int(plain[0]) - 1]
        node.wal.clear()
        node.durable = Durable(node.number, incarnation_of(99), LOG_UUID)
        self._do_crash(plain, named)

    def _show(self) -> str:
        lines = []
        for node in self.safekeepers:
            acceptor = node.acceptor
            if acceptor.durable.configuration is None:
                lines.append(f"sk{node.number} not configured")
                continue
            history = cut(acceptor.durable.history, acceptor.flush_lsn)
            terms = ",".join(f"{shown(e.ballot)}@{end_of(e.start_lsn)}" for e in history[1:])
            promised, commit = shown(acceptor.durable.ballot), end_of(acceptor.commit_lsn)
            facts = f"promised={promised} history={terms} commit={commit}"
            lines.append(f"sk{node.number} {letters_of(bytes(node.wal)):<6} {facts}")
        return "\n".join(lines)
