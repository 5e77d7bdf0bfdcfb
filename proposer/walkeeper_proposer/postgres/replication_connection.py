"""One replication connection to PostgreSQL, through libpq itself. An asyncio shell.

The DSN goes to libpq, so TLS, SCRAM, .pgpass and service files work as everywhere. We add
replication, the application_name, and TCP time limits where the DSN has none. We try several hosts
in their order. libpq does not, since it looks names up while the loop and the commits wait. Also, a
server that is switched off would take up the time of the later ones. WAL is not copied: the window
keeps libpq's buffer of one CopyData.

Errors:
    Unavailable             worth another try: no server there, starting up, or connection lost
    Refused                 not before something is changed; the text is the server's
    WalRemovedOnPrimary     58P01

libpq closes its socket whenever it finds it lost, and the next socket of the process gets its
number. So the loop forgets the descriptor in the same step. Otherwise the loop would watch another
connection's descriptor. If the descriptor is not open at all, the loop ends the process by SIGABRT.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

from psycopg import conninfo, pq
from psycopg import errors as pg_errors

from walkeeper_common.errors import Refused, WalkeeperError
from walkeeper_fastpath.ports import LibpqCalls
from walkeeper_proposer.postgres.connection_errors import (
    connect_failure,
    hide_sqlstate,
    show_sqlstate,
)
from walkeeper_proposer.postgres.dsn import libpq_parameters, time_limit_s

QUERY_TIMEOUT_S = 30.0
TCP_DEFAULTS = {
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
}
NO_SUCH_OBJECT = "42704"
DUPLICATE_OBJECT = "42710"
NOT_IN_PREREQUISITE_STATE = "55000"
CONFIGURATION_LIMIT = "53400"
# SQLSTATEs that go away by themselves. One is a slot in use. The others have the classes 08 (the
# connection), 53 (memory, disk and connections used up) and 57 (shutting down, starting up,
# cancelled). CONFIGURATION_LIMIT has class 53, but does not go away.
SLOT_IN_USE = "55006"
TRANSIENT_CLASSES = ("08", "53", "57")
INTERNAL_CLASS = "XX"
# The parts of a DSN that name the servers, and the order in which they are tried.
PLACES = ("host", "hostaddr", "port", "target_session_attrs", "load_balance_hosts")


class Unavailable(WalkeeperError):
    """Not now: try again after a pause. `sqlstate` is empty if libpq gave none."""

    def __init__(self, text: str, sqlstate: str = "") -> None:
        super().__init__(text)
        self.sqlstate = sqlstate


class SlotMissing(Refused):
    """42704: the server has no replication slot of that name."""


class SlotExists(Refused):
    """42710: the server has a replication slot of that name already."""


class SlotUnusable(Refused):
    """55000: a slot of that name does not do, such as one that is lost (18)."""


class WalRemovedOnPrimary(Refused):
    """58P01: the primary has recycled the requested WAL."""


class InternalError(Refused):
    """XX000 and its like: a fault of the server's own."""


