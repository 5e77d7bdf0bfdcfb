"""The troubles of one run, drawn from its seed; some of them are zero (swarm testing).

A run in which everything goes wrong at once gets nowhere. It hides bugs that only one kind of
trouble shows. So each seed draws its own few kinds (Groce 2012, "Swarm testing").
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TypedDict

from walkeeper_proposer.bunches import PATIENCE_MIN

# Members and ack quorum; the usual ones more often.
QUORUMS = (
    *((3, 2),) * 10, (5, 3), (5, 3), (5, 2), (5, 2), (5, 4), (5, 4), (1, 1), (2, 2), (2, 1),
)  # fmt: skip
# The plots of plots.py by weight: most of what a consensus can get wrong needs two rivals.
PLOTS = (
    *("rivals",) * 6, "unfinished_term", "unfinished_term", "held_back", "outrun",
    "power_failure", "lost_disk", "lost_disk", "sealed", "promotion", "older_copy",
)  # fmt: skip


class AskedOptions(TypedDict, total=False):
    """The options that the caller sets, not drawn."""

    replaces: bool  # members are replaced (replacing.py)
    cancels: bool  # half of the replacements are taken back, or it is tried
    repairs: bool  # spares take the place of silent members (silent_members.py)
    resizes: bool  # members are added and removed too, and the ack quorum is set
    late: bool  # newcomers' logs begin late (late_newcomers.py)
    is_busy: bool  # messages that arrive meanwhile are received at once (inbox.py)
    switches: bool  # the primary switches segments, and dies in it
    is_bulk: bool  # transactions are long, and WAL goes as slots move
    has_zones: bool  # acknowledgements come from several zones (zones.py)
    has_archive: bool  # WAL goes when it is archived, is read back
    closes: bool  # the log is closed, also at the end (closing.py)


@dataclass(frozen=True, slots=True)
class Options:
    """Rates are a share of messages, or events a simulated minute; times are milliseconds."""

    safekeepers: int
    ack_quorum: int
    proposers: int
    plots: tuple[str, ...]  # targeted trouble, by name: plots.py
    plot_pause_ms: int
    is_calm: bool  # while a plot directs the proposers, nothing else goes wrong
    delay_ms: int
    disk_ms: int
    is_datagram: bool  # frames of a connection may be lost, repeated and reordered
    loss: float
    repeat: float
    late_elections: float  # the share of their messages and primary's answers that come late
    breaks: float
    half_open: float  # the share of breaks that the safekeeper notices seconds later
    late_closes: float  # connections that one side takes for open long after they are not
    partitions: float
    clock_jumps: float
    safekeeper_crashes: float
    safekeeper_stops: float  # clean ones
    power_failures: float  # all safekeepers fail at once
    ambushes: float  # the share of elections and cuts that a crash follows closely
    failing_syncs: float
    stalls: float  # a disk that answers nothing for seconds
    full_disks: float
    bit_flips: float  # the share of power cuts that garble what was never acknowledged
    retention_bytes: int | None  # how much WAL is kept below the end, or None for all
    readers: int  # standbys behind each safekeeper
    pinned_readers: int
    proposer_crashes: float
    primary_crashes: float
    clones: float  # the primary is replaced by an older copy of itself
    recycled_bytes: int | None  # how much WAL a primary keeps below its end, or None for all
    settles: float
    take_over: float
    records: float  # a simulated second
    record_bytes: tuple[int, ...]  # any size below a single number, or one of several
    starts_inside_record: bool  # where the log was created
    safety_s: int
    quick_disks: float  # the share of appends that are written as they arrive
    bunch_ms: int  # how much later the core learns of them
    has_fast_stream: bool  # the proposers have the compiled fast path
    patience: int  # how many commits come before one safekeeper gets WAL in bunches
    replaces: bool = False  # see AskedOptions
    cancels: bool = False  # see AskedOptions
    is_busy: bool = False  # see AskedOptions
    terms_max: int = 1000  # more of them in a history are folded
    switches: bool = False  # see AskedOptions
    is_bulk: bool = False  # see AskedOptions
    has_archive: bool = False  # see AskedOptions
    resizes: bool = False  # see AskedOptions
    repairs: bool = False  # see AskedOptions
    late: bool = False  # see AskedOptions
    has_zones: bool = False  # see AskedOptions
    closes: bool = False  # see AskedOptions

    @classmethod
    def draw(cls, random: Random) -> Options:
        """Draw the seed's own mixture."""

        def rate(*choices: float) -> float:
            return random.choice((0.0, *choices))

        safekeepers, ack_quorum = random.choice(QUORUMS)
        plots = tuple(random.choice(PLOTS) for _ in range(random.choice((0, 1, 1, 2, 3))))
        sizes = random.choice(
            ((200,), (3000,), (30_000,), (100, 900), (600, 600), (40, 2000, 12_000))
        )
        return cls(
            safekeepers=safekeepers,
            ack_quorum=ack_quorum,
            proposers=random.choice((2, 2, 3)),
            plots=plots,
            plot_pause_ms=random.choice((500, 4000)),
            is_calm=random.random() < 0.5,
            delay_ms=random.choice((2, 10, 60)),
            disk_ms=random.choice((1, 10, 80)),
            is_datagram=random.random() < 0.25,
            loss=rate(0.01, 0.05),
            repeat=rate(0.01, 0.05),
            late_elections=rate(0, 0.1, 0.4),
            breaks=rate(10, 60),
            half_open=rate(0.2, 0.8),
            late_closes=rate(0.1, 0.5),
            partitions=rate(5, 20),
            clock_jumps=rate(0, 5, 20),
            safekeeper_crashes=rate(5, 20, 60),
            safekeeper_stops=rate(3, 10),
            power_failures=rate(0, 2, 6),
            ambushes=rate(0.05, 0.3),
            failing_syncs=rate(2, 6),
            stalls=rate(0, 4, 15),
            full_disks=rate(2, 6),
            bit_flips=rate(0.2, 0.8),
            retention_bytes=random.choice((None, 0, 200_000)),
            readers=random.choice((0, 1, 3)),
            pinned_readers=random.choice((0, 0, 1)),
            proposer_crashes=rate(5, 20, 40),
            primary_crashes=rate(2, 10),
            clones=rate(1, 3, 12),
            recycled_bytes=random.choice((None, None, 0, 70_000)),
            settles=rate(2, 6),
            take_over=random.choice((0.2, 0.8)),
            records=random.choice((1, 5, 20)),
            record_bytes=sizes,
            starts_inside_record=random.random() < 0.5,
            safety_s=random.choice((30, 60)) + (20 if plots else 0),
            quick_disks=_aside(random).choice((0.0, 0.0, 0.0, 0.8)),
            has_fast_stream=Random(_aside(random).random() + 2).random() < 0.5,
            patience=Random(_aside(random).random() + 3).choice((1, 4, PATIENCE_MIN)),
            bunch_ms=Random(_aside(random).random() + 1).choice((0, 0, 5, 50)),
            terms_max=Random(_aside(random).random()).choice((1, 1, 3, 1000)),
        )


def _aside(random: Random) -> Random:
    """Return a source of draws that came later: a seed's older draws stay as they were."""
    return Random(random.getstate()[1][0])
