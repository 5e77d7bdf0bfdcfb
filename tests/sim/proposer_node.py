"""A proposer process on a simulated machine: the shipping core and driver, born and killed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.sim.oracle import Acknowledged, Leaders, Violation
from tests.sim.primary import Primary
from tests.sim.safekeeper_node import SafekeeperNode
from tests.sim.world import Connection, World
from walkeeper_common.framing import Message
from walkeeper_common.history import Ballot
from walkeeper_common.lsn import Lsn
from walkeeper_common.messages import Feedback
from walkeeper_proposer.campaign import Campaign, Purpose
from walkeeper_proposer.consensus import Proposer
from walkeeper_proposer.driver import Driver
from walkeeper_proposer.proposer_events import (
    Event,
    LinkLost,
    LinkUp,
    PrimaryIdentified,
    PrimaryLost,
    PrimaryRead,
    PrimaryReadFailed,
    Received,
    Stop,
    Tick,
    WalArrived,
)

PROBE_BYTES = 3000
RECONNECT_MS = (100, 1000)


class ProposerNode:
    """One life of a proposer process: the driver's Links, PrimaryPort and Surroundings."""

    def __init__(
        self,
        world: World,
        name: str,
        safekeepers: Sequence[SafekeeperNode],
        primary: Primary,
        checks: tuple[Acknowledged, Leaders],
        *,
        purpose: Purpose,
        take_over: bool,
        on_stop: Callable[[Stop], None],
        on_ambush: Callable[[ProposerNode], None],
    ) -> None:
        self.world, self.name, self.safekeepers, self.primary = world, name, safekeepers, primary
        self.acked, self.leaders = checks
        self.is_alive = True
        self.stop: Stop | None = None
        self._on_stop, self._on_ambush = on_stop, lambda: on_ambush(self)
        self._connections: dict[int, Connection] = {}
        self._has_primary = self._is_paused = self._has_led = False
        self._arrived: list[tuple[Lsn, bytes]] = []
        self._stream_serial = 0
        campaign = Campaign(
            cluster="main",
            proposer_id=world.random.randbytes(16),
            links=len(safekeepers),
            purpose=purpose,
            application_name=name,
            take_over=take_over,
            window_bytes_max=world.random.choice((1 << 15, 1 << 18, 48 << 20)),
        )
        self.core = Proposer(campaign)
        self.driver = Driver(self.core, links=self, primary=self, around=self)
        world.say(name, f"START {purpose.value} at {primary.name} take_over={take_over}")
        for link in range(len(safekeepers)):
            self._later(world.delay_ms(), lambda link=link: self._connect(link))
        if purpose is Purpose.ATTACH:
            self._later(world.delay_ms(), self._connect_primary)
        self._tick()

    def _later(self, delay_ms: float, what: Callable[[], None]) -> None:
        self.world.later(delay_ms, lambda: what() if self.is_alive else None)

    def post(self, event: Event) -> None:
        if not self.is_alive:
            return
        self.driver.post(event)
        if self.core.leader is not None and not self._has_led:
            self._has_led = True
            self._check_election()

    def _check_election(self) -> None:
        """The log that the new leader goes on from has every acknowledged byte."""
        leader = self.core.leader
        assert leader is not None
        self.leaders.elected(leader.ballot, self.name)
        for node in self.safekeepers:
            if node.driver is None:
                continue
            acceptor = node.driver.acceptor
            vote = self.core.donor_vote
            assert vote is not None
            same = acceptor.durable.ballot == leader.ballot and not acceptor.elected
            if same and acceptor.flush_lsn == vote.flush_lsn:
                begin_lsn = node.driver.store.first_lsn
                wal = node.driver.store.read(begin_lsn, leader.start_lsn)
                needed_lsn = self.acked.end_below(leader.ballot)
                who = f"{self.name} elected with {node.name}"
                self.acked.hold_against(who, wal, begin_lsn, needed_lsn)

    @property
    def ballot(self) -> Ballot:
        return self.core.ballot

    def _tick(self) -> None:
        self.post(Tick())
        self._later(self.world.random.uniform(800, 1200), self._tick)

    def kill(self) -> None:
        """SIGKILL."""
        if not self.is_alive:
            return
        self.world.say(self.name, "KILL")
        self._end()

    def _end(self) -> None:
        self.is_alive = False
        self.primary.leave(self)
        for connection in self._connections.values():
            connection.close()

    # Links

    def _connect(self, link: int) -> None:
        node = self.safekeepers[link]
        connection = Connection(self.world, self.name, node.name)
        is_cut = {(self.name, node.name), (node.name, self.name)} & self.world.blocked
        if is_cut or not node.accept(connection):
            self._later(self.world.random.uniform(*RECONNECT_MS), lambda: self._connect(link))
            return

        def received(message: Message) -> None:
            if self._connections.get(link) is connection:
                self.post(Received(link, message))

        def closed() -> None:
            if self._connections.get(link) is connection:
                del self._connections[link]
                self.post(LinkLost(link))
                self._later(self.world.random.uniform(*RECONNECT_MS), lambda: self._connect(link))

        connection.client.on_message, connection.client.on_closed = received, closed
        self._connections[link] = connection
        self.post(LinkUp(link))

    def send(self, link: int, message: Message) -> None:
        if link in self._connections:
            self._connections[link].client.send(message)

    def drop(self, link: int, text: str) -> None:
        self.world.say(self.name, f"drop sk{link + 1}: {text}")
        if link in self._connections:
            self._connections[link].close()

    def break_one(self) -> None:
        """One connection breaks."""
        if self._connections:
            link = self.world.random.choice(sorted(self._connections))
            self._connections[link].close()

    # The primary

    def _connect_primary(self) -> None:
        if not self.primary.is_up:
            self._later(500, self._connect_primary)
            return
        self._has_primary = True
        self.post(PrimaryIdentified(self.primary.identity()))

    def identify(self) -> None:
        def answer() -> None:
            if self._has_primary:
                self.post(PrimaryIdentified(self.primary.identity()))

        self._later(self.world.delay_ms(), answer)

    def read(self, begin_lsn: Lsn, end_lsn: Lsn) -> None:
        def answer() -> None:
            if not self.primary.is_up or end_lsn > self.primary.flush_lsn:
                self.post(PrimaryReadFailed("the primary is down", False))
            else:
                self.post(PrimaryRead(begin_lsn, self.primary.maker.read(begin_lsn, end_lsn)))

        self._later(self.world.delay_ms(), answer)

    def stream(self, start_lsn: Lsn, timeline: int) -> None:
        assert timeline == 1
        self._is_paused = False
        self._arrived.clear()
        self._stream_serial += 1
        serial = self._stream_serial

        def start() -> None:
            if self._has_primary and self.primary.is_up and serial == self._stream_serial:
                self.primary.stream(self, start_lsn)

        self._later(self.world.delay_ms(), start)

    def wal_arrived(self, begin_lsn: Lsn, wal: bytes) -> None:
        """From the walsender; the core sees it a little later, in order."""
        self._arrived.append((begin_lsn, wal))
        self._later(self.world.delay_ms(), self._take_arrived)

    def _take_arrived(self) -> None:
        while self._arrived and not self._is_paused and self._has_primary:
            begin_lsn, wal = self._arrived.pop(0)
            self.post(WalArrived(begin_lsn, memoryview(wal)))

    def primary_lost(self, text: str) -> None:
        """The connection breaks; another one is tried."""
        self._arrived.clear()
        self._stream_serial += 1
        if self._has_primary:
            self._has_primary = False
            self._later(self.world.delay_ms(), lambda: self.post(PrimaryLost(text)))
            self._later(600 + self.world.delay_ms(), self._connect_primary)

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        self._later(0, self._take_arrived)

    def report(self, commit_lsn: Lsn, feedback: Sequence[Feedback]) -> None:
        self._check_quorum_has(commit_lsn)
        self.primary.report(self, commit_lsn)

    def _check_quorum_has(self, commit_lsn: Lsn) -> None:
        """PostgreSQL is never told more than an ack quorum has, whatever power cut comes now."""
        configuration, maker = self.core.configuration, self.primary.maker
        _, end_lsn = maker.end_before(commit_lsn)
        begin_lsn = max(maker.start_lsn, end_lsn - PROBE_BYTES)
        wanted = maker.read(begin_lsn, end_lsn)
        holding = [n.name for n in self.safekeepers if n.holds(begin_lsn, wanted)]
        assert configuration is not None
        if len(holding) < configuration.ack_quorum:
            raise Violation(f"{self.name} reports {commit_lsn}, only {holding} have it on disk")

    # The driver's Surroundings

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        self._later(delay_s * 1000, what)

    def uniform(self, low: float, high: float) -> float:
        return self.world.random.uniform(low, high)

    def note(self, text: str, facts: Sequence[tuple[str, object]]) -> None:
        shown = " ".join(f"{name}={value}" for name, value in facts)
        self.world.say(self.name, f"{text} {shown}")
        if text == "elected" and self.world.chance(self.world.options.ambushes):
            self._later(self.world.random.uniform(0, 300), self._on_ambush)

    def stopped(self, stop: Stop) -> None:
        self.world.say(self.name, f"STOP {stop.outcome.value}: {stop.text}")
        self.stop = stop
        self._end()
        self._on_stop(stop)