class ReplicationConnection:
    """`await ReplicationConnection.open(...)`; one command at a time, or one stream."""

    def __init__(self, connection: pq.abc.PGconn) -> None:
        self._pg = connection
        self._loop = asyncio.get_running_loop()
        self._descriptor = -1  # the socket's; libpq does not return it once the connection is lost
        self._waiter: asyncio.Future[None] | None = None  # the one for which `_wait` waits
        self._stop_waiting: Callable[[], object] = lambda: None
        self.wants_write = False
        self.is_reading = False
        self.on_drained: Callable[[], None] = lambda: None
        self.on_lost: Callable[[Unavailable], None] = lambda _: None  # a loss seen while draining

    @property
    def backend_pid(self) -> int:
        """The walsender's process at the server."""
        return self._pg.backend_pid

    @classmethod
    async def open(
        cls, dsn: str, application_name: str, *, replication: str = "true"
    ) -> ReplicationConnection:
        """Connect for physical replication, or with "database" for logical."""
        parameters = libpq_parameters(dsn)
        limit_s = time_limit_s(parameters)
        given = {name: value for name, value in TCP_DEFAULTS.items() if name not in parameters}
        given |= {"replication": replication, "application_name": application_name}
        if replication == "true" and parameters.get("dbname") == parameters.get("user"):
            given["dbname"] = "replication"  # as .pgpass has it; libpq's default is the user's name
        failures: list[Unavailable] = []
        for server in await _servers(parameters, limit_s):
            text = conninfo.make_conninfo(dsn, **given, **server)
            self = cls(pq.PGconn.connect_start(text.encode()))
            try:
                async with asyncio.timeout(limit_s):
                    await self._connect()
                return self
            except TimeoutError:
                where = server.get("host") or server.get("hostaddr") or "its socket"
                text = f"no answer from PostgreSQL at {where} within {limit_s:g} s"
                failures.append(Unavailable(text))
            except Unavailable as error:
                failures.append(error)
        if len(failures) == 1:
            raise failures[0]
        raise Unavailable("; ".join(map(str, failures)))

    async def _connect(self) -> None:
        try:
            await self._poll_connected()
        except pg_errors.OperationalError as error:
            self._pg.finish()
            raise Unavailable(f"cannot connect to PostgreSQL: {error}".strip()) from error
        except BaseException:
            self._pg.finish()
            raise

    async def _poll_connected(self) -> None:
        pg = self._pg
        show_sqlstate(pg)
        status: int = pq.PollingStatus.WRITING
        while status != pq.PollingStatus.OK:
            if status == pq.PollingStatus.FAILED or pg.status == pq.ConnStatus.BAD:
                raise _connect_error(pg)
            await self._wait(for_write=status == pq.PollingStatus.WRITING)
            status = pg.connect_poll()
        hide_sqlstate(pg)
        pg.nonblocking = 1
        self._descriptor = pg.socket

    async def _wait(self, *, for_write: bool) -> None:
        """Wait until the socket is ready; raise Unavailable at once if `close` is called."""
        if self._waiter is not None:
            raise Unavailable("another command is under way on this connection")
        add, remove = self._loop.add_reader, self._loop.remove_reader
        if for_write:
            add, remove = self._loop.add_writer, self._loop.remove_writer
        descriptor = self._pg.socket  # libpq changes it when it asks a server without TLS again
        waiter: asyncio.Future[None] = self._loop.create_future()

        def stop() -> None:
            if self._waiter is waiter:
                self._waiter = None
                remove(descriptor)

        def ready() -> None:
            stop()
            if not waiter.done():
                waiter.set_result(None)

        add(descriptor, ready)
        self._waiter, self._stop_waiting = waiter, stop
        try:
            await waiter
        finally:
            stop()

    @property
    def server_version(self) -> tuple[str, int]:
        """The server's own text, and as a number: ("15.18 (Debian …)", 150018)."""
        text = self._pg.parameter_status(b"server_version") or b""
        return text.decode(errors="replace"), self._pg.server_version

    async def query(self, command: str) -> list[list[str | None]]:
        """Return the rows of one command's first result."""
        async with self._answering(command):
            result = await self._execute(command)
            await self._drain()  # also after an error: the next command would be refused
        if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
            raise _server_error(command, result)
        return [
            [_decoded(result.get_value(row, column)) for column in range(result.nfields)]
            for row in range(result.ntuples)
        ]

    async def start_copy(self, command: str) -> None:
        """Send START_REPLICATION; return in CopyBoth, or raise the server's error."""
        async with self._answering(command):
            result = await self._execute(command)
            if result.status != pq.ExecStatus.COPY_BOTH:
                await self._drain()
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise _server_error(command, result)

    @asynccontextmanager
    async def _answering(self, command: str) -> AsyncIterator[None]:
        """Raise Unavailable if the server is lost in its answer, also after an error it sent."""
        try:
            async with asyncio.timeout(QUERY_TIMEOUT_S):
                yield
        except TimeoutError:
            raise Unavailable(f"{command}: no answer within {QUERY_TIMEOUT_S:g} s") from None
        except pg_errors.OperationalError as error:
            raise Unavailable(f"{command}: {error}".strip()) from error

    async def _execute(self, command: str) -> pq.abc.PGresult:
        self._pg.send_query(command.encode())
        while self._pg.flush():
            await self._wait(for_write=True)
        result = await self._next_result()
        if result is None:
            raise Unavailable(f"{command}: the connection was closed")
        return result

    async def _next_result(self) -> pq.abc.PGresult | None:
        while self._pg.is_busy():
            await self._wait(for_write=False)
            self._pg.consume_input()
        return self._pg.get_result()

    async def _drain(self) -> None:
        while (result := await self._next_result()) is not None:
            if result.status == pq.ExecStatus.COPY_BOTH:  # get_result gives it again and again
                raise Unavailable("the server started a stream that was not asked for")

    # The stream

    def receive(self) -> memoryview | None:
        """Return one CopyData that is here already, or None.

        Raise Unavailable or Refused if the stream has ended.
        """
        try:
            size, data = self._pg.get_copy_data(1)
        except pg_errors.OperationalError as error:
            raise self._lost(error) from error
        if size > 0:
            return data
        if size == 0:
            return None
        raise self._stream_ended()

    def receive_all(self, take: Callable[[memoryview], None]) -> None:
        """Read all that the socket has, and pass each whole CopyData to `take`.

        Then raise the errors of `receive`.
        """
        get_copy_data = self._pg.get_copy_data
        try:
            self._pg.consume_input()
            while True:
                size, data = get_copy_data(1)
                if size <= 0:
                    break
                take(data)
        except pg_errors.OperationalError as error:
            raise self._lost(error) from error
        if size < 0:
            raise self._stream_ended()

    def libpq(self) -> LibpqCalls:
        """Return libpq's own calls, for the compiled fast path of a stream."""
        pg = self._pg
        return pg.consume_input, pg.get_copy_data, pg.put_copy_data, pg.flush

    def over(self, error: Exception | None) -> WalkeeperError:
        """Return why the stream is over: libpq's error in one of its calls, or the stream's end.

        Raise any other error again."""
        if error is None:
            return self._stream_ended()
        if isinstance(error, pg_errors.OperationalError):
            return self._lost(error)
        if isinstance(error, WalkeeperError):
            return error
        raise error

    def _lost(self, error: pg_errors.Error) -> Unavailable:
        self._unwatch()
        return Unavailable(str(error).strip())

    def _stream_ended(self) -> WalkeeperError:
        result = self._pg.get_result()
        self._unwatch()
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            return _server_error("replication", result)
        return Unavailable("the server ended the stream")

    def consume(self) -> None:
        """Read all that the socket has."""
        try:
            self._pg.consume_input()
        except pg_errors.OperationalError as error:
            raise self._lost(error) from error

    async def wait_readable(self) -> None:
        """Wait until the socket has more, and read it."""
        try:
            await self._wait(for_write=False)
        except pg_errors.OperationalError as error:  # lost: libpq has no socket any more
            raise self._lost(error) from error
        self.consume()

    def send(self, payload: bytes) -> bool:
        """Send one CopyData at once, or drop it and return False if the last one has not left."""
        if self.wants_write:
            return False
        try:
            self._pg.put_copy_data(payload)
            if self._pg.flush():
                self.flush_rest()
        except pg_errors.OperationalError as error:
            raise self._lost(error) from error
        return True

    def flush_rest(self) -> None:
        """Send what the socket takes now, and the rest when it takes more."""
        pending = bool(self._pg.flush())
        if pending and not self.wants_write:
            self._loop.add_writer(self._descriptor, self._on_writable)
        elif self.wants_write and not pending:
            self._loop.remove_writer(self._descriptor)
        self.wants_write = pending

    def _on_writable(self) -> None:
        try:
            self.flush_rest()
        except pg_errors.OperationalError as error:
            self.on_lost(self._lost(error))  # no caller would learn it: no more is read
            return
        if not self.wants_write:
            self.on_drained()

    def start_reading(self, on_readable: Callable[[], object]) -> None:
        if not self.is_reading:
            self._loop.add_reader(self._descriptor, on_readable)
            self.is_reading = True

    def stop_reading(self) -> None:
        if self.is_reading:
            self._loop.remove_reader(self._descriptor)
            self.is_reading = False

    def close(self) -> None:
        """Close at once; the server notices the closed socket."""
        self._unwatch()
        waiter = self._waiter
        self._stop_waiting()
        if waiter is not None and not waiter.done():
            waiter.set_exception(Unavailable("the connection was closed"))
        self._pg.finish()

    def _unwatch(self) -> None:
        self.stop_reading()
        if self.wants_write:
            self._loop.remove_writer(self._descriptor)
            self.wants_write = False


