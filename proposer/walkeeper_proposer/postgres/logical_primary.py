"""The primary as the consumer of its logical stream: the driver's PrimaryPort. An asyncio shell.

The connection, its retries and the status updates are those of the physical one (primary.py).
This one uses positions of the log with the core, and LSNs with PostgreSQL. change_stream.py knows
the messages, and maps positions to LSNs.
"""

from __future__ import annotations

import asyncio
import json
import logging
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields

from walkeeper_common.errors import Refused, RemoteProtocolError, WalkeeperError
from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.operator_text.last_text import LastText
from walkeeper_common.wire.consumer_slots import ConsumerSlots, TablesQuery
from walkeeper_common.wire.messages import Feedback
from walkeeper_fastpath.ports import StreamEnds
from walkeeper_proposer.consensus.proposer_events import PrimaryIdentity, WalArrived
from walkeeper_proposer.logical.change_stream import ChangeStream, Published
from walkeeper_proposer.logical.logical_check import LogicalEnd, LogicalIdentity
from walkeeper_proposer.logical.open_transactions import CannotStream, Spool
from walkeeper_proposer.logical.past_comparison import NEW_LOG, DiffersFromLog
from walkeeper_proposer.postgres.primary import Primary
from walkeeper_proposer.postgres.primary_identity import identify
from walkeeper_proposer.postgres.publication_tables import published
from walkeeper_proposer.postgres.quoting import quote_identifier, quote_literal
from walkeeper_proposer.postgres.replication_connection import (
    InternalError,
    ReplicationConnection,
    Unavailable,
    understood,
)
from walkeeper_proposer.postgres.stream_ends import SlowEnds

logger = logging.getLogger("walkeeper.primary")

BATCH_BYTES_MAX = 128 << 10
SPOOL_MEMORY_BYTES = 1 << 20  # for one transaction
PLUGIN = "pgoutput"
TABLES_S = 5.0  # at least, between two questions to the catalogs
FAILED_S = 1.0  # after one that failed
# Values are kept as text. It must not depend on settings of the server, the role or the database,
# nor change with them in the middle of a log. The forms are those of a subscription, times in UTC.
# Without a search_path names in values (regclass) have their schema. lc_monetary stays: readers
# parse money with their own, and no form suits all of them.
TEXT_FORMS = (
    "SET client_encoding = 'UTF8'; SET datestyle = 'ISO'; SET intervalstyle = 'postgres'; "
    "SET timezone = 'UTC'; SET extra_float_digits = 3; SET bytea_output = 'hex'; "
    "SET search_path = ''"
)


def create_slot_command(slot: str, version: int) -> str:
    """Return the command for a logical slot, a failover slot if the server has these."""
    if version >= 170000:
        options = "(SNAPSHOT 'nothing', FAILOVER true)"
    elif version >= 150000:
        options = "(SNAPSHOT 'nothing')"
    else:
        options = "NOEXPORT_SNAPSHOT"
    return f'CREATE_REPLICATION_SLOT "{slot}" LOGICAL {PLUGIN} {options}'


def plugin_options(
    publications: Sequence[str], version: int, *, messages: bool = False
) -> dict[str, str]:
    """Return pgoutput's options, with the newest protocol of the server.

    The log has whole transactions, so readers may use any protocol."""
    newest = next(n for since, n in ((16, 4), (15, 3), (14, 2), (0, 1)) if version >= since * 10000)
    quoted = ",".join(quote_identifier(name) for name in publications)
    options = {"proto_version": str(newest), "publication_names": quoted}
    return {**options, "messages": "true"} if messages else options


async def identify_logical(
    connection: ReplicationConnection, slot: str, publications: Sequence[str]
) -> LogicalIdentity:
    """Return the facts for logical_check. Such a connection allows SQL."""
    plain = await identify(connection)
    with understood("identifying the primary"):
        return await _identify_slot(connection, plain, slot, publications)


async def _identify_slot(
    connection: ReplicationConnection,
    plain: PrimaryIdentity,
    slot: str,
    publications: Sequence[str],
) -> LogicalIdentity:
    database = (await connection.query("IDENTIFY_SYSTEM"))[0][3] or ""
    lost = "invalidation_reason" if plain.server_version_num >= 170000 else "NULL"
    rows = await connection.query(
        "SELECT slot_type, plugin, database, confirmed_flush_lsn, wal_status, "
        f"{lost} FROM pg_catalog.pg_replication_slots WHERE slot_name = {quote_literal(slot)}"
    )
    names = ", ".join(quote_literal(name) for name in publications)
    found = await connection.query(
        f"SELECT pubname FROM pg_catalog.pg_publication WHERE pubname IN ({names})"
    )
    origins = await connection.query("SELECT 1 FROM pg_catalog.pg_replication_origin LIMIT 1")
    known = {row[0] for row in found}
    unusable, confirmed_lsn = "", None
    if rows:
        unusable = _unusable(rows[0], database)
        confirmed_lsn = Lsn.parse(rows[0][3]) if rows[0][3] else ZERO_LSN
    return LogicalIdentity(
        **{field.name: getattr(plain, field.name) for field in fields(PrimaryIdentity)},
        database=database,
        slot=slot,
        confirmed_lsn=confirmed_lsn,
        unusable=unusable,
        publications=tuple(publications),
        missing_publications=tuple(name for name in publications if name not in known),
        tables=(await published(connection, publications)).tables,
        has_origins=bool(origins),
        encoding=(await connection.query("SHOW server_encoding"))[0][0] or "",
    )


