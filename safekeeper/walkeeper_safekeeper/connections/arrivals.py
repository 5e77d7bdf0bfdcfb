"""The arrival of connections at the one port: most enter at once, and a flood waits. A shell.

`WaitingLine` decides. This shell has the clock, and lets a visitor enter when its turn has come. A
visitor that has hung up meanwhile is passed over. It costs nothing, so it takes no turn.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import select
from typing import Protocol

from walkeeper_common.access.identity import NOBODY
from walkeeper_common.shell.log_lines.audit import Audit
from walkeeper_common.shell.log_lines.operator_log import alike
from walkeeper_safekeeper.connections.waiting_line import (
    Admission,
    LineLimits,
    WaitingLine,
    network_of,
)

logger = logging.getLogger("walkeeper.server")

TURNS_MAX, TURNS_S = 32, 0.05  # turns at a time, and the pause in which the loop does other work
HUNG_UP = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)
TOO_MANY_WAIT = "too many connections wait, and their peers have proved nothing yet"


class Visitor(Protocol):
    """A connection that has been accepted and not been read; its text is the peer's address."""

    def enter(self) -> None:
        """Go on, since the turn has come."""
        ...

    def close(self) -> None:
        """End at once."""
        ...

    def descriptor(self) -> int: ...


class Arrivals:
    """The visitors of one port."""

    def __init__(self, audit: Audit, limits: LineLimits = LineLimits()) -> None:  # noqa: B008
        self._audit, self._limits = audit, limits
        self._line: WaitingLine | None = None  # made at the first visit, with the loop's clock
        self._numbers = itertools.count(1)
        self._waiting: dict[int, tuple[Visitor, str]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    def arrive(self, visitor: Visitor, host: str) -> Admission:
        """Return the visitor's fate. Its `enter` or `close` is called, or later if it waits."""
        number, network = next(self._numbers), network_of(host)
        arrival = self._known_line().arrive(number, network, _now_s())
        if arrival.evicted is not None:
            self._end(self._forget(arrival.evicted))
        match arrival.admission:
            case Admission.ENTERS:
                visitor.enter()
            case Admission.WAITS:
                self._waiting[number] = visitor, network
                if self._timer is None:
                    _warn(host)
                    self._start_timer()
            case Admission.ENDS:
                self._end(visitor)
        return arrival.admission

    def proved(self, host: str) -> None:
        """Note that a peer of this host has sent a message or has logged in."""
        self._known_line().give_back(network_of(host), _now_s())

    def close(self) -> None:
        """Close all that wait."""
        for number in list(self._waiting):
            self._known_line().leave(number)
            self._forget(number).close()
        if self._timer is not None:
            self._timer.cancel()

    def _take_turns(self) -> None:
        line = self._known_line()
        for _ in range(TURNS_MAX):
            number = line.next(_now_s())
            if number is None:
                break
            _, network = self._waiting[number]
            visitor = self._forget(number)
            if _has_hung_up(visitor):
                line.give_back(network, _now_s())
                visitor.close()
            else:
                visitor.enter()
        self._start_timer()

    def _start_timer(self) -> None:
        next_s = self._known_line().next_s(_now_s())
        self._timer = None
        if next_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(next_s, TURNS_S), self._take_turns)

    def _known_line(self) -> WaitingLine:
        if self._line is None:
            self._line = WaitingLine(self._limits, _now_s())
        return self._line

    def _forget(self, number: int) -> Visitor:
        visitor, _ = self._waiting.pop(number)
        return visitor

    def _end(self, visitor: Visitor) -> None:
        self._audit.refusal("crowd", NOBODY, visitor, text=TOO_MANY_WAIT)
        visitor.close()


def _warn(host: str) -> None:
    logger.warning(
        "new connections from %s wait: many before them neither sent a message nor logged in; "
        "find out why, or close the port to that host",
        host,
        extra=alike("new connections wait"),
    )


def _has_hung_up(visitor: Visitor) -> bool:
    poll = select.poll()
    poll.register(visitor.descriptor(), HUNG_UP)
    return bool(poll.poll(0))


def _now_s() -> float:
    return asyncio.get_running_loop().time()
