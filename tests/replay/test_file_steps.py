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
from walkeeper_replay.catalogs.file_steps import ClassVersion, FileSteps
from walkeeper_replay.tuples.xids import NEVER

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
    versions = [made(1, 5, TABLE), *rewrite(*rewritten, TABLE), version(30, 30, TABLE, 55),
                version(*truncated, TABLE, NODE)]  # fmt: skip
    steps = FileSteps.of(versions)
    assert steps.rewritten == {(TABLE, NODE, rewritten[1]): rewritten[0] + 2}
    assert steps.began_empty(TABLE, NODE, truncated[1])
    assert not steps.began_empty(TABLE, NODE, rewritten[1])


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
