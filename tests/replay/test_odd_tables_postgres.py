"""Tables with an unusual past are SELECT's, by WAL alone."""

from __future__ import annotations

import pytest

from tests.replay.restored import copied
from tests.support.postgres_server import PostgresServer
from walkeeper_replay.catalogs.catalog_history import CatalogHistory
from walkeeper_replay.columns.arrow_text import rows_of_text
from walkeeper_replay.table_at import TableAt, coverage_of
from walkeeper_replay.text.coverage import COMPLETE
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import make_plan

pytestmark = pytest.mark.postgres
WORK = {
    "attached": (
        "CREATE TABLE root (id int, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE attached (v text, gone int, id int)",
        "INSERT INTO attached VALUES ('x', 1, 15)",
        "ALTER TABLE attached DROP COLUMN gone",
        "ALTER TABLE root ATTACH PARTITION attached FOR VALUES FROM (10) TO (20)",
        "INSERT INTO root VALUES (11, 'b')",
        "ALTER TABLE root ADD COLUMN extra text DEFAULT 'e'",
        "ALTER TABLE root DETACH PARTITION attached",
        "INSERT INTO attached VALUES ('f', 12, 'g')",
    ),
    "typed": (
        "CREATE TYPE of_type AS (x int, y text)",
        "CREATE TABLE typed OF of_type",
        "INSERT INTO typed VALUES (1, 'a')",
        "ALTER TYPE of_type ADD ATTRIBUTE z int CASCADE",
        "INSERT INTO typed VALUES (2, 'b', 3)",
    ),
    "cascaded": (
        "CREATE TABLE above (id int PRIMARY KEY, up int REFERENCES above ON DELETE CASCADE)",
        "INSERT INTO above VALUES (1, NULL), (2, 1), (3, 2), (4, NULL)",
        "CREATE TABLE cascaded (id int, a int REFERENCES above ON DELETE CASCADE, "
        "b int REFERENCES above ON DELETE SET NULL ON UPDATE CASCADE)",
        "INSERT INTO cascaded VALUES (1, 1, 4), (2, 4, 3), (3, 4, 4)",
        "DELETE FROM above WHERE id = 1",
        "UPDATE cascaded SET a = NULL",
        "UPDATE above SET id = 40 WHERE id = 4",
    ),
    "merged": (
        "CREATE TABLE merged (id int PRIMARY KEY, v int)",
        "INSERT INTO merged SELECT g, g FROM generate_series(1, 10) g",
        "MERGE INTO merged USING (SELECT generate_series(5, 15) k) s ON s.k = merged.id "
        "WHEN MATCHED AND k < 8 THEN DELETE WHEN MATCHED THEN UPDATE SET v = -v "
        "WHEN NOT MATCHED THEN INSERT VALUES (k, 0)",
    ),
    "recompressed": (
        "CREATE TABLE recompressed (id int, t text COMPRESSION lz4, p text COMPRESSION pglz)",
        "INSERT INTO recompressed SELECT g, repeat(md5(g::text), 500), repeat(md5(g::text), 500) "
        "FROM generate_series(1, 5) g",
        "ALTER TABLE recompressed ALTER t SET COMPRESSION pglz",
        "ALTER TABLE recompressed ALTER p SET STORAGE EXTERNAL",
        "INSERT INTO recompressed SELECT g, repeat(md5(g::text), 80), repeat('x', 5000) "
        "FROM generate_series(6, 9) g",
        "REINDEX TABLE recompressed",
        "UPDATE recompressed SET id = id + 100 WHERE id < 4",
        "VACUUM FULL recompressed",
    ),
    "shortened": (
        "CREATE TABLE shortened (id int, pad text)",
        "INSERT INTO shortened SELECT g, repeat('x', 200) FROM generate_series(1, 2000) g",
        "DELETE FROM shortened WHERE id > 500",
        "VACUUM (TRUNCATE) shortened",
        "INSERT INTO shortened SELECT g, repeat('y', 200) FROM generate_series(5001, 5300) g",
    ),
    "rolled_back": (
        "CREATE TABLE rolled_back (a int)",
        "INSERT INTO rolled_back SELECT generate_series(1, 20)",
        "BEGIN; SAVEPOINT s; ALTER TABLE rolled_back ADD COLUMN x float DEFAULT random(); "
        "INSERT INTO rolled_back VALUES (99, 1); ROLLBACK TO s; INSERT INTO rolled_back "
        "VALUES (21); SAVEPOINT q; TRUNCATE rolled_back; INSERT INTO rolled_back VALUES (77); "
        "ROLLBACK TO q; DELETE FROM rolled_back WHERE a = 3; COMMIT",
    ),
    "renamed": (
        "CREATE TABLE renamed (a int, b int)",
        "INSERT INTO renamed VALUES (1, 2)",
        "BEGIN; ALTER TABLE renamed RENAME a TO t; ALTER TABLE renamed RENAME b TO a; "
        "ALTER TABLE renamed RENAME t TO b; COMMIT",
        "INSERT INTO renamed (a, b) VALUES (3, 4)",
        "ALTER TABLE renamed DROP COLUMN a",
        "ALTER TABLE renamed ADD COLUMN a text DEFAULT 'n'",
        "UPDATE renamed SET b = 5 WHERE b = 4",
    ),
    "retyped": (
        "CREATE TABLE retyped (a oid, b varchar(3), d cidr, e int)",
        "INSERT INTO retyped VALUES (1259, 'abc', '10.0.0.0/8', 7)",
        "ALTER TABLE retyped ALTER b TYPE text, ALTER d TYPE inet, ALTER e TYPE oid",
        "INSERT INTO retyped VALUES (1, 'defg', '10.1.1.1', 8)",
        "ALTER TABLE retyped ALTER e TYPE bigint",
        "UPDATE retyped SET e = -e WHERE a = 1",
    ),
    "no_columns": (
        "CREATE TABLE no_columns (a int)",
        "INSERT INTO no_columns VALUES (1), (2)",
        "ALTER TABLE no_columns DROP COLUMN a",
    ),
    "loaded": (
        "BEGIN; CREATE TABLE loaded (id int, v text); "
        "COPY loaded FROM PROGRAM 'seq 1 300 | sed s/$/,x/' WITH (FREEZE, FORMAT csv); COMMIT",
        "DELETE FROM loaded WHERE id < 10",
    ),
    "labelled": (
        "CREATE TYPE label AS ENUM ('a', 'b')",
        "CREATE TABLE labelled (id int, e label, es label[])",
        "INSERT INTO labelled VALUES (1, 'a', '{a,b}')",
        "ALTER TYPE label RENAME VALUE 'a' TO 'A a'",
        "ALTER TYPE label ADD VALUE 'c' BEFORE 'b'",
        "INSERT INTO labelled VALUES (2, 'c', '{c}')",
    ),
}


def test_tables_with_an_unusual_past_are_those_of_select() -> None:
    settings = {"wal_keep_size": "1GB", "fsync": "off"}
    with PostgresServer.create(settings, initdb_options=["--wal-segsize=16"]) as server:
        for statements in WORK.values():
            for statement in statements:
                with server.connect() as connection:
                    connection.execute(statement.encode())
        server.sql("SELECT txid_current()")
        path = str(server.data / "pg_wal")
        files = open_files(path)
        plan = make_plan(files)
        history = CatalogHistory.read(files, plan)
        for name in WORK:
            past = TableAt.open(path, plan, name, history=history, database="postgres")
            table = past.whole()
            assert coverage_of(table) == COMPLETE, name
            rows = rows_of_text(table.drop_columns([past.coverage_column]))
            assert rows == copied(server, name), name
