"""The line of new connections, so that a flood of them costs little. Pure: no clock, no sockets.

    arrive       lets a connection enter, wait, or end
    next         returns the connection whose turn it is, or None
    next_s       returns the seconds until the next turn
    give_back    returns the token of a visit that has proved itself

A connection costs processor time before its peer has proved anything. So each visit takes a token
from the bucket of its network, and from that of all networks. The tokens come back when the peer
sends a message or logs in, so honest peers wait for nothing. Without a token a connection waits in
the line, unread. The network with the most tokens comes first, so a peer from elsewhere overtakes a
flood. Within a network the oldest connection comes first.

A network has at most `network_max` connections in the line, and further ones end. All networks have
at most `line_max`, and the oldest one then ends for a newcomer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from ipaddress import IPv6Address

NETWORKS_MAX = 4096  # the networks whose bucket is known; the others have a full one
IPV6_HOST_BITS = 64  # one host may have all addresses of such a network


class Admission(Enum):
    """The fate of a connection that arrives."""

    ENTERS = auto()
    WAITS = auto()
    ENDS = auto()


@dataclass(frozen=True, slots=True)
class Arrival:
    """The answer to a newcomer, and the connection that ends for it."""

    admission: Admission
    evicted: int | None = None


ENTERS, ENDS = Arrival(Admission.ENTERS), Arrival(Admission.ENDS)


@dataclass(frozen=True, slots=True)
class Allowance:
    """A bucket has `burst` tokens at most and at first, and gets `per_s` in each second."""

    burst: int
    per_s: float


@dataclass(frozen=True, slots=True)
class LineLimits:
    """The figures of a line: a turn comes within network_max / network.per_s seconds, here three.

    Proposers and commands wait five seconds for an answer. A longer line would let no more in.
    """

    network: Allowance = Allowance(burst=400, per_s=50.0)
    everyone: Allowance = Allowance(burst=800, per_s=75.0)
    network_max: int = 150
    line_max: int = 1000


class _Bucket:
    """The tokens of one network, or of all."""

    def __init__(self, allowance: Allowance, now_s: float) -> None:
        self._allowance = allowance
        self._tokens, self._counted_s = float(allowance.burst), now_s

    def tokens(self, now_s: float) -> float:
        self._add(self._allowance.per_s * (now_s - self._counted_s))
        self._counted_s = now_s
        return self._tokens

    def take(self) -> None:
        self._tokens -= 1

    def put_back(self) -> None:
        self._add(1)

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until there is a token."""
        return max(0.0, (1 - self.tokens(now_s)) / self._allowance.per_s)

    def _add(self, tokens: float) -> None:
        self._tokens = min(float(self._allowance.burst), self._tokens + tokens)


class WaitingLine:
    """Connections are numbers that are never used again; times are seconds of one clock."""

    def __init__(self, limits: LineLimits, now_s: float) -> None:
        self._limits = limits
        self._everyone = _Bucket(limits.everyone, now_s)
        self._buckets: dict[str, _Bucket] = {}  # the network of the newest visit comes last
        self._networks: dict[int, str] = {}  # the connections that wait, the oldest first
        self._waiting: dict[str, dict[int, None]] = {}  # the same by network

    def __len__(self) -> int:
        return len(self._networks)

    def arrive(self, number: int, network: str, now_s: float) -> Arrival:
        """Return the fate of a newcomer."""
        waiting = self._waiting.get(network, {})
        if not waiting and self._has_token(network, now_s):
            self._take(network)
            return ENTERS
        if len(waiting) >= self._limits.network_max:
            return ENDS
        evicted = None
        if len(self) >= self._limits.line_max:
            evicted = next(iter(self._networks))
            self.leave(evicted)
        self._networks[number] = network
        self._waiting.setdefault(network, {})[number] = None
        return Arrival(Admission.WAITS, evicted)

    def next(self, now_s: float) -> int | None:
        """Take the connection whose turn it is out of the line."""
        if not self._waiting:
            return None
        first = max(self._waiting, key=lambda network: self._bucket(network, now_s).tokens(now_s))
        if not self._has_token(first, now_s):
            return None
        number = next(iter(self._waiting[first]))
        self.leave(number)
        self._take(first)
        return number

    def next_s(self, now_s: float) -> float | None:
        """Return the seconds until the next turn, or None if no connection waits."""
        if not self._waiting:
            return None
        soonest_s = min(self._bucket(network, now_s).wait_s(now_s) for network in self._waiting)
        return max(soonest_s, self._everyone.wait_s(now_s))

    def give_back(self, network: str, now_s: float) -> None:
        """Return the tokens of a visit, since it has proved itself or cost nothing."""
        self._bucket(network, now_s).put_back()
        self._everyone.put_back()

    def leave(self, number: int) -> None:
        """Forget a connection that no longer waits."""
        network = self._networks.pop(number, None)
        if network is None:
            return
        waiting = self._waiting[network]
        del waiting[number]
        if not waiting:
            del self._waiting[network]

    def _has_token(self, network: str, now_s: float) -> bool:
        tokens = self._bucket(network, now_s).tokens(now_s)
        return min(tokens, self._everyone.tokens(now_s)) >= 1

    def _take(self, network: str) -> None:
        bucket = self._buckets[network] = self._buckets.pop(network)
        bucket.take()
        self._everyone.take()

    def _bucket(self, network: str, now_s: float) -> _Bucket:
        bucket = self._buckets.get(network)
        if bucket is None:
            if len(self._buckets) >= NETWORKS_MAX:
                del self._buckets[next(iter(self._buckets))]
            bucket = self._buckets[network] = _Bucket(self._limits.network, now_s)
        return bucket


def network_of(host: str) -> str:
    """Return the network that a host's visits count for: itself, or the /64 of IPv6."""
    if ":" not in host:
        return host
    address = IPv6Address(host)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    first = int(address) >> IPV6_HOST_BITS << IPV6_HOST_BITS
    return f"{IPv6Address(first)}/{IPV6_HOST_BITS}"
