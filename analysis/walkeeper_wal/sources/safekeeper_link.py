"""One connection to a safekeeper, by which ranges of committed WAL are fetched. A shell; blocks.

    link = SafekeeperLink.open("10.0.0.1:5451", "main")
    link.state(); link.fetch(begin, end, timeline, into); link.history(timeline)

The protocol is PostgreSQL's own for standbys (IDENTIFY_SYSTEM, SHOW, TIMELINE_HISTORY,
START_REPLICATION PHYSICAL), through libpq with its environment variables (PGUSER, PGPASSFILE,
PGSSLMODE). The TLS file of --tls, if there is one, takes precedence over them.
Contract: it has no slot. A stream lasts as long as one fetch, so WAL is retained for no longer.
Every failure is Unavailable with the address. The connection is then closed and not used again.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from psycopg import conninfo, pq
from psycopg import errors as pg_errors

from walkeeper_common.addresses import parse_address
from walkeeper_common.errors import RemoteProtocolError
from walkeeper_common.lsn import Lsn
from walkeeper_common.operator_text.printable import in_one_line
from walkeeper_common.postgres.pgwire import Keepalive, StandbyStatus, XLogData
from walkeeper_common.shell.tls.own_credentials import own_libpq_parameters
from walkeeper_wal.records.segment import Bytes
from walkeeper_wal.wal_errors import HistoryError

CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 15.0
USER = "walkeeper"  # unless PGUSER says otherwise: a safekeeper has no roles
_UNITS = {"kB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}


class Unavailable(HistoryError):
    """This safekeeper cannot answer the request, or not now; another one may."""


@dataclass(frozen=True, slots=True)
class ServedWal:
    """The WAL that a safekeeper can serve: [oldest_lsn, commit_lsn) of the log on `timeline`."""

    system_id: int
    timeline: int
    segment_bytes: int
    oldest_lsn: int
    commit_lsn: int


class SafekeeperLink:
    """A connection for one command at a time, by one thread."""

    def __init__(self, connection: pq.abc.PGconn, address: str) -> None:
        self._pg, self.address = connection, address
        self._poll = select.poll()
        with self._answering():
            self._poll.register(connection.socket, select.POLLIN)
        self._heard_s = time.monotonic()

    @classmethod
    def open(
        cls,
        address: str,
        cluster: str,
        *,
        entries: bool = False,
        application_name: str = "walkeeper history",
    ) -> SafekeeperLink:
        """Connect; raise Unavailable on failure. `cluster` may be empty if the safekeeper has only
        one.

        With `entries`, the log is logical, and its positions take the place of LSNs.
        """
        host, port = parse_address(address)
        options = f"-c walkeeper.cluster={cluster}" if cluster else ""
        options += " -c walkeeper.entries=on" if entries else ""
        text = conninfo.make_conninfo(
            host=host, port=str(port), user=os.environ.get("PGUSER", USER),
            dbname="replication", replication="true", application_name=application_name,
            keepalives_idle=10, tcp_user_timeout=20000,
            **({"options": options} if options else {}), **own_libpq_parameters(),
        )  # fmt: skip
        pg = pq.PGconn.connect_start(text.encode())
        # PQconnectdb would keep the interpreter's lock while it waits.
        deadline_s, status = time.monotonic() + CONNECT_TIMEOUT_S, int(pq.PollingStatus.WRITING)
        while status != pq.PollingStatus.OK:
            if status == pq.PollingStatus.FAILED or pg.status == pq.ConnStatus.BAD:
                raise Unavailable(_one_line(address, pq.misc.error_message(pg)))
            poll = select.poll()
            wanted = select.POLLOUT if status == pq.PollingStatus.WRITING else select.POLLIN
            try:
                poll.register(pg.socket, wanted)
            except pg_errors.Error as error:
                raise Unavailable(_one_line(address, str(error))) from error
            if not poll.poll(max(deadline_s - time.monotonic(), 0) * 1000):
                pg.finish()
                raise Unavailable(f"{address}: no answer within {CONNECT_TIMEOUT_S:g} s")
            status = pg.connect_poll()
        return cls(pg, address)

    def close(self) -> None:
        self._pg.finish()

    @property
    def is_open(self) -> bool:
        return self._pg.status == pq.ConnStatus.OK

    def state(self) -> ServedWal:
        """Return the log's present state."""
        with self._answering():
            system_id, timeline, commit, *_ = self._row("IDENTIFY_SYSTEM")
            size = self._row("SHOW wal_segment_size")[0].decode()
            first = self._row("SHOW walkeeper.first_lsn")[0].decode()
            return ServedWal(
                int(system_id), int(timeline), int(size[:-2]) * _UNITS[size[-2:]],
                int(Lsn.parse(first)), int(Lsn.parse(commit.decode())),
            )  # fmt: skip

    def is_logical(self) -> bool:
        """Return whether the log has decoded changes instead of WAL."""
        return self._row("SHOW walkeeper.kind")[0] == b"logical"

    def history(self, timeline: int) -> bytes:
        """Return a timeline's .history file."""
        with self._answering():
            return self._row(f"TIMELINE_HISTORY {timeline}")[1]

    def fetch(self, begin: int, end: int, timeline: int, into: Bytes) -> None:
        """Fetch WAL of [begin, end), all of it before the place where `timeline` was left."""
        command = f"START_REPLICATION PHYSICAL {Lsn(begin)} TIMELINE {timeline}"
        self._send(command)
        result = self._result()
        if result is None or result.status != pq.ExecStatus.COPY_BOTH:
            raise self._failed(command, result)
        at = begin
        while at < end:
            try:
                piece = self._wal(self._next_copy(command), at)[: end - at]
            except RemoteProtocolError as error:
                raise self._broken(str(error)) from error
            into[at - begin : at - begin + len(piece)] = piece
            at += len(piece)
        self._end_copy(command)

    def start_stream(self, begin: int, timeline: int) -> None:
        """Start a stream of WAL from `begin` on, as it is committed; read it with
        `next_of_stream`."""
        command = f"START_REPLICATION PHYSICAL {Lsn(begin)} TIMELINE {timeline}"
        self._send(command)
        result = self._result()
        if result is None or result.status != pq.ExecStatus.COPY_BOTH:
            raise self._failed(command, result)
        self._heard_s = time.monotonic()

    def next_of_stream(self, at: int, *, timeout_s: float) -> memoryview | None:
        """Return WAL from `at` on, or no bytes if none came in time.

        Return None at the end of the timeline. Raise Unavailable if the safekeeper does not even
        answer a request for a keepalive.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                size, data = self._pg.get_copy_data(1)
            except pg_errors.Error as error:
                raise self._broken(str(error)) from error
            if size < 0:
                self._end_copy("the stream")
                return None
            if size:
                self._heard_s = time.monotonic()
                try:
                    piece = self._wal(data, at)
                except RemoteProtocolError as error:
                    raise self._broken(str(error)) from error
                if len(piece):
                    return piece
                continue
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                if time.monotonic() - self._heard_s > ANSWER_TIMEOUT_S:
                    raise self._broken(f"it sent nothing for {ANSWER_TIMEOUT_S:g} s")
                return memoryview(b"")
            if self._poll.poll(left_s * 1000):
                self._take_in()

    def report(self, write_lsn: int, flush_lsn: int, replay_lsn: int) -> None:
        """Report the reader's positions, and request an answer."""
        lsns = Lsn(write_lsn), Lsn(flush_lsn), Lsn(replay_lsn)
        try:
            self._pg.put_copy_data(StandbyStatus(*lsns, 0, reply_requested=True).pack())
            self._pg.flush()
        except pg_errors.Error as error:
            raise self._broken(str(error)) from error

    def _wal(self, message: memoryview, at: int) -> memoryview:
        """Return the WAL from `at` on in a message; a keepalive has none, and may request an
        answer."""
        if message[:1] == XLogData.TAG:
            chunk = XLogData.unpack(message)
            if chunk.start_lsn != at:
                raise self._broken(f"WAL of {chunk.start_lsn} where {Lsn(at)} was due")
            return chunk.payload
        if Keepalive.unpack(message).reply_requested:
            status = StandbyStatus(Lsn(at), Lsn(at), Lsn(0), 0, reply_requested=False)
            with self._answering():
                self._pg.put_copy_data(status.pack())
        return memoryview(b"")

    def _end_copy(self, command: str) -> None:
        """End the copy and drop its remaining data; then the connection takes the next command."""
        try:
            self._pg.put_copy_end()
        except pg_errors.Error as error:
            raise self._broken(str(error)) from error
        while self._copy_data() is not None:
            pass
        while (result := self._result()) is not None:
            if result.status == pq.ExecStatus.FATAL_ERROR:
                raise self._failed(command, result)

    def _next_copy(self, command: str) -> memoryview:
        data = self._copy_data()
        if data is None:
            raise self._failed(command, self._result())
        return data

    def _copy_data(self) -> memoryview | None:
        """Return one message, or None at the end of the copy."""
        deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
        while True:
            try:
                size, data = self._pg.get_copy_data(1)
            except pg_errors.Error as error:
                raise self._broken(str(error)) from error
            if size:
                return data if size > 0 else None
            self._wait(deadline_s)

    def _row(self, command: str) -> list[bytes]:
        self._send(command)
        result = self._result()
        if result is None or result.status != pq.ExecStatus.TUPLES_OK or result.ntuples < 1:
            raise self._failed(command, result)
        row = [result.get_value(0, column) or b"" for column in range(result.nfields)]
        while self._result() is not None:
            pass
        return row

    def _send(self, command: str) -> None:
        try:
            self._pg.send_query(command.encode())
        except pg_errors.Error as error:
            raise self._broken(str(error)) from error

    def _result(self) -> pq.abc.PGresult | None:
        deadline_s = time.monotonic() + ANSWER_TIMEOUT_S
        with self._answering():
            while self._pg.is_busy():
                self._wait(deadline_s)
            return self._pg.get_result()

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Turn libpq's errors, and answers that are no safekeeper's, into Unavailable."""
        try:
            yield
        except (pg_errors.Error, LookupError, ValueError) as error:
            raise self._broken(str(error) or repr(error)) from error

    def _wait(self, deadline_s: float) -> None:
        """Wait until the socket has more, and take it in."""
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or not self._poll.poll(left_s * 1000):
            raise self._broken(f"no answer within {ANSWER_TIMEOUT_S:g} s")
        self._take_in()

    def _take_in(self) -> None:
        try:
            self._pg.consume_input()
        except pg_errors.Error as error:
            raise self._broken(str(error)) from error

    def _failed(self, command: str, result: pq.abc.PGresult | None) -> Unavailable:
        said = pq.misc.error_message(result) if result is not None else "the stream ended"
        return self._broken(f"{command}: {said}")

    def _broken(self, text: str) -> Unavailable:
        self.close()
        return Unavailable(_one_line(self.address, text))


def _one_line(address: str, text: str) -> str:
    return f"{address}: {in_one_line(text)}"
