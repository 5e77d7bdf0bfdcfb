"""A rewrite is known by its table, its file's number and its commit, not by the number alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.oids_again import next_oid_from
from tests.support.postgres_server import PostgresServer, make_directory
from walkeeper_cli.program import run
from walkeeper_replay.catalogs.catalog_history import CatalogHistory
from walkeeper_replay.catalogs.file_steps import ClassVersion, FileSteps
from walkeeper_replay.changes.change_reader import ChangeReader
from walkeeper_replay.tuples.xids import NEVER
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import make_plan

Output = pytest.CaptureFixture[str]
TABLE, OTHER, TRANSIENT, NODE = 20, 21, 90, 90
DEFAULT, ELSEWHERE = 0, 7


def version(
    lsn: int, commit: int, oid: int, node: int, *, space: int = DEFAULT, rewrites: int = 0,
    is_update: bool = True,
) -> ClassVersion:  # fmt: skip
    row = {"oid": oid, "relfilenode": node, "relrewrite": rewrites, "reltablespace": space,
           "relpersistence": "p"}  # fmt: skip
    return ClassVersion(lsn, commit, is_update, row)


def made(lsn: int, commit: int, oid: int, space: int = DEFAULT) -> ClassVersion:
    return version(lsn, commit, oid, oid, space=space, is_update=False)


def rewrite(lsn: int, commit: int, oid: int) -> list[ClassVersion]:
    """Return a rewrite that takes the number NODE: the transient row, and the table's."""
    return [
        version(lsn, NEVER, TRANSIENT, NODE, rewrites=oid, is_update=False),
        version(lsn + 1, NEVER, TRANSIENT, oid, rewrites=oid),
        version(lsn + 2, commit, oid, NODE),
    ]


def test_a_file_of_a_rewrite_elsewhere_is_no_rewrite_of_this_table() -> None:
    versions = [
        made(1, 5, TABLE), made(2, 5, OTHER, ELSEWHERE),
        version(11, 19, OTHER, NODE, space=ELSEWHERE), *rewrite(21, 29, TABLE),
    ]  # fmt: skip
    steps = FileSteps.of(versions)
    assert steps.rewritten == {(TABLE, NODE, 29): 23}
    assert steps.began_empty(OTHER, NODE, 19) and steps.rewriting(OTHER) == []
    assert not steps.began_empty(TABLE, NODE, 29) and steps.rewriting(TABLE) == [29]


@pytest.mark.parametrize("is_first", [True, False])
def test_a_number_that_is_used_again_is_another_file(is_first: bool) -> None:
    rewritten, truncated = (11, 29), (31, 49)
    if not is_first:
        rewritten, truncated = truncated, rewritten
    versions = [made(1, 5, TABLE), *rewrite(*rewritten, TABLE), version(30, 31, TABLE, 55),
                version(*truncated, TABLE, NODE)]  # fmt: skip
    steps = FileSteps.of(versions)
    assert steps.rewritten == {(TABLE, NODE, rewritten[1]): rewritten[0] + 2}
    assert steps.began_empty(TABLE, NODE, truncated[1])
    assert not steps.began_empty(TABLE, NODE, rewritten[1])


def test_a_file_may_be_a_copy_if_a_row_of_its_commit_is_not_known() -> None:
    transient, _, own = rewrite(21, 29, TABLE)
    steps = FileSteps.of([made(1, 5, TABLE), own], {29})
    assert not steps.began_empty(TABLE, NODE, 29)
    assert steps.rewritten == {(TABLE, NODE, 29): 23}
    assert [(each.commit_lsn, each.is_unsure) for each in steps.passed(TABLE)] == [(29, True)]
    assert FileSteps.of([made(1, 5, TABLE), own], {5, 30}).began_empty(TABLE, NODE, 29)
    assert FileSteps.of([own], {29}).passed(TABLE)[0].is_unsure, "its file of before is not known"
    assert FileSteps.of([own], {30}).passed(TABLE) == []
    # The row was made on a page that was shown later: what was copied until when is not known.
    late = version(31, 29, TABLE, NODE)
    for versions in ([made(1, 5, TABLE), late], [transient, late]):
        assert FileSteps.of(versions).passed(TABLE)[0].is_unsure
    assert FileSteps.of([late]).passed(TABLE) == []


def test_a_copied_row_is_no_step_of_its_table() -> None:
    """VACUUM FULL of pg_class copies rows in the order of their places."""
    versions = [made(1, 5, TABLE), version(11, 29, TABLE, 55), version(13, 29, TABLE, 56)]
    copies = [each._replace(first_lsn=41) for each in reversed(versions)]
    plain, copied = FileSteps.of(versions), FileSteps.of(versions + copies)
    assert copied.began_empty(TABLE, 56, 29) and plain.began_empty(TABLE, 56, 29)
    assert copied.passed(TABLE) == plain.passed(TABLE) == []


