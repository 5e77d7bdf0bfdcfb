"""The addresses that a proposer connects to: those of --safekeepers, and those of newcomers.

A replacement brings a newcomer that --safekeepers does not name. Its link lasts as long as the
replacement, and stays once it is a member. A cancel drops it, and so does another newcomer in its
place: nobody would answer there, and `status` would miss it for ever. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from walkeeper_common.addresses import Address, parse_address, shown_address
from walkeeper_common.quorum import Configuration


class LinkedAddresses:
    """`all` holds the addresses to link now, those of --safekeepers first."""

    def __init__(self, given: Sequence[Address]) -> None:
        self.all: tuple[Address, ...] = tuple(given)
        self._joining = ""  # the member name of the last of `all`, while it is no member yet

    def follow(self, configuration: Configuration | None) -> str | None:
        """Take over the newest configuration, or None for an unknown one.

        Return what an operator has to know of a change of `all`, or None without one.
        """
        if configuration is None:
            return None
        told = self._decided(configuration)
        return self._added(configuration) or told

    def _decided(self, configuration: Configuration) -> str | None:
        """Keep or drop the newcomer, once it is known whether it became a member."""
        if not self._joining or configuration.joining == self._joining:
            return None
        is_member = self._joining in configuration.members
        self._joining = ""
        if is_member:
            return _put_it(self.all[-1])
        self.all, lost = self.all[:-1], self.all[-1]
        return f"safekeeper at {shown_address(lost)} does not become a member: its link is dropped"

    def _added(self, configuration: Configuration) -> str | None:
        if not configuration.address:
            return None
        address = parse_address(configuration.address)
        if address in self.all:
            return None
        self.all = (*self.all, address)
        self._joining = configuration.joining
        if self._joining:
            return f"safekeeper at {shown_address(address)} is to become a member: connecting to it"
        return _put_it(address)


def _put_it(address: Address) -> str:
    return f"safekeeper at {shown_address(address)} has become a member: put it into --safekeepers"
