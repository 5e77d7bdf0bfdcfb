"""Consumers' slots through the log: the news that is sent, and the news that is taken over."""

from __future__ import annotations

from walkeeper_common.lsn import Lsn
from walkeeper_common.wire.consumer_slots import ConsumerSlots, SlotNews, TablesQuery, after
from walkeeper_common.wire.fields import Reader, Writer
from walkeeper_safekeeper.replication.consumer_positions import ConsumerPositions
from walkeeper_safekeeper.replication.physical_slots import Slots

A, B, C = Lsn(100), Lsn(200), Lsn(300)


def position(slots: Slots, name: str) -> Lsn | None:
    slot = slots.find(name)
    return None if slot is None else slot.restart_lsn


def test_a_wanted_slot_is_reported_until_the_log_has_it() -> None:
    slots = Slots(None)
    positions = ConsumerPositions(slots)
    positions.wanted["s"] = A
    assert positions.news() == (SlotNews("s", A, is_new=True),) == positions.news()
    positions.on_replicated({"s": A})
    assert positions.news() == () and not positions.wanted
    assert position(slots, "s") == A


def test_a_consumers_move_is_reported_and_others_follow_it() -> None:
    here, there = Slots(None), Slots(None)
    moving, following = ConsumerPositions(here), ConsumerPositions(there)
    for one in (moving, following):
        one.on_replicated({"s": A})
    here.acquire("s", pid=1)
    here.confirm("s", B, pid=1)
    assert moving.news() == (SlotNews("s", B),)
    for one in (moving, following):
        one.on_replicated({"s": B})
    assert moving.news() == () and position(there, "s") == B


def test_a_position_in_use_is_its_consumers_alone() -> None:
    slots = Slots(None)
    positions = ConsumerPositions(slots)
    positions.on_replicated({"s": A})
    slots.acquire("s", pid=1)
    positions.on_replicated({"s": C})  # from an earlier connection, through another safekeeper
    assert position(slots, "s") == A
    slots.release("s", pid=1)
    positions.on_replicated({"s": C, "t": B})
    assert (position(slots, "s"), position(slots, "t")) == (C, B)
    positions.on_replicated({"s": A})
    assert position(slots, "s") == C, "never back"


def test_a_dropped_slot_is_gone_everywhere_and_no_late_news_revive_it() -> None:
    here, there = Slots(None), Slots(None)
    dropping, other = ConsumerPositions(here), ConsumerPositions(there)
    for one in (dropping, other):
        one.on_replicated({"s": A})
    there.acquire("s", pid=1)
    there.confirm("s", B, pid=1)
    late = other.news()
    here.drop("s", pid=2)
    dropping.unwanted.add("s")
    dropping.on_replicated({"s": A, "t": A})
    assert here.find("s") is None
    left = after({"s": A}, dropping.news())
    assert left == {} == after(left, late)
    other.on_replicated(left)
    assert there.find("s") is not None, "in use: it goes with its connection"
    there.release("s", pid=1)
    other.on_replicated(left)
    assert there.find("s") is None and other.news() == ()


def test_a_drop_that_waits_for_a_proposer_takes_the_slot_as_it_was_and_no_later_one() -> None:
    slots = Slots(None)
    positions = ConsumerPositions(slots)
    positions.on_replicated({"s": A, "t": A})
    slots.drop("s", pid=1)
    positions.pending["s"] = A
    assert positions.news() == (SlotNews("s", None),)
    positions.on_replicated({"s": A, "t": B})
    assert slots.find("s") is None and positions.news() == (SlotNews("s", None),)
    positions.on_replicated({"s": C, "t": B})  # made anew at another safekeeper
    assert position(slots, "s") == C and positions.news() == () and not positions.pending


def test_a_temporary_slot_stays_with_its_connection() -> None:
    slots = Slots(None)
    positions = ConsumerPositions(slots)
    slots.create("t", temporary=True, restart_lsn=A, pid=1)
    positions.on_replicated({})
    assert slots.find("t") is not None and positions.news() == ()


def test_positions_only_go_forward() -> None:
    assert after({"s": B}, (SlotNews("s", A), SlotNews("x", C))) == {"s": B}
    assert after({}, (SlotNews("x", C, is_new=True), SlotNews("x", A))) == {"x": C}


def test_news_travel() -> None:
    message = ConsumerSlots((SlotNews("s", A, is_new=True), SlotNews("t", None), SlotNews("u", B)))
    writer = Writer()
    message.pack(writer)
    assert ConsumerSlots.unpack(Reader(writer.finish())) == message


def test_queries_travel() -> None:
    message = TablesQuery(("one", "two"))
    writer = Writer()
    message.pack(writer)
    assert TablesQuery.unpack(Reader(writer.finish())) == message
