"""What may go wrong in one run, drawn from its seed; some of it is zero (swarm testing)."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Options:
    """Rates are a share of messages, or events a simulated minute; times are milliseconds."""

    safekeepers: int
    ack_quorum: int
    proposers: int
    delay_ms: int
    disk_ms: int
    is_datagram: bool  # frames of a connection may be lost, repeated and reordered
    loss: float
    repeat: float
    breaks: float
    partitions: float
    safekeeper_crashes: float
    safekeeper_stops: float  # clean ones
    ambushes: float  # the share of elections and cuts that a crash follows closely
    failing_syncs: float
    late_closes: float  # connections that one side takes for open long after they are not
    retention_bytes: int | None  # how much WAL is kept behind the end; None: all of it
    proposer_crashes: float
    primary_crashes: float
    clones: float  # the primary is replaced by an older copy of itself
    settles: float
    full_disks: float
    take_over: float
    records: float  # a simulated second
    record_bytes_max: int
    safety_s: int

    @classmethod
    def draw(cls, random: Random) -> Options:
        """The seed's own mixture."""

        def rate(*choices: float) -> float:
            return random.choice((0.0, *choices))

        safekeepers, ack_quorum = random.choice(((3, 2), (3, 2), (5, 3), (5, 2), (5, 4)))
        return cls(
            safekeepers=safekeepers,
            ack_quorum=ack_quorum,
            proposers=random.choice((2, 2, 3)),
            delay_ms=random.choice((2, 10, 60)),
            disk_ms=random.choice((1, 10, 80)),
            is_datagram=random.random() < 0.25,
            loss=rate(0.01, 0.05),
            repeat=rate(0.01, 0.05),
            breaks=rate(10, 60),
            partitions=rate(5, 20),
            safekeeper_crashes=rate(5, 20, 60),
            safekeeper_stops=rate(3, 10),
            ambushes=rate(0.05, 0.3),
            failing_syncs=rate(2, 6),
            late_closes=rate(0.1, 0.5),
            retention_bytes=random.choice((None, 0, 200_000)),
            proposer_crashes=rate(5, 20, 40),
            primary_crashes=rate(2, 10),
            clones=rate(1, 3, 12),
            settles=rate(2, 6),
            full_disks=rate(2, 6),
            take_over=random.choice((0.2, 0.8)),
            records=random.choice((1, 5, 20)),
            record_bytes_max=random.choice((200, 3000, 30000)),
            safety_s=random.choice((30, 60)),
        )
