"""A consumer's connection to a safekeeper of a logical log, for its slot alone. Blocks.

    link = ConsumerLink.open(addresses, cluster)     the first safekeeper that answers
    link.create_slot(name); link.move_slot(name, lsn, publications); link.drop_slot(name)

The link uses PostgreSQL's commands for consumers, through libpq. Contract: it raises Refused with
the safekeeper's own words and its hint.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from psycopg import conninfo, pq

from walkeeper_common.addresses import Address, shown_address
from walkeeper_common.errors import Refused
from walkeeper_common.lsn import Lsn
from walkeeper_common.operator_text.printable import in_one_line
from walkeeper_common.postgres.pgwire import StandbyStatus
from walkeeper_common.shell.tls.own_credentials import own_libpq_parameters
from walkeeper_proposer.postgres.logical_primary import PLUGIN, plugin_options
from walkeeper_proposer.postgres.quoting import quote_literal

USER = "walkeeper"  # unless PGUSER is set: a safekeeper has no roles
PROTOCOL_OF = 130000  # the plainest protocol of pgoutput, which every log can serve


class ConsumerLink:
    """A connection that runs one command at a time."""

    def __init__(self, connection: pq.abc.PGconn, address: str) -> None:
        self._pg, self.address = connection, address

    @classmethod
    def open(cls, addresses: Sequence[Address], cluster: str) -> ConsumerLink:
        reasons = []
        for host, port in addresses:
            text = conninfo.make_conninfo(
                host=host, port=str(port), user=os.environ.get("PGUSER", USER), dbname=cluster,
                replication="database", application_name="walkeeper snapshot",
                options=f"-c walkeeper.cluster={cluster}", connect_timeout="5",
                **own_libpq_parameters(),
            )  # fmt: skip
            connection = pq.PGconn.connect(text.encode())
            if connection.status == pq.ConnStatus.OK:
                return cls(connection, shown_address((host, port)))
            reasons.append(in_one_line(pq.misc.error_message(connection)))
        raise Refused(f"no safekeeper takes a consumer: {'; '.join(reasons)}")

    def close(self) -> None:
        self._pg.finish()

    def show(self, setting: str) -> str:
        return self._row(f"SHOW {setting}")[0]

    def create_slot(self, name: str) -> Lsn:
        """Create the slot at the end of the committed log, on a quorum, and return that LSN."""
        return Lsn.parse(self._row(f'CREATE_REPLICATION_SLOT "{name}" LOGICAL {PLUGIN}')[1])

    def drop_slot(self, name: str) -> None:
        self._execute(f'DROP_REPLICATION_SLOT "{name}"')

    def move_slot(self, name: str, lsn: Lsn, publications: Sequence[str]) -> None:
        """Move the slot as a consumer that has everything below `lsn`, and end the connection."""
        options = plugin_options(publications, PROTOCOL_OF)
        listed = ", ".join(f"{name} {quote_literal(value)}" for name, value in options.items())
        self._execute(f'START_REPLICATION SLOT "{name}" LOGICAL {lsn} ({listed})')
        status = StandbyStatus(lsn, lsn, lsn, 0, reply_requested=False)
        self._pg.put_copy_data(status.pack())
        self._pg.put_copy_end()
        while self._pg.get_copy_data(0)[0] > 0:
            continue
        self.close()

    def _row(self, command: str) -> list[str]:
        result = self._execute(command)
        return [(result.get_value(0, n) or b"").decode() for n in range(result.nfields)]

    def _execute(self, command: str) -> pq.abc.PGresult:
        result = self._pg.exec_(command.encode())
        if result.status not in (
            pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK, pq.ExecStatus.COPY_BOTH,
        ):  # fmt: skip
            said = in_one_line(pq.misc.error_message(result))  # with its hint
            raise Refused(f"safekeeper at {self.address}: {command.split(' (')[0]}: {said}")
        return result
