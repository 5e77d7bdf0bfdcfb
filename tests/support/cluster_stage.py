"""Several safekeepers and proposers on a stage, with the real cores: whole stories in few lines.

    cluster N [ack=K] [wal=W,W] [history=H]    N safekeepers, without WAL or with what is given
    safekeeper N wal=W [history=H] [promised=B]   what it has from before, acknowledged by nobody
    attach B wal=W reach=N,N [window=BYTES] [take_over=no] [terms=N]   proposer B, whose primary has
                                          W; it folds a history of more than N terms
    settle B reach=N,N [linger=TICKS]     an election without a primary; seal and close likewise
    write B W | half B R                  B's primary writes more; the first half of a record
    reach B N,N | kill B | tick B | back B         back: a candidate that lost tries again
    crash N | wipe N                      a power cut; a lost disk, prepared again
    slow N | sync N [R2]                  its fdatasync takes until `sync` (of what is below R2)
    full N | room N                       no space for another segment; there is again
    remove N R2                           retention: N's log begins where R2 ends
    promise N B                           somebody votes for ballot B by hand
    hold B N | hold N B                   what B sends to N (N answers to B) stays under way
    deliver B N [K] | lose B N            it arrives, or only the next K of it; it never does
    reconnect B N                         B has a new connection to N; N still has the old one too
    idle B S                              S quiet seconds: what is sent, and what is persisted
    elections                             who would lead, whoever is reached, if all proposers died
    read N | show                         what readers without a ballot get of N; everything

WAL is written as letters, one for each record of 256 bytes. A `-` after the last letter means that
only half of that record is there. Messages arrive in order, until all are delivered. After a crash
a safekeeper's log ends with its last whole record, as its scan finds it. cluster_oracle.py watches,
and speaks in capitals.
"""

from __future__ import annotations

import copy
import textwrap
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import combinations

from tests.support.cluster_oracle import VERDICTS, Oracle
from tests.support.cluster_players import (
    RECORD_BYTES,
    PlayedProposer,
    Player,
    Safekeeper,
    bytes_of,
    end_of,
    letters_of,
    lsn_at,
)
from tests.support.scenario_words import (
    CREATION_LSN,
    LOG_UUID,
    configuration_of,
    incarnation_of,
    parse_ballot,
    parse_command,
    parse_history,
    shown,
)
from walkeeper_common.history import cut
from walkeeper_common.lsn import Lsn
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.messages import VoteRequest
from walkeeper_proposer.consensus import proposer_events as p
from walkeeper_proposer.consensus.campaign import TERMS_MAX, Purpose
from walkeeper_proposer.consensus.wal_window import WINDOW_BYTES_MAX
from walkeeper_safekeeper.consensus import acceptor_events as a
from walkeeper_safekeeper.consensus.durable import Durable

OF_A_PROPOSER = ("write", "half", "reach", "kill", "tick", "back", "reconnect", "idle")
BY_HAND = 0  # the connection of somebody who is no proposer of ours