def _unusable(row: list[str | None], database: str) -> str:
    slot_type, plugin, slot_database, _, wal_status, reason = row
    if slot_type != "logical" or plugin != PLUGIN:
        return f"is {slot_type}{f' with {plugin}' if plugin else ''}, not logical with {PLUGIN}"
    if slot_database != database:
        return f"decodes database {slot_database}, --dsn names {database}"
    if wal_status == "lost" or reason:
        return f"was invalidated by the server ({reason or 'its WAL was removed'})"
    return ""


def _has_messages(settings: bytes) -> bool:
    options = json.loads(settings).get("options", {}) if settings else {}
    return bool(options.get("messages") == "true")


def _slots_of(settings: bytes) -> dict[str, Lsn]:
    slots = json.loads(settings).get("slots", {}) if settings else {}
    return {name: Lsn.parse(lsn) for name, lsn in slots.items()}


@dataclass(frozen=True, slots=True)
class Spooling:
    """Where transactions are kept that PostgreSQL streams before they end: each in a file without
    a name, if it is not small. 0 bytes: nothing is streamed."""

    bytes_max: int
    directory: str | None = None  # the system's for temporary files

    def new_spool(self) -> Spool:
        return tempfile.SpooledTemporaryFile(SPOOL_MEMORY_BYTES, dir=self.directory)


