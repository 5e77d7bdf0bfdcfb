"""A transaction on the primary that sees its tables as of an LSN. An asyncio shell over psycopg.

    copies = TableCopies(dsns)
    snapshot = await copies.open(system_id, database)    at the server with that system identifier
    lsn = await snapshot.take()                          it sees all commits up to this LSN
    await snapshot.rows(sql); async for data in snapshot.copy(sql, encoding)
    await snapshot.close()

The snapshot is that of a temporary logical slot (CREATE_REPLICATION_SLOT … USE_SNAPSHOT). So it has
every transaction whose commit ends at or before the slot's consistent point, and no other one. A
walsender does the same for a worker that copies a table (tablesync.c).

Errors are SqlRefused, with the server's SQLSTATE where it has one.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import conninfo
from psycopg.rows import TupleRow

from walkeeper_common.lsn import Lsn
from walkeeper_common.operator_text.hidden_secrets import without_secrets
from walkeeper_common.postgres.client_encoding import UTF8, ClientEncoding
from walkeeper_common.postgres.pgwire import SqlRefused
from walkeeper_common.postgres.replication_commands import BEGIN_COPY

# As a subscription sets them (libpqrcv_connect), so that values print alike on any server.
_OPTIONS = (
    "-c datestyle=ISO -c intervalstyle=postgres -c extra_float_digits=3 -c search_path= "
    "-c standard_conforming_strings=on -c statement_timeout=0 "
    "-c idle_in_transaction_session_timeout=0"
)
CONNECT_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class Rows:
    """An answer: the names of its columns, and its rows as text."""

    names: Sequence[str]
    rows: Sequence[Sequence[str | None]]


def rows_of(cursor: psycopg.AsyncCursor[TupleRow]) -> Rows:
    """Return the answer of a command, with values of every type as text."""
    answer = cursor.pgresult
    assert answer is not None
    found = [
        [answer.get_value(row, column) for column in range(answer.nfields)]
        for row in range(answer.ntuples)
    ]
    texts = [[None if each is None else bytes(each).decode() for each in row] for row in found]
    return Rows([each.name for each in cursor.description or ()], texts)


class TableCopies:
    """The servers that copy tables for subscriptions: DSNs, of one or several primaries."""

    def __init__(self, dsns: Sequence[str] = ()) -> None:
        self._dsns = dsns
        self._numbers = itertools.count(1)

    def __bool__(self) -> bool:
        return bool(self._dsns)

    async def open(self, system_id: int, database: str) -> PrimarySnapshot:
        """Connect to the server with this system identifier. SqlRefused 57P03 if none has it."""
        failures = list[str]()
        for dsn in self._dsns:
            try:
                snapshot = await PrimarySnapshot.connect(
                    dsn, database, f"walkeeper_copy_{next(self._numbers)}"
                )
            except psycopg.Error as error:
                failures.append(without_secrets(str(error).strip(), dsn))
                continue
            if snapshot.system_id == system_id:
                return snapshot
            await snapshot.close()
            failures.append(f"a server of --copy-dsn has system identifier {snapshot.system_id}")
        raise SqlRefused(
            "57P03",
            f"no server of --copy-dsn is the primary of this log, whose system identifier is "
            f"{system_id}: {'; '.join(failures)}",
            hint="The copy begins anew by itself when one is.",
        )


class PrimarySnapshot:
    """One connection to the primary, with one transaction."""

    def __init__(
        self, connection: psycopg.AsyncConnection, slot: str, system_id: int, timeline: int
    ) -> None:
        self._connection, self._slot = connection, slot
        self.system_id, self.timeline = system_id, timeline

    @classmethod
    async def connect(cls, dsn: str, database: str, slot: str) -> PrimarySnapshot:
        """Connect to the primary as a walsender does for a subscription. Raise psycopg.Error."""
        given = conninfo.conninfo_to_dict(dsn)
        options = f"{given.get('options') or ''} {_OPTIONS}".strip()
        connection = await psycopg.AsyncConnection.connect(
            conninfo.make_conninfo(
                dsn, dbname=database, replication="database", client_encoding="UTF8",
                options=options, application_name=slot,
                connect_timeout=given.get("connect_timeout") or CONNECT_TIMEOUT_S,
            ),
            autocommit=True,
        )  # fmt: skip
        try:
            row = await (await connection.execute("IDENTIFY_SYSTEM")).fetchone()
            assert row is not None
            slot = f"{slot}_{connection.info.backend_pid}"
            return cls(connection, slot, system_id=int(row[0]), timeline=int(row[1]))
        except BaseException:
            await connection.close()
            raise

    async def take(self) -> Lsn:
        """Take the snapshot, and return its LSN. It waits for transactions that run now.

        The slot goes at once, as the log keeps the changes from here on. The snapshot stays.
        """
        await self._run(BEGIN_COPY)
        made = await self.rows(
            f'CREATE_REPLICATION_SLOT "{self._slot}" TEMPORARY LOGICAL pgoutput USE_SNAPSHOT'
        )
        await self._run(f'DROP_REPLICATION_SLOT "{self._slot}"')
        return Lsn.parse(str(made.rows[0][1]))

    async def rows(self, sql: str) -> Rows:
        """Return the answer to a query."""
        return rows_of(await self._run(sql))

    async def _run(self, sql: str) -> psycopg.AsyncCursor[TupleRow]:
        try:
            return await self._connection.execute(sql.encode())
        except psycopg.Error as error:
            raise _refused(error) from error

    async def copy(self, sql: str, encoding: ClientEncoding) -> AsyncIterator[bytes]:
        """Run COPY … TO STDOUT, and give each row in the encoding."""
        await self._run(f"SET client_encoding = '{encoding.name}'")
        try:
            text = encoding.encode(sql)
            async with self._connection.cursor() as cursor, cursor.copy(text) as rows:
                while row := await rows.read():
                    yield bytes(row)
        except psycopg.Error as error:
            raise _refused(error) from error
        await self._run(f"SET client_encoding = '{UTF8.name}'")  # rows_of decodes all as UTF-8

    async def close(self) -> None:
        """End the transaction and the connection."""
        await self._connection.close()


def _refused(error: psycopg.Error) -> SqlRefused:
    diagnosis = error.diag
    return SqlRefused(
        error.sqlstate or "57P03",
        f"the primary: {(diagnosis.message_primary or str(error)).strip()}",
        detail=diagnosis.message_detail or "",
        hint=diagnosis.message_hint or "",
    )