class ClusterStage:
    """Everybody, and what is under way between them."""

    def __init__(self) -> None:
        self.safekeepers: list[Player] = []
        self.proposers: dict[str, PlayedProposer] = {}
        self.oracle = Oracle()
        self.sent: Counter[str] = Counter()
        self._connections = 0
        self._told: list[str] = []
        self._todo: deque[Callable[[], None]] = deque()
        self._held: dict[tuple[str, str], deque[Callable[[], None]]] = {}
        self._passing: dict[tuple[str, str], int] = {}  # ways that are held, and how many may pass

    def run(self, line: str) -> str:
        """Run a line until no work is left, and return what became visible."""
        verb, plain, named = parse_command(line)
        if verb in ("show", "elections"):
            return self._show() if verb == "show" else self._elections()
        self._told.clear()
        if verb in OF_A_PROPOSER and plain[0] not in self.proposers:
            return f"{plain[0]} has stopped"
        getattr(self, f"_do_{verb}")(plain, named)
        self._finish()
        for verdict in self.oracle.logs(self.safekeepers):
            self.tell(verdict)
        return "\n".join(self._told) or "ok"

    def _finish(self) -> None:
        while self._todo:
            self._todo.popleft()()

    def soon(self, what: Callable[[], None]) -> None:
        self._todo.append(what)

    def tell(self, text: str, *, at: Lsn | None = None) -> None:
        self._told.append(text if at is None else f"{text} at {end_of(at)}")

    def whole_end(self, lsn: Lsn) -> Lsn:
        return Lsn(lsn - (lsn - CREATION_LSN) % RECORD_BYTES)

    # Messages under way

    def to_safekeeper(self, proposer: PlayedProposer, number: int, message: Message) -> None:
        connection = proposer.links.get(number)
        if connection is None:
            return
        node = self.safekeepers[number - 1]
        self.sent[type(message).__name__] += 1

        def arrive() -> None:
            node.post(a.Received(connection, message))

        if not self._is_held(proposer.name, str(number), message, arrive):
            self.soon(lambda: arrive() if self._is_up(number, connection) else None)

    def to_proposer(self, number: int, connection: int, message: Message) -> None:
        self.sent[type(message).__name__] += 1

        def arrive() -> None:
            for proposer in list(self.proposers.values()):
                if proposer.links.get(number) == connection:
                    proposer.post(p.Received(number - 1, message))

        names = [b.name for b in self.proposers.values() if b.links.get(number) == connection]
        if not any(self._is_held(str(number), name, message, arrive) for name in names):
            self.soon(arrive)

    def _is_up(self, number: int, connection: int) -> bool:
        return any(connection == b.links.get(number) for b in self.proposers.values())

    def _is_held(
        self, sender: str, receiver: str, message: Message, arrive: Callable[[], None]
    ) -> bool:
        pair = (sender, receiver)
        if pair not in self._passing:
            return False
        if self._passing[pair]:
            self._passing[pair] -= 1
            return False
        self._held.setdefault(pair, deque()).append(arrive)
        self.tell(f"({_role(sender)} to {_role(receiver)}, under way: {type(message).__name__})")
        return True

    def unlink(self, proposer: PlayedProposer, number: int) -> None:
        connection = proposer.links.pop(number, None)
        if connection is not None:
            self.soon(lambda: proposer.post(p.LinkLost(number - 1)))
            self.soon(lambda: self.safekeepers[number - 1].post(a.ConnectionLost(connection)))

    def _link(self, proposer: PlayedProposer, number: int) -> None:
        self._connections += 1
        proposer.links[number] = self._connections
        self.soon(lambda: proposer.post(p.LinkUp(number - 1)))

    def kill(self, name: str) -> None:
        proposer = self.proposers.pop(name)
        for number, connection in proposer.links.items():
            lost, node = a.ConnectionLost(connection), self.safekeepers[number - 1]
            self.soon(partial(node.post, lost))

    # Players

    def _node(self, plain: list[str]) -> Safekeeper:
        return self._played(int(plain[0]))

    def _played(self, number: int) -> Safekeeper:
        """Return the cluster's own safekeeper, with WAL of letters."""
        node = self.safekeepers[number - 1]
        assert isinstance(node, Safekeeper), f"{node=}"
        return node

    def _all_played(self) -> list[Safekeeper]:
        return [self._played(node.number) for node in self.safekeepers]

    def _do_cluster(self, plain: list[str], named: dict[str, str]) -> None:
        members = int(plain[0])
        self.configuration = configuration_of(members, int(named.get("ack", "0")))
        self.safekeepers = [Safekeeper(self, n) for n in range(1, members + 1)]
        for number, wal in enumerate(named["wal"].split(",") if "wal" in named else (), 1):
            self._do_safekeeper([str(number)], {**named, "wal": wal})

    def _do_safekeeper(self, plain: list[str], named: dict[str, str]) -> None:
        node = self._node(plain)
        node.put(bytes_of(named["wal"]))
        entries = [f"0:-@{CREATION_LSN}"]
        for word in named.get("history", "").split(",") if "history" in named else []:
            ballot, _, record = word.partition("@")
            entries.append(f"{ballot}@{lsn_at(record)}")
        history = parse_history(",".join(entries), self.configuration)
        end_lsn = CREATION_LSN + len(node.wal)
        promised = parse_ballot(named["promised"]) if "promised" in named else history[-1].ballot
        node.durable = replace(
            node.durable,
            ballot=promised,
            history=history,
            reached_lsn=cut(history, end_lsn)[-1].start_lsn,
        )
        node.start()

    def _do_attach(self, plain: list[str], named: dict[str, str]) -> None:
        self._begin(plain[0], Purpose.ATTACH, named)

    def _do_settle(self, plain: list[str], named: dict[str, str]) -> None:
        self._begin(plain[0], Purpose.SETTLE, named)

    def _do_seal(self, plain: list[str], named: dict[str, str]) -> None:
        self._begin(plain[0], Purpose.SEAL, named)

    def _do_close(self, plain: list[str], named: dict[str, str]) -> None:
        self._begin(plain[0], Purpose.CLOSE, named)

    def _begin(self, name: str, purpose: Purpose, named: dict[str, str]) -> PlayedProposer:
        proposer = self.proposers[name] = PlayedProposer(
            self,
            name,
            self._wal_of(named),
            purpose,
            take_over=named.get("take_over") != "no",
            window_bytes=int(named.get("window", WINDOW_BYTES_MAX)),
            terms_max=int(named.get("terms", TERMS_MAX)),
            linger_ticks=int(named.get("linger", "0")),
        )
        if purpose is Purpose.ATTACH:
            proposer.post(p.PrimaryIdentified(proposer.identity()))
        self._do_reach([name, named["reach"]], {})
        return proposer

    def _wal_of(self, named: dict[str, str]) -> bytes:
        return bytes_of(named.get("wal", ""))

    def _do_reach(self, plain: list[str], named: dict[str, str]) -> None:
        proposer = self.proposers[plain[0]]
        proposer.wanted = {int(number) for number in plain[1].split(",")}
        for number in set(proposer.links) - proposer.wanted:
            self.unlink(proposer, number)
        for number in sorted(proposer.wanted - set(proposer.links)):
            self._link(proposer, number)

    def _do_kill(self, plain: list[str], named: dict[str, str]) -> None:
        self.kill(plain[0])

    # Acts of the primary

    def _do_write(self, plain: list[str], named: dict[str, str]) -> None:
        proposer = self.proposers[plain[0]]
        whole_bytes = len(proposer.wal) // RECORD_BYTES * RECORD_BYTES
        sent_half = max(0, proposer.sent_lsn - CREATION_LSN - whole_bytes)
        del proposer.wal[whole_bytes:]
        proposer.wal += bytes_of(plain[1])
        assert sent_half <= len(proposer.wal) - whole_bytes, f"{sent_half=}"
        proposer.stream()

    def _do_half(self, plain: list[str], named: dict[str, str]) -> None:
        proposer = self.proposers[plain[0]]
        proposer.wal += bytes_of(plain[1] + "-")
        proposer.stream()

    # Time

    def _do_tick(self, plain: list[str], named: dict[str, str]) -> None:
        self.proposers[plain[0]].post(p.Tick())

    def _do_back(self, plain: list[str], named: dict[str, str]) -> None:
        self.proposers[plain[0]].post(p.BackedOff())

    def _do_idle(self, plain: list[str], named: dict[str, str]) -> None:
        proposer, seconds = self.proposers[plain[0]], int(plain[1])
        self.sent.clear()
        persisted = sum(node.persisted for node in self.safekeepers)
        for _ in range(seconds):
            for number in sorted(proposer.wanted - set(proposer.links)):
                self._link(proposer, number)  # as often as links.py connects again
            proposer.post(p.Tick())
            for node in self.safekeepers:
                node.post(a.Tick())
            self._finish()
        self.sent["Persist"] = sum(node.persisted for node in self.safekeepers) - persisted
        told, self._told = Counter(self._told), []
        for text, count in told.items():
            self.tell(text if count == 1 else f"{count} times: {text}")
        for name, count in sorted(self.sent.items()):
            self.tell(f"{count} {name}")

    # Acts upon a safekeeper

    def _do_crash(self, plain: list[str], named: dict[str, str]) -> None:
        node = self._node(plain)
        lost = p.LinkLost(node.number - 1)
        for proposer in self.proposers.values():
            if proposer.links.pop(node.number, None) is not None:
                proposer.wanted.discard(node.number)
                self.soon(partial(proposer.post, lost))
        node.start()

    def _do_wipe(self, plain: list[str], named: dict[str, str]) -> None:
        node = self._node(plain)
        node.put(b"")
        node.durable = Durable(node.number, incarnation_of(99), LOG_UUID)
        self._do_crash(plain, named)

    def _do_slow(self, plain: list[str], named: dict[str, str]) -> None:
        self._node(plain).is_slow = True

    def _do_sync(self, plain: list[str], named: dict[str, str]) -> None:
        node = self._node(plain)
        node.is_slow = len(plain) > 1
        node.sync(lsn_at(plain[1]) if len(plain) > 1 else node.acceptor.write_lsn)

    def _do_full(self, plain: list[str], named: dict[str, str]) -> None:
        self._node(plain).is_full = True

    def _do_room(self, plain: list[str], named: dict[str, str]) -> None:
        self._node(plain).is_full = False

    def _do_remove(self, plain: list[str], named: dict[str, str]) -> None:
        self._node(plain).post(a.SegmentsRemoved(lsn_at(plain[1])))

    def _do_promise(self, plain: list[str], named: dict[str, str]) -> None:
        member = self.configuration.members[int(plain[0]) - 1]
        ask = VoteRequest(1, parse_ballot(plain[1]), LOG_UUID, member)
        self._node(plain).post(a.Received(BY_HAND, ask))

    def _do_read(self, plain: list[str], named: dict[str, str]) -> None:
        node = self._node(plain)
        size = node.acceptor.commit_lsn - CREATION_LSN
        self.tell(letters_of(bytes(node.wal[:size])) or "nothing")

    # The network

    def _do_hold(self, plain: list[str], named: dict[str, str]) -> None:
        self._passing[plain[0], plain[1]] = 0

    def _do_deliver(self, plain: list[str], named: dict[str, str]) -> None:
        pair = (plain[0], plain[1])
        held = self._held.setdefault(pair, deque())
        count = int(plain[2]) if len(plain) > 2 else len(held)
        arriving = min(count, len(held))
        for _ in range(arriving):
            self.soon(held.popleft())
        if len(plain) == 2:
            self._passing.pop(pair, None)
        else:
            self._passing[pair] += count - arriving

    def _do_lose(self, plain: list[str], named: dict[str, str]) -> None:
        self._passing.pop((plain[0], plain[1]), None)
        self._held.pop((plain[0], plain[1]), None)

    def _do_reconnect(self, plain: list[str], named: dict[str, str]) -> None:
        proposer, number = self.proposers[plain[0]], int(plain[1])
        self._passing.pop((plain[0], plain[1]), None)
        self._passing.pop((plain[1], plain[0]), None)
        proposer.links.pop(number, None)
        proposer.post(p.LinkLost(number - 1))
        self._link(proposer, number)

    # Looking

    def _show(self) -> str:
        lines = []
        for node in self._all_played():
            acceptor = node.acceptor
            if acceptor.durable.configuration is None:
                lines.append(f"sk{node.number} not configured")
                continue
            history = cut(acceptor.durable.history, acceptor.flush_lsn)
            terms = ",".join(
                f"{shown(e.ballot)}@{end_of(e.start_lsn)}{'.' if e.closed else ''}"
                for e in history[1:]
            )
            folded = f"..{end_of(history[0].folded_lsn)}," if history[0].folded_lsn else ""
            promised, commit = shown(acceptor.durable.ballot), end_of(acceptor.commit_lsn)
            facts = f"promised={promised} history={folded}{terms} commit={commit}"
            lines.append(f"sk{node.number} {letters_of(bytes(node.wal)):<6} {facts}")
        return "\n".join(lines)

    def _elections(self) -> str:
        """List the sets of safekeepers that a proposer might reach, by the election's outcome."""
        outcomes: dict[str, list[str]] = {}
        numbers = [node.number for node in self.safekeepers]
        for size in range(1, len(numbers) + 1):
            for reach in combinations(numbers, size):
                outcomes.setdefault(self.election_of(reach), []).append("".join(map(str, reach)))
        lines = [f"{outcome}: {' '.join(reached)}" for outcome, reached in outcomes.items()]
        return "\n".join(
            part for line in lines for part in textwrap.wrap(line, 98, subsequent_indent="    ")
        )

    def election_of(self, reach: Iterable[int]) -> str:
        """Return the outcome of an election that reaches these, on a copy of the stage."""
        return self._without_proposers()._elect(",".join(map(str, reach)))

    def _without_proposers(self) -> ClusterStage:
        """Copy the safekeepers with their past to a stage of their own."""
        other = ClusterStage()
        other.configuration, other.oracle = self.configuration, self.oracle
        for node in self._all_played():
            twin = Safekeeper(other, node.number)
            twin.put(node.durable_wal())
            twin.durable, twin.acceptor = node.durable, copy.deepcopy(node.acceptor)
            other.safekeepers.append(twin)
        return other

    def _elect(self, reach: str) -> str:
        proposer = self._begin("z", Purpose.SETTLE, {"reach": reach})
        self._finish()
        verdicts = [line for line in self._told if any(verdict in line for verdict in VERDICTS)]
        leader = proposer.core.leader
        if leader is None:
            return " ".join(["nobody leads", *verdicts])
        size = leader.start_lsn - CREATION_LSN
        log = letters_of(self._played(proposer.donor).wal[:size]) or "nothing"
        commits = "commits" if leader.commit_lsn >= leader.start_lsn else "cannot commit"
        return " ".join([f"{log}, {commits}", *verdicts])


def _role(name: str) -> str:
    return f"sk{name}" if name.isdigit() else name
