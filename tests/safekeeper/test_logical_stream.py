"""A consumer of changes gets whole committed transactions after its position, in order."""

from __future__ import annotations

import asyncio
import random
from typing import cast

import pytest

from tests.safekeeper.logical_consumer import (
    SEGMENT,
    START,
    Client,
    Kept,
    Made,
    consume,
    understood,
    without_keepalives,
)
from tests.support.entry_maker import (
    begin,
    commit,
    insert,
    new_stream,
    relation,
)
from walkeeper_common.entries import FRAME_BYTES_MAX, SegmentHeader
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.client_encoding import client_encoding
from walkeeper_common.postgres.pgoutput import MessageSplitter
from walkeeper_common.postgres.pgwire import SqlRefused, StandbyStatus
from walkeeper_common.wire.consumer_slots import SlotNews
from walkeeper_safekeeper.replication.client_connection import ClientConnection
from walkeeper_safekeeper.replication.log_settings import LogSettings
from walkeeper_safekeeper.replication.logical_log import LogicalLog, LogicalReader
from walkeeper_safekeeper.replication.logical_stream import (
    LogicalStream,
    Wishes,
    check_options,
    split_identifiers,
)
from walkeeper_safekeeper.replication.wal_stream import StreamLimits


@pytest.mark.parametrize("seed", range(4))
def test_a_consumer_gets_every_transaction_after_its_position_and_can_read_each(seed: int) -> None:
    made = Made(seed)
    for start, _ in [(0x100, None), *made.transactions[::11]]:
        expected = [one for one in made.transactions if one[0] > start]
        assert understood(asyncio.run(consume(made, start))) == expected, f"{start=:X}"


def test_only_whole_committed_transactions_are_sent() -> None:
    made = Made(3, 40)
    end = made.log.end
    for commit_lsn in sorted(random.Random(1).sample(range(START, end), 40)):
        made.readable_lsn = Lsn(commit_lsn)
        sent = understood(asyncio.run(consume(made, 0x100)))
        assert sent == made.transactions[: len(sent)]
    made.readable_lsn = end
    assert len(understood(asyncio.run(consume(made, 0x100)))) == len(made.transactions)


@pytest.mark.parametrize("seed", range(2))
def test_the_end_and_the_settings_are_known_wherever_the_log_was_looked_at(seed: int) -> None:
    made = Made(seed, 60)
    logical, fresh = LogicalLog(made.served()), 0

    async def look() -> None:
        nonlocal fresh
        places = random.Random(seed).sample(range(START + 500, made.log.end), 12)
        for commit_lsn in [*sorted(places), made.log.end]:
            made.readable_lsn = Lsn(commit_lsn)
            frames = made.log.frames(START, SEGMENT, made.readable_lsn)
            ended = [frame.end_lsn for frame in frames if frame.is_last]
            for one in (logical, LogicalLog(made.served())):
                settings = await one.known_settings()
                assert (one.end_lsn, settings.publications) == (ended[-1], ("p",))
            fresh += 1

    asyncio.run(look())
    assert fresh > 3


def test_a_position_that_is_no_longer_kept_is_not_found_and_slots_hold_back_a_limit() -> None:
    made = Made(4)

    async def look() -> None:
        logical = LogicalLog(made.served())
        lsn = made.transactions[40][0]
        await made.slots.create("s", temporary=False, restart_lsn=Lsn(lsn), pid=1)
        segment = await logical.segment_of(Lsn(lsn))
        assert segment is not None
        assert await logical.horizon(1 << 30) == segment
        assert await logical.horizon(1000) == made.readable_lsn - 1000
        made.oldest_lsn = segment + SEGMENT
        assert await logical.segment_of(Lsn(made.transactions[10][0])) is None
        assert await logical.segment_of(Lsn(made.transactions[-1][0])) is not None

    asyncio.run(look())


def test_a_log_that_starts_inside_a_transaction_serves_consumers_that_have_it() -> None:
    """A newcomer's log. Consumers that lag behind its start learn that it lacks some entries."""
    made = Made(2, 60)
    lasts = [frame for frame in made.log.frames(START, SEGMENT) if frame.is_last]
    lsns = [0x100, *(lsn for lsn, _ in made.transactions)]
    inside = 0
    for start in range(START, made.log.end - SegmentHeader.BYTES, SEGMENT):
        made.oldest_lsn = Lsn(start)
        header = SegmentHeader.unpack(made.log.read(Lsn(start), Lsn(start + 64)), Lsn(start))
        goes_on = next(last for last in lasts if last.end_position > start)
        needed_lsn = goes_on.end_lsn if header.entry_start else header.end_lsn
        inside += needed_lsn > header.end_lsn
        for lsn in lsns:
            found = asyncio.run(LogicalLog(made.served()).segment_of(Lsn(lsn)))
            assert (found is not None) == (lsn >= needed_lsn), f"{start=:X} {lsn=:X}"
        first = next(lsn for lsn in lsns if lsn >= needed_lsn)
        expected = [one for one in made.transactions if one[0] > first]
        assert understood(asyncio.run(consume(made, first))) == expected, f"{start=:X} {first=:X}"
    assert inside > 2


