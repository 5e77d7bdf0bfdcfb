"""A proposer process on a simulated machine: the shipping core and driver, born and killed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from tests.proof.sim.clock import Clock
from tests.proof.sim.network import LATE_MS, Connection, Network, Way
from tests.proof.sim.oracle import Oracles
from tests.proof.sim.primary import RETENTION_SLOT, Primary
from tests.proof.sim.primary_stream import PrimaryStream
from tests.proof.sim.proposer_claims import ProposerClaims
from tests.proof.sim.safekeeper_node import SafekeeperNode
from tests.support.frames import Answers, message_in
from walkeeper_common.history import Ballot
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.nonce_message import lacks_nonce
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.messages import Feedback
from walkeeper_fastpath.ports import FastStream, TakeFrames
from walkeeper_fastpath.switch import stream_path
from walkeeper_proposer.bunches import Bunches
from walkeeper_proposer.consensus.admission import Waivers
from walkeeper_proposer.consensus.campaign import Campaign, Purpose
from walkeeper_proposer.consensus.primary_check import PrimaryCheck
from walkeeper_proposer.consensus.progress import Member
from walkeeper_proposer.consensus.proposer import Proposer
from walkeeper_proposer.consensus.proposer_events import (
    Event,
    LinkLost,
    LinkUp,
    NonceWritten,
    PrimaryIdentified,
    PrimaryIdentity,
    PrimaryLost,
    PrimaryRead,
    PrimaryReadFailed,
    Received,
    Stop,
    Tick,
    WalArrived,
)
from walkeeper_proposer.postgres.standby_feedback import applied_lsn
from walkeeper_proposer.proposer_driver import Driver

RECONNECT_MS = (100, 1000)
TICK_MS = (800, 1200)
LINGER_TICKS = 2
WINDOW_BYTES = (1 << 15, 1 << 18, 48 << 20)


class Supervisor(Protocol):
    """The observer of a proposer's fate."""

    def stopped(self, proposer: ProposerNode, stop: Stop) -> None: ...
    def ambushed(self, proposer: ProposerNode) -> None: ...


