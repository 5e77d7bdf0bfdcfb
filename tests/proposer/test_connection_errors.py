"""Why a connection failed is decided by the server's SQLSTATE, whatever language it answers in."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.proposer.test_replication_connection import GREETING, SLOT_IN_USE, dsn_of
from tests.support.quiet_clock import run_quietly
from walkeeper_common.errors import Refused, WalkeeperError
from walkeeper_common.postgres.pgwire import SqlRefused, error_response, ready_for_query
from walkeeper_proposer.postgres import connection_errors
from walkeeper_proposer.postgres.connection_errors import connect_failure
from walkeeper_proposer.postgres.replication_connection import ReplicationConnection, Unavailable

GERMAN = "Passwort-Authentifizierung für Benutzer »u« fehlgeschlagen"
WITH_PASSWORD = struct.pack("!cii", b"R", 8, 3)  # AuthenticationCleartextPassword


@asynccontextmanager
async def answering(answer: bytes, later: bytes = b"") -> AsyncIterator[str]:
    """Yield the DSN of a server that gives this answer at once, and another one to a command."""

    ended: list[asyncio.Event] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended.append(asyncio.Event())
        size = int.from_bytes(await reader.readexactly(4), "big")
        await reader.readexactly(size - 4)
        writer.write(answer)
        while await reader.read(1 << 16):  # until the client is gone
            writer.write(later)
        writer.close()
        await writer.wait_closed()
        ended[-1].set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield dsn_of(server)
    finally:
        for each in ended:
            await each.wait()
        server.close()


def failure(answer: bytes) -> WalkeeperError:
    """Return the error of a connection that gets this answer."""

    async def connect() -> WalkeeperError:
        async with answering(answer) as dsn:
            with pytest.raises(WalkeeperError) as caught:
                await ReplicationConnection.open(dsn, "walkeeper")
            return caught.value

    return run_quietly(connect())


def refusal(sqlstate: str, text: str) -> WalkeeperError:
    return failure(error_response(SqlRefused(sqlstate, text), "FATAL"))


@pytest.mark.parametrize(
    ("sqlstate", "text"),
    [
        ("28P01", GERMAN),
        ("28000", "kein pg_hba.conf-Eintrag für Host »127.0.0.1«, Benutzer »u«"),
        ("28000", "роль «u» не существует"),
        ("3D000", 'データベース"d"は存在しません'),
        ("42501", "droit refusé pour la base de données « d »"),
    ],
    ids=("password", "no entry", "no role", "no database", "no right"),
)
def test_a_refusal_in_any_language_is_one(sqlstate: str, text: str) -> None:
    error = refusal(sqlstate, text)
    assert isinstance(error, Refused)
    assert text in str(error) and sqlstate not in str(error) and "LOCATION" not in str(error)


@pytest.mark.parametrize("sqlstate", ["57P03", "53300", "57P01", "08006", "XX000"])
def test_what_passes_is_tried_again_whatever_its_words(sqlstate: str) -> None:
    error = refusal(sqlstate, 'role "u" does not exist: password authentication failed')
    assert isinstance(error, Unavailable) and error.sqlstate == sqlstate


def test_a_server_that_wants_a_password_that_is_not_there_refuses() -> None:
    assert isinstance(failure(WITH_PASSWORD), Refused)


def test_an_answer_after_the_connection_is_as_short_as_ever() -> None:
    """The verbose errors, which show a SQLSTATE, end with the connection's beginning."""

    async def ask() -> str:
        async with answering(GREETING, SLOT_IN_USE + ready_for_query()) as dsn:
            connection = await ReplicationConnection.open(dsn, "walkeeper")
            try:
                with pytest.raises(Unavailable) as caught:
                    await connection.query("IDENTIFY_SYSTEM")
                return str(caught.value)
            finally:
                connection.close()

    text = run_quietly(ask())
    assert "55006" not in text and "LOCATION" not in text, text


def test_without_libpqs_function_the_words_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_errors, "_set_verbosity", lambda: None)
    assert isinstance(refusal("28P01", "password authentication failed"), Refused)
    assert isinstance(refusal("57P03", "the database system is starting up"), Unavailable)


def test_the_last_of_several_attempts_of_libpq_decides() -> None:
    text = "x failed: FATAL:  28000: no TLS here\nx failed: FATAL:  57P03: starting up\n"
    failure = connect_failure(text, needs_password=False)
    assert (failure.sqlstate, failure.is_lasting) == ("57P03", False)
    assert failure.text == "x failed: FATAL:  no TLS here\nx failed: FATAL:  starting up\n"
