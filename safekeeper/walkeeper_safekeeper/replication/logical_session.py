"""Answers of a safekeeper to a client of a logical log, streaming included.

    await LogicalSession(…).perform(command)

pg_recvlogical, psycopg2 and a subscription's apply worker come with replication=database. They send
the commands that they would send to a primary. The texts and SQLSTATEs of the answers are a
walsender's. Slots are positions that a quorum keeps (consumer_positions.py). The entries that they
hold back are limited (docs/logical.md).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence

from walkeeper_common.lsn import Lsn
from walkeeper_common.postgres.pgwire import (
    Column,
    SqlRefused,
    command_complete,
    notice_response,
    result,
)
from walkeeper_common.postgres.replication_commands import (
    AlterSlot,
    BeginCopy,
    Command,
    CreateLogicalSlot,
    DropSlot,
    IdentifySystem,
    PrimaryOnly,
    ReadSlot,
    Show,
    SqlCommand,
    StartLogical,
    parse_boolean,
)
from walkeeper_safekeeper.replication import replication_answers
from walkeeper_safekeeper.replication.client_connection import ClientConnection
from walkeeper_safekeeper.replication.copy_session import CopySession
from walkeeper_safekeeper.replication.logical_log import LogicalLog, LogicalReader
from walkeeper_safekeeper.replication.logical_stream import LogicalStream, check_options
from walkeeper_safekeeper.replication.login import Login
from walkeeper_safekeeper.replication.served_log import ServedLog
from walkeeper_safekeeper.replication.sql_text import one_line
from walkeeper_safekeeper.replication.subscription_queries import answer, asks_for_tables
from walkeeper_safekeeper.replication.wal_stream import StreamLimits

logger = logging.getLogger("walkeeper.replicas")

PLUGIN = "pgoutput"
TRANSACTIONS_WHOLE = SqlRefused(
    "01000",
    "two_phase has no effect: prepared transactions come whole, at COMMIT PREPARED",
    hint="A safekeeper keeps transactions when they are committed.",
)


class LogicalSession:
    """The commands of one client that has logged in to a logical log."""

    def __init__(
        self,
        logical: LogicalLog,
        client: ClientConnection,
        login: Login,
        pid: int,
        limits: StreamLimits,
        now: Callable[[], float],
    ) -> None:
        self._logical, self._log = logical, logical.log
        self._client, self._login, self._pid = client, login, pid
        self._limits, self._now = limits, now
        self._copying: CopySession | None = None

    async def close(self) -> None:
        """End what the client has begun on the primary."""
        if self._copying is not None:
            await self._copying.close()

    async def perform(self, command: Command) -> None:
        """Perform one command. Raise SqlRefused, the answer to what cannot be done."""
        log, send = self._log, self._client.answer
        match command:
            case IdentifySystem():
                settings = await self._logical.known_settings()
                database = settings.database if self._login.logical else None
                send(replication_answers.identify_system(log, self._logical.end_lsn, database))
            case Show(setting):
                own = await self._own_setting(setting.lower())
                if own is not None:
                    send(result((Column(setting.lower()),), [(own,)], "SHOW"))
                else:
                    send(replication_answers.show(log, setting, login=self._login))
            case CreateLogicalSlot():
                send(await self._create_slot(command))
            case AlterSlot(name, options):
                self._log.slots.slots.get(name)
                _refuse_two_phase(options)  # and `failover`: any safekeeper has the slots anyway
                send(command_complete("ALTER_REPLICATION_SLOT"))
            case DropSlot(name, wait):
                await self._drop_slot(name, wait=wait)
                send(command_complete("DROP_REPLICATION_SLOT"))
            case StartLogical():
                await self._stream(command)
            case BeginCopy():
                await self._begin_copy()
            case SqlCommand(sql) if self._copying is not None:
                await self._go_on_copying(self._copying, sql)
            case SqlCommand(sql):
                send(await self._sql(sql))
            case ReadSlot():
                raise SqlRefused(
                    "0A000", "cannot use READ_REPLICATION_SLOT with a logical replication slot"
                )
            case PrimaryOnly(what):
                raise replication_answers.primary_only(log, what)
            case _:
                raise SqlRefused(
                    "0A000",
                    f'cluster "{log.cluster}" keeps decoded changes, not WAL',
                    hint="Consumers of changes connect with replication=database; standbys and "
                    "pg_receivewal need a physical log.",
                )

    async def _own_setting(self, name: str) -> str | None:
        """Return the value of a setting that a logical log alone has, or that differs in it."""
        match name:
            case "wal_level":
                return "logical"
            case "walkeeper.publications":  # the names may hold any character, hence JSON
                return json.dumps((await self._logical.known_settings()).publications)
            case "walkeeper.database":
                return (await self._logical.known_settings()).database
            case _:
                return None

    async def _sql(self, sql: str) -> bytes:
        if not self._login.logical:
            return replication_answers.sql(self._log, sql, replication=self._login.replication)
        found = answer(sql, await self._logical.known_settings())
        if asks_for_tables(sql):
            found = answer(sql, await self._logical.published_now(self._token()))
        if found is not None:
            return found
        raise SqlRefused(
            "0A000",
            "a safekeeper does not execute SQL",
            hint=f'It keeps changes of cluster "{self._log.cluster}": connect to the primary for '
            "SQL. A subscription needs copy_data = false; copy its tables from the primary first.",
        )

    def _token(self) -> str:
        return f"{self._client} {self._pid} {self._now():.6f}"

    async def _begin_copy(self) -> None:
        """Begin the transaction of a worker that copies a table. SqlRefused if none does here."""
        if not self._login.logical or not self._logical.copies:
            raise no_copy()
        if self._copying is not None:
            raise SqlRefused("25001", "there is already a transaction in progress")
        timeout_s = self._limits.sender_timeout_s
        self._copying = await CopySession.begin(self._logical, self._client, timeout_s)
        self._client.answer(command_complete("BEGIN"))

    async def _go_on_copying(self, copying: CopySession, sql: str) -> None:
        if one_line(sql) != "COMMIT":
            await copying.perform(sql)
            return
        self._copying = None
        await copying.close()
        self._client.answer(command_complete("COMMIT"))

    async def _create_slot(self, asked: CreateLogicalSlot) -> bytes:
        """Make a slot at the end of what is committed: a consumer sees the changes after it.

        The proposer does not learn of a temporary slot. It begins at the end that this safekeeper
        knows to be committed.
        """
        if asked.plugin != PLUGIN:
            raise SqlRefused(
                "58P01",
                f'could not access file "{asked.plugin}": No such file or directory',
                hint=f"A safekeeper keeps what {PLUGIN} decoded; use that plugin.",
            )
        _refuse_two_phase(asked.options)
        with_copy = dict(asked.options).get("snapshot", "export") == "use"
        if with_copy and self._copying is None:
            raise no_copy()
        await self._logical.known_settings()
        slots = self._log.slots
        if asked.temporary:
            end_lsn = self._logical.end_lsn
            await slots.create(asked.slot, temporary=True, restart_lsn=end_lsn, pid=self._pid)
        else:
            end_lsn = await self._logical.make_slot(asked.slot)
            await slots.save()
        if with_copy and self._copying is not None:  # the slot is older, so the log keeps the rest
            end_lsn = await self._copying.snapshot(self._token())
        names = ("slot_name", "consistent_point", "snapshot_name", "output_plugin")
        row = (asked.slot, str(end_lsn), None, PLUGIN)
        return result([Column(name) for name in names], [row], "CREATE_REPLICATION_SLOT")

    async def _drop_slot(self, name: str, *, wait: bool) -> None:
        if not await self._logical.drop_slot(name, pid=self._pid, wait=wait):
            self._client.answer(notice_response(_pending_drop(name)))

    async def _stream(self, asked: StartLogical) -> None:
        log = self._log
        settings = await self._logical.known_settings()  # and with it where the slots are
        slot = log.slots.slots.acquire(asked.slot, pid=self._pid)
        try:
            wishes = check_options(settings, dict(asked.options))
            if wishes.two_phase:
                self._client.answer(notice_response(TRANSACTIONS_WHOLE))
            start_lsn = max(asked.start_lsn, slot.restart_lsn or Lsn(0))
            segment = await self._logical.segment_of(start_lsn)
            if segment is None:
                raise _lost(log, asked.slot, start_lsn)
            reader = LogicalReader(
                pid=self._pid,
                user=self._login.user,
                application_name=self._login.application_name,
                client_addr=self._client.address,
                client_port=self._client.port,
                begin_lsn=start_lsn,
                slot=asked.slot,
                # A slot may not pass the log's end, where a later consumer would lose changes.
                sent_lsn=min(start_lsn, self._logical.end_lsn),
                position=segment,
            )
            log.readers.register(reader)
            try:
                if segment < log.oldest_lsn:  # it went while we looked
                    raise _lost(log, asked.slot, start_lsn)
                logger.info("started streaming %s", _describe(reader))
                stream = LogicalStream(
                    log, self._client, reader, segment, wishes, limits=self._limits, now=self._now
                )
                await stream.run()
            finally:
                log.readers.unregister(reader)
                logger.info("stopped streaming %s", _describe(reader))
        finally:
            log.slots.release(asked.slot, pid=self._pid)


def no_copy() -> SqlRefused:
    """Return the answer to a subscription's worker that copies a table."""
    return SqlRefused(
        "0A000",
        "this safekeeper has no primary that copies tables, which a subscription with copy_data = "
        "true needs",
        hint="Start the safekeepers with --copy-dsn. Or DROP SUBSCRIPTION, copy its tables from "
        "the primary, then CREATE SUBSCRIPTION … WITH (copy_data = false). REFRESH PUBLICATION "
        "needs WITH (copy_data = false), too.",
    )


def _refuse_two_phase(options: Sequence[tuple[str, str]]) -> None:
    if parse_boolean(dict(options).get("two_phase", "false"), "two_phase requires a Boolean value"):
        raise SqlRefused(
            "0A000",
            "two-phase slots are not available from a safekeeper",
            hint="ALTER SUBSCRIPTION … SET (two_phase = false)",
        )


def _pending_drop(name: str) -> SqlRefused:
    return SqlRefused(
        "01000",
        f'replication slot "{name}" is gone from this safekeeper alone: no quorum knows it yet',
        hint="The others drop it when a proposer streams again. Until then it keeps entries there, "
        "at most ten times --wal-keep-size.",
    )


def _lost(log: ServedLog, slot: str, lsn: Lsn) -> SqlRefused:
    return SqlRefused(
        "55000",
        f'can no longer get changes from replication slot "{slot}"',
        detail=f"Changes from {lsn} on are no longer kept by this safekeeper.",
        hint="Another safekeeper may have them; else drop the slot, copy the tables anew and "
        "create it again.",
    )


def _describe(reader: LogicalReader) -> str:
    name = f'"{reader.application_name}" ({reader.client_addr}:{reader.client_port})'
    return f"changes to {name} at {reader.sent_lsn}"