class LogicalPrimary(Primary):
    """One proposer's life; `end` is shared with its core's examinations."""

    _streamed = "changes"
    # Before 16 a server neither sends nor receives while it decodes a transaction without published
    # changes, such as a REFRESH MATERIALIZED VIEW. On the next connection it starts again. So the
    # limit doubles each time, until a transaction arrives. (Keepalives arrive before it each time.)
    _silent_statuses_first = 300

    def __init__(
        self,
        dsn: str,
        application_name: str,
        slot: str,
        *,
        publications: Sequence[str],
        messages: bool = False,
        spooling: Spooling,
        end: LogicalEnd,
        on_streaming: Callable[[Lsn], None],
    ) -> None:
        super().__init__(dsn, application_name, slot, apply_quorum=True, on_streaming=on_streaming)
        self._publications, self._end = tuple(publications), end
        self._messages = messages
        self._spooling = spooling
        self._may_stream = True  # open transactions, on the next connection
        self._streams = False  # on this one
        self._is_replay_due = False
        self._tokens: set[str] = set()  # queries for the tables that are published
        self._is_asked = asyncio.Event()
        self._differed_lsn: Lsn | None = None  # the slot's confirmed LSN at the last difference
        self._identity: LogicalIdentity

    @property
    def spooled_bytes(self) -> int:
        return self._end.stream.spooled_bytes if self._end.stream is not None else 0

    async def _one_connection(self) -> WalkeeperError:
        try:
            return await super()._one_connection()
        finally:
            if self._end.stream is not None:
                self._end.stream.on_disconnected()

    async def _open(self) -> ReplicationConnection:
        connection = await ReplicationConnection.open(
            self._dsn, self._application_name, replication="database"
        )
        try:
            for each in TEXT_FORMS.split("; "):
                await connection.query(each)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _identify(self, connection: ReplicationConnection) -> PrimaryIdentity:
        self._identity = await identify_logical(connection, self._slot, self._publications)
        return self._identity

    async def _start_stream(
        self, connection: ReplicationConnection, start_lsn: Lsn, timeline: int
    ) -> None:
        """Start the stream; `start_lsn` is the position where the log goes on."""
        try:
            with understood("what the log was made with"):
                stream = await self._stream_at(connection, start_lsn)
        except WalkeeperError as error:
            if connection is self._connection:
                self._lose(error)
            return
        options = self._options()
        self._streams, self._may_stream = self._may_stream and self._can_stream(), True
        if self._streams:
            options["streaming"] = "on"
        listed = ", ".join(f"{name} {quote_literal(value)}" for name, value in options.items())
        overlap = stream.overlap(self._confirmed_lsn(stream))
        command = f'START_REPLICATION SLOT "{self._slot}" LOGICAL {overlap.begin_lsn} ({listed})'
        if not await self._start_copy(connection, command):
            return
        self._end.stream = stream
        stream.on_published(Published(self._identity.tables))
        if stream.writer.is_inside:
            logger.info("a transaction after %s was cut off; it comes again", stream.end_lsn)
        stream.on_connected(overlap, streams=self._streams)
        self._hand_over()
        self._started(connection, stream.end_lsn, self._identity.timeline)
        following = self._follow_tables(connection, stream)
        self._group.create_task(following, name="published tables")

    def _confirmed_lsn(self, stream: ChangeStream) -> Lsn:
        """Return the slot's confirmed LSN; a new slot begins where the log does."""
        confirmed_lsn = self._identity.confirmed_lsn
        return stream.end_lsn if confirmed_lsn is None else confirmed_lsn

    async def _follow_tables(self, connection: ReplicationConnection, stream: ChangeStream) -> None:
        """Query the catalogs after commits and for subscriptions, while this connection lives.

        The stream does not show renamed and dropped tables. No SQL connection stays open, since
        `pg_ctl stop -m smart` would wait for it."""
        asked_lsn, last_error = stream.end_lsn, LastText()
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_asked.wait(), TABLES_S)
            if connection is not self._connection:
                return
            self._is_asked.clear()
            tokens = stream.unanswered(self._tokens)
            if stream.end_lsn == asked_lsn and not tokens:
                continue
            reached_lsn = stream.end_lsn
            try:
                found = await self._published()
            except WalkeeperError as error:
                if last_error.changes_to(error):
                    logger.warning("cannot read which tables are published: %s", error)
                self._tokens.clear()  # safekeepers repeat those that a client still waits for
                await asyncio.sleep(FAILED_S)
                continue
            asked_lsn = reached_lsn
            if connection is self._connection and self._is_streaming:
                self._tokens.difference_update(tokens)
                stream.on_published(found, tokens)
                self._hand_over()

    async def _published(self) -> Published:
        name = f"{self._application_name}_tables"
        connection = await ReplicationConnection.open(self._dsn, name, replication="false")
        try:
            await connection.query("SET client_encoding = 'UTF8'")
            return await published(connection, self._publications)
        finally:
            connection.close()

    async def _stream_at(self, connection: ReplicationConnection, position: Lsn) -> ChangeStream:
        stream, found, identity = self._end.stream, self._end.found, self._identity
        if stream is not None:
            assert stream.writer.position == position, f"{stream.writer.position=} {position=}"
            stream.writer.timeline = identity.timeline
            return stream
        assert found is not None and found.position == position, f"{found=} {position=}"
        if _has_messages(found.settings):
            self._messages = True  # a log with messages keeps them, or some would be missing
        end_lsn = found.end_lsn
        if end_lsn == ZERO_LSN:
            end_lsn = identity.confirmed_lsn or await self._create_slot(connection)
        return ChangeStream(
            position,
            end_lsn=end_lsn,
            timeline=identity.timeline,
            segment_bytes=identity.segment_bytes,
            settings=self._settings(identity),
            new_spool=self._spooling.new_spool,
            spool_bytes_max=self._spooling.bytes_max,
            slots=_slots_of(found.settings),
            tables=identity.tables,
            tail=found.tail if found.end_lsn else None,
        )

    async def _create_slot(self, connection: ReplicationConnection) -> Lsn:
        command = create_slot_command(self._slot, self._identity.server_version_num)
        consistent_point = (await connection.query(command))[0][1] or ""
        logger.info("created slot %s at %s", self._slot, consistent_point)
        return Lsn.parse(consistent_point)

    def _options(self) -> dict[str, str]:
        version = self._identity.server_version_num
        if self._messages and version < 140000:
            raise Refused(
                f"--messages needs PostgreSQL 14 or newer, this is {version // 10000}: "
                "leave --messages out, or upgrade the server"
            )
        return plugin_options(self._publications, version, messages=self._messages)

    def _can_stream(self) -> bool:
        """Return True if the server may stream open transactions.

        With messages it may not. A stream does not name a message's subtransaction, so that one of
        a rolled back subtransaction would stay (pgoutput_message). With origins it may not either
        (`ChangeStream._on_message`)."""
        has_spools = self._identity.server_version_num >= 140000 and self._spooling.bytes_max > 0
        return has_spools and not self._messages and not self._identity.has_origins

    def _settings(self, identity: LogicalIdentity) -> dict[str, object]:
        return {
            "plugin": PLUGIN,
            "options": self._options(),
            "publications": list(self._publications),
            "database": identity.database,
            "encoding": identity.encoding,
            "server_version": identity.server_version,
        }

    def _new_ends(self) -> StreamEnds:
        return SlowEnds(self.on_readable)

    def on_readable(self) -> None:
        """Receive and decode all that is there."""
        self._at.silent_statuses = 0
        connection, stream = self._connection, self._end.stream
        if connection is None or stream is None:
            return
        wants_status, transactions = False, stream.transactions
        was_comparing = stream.is_comparing
        try:
            if stream.is_replaying:
                stream.replay(BATCH_BYTES_MAX)
            if not stream.is_replaying:
                wants_status = self._receive(connection, stream)
            self._hand_over()
        except (WalkeeperError, RemoteProtocolError) as error:
            self._hand_over()
            if isinstance(error, DiffersFromLog):
                error = self._on_other_branch(error, stream)
            self._lose(self._without_streaming(error))
            return
        if stream.transactions != transactions:
            self._silent_statuses_max = self._silent_statuses_first
        if stream.is_replaying and connection.is_reading and not self._is_replay_due:
            self._is_replay_due = True
            asyncio.get_running_loop().call_soon(self._replay_on, connection)
        if wants_status or (was_comparing and not stream.is_comparing):
            self._send_status()

    def _on_other_branch(self, error: DiffersFromLog, stream: ChangeStream) -> WalkeeperError:
        """Return the error for a slot that differs from the log.

        An ending connection may confirm an LSN after our question. So the difference counts only
        if it is there again, with the slot at the same LSN."""
        confirmed_lsn = self._confirmed_lsn(stream)
        if self._differed_lsn != confirmed_lsn:
            self._differed_lsn = confirmed_lsn
            return Unavailable(f"{error}; asking it once more")
        return Refused(
            f"{error}: it is on another branch of the history, or was set back to an older state "
            "of its disk. Consumers may have what the log has, and acknowledged commits may be in "
            f"the log alone: {NEW_LOG}"
        )

    def _on_silence(self) -> str:
        said = super()._on_silence()
        self._silent_statuses_max *= 2
        return f"{said}; it may be decoding, the next connection is given {self._silent_s_max:g} s"

    def _without_streaming(self, error: WalkeeperError) -> WalkeeperError:
        """Turn streaming off for one connection, if open transactions cannot be streamed.

        PostgreSQL 15 to 18 may fail to decode them: XX000, "could not map filenumber"."""
        if not self._streams or not isinstance(error, CannotStream | InternalError):
            return error
        self._may_stream = False
        return Unavailable(f"{error}; PostgreSQL is to keep open transactions until they commit")

    def _receive(self, connection: ReplicationConnection, stream: ChangeStream) -> bool:
        """Receive from the socket; return True if the primary requests a status."""
        wants_status = False
        connection.consume()
        while not stream.is_replaying and (payload := connection.receive()) is not None:
            wants_status |= stream.on_copy_data(payload)
            if stream.writer.made_bytes >= BATCH_BYTES_MAX:
                self._hand_over()
        return wants_status

    def _replay_on(self, connection: ReplicationConnection) -> None:
        """Replay one piece per turn of the loop, so that acks arrive in between."""
        self._is_replay_due = False
        self._read_on(connection)

    def _hand_over(self) -> None:
        """Pass the stream's entries to the core; the received LSN may be reported then."""
        stream = self._end.stream
        assert stream is not None
        position, data = stream.take()
        self._at.received_lsn = stream.received_lsn
        if data:
            self._post(WalArrived(position, data))

    def on_consumers(self, message: ConsumerSlots | TablesQuery) -> None:
        """Take what a safekeeper says of its consumers: news of their slots, or a query."""
        stream = self._end.stream
        if stream is None or not self._is_streaming:
            return  # it comes again
        if isinstance(message, ConsumerSlots):
            stream.on_consumer_slots(message.news)
            self._hand_over()
        else:
            self._tokens.update(stream.unanswered(message.tokens))
            self._is_asked.set()

    def report(self, commit_lsn: Lsn, feedback: Sequence[Feedback]) -> None:
        """Report the end LSN of the last whole entry below the position `commit_lsn`."""
        stream = self._end.stream
        if stream is None:
            return
        at = self._at
        at.flush_lsn = max(at.flush_lsn, stream.on_committed(commit_lsn) or ZERO_LSN)
        at.apply_lsn = at.flush_lsn
        self._send_status()
        self._hand_over()  # a progress entry may have waited for this one

    def _send_xmins(self) -> None:
        """Send no xmin: consumers of changes need no rows, and it would move the slot's horizon."""

    def read(self, begin_lsn: Lsn, end_lsn: Lsn, timeline: int) -> None:
        raise AssertionError("a logical log is not compared byte by byte")
