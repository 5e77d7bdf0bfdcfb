"""The addresses that a proposer connects to: those of --safekeepers, and those of newcomers.

A change of members brings newcomers that --safekeepers does not name. Their links last as long as
the change, and stay once they are members. A cancel drops them, and so do other newcomers in their
place: nobody would answer there, and `status` would miss them for ever. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from walkeeper_common.addresses import Address, parse_address, shown_address
from walkeeper_common.quorum import Configuration, joined_entries, member_id


class LinkedAddresses:
    """`all` holds the addresses to link now, those of --safekeepers first."""

    def __init__(self, given: Sequence[Address]) -> None:
        self.all: tuple[Address, ...] = tuple(given)
        self._joining: dict[str, Address] = {}  # by member name: those that are no members yet

    def follow(self, configuration: Configuration | None) -> list[str]:
        """Take over the newest configuration, or None for an unknown one.

        Return what an operator has to know of each change of `all`.
        """
        if configuration is None:
            return []
        return [*self._decided(configuration), *self._added(configuration)]

    def _decided(self, configuration: Configuration) -> list[str]:
        """Keep or drop each newcomer, once it is known whether it became a member."""
        told = []
        for name, address in list(self._joining.items()):
            if name in configuration.newcomers:
                continue
            del self._joining[name]
            if name in configuration.members:
                told.append(_put_it(address))
            else:
                self.all = tuple(each for each in self.all if each != address)
                shown = shown_address(address)
                told.append(f"safekeeper at {shown} does not become a member: its link is dropped")
        return told

    def _added(self, configuration: Configuration) -> list[str]:
        told = []
        for number, text in joined_entries(configuration.address):
            address = parse_address(text)
            if address in self.all:
                continue
            self.all = (*self.all, address)
            name = _newcomer(configuration, number)
            if name:
                self._joining[name] = address
                shown = shown_address(address)
                told.append(f"safekeeper at {shown} is to become a member: connecting to it")
            else:
                told.append(_put_it(address))
        return told


def _newcomer(configuration: Configuration, number: str) -> str:
    """Return the newcomer with this id, or of a replacement without one; empty for a member."""
    if not number:
        return configuration.joining
    return next((name for name in configuration.newcomers if str(member_id(name)) == number), "")


def _put_it(address: Address) -> str:
    return f"safekeeper at {shown_address(address)} has become a member: put it into --safekeepers"
