"""`walkeeper snapshot`: the published tables as Parquet, and a consumer's slot from their LSN on.

The order of the steps joins both without a gap and without a repetition:

1. Make the consumer's slot in the log, so that the log keeps all later changes for it.
2. Make a temporary slot at the primary. It exports a snapshot of all commits below its LSN, L.
3. Copy the tables in that snapshot.
4. When a quorum has the log up to L, move the consumer's slot to L, on a quorum.

A transaction is in the snapshot if its commit ends at or below L. Otherwise the log sends it. A
failed run drops the slot and writes no `snapshot.json`.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import pq

from walkeeper_admin import status
from walkeeper_admin.member_sets import commit_with
from walkeeper_cli.snapshot.consumer_link import ConsumerLink
from walkeeper_cli.snapshot.parquet_copy import PublishedTable, copy_table, published_tables
from walkeeper_common.addresses import Address
from walkeeper_common.errors import Refused, WalkeeperError
from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.operator_text.counts import counted
from walkeeper_common.operator_text.printable import in_one_line
from walkeeper_proposer.postgres.logical_primary import PLUGIN, TEXT_FORMS

DOCUMENT = "snapshot.json"
POLL_S = 0.2

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SnapshotSettings:
    """The command's flags."""

    safekeepers: tuple[Address, ...]
    dsn: str
    cluster: str
    slot: str
    output: Path
    timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Taken:
    """The contents of the directory after a run."""

    lsn: Lsn
    tables: int
    rows: int


def take_snapshot(settings: SnapshotSettings, say: Say) -> Taken:
    """Take the snapshot and move the slot; raise Refused with the reason if it cannot."""
    make_empty(settings.output)
    link = ConsumerLink.open(settings.safekeepers, settings.cluster)
    try:
        publications = json.loads(link.show("walkeeper.publications"))
        database = link.show("walkeeper.database")
        link.create_slot(settings.slot)
        try:
            lsn, tables = copied(settings, publications, database, say)
            wait_for_log(settings, lsn)
            link.move_slot(settings.slot, lsn, publications)
            wait_for_slot(settings, lsn)
        except BaseException:
            with suppress(WalkeeperError, psycopg.Error):
                ConsumerLink.open(settings.safekeepers, settings.cluster).drop_slot(settings.slot)
            raise
    finally:
        link.close()
    document = {
        "lsn": str(lsn),
        "cluster": settings.cluster,
        "slot": settings.slot,
        "database": database,
        "publications": publications,
        "tables": tables,
    }
    partial = settings.output / f"{DOCUMENT}.partial"
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    partial.write_text(text, encoding="utf-8")
    partial.replace(settings.output / DOCUMENT)
    return Taken(lsn, len(tables), sum(table["rows"] for table in tables))


