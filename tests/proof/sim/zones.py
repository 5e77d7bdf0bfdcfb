"""Zones of simulated members: `--zones`, and a fixed share of the ordinary worlds.

The draws come from sources of their own, so the rest of a seed's story is drawn as before.
"""

from __future__ import annotations

from random import Random

from walkeeper_common.quorum import MemberSet, member_set

LABELS = "abc"
FIRST_SEED, SHARE = 100, 10  # from here on each tenth seed has zones; no kept seed is among them


def has_zones(seed: int) -> bool:
    """Return True if this seed's ordinary world has zones."""
    return seed >= FIRST_SEED and seed % SHARE == 4


def zone_of(number: int, *, is_used: bool) -> str:
    """Return the zone of a newcomer under this id, or an empty label in a world without zones."""
    return LABELS[number % len(LABELS)] if is_used else ""


def first_set(seed: int, members: tuple[str, ...], ack_quorum: int) -> MemberSet:
    """Return the first set of a world with zones, with a rule that some ack quorum meets."""
    random = Random(f"zones of {seed}")
    labels = [random.choice(LABELS) for _ in members]
    counted = [0, *(z for z in (2, 2, 3) if z <= len(set(labels)))]
    zones = dict(zip(members, labels, strict=True))
    return member_set(zones, ack_quorum=ack_quorum, ack_zones=random.choice(counted[-3:]))


def disks_to_lose(held: MemberSet) -> int:
    """Return how many disks of a set may be lost, whichever they are: the others commit and elect,
    and have what was acknowledged."""
    most = min(held.ack_quorum - 1, len(held.members) - held.ack_quorum)
    if not held.ack_zones:
        return most
    sizes = sorted(held.zones.count(zone) for zone in set(held.zones))
    return min(most, sum(sizes[: len(sizes) - held.ack_zones + 1]) - 1)
