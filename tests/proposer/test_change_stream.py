"""A primary's logical stream becomes entries: each transaction once, in order, as it came."""

from __future__ import annotations

import json

import pytest

from tests.support.entry_maker import (
    SETTINGS,
    LogBytes,
    begin,
    commit,
    emitted,
    insert,
    keepalive,
    new_stream,
    piece,
    relation,
    sent,
    truncate,
    type_of,
)
from walkeeper_common.entries import FRAME_BYTES_MAX, EntryKind
from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.pgoutput import pack_copy_data
from walkeeper_common.wire.consumer_slots import SlotNews
from walkeeper_proposer.logical.change_stream import ChangeStream, Published

SEGMENT = 1 << 20
START = Lsn(SEGMENT)


class Stage:
    """A stream, the log that it makes, and what a reader finds in it."""

    def __init__(
        self,
        segment_bytes: int = SEGMENT,
        end_lsn: int = 0x100,
        tables: tuple[str, ...] = ("t",),
        streams: bool = False,
    ) -> None:
        self.segment_bytes = segment_bytes
        self.start = Lsn(segment_bytes)
        self.stream: ChangeStream = new_stream(
            self.start, segment_bytes, end_lsn=end_lsn, tables=tables
        )
        self.log = LogBytes(self.start)
        self.stream.on_connected(streams=streams)

    def feed(self, *payloads: bytes) -> None:
        for payload in payloads:
            self.stream.on_copy_data(payload)
            while self.stream.is_replaying:
                self.stream.replay(100)
        self.log.take(self.stream)

    def entries(self, start: Lsn | None = None) -> list[tuple[EntryKind, int, int, bytes]]:
        """Return (kind, begin LSN, end LSN, messages) of each whole entry from `start` on."""
        found, payload = [], b""
        for frame in self.log.frames(start or self.start, self.segment_bytes):
            payload += frame.payload
            if frame.is_last:
                found.append((frame.kind, int(frame.begin_lsn), int(frame.end_lsn), payload))
                payload = b""
        return found

    def changes(self) -> list[tuple[int, int, bytes]]:
        return [e[1:] for e in self.entries() if e[0] is EntryKind.TRANSACTION]

    def commits_all(self) -> Lsn | None:
        return self.stream.on_committed(self.log.end)


def settings(*tables: str, **slots: str) -> bytes:
    """Return the settings of a segment's first entry, with the tables."""
    known = {"tables": [["public", table] for table in tables]}
    return json.dumps({**SETTINGS, "slots": slots, **known}).encode()


def slots_only(**slots: str) -> bytes:
    return json.dumps({**SETTINGS, "slots": slots}).encode()


def wire(*payloads: bytes) -> bytes:
    return b"".join(pack_copy_data(payload) for payload in payloads)


def test_a_transaction_is_an_entry_with_its_messages_as_received() -> None:
    stage = Stage()
    first = (begin(0x110), relation(9), insert(9), commit(0x110, 0x140))
    second = (begin(0x150), insert(9), truncate(9), commit(0x150, 0x190))
    stage.feed(*first, *second)
    assert stage.entries() == [
        (EntryKind.SETTINGS, 0x100, 0x100, settings("t")),
        (EntryKind.TRANSACTION, 0x100, 0x140, wire(*first)),
        (EntryKind.TRANSACTION, 0x140, 0x190, wire(*second)),
    ]


def test_a_table_that_was_not_known_is_in_the_settings_at_once() -> None:
    stage = Stage()
    stage.feed(begin(0x110), relation(9), relation(8, "new"), insert(8), commit(0x110, 0x140))
    assert [e[::3] for e in stage.entries()[2:]] == [(EntryKind.SETTINGS, settings("new", "t"))]


def test_a_table_that_is_not_published_any_more_is_not_in_the_settings() -> None:
    stage = Stage()
    stage.feed(begin(0x110), relation(8, "new"), insert(8), commit(0x110, 0x120))
    stage.stream.on_published(
        Published(
            (
                ("public", "new"),
                ("public", "t"),
            )
        )
    )  # this is no news
    stage.feed(begin(0x130), insert(8))
    stage.stream.on_published(Published((("public", "t"),)))
    stage.feed(commit(0x130, 0x140))
    stage.stream.on_published(Published((("public", "u"),)))
    stage.feed()
    said = [e[3] for e in stage.entries() if e[0] is EntryKind.SETTINGS]
    assert said == [settings("t"), settings("new", "t"), settings("t"), settings("u")]
    stage.stream.on_disconnected()
    stage.stream.on_published(Published((("public", "t"),)))
    assert not stage.stream.take()[1]