def make_empty(directory: Path) -> None:
    """Make the directory; raise Refused if it has files, which would look like its parts."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise Refused(f"{directory} is not empty; name another --output")
    except OSError as error:
        raise Refused(f"{directory}: {error.strerror or error}") from error


def copied(
    settings: SnapshotSettings, publications: Sequence[str], database: str, say: Say
) -> tuple[Lsn, list[dict[str, Any]]]:
    """Copy all published tables, and return (the snapshot's LSN, a document for each table).

    Raise Refused if the primary or a table does not allow it.
    """
    try:
        connection = psycopg.connect(settings.dsn, autocommit=True)
    except psycopg.Error as error:
        raise Refused(f"--dsn: {in_one_line(error)}") from error
    with connection:
        if connection.info.dbname != database:
            raise Refused(
                f"the log has changes of database {database}, --dsn names "
                f"{connection.info.dbname}: say dbname={database}"
            )
        exporter = Exporter.open(settings.dsn)
        try:
            say("waiting for the transactions that run at the primary now")
            lsn, name = exporter.export()
            for each in TEXT_FORMS.split("; "):
                connection.execute(each.encode())
            # If this role may see only a part of a table, that is an error, as in pg_dump.
            connection.execute(b"SET row_security = off")
            connection.execute(b"BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            connection.execute(f"SET TRANSACTION SNAPSHOT '{name}'".encode())
        except psycopg.Error as error:
            raise Refused(f"the primary: {in_one_line(error)}") from error
        finally:
            exporter.close()  # this drops its slot, which would keep WAL; the snapshot is in use
        say(f"snapshot at {lsn}")
        return lsn, [
            _copied(connection, table, settings.output, say)
            for table in published_tables(connection, publications)
        ]


def _copied(
    connection: psycopg.Connection[Any], table: PublishedTable, directory: Path, say: Say
) -> dict[str, Any]:
    name, begun_s = f"{quote(table.schema, '')}.{quote(table.name, '')}.parquet", time.monotonic()
    try:
        rows = copy_table(connection, table, directory / name)
    except psycopg.errors.InsufficientPrivilege as error:
        raise Refused(
            f"table {table.shown}: {in_one_line(error)} (--dsn's role needs SELECT, and "
            "BYPASSRLS for a table with row-level security)"
        ) from error
    except psycopg.Error as error:
        raise Refused(f"table {table.shown}: {in_one_line(error)}") from error
    except OSError as error:
        raise Refused(f"{directory / name}: {error.strerror or error}") from error
    shown = counted(rows, "row", "rows")
    say(f"{table.shown}: {shown} in {time.monotonic() - begun_s:.1f} s")
    return {
        "schema": table.schema,
        "table": table.name,
        "file": name,
        "rows": rows,
        "columns": [name for name, _ in table.columns],
        "key": list(table.key),
    }


class Exporter:
    """A temporary slot at the primary, for the snapshot that its creation exports."""

    def __init__(self, connection: pq.abc.PGconn) -> None:
        self._pg = connection

    @classmethod
    def open(cls, dsn: str) -> Exporter:
        text = psycopg.conninfo.make_conninfo(
            dsn, replication="database", application_name="walkeeper snapshot"
        )
        connection = pq.PGconn.connect(text.encode())
        if connection.status != pq.ConnStatus.OK:
            raise Refused(f"--dsn: {in_one_line(pq.misc.error_message(connection))}")
        return cls(connection)

    def export(self) -> tuple[Lsn, str]:
        """Export a snapshot, and return (its LSN, its name).

        The snapshot holds all commits below that LSN. Raise Refused if the primary refuses.
        """
        how = "(SNAPSHOT 'export')" if self._pg.server_version >= 150000 else "EXPORT_SNAPSHOT"
        slot = f"walkeeper_snapshot_{os.getpid()}"
        result = self._pg.exec_(
            f'CREATE_REPLICATION_SLOT "{slot}" TEMPORARY LOGICAL {PLUGIN} {how}'.encode()
        )
        if result.status != pq.ExecStatus.TUPLES_OK:
            said = in_one_line(pq.misc.error_message(result))
            raise Refused(
                f"the primary: {said} (a snapshot takes a replication slot and a walsender for a "
                "moment; the role needs REPLICATION)"
            )
        lsn, name = result.get_value(0, 1), result.get_value(0, 2)
        assert lsn is not None and name is not None, f"{lsn=} {name=}"
        return Lsn.parse(lsn.decode()), name.decode()

    def close(self) -> None:
        self._pg.finish()


def wait_for_log(settings: SnapshotSettings, lsn: Lsn) -> None:
    """Wait until an ack quorum of safekeepers has the log up to `lsn`.

    Raise Refused if that takes too long.
    """
    text = f"the log has not come to {lsn} within {settings.timeout_s:g} s; does the proposer run?"
    _wait(settings, lambda line: line["end_lsn"], lsn, text)


def wait_for_slot(settings: SnapshotSettings, lsn: Lsn) -> None:
    """Wait until an ack quorum has the slot at `lsn`; raise Refused if that takes too long.

    The slot then survives the safekeeper that moved it.
    """

    def place(line: dict[str, Any]) -> str | None:
        found = [s["restart_lsn"] for s in line["slots"] if s["slot_name"] == settings.slot]
        return found[0] if found else None

    text = f"slot {settings.slot} was not moved to {lsn} within {settings.timeout_s:g} s"
    _wait(settings, place, lsn, text)


def _wait(
    settings: SnapshotSettings, place: Callable[[dict[str, Any]], str | None], lsn: Lsn, text: str
) -> None:
    """Wait until `place` is at `lsn` on an ack quorum of the members.

    Raise Refused with `text` if that takes too long.
    """
    deadline_s = time.monotonic() + settings.timeout_s
    while True:
        document = asyncio.run(status.gather(settings.safekeepers, settings.cluster, 5.0))
        places = {line["id"]: place(line) for line in document["safekeepers"] if line["reachable"]}
        there = {n for n, each in places.items() if each and Lsn.parse(each) >= max(lsn, ZERO_LSN)}
        if commit_with(document["cluster"], there):
            return
        if time.monotonic() > deadline_s:
            raise Refused(text)
        time.sleep(POLL_S)
