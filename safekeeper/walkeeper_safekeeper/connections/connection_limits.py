"""The places for connections of proposers and commands. Pure: no clock, no sockets.

    enter     gives a place, perhaps that of another connection, or refuses
    hold      lets a connection greet a log, unless the places for that are taken
    overdue   returns the connections that have been silent for too long

A peer is unknown until its first message. So a newcomer takes the place of the connection that has
been silent for longest, and a crowd of silent ones shuts nobody out. A connection of an elected
leader never loses its place. `reserved` places are never held by connections that have greeted a
log, so commands have room. One address, loopback excepted, has at most `address_max` places.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum


class Standing(IntEnum):
    """How far a connection has come. The lowest one loses its place first."""

    SILENT = 0  # no message yet
    ASKING = 1  # commands that name no log of their own
    HOLDING = 2  # a connection that has greeted a log


@dataclass(frozen=True, slots=True)
class Limits:
    """The figures of one kind of connections."""

    places_max: int
    reserved: int
    address_max: int
    greeting_s: float = 60.0
    asking_idle_s: float = 1.0
    holding_idle_s: float = 60.0

    def idle_s(self, standing: Standing) -> float:
        """Return how long a connection is left alone when places are short."""
        return (0.0, self.asking_idle_s, self.holding_idle_s)[standing]


@dataclass(frozen=True, slots=True)
class Entry:
    """The answer to a newcomer: refused with a text, or admitted in the place of `evicted`."""

    refusal: str | None = None
    evicted: int | None = None


@dataclass(slots=True)
class _Place:
    address: str
    is_local: bool
    heard_s: float
    standing: Standing = Standing.SILENT


class ConnectionLimits:
    """Connections are numbers that are never used again; times are seconds of one clock."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._places: dict[int, _Place] = {}

    def __len__(self) -> int:
        return len(self._places)

    def enter(
        self, number: int, address: str, *, is_local: bool, now_s: float, leaders: Collection[int]
    ) -> Entry:
        """Give a place to a new connection, or refuse it."""
        limits, places = self._limits, self._places
        of_address = {n: p for n, p in places.items() if p.address == address}
        if not is_local and len(of_address) >= limits.address_max:
            among, text = of_address, f"{len(of_address)} connections from {address}"
        elif len(places) >= limits.places_max:
            among, text = places, f"{len(places)} connections of proposers and commands"
        else:
            places[number] = _Place(address, is_local, now_s)
            return Entry()
        evicted = self._to_evict(among, now_s, leaders)
        if evicted is None:
            return Entry(refusal=f"{text} are open already")
        del places[evicted]
        places[number] = _Place(address, is_local, now_s)
        return Entry(evicted=evicted)

    def _to_evict(
        self, among: dict[int, _Place], now_s: float, leaders: Collection[int]
    ) -> int | None:
        idle = [
            (place.standing, place.heard_s, number)
            for number, place in among.items()
            if number not in leaders
            and now_s - place.heard_s >= self._limits.idle_s(place.standing)
        ]
        return min(idle)[2] if idle else None

    def heard(self, number: int, now_s: float) -> str | None:
        """Note a message of this connection; return its address if it is the first one."""
        place = self._places.get(number)
        if place is None:
            return None
        is_first = place.standing is Standing.SILENT
        place.heard_s = now_s
        place.standing = max(place.standing, Standing.ASKING)
        return place.address if is_first else None

    def hold(self, number: int, *, is_expected: bool) -> bool:
        """Let a connection greet a log; an expected one may take a reserved place."""
        place = self._places.get(number)
        if place is None:
            return False
        if place.standing is not Standing.HOLDING and not is_expected:
            holding = sum(p.standing is Standing.HOLDING for p in self._places.values())
            if holding >= self._limits.places_max - self._limits.reserved:
                return False
        place.standing = Standing.HOLDING
        return True

    def leave(self, number: int) -> None:
        """Free the place of a closed connection."""
        self._places.pop(number, None)

    def overdue(self, now_s: float) -> list[int]:
        """Return the connections without a message `greeting_s` after they came."""
        return [
            number
            for number, place in self._places.items()
            if place.standing is Standing.SILENT
            and now_s - place.heard_s >= self._limits.greeting_s
        ]