def last_lsn(sent: bytes) -> int:
    """Return the LSN that the last keepalive or message names."""
    at = 0
    while at < len(sent):
        size = 1 + int.from_bytes(sent[at + 1 : at + 5], "big")
        lsn_at = at + (6 if sent[at + 5 : at + 6] == b"k" else 14)
        found, at = int.from_bytes(sent[lsn_at : lsn_at + 8], "big"), at + size
    return found


def kinds(sent: bytes) -> list[bytes]:
    return [bytes(m[:1]) for _, m in MessageSplitter().feed(without_keepalives(sent))]


@pytest.mark.parametrize("seed", range(3))
def test_a_consumer_of_what_is_local_gets_nothing_that_came_from_elsewhere(seed: int) -> None:
    """And can read all that it gets, whose tables may be described in what it does not get."""
    made = Made(seed, 60, mixed=True)
    assert made.foreign
    for start in [0x100, *(lsn for lsn, _ in made.transactions[::13])]:
        sent = asyncio.run(consume(made, start, Wishes(local_only=True)))
        local = [one for one in made.transactions if one[0] > start and one[0] not in made.foreign]
        assert understood(sent) == local, f"{start=:X}"
        assert b"O" not in kinds(sent)
    assert last_lsn(sent) >= max(made.foreign), "its slot moves past what it is not sent"


@pytest.mark.parametrize("seed", range(3))
def test_messages_are_for_consumers_that_ask_for_them(seed: int) -> None:
    made = Made(seed, 60, mixed=True)
    middle = made.transactions[30][0]
    for start in (0x100, middle):
        expected = [one for one in made.transactions if one[0] > start]
        everything = asyncio.run(consume(made, start))
        lone = sum(lsn > start for lsn in made.emitted)
        inside = sum(len(rows) for _, rows in expected)
        assert kinds(everything).count(b"M") == lone + inside
        without = asyncio.run(consume(made, start, Wishes(without=frozenset(b"M"))))
        assert b"M" not in kinds(without)
        assert understood(without) == understood(everything) == expected
        assert last_lsn(without) == made.emitted[-1], "its slot moves past what it is not sent"


