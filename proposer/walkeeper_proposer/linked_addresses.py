"""The addresses that a proposer connects to: those of --safekeepers, and those of newcomers.

A change of members brings newcomers that --safekeepers does not name. Their links last as long as
the change, and as long as they are members. A cancel drops them, and so do other newcomers in their
place: nobody would answer there, and `status` would miss them for ever. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from walkeeper_common.addresses import Address, parse_address, shown_address
from walkeeper_common.errors import Refused
from walkeeper_common.quorum import Configuration, joined_entries, member_id


class LinkedAddresses:
    """`all` holds the addresses to link now, those of --safekeepers first."""

    def __init__(self, given: Sequence[Address]) -> None:
        self.all: tuple[Address, ...] = tuple(given)
        self._joining: dict[str, Address] = {}  # by member name: those that are no members yet
        self._joined: dict[str, Address] = {}  # likewise: those that have become members
        self.generation = 0  # the newest one that it followed
        self._unnamed: set[Address] = set()  # joined, with an unknown id

    def follow(self, configuration: Configuration | None) -> list[str]:
        """Take over the newest configuration, or None for an unknown one.

        Return what an operator has to know of each change of `all`.
        """
        if configuration is None or configuration.generation < self.generation:
            return []
        self.generation = configuration.generation
        return [*self._decided(configuration), *self._added(configuration)]

    @property
    def members(self) -> frozenset[str]:
        """The members and newcomers that have a link because they joined."""
        return frozenset((*self._joining, *self._joined))

    def _decided(self, configuration: Configuration) -> list[str]:
        """Keep or drop each newcomer, once it is known whether it became a member."""
        notes = []
        for name, address in list(self._joining.items()):
            if name in configuration.newcomers:
                continue
            del self._joining[name]
            if name in configuration.members:
                self._joined[name] = address
                notes.append(_put_it(address))
            else:
                notes.append(self._dropped(address, "does not become a member"))
        for name, address in list(self._joined.items()):
            if name not in configuration.everyone:
                del self._joined[name]
                notes.append(self._dropped(address, "is no member any more"))
        return notes

    def _dropped(self, address: Address, why: str) -> str:
        self.all = tuple(each for each in self.all if each != address)
        return f"safekeeper at {shown_address(address)} {why}: its link is dropped"

    def _added(self, configuration: Configuration) -> list[str]:
        notes = []
        for number, text in joined_entries(configuration):
            try:
                address = parse_address(text)
            except Refused as error:  # a safekeeper's configuration may have any text
                notes.append(f"{error}; put its address into --safekeepers")
                continue
            member = _member(configuration, number)
            if member and address in self._unnamed:
                self._unnamed.remove(address)
                self._joined[member] = address
            if address in self.all:
                continue
            self.all = (*self.all, address)
            name = _newcomer(configuration, number)
            if member:
                self._joined[member] = address
            elif not name:
                self._unnamed.add(address)
            if name:
                self._joining[name] = address
                shown = shown_address(address)
                notes.append(f"safekeeper at {shown} is to become a member: connecting to it")
            else:
                notes.append(_put_it(address))
        return notes


def _member(configuration: Configuration, number: str) -> str:
    """Return the member with this id, or an empty text for a newcomer or without an id."""
    return next((m for m in configuration.members if number == str(member_id(m))), "")


def _newcomer(configuration: Configuration, number: str) -> str:
    """Return the newcomer with this id, or of a replacement without one; empty for a member."""
    if not number:
        return configuration.joining
    return next((name for name in configuration.newcomers if str(member_id(name)) == number), "")


def _put_it(address: Address) -> str:
    return f"safekeeper at {shown_address(address)} has become a member: put it into --safekeepers"
