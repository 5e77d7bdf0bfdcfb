"""One PostgreSQL client's connection to a safekeeper: standby, pg_receivewal, psql, pg_isready.

    await ReplicaSession(client, catalog, pid=…, limits=…, now=…).run()

Startup, login, then commands one after the other until the client leaves; `wal_stream` takes over
for START_REPLICATION. The ports are in `opened_log` and `served_log`.

Contract: `run` ends with the socket closed and the slots released, whatever happens. It raises only
CancelledError and AssertionError. Before CancelledError, at a stop of the safekeeper, the client
gets 57P01. A client that leaves, breaks the protocol or falls silent costs one log line.

Source: PostgreSQL's postgres.c and walsender.c, and what clients of 15, 17 and 18 were measured to
send and to need. TLS and certificates are the opening's matter: a request for it here gets `N`.
`password` asks for one, and `admit` returns why there is no place for an identity.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NoReturn

from walkeeper_common.access.identity import ANYBODY, Identity
from walkeeper_common.errors import (
    NoSpace,
    Refused,
    RemoteProtocolError,
    StorageError,
    WalRemoved,
)
from walkeeper_common.postgres.client_encoding import (
    SQL_ASCII,
    ClientEncoding,
    client_encoding,
)
from walkeeper_common.postgres.pgwire import (
    CancelRequest,
    Message,
    SqlRefused,
    Startup,
    authentication_ok,
    backend_key_data,
    command_complete,
    empty_query_response,
    error_response,
    negotiate_protocol_version,
    parameter_status,
    ready_for_query,
)
from walkeeper_common.postgres.replication_commands import (
    AlterSlot,
    BeginCopy,
    Command,
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
from walkeeper_common.shell.log_lines.audit import Audit
from walkeeper_common.shell.log_lines.operator_log import alike
from walkeeper_safekeeper.connections.permissions import may_perform, may_reach
from walkeeper_safekeeper.replication import replication_answers
from walkeeper_safekeeper.replication.client_connection import (
    ClientConnection,
    ClientGone,
    SilentClient,
)
from walkeeper_safekeeper.replication.logical_log import LogicalLog
from walkeeper_safekeeper.replication.logical_session import LogicalSession
from walkeeper_safekeeper.replication.login import Login, no_logical_log, parse_login, user_of
from walkeeper_safekeeper.replication.opened_log import Catalog, OpenedLog
from walkeeper_safekeeper.replication.password_login import PasswordLogin
from walkeeper_safekeeper.replication.served_log import Reader, ServedLog
from walkeeper_safekeeper.replication.wal_stream import (
    StreamEnded,
    StreamLimits,
    WalStream,
    check_start,
    wal_removed,
)

logger = logging.getLogger("walkeeper.replicas")

NO_CANCEL_KEY = 0  # A cancel request is never acted upon, so there is nothing to keep secret.
ENCRYPTION_REQUESTS_MAX = 2  # SSLRequest and GSSENCRequest


class ReplicaSession:
    """`pid` is unique among the connections of this process."""

    def __init__(
        self,
        client: ClientConnection,
        catalog: Catalog,
        *,
        pid: int,
        limits: StreamLimits,
        now: Callable[[], float],
        identity: Identity = ANYBODY,
        audit: Audit | None = None,
        password: PasswordLogin | None = None,
        admit: Callable[[Identity], str | None] = lambda _: None,
    ) -> None:
        self._audit = audit or Audit()
        self._password, self._admit = password, admit
        self._client, self._catalog, self._identity = client, catalog, identity
        self._pid, self._limits, self._now = pid, limits, now
        self._log: OpenedLog | None = None

    async def run(self) -> None:
        """Serve the client until it leaves. See the module's contract."""
        try:
            await self._run()
        except ClientGone as gone:
            logger.debug("client %s %s", self._client, gone)
        except SilentClient as silence:
            extra = alike("dropped client")
            logger.warning("dropped client %s: it %s", self._client, silence, extra=extra)
            self._client.abort()
        except asyncio.CancelledError:
            stop = "terminating connection due to administrator command"
            self._client.send_fatal(SqlRefused("57P01", stop))
            raise
        except AssertionError:
            raise
        except Exception as error:
            answer = fatal_answer(error)
            text, code = str(answer), answer.sqlstate
            self._audit.refusal(code, self._identity, str(self._client), text=text)
            if answer.sqlstate == "XX000" and not isinstance(error, SqlRefused):
                logger.exception("connection of client %s failed", self._client)
            else:
                extra = alike(f"client {code}")
                logger.info("client %s: %s: %s", self._client, code, text, extra=extra)
            self._client.send_fatal(answer)
        finally:
            if self._log is not None:
                self._log.slots.release_all(pid=self._pid)
            await self._client.close()

    async def _run(self) -> None:
        try:
            async with asyncio.timeout(self._limits.authentication_timeout_s):
                startup = await self._startup()
                if startup is None:
                    return
                await self._identify(startup)
        except TimeoutError as error:
            raise SilentClient("did not log in") from error
        catalog = self._catalog
        login = parse_login(startup.parameters, catalog.clusters(), catalog.logical_databases())
        if not may_reach(self._identity, login.cluster):
            text = f'{self._identity.name} may not reach cluster "{login.cluster}"'
            raise SqlRefused("42501", text)
        try:
            self._log = self._catalog.open_log(login.cluster)
        except Refused as error:
            raise SqlRefused("57P03", f'cluster "{login.cluster}": {error}') from error
        if login.logical:
            if self._log.logical is None:
                raise no_logical_log()
            self._client.encoding = await encoding_of(login, self._log.logical)
        facts = {
            "cluster": login.cluster,
            "user": login.user,
            "application": login.application_name,
        }
        self._audit.login(self._identity, str(self._client), **facts)
        self._greet(login, self._log)
        pid, limits = self._pid, self._limits
        identity, audit = self._identity, self._audit
        commands = _Commands(
            self._log, self._client, login, pid, limits, self._now, identity, audit
        )
        await commands.run()

    async def _startup(self) -> Startup | None:
        """Return the login, after any request for encryption, or None for a cancel."""
        for _ in range(ENCRYPTION_REQUESTS_MAX + 1):
            match await self._client.next_startup():
                case Startup() as startup:
                    return startup
                case CancelRequest():
                    return None
                case _:
                    self._client.send(b"N")
        raise RemoteProtocolError("too many requests for encryption")

    async def _identify(self, startup: Startup) -> None:
        """Ask for the password, if there are users, and take a place for the identity."""
        unknown = startup.protocol_options
        if startup.minor > 0 or unknown:
            self._client.send(negotiate_protocol_version(unknown))
        if self._password is not None:
            name = user_of(startup.parameters)
            self._identity = await self._password.identify(self._client, name)
        refusal = self._admit(self._identity)
        if refusal is not None:
            raise SqlRefused("53300", refusal)

    def _greet(self, login: Login, log: ServedLog) -> None:
        major = replication_answers.major_version(log.server_version)
        reported = b"".join(
            parameter_status(name, replication_answers.setting(log, name, login=login))
            for since, name in replication_answers.REPORTED_SETTINGS
            if major >= since
        )
        key = backend_key_data(self._pid, NO_CANCEL_KEY)
        self._client.send(authentication_ok() + reported + key + ready_for_query())


