"""`attach --grants`: the printed privileges are enough for `attach` and `detach`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.cli.attach_stage import Walkeeper, proposer, set_names, setting, walkeeper
from tests.support.installations import binaries_or_skip, versions
from tests.support.postgres_server import PostgresServer, installation
from walkeeper_admin.primary.grants import script

__all__ = ["walkeeper"]  # a fixture
FUNCTIONS = [f"pg_logical_emit_message(boolean, text, bytea{more})" for more in ("", ", boolean")]


@pytest.fixture(params=[None, *versions([17, 18])])
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    with ExitStack() as stack:
        if request.param is not None:
            stack.enter_context(installation(binaries_or_skip(request.param)))
        yield stack.enter_context(PostgresServer.create(initdb_options=["--wal-segsize=1"]))


@pytest.mark.postgres
def test_a_role_with_the_printed_grants_attaches_and_detaches(
    server: PostgresServer, walkeeper: Walkeeper
) -> None:
    for name in ("operator", 'odd "name'):
        done = walkeeper("attach", "--dsn", server.dsn(), "--grants", name)
        assert done.code == 0, done
        server.sql("SET synchronous_commit = local", *done.out.splitlines())
        dsn = server.dsn(user=name)
        set_names(server, "walkeeper_gone")
        with proposer(server):
            named = ("--replace", "--application-name", "walkeeper")
            done = walkeeper("attach", "--dsn", dsn, *named)
            assert done.code == 0 and "GRANT" not in done.err, done
            assert setting(server) == "FIRST 1 (walkeeper)"
            assert walkeeper("detach", "--dsn", dsn, "--application-name", "walkeeper").code == 0
        assert setting(server) == "walkeeper_gone"
        files = (
            "SELECT pg_ls_dir('pg_wal', true, false), (pg_stat_file('PG_VERSION', true)).size,"
            " pg_read_binary_file('global/pg_control', 0, 10, true)"
        )
        assert server.sql(files, user=name)


@pytest.mark.postgres
def test_attach_names_the_grant_that_the_proposers_role_lacks(
    server: PostgresServer, walkeeper: Walkeeper
) -> None:
    (function,) = (name for name in FUNCTIONS if server.sql(f"SELECT to_regprocedure('{name}')"))
    server.sql(f"REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC")
    server.sql("CREATE ROLE weak LOGIN REPLICATION")
    with proposer(server, user="weak"):
        done = walkeeper("attach", "--dsn", server.dsn(), "--timeout", "10s")
    assert done.code == 0, done.err
    assert "there is no slot walkeeper_retention" in done.err
    assert f"GRANT EXECUTE ON FUNCTION {function} TO weak;" in done.err


def test_before_15_the_script_names_who_may_attach() -> None:
    said = "\n".join(script(140010, "r", "postgres", exists=True))
    assert "ALTER ROLE r REPLICATION;" in said and "only a superuser" in said
    assert "ALTER SYSTEM ON" not in said
