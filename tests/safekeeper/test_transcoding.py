"""Messages and answers in a client's encoding: names and texts, and never bytes."""

from __future__ import annotations

import asyncio
from struct import pack

import pytest

from tests.safekeeper.logical_consumer import SEGMENT, START, Kept
from tests.support.entry_maker import (
    SETTINGS,
    begin,
    commit,
    emitted,
    insert,
    new_stream,
    origin,
    relation,
    sent,
    type_of,
)
from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.postgres.client_encoding import UTF8, client_encoding
from walkeeper_common.postgres.pgoutput import pack_copy_data
from walkeeper_common.postgres.pgwire import (
    Column,
    SqlRefused,
    command_complete,
    error_response,
    parse_error_fields,
    result,
)
from walkeeper_safekeeper.replication.logical_log import LogicalLog
from walkeeper_safekeeper.replication.login import Login
from walkeeper_safekeeper.replication.replica_session import encoding_of
from walkeeper_safekeeper.replication.transcoding import transcoded_answer, transcoded_messages

LATIN1 = client_encoding("LATIN1")


def column(kind: bytes, value: bytes) -> bytes:
    return kind + pack("!I", len(value)) + value


def row(*columns: bytes) -> bytes:
    return pack("!H", len(columns)) + b"".join(columns)


def converted(*messages: bytes) -> bytes:
    return transcoded_messages(b"".join(map(pack_copy_data, messages)), LATIN1)


def both(text: str) -> tuple[bytes, bytes]:
    return text.encode(), text.encode("latin_1")


def test_names_and_texts_are_converted_and_nothing_else() -> None:
    kept, given = both("Motörhead")
    name, given_name = both("tübe")

    def stream(name: bytes, value: bytes) -> list[bytes]:
        described = pack("!I", 7) + b"sch\0" + name + b"\0f" + pack("!H", 2)
        columns = b"".join(b"\1" + name + b"\0" + pack("!Ii", 25, -1) for _ in range(2))
        raw = column(b"b", kept)
        change = row(column(b"t", value), raw, b"n", b"u", column(b"t", b"ascii"))
        return [
            begin(0xC3A9),
            sent(b"O" + pack("!Q", 0xC3A9) + name + b"\0"),
            sent(b"Y" + pack("!I", 0xC3A9) + name + b"\0" + name + b"\0"),
            sent(b"R" + described + columns),
            sent(b"I" + pack("!I", 0xC3A9) + b"N" + change),
            sent(b"U" + pack("!I", 7) + b"O" + change + b"N" + change),
            sent(b"U" + pack("!I", 7) + b"N" + change),
            sent(b"D" + pack("!I", 7) + b"K" + change),
            sent(b"T" + pack("!IBI", 1, 0, 0xC3A9)),
            sent(b"M" + pack("!BQ", 1, 0xC3A9) + name + b"\0" + pack("!I", len(kept)) + kept),
            commit(0xC3A9, 0xC3AA),
        ]

    expected = b"".join(map(pack_copy_data, stream(given_name, given)))
    assert converted(*stream(name, kept)) == expected


def test_ascii_is_the_same_bytes() -> None:
    plain = [begin(1), origin(), type_of(5), relation(4), insert(4), emitted(9), commit(1, 2)]
    assert converted(*plain) == b"".join(map(pack_copy_data, plain))


def test_a_character_without_an_equivalent_is_an_error_as_from_a_walsender() -> None:
    with pytest.raises(SqlRefused) as refused:
        converted(insert(4, "10 €".encode()))
    assert refused.value.sqlstate == "22P05"
    assert refused.value.message == (
        'character with byte sequence 0xe2 0x82 0xac in encoding "UTF8" has no equivalent in '
        'encoding "LATIN1"'
    )


@pytest.mark.parametrize(
    "message",
    [
        b"I" + pack("!I", 4) + b"N" + row(b"t" + pack("!I", 9) + b"x"),
        b"I" + pack("!I", 4) + b"N" + row(b"x"),
        b"I" + pack("!I", 4) + b"x" + row(),
        b"I" + pack("!I", 4) + b"N" + row(column(b"t", b"\xff")),
        b"R" + pack("!I", 4) + b"name without an end",
        b"I\0",
    ],
)
def test_a_message_that_cannot_be_read_is_an_error(message: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        converted(sent(message))


def test_answers_are_in_the_clients_encoding() -> None:
    kept, given = both("tübe")
    columns = (Column("a"), Column("b"))
    answer = result(columns, [(kept, None), (b"", b"x")], "SELECT 2")
    expected = result(columns, [(given, None), (b"", b"x")], "SELECT 2")
    assert transcoded_answer(answer, LATIN1) == expected
    assert transcoded_answer(answer, UTF8) == answer
    with pytest.raises(SqlRefused, match="has no equivalent"):
        transcoded_answer(result(columns, [("€", None)], "SELECT 1"), LATIN1)


def test_an_error_is_shown_whatever_its_characters_are() -> None:
    error = error_response(SqlRefused("42704", "“ü”", hint="CREATE … ü")) + command_complete("x")
    shown = transcoded_answer(error, LATIN1)
    size = 1 + int.from_bytes(shown[1:5], "big")
    assert shown[size:] == command_complete("x")
    fields = parse_error_fields(shown[5:size].decode("latin_1").encode())
    assert (fields["C"], fields["M"], fields["H"]) == ("42704", "?ü?", "CREATE ? ü")


@pytest.mark.parametrize(
    ("database", "expected"), [("UTF8", "UTF8"), ("LATIN1", "LATIN1"), ("", None), ("EUC_TW", None)]
)
def test_sql_ascii_is_the_encoding_of_the_database(database: str, expected: str | None) -> None:
    kept, stream = Kept(), new_stream(START, SEGMENT, settings={**SETTINGS, "encoding": database})
    stream.on_connected()
    kept.log.take(stream)
    kept.readable_lsn = kept.log.end
    login = Login("u", "a", "changes", replication=True, logical=True, encoding="SQL_ASCII")
    asked = encoding_of(login, LogicalLog(kept.served()))
    if expected is not None:
        assert asyncio.run(asked).name == expected
        return
    with pytest.raises(SqlRefused) as refused:
        asyncio.run(asked)
    assert refused.value.sqlstate == "0A000" and "client_encoding = UTF8" in refused.value.hint
