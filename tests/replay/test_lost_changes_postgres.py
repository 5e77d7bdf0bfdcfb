"""A transaction that gives a table another file: its changes are there, or named as missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.replay.restored import copied
from tests.support.postgres_server import PostgresServer, make_directory, own
from walkeeper_cli.program import run
from walkeeper_replay.catalogs.catalog_history import CatalogHistory
from walkeeper_replay.changes.change_reader import ChangeReader
from walkeeper_replay.changes.change_rows import Change
from walkeeper_replay.changes.lost_changes import LOGGED, RECAST, REFRESHED, TURNED
from walkeeper_replay.text.coverage import COMPLETE
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import make_plan

pytestmark = pytest.mark.postgres
Output = pytest.CaptureFixture[str]
ROWS = "INSERT INTO {} SELECT g, 'v' || g FROM generate_series(1, 9) g"
CREATED = "CREATE TABLE {} AS SELECT g AS id, 'v' || g AS v FROM generate_series(1, 9) g"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    settings = {"wal_keep_size": "1GB", "fsync": "off", "lc_monetary": "C"}
    with PostgresServer.create(settings, initdb_options=["--wal-segsize=1"]) as made:
        place = make_directory()
        own(place)
        made.sql(f"CREATE TABLESPACE elsewhere LOCATION '{place}'")
        yield made


def work(server: PostgresServer, *statements: str) -> None:
    with server.connect() as connection:
        for statement in statements:
            connection.execute(statement.encode())


def reader(server: PostgresServer) -> ChangeReader:
    server.sql("SELECT txid_current()")
    files = open_files(str(server.data / "pg_wal"))
    plan = make_plan(files)
    history = CatalogHistory.read(files, plan)
    return ChangeReader(files, plan, history, history.database(history.end_lsn, "postgres"))


def folded(found: list[Change], name: str) -> Counter[tuple[str | None, ...]]:
    """Return the rows that the changes of a table leave."""
    rows: Counter[tuple[str | None, ...]] = Counter()
    for change in found:
        assert change.coverage == COMPLETE, change
        if change.operation == "truncate":
            rows.clear()
        for values, count in ((change.old, -1), (change.new, 1)):
            if values is not None and change.table.name == name:
                rows[tuple(values.values())] += count
    return +rows


def missing(server: PostgresServer, name: str, capsys: Output, *more: str) -> str:
    """Return what `changes` says of a table, after a look at its exit code."""
    path = ("--path", str(server.data / "pg_wal"), "--table", name, *more)
    code = run(["history", "changes", *path])
    said = capsys.readouterr().err
    assert code == int("missing" in said), said
    assert run(["history", "changes", *path, "--allow-missing"]) == 0
    capsys.readouterr()
    return said


@pytest.mark.parametrize(
    ("name", "statements"),
    [
        pytest.param(
            "retyped",
            (
                "CREATE TABLE retyped (id text, v text)", ROWS.format("retyped"),
                "DELETE FROM retyped WHERE id > '0'",
                "BEGIN; ALTER TABLE retyped ALTER id TYPE int USING id::int; "
                "INSERT INTO retyped VALUES (60, 'n'), (61, 'm'); "
                "DELETE FROM retyped WHERE id = 61; "
                "UPDATE retyped SET v = repeat('w', 5000) WHERE id = 60; COMMIT",
            ),
            id="after a rewrite",
        ),
        pytest.param(
            "clustered",
            (
                "CREATE TABLE clustered (id int PRIMARY KEY, v text)", ROWS.format("clustered"),
                "BEGIN; DELETE FROM clustered WHERE id = 4; CLUSTER clustered USING "
                "clustered_pkey; DELETE FROM clustered WHERE id = 5; COMMIT",
            ),
            id="before and after CLUSTER",
        ),
        pytest.param(
            "created",
            (
                f"BEGIN; {CREATED.format('created')}; "
                "ALTER TABLE created ADD COLUMN r float DEFAULT random(); "
                "DELETE FROM created WHERE id = 3; COMMIT",
            ),
            id="of a table that the transaction created",
        ),
        pytest.param(
            "loaded",
            (
                f"BEGIN; {CREATED.format('loaded').replace('TABLE', 'UNLOGGED TABLE')}; "
                "ALTER TABLE loaded SET LOGGED; INSERT INTO loaded VALUES (70); COMMIT",
            ),
            id="of a table that was created unlogged",
        ),
        pytest.param(
            "emptied",
            (
                "CREATE TABLE emptied (id int, v text)", ROWS.format("emptied"),
                "BEGIN; ALTER TABLE emptied ALTER id TYPE bigint; TRUNCATE emptied; "
                "INSERT INTO emptied VALUES (1, 'a'); COMMIT",
            ),
            id="TRUNCATE after a rewrite",
        ),
        pytest.param(
            "moved_and_emptied",
            (
                "CREATE TABLE moved_and_emptied (id int, v text)",
                ROWS.format("moved_and_emptied"),
                "BEGIN; ALTER TABLE moved_and_emptied SET TABLESPACE elsewhere; SAVEPOINT a; "
                "TRUNCATE moved_and_emptied; INSERT INTO moved_and_emptied VALUES (1, 'a'); COMMIT",
            ),
            id="TRUNCATE after SET TABLESPACE",
        ),
        pytest.param(
            "still_empty",
            (
                "BEGIN; CREATE TABLE still_empty (id int); "
                "ALTER TABLE still_empty SET TABLESPACE elsewhere; COMMIT",
                "INSERT INTO still_empty VALUES (1)",
            ),
            id="no row in between",
        ),
    ],
)  # fmt: skip
def test_changes_beside_a_rewrite_are_there(
    server: PostgresServer, capsys: Output, name: str, statements: tuple[str, ...]
) -> None:
    work(server, *statements)
    found = reader(server).read([name])
    assert folded(found, name) == Counter(copied(server, name))
    assert "missing" not in missing(server, name, capsys)


@pytest.mark.parametrize(
    ("name", "statements", "why"),
    [
        pytest.param(
            "copied_away",
            (
                "CREATE TABLE copied_away (id int, v text)", ROWS.format("copied_away"),
                "BEGIN; TRUNCATE copied_away; INSERT INTO copied_away VALUES (1, 'n'); "
                "ALTER TABLE copied_away SET TABLESPACE elsewhere; COMMIT",
            ),
            TURNED, id="TRUNCATE and SET TABLESPACE",
        ),
        pytest.param(
            "twice",
            (
                "CREATE TABLE twice (id int, v text)", ROWS.format("twice"),
                "BEGIN; ALTER TABLE twice ALTER id TYPE bigint; DELETE FROM twice WHERE id = 4; "
                "ALTER TABLE twice ALTER id TYPE int; COMMIT",
            ),
            TURNED, id="two rewrites",
        ),
        pytest.param(
            "new_and_clustered",
            (
                f"BEGIN; {CREATED.format('new_and_clustered')}; "
                "ALTER TABLE new_and_clustered ADD PRIMARY KEY (id); "
                "CLUSTER new_and_clustered USING new_and_clustered_pkey; COMMIT",
            ),
            TURNED, id="CREATE and CLUSTER",
        ),
        pytest.param(
            "logged_now",
            (
                "CREATE UNLOGGED TABLE logged_now (id int, v text)", ROWS.format("logged_now"),
                "ALTER TABLE logged_now SET LOGGED", "DELETE FROM logged_now WHERE id = 4",
            ),
            LOGGED, id="SET LOGGED",
        ),
        pytest.param(
            "refreshed",
            (
                "CREATE TABLE source (id int)", "INSERT INTO source VALUES (1)",
                "CREATE MATERIALIZED VIEW refreshed AS SELECT * FROM source",
                "DELETE FROM source", "REFRESH MATERIALIZED VIEW refreshed",
            ),
            REFRESHED, id="REFRESH",
        ),
    ],
)  # fmt: skip
def test_changes_that_are_not_in_the_wal_are_named(
    server: PostgresServer, capsys: Output, name: str, statements: tuple[str, ...], why: str
) -> None:
    work(server, *statements)
    said = missing(server, name, capsys)
    assert f"missing: table public.{name} (1 in all)" in said
    first, _, rest = why.partition("{}")
    assert first in said and rest in said
    end = server.sql("SELECT pg_current_wal_insert_lsn()::text")
    work(server, "CREATE TABLE later (id int)", "DROP TABLE later")
    assert "missing" not in missing(server, name, capsys, "--start-lsn", end)


def test_values_that_alter_table_gave_are_said_to_be_no_changes(
    server: PostgresServer, capsys: Output
) -> None:
    work(
        server,
        "CREATE TABLE recast (id int, v text)",
        ROWS.format("recast"),
        "ALTER TABLE recast ALTER v TYPE text USING upper(v)",
        "CREATE TABLE moved_only (id int, v text)",
        ROWS.format("moved_only"),
        "VACUUM FULL moved_only",
    )
    first, _, rest = RECAST.partition("{}")
    said = missing(server, "recast", capsys)
    assert f"warning: table public.recast: {first}" in said and rest in said
    assert "warning" not in missing(server, "moved_only", capsys)


@pytest.mark.parametrize(
    ("kind", "mode", "is_said"), [("", "append", True), ("delta:", "mirror", False)]
)
def test_a_stream_says_what_its_changes_do_not_show(
    server: PostgresServer, tmp_path: Path, capsys: Output, kind: str, mode: str, is_said: bool
) -> None:
    """A mirror reads the table again, so it has these values."""
    name = f"recast_for_{mode}"
    work(
        server,
        f"CREATE TABLE {name} (id int PRIMARY KEY, v text)",
        ROWS.format(name),
        f"ALTER TABLE {name} ALTER v TYPE text USING upper(v)",
    )
    given = (*("--path", str(server.data / "pg_wal"), "--table", name, "--once", "--mode", mode),
             *("--to", f"{kind}{tmp_path / 'to'}", "--state", str(tmp_path / "state")))  # fmt: skip
    assert run(["history", "stream", *given]) == 0
    said = capsys.readouterr().err
    assert (f"warning: table public.{name}: {RECAST.partition('{}')[0]}" in said) is is_said, said


def test_heirs_that_are_not_named_are_missing(server: PostgresServer, capsys: Output) -> None:
    work(
        server,
        "CREATE TABLE parent (id int)",
        "CREATE TABLE heir (more int) INHERITS (parent)",
        "CREATE TABLE grandchild () INHERITS (heir)",
        "INSERT INTO heir VALUES (1, 2)",
        "INSERT INTO parent VALUES (3)",
    )
    said = missing(server, "parent", capsys)
    assert "missing: table public.heir (1 in all): it inherits from public.parent" in said
    assert "missing: table public.grandchild (1 in all): it inherits from public.heir" in said
    assert "grandchild" in missing(server, "parent", capsys, "--table", "heir")
    named = ("--table", "heir", "--table", "grandchild")
    assert "missing" not in missing(server, "parent", capsys, *named)
    assert "missing" not in missing(server, "grandchild", capsys)


def test_bulk_loads_without_wal_are_missing(tmp_path: Path, capsys: Output) -> None:
    settings = {"wal_keep_size": "1GB", "fsync": "off"}
    with PostgresServer.create(settings, initdb_options=["--wal-segsize=1"]) as server:
        work(server, "CREATE TABLE t (id int)", "INSERT INTO t VALUES (1)")
        before = server.sql("SELECT pg_current_wal_insert_lsn()::text")
        server.configure({"wal_level": "minimal", "max_wal_senders": "0"})
        server.restart()
        work(server, "BEGIN; TRUNCATE t; COPY t FROM PROGRAM 'seq 1 300'; COMMIT")
        server.configure({"wal_level": "replica", "max_wal_senders": "10"})
        server.restart()
        after = server.sql("SELECT pg_current_wal_insert_lsn()::text")
        work(server, "DELETE FROM t WHERE id < 5")
        said = missing(server, "t", capsys)
        assert "missing: range from 0/" in said and "wal_level = minimal" in said
        assert "missing" not in missing(server, "t", capsys, "--end-lsn", before)
        assert "missing" not in missing(server, "t", capsys, "--start-lsn", after)
