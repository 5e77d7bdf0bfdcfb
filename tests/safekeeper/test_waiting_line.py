"""New connections wait only in a flood, and each waits a bounded time."""

from __future__ import annotations

import pytest

from walkeeper_safekeeper.connections import waiting_line
from walkeeper_safekeeper.connections.waiting_line import (
    Admission,
    Allowance,
    Arrival,
    LineLimits,
    WaitingLine,
    network_of,
)

ENTERS, WAITS, ENDS = map(Arrival, Admission)
HERE, THERE = "10.0.0.1", "10.0.0.2"
LIMITS = LineLimits(Allowance(5, 2.0), Allowance(8, 3.0), network_max=4, line_max=6)


def turns(line: WaitingLine, now_s: float) -> list[int]:
    taken = []
    while (number := line.next(now_s)) is not None:
        taken.append(number)
    return taken


def test_peers_that_prove_themselves_never_wait() -> None:
    line = WaitingLine(LIMITS, 0.0)
    for number in range(1000):
        assert line.arrive(number, HERE, 0.0) == ENTERS
        line.give_back(HERE, 0.0)


def test_a_flood_enters_at_the_rate_of_its_network() -> None:
    line, numbers = WaitingLine(LIMITS, 0.0), iter(range(100_000))
    entered = 0
    for tenth in range(100):
        entered += len(turns(line, tenth / 10))
        for _ in range(10):
            entered += line.arrive(next(numbers), HERE, tenth / 10) == ENTERS
        assert len(line) <= LIMITS.network_max
    assert 23 <= entered <= 5 + 2.0 * 10


def test_floods_from_many_networks_enter_at_the_rate_of_all() -> None:
    line, entered = WaitingLine(LIMITS, 0.0), 0
    for number in range(1000):
        entered += len(turns(line, number / 100))
        entered += line.arrive(number, f"10.0.1.{number}", number / 100) == ENTERS
        assert len(line) <= LIMITS.line_max
    assert 36 <= entered <= 8 + 3.0 * 10


def test_within_a_network_the_first_comes_first_and_in_bounded_time() -> None:
    line = WaitingLine(LIMITS, 0.0)
    fates = [line.arrive(number, HERE, 0.0) for number in range(10)]
    assert fates == [ENTERS] * 5 + [WAITS] * 4 + [ENDS]
    assert line.next_s(0.0) == 0.5
    assert [turns(line, second / 2) for second in range(5)] == [[], [5], [6], [7], [8]]
    assert len(line) == 0 and line.next_s(3.0) is None


def test_a_newcomer_does_not_pass_those_that_wait() -> None:
    line = WaitingLine(LIMITS, 0.0)
    for number in range(6):
        line.arrive(number, HERE, 0.0)
    assert line.arrive(6, HERE, 1.0) == WAITS, "a token is there, and it is for connection 5"
    assert turns(line, 1.0) == [5, 6]


def test_a_peer_from_elsewhere_does_not_wait_for_a_flood() -> None:
    line = WaitingLine(LIMITS, 0.0)
    for number in range(9):
        line.arrive(number, HERE, 0.0)
    assert line.arrive(20, THERE, 0.0) == ENTERS


def test_a_peer_from_elsewhere_overtakes_floods_that_took_all_tokens() -> None:
    line = WaitingLine(LIMITS, 0.0)
    for number in range(9):
        line.arrive(number, HERE, 0.0)
    for number in range(10, 14):
        line.arrive(number, THERE, 0.0)
    assert line.arrive(20, "10.0.0.3", 0.0) == WAITS
    assert line.next_s(0.0) == pytest.approx(1 / 3)
    assert turns(line, 0.34) == [20]


def test_a_full_line_ends_the_oldest_for_a_newcomer() -> None:
    line = WaitingLine(LIMITS, 0.0)
    for number in range(9):
        line.arrive(number, HERE, 0.0)
    for number in range(10, 15):
        line.arrive(number, THERE, 0.0)
    assert len(line) == LIMITS.line_max
    assert line.arrive(20, "10.0.0.3", 0.0) == Arrival(Admission.WAITS, evicted=5)
    assert len(line) == LIMITS.line_max


def test_a_connection_that_leaves_has_no_turn() -> None:
    line = WaitingLine(LIMITS, 0.0)
    for number in range(8):
        line.arrive(number, HERE, 0.0)
    for number in (0, 5, 5):
        line.leave(number)
    assert turns(line, 1.0) == [6, 7]


def test_known_networks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_line, "NETWORKS_MAX", 3)
    line = WaitingLine(LineLimits(Allowance(2, 1.0)), 0.0)
    for name in ("a", "b", "a", "c", "d"):
        line.arrive(ord(name), name, 0.0)
    assert sorted(line._buckets) == ["a", "c", "d"], "b paid the longest time ago"
    assert line.arrive(9, "a", 0.0) == WAITS


def test_a_turn_comes_before_proposers_and_commands_give_up() -> None:
    limits = LineLimits()
    assert limits.network_max / limits.network.per_s <= 3.0
    assert limits.network.per_s < limits.everyone.per_s
    assert limits.network_max < limits.line_max


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::1", "::/64"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("", ""),
    ],
)
def test_a_host_counts_for_its_network(host: str, network: str) -> None:
    assert network_of(host) == network