class ProposerNode(ProposerClaims):
    """One life of a proposer process: the driver's Links, PrimaryPort and Surroundings."""

    def __init__(
        self,
        network: Network,
        name: str,
        safekeepers: Sequence[SafekeeperNode],
        primary: Primary,
        oracles: Oracles,
        supervisor: Supervisor,
        *,
        purpose: Purpose,
        take_over: bool,
        resumes: bool,
    ) -> None:
        super().__init__()
        self.network, self.world, self.name = network, network.world, name
        self.safekeepers, self.primary = safekeepers, primary
        self.oracles, self.supervisor = oracles, supervisor
        self.purpose, self.resumes = purpose, resumes
        self.is_alive = True
        self.answers_late_ms = 0.0  # how long the primary's answers travel
        self.stop: Stop | None = None
        self._connections: dict[int, Connection] = {}
        self._first: dict[int, TakeFrames | None] = {}  # by link: its bytes go there first
        self._has_primary = self._is_paused = False
        self._arrived: list[tuple[Lsn, bytes]] = []
        self._stream_serial = self._primary_serial = 0
        self._held_over: Callable[[], None] | None = None  # while paused
        self._clock = Clock(self.world, self.name)
        campaign = Campaign(
            cluster="main",
            proposer_id=self.world.random.randbytes(16),
            links=len(safekeepers),
            purpose=purpose,
            application_name=name,
            waivers=Waivers(resume=resumes),
            take_over=take_over,
            terms_max=self.world.options.terms_max,
            window_bytes_max=self.world.random.choice(WINDOW_BYTES),
            linger_ticks=LINGER_TICKS if purpose in (Purpose.SEAL, Purpose.CLOSE) else 0,
            writes_nonces=self.world.options.is_bulk,
            **self.campaign_options(),
        )
        self.core = Proposer(campaign)
        fast = stream_path() if self.world.options.has_fast_stream else None
        self._copied = PrimaryStream(self) if fast is not None else None
        bunches = Bunches(self.world.options.patience)
        self.driver = Driver(
            self.core, links=self, primary=self, around=self, fast=fast, bunches=bunches
        )
        flags = f"take_over={take_over} resume={resumes}"
        self.world.say(name, f"START {purpose.value} at {primary.name} {flags}")
        for link in range(len(safekeepers)):
            self._later(self.world.delay_ms(), partial(self._connect, link))
        if purpose is Purpose.ATTACH:
            self._later(self.world.delay_ms(), self._connect_primary)
        self._tick()

    def is_gone(self) -> bool:
        return not self.is_alive

    def campaign_options(self) -> dict[str, Any]:
        """Return the options for this kind of log; another kind has others (logical.py)."""
        return {"examine": self._examine}

    def _examine(self, *facts: Any) -> PrimaryCheck:
        self._check = PrimaryCheck(*facts)
        return self._check

    def _later(self, delay_ms: float, what: Callable[[], None]) -> None:
        self.world.later(delay_ms, lambda: what() if self.is_alive else None)

    def post(self, event: Event) -> None:
        if not self.is_alive:
            return
        self.driver.post(event)

    @property
    def ballot(self) -> Ballot:
        return self.core.ballot

    def _tick(self) -> None:
        if not self._clock.stands:
            self.post(Tick())
        self._later(self.world.random.uniform(*TICK_MS), self._tick)

    def jump_clock(self) -> None:
        self._clock.jump(lambda: self.post(Tick()))

    def kill(self) -> None:
        """Kill the process, as SIGKILL does."""
        if self.is_alive:
            self.world.trouble("proposers killed", self.name, "KILL")
            self._end()

    def _end(self) -> None:
        self.is_alive = False
        self.primary.leave(self)
        for connection in self._connections.values():
            connection.close()

    # Links

    def ways(self, nodes: Sequence[SafekeeperNode]) -> list[Way]:
        """Return both directions between this proposer and these safekeepers."""
        there = [(self.name, node.name) for node in nodes]
        return there + [(node.name, self.name) for node in nodes]

    def add_link(self) -> None:
        """Add a link to a newcomer: the shell knows its address, but no process answered so far."""
        link = len(self.core.members)
        self.core.members.append(Member(link))
        self._later(self.world.delay_ms(), lambda: self._connect(link))

    def _connect(self, link: int) -> None:
        node = self.safekeepers[link]
        connection = Connection(self.network, self.name, node.name)
        is_cut = any(self.network.is_cut(*way) for way in self.ways([node]))
        if is_cut or not node.accept(connection):
            self._later(self.world.random.uniform(*RECONNECT_MS), lambda: self._connect(link))
            return

        def received(message: Message) -> None:
            if self._connections.get(link) is connection and self.is_alive:
                self.post(Received(link, message))

        def take(memory: bytearray, size: int) -> int:
            if self._connections.get(link) is not connection or not self.is_alive:
                return 0
            first = self._first.get(link)
            if first is not None and first(memory, size):
                return size
            return self.driver.acknowledge_at_once(link, memory, size)

        def closed() -> None:
            if self._connections.get(link) is connection:
                del self._connections[link]
                self.post(LinkLost(link))
                self._later(self.world.random.uniform(*RECONNECT_MS), lambda: self._connect(link))

        connection.client.on_message, connection.client.on_closed = received, closed
        connection.client.on_frames = take
        self._connections[link], self._first[link] = connection, None
        self.post(LinkUp(link))

    def send(self, link: int, message: Message) -> None:
        if link in self._connections:
            self._connections[link].client.send(message)

    def answer(self, link: int) -> Answers | None:
        if link not in self._connections:
            return None
        answers = Answers(lambda frame, size: self.send(link, message_in(frame, size)))
        first = partial(self._first.__setitem__, link)
        answers.receive_first = first  # type: ignore[method-assign]
        return answers

    def drop(self, link: int, text: str) -> None:
        self.world.say(self.name, f"drop sk{link + 1}: {text}")
        if link in self._connections:
            self._connections[link].close()

    def break_one(self) -> None:
        """Break one connection."""
        if self._connections:
            link = self.world.random.choice(sorted(self._connections))
            self.world.trouble("broken connections")
            if self.world.chance(self.world.options.half_open):
                self._connections[link].half_close()
            else:
                self._connections[link].close()

    # The primary

    def _connect_primary(self) -> None:
        if not self.primary.is_up:
            self._later(500, self._connect_primary)
            return
        self._has_primary = True
        self._primary_serial += 1
        self.post(PrimaryIdentified(self.primary.identity()))

    def identify(self) -> None:
        """Answer with the end of WAL when the question arrives, and let more WAL overtake that.

        An answer to an older question does not count, as in the shell.
        """
        self._primary_serial += 1
        serial, late_ms = self._primary_serial, self.answers_late_ms
        if self.world.chance(self.world.options.late_elections):
            self.world.trouble("late answers of the primary")
            late_ms += self.world.random.uniform(0, LATE_MS)

        def arrive(identity: PrimaryIdentity) -> None:
            if self._has_primary and serial == self._primary_serial:
                self.post(PrimaryIdentified(identity))

        def answer() -> None:
            travel_ms = self.world.delay_ms() + late_ms
            self._later(travel_ms, partial(arrive, self.primary.identity()))

        self._later(self.world.delay_ms(), answer)

    def read(self, begin_lsn: Lsn, end_lsn: Lsn, timeline: int) -> None:
        def answer() -> None:
            if not self.primary.is_up or end_lsn > self.primary.flush_lsn:
                self.post(PrimaryReadFailed("the primary is down", False))
            elif end_lsn > self.primary.ends(timeline):
                self.post(PrimaryReadFailed("not in this server's history", False))
            elif begin_lsn < max(self.primary.kept_lsn, self.primary.begins(timeline)):
                self.world.trouble("WAL recycled by the primary")
                text = "requested WAL segment has already been removed"
                self.post(PrimaryReadFailed(text, True))
            else:
                self.post(PrimaryRead(begin_lsn, self.primary.maker.read(begin_lsn, end_lsn)))

        self._later(self.world.delay_ms(), answer)

    def stream(self, start_lsn: Lsn, timeline: int) -> None:
        self._is_paused = False
        self._held_over = None
        self._arrived.clear()
        self._stream_serial += 1
        serial = self._stream_serial
        self._judge_leader(start_lsn)
        if self._copied is not None:
            self._copied.begin(start_lsn)

        def start() -> None:
            if self._reaches_primary(serial):
                self.primary.stream(self, start_lsn, timeline)
                if self.core.campaign.writes_nonces:
                    self.primary.keep_from_now(RETENTION_SLOT)
                    self._look_for_nonce(serial, None)

        self._later(self.world.delay_ms(), start)

    def _look_for_nonce(self, serial: int, last_lsn: Lsn | None) -> None:
        """Write a nonce if the WAL lacks one, as primary_retention.py does over SQL.

        Look again once a second.
        """
        if not self._reaches_primary(serial):
            return
        maker = self.primary.maker
        if lacks_nonce(maker.end_lsn, last_lsn, segment_bytes=maker.segment_bytes):
            end_lsn = last_lsn = self.primary.write_nonce()
            self._later(self.world.delay_ms(), lambda: self.post(NonceWritten(end_lsn)))
        self._later(1000, lambda: self._look_for_nonce(serial, last_lsn))

    def retain(self, begin_lsn: Lsn) -> None:
        def move() -> None:
            if self._has_primary and self.primary.is_up:
                self.primary.advance(RETENTION_SLOT, begin_lsn)

        self._later(self.world.delay_ms(), move)

    def _reaches_primary(self, serial: int) -> bool:
        """Return True if START_REPLICATION reaches the server, which may have crashed since."""
        if not self._has_primary or serial != self._stream_serial:
            return False
        if not self.primary.is_up:
            self.primary_lost("the server is gone")
        return self._has_primary

    def wal_arrived(self, begin_lsn: Lsn, wal: bytes) -> None:
        """Take WAL of the walsender; the core sees it a little later, in order."""
        self._arrived.append((begin_lsn, wal))
        self._later(self.world.delay_ms(), self._take_arrived)

    def _take_arrived(self) -> None:
        if self._copied is not None:
            self._receive_arrived(self._copied)
            return
        while self._arrived and not self._is_paused and self._has_primary:
            begin_lsn, wal = self._arrived.pop(0)
            self.oracles.authorship.wrote(self.ballot, begin_lsn, wal)
            self.post(WalArrived(begin_lsn, memoryview(wal)))

    def _receive_arrived(self, copied: PrimaryStream) -> None:
        """Take all that has arrived as one read of the socket."""
        arrived, is_read = self._arrived, not self._is_paused and self._has_primary
        if is_read and arrived:
            self._arrived = []
            for begin_lsn, wal in arrived:
                self.oracles.authorship.wrote(self.ballot, begin_lsn, wal)
            copied.arrive(arrived)

    def timeline_over(self, end_lsn: Lsn) -> None:
        """End the stream: the walsender has sent all of a timeline."""
        serial = self._stream_serial

        def over() -> None:
            if serial == self._stream_serial and self._has_primary:
                if self._arrived and self._is_paused:
                    self._held_over = over
                elif self._arrived:
                    self._later(self.world.delay_ms(), over)
                else:
                    self.primary_lost(f"the timeline ended at {end_lsn}")

        self._later(self.world.delay_ms(), over)

    def primary_lost(self, text: str) -> None:
        """Break the connection and try another one."""
        self._arrived.clear()
        self._stream_serial += 1
        if self._copied is not None:
            self._copied.close()
        if self._has_primary:
            self._has_primary = False
            self._later(self.world.delay_ms(), lambda: self.post(PrimaryLost(text)))
            self._later(600 + self.world.delay_ms(), self._connect_primary)

    def pause(self) -> None:
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        self._later(0, self._take_arrived)
        if self._held_over is not None:
            self._later(self.world.delay_ms(), self._held_over)
            self._held_over = None

    def stream_first(self, stream: FastStream) -> None:
        if self._copied is not None:
            self._copied.stream_first(stream)

    def report(self, commit_lsn: Lsn, feedback: Sequence[Feedback]) -> None:
        if self._copied is not None:
            self._copied.report(commit_lsn, feedback)
        self.reported(commit_lsn, feedback)

    def reported(self, commit_lsn: Lsn, feedback: Sequence[Feedback]) -> None:
        """Judge a report, and let the primary have it."""
        self._judge_report(commit_lsn)
        applied, said = applied_lsn(commit_lsn, feedback), [f.apply_lsn for f in feedback]
        self.oracles.durability.check_applied(
            self.name, commit_lsn, applied, [lsn for lsn in said if lsn]
        )
        self.reported_lsn = max(self.reported_lsn, commit_lsn)
        self.primary.report(self, commit_lsn)

    # The driver's Surroundings

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        self._later(delay_s * 1000, what)

    def uniform(self, low: float, high: float) -> float:
        return self.world.random.uniform(low, high)

    def note(self, text: str, facts: Sequence[tuple[str, object]], *_: object) -> None:
        shown = " ".join(f"{name}={value}" for name, value in facts)
        self.world.say(self.name, f"{text} {shown}")
        if text == "elected":
            self._on_elected()
            if self.world.chance(self.world.options.half_open):
                self._later(self.world.delay_ms(), self.break_one)
            if self.world.chance(self.world.options.ambushes):
                ambush_ms = self.world.random.uniform(0, 300)
                self._later(ambush_ms, lambda: self.supervisor.ambushed(self))

    def stopped(self, stop: Stop) -> None:
        self.world.say(self.name, f"STOP {stop.outcome.value}: {stop.text}")
        self.world.facts[f"proposers that ended: {stop.outcome.value}"] += 1
        self.stop = stop
        self._judge_stop(stop)
        self._end()
        self.supervisor.stopped(self, stop)
