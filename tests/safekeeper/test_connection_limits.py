"""Places for connections: a crowd shuts out neither the leader nor commands, and stays bounded."""

from __future__ import annotations

from random import Random

import pytest

from walkeeper_safekeeper.connections.connection_limits import (
    ConnectionLimits,
    Entry,
    Limits,
    Standing,
)

LIMITS = Limits(10, reserved=2, address_max=4)


def entered(
    limits: ConnectionLimits, number: int, address: str = "::1", now_s: float = 0.0, *leaders: int
) -> Entry:
    is_local = address == "::1"
    return limits.enter(number, address, is_local=is_local, now_s=now_s, leaders=leaders)


def test_a_newcomer_takes_the_place_that_is_silent_for_longest() -> None:
    """400 silent connections shut out proposers and all commands before."""
    limits = ConnectionLimits(LIMITS)
    for number in range(10):
        assert entered(limits, number, now_s=number) == Entry()
    limits.heard(0, 9.0)
    assert entered(limits, 10, now_s=9.5) == Entry(evicted=1)
    assert entered(limits, 11, now_s=9.5) == Entry(evicted=2)
    assert len(limits) == 10


def test_an_elected_leader_keeps_its_place() -> None:
    limits = ConnectionLimits(LIMITS)
    for number in range(10):
        entered(limits, number)
    assert entered(limits, 10, "::1", 9.0, *range(10)).refusal is not None


def test_a_connection_at_work_keeps_its_place() -> None:
    limits = ConnectionLimits(LIMITS)
    for number in range(10):
        entered(limits, number)
        limits.heard(number, 50.0)
        limits.hold(number, is_expected=True)
    refused = entered(limits, 10, now_s=51.0).refusal
    assert refused == "10 connections of proposers and commands are open already"
    assert entered(limits, 10, now_s=50.0 + LIMITS.holding_idle_s) == Entry(evicted=0)


def test_commands_and_the_leader_have_places_left() -> None:
    limits = ConnectionLimits(LIMITS)
    for number in range(10):
        entered(limits, number)
    held = [number for number in range(10) if limits.hold(number, is_expected=False)]
    assert held == list(range(8))
    assert entered(limits, 10) == Entry(evicted=8), "a command comes in"
    assert limits.hold(10, is_expected=True), "and so does the leader's host"
    assert limits.hold(0, is_expected=False), "a second greeting needs no second place"


def test_one_address_has_its_share() -> None:
    limits = ConnectionLimits(LIMITS)
    for number in range(4):
        assert entered(limits, number, "10.0.0.7") == Entry()
    assert entered(limits, 4, "10.0.0.7") == Entry(evicted=0)
    assert entered(limits, 5, "10.0.0.8") == Entry()
    for number in range(1, 5):
        limits.hold(number, is_expected=True)
    assert entered(limits, 6, "10.0.0.7").refusal == "4 connections from 10.0.0.7 are open already"


def test_a_silent_connection_is_overdue_and_others_are_not() -> None:
    limits = ConnectionLimits(LIMITS)
    for number in range(3):
        entered(limits, number)
    limits.heard(1, 1.0)
    limits.leave(2)
    assert limits.overdue(LIMITS.greeting_s - 1) == []
    assert limits.overdue(LIMITS.greeting_s) == [0]
    assert limits.overdue(1e9) == [0]


@pytest.mark.parametrize("seed", range(10))
def test_the_bounds_hold_whatever_happens(seed: int) -> None:
    """A naive model of the open connections agrees with every answer."""
    random, limits, open_ = Random(seed), ConnectionLimits(LIMITS), dict[int, str]()
    holding, now_s, leader = set[int](), 0.0, -1
    for number in range(1000):
        now_s += random.choice((0.0, 0.1, 5.0, 61.0))
        address = random.choice(("::1", "10.0.0.1", "10.0.0.2"))
        entry = entered(limits, number, address, now_s, leader)
        if entry.evicted is not None:
            assert entry.evicted != leader and entry.evicted in open_
            del open_[entry.evicted]
            holding.discard(entry.evicted)
        if entry.refusal is None:
            open_[number] = address
        assert len(open_) == len(limits) <= LIMITS.places_max
        for remote in ("10.0.0.1", "10.0.0.2"):
            assert list(open_.values()).count(remote) <= LIMITS.address_max
        if open_ and random.random() < 0.7:
            chosen = random.choice(list(open_))
            limits.heard(chosen, now_s)
            if limits.hold(chosen, is_expected=False):
                holding.add(chosen)
            assert len(holding) <= LIMITS.places_max - LIMITS.reserved
            leader = random.choice((leader, chosen))
        if open_ and random.random() < 0.3:
            gone = random.choice(list(open_))
            limits.leave(gone)
            del open_[gone]
            holding.discard(gone)


def test_a_connection_of_higher_standing_may_idle_for_longer() -> None:
    waits = [LIMITS.idle_s(standing) for standing in Standing]
    assert waits == sorted(waits) and waits[0] == 0