def test_a_query_for_tables_is_answered_once_with_what_the_catalogs_have() -> None:
    """Between transactions, and without what an older description adds meanwhile."""
    stage = Stage()
    stream = stage.stream
    stream.on_published(Published((("public", "t"),)), ("a",))
    assert stream.unanswered(("a", "b")) == ("b",)
    stage.feed(begin(0x130))
    stream.on_published(Published((("public", "u"),)), ("b",))
    stream.on_published(Published((("public", "v"),)), ("c",))
    assert stream.unanswered(("a", "b", "c", "d")) == ("d",)
    stage.feed(relation(8, "old"), insert(8), commit(0x130, 0x140))
    said = [json.loads(e[3]) for e in stage.entries() if e[0] is EntryKind.SETTINGS]
    answers = [(one["answered"], one["tables"]) for one in said if "answered" in one]
    assert answers == [(["a"], [["public", "t"]]), (["b", "c"], [["public", "v"]])]


def test_a_query_that_no_answer_was_made_for_is_asked_again_on_the_next_connection() -> None:
    stage = Stage()
    stage.feed(begin(0x130))
    stage.stream.on_published(Published((("public", "u"),)), ("a",))
    stage.stream.on_disconnected()
    stage.stream.on_connected()
    assert stage.stream.unanswered(("a",)) == ("a",)
    stage.stream.on_published(Published((("public", "v"),)), ("a",))
    assert stage.stream.unanswered(("a",)) == ()


def test_postgresql_gets_the_end_of_the_last_whole_entry_that_is_committed() -> None:
    stage = Stage()
    assert stage.stream.on_committed(stage.start) == 0x100
    stage.feed(begin(0x110), relation(9), insert(9), commit(0x110, 0x140))
    end = stage.log.end
    assert stage.stream.on_committed(end - 1) == 0x100  # the settings
    assert stage.stream.on_committed(end) == 0x140
    assert stage.stream.on_committed(end) is None


def test_a_transaction_that_the_log_has_is_dropped_but_its_relations_are_remembered() -> None:
    stage = Stage(end_lsn=0x140)
    known = (begin(0x110), type_of(77), relation(9), insert(9), commit(0x110, 0x140))
    new = (begin(0x140), insert(9), commit(0x140, 0x180))
    stage.feed(*known, *new)
    assert stage.changes() == [
        (0x140, 0x180, wire(new[0], type_of(77), relation(9), *new[1:])),
    ]


def test_every_segment_begins_with_settings_and_describes_what_it_uses() -> None:
    stage = Stage(segment_bytes=1024)
    stage.feed(begin(0x110), type_of(77), relation(9), relation(8), commit(0x110, 0x120))
    for n in range(40):
        lsn = 0x120 + 0x10 * n
        stage.feed(begin(lsn), insert(9, b"v" * 50), insert(8), commit(lsn, lsn + 0x10))
    for segment in range(stage.start, stage.log.end, 1024):
        starting = [
            frame
            for frame in stage.log.frames(Lsn(segment), 1024)
            if frame.is_first and segment <= frame.position < segment + 1024
        ]
        kinds = [frame.kind for frame in starting]
        assert EntryKind.SETTINGS not in kinds[1:] and kinds[:1] in ([], [EntryKind.SETTINGS])
        if len(starting) > 2:
            found = b"".join(bytes(frame.payload) for frame in starting[1:])
            at = [found.index(pack_copy_data(m)) for m in (relation(9), relation(8), insert(8))]
            assert found.index(pack_copy_data(type_of(77))) < at[0] < at[1] < at[2]
    assert len(stage.changes()) == 41


def test_keepalives_make_one_progress_entry_at_a_time() -> None:
    stage = Stage()
    stage.feed(keepalive(0x100), keepalive(0x120), keepalive(0x130), keepalive(0x140))
    assert [e[:3] for e in stage.entries()[1:]] == [(EntryKind.PROGRESS, 0x100, 0x120)]
    assert stage.commits_all() == 0x120
    stage.log.take(stage.stream)
    assert [e[:3] for e in stage.entries()[2:]] == [(EntryKind.PROGRESS, 0x120, 0x140)]
    assert stage.commits_all() == 0x140
    assert not stage.stream.take()[1]


def test_a_keepalive_inside_a_transaction_waits_for_its_end() -> None:
    stage = Stage()
    stage.feed(begin(0x110), keepalive(0x10F), relation(9), insert(9))
    assert len(stage.entries()) == 1
    stage.feed(keepalive(0x150), commit(0x110, 0x140))
    kinds = [e[:3] for e in stage.entries()[1:]]
    assert kinds == [(EntryKind.TRANSACTION, 0x100, 0x140), (EntryKind.PROGRESS, 0x140, 0x150)]


def test_a_transaction_that_was_cut_off_comes_again_and_counts_once() -> None:
    stage = Stage()
    big = insert(9, b"v" * FRAME_BYTES_MAX)
    stage.feed(begin(0x110), relation(9), big)
    stage.stream.on_connected()
    stage.feed(begin(0x110), relation(9), big, commit(0x110, 0x140))
    kinds = [(kind, begin_lsn, end_lsn) for kind, begin_lsn, end_lsn, _ in stage.entries()]
    assert kinds == [
        (EntryKind.SETTINGS, 0x100, 0x100),
        (EntryKind.ABANDONED, 0x100, 0x100),
        (EntryKind.SETTINGS, 0x100, 0x100),
        (EntryKind.TRANSACTION, 0x100, 0x140),
    ]
    assert stage.changes()[0][2] == wire(begin(0x110), relation(9), big, commit(0x110, 0x140))


