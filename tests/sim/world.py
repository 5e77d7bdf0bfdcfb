"""Simulated time and network. One Random(seed) decides everything; equal times run in order."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from random import Random

from tests.sim.options import Options
from tests.sim.oracle import NoProgress
from walkeeper_common.errors import WalkeeperError
from walkeeper_common.framing import FrameReader, Message, encode

EVENTS_MAX = 1_000_000


class World:
    """The clock, the agenda and the trace."""

    def __init__(self, seed: int, *, show: Callable[[str], None] | None = None) -> None:
        self.seed, self.random = seed, Random(seed)
        self.options = Options.draw(self.random)
        self.now_ms = 0.0
        self.events = 0
        self.is_healed = False
        self.lines: list[str] = []
        self._show = show
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = itertools.count()
        self.blocked: set[tuple[str, str]] = set()

    def later(self, delay_ms: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (self.now_ms + delay_ms, next(self._serial), what))

    def say(self, who: str, text: str) -> None:
        line = f"{self.now_ms:10.1f} {who:<4} {text}"
        self.lines.append(line)
        if self._show is not None:
            self._show(line)

    def run_until(self, time_ms: float, *, stop: Callable[[], bool] = lambda: False) -> None:
        while self._agenda and self._agenda[0][0] <= time_ms and not stop():
            self.now_ms, _, what = heapq.heappop(self._agenda)
            self.events += 1
            if self.events > EVENTS_MAX:
                raise NoProgress(f"{EVENTS_MAX} events and no end: something spins")
            what()
        if not stop():
            self.now_ms = max(self.now_ms, time_ms)

    def chance(self, rate: float) -> bool:
        return not self.is_healed and self.random.random() < rate

    def delay_ms(self) -> float:
        most = 2 if self.is_healed else self.options.delay_ms
        return self.random.uniform(0.1, most)

    def every(self, a_minute: float, what: Callable[[], None]) -> None:
        """Until the world is healed, at random times, so often a simulated minute."""
        if not a_minute:
            return

        def again() -> None:
            if not self.is_healed:
                what()
                self.later(self.random.expovariate(a_minute / 60_000), again)

        self.later(self.random.expovariate(a_minute / 60_000), again)


class Worker:
    """The drivers' Worker: jobs one after the other, each done at a later time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._jobs: list[tuple[Callable[[], object], Callable[[object], None]]] = []
        self._is_running = False
        self.is_dead = False

    def submit(self, job: Callable[[], object], done: Callable[[object], None]) -> None:
        self._jobs.append((job, done))
        self._next()

    def _next(self) -> None:
        if self._is_running or not self._jobs or self.is_dead:
            return
        self._is_running = True
        most = 1 if self._world.is_healed else self._world.options.disk_ms
        self._world.later(self._world.random.uniform(0.05, most), self._run)

    def _run(self) -> None:
        if self.is_dead:
            return
        job, done = self._jobs.pop(0)
        result: object
        try:
            result = job()
        except WalkeeperError as error:
            result = error
        self._is_running = False
        done(result)
        self._next()

    def current_job(self) -> Callable[[], object] | None:
        """What a power cut would find half done."""
        return self._jobs[0][0] if self._is_running and self._jobs else None


class End:
    """One side of a connection."""

    def __init__(self, connection: Connection, name: str, peer: str) -> None:
        self.connection, self.name, self.peer = connection, name, peer
        self.on_message: Callable[[Message], None] = lambda _: None
        self.on_closed: Callable[[], None] = lambda: None
        self.is_closed = False  # as this side knows
        self._reader = FrameReader()
        self._last_ms = 0.0
        self._sent: deque[bytes] = deque()

    def close(self) -> None:
        """This side notices."""
        self.is_closed = True
        self.on_closed()

    def send(self, message: Message) -> None:
        """Encoded here, decoded there: the shipping codec carries every message."""
        world, frame = self.connection.world, b"".join(bytes(b) for b in encode(message))
        if not self.connection.is_open:
            return
        options, copies = world.options, 1
        if options.is_datagram and world.chance(options.loss):
            return
        if options.is_datagram and world.chance(options.repeat):
            copies = 2
        for _ in range(copies):
            at_ms = world.now_ms + world.delay_ms()
            if not options.is_datagram or world.is_healed:
                at_ms = self._last_ms = max(at_ms, self._last_ms)
            if options.is_datagram and not world.is_healed:
                world.later(at_ms - world.now_ms, lambda: self._deliver(frame))
            else:
                self._sent.append(frame)
                world.later(at_ms - world.now_ms, self._deliver_next)

    def _deliver_next(self) -> None:
        """One frame, in order; a partition holds it back, and all behind it."""
        if (self.name, self.peer) in self.connection.world.blocked:
            self.connection.world.later(20, self._deliver_next)
        else:
            self._deliver(self._sent.popleft())

    def _deliver(self, frame: bytes) -> None:
        connection, other = self.connection, self.connection.other(self)
        if other.is_closed or (self.name, self.peer) in connection.world.blocked:
            return
        at = 0
        while at < len(frame) and not other.is_closed:
            room = other._reader.buffer()
            size = min(len(room), len(frame) - at)
            room[:size] = frame[at : at + size]
            at += size
            for message in other._reader.received(size):
                other.on_message(message)


class Connection:
    """Between a proposer's link and a safekeeper.

    `close` is noticed on both sides, late, sometimes very late. Until then what was under way
    arrives, perhaps after the proposer has connected anew.
    """

    def __init__(self, world: World, client: str, server: str) -> None:
        self.world, self.is_open = world, True
        self.client = End(self, client, server)
        self.server = End(self, server, client)

    def other(self, end: End) -> End:
        return self.server if end is self.client else self.client

    def close(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        for end in (self.client, self.server):
            delay_ms = self.world.delay_ms()
            if self.world.chance(self.world.options.late_closes):
                delay_ms += self.world.random.uniform(0, 5000)
            self.world.later(delay_ms, end.close)
