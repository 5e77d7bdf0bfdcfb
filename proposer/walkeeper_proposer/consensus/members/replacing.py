"""`walkeeper replace`: one newcomer takes the place of one member. Pure.

It is a change of members like any other (changing.py), and is taken back like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from walkeeper_proposer.consensus.members import changing
from walkeeper_proposer.consensus.members.changing import cancel_change, change_members
from walkeeper_proposer.consensus.members.deciding import Steps
from walkeeper_proposer.consensus.members.newcomers import Newcomer


@dataclass(frozen=True, slots=True)
class Replacement:
    """Member `leaving` is to be replaced by safekeeper `joining`, which is at place `at`.

    With `instead`, a replacement that is under way gives up its lost newcomer for this one.
    """

    cluster: str
    leaving: int
    joining: int
    address: str
    at: int
    instead: bool = False
    addresses: tuple[str, ...] = ()  # those of all places
    zone: str = ""

    @property
    def change(self) -> changing.Goal:
        """The change of members that the replacement is."""
        newcomer = Newcomer(self.joining, self.address, self.at, self.zone)
        whom = (self.cluster, (self.leaving,), (newcomer,))
        return changing.Goal(*whom, instead=self.instead, addresses=self.addresses)


def replace_member(goal: Replacement, places: Sequence[int], draw: Callable[[], bytes]) -> Steps:
    """Return the final configuration; raise Refused, with the reason, if it is impossible.

    `places` are the numbers of all known safekeepers, with the newcomer. `draw` returns 16 random
    bytes.
    """
    return change_members(goal.change, places, draw)


def cancel_replacement(
    cluster: str, leaving: int | None, places: Sequence[int], draw: Callable[[], bytes]
) -> Steps:
    """Return the final configuration of the old members; raise Refused if the cancel is too late.

    `leaving` is the id of the member that the operator wants to keep, or None.
    """
    return cancel_change(cluster, places, draw, kept=leaving)