@pytest.mark.postgres
@pytest.mark.parametrize("what", ["VACUUM FULL", "TRUNCATE"])
def test_wal_alone_takes_no_rewrite_for_a_truncate(what: str, tmp_path: Path) -> None:
    """The transient table's row lands on a page of pg_class that the WAL has no image of."""
    settings = {"wal_keep_size": "1GB", "fsync": "off", "autovacuum": "off"}
    pages = (
        "SELECT min((ctid::text::point)[0]) FROM pg_class WHERE oid = '{0}'::regclass UNION ALL "
        "SELECT min((ctid::text::point)[0]) FROM pg_attribute WHERE attrelid = '{0}'::regclass"
    )
    with PostgresServer.create(settings, initdb_options=["--wal-segsize=1"]) as server:
        server.sql("CHECKPOINT", "CREATE TABLE before (id int)")
        last = server.sql("SELECT pg_walfile_name(pg_current_wal_insert_lsn())")
        server.sql("SELECT pg_switch_wal()")
        with server.connect() as session:  # It goes on where it inserted last.

            def made(name: str) -> list[tuple[object, ...]]:
                session.execute(f"CREATE TABLE {name} (id int)".encode())
                return session.execute(pages.format(name).encode()).fetchall()

            first, count = made("filler"), 0
            while any(a == b for a, b in zip(made(f"filler{count}"), first, strict=True)):
                count += 1
            made("known")
            session.execute(b"INSERT INTO known VALUES (1)")
        server.sql(*(f"DROP TABLE filler{k}" for k in range(count)), "VACUUM pg_class")
        server.sql(f"{what} known", "INSERT INTO known VALUES (2)", "SELECT pg_switch_wal()")
        for path in (server.data / "pg_wal").glob("0*"):
            if path.name > last:
                shutil.copy(path, tmp_path)
    files = open_files(str(tmp_path))
    history = CatalogHistory.read(files, plan := make_plan(files))
    database = history.database(history.end_lsn, "postgres")
    reader = ChangeReader(files, plan, history, database)
    done = [change.operation for change in reader.read(["known"])]
    lost = [each.reason for each in reader.undecoded()]
    if what == "TRUNCATE":
        assert (done, lost) == (["insert", "truncate", "insert"], [])
    else:
        assert done == ["insert", "insert"]
        assert len(lost) == 1 and "this WAL does not say whether" in lost[0]


@pytest.fixture
def wal() -> Iterator[Path]:
    """Return WAL in which three TRUNCATEs and two rewrites of another table share two numbers."""
    place = make_directory()
    with PostgresServer.create(
        {"wal_keep_size": "1GB", "fsync": "off"}, initdb_options=["--wal-segsize=1"]
    ) as server:

        def worked(node: int, *statements: str) -> None:
            server.stop()
            next_oid_from(server, node)
            server.start()
            server.sql(*statements)

        server.sql(
            f"CREATE TABLESPACE elsewhere LOCATION '{place}'",
            "CREATE TABLE near (id int)", "INSERT INTO near VALUES (1)",
            "CREATE TABLE spaced (id int) TABLESPACE elsewhere", "INSERT INTO spaced VALUES (1)",
            "CREATE TABLE again (id int)", "INSERT INTO again VALUES (1)",
        )  # fmt: skip
        refill = "BEGIN; TRUNCATE {0}; INSERT INTO {0} VALUES (2); COMMIT"
        worked(50000, refill.format("spaced"))
        worked(50000, "VACUUM FULL near")
        worked(60000, refill.format("again"), "TRUNCATE again", "CHECKPOINT")
        worked(60000, "VACUUM FULL near", "VACUUM FULL near", "CHECKPOINT", "VACUUM pg_class")
        worked(60000, refill.format("again"))
        nodes = "SELECT pg_relation_filenode('{}')::int"
        assert [server.sql(nodes.format(t)) for t in ("spaced", "again")] == [50000, 60000]
        yield server.data / "pg_wal"
    shutil.rmtree(place)


@pytest.mark.postgres
def test_no_truncate_is_taken_for_a_rewrite_with_its_number(wal: Path, capsys: Output) -> None:
    words = ["history", "changes", "--path", str(wal), "--format", "json"]
    for table, expected in (
        ("spaced", ["insert", "truncate", "insert"]),
        ("again", ["insert", "truncate", "insert", "truncate", "truncate", "insert"]),
        ("near", ["insert"]),
    ):
        assert run([*words, "--table", table]) == 0
        rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert [row["operation"] for row in rows] == expected, table
