"""PostgreSQL's protocol, both sides of it: what clients send us, and what we and a server answer.

Promises: only RemoteProtocolError or SqlRefused are raised. The messages are the same in any
pieces. A payload that parses is packed to the same bytes. No text of 64 KiB holds up the event
loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from random import Random
from zlib import crc32

from tests.proof.fuzz.contract import Target, require
from tests.proof.fuzz.mutation import altered_items, havoc
from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.pgwire import (
    GSSENC_REQUEST,
    QUERY_BYTES_MAX,
    SSL_REQUEST,
    STARTUP_BYTES_MAX,
    Column,
    HotStandbyFeedback,
    Keepalive,
    Message,
    MessageBuffer,
    SqlRefused,
    StandbyStatus,
    Startup,
    XLogData,
    data_row,
    error_response,
    message,
    negotiate_protocol_version,
    parse_error_fields,
    request_packet,
    row_description,
    startup_packet,
    unpack_from_receiver,
    unpack_from_sender,
)
from walkeeper_common.postgres.replication_commands import is_empty, parse_command
from walkeeper_common.timelines import parse_timeline_file
from walkeeper_safekeeper.replication.login import parse_login

CLUSTERS = ("main", "other")
PIECES = (1, 3, 4, 5, 7, 50, 1000)
PIECES_MAX = 200
PARSE_S_MAX = 0.5  # for 64 KiB at the most; milliseconds where nothing is wrong
CLIENT_BYTES_MAX = 4096
COMMAND_BYTES_MAX = 1000  # but for one in some hundred, of QUERY_BYTES_MAX
HEAD_BYTES = 5  # tag and length


# A client's bytes, as a session takes them


def run_client(data: bytes) -> None:
    whole = _session(data, (len(data) or 1,))
    least, number = len(data) // PIECES_MAX, crc32(data)
    sizes = (max(least, PIECES[number % 7]), max(least, PIECES[number // 7 % 7]))
    require(
        _session(data, sizes) == whole, "in pieces of {}: another session than {}", sizes, whole
    )


def _session(data: bytes, sizes: tuple[int, ...]) -> list[object]:
    """Return all messages that were understood, and at its end the error."""
    buffer, seen = MessageBuffer(), list[object]()
    at = turn = 0
    logged_in = False
    try:
        while at < len(data):
            size = sizes[turn % len(sizes)]
            turn += 1
            buffer.feed(data[at : at + size])
            at += size
            while True:
                found = buffer.next_message() if logged_in else buffer.next_startup()
                if found is None:
                    break
                seen.append(found)
                if isinstance(found, Startup):
                    logged_in = True
                    seen.append(_login(found))
                elif isinstance(found, Message):
                    seen.append(_understood(found.tag, found.body, found.text))
            limit = (buffer.body_bytes_max + HEAD_BYTES) if logged_in else STARTUP_BYTES_MAX
            require(len(buffer) < limit, "{} bytes held", len(buffer))
    except RemoteProtocolError:
        seen.append("broken")
    return seen


def _login(startup: Startup) -> object:
    if startup.minor == 0 and not any("\ufffd" in w for p in startup.parameters.items() for w in p):
        again = MessageBuffer()
        again.feed(startup_packet(startup.parameters))
        require(again.next_startup() == startup, "{} is packed as something else", startup)
    with suppress(RemoteProtocolError):
        _parse_whole(negotiate_protocol_version(startup.protocol_options))
    try:
        return parse_login(startup.parameters, CLUSTERS)
    except SqlRefused as refused:
        _check_error(refused)
        return refused.sqlstate


def _understood(tag: bytes, body: bytes, text: Callable[[], str]) -> object:
    if tag == b"Q":
        return run_command(text())
    if tag == b"d":
        said = unpack_from_receiver(body)
        # The last byte is a boolean, of which only 0 and 1 are packed.
        require(said.pack()[:-1] == body[:-1], "{} was {!r}", said, body)
        return said
    return tag


def run_command(text: str) -> object:
    """Parse one simple query."""
    started = time.process_time()
    try:
        command: object = None if is_empty(text) else parse_command(text)
    except SqlRefused as refused:
        _check_error(refused)
        command = refused.sqlstate
    took_s = time.process_time() - started
    require(took_s < PARSE_S_MAX, "{:.1f} s for a query of {} characters", took_s, len(text))
    return command


def _check_error(refused: SqlRefused) -> None:
    """Check that the client can read the error that it gets."""
    body = _parse_whole(error_response(refused))
    require(parse_error_fields(body)["C"] == refused.sqlstate, "{} was sent as {!r}", refused, body)


def _parse_whole(sent: bytes) -> bytes:
    buffer = MessageBuffer(1 << 20)
    buffer.feed(sent)
    received = buffer.next_message()
    require(received is not None and len(buffer) == 0, "{!r} is not one message", sent)
    assert received is not None
    return received.body


# A query alone


def run_commands(data: bytes) -> None:
    run_command(data.decode("utf-8", "replace"))


# Messages of a server


def run_replies(data: bytes) -> None:
    """Parse the rest as the kind that the first byte says."""
    kind, body = data[:1], data[1:]
    match kind:
        case b"d":
            with suppress(RemoteProtocolError):
                _check_copy_data(body)
        case b"E":
            with suppress(RemoteProtocolError):
                parse_error_fields(body)
        case b"h":
            for timeline, lsn in parse_timeline_file(body):
                require(
                    timeline >= 0 and Lsn.parse(str(lsn)) == lsn,
                    "timeline={} lsn={}",
                    timeline,
                    lsn,
                )
        case b"t":
            text = body.decode("utf-8", "replace")
            _check_error(SqlRefused("42601", text, detail=text[::2], hint=text[1::2]))
            _parse_whole(row_description([Column(text)]))
            _parse_whole(data_row([text, None, body]))
        case b"m":
            buffer = MessageBuffer(body_bytes_max=100)
            buffer.feed(body)
            with suppress(RemoteProtocolError):
                while (received := buffer.next_message()) is not None:
                    require(len(received.body) <= 100, "{}", received)


def _check_copy_data(body: bytes) -> None:
    said = unpack_from_sender(body)
    if isinstance(said, Keepalive):
        require(said.pack()[:-1] == body[:-1], "{} was {!r}", said, body)
        return
    header = XLogData.pack_header(
        start_lsn=said.start_lsn,
        wal_end_lsn=said.wal_end_lsn,
        sent_at_us=said.sent_at_us,
        payload_bytes=len(said.payload),
    )
    require(header[HEAD_BYTES:] + said.payload == body, "{} was {!r}", said, body)


# Mutations


def split_client(data: bytes) -> list[bytes]:
    """Split into startup packets up to the login, then tagged messages, by their lengths."""
    items: list[bytes] = []
    logged_in = False
    while len(data) >= 8:
        size = int.from_bytes(data[1:5], "big") + 1 if logged_in else int.from_bytes(data[:4])
        if not 5 <= size <= len(data):
            break
        logged_in = logged_in or data[4:6] == b"\0\3"
        items.append(data[:size])
        data = data[size:]
    return [*items, data] if data else items


def _change_client(item: bytes, random: Random) -> bytes:
    if random.randrange(8) == 0:
        return random.choice(CLIENT_MESSAGES)
    if item[:1] == b"\0":
        return with_size(item[4:8], havoc(item[8:], random))
    if item[:1] == b"Q":
        return message(b"Q", havoc(item[5:-1], random), b"\0")
    return message(item[:1] or b"Q", havoc(item[5:], random))


def with_size(*parts: bytes) -> bytes:
    body = b"".join(parts)
    return (len(body) + 4).to_bytes(4, "big") + body


def alter_client(data: bytes, random: Random) -> bytes:
    return b"".join(altered_items(split_client(data), random, _change_client))


def repair_client(data: bytes, random: Random) -> bytes:
    """Add terminators where there should be some."""
    items = split_client(data)
    for at, item in enumerate(items):
        if item[4:6] == b"\0\3" and not item.endswith(b"\0\0"):
            items[at] = with_size(item[4:].rstrip(b"\0"), b"\0\0")
        elif item[:1] == b"Q" and len(item) > 5 and not item.endswith(b"\0"):
            items[at] = message(b"Q", item[5:].replace(b"\0", b" "), b"\0")
    return b"".join(items)


WORDS = [
    b"START_REPLICATION", b"SLOT", b"PHYSICAL", b"LOGICAL", b"TIMELINE", b"IDENTIFY_SYSTEM",
    b"SHOW", b"CREATE_REPLICATION_SLOT", b"TEMPORARY", b"RESERVE_WAL", b"(", b")", b",", b";",
    b"DROP_REPLICATION_SLOT", b"WAIT", b"READ_REPLICATION_SLOT", b"TIMELINE_HISTORY",
    b"BASE_BACKUP", b"0/16B3748", b"FFFFFFFF/FFFFFFFF", b"1", b"4294967296", b'"a""b"',
    b"'on'", b"slot_1",
    b"/*", b"*/", b"--", b"\n", b"\xc3\xbc", b"true", b"select pg_is_in_recovery()",
]  # fmt: skip


def alter_command(data: bytes, random: Random) -> bytes:
    """Put a word in, out, or in very often: quadratic time needs length to show."""
    words = data[:COMMAND_BYTES_MAX].split(b" ")
    at = random.randrange(len(words))
    match random.randrange(200):
        case 0:
            word = random.choice([*words, *WORDS]) + random.choice((b"", b" "))
            long = b" ".join(words[:at]) + word * (QUERY_BYTES_MAX // max(1, len(word)))
            return long[:QUERY_BYTES_MAX]
        case number if number < 100:
            words.insert(at, random.choice(WORDS))
        case number if number < 150:
            words[at] = random.choice(WORDS)
        case _:
            del words[at]
    return b" ".join(words)


COMMANDS_OF_CLIENTS = [
    b"IDENTIFY_SYSTEM", b"SHOW wal_segment_size", b"READ_REPLICATION_SLOT s1",
    b'CREATE_REPLICATION_SLOT "s1" TEMPORARY PHYSICAL RESERVE_WAL',
    b"CREATE_REPLICATION_SLOT s2 PHYSICAL (RESERVE_WAL 'on', RESERVE_WAL)",
    b'CREATE_REPLICATION_SLOT "s" LOGICAL pgoutput (SNAPSHOT \'use\')',
    b"DROP_REPLICATION_SLOT s1 WAIT;", b"START_REPLICATION 0/3000000 TIMELINE 1",
    b'START_REPLICATION SLOT "s1" PHYSICAL 0/16B3748 TIMELINE 4294967295', b"TIMELINE_HISTORY 2",
    b"BASE_BACKUP (LABEL 'x')", b"select pg_is_in_recovery()", b"/* a */ -- b\n ;", b"",
]  # fmt: skip
STATUS = StandbyStatus(Lsn(1 << 20), Lsn(1 << 20), Lsn(99), 5, True)
FEEDBACK = HotStandbyFeedback(7, 700, 1, 0, 0)
LOGIN = {"user": "replica", "database": "replication", "replication": "true"}
CLIENT_MESSAGES = [
    *(message(b"Q", command + b"\0") for command in COMMANDS_OF_CLIENTS),
    message(b"d", STATUS.pack()),
    message(b"d", FEEDBACK.pack()),
    *(message(tag) for tag in (b"c", b"X", b"S", b"H")),
    message(b"P", b"\0select 1\0\0\0"),
]
LOGINS = [
    LOGIN,
    {**LOGIN, "options": r"-c walkeeper.cluster=main -cdatestyle=iso --a\ b=c", "a": "b"},
    {"user": "u", "database": "other", "application_name": "psql\u00fc", "_pq_.x": "1"},
    {"user": "u", "replication": "database"},
]


def _client_seeds() -> Iterable[bytes]:
    for login in LOGINS:
        yield startup_packet(login) + b"".join(CLIENT_MESSAGES[:3])
    asked = request_packet(SSL_REQUEST) + request_packet(GSSENC_REQUEST)
    yield asked + startup_packet(LOGIN, minor=2) + b"".join(CLIENT_MESSAGES)
    yield with_size(b"\x04\xd2\x16\x2e" + bytes(8))
    for sent in CLIENT_MESSAGES:
        yield startup_packet(LOGIN) + sent


def _reply_seeds() -> Iterable[bytes]:
    xlog = XLogData.pack_header(
        start_lsn=Lsn(8), wal_end_lsn=Lsn(99), sent_at_us=-1, payload_bytes=9
    )
    yield b"d" + xlog[HEAD_BYTES:] + b"wal bytes"
    yield b"d" + Keepalive(Lsn(5), 6, True).pack()
    yield b"E" + error_response(SqlRefused("42601", "m", detail="d", hint="h"))[HEAD_BYTES:]
    yield b"h1\t0/3000000\tno recovery target\n2\tF/0\tx\n"
    yield b"t" + "naïve \0 text".encode()
    yield b"m" + message(b"Z", b"I") + message(b"E", b"SFATAL\0\0")


CLIENT = Target(
    name="pg_client",
    about="a PostgreSQL client's startup, queries and feedback, in any pieces",
    run=run_client,
    seeds=_client_seeds,
    bytes_max=CLIENT_BYTES_MAX,
    alter=alter_client,
    repair=repair_client,
)
COMMANDS = Target(
    name="pg_commands",
    about="one query string: the replication commands",
    run=run_commands,
    seeds=lambda: [*COMMANDS_OF_CLIENTS, b" ".join(WORDS)],
    bytes_max=QUERY_BYTES_MAX,
    alter=alter_command,
)
REPLIES = Target(
    name="pg_replies",
    about="what a server sends: CopyData, errors, rows, a .history file",
    run=run_replies,
    seeds=_reply_seeds,
    bytes_max=2048,
)
