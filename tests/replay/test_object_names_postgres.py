"""Every object of a server has the name that SELECT prints, and a text that reads back as it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.replay.every_type import SCHEMA
from tests.replay.restored import copied
from tests.replay.test_every_type_postgres import WITH_BACKUPS, newest_in_the_gate
from tests.support.installations import binaries_or_skip
from tests.support.postgres_server import PostgresServer, installation
from walkeeper_replay.catalogs.catalog_history import CatalogHistory
from walkeeper_replay.columns.arrow_text import rows_of_text, texts
from walkeeper_replay.columns.columns_of_rows import AS_OIDS
from walkeeper_replay.redo.base import BaseDirectory
from walkeeper_replay.table_at import TableAt, coverage_of
from walkeeper_replay.text.coverage import COMPLETE
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import make_plan

pytestmark = pytest.mark.postgres
DEBIANS = 15
SETTINGS = {"wal_keep_size": "8GB", "fsync": "off", "autovacuum": "off"}
KINDS = {
    "regproc": "pg_proc", "regprocedure": "pg_proc", "regoper": "pg_operator",
    "regoperator": "pg_operator", "regcollation": "pg_collation", "regtype": "pg_type",
    "regclass": "pg_class", "regconfig": "pg_ts_config", "regdictionary": "pg_ts_dict",
    "regnamespace": "pg_namespace", "regrole": "pg_authid",
}  # fmt: skip
# Changes of names: renames, moves, exchanges, and a drop under the rows.
CHANGED = (
    "ALTER FUNCTION once() RENAME TO \"Only once\"",
    "ALTER FUNCTION twice(int) SET SCHEMA \"Other\"",
    "ALTER OPERATOR ## (int, int) SET SCHEMA \"Other\"",
    "ALTER COLLATION own RENAME TO \"Owned\"",
    "ALTER TYPE wide RENAME TO wider",
    "ALTER SCHEMA \"Other\" RENAME TO others",
    "DROP OPERATOR #% (NONE, wider)",
    "DROP FUNCTION public.length(text)",
    "DROP COLLATION public.\"it\"",
    "VACUUM FULL pg_proc", "VACUUM FULL pg_operator", "VACUUM FULL pg_collation",
)  # fmt: skip


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    options = ["--wal-segsize=1", "--encoding=UTF8", "--locale=C"]
    with ExitStack() as stack:
        if request.param != DEBIANS:
            stack.enter_context(installation(binaries_or_skip(request.param)))
        made = stack.enter_context(PostgresServer.create(SETTINGS, initdb_options=options))
        with made.connect() as session:
            session.execute(SCHEMA.encode())
        yield made


@pytest.mark.parametrize(
    "server",
    [*newest_in_the_gate(WITH_BACKUPS)],
    indirect=True,
)
def test_each_object_has_its_name_before_and_after_changes(server: PostgresServer) -> None:
    backup = server.base_backup()
    try:
        server.sql(
            *(
                f"CREATE TABLE of_{kind} AS SELECT oid AS number, oid::{kind} AS name, "
                f"ARRAY[oid::{kind}, NULL, 4294967295::oid::{kind}] AS names FROM {catalog}"
                for kind, catalog in KINDS.items()
            )
        )
        _compared(server, BaseDirectory(str(backup.data)))
        server.sql(*CHANGED)
        _compared(server, BaseDirectory(str(backup.data)))
        _alone(server)
    finally:
        backup.delete()


def _compared(server: PostgresServer, base: BaseDirectory) -> None:
    path = str(server.data / "pg_wal")
    plan = make_plan(open_files(path), start_lsn=base.redo_lsn)
    history = CatalogHistory.read(open_files(path), plan, base=base)
    for kind in KINDS:
        table = f"of_{kind}"
        opened = [
            TableAt.open(
                path,
                plan,
                table,
                database="postgres",
                base=base,
                history=history,
                is_for_sql=is_for_sql,
            )
            for is_for_sql in (False, True)
        ]
        rows, written = (past.whole() for past in opened)
        assert rows_of_text(rows.drop_columns(["coverage"])) == copied(server, table), kind
        assert coverage_of(rows) == coverage_of(written) == COMPLETE, kind
        read_back = f"""
            SELECT string_agg(text || ' is not ' || number, ', ')
            FROM unnest(%s::int8[], %s::text[], %s::text[]) x(number, text, two)
            WHERE text::{kind}::oid <> number OR (two::{kind}[])[1]::oid <> number
        """
        values = [texts(written[name].combine_chunks()) for name in ("number", "name", "names")]
        with server.connect() as session:
            session.execute(b"SET search_path = nowhere")
            found = session.execute(read_back.encode(), values).fetchall()
        assert found == [(None,)], kind


def _alone(server: PostgresServer) -> None:
    """Check that WAL alone gives no other name than SELECT, and says where it gives numbers."""
    path = str(server.data / "pg_wal")
    plan = make_plan(open_files(path))
    history = CatalogHistory.read(open_files(path), plan)
    for kind in KINDS:
        past = TableAt.open(path, plan, f"of_{kind}", database="postgres", history=history)
        rows = past.whole()
        theirs = copied(server, f"of_{kind}")
        ours = rows_of_text(rows.drop_columns(["coverage"]))
        wrong = [
            (one, other)
            for one, other in zip(ours, theirs, strict=True)
            if one[1] not in (other[1], other[0])
        ]
        assert not wrong, (kind, wrong[:5])
        coverage = coverage_of(rows)
        assert AS_OIDS in coverage and not coverage.has_all and coverage.has_values, kind