def test_a_consumer_gets_its_own_encoding() -> None:
    """Whole entries in one frame, and one entry in many."""
    kept, stream = Kept(), new_stream(START, SEGMENT)
    stream.on_connected()
    stream.on_copy_data(begin(0x100))
    stream.on_copy_data(relation(1, "tübe"))
    texts = ["é", "ä" * (FRAME_BYTES_MAX // 4), "ascii", "ö" * (FRAME_BYTES_MAX // 4), "ü" * 600]
    for at, text in enumerate(texts * 2):
        stream.on_copy_data(insert(1, text.encode()))
        if at >= len(texts):  # one entry with five rows, and five with one each
            stream.on_copy_data(commit(0x100 * at, 0x100 * at + 0x20))
            stream.on_copy_data(begin(0x100 * at + 0x100))
    kept.log.take(stream)
    kept.readable_lsn = kept.log.end
    found = understood(asyncio.run(consume(kept, 0x100, encoding=client_encoding("LATIN1"))))
    rows = [row[13:].decode("latin_1") for _, given in found for row in given]
    assert rows == texts * 2 and len(found) == len(texts)


def test_a_slot_moves_with_its_consumers_word_and_never_past_what_was_sent() -> None:
    made = Made(5, 10)

    async def said() -> list[int | None]:
        slots, found = made.slots.slots, list[int | None]()
        await made.slots.create("s", temporary=False, restart_lsn=Lsn(0x100), pid=1)
        slots.acquire("s", pid=1)
        reader = LogicalReader(1, "u", "a", "", 0, Lsn(0x100), "s", sent_lsn=Lsn(0x180))
        stream = LogicalStream(
            made.served(), cast(ClientConnection, Client()), reader, START,
            limits=StreamLimits(), now=lambda: 0.0,
        )  # fmt: skip
        for lsn in (0, 0x120, 0x110, 0x900):
            status = StandbyStatus(Lsn(0x900), Lsn(lsn), Lsn(0x900), 0, reply_requested=False)
            stream._on_feedback(status)
            found.append(slots.get("s").restart_lsn)
        return found

    assert asyncio.run(said()) == [0x100, 0x120, 0x120, 0x180]


def test_a_slot_that_no_quorum_gets_is_refused_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("walkeeper_safekeeper.replication.logical_log.REPLICATE_S", 0.05)
    made = Made(1, 5)

    async def ask() -> None:
        logical = LogicalLog(made.served())
        with pytest.raises(SqlRefused) as caught:
            await logical.make_slot("late")
        assert caught.value.sqlstate == "57P03" and not logical.positions.news()
        # the log does not have it, so there is no answer to wait for
        await made.slots.create("unknown", temporary=False, restart_lsn=Lsn(0x100), pid=1)
        assert await logical.drop_slot("unknown", pid=1, wait=False)
        logical.positions.on_replicated({"known": Lsn(0x100)})
        assert not await logical.drop_slot("known", pid=1, wait=False)
        assert logical.positions.news() == (SlotNews("known", None),)
        with pytest.raises(SqlRefused):  # the drop, which is still on its way, would take it
            await logical.make_slot("known")
        assert logical.positions.news() == (SlotNews("known", None),)

    asyncio.run(ask())


class Beginning(Made):
    """A log without committed WAL until a consumer waits."""

    def __init__(self, *, ever: bool) -> None:
        super().__init__(1, 5)
        self._ever = ever

    async def wait_for_readable(self, beyond: Lsn, timeout_s: float) -> Lsn:
        assert beyond == self.readable_lsn and timeout_s <= 10
        await asyncio.sleep(0 if self._ever else timeout_s)
        if self._ever:  # the segment's header and no entry yet, then more
            whole = self.readable_lsn > START
            self.readable_lsn = self.log.end if whole else START + SegmentHeader.BYTES
        return self.readable_lsn


def test_a_consumer_of_a_log_that_begins_waits_for_its_first_settings() -> None:
    made = Beginning(ever=True)
    made.readable_lsn = START
    assert asyncio.run(LogicalLog(made.served()).known_settings()).publications == ("p",)


def test_a_log_that_no_proposer_streams_into_is_refused_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("walkeeper_safekeeper.replication.logical_log.REPLICATE_S", 0.05)
    made = Beginning(ever=False)
    made.readable_lsn = START
    with pytest.raises(SqlRefused, match="no proposer has streamed into") as caught:
        asyncio.run(LogicalLog(made.served()).known_settings())
    assert caught.value.sqlstate == "57P03"


def settings(*publications: str) -> LogSettings:
    return LogSettings(publications or ("p",), "shop", {}, {})


@pytest.mark.parametrize(
    ("options", "sqlstate"),
    [
        ({"publication_names": "p"}, "22023"),
        ({"proto_version": "1"}, "22023"),
        ({"proto_version": "x", "publication_names": "p"}, "22023"),
        ({"proto_version": "1", "publication_names": "q"}, "42704"),
        ({"proto_version": "1", "publication_names": "p,"}, "22023"),
        ({"proto_version": "1", "publication_names": "p", "binary": "often"}, "22023"),
        ({"proto_version": "1", "publication_names": "p", "origin": "here"}, "22023"),
        ({"proto_version": "1", "publication_names": "p", "messages": "true"}, "0A000"),
        ({"proto_version": "1", "publication_names": "p", "two_phase": "two"}, "22023"),
        ({"proto_version": "1", "publication_names": "p", "made_up": "1"}, "0A000"),
    ],
)
def test_options_that_the_log_does_not_fulfil_are_refused(
    options: dict[str, str], sqlstate: str
) -> None:
    with pytest.raises(SqlRefused) as caught:
        check_options(settings(), options)
    assert caught.value.sqlstate == sqlstate


def test_a_log_with_messages_gives_them_to_who_asks_and_origin_is_as_it_is_asked_for() -> None:
    given = LogSettings(("p",), "shop", {"messages": "true"}, {})
    asked = {"proto_version": "1", "publication_names": "p"}
    assert check_options(given, {**asked, "messages": "on"}) == Wishes()
    assert check_options(given, asked) == Wishes(without=frozenset(b"M"))
    assert check_options(settings(), {**asked, "origin": "NONE"}) == Wishes(local_only=True)


def test_the_options_of_a_subscription_are_accepted() -> None:
    options = {"proto_version": "4", "streaming": "on", "origin": "any", "binary": "true"}
    names = '"Odd ""one""", P'
    asked = {**options, "publication_names": names}
    assert check_options(settings("p", 'Odd "one"'), asked) == Wishes()
    both = {**asked, "two_phase": "on"}
    assert check_options(settings("p", 'Odd "one"'), both) == Wishes(two_phase=True)


def test_identifiers_are_split_as_postgresql_does() -> None:
    assert split_identifiers(' A , "B,c" ,"d""e"') == ["a", "B,c", 'd"e']
    for wrong in ("", "a,", ",a", '"a"b'):
        with pytest.raises(SqlRefused):
            split_identifiers(wrong)


def test_settings_say_where_changes_come_from() -> None:
    text = b'{"publications": ["p"], "database": "shop", "options": {}, "slots": {"s": "0/1A"}}'
    assert LogSettings.parse(text) == LogSettings(("p",), "shop", {}, {"s": Lsn(0x1A)})
