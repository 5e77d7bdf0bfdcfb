"""The places for clients of PostgreSQL's protocol. Pure: no clock, no sockets.

    enter     gives a place to a client whose name is not proved yet, perhaps that of another one
    admit     lets a client keep its place once its identity is known, or says why not
    leave     frees the place

A client that has not logged in holds a place that a newcomer may take, the oldest first. So a crowd
without a password shuts no user out. One place in ten is for administrators alone. One more in ten
is for them, monitors and proposers. A user has at most `connections_max` places.
"""

from __future__ import annotations

from dataclasses import dataclass

from walkeeper_common.access.identity import Identity, Role

RESERVED_SHARE = 10  # one place of so many
WATCHERS = frozenset((Role.MONITOR, Role.PROPOSER))
TOO_MANY = "sorry, too many clients already"


@dataclass(frozen=True, slots=True)
class Entry:
    """The answer to a newcomer: refused, or admitted in the place of `evicted`."""

    is_refused: bool = False
    evicted: int | None = None


class ClientPlaces:
    """The places of one port. Clients are numbers."""

    def __init__(self, places_max: int) -> None:
        self._places_max = places_max
        self._reserved = places_max // RESERVED_SHARE
        self._guests: dict[int, None] = {}  # the oldest first
        self._admitted: dict[int, Identity] = {}

    def __len__(self) -> int:
        return len(self._guests) + len(self._admitted)

    def enter(self, number: int) -> Entry:
        """Give a place to a newcomer, or refuse it."""
        evicted = None
        if len(self) >= self._places_max:
            if not self._guests:
                return Entry(is_refused=True)
            evicted = next(iter(self._guests))
            del self._guests[evicted]
        self._guests[number] = None
        return Entry(evicted=evicted)

    def admit(self, number: int, identity: Identity) -> str | None:
        """Keep the place for this identity; return None, or the reason to refuse the client."""
        if number not in self._guests:
            return TOO_MANY  # a newcomer has its place
        if len(self._admitted) >= self._bound_of(identity):
            return "remaining connection slots are reserved for operators"
        bound = identity.connections_max
        if bound is not None and self._of_user(identity.name) >= bound:
            return f'too many connections for role "{identity.name}"'
        del self._guests[number]
        self._admitted[number] = identity
        return None

    def _bound_of(self, identity: Identity) -> int:
        """Return how many clients may be in for one more of these roles."""
        if Role.ADMIN in identity.roles:
            return self._places_max
        shares = 1 if identity.roles & WATCHERS else 2
        return max(1, self._places_max - shares * self._reserved)

    def _of_user(self, name: str) -> int:
        """Return how many clients with a bound have this name."""
        bounded = (each for each in self._admitted.values() if each.connections_max is not None)
        return sum(each.name == name for each in bounded)

    def leave(self, number: int) -> None:
        """Free the place of a client that has gone."""
        self._guests.pop(number, None)
        self._admitted.pop(number, None)
