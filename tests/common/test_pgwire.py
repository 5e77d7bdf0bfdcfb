"""The PostgreSQL protocol as bytes: round trips, a byte at a time, and garbage."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.pgwire import (
    CANCEL_REQUEST,
    GSSENC_REQUEST,
    SSL_REQUEST,
    CancelRequest,
    Column,
    GssEncRequest,
    HotStandbyFeedback,
    Keepalive,
    Message,
    MessageBuffer,
    SqlRefused,
    SslRequest,
    StandbyStatus,
    Startup,
    XLogData,
    command_complete,
    copy_data,
    data_row,
    error_response,
    message,
    negotiate_protocol_version,
    notice_response,
    parse_error_fields,
    parse_startup,
    ready_for_query,
    request_packet,
    row_description,
    startup_packet,
    unpack_from_receiver,
    unpack_from_sender,
)
from walkeeper_common.postgres.replication_commands import (
    AlterSlot,
    BeginCopy,
    CreateLogicalSlot,
    CreateSlot,
    DropSlot,
    IdentifySystem,
    PrimaryOnly,
    ReadSlot,
    Show,
    SqlCommand,
    StartLogical,
    StartReplication,
    TimelineHistory,
    is_empty,
    parse_command,
)

PARAMETERS = {"user": "wk", "replication": "true", "options": "-c a=b", "database": "ä"}
FROM_RECEIVER = (
    StandbyStatus(Lsn(1), Lsn(2), Lsn(2**64 - 1), -5, True),
    HotStandbyFeedback(9, 1, 2, 3, 2**32 - 1),
)


def test_startup_packets_round_trip_a_byte_at_a_time() -> None:
    stream = (
        request_packet(SSL_REQUEST)
        + request_packet(GSSENC_REQUEST)
        + startup_packet(PARAMETERS, minor=2)
    )
    buffer, found = MessageBuffer(), []
    for i in range(len(stream)):
        buffer.feed(stream[i : i + 1])
        if (packet := buffer.next_startup()) is not None:
            found.append(packet)
    assert found == [SslRequest(), GssEncRequest(), Startup(2, PARAMETERS)]
    assert len(buffer) == 0


def test_cancel_request_may_have_a_key_of_any_length() -> None:
    code = CANCEL_REQUEST.to_bytes(4, "big")
    assert parse_startup(code + bytes(8)) == CancelRequest()
    assert parse_startup(code + bytes(200)) == CancelRequest()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0\3",
        b"\0\2\0\0",
        b"\0\3\0\0",
        b"\0\3\0\0user\0",
        b"\0\3\0\0user\0x\0",
        b"\0\3\0\0\0x\0\0",
        b"\0\3\0\0user\0\0",
        b"\0\3\0\0" + b"x" * 20_000,
    ],
)
def test_malformed_startup_is_a_protocol_error(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        parse_startup(body)


def test_startup_without_parameters_and_with_an_empty_value_is_legal() -> None:
    assert parse_startup(b"\0\3\0\0\0") == Startup(0, {})
    assert parse_startup(b"\0\3\0\0dbname\0\0\0") == Startup(0, {"dbname": ""})


def test_messages_come_out_whole_whatever_the_pieces() -> None:
    sent = [Message(b"Q", b"IDENTIFY_SYSTEM\0"), Message(b"d", b""), Message(b"X", b"")]
    stream = b"".join(message(m.tag, m.body) for m in sent)
    for piece in (1, 2, 7, len(stream)):
        buffer, found = MessageBuffer(), []
        for i in range(0, len(stream), piece):
            buffer.feed(stream[i : i + piece])
            while (received := buffer.next_message()) is not None:
                found.append(received)
        assert found == sent


def test_a_message_longer_than_its_bound_is_refused_before_it_is_received() -> None:
    buffer = MessageBuffer(body_bytes_max=100)
    buffer.feed(b"Q" + (105).to_bytes(4, "big"))
    with pytest.raises(RemoteProtocolError, match="length 105"):
        buffer.next_message()


@pytest.mark.parametrize("sent", FROM_RECEIVER, ids=lambda m: type(m).__name__)
def test_receivers_payloads_round_trip(sent: StandbyStatus | HotStandbyFeedback) -> None:
    packed = sent.pack()
    assert len(packed) == type(sent).LAYOUT.size
    assert unpack_from_receiver(packed) == sent
    for wrong in (packed[:-1], packed + b"\0"):
        with pytest.raises(RemoteProtocolError):
            unpack_from_receiver(wrong)


def test_keepalive_round_trips() -> None:
    sent = Keepalive(Lsn.parse("1/2A"), 77, False)
    assert unpack_from_sender(sent.pack()) == sent
    with pytest.raises(RemoteProtocolError):
        unpack_from_sender(sent.pack()[:-1])


def test_wal_is_framed_apart_and_unpacked_without_a_copy() -> None:
    wal = bytes(range(200))
    header = XLogData.pack_header(
        start_lsn=Lsn(16), wal_end_lsn=Lsn(500), sent_at_us=3, payload_bytes=len(wal)
    )
    buffer = MessageBuffer()
    buffer.feed(header + wal)
    received = buffer.next_message()
    assert received is not None and received.tag == b"d"
    got = unpack_from_sender(received.body)
    assert isinstance(got, XLogData)
    assert (got.start_lsn, got.wal_end_lsn, got.sent_at_us) == (Lsn(16), Lsn(500), 3)
    assert got.payload == wal and got.payload.obj is received.body


def test_error_fields_round_trip() -> None:
    error = SqlRefused("3D000", "no", detail="because", hint="do\0this")
    body = error_response(error, "FATAL")[5:]
    expected = {"S": "FATAL", "V": "FATAL", "C": "3D000", "M": "no", "D": "because", "H": "do"}
    assert parse_error_fields(body) == expected
    assert notice_response(error)[:1] == b"N"
    for wrong in (b"", b"S", body[:-1], body + b"x"):
        with pytest.raises(RemoteProtocolError):
            parse_error_fields(wrong)


def test_server_messages_have_the_documented_bytes() -> None:
    assert ready_for_query() == b"Z\0\0\0\x05I"
    assert command_complete("SHOW") == b"C\0\0\0\x09SHOW\0"
    assert (
        data_row(["a", None, b""]).hex() == "44000000130003" + "0000000161" + "ffffffff" + "0" * 8
    )
    field = "61" + "00" + "00000000" + "0000" + "00000019" + "ffff" + "ffffffff" + "0000"
    assert row_description([Column("a")]).hex() == "540000001a0001" + field
    assert negotiate_protocol_version(["_pq_.x"])[5:13].hex() == "0003000000000001"


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("IDENTIFY_SYSTEM", IdentifySystem()),
        ("  identify_system ; ", IdentifySystem()),
        ("SHOW wal_segment_size", Show("wal_segment_size")),
        ("show DateStyle;", Show("datestyle")),
        ("SHOW walkeeper.cluster", Show("walkeeper.cluster")),
        ('READ_REPLICATION_SLOT "rw"', ReadSlot("rw")),
        ("READ_REPLICATION_SLOT Rw", ReadSlot("rw")),
        ('CREATE_REPLICATION_SLOT "a" PHYSICAL', CreateSlot("a", False, False)),
        (
            "CREATE_REPLICATION_SLOT a TEMPORARY PHYSICAL RESERVE_WAL;",
            CreateSlot("a", True, True),
        ),
        ('CREATE_REPLICATION_SLOT "a" PHYSICAL (RESERVE_WAL)', CreateSlot("a", False, True)),
        ("CREATE_REPLICATION_SLOT a PHYSICAL (RESERVE_WAL 'off')", CreateSlot("a", False, False)),
        (
            "CREATE_REPLICATION_SLOT \"a\" LOGICAL pgoutput (SNAPSHOT 'nothing')",
            CreateLogicalSlot("a", False, "pgoutput", (("snapshot", "nothing"),)),
        ),
        (
            "CREATE_REPLICATION_SLOT a TEMPORARY LOGICAL pgoutput NOEXPORT_SNAPSHOT TWO_PHASE",
            CreateLogicalSlot(
                "a", True, "pgoutput", (("snapshot", "nothing"), ("two_phase", "true"))
            ),
        ),
        (
            "START_REPLICATION SLOT s LOGICAL 0/A (proto_version '2', publication_names '\"a''b\"',"
            " binary)",
            StartLogical(
                "s",
                Lsn(10),
                (("proto_version", "2"), ("publication_names", '"a\'b"'), ("binary", "true")),
            ),
        ),
        (
            'ALTER_REPLICATION_SLOT "s" ( FAILOVER true, TWO_PHASE false )',
            AlterSlot("s", (("failover", "true"), ("two_phase", "false"))),
        ),
        ("DROP_REPLICATION_SLOT barman", DropSlot("barman", False)),
        ('DROP_REPLICATION_SLOT "x" WAIT ;', DropSlot("x", True)),
        (
            'START_REPLICATION SLOT "s" 0/4000000 TIMELINE 2',
            StartReplication("s", Lsn.parse("0/4000000"), 2),
        ),
        ("START_REPLICATION 0/01000000", StartReplication(None, Lsn.parse("0/1000000"), None)),
        (
            "start_replication physical A/F timeline 1",
            StartReplication(None, Lsn.parse("A/F"), 1),
        ),
        (
            "START_REPLICATION SLOT \"s\" LOGICAL 0/0 (a '1')",
            StartLogical("s", Lsn(0), (("a", "1"),)),
        ),
        ("TIMELINE_HISTORY 7", TimelineHistory(7)),
        ("BASE_BACKUP ( LABEL 'x y', PROGRESS, WAIT 0)", PrimaryOnly("BASE_BACKUP")),
        ("UPLOAD_MANIFEST", PrimaryOnly("UPLOAD_MANIFEST")),
        ("SELECT 1;", SqlCommand("SELECT 1;")),
        ("BEGIN  read only ISOLATION LEVEL REPEATABLE READ ;", BeginCopy()),
        ("BEGIN READ ONLY", SqlCommand("BEGIN READ ONLY")),
        ("IDENTIFY_SYSTEMS", SqlCommand("IDENTIFY_SYSTEMS")),
    ],
)
def test_commands_are_parsed_as_walsender_does(text: str, command: object) -> None:
    assert parse_command(text) == command


@pytest.mark.parametrize(
    "text",
    [
        "IDENTIFY_SYSTEM now",
        "START_REPLICATION",
        "START_REPLICATION SLOT 0/0",
        "START_REPLICATION 0/123456789",
        "START_REPLICATION 0/0 TIMELINE 0",
        "START_REPLICATION 0/0 TIMELINE 99999999999999999999",
        "TIMELINE_HISTORY x",
        'DROP_REPLICATION_SLOT "x',
        "CREATE_REPLICATION_SLOT a PHYSICAL (TWO_PHASE)",
        "CREATE_REPLICATION_SLOT a PHYSICAL (RESERVE_WAL",
        "SHOW \x01",
    ],
)
def test_a_malformed_command_is_an_sql_error(text: str) -> None:
    with pytest.raises(SqlRefused) as caught:
        parse_command(text)
    assert caught.value.sqlstate in ("42601", "22023")


def test_empty_queries_are_recognised() -> None:
    assert is_empty(" ; ") and is_empty("") and is_empty("-- ping\n;") and is_empty("/* x */")
    assert not is_empty("SHOW x")


def _either(decode: Callable[[bytes], object], data: bytes, *errors: type[Exception]) -> bool:
    try:
        decode(data)
    except errors:
        return False
    return True


def test_garbage_is_a_message_or_a_protocol_error_and_nothing_else() -> None:
    rng = random.Random(20_000)
    valid = [m.pack() for m in FROM_RECEIVER] + [Keepalive(Lsn(1), 2, True).pack()]
    valid += [startup_packet(PARAMETERS)[4:], error_response(SqlRefused("0A000", "x"))[5:]]
    decoders = (unpack_from_sender, unpack_from_receiver, parse_startup, parse_error_fields)
    good = 0
    for _ in range(20_000):
        data = bytearray(rng.choice(valid))
        for _ in range(rng.randrange(4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        data = data[: rng.randrange(len(data) + 1)] + rng.randbytes(rng.randrange(3))
        frame = bytes(data) if rng.random() < 0.8 else rng.randbytes(rng.randrange(60))
        for decode in decoders:
            good += _either(decode, frame, RemoteProtocolError)
        good += _either(_all_messages, frame, RemoteProtocolError)
        good += _either(_all_messages, copy_data(frame), RemoteProtocolError)
    assert good > 1000


def _all_messages(data: bytes) -> None:
    buffer = MessageBuffer()
    buffer.feed(data)
    while (received := buffer.next_message()) is not None:
        _either(lambda _: received.text(), b"", RemoteProtocolError)


def test_garbled_commands_are_sql_errors_and_nothing_else() -> None:
    rng = random.Random(7)
    words = ["START_REPLICATION", "SLOT", '"s"', "0/1", "TIMELINE", "1", "(", ")", ",", ";", "'x'"]
    words += ["CREATE_REPLICATION_SLOT", "PHYSICAL", "RESERVE_WAL", "SHOW", "\0", '"', "é", "-1"]
    for _ in range(20_000):
        text = " ".join(rng.choices(words, k=rng.randrange(1, 8)))
        _either(lambda data: parse_command(data.decode()), text.encode(), SqlRefused)