def test_a_message_outside_of_transactions_is_an_entry_of_its_own_and_kept_once() -> None:
    stage = Stage()
    first = (begin(0x110), relation(9), insert(9), commit(0x110, 0x140))
    lone = emitted(0x160)
    last = (begin(0x170), emitted(0x168, transactional=True), commit(0x170, 0x190))
    stage.feed(*first, lone, *last)
    kept = [
        (0x100, 0x140, wire(*first)),
        (0x140, 0x160, wire(lone)),
        (0x160, 0x190, wire(*last)),
    ]
    assert stage.changes() == kept
    stage.stream.on_connected()  # and everything comes again
    later = emitted(0x1A0)
    stage.feed(*first, lone, *last, later)
    assert stage.changes() == [*kept, (0x190, 0x1A0, wire(later))]
    assert stage.commits_all() == 0x1A0


def test_no_entry_is_made_between_two_connections() -> None:
    """The core has asked for a stream from the log's end: it must not move meanwhile."""
    stage = Stage()
    stage.feed(keepalive(0x120), keepalive(0x130))  # one of them waits for the other's commit
    stage.stream.on_consumer_slots((SlotNews("a", Lsn(0x100), is_new=True),))
    stage.stream.on_consumer_slots((SlotNews("b", Lsn(0x100), is_new=True),))
    stage.feed()
    end = stage.log.end
    stage.stream.on_disconnected()
    assert stage.commits_all() == 0x120
    stage.feed()
    assert stage.log.end == end == stage.stream.writer.position
    stage.stream.on_connected()
    stage.feed()
    assert stage.entries()[-1][3] == slots_only(a="0/120", b="0/120")


def test_slots_are_written_one_entry_at_a_time_and_taken_together() -> None:
    stage = Stage()
    stage.stream.on_consumer_slots((SlotNews("a", Lsn(0x100), is_new=True),))
    stage.stream.on_consumer_slots((SlotNews("a", Lsn(0x120)), SlotNews("lost", Lsn(0x130))))
    stage.stream.on_consumer_slots((SlotNews("b", Lsn(0x110), is_new=True),))
    stage.stream.on_consumer_slots((SlotNews("a", Lsn(0x110)),))
    stage.log.take(stage.stream)
    assert [e[3] for e in stage.entries()] == [settings("t"), slots_only(a="0/100")]
    stage.commits_all()
    stage.log.take(stage.stream)
    assert stage.entries()[2][3] == slots_only(a="0/120", b="0/110")
    stage.commits_all()
    stage.stream.on_consumer_slots((SlotNews("a", None),))
    stage.log.take(stage.stream)
    assert stage.entries()[3][3] == slots_only(b="0/110")


def test_a_new_slot_begins_where_the_log_ends_also_if_it_is_reported_again() -> None:
    """Its safekeeper may lag, and reports the slot until it has seen it in the log."""
    stage = Stage(end_lsn=0x140)
    news = (SlotNews("a", Lsn(0x100), is_new=True),)
    stage.stream.on_consumer_slots(news)
    stage.feed(begin(0x150), relation(9), insert(9))
    stage.stream.on_consumer_slots((*news, SlotNews("b", Lsn(0x100), is_new=True)))
    stage.feed(commit(0x150, 0x170))
    stage.stream.on_consumer_slots(news)
    stage.commits_all()
    stage.feed()
    assert [e[3] for e in stage.entries() if e[0] is EntryKind.SETTINGS][1:] == [
        slots_only(a="0/140"),
        slots_only(a="0/140", b="0/140"),
    ]


def test_slots_wait_for_the_end_of_a_transaction() -> None:
    stage = Stage()
    stage.feed(begin(0x110), relation(9), insert(9))
    stage.stream.on_consumer_slots((SlotNews("a", Lsn(0x100), is_new=True),))
    stage.feed(commit(0x110, 0x140))
    kinds = [(kind, end_lsn) for kind, _, end_lsn, _ in stage.entries()[1:]]
    assert kinds == [(EntryKind.TRANSACTION, 0x140), (EntryKind.SETTINGS, 0x140)]


def test_a_keepalive_that_asks_is_answered() -> None:
    stage = Stage()
    assert stage.stream.on_copy_data(keepalive(0x100, asks=True))
    assert not stage.stream.on_copy_data(keepalive(0x100))


@pytest.mark.parametrize(
    "payloads",
    [
        (insert(9),),
        (begin(0x110), begin(0x120)),
        (begin(0x110), commit(0x110, 0x140)[:-3]),
        (begin(0x110), sent(b"I\0")),
        piece(relation(9)),
        (sent(b""),),
        (begin(0x110)[:-1],),
    ],
    ids=["outside", "nested", "short commit", "short change", "streamed", "empty", "short begin"],
)
def test_a_stream_without_whole_transactions_is_refused(payloads: tuple[bytes, ...]) -> None:
    with pytest.raises(RemoteProtocolError):
        Stage().feed(*payloads)
