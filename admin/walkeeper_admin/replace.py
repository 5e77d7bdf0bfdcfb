"""`walkeeper replace`: performs the steps of replacing.py on real safekeepers. Shell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from walkeeper_common.addresses import Address, shown_address
from walkeeper_common.quorum import Configuration
from walkeeper_proposer.consensus.members.replacing import (
    Replacement,
    cancel_replacement,
    replace_member,
)
from walkeeper_proposer.member_changes import Limits, draw, perform


@dataclass(frozen=True, slots=True)
class Newcomer:
    """Safekeeper `joining` at `address` is to take the place of member `leaving`.

    With `instead`, it takes the place of another newcomer that is lost."""

    leaving: int
    joining: int
    address: Address
    instead: bool = False
    zone: str = ""


async def replace(
    safekeepers: Sequence[Address],
    cluster: str,
    newcomer: Newcomer,
    limits: Limits,
    tell: Callable[[str], None],
) -> Configuration:
    """Replace the member; return the final members. `tell` gets a line of news. Raise Refused."""
    addresses = tuple(dict.fromkeys((*safekeepers, newcomer.address)))
    goal = Replacement(
        cluster=cluster,
        leaving=newcomer.leaving,
        joining=newcomer.joining,
        address=shown_address(newcomer.address),
        at=addresses.index(newcomer.address),
        instead=newcomer.instead,
        addresses=tuple(map(shown_address, addresses)),
        zone=newcomer.zone,
    )
    steps = replace_member(goal, range(len(addresses)), draw)
    return await perform(steps, addresses, limits, tell)


async def cancel(
    safekeepers: Sequence[Address],
    cluster: str,
    leaving: int | None,
    limits: Limits,
    tell: Callable[[str], None],
) -> Configuration:
    """Take the replacement of `leaving` back, and return the old members. Raise Refused."""
    places = range(len(safekeepers))
    steps = cancel_replacement(cluster, leaving, places, draw)
    return await perform(steps, tuple(safekeepers), limits, tell)
