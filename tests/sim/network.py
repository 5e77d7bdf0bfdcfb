"""The simulated network: connections between a proposer's links and the safekeepers.

The shipping codec encodes and decodes every message. A connection is TCP as far as a program can
rely on it: it keeps the order and loses nothing while it is open. Some seeds have datagrams
instead, which are lost, repeated and reordered. A cut direction holds back a frame of a stream, and
all frames after it, until it is mended. By then the other side may have connected anew.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from typing import TypeAlias

from tests.sim.inbox import Inbox
from tests.sim.world import World
from walkeeper_common.wire.framing import FrameReader, Message, encode
from walkeeper_common.wire.messages import ProposerElected, VoteRequest

LATE_MS = 3000
REPEATED_LATE_MS = 4000

Way: TypeAlias = tuple[str, str]  # from, to


class Network:
    """The directions that are cut, how often each, and the ends that wait for them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._cut: Counter[Way] = Counter()
        self._waiting: dict[Way, list[End]] = defaultdict(list)

    def is_cut(self, source: str, target: str) -> bool:
        return self._cut[source, target] > 0

    def cut(self, ways: Iterable[Way]) -> None:
        self._cut.update(ways)

    def mend(self, ways: Iterable[Way]) -> None:
        """Mend these directions; the frames that were held back arrive a moment later."""
        for way in ways:
            self._cut[way] -= 1
            if self._cut[way] <= 0:
                del self._cut[way]
                self._release(way)

    def mend_all(self) -> None:
        ways = list(self._cut)
        self._cut.clear()
        for way in ways:
            self._release(way)

    def _release(self, way: Way) -> None:
        for end in self._waiting.pop(way, []):
            self.world.later(self.world.delay_ms(), end.deliver_next)

    def wait(self, way: Way, end: End) -> None:
        self._waiting[way].append(end)


class End:
    """One side of a connection."""

    def __init__(self, connection: Connection, name: str, peer: str) -> None:
        self.connection, self.name, self.peer = connection, name, peer
        self.on_frames: Callable[[bytearray, int], int] = lambda _memory, _size: 0
        self.on_message: Callable[[Message], None] = lambda _: None
        self.on_closed: Callable[[], None] = lambda: None
        self.is_closed = False  # as this side knows
        self.held_until_ms = 0.0
        self._reader = FrameReader()
        self._last_ms = 0.0
        self._sent: deque[bytes] = deque()
        is_busy = connection.world.options.is_busy
        self.inbox = Inbox(connection.world, self) if is_busy else None

    def close(self) -> None:
        """Let this side notice that the connection is closed."""
        if not self.is_closed:
            self.is_closed = True
            self.on_closed()

    def send(self, message: Message) -> None:
        """Encode a message and send it; the other side decodes it."""
        connection = self.connection
        if not connection.is_open:
            return
        world, frame = connection.world, b"".join(bytes(b) for b in encode(message))
        at_ms = world.now_ms + world.delay_ms()
        is_electing = isinstance(message, ProposerElected | VoteRequest)
        if is_electing and world.chance(world.options.late_elections):
            world.trouble("late votes and elections")
            at_ms += world.random.uniform(0, LATE_MS)
        if world.options.is_datagram and world.is_rough:
            self._send_datagram(frame, at_ms, is_electing=is_electing)
        else:
            at_ms = self._last_ms = max(at_ms, self._last_ms)
            self._sent.append(frame)
            world.later(at_ms - world.now_ms, self.deliver_next)

    def _send_datagram(self, frame: bytes, at_ms: float, *, is_electing: bool) -> None:
        world, options = self.connection.world, self.connection.world.options
        if world.chance(options.loss):
            world.trouble("frames lost")
            return
        world.later(at_ms - world.now_ms, lambda: self._deliver(frame))
        if world.chance(8 * options.repeat if is_electing else options.repeat):
            world.trouble("frames repeated")
            is_late = world.chance(0.7 if is_electing else 0.2)
            most_ms = REPEATED_LATE_MS if is_late else options.delay_ms
            world.later(world.random.uniform(0, most_ms), lambda: self._deliver(frame))

    def deliver_next(self) -> None:
        """Deliver the next frame in order; a partition holds it back, and all frames after it."""
        world, network = self.connection.world, self.connection.network
        if network.is_cut(self.name, self.peer):
            network.wait((self.name, self.peer), self)
        elif world.now_ms < self.held_until_ms:
            world.later(self.held_until_ms - world.now_ms, self.deliver_next)
        else:
            self._deliver(self._sent.popleft())

    def _deliver(self, frame: bytes) -> None:
        connection, other = self.connection, self.connection.other(self)
        if other.is_closed or connection.network.is_cut(self.name, self.peer):
            return
        if other.inbox is not None:
            other.inbox.arrive(frame)
            return
        if other.on_frames(bytearray(frame), len(frame)):
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

    Both sides notice `close` late, sometimes very late. Until then the frames under way arrive,
    perhaps after the proposer has connected anew. The safekeeper then has two connections of it.
    """

    def __init__(self, network: Network, client: str, server: str) -> None:
        self.network, self.world, self.is_open = network, network.world, True
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
                self.world.trouble("late closes")
                delay_ms += self.world.random.uniform(0, 5000)
            self.world.later(delay_ms, end.close)

    def half_close(self) -> None:
        """Close at the client at once, so that it connects again.

        Its last frames are still under way to a server that takes the old connection for open.
        """
        if not self.is_open:
            return
        self.is_open = False
        self.world.trouble("half-open connections")
        held_ms = self.world.random.uniform(0, 4000)
        self.client.held_until_ms = self.world.now_ms + held_ms
        self.world.later(0, self.client.close)
        self.world.later(held_ms + 2 * self.world.delay_ms(), self.server.close)