async def _servers(parameters: dict[str, str], limit_s: float) -> Sequence[dict[str, str]]:
    """Return the parameters that differ for each address of each server of a DSN.

    Raise Unavailable if no name is known.
    """
    places = {name: parameters[name] for name in PLACES if name in parameters}
    try:
        async with asyncio.timeout(limit_s):
            attempts = await conninfo.conninfo_attempts_async(places)
    except TimeoutError:
        hosts = places.get("host")
        raise Unavailable(
            f"the name service gave no address of {hosts} within {limit_s:g} s: check the host in "
            "--dsn"
        ) from None
    except pg_errors.OperationalError as error:
        raise Unavailable(f"cannot connect to PostgreSQL: {error}") from error
    return [{name: str(value) for name, value in each.items()} for each in attempts]


@contextmanager
def understood(what: str) -> Iterator[None]:
    """Raise Unavailable for an answer of another form: that is no reason to end the process."""
    try:
        yield
    except (LookupError, TypeError, ValueError) as error:
        raise Unavailable(f"{what}: an answer that is not PostgreSQL's: {error!r}") from error


def _decoded(value: bytes | None) -> str | None:
    """Decode bytes of any encoding; `encode` with the same handler returns them."""
    return None if value is None else value.decode(errors="surrogateescape")


def _connect_error(connection: pq.abc.PGconn) -> WalkeeperError:
    text = pq.misc.error_message(connection)
    failure = connect_failure(text, needs_password=connection.needs_password)
    if failure.is_lasting:
        return Refused(f"PostgreSQL refused the connection: {failure.text}")
    return Unavailable(f"cannot connect to PostgreSQL: {failure.text}", failure.sqlstate)


def _server_error(command: str, result: pq.abc.PGresult) -> WalkeeperError:
    state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    text = f"{command}: {pq.misc.error_message(result)}"
    if state == "58P01":
        return WalRemovedOnPrimary(text)
    if state == NO_SUCH_OBJECT:
        return SlotMissing(text)
    if state == DUPLICATE_OBJECT:
        return SlotExists(text)
    if state == NOT_IN_PREREQUISITE_STATE:
        return SlotUnusable(text)
    passes = state.startswith(TRANSIENT_CLASSES) and state != CONFIGURATION_LIMIT
    if passes or state == SLOT_IN_USE or not state:
        return Unavailable(text, state)
    return InternalError(text) if state.startswith(INTERNAL_CLASS) else Refused(text)