async def encoding_of(login: Login, logical: LogicalLog) -> ClientEncoding:
    """Return the encoding that the client asks for. SQL_ASCII means the bytes of the database."""
    if login.encoding != SQL_ASCII:
        return client_encoding(login.encoding)
    settings = await logical.known_settings()
    if not settings.encoding:
        raise SqlRefused(
            "0A000",
            f"a safekeeper does not know the encoding of database {settings.database}, which "
            "client_encoding = SQL_ASCII asks for",
            hint="Start a proposer of this version, or connect with client_encoding = UTF8.",
        )
    return client_encoding(settings.encoding)


def fatal_answer(error: Exception) -> SqlRefused:
    """Return the message for a client whose connection ends because of `error`."""
    match error:
        case SqlRefused():
            return error
        case RemoteProtocolError():
            return SqlRefused("08P01", str(error))
        case NoSpace():
            return SqlRefused("53100", str(error))
        case StorageError():
            return SqlRefused("58030", str(error))
        case StreamEnded() | Refused():
            return SqlRefused("57P01", f"terminating connection: {error}", hint="Reconnect.")
        case _:
            return SqlRefused("XX000", "internal error of the safekeeper; its log says more")


class _Commands:
    """The commands of one client that has logged in."""

    def __init__(
        self,
        log: OpenedLog,
        client: ClientConnection,
        login: Login,
        pid: int,
        limits: StreamLimits,
        now: Callable[[], float],
        identity: Identity,
        audit: Audit,
    ) -> None:
        self._audit = audit
        self._log, self._client, self._login, self._pid = log, client, login, pid
        self._identity, self._limits, self._now = identity, limits, now
        self._logical = None
        if log.logical is not None:
            self._logical = LogicalSession(log.logical, client, login, pid, limits, now)

    async def run(self) -> NoReturn:
        """Serve commands until ClientGone, or an error that ends the connection."""
        try:
            await self._serve()
        finally:
            if self._logical is not None:
                await self._logical.close()

    async def _serve(self) -> NoReturn:
        while True:
            await self._client.drain(self._limits.sender_timeout_s)
            received = await self._client.next_message()
            match received.tag:
                case b"Q":
                    await self._on_query(received)
                case b"P" | b"B" | b"D" | b"E" | b"C" | b"H":
                    await self._refuse_extended()
                case b"F":
                    self._answer_error(_forbidden("fastpath function calls"))
                    self._client.send(ready_for_query())
                case b"S":
                    self._client.send(ready_for_query())
                case b"d" | b"c" | b"f":
                    continue  # The rest of a COPY that an error of ours has ended.
                case tag:
                    raise RemoteProtocolError(f"invalid frontend message type {tag!r}")

    async def _refuse_extended(self) -> None:
        """Send one error, then stay silent up to the client's Sync."""
        self._answer_error(_forbidden("extended query protocol"))
        while (await self._client.next_message()).tag != b"S":
            continue
        self._client.send(ready_for_query())

    async def _on_query(self, received: Message) -> None:
        try:
            text = self._text_of(received)
            logger.debug("client %s: %s", self._client, text)
            if is_empty(text):
                self._client.send(empty_query_response())
            else:
                await self._perform(text)
        except SqlRefused as refused:
            self._answer_error(refused)
        except WalRemoved as removed:
            self._answer_error(wal_removed(self._log, removed.lsn, self._log.timeline))
        except StorageError as error:
            self._answer_error(fatal_answer(error))
        self._client.send(ready_for_query())

    def _text_of(self, received: Message) -> str:
        encoding = self._client.encoding
        return received.text() if encoding.is_utf8 else encoding.decode(received.string())

    def _answer_error(self, error: SqlRefused) -> None:
        logger.info("client %s: %s: %s", self._client, error.sqlstate, error)
        self._client.answer(error_response(error))

    async def _perform(self, text: str) -> None:
        log, login = self._log, self._login
        command = parse_command(text)
        if not login.replication and not isinstance(command, Show):
            command = SqlCommand(text.strip())
        self._note(command)
        if not may_perform(self._identity, command):
            raise SqlRefused("42501", f"{self._identity.name} may not run {text.split()[0]} here")
        if self._logical is not None and not (login.entries and _is_for_entries(command)):
            await self._logical.perform(command)
            return
        match command:
            case IdentifySystem():
                self._client.send(replication_answers.identify_system(log, await log.whole_end()))
            case Show(setting):
                self._client.send(replication_answers.show(log, setting, login=login))
            case ReadSlot(name):
                self._client.send(replication_answers.read_slot(log, log.slots.slots.find(name)))
            case CreateSlot():
                self._client.send(await replication_answers.create_slot(log, command, self._pid))
            case DropSlot(name, wait):
                await log.slots.drop(name, pid=self._pid, wait=wait)
                self._client.send(command_complete("DROP_REPLICATION_SLOT"))
            case TimelineHistory(timeline):
                self._client.send(replication_answers.timeline_history(log, timeline))
            case StartReplication():
                await self._stream(command)
            case PrimaryOnly(what):
                raise replication_answers.primary_only(log, what)
            case CreateLogicalSlot() | AlterSlot() | StartLogical():
                raise no_logical_log()
            case SqlCommand() | BeginCopy():
                self._client.send(
                    replication_answers.sql(log, text.strip(), replication=login.replication)
                )

    def _note(self, command: Command) -> None:
        """Note in the audit whether the role refuses the command, or which slot it changes."""
        identity, address = self._identity, str(self._client)
        if not may_perform(identity, command):
            self._audit.refusal("role", identity, address, command=type(command).__name__)
            return
        acts = {
            CreateSlot: "create-slot",
            CreateLogicalSlot: "create-slot",
            AlterSlot: "alter-slot",
            DropSlot: "drop-slot",
        }
        if isinstance(command, CreateSlot | CreateLogicalSlot | AlterSlot | DropSlot):
            act, cluster = acts[type(command)], self._log.cluster
            self._audit.change(act, identity, address, cluster=cluster, slot=command.slot)

    async def _stream(self, asked: StartReplication) -> None:
        """Check and register the reader in one step: no segment goes in between.

        Only a question for WAL that has gone already comes before."""
        log, client = self._log, self._client
        timeline = log.timeline if asked.timeline is None else asked.timeline
        if asked.slot is not None:
            log.slots.slots.acquire(asked.slot, pid=self._pid)
        try:
            is_elsewhere = await log.is_elsewhere(asked.start_lsn)
            check_start(log, asked.start_lsn, timeline, is_elsewhere=is_elsewhere)
            reader = Reader(
                pid=self._pid,
                user=self._login.user,
                application_name=self._login.application_name,
                client_addr=client.address,
                client_port=client.port,
                begin_lsn=asked.start_lsn,
                slot=asked.slot,
                sent_lsn=asked.start_lsn,
            )
            log.readers.register(reader)
            try:
                logger.info("started streaming %s", _describe(reader, timeline))
                stream = WalStream(
                    log, client, reader, timeline, limits=self._limits, now=self._now
                )
                await stream.run()
            finally:
                log.readers.unregister(reader)
                logger.info("stopped streaming %s", _describe(reader, timeline))
        finally:
            if asked.slot is not None:
                log.slots.release(asked.slot, pid=self._pid)


def _is_for_entries(command: Command) -> bool:
    """Return True if the command reads a logical log's bytes by position; no slot keeps them."""
    match command:
        case IdentifySystem() | Show():
            return True
        case StartReplication(slot=None):
            return True
        case _:
            return False


def _describe(reader: Reader, timeline: int) -> str:
    name = f'"{reader.application_name}" ({reader.client_addr}:{reader.client_port})'
    return f"WAL to {name} at {reader.sent_lsn} on timeline {timeline}"


def _forbidden(what: str) -> SqlRefused:
    return SqlRefused("08P01", f"{what} not supported in a replication connection")
