"""A timeline number has one owner (docs/protocol.md R23), whichever members answer."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from tests.support.scenario_words import configuration_of
from walkeeper_admin import reserving
from walkeeper_common.addresses import Address
from walkeeper_common.errors import CorruptWal, Refused, Unreachable
from walkeeper_common.history import NO_BALLOT
from walkeeper_common.shell.safekeeper_links.safekeeper_client import NoAnswer
from walkeeper_common.wire.framing import Message
from walkeeper_common.wire.messages import Reject, RejectCode
from walkeeper_common.wire.timeline_reservation import ReserveTimeline, TimelineReserved
from walkeeper_restore.standby_check import placeholders
from walkeeper_safekeeper.storage.reserved_timelines import (
    RESERVED_MAX,
    Reserved,
    decode,
    encode,
)

PLACES = tuple((f"h{number}", 5454) for number in range(1, 6))


class Members:
    """Safekeepers in memory; `down` do not answer, `old` do not know the message."""

    def __init__(self, count: int, ack_quorum: int) -> None:
        self.configuration = configuration_of(count, ack_quorum)
        self.places = PLACES[:count]
        self.reserved = {place: Reserved() for place in self.places}
        self.down: set[Address] = set()
        self.old: set[Address] = set()
        self.last_timeline = 1

    async def ask(self, address: Address, question: Message, timeout_s: float) -> Message:
        assert isinstance(question, ReserveTimeline) and timeout_s > 0
        if address in self.down:
            raise Unreachable("down")
        if address in self.old:
            raise NoAnswer("old")
        number, owner = question.timeline, question.owner
        before = self.reserved[address]
        try:
            after = before.grant(number, owner, last_timeline=self.last_timeline)
        except Refused as error:
            return Reject(RejectCode.REFUSED, str(error), NO_BALLOT)
        self.reserved[address] = decode(encode(after), "reserved")
        member = self.configuration.members[self.places.index(address)]
        return TimelineReserved(member, self.configuration, number, after.owners[number])

    def reserve(self, owner: str, *, after: int = 1) -> int | None:
        return asyncio.run(reserving.reserve(self.places, "main", owner, after=after))


@pytest.fixture
def members(monkeypatch: pytest.MonkeyPatch) -> Members:
    made = Members(3, 2)
    monkeypatch.setattr(reserving, "ask", made.ask)
    return made


def test_each_owner_gets_a_number_of_its_own_again_and_again(members: Members) -> None:
    assert [members.reserve(owner) for owner in "aabacb"] == [2, 2, 3, 2, 4, 3]


@pytest.mark.parametrize(("count", "ack_quorum"), [(1, 1), (2, 2), (3, 2), (3, 3), (4, 3), (5, 2)])
def test_no_two_owners_have_one_number_with_any_members_down(
    monkeypatch: pytest.MonkeyPatch, count: int, ack_quorum: int
) -> None:
    """All pairs of sets of members that answer: the first owner's and the second's."""
    sets = [
        set(down)
        for size in range(count + 1)
        for down in itertools.combinations(PLACES[:count], size)
    ]
    for first_down, second_down in itertools.product(sets, sets):
        made = Members(count, ack_quorum)
        monkeypatch.setattr(reserving, "ask", made.ask)
        numbers = []
        for owner, down in (("a", first_down), ("b", second_down)):
            made.down = down
            try:
                numbers.append(made.reserve(owner))
            except Refused:
                numbers.append(None)
        assert numbers[0] is None or numbers[0] != numbers[1], (first_down, second_down)


def test_a_number_with_two_half_owners_is_lost(members: Members) -> None:
    """Each has one member's grant, and the third is down."""
    first, second, third = members.places
    members.reserved[first] = Reserved({2: "a"})
    members.reserved[second] = Reserved({2: "b"})
    members.down = {third}
    assert members.reserve("a") == 3 and members.reserve("b") == 4


def test_without_a_quorum_no_promotion_may_go_on(members: Members) -> None:
    members.down = set(members.places[:2])
    with pytest.raises(Refused, match=r"no quorum reserves timeline 2.*down; down.*run this again"):
        members.reserve("a")


def test_safekeepers_that_do_not_know_the_message_are_named(members: Members) -> None:
    members.old = set(members.places[:2])
    assert members.reserve("a") is None
    members.old = set(members.places[:1])
    assert members.reserve("a") == 2


def test_a_number_that_the_log_has_reached_is_no_ones(members: Members) -> None:
    assert members.reserve("a") == 2 and members.reserve("b") == 3
    members.last_timeline = 2
    with pytest.raises(Refused, match="the log is on timeline 2"):
        members.reserve("c", after=1)
    assert members.reserve("c", after=2) == 4
    assert all(set(each.owners) == {3, 4} for each in members.reserved.values())


def test_grants_are_bounded_and_the_text_names_a_way_out() -> None:
    full = Reserved(dict.fromkeys(range(2, 2 + RESERVED_MAX), "x"))
    with pytest.raises(Refused, match="promote a server"):
        full.grant(RESERVED_MAX + 2, "y", last_timeline=1)
    assert full.grant(2, "y", last_timeline=1) is full
    assert full.grant(RESERVED_MAX + 2, "y", last_timeline=2).owners[RESERVED_MAX + 2] == "y"


def test_the_search_for_a_number_ends(members: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reserving, "TRIES_MAX", 3)
    assert [members.reserve(owner) for owner in "abc"] == [2, 3, 4]
    with pytest.raises(Refused, match="timelines 2 to 4 are reserved for other servers"):
        members.reserve("d")


def test_a_damaged_file_is_named_with_the_remedy() -> None:
    data = encode(Reserved({2: "a"}))
    with pytest.raises(CorruptWal, match=r"main/reserved is damaged.*remove this file"):
        decode(data[:-1] + bytes([data[-1] ^ 1]), "main/reserved")


@pytest.mark.parametrize(
    ("status", "content", "is_removed"),
    [
        ("starting", placeholders.PLACEHOLDER + "\n", True),
        ("standby ", placeholders.PLACEHOLDER + "\n", False),
        ("ready   ", placeholders.PLACEHOLDER + "\n", False),
        ("starting", "1\t0/3000\tno recovery target specified\n", False),
    ],
    ids=["starting", "standby", "ready", "promoted"],
)
def test_a_placeholder_is_removed_while_the_server_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str, content: str, is_removed: bool
) -> None:
    """A running standby asks for it in its promotion."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pg_wal").mkdir()
    file = tmp_path / "pg_wal" / "00000002.history"
    file.write_text(content)
    assert not placeholders.remove_stale(file.name), "no server"
    (tmp_path / "postmaster.pid").write_text(f"1\n/data\n1\n5432\n/tmp\n*\n1 2\n{status}\n")
    assert placeholders.remove_stale(file.name) is is_removed
    assert file.exists() is not is_removed
    assert not placeholders.remove_stale("00000003.history")
