"""Logical logs: the frames in segments, what a primary sends, and what a settings entry says.

`entries` walks over the bytes of a log whose CRCs and positions are right. Promises: it raises
InvalidWal alone, and reads no byte outside [base, limit). A walk whose limit is raised step by step
finds what one walk finds. Every way into the log ends in time and inside of it.

`pgoutput` is a connection after the other with messages of a walsender. Promises: only
RemoteProtocolError or CannotStream are raised, and they end that connection. The outcome is a log
of whole entries with ends that never go back, and of transactions from their Begin to their Commit.

`log_settings`: CorruptWal and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from struct import Struct
from zlib import crc32

from crc32c import crc32c

from tests.proof.fuzz.contract import Target, require
from tests.proof.fuzz.mutation import altered_items, havoc
from tests.proof.fuzz.wal import Bounded
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
    stream_abort,
    stream_commit,
    stream_start,
    stream_stop,
    streamed,
    truncate,
    type_of,
)
from walkeeper_common.entries import (
    FIRST,
    SEGMENT_MAGIC,
    EntryKind,
    EntryWalk,
    Frame,
    SegmentHeader,
    record_end_before,
    scan,
)
from walkeeper_common.errors import CorruptWal, RemoteProtocolError
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.pgoutput import BEGIN, COMMIT, MESSAGE, MessageSplitter
from walkeeper_common.postgres.walformat import InvalidWal
from walkeeper_proposer.logical.open_transactions import CannotStream
from walkeeper_safekeeper.replication.log_settings import LogSettings

SIZES = (256, 512, 4096)
SEGMENTS_MAX = 6
EVENT = Struct("<BH")
# Three of eight kinds; the others are messages. LOST: the connection, if it begins to replay.
LOST, CONNECT, COMMITTED = 5, 6, 7


def laid_out(data: bytes) -> tuple[bytes, Lsn, int]:
    """Split an input into (the log's bytes, its first position, segment size)."""
    size = SIZES[data[0] % len(SIZES)] if data else SIZES[0]
    return data[1 : 1 + SEGMENTS_MAX * size], Lsn(size), size


def run_entries(data: bytes) -> None:
    log, base, size = laid_out(data)
    wal, limit = Bounded(log, base), base + len(log)
    found = scan(wal, start_lsn=base, limit_lsn=limit, segment_bytes=size)
    require(base <= found.end_lsn <= limit, "{} of [{}, {})", found, base, limit)
    walk, steps = EntryWalk(wal, base, base, size), crc32(log) % 97 + 3
    try:
        while walk.limit < limit:
            walk.limit = min(walk.limit + steps, limit)
            for frame in walk:
                require(frame.end_position <= walk.limit, "{} beyond {}", frame, walk.limit)
    except InvalidWal as error:
        require(base <= error.lsn <= limit, "{}", error)
    end = walk.record.end_lsn if walk.record is not None else base
    require(end == found.end_lsn, "in steps of {}: {}, at once {}", steps, end, found)
    for place in (found.end_lsn, limit):
        try:
            before = record_end_before(wal, first_lsn=base, flush_lsn=place, segment_bytes=size)
        except InvalidWal:
            continue
        require(base <= before.end_lsn <= place, "{} below {}", before, place)
    for segment in range(base, limit, size):
        try:
            EntryWalk(wal, Lsn(segment), limit, size).last_record()
        except InvalidWal as error:
            require(error.lsn <= limit, "{}", error)


def repair_entries(data: bytes, random: Random) -> bytes:
    """Put headers in their places, and give frames sizes that fit, their positions and CRCs."""
    log, base, size = laid_out(data)
    room = size - SegmentHeader.BYTES
    pieces = [log[at : at + size] for at in range(0, len(log), size)]
    content = bytearray(b"".join(piece[SegmentHeader.BYTES :] for piece in pieces))
    at = 0
    while at + Frame.BYTES <= len(content):
        length = int.from_bytes(content[at : at + 4], "big")
        if length > len(content) - at - Frame.BYTES and random.randrange(8):
            length = random.randrange(min(200, len(content) - at - Frame.BYTES) + 1)
        place = base + at // room * size + SegmentHeader.BYTES + at % room
        content[at : at + 4] = length.to_bytes(4, "big")
        content[at + 8 : at + 16] = int(place).to_bytes(8, "big")
        end = at + Frame.BYTES + length
        crc = crc32c(bytes(content[at + 8 : end]))
        content[at + 4 : at + 8] = crc.to_bytes(4, "big")
        at = end
    made = data[:1]
    for number, part in enumerate(pieces):
        body = SEGMENT_MAGIC + (base + number * size).to_bytes(8, "big") + part[16 : 16 + 28]
        head = body.ljust(SegmentHeader.LAYOUT.size, b"\0")
        head += crc32c(head).to_bytes(4, "big")
        inner = content[number * room : (number + 1) * room]
        made += (head + inner)[: max(len(part), 1)]
    return made


def _a_log(size: int, count: int) -> bytes:
    stream, log = new_stream(Lsn(size), size), LogBytes(Lsn(size))
    stream.on_connected()
    lsn = 0x110
    for number in range(count):
        stream.on_copy_data(begin(lsn))
        stream.on_copy_data(relation(number % 3))
        stream.on_copy_data(insert(number % 3, b"v" * (number * 37 % 300)))
        if number % 5 == 4:
            log.take(stream)
            stream.on_connected()
            continue
        lsn += 0x20
        stream.on_copy_data(commit(lsn - 0x20, lsn))
        stream.on_copy_data(keepalive(lsn + 8))
    log.take(stream)
    return bytes(log.data)


def _entries_seeds() -> Iterable[bytes]:
    for choice, size in enumerate(SIZES):
        for count in (1, 4, 9):
            yield bytes([choice]) + _a_log(size, count)[: size * SEGMENTS_MAX]
    yield b"\1" + bytes(600)


# Messages of a primary


def events_of(data: bytes) -> list[bytes]:
    """Split into events, each with its head; the last one may be cut off."""
    found = []
    while len(data) >= EVENT.size:
        _, length = EVENT.unpack_from(data)
        found.append(data[: EVENT.size + length])
        data = data[EVENT.size + length :]
    return found


def event(payload: bytes, what: int = 0) -> bytes:
    return EVENT.pack(what, len(payload)) + payload


def run_pgoutput(data: bytes) -> None:
    stream, log = new_stream(Lsn(4096), 4096), LogBytes(Lsn(4096))
    stream.on_connected(streams=True)
    for each in events_of(data):
        match each[0] % 8:
            case w if w == CONNECT:
                stream.on_connected(streams=True)
            case w if w == COMMITTED:
                log.take(stream)
                said = stream.on_committed(log.end)
                require(said is None or said <= stream.end_lsn, "{} said", said)
            case _:
                try:
                    stream.on_copy_data(each[EVENT.size :])
                    while stream.is_replaying:
                        stream.replay(200)
                        if each[0] % 8 == LOST:
                            stream.on_connected(streams=True)
                except (RemoteProtocolError, CannotStream):
                    stream.on_connected(streams=True)  # the next one
    log.take(stream)
    end_lsn = stream.end_lsn  # makes the entries that waited for this commit
    require(stream.on_committed(log.end) in (None, end_lsn), "not told {}", end_lsn)
    _check_log(log)


def _check_log(log: LogBytes) -> None:
    kinds: list[int] = []
    splitter, end_lsn = MessageSplitter(), Lsn(0)
    for frame in log.frames(log.begin, 4096):
        if frame.flags & FIRST:
            splitter, kinds = MessageSplitter(), []
        if frame.kind is EntryKind.TRANSACTION:
            kinds += [message[0] for _, message in splitter.feed(frame.payload)]
        if not frame.is_last:
            continue
        require(frame.end_lsn >= end_lsn, "{} behind {}", frame, end_lsn)
        end_lsn = frame.end_lsn
        if frame.kind is EntryKind.TRANSACTION:
            whole = kinds[:1] == [BEGIN] and kinds[-1:] == [COMMIT] and kinds.count(BEGIN) == 1
            require(whole or kinds == [MESSAGE], "{} in {}", kinds, frame)


def alter_pgoutput(data: bytes, random: Random) -> bytes:
    return b"".join(altered_items(events_of(data), random, _change_event))


def _change_event(each: bytes, random: Random) -> bytes:
    if len(each) <= EVENT.size or random.randrange(8) == 0:
        return event(random.choice(MESSAGES), random.randrange(8))
    return event(havoc(each[EVENT.size :], random)[:2000], each[0])


MESSAGES = [
    begin(0x110), commit(0x110, 0x140), relation(1), relation(2, "ü"), type_of(3), insert(1),
    insert(2, b"x" * 300), truncate(1, 2), keepalive(0x200), keepalive(0x300, asks=True),
    sent(b"O" + bytes(8) + b"origin\0"), sent(b"M" + bytes(20)), emitted(0x180),
    stream_start(), stream_stop(), stream_abort(), stream_abort(subxid=8), streamed(relation(1)),
    streamed(insert(1)), streamed(insert(1), 8), streamed(truncate(1), 9), stream_start(8),
    stream_commit(0x110, 0x140), begin(0x210), commit(0x210, 0x240),
]  # fmt: skip


def _pgoutput_seeds() -> Iterable[bytes]:
    for message in MESSAGES:
        yield event(message)
    one = [begin(0x110), relation(1), insert(1), truncate(1), commit(0x110, 0x140)]
    two = [begin(0x210), type_of(9), relation(1, "other"), insert(1), keepalive(0x220)]
    yield b"".join(map(event, [*one, *two, commit(0x210, 0x240)]))
    yield b"".join(map(event, two)) + event(b"", CONNECT) + b"".join(map(event, [*one, *two]))
    yield b"".join(map(event, [*one, keepalive(0x180)])) + event(b"", COMMITTED) + event(one[0])
    yield b"".join(map(event, [begin(0x110), relation(1), insert(1, b"y" * 3000), *one]))
    inside = emitted(0x120, transactional=True)
    yield b"".join(map(event, [emitted(0x100), one[0], inside, *one[1:], emitted(0x190), *two]))
    rows = (relation(1), insert(1, b"z" * 300), truncate(1))
    yield b"".join(
        map(event, [*piece(*rows), *one, *piece(insert(1)), stream_commit(0x210, 0x240)])
    )
    inner = [*piece(*rows), stream_start(), streamed(insert(1), 8), stream_stop()]
    undone = [stream_abort(subxid=8), *piece(*rows), *piece(*rows, xid=9), stream_abort(9, 9)]
    yield b"".join(map(event, [*inner, *undone, stream_commit(0x110, 0x140), *two]))
    yield b"".join(map(event, inner)) + event(stream_commit(0x110, 0x140), LOST) + event(one[0])


# Settings entries


def run_settings(data: bytes) -> None:
    try:
        settings = LogSettings.parse(data)
    except CorruptWal:
        return
    require(all(isinstance(lsn, Lsn) for lsn in settings.slots.values()), "{}", settings)
    texts = (settings.encoding, *settings.answered)
    require(all(isinstance(text, str) for text in texts), "{}", settings)
    again = LogSettings.parse(data, settings)
    require(again.publications == settings.publications, "{} and {}", settings, again)


def _settings_seeds() -> Iterable[bytes]:
    yield b'{"publications": ["p"], "options": {}}'
    yield b'{"publications": ["p", "q"], "options": {"proto_version": "4"}, "database": "d"}'
    yield b'{"publications": [], "options": {}, "slots": {"s": "0/10"}, "tables": [["a", "b"]]}'
    yield b'{"publications": ["p"], "options": {}, "slots": {"s": "x"}}'
    yield b'{"publications": "p", "options": 1, "tables": [["a"]]}'
    yield b'{"publications": ["p"], "options": {}, "encoding": "LATIN1", "answered": ["a", "b"]}'
    yield b'{"publications": ["p"], "options": {}, "encoding": 1, "answered": [{}]}'
    yield repr(SETTINGS).replace("'", '"').encode()


ENTRIES = Target(
    name="entries",
    about="the frames of a logical log, behind their CRCs",
    run=run_entries,
    seeds=_entries_seeds,
    bytes_max=1 + SEGMENTS_MAX * 512,
    repair=repair_entries,
)
PGOUTPUT = Target(
    name="pgoutput",
    about="what a walsender sends to a logical proposer, over several connections",
    run=run_pgoutput,
    seeds=_pgoutput_seeds,
    bytes_max=4096,
    alter=alter_pgoutput,
)
LOG_SETTINGS = Target(
    name="log_settings",
    about="a logical log's settings entry",
    run=run_settings,
    seeds=_settings_seeds,
    bytes_max=512,
)
