"""`attach --grants`: the printed privileges are enough for `attach` and `detach`."""

from __future__ import annotations

import pytest

from tests.cli.attach_stage import (  # noqa: F401
    Walkeeper,
    proposer,
    server,
    set_names,
    setting,
    walkeeper,
)
from tests.support.postgres_server import PostgresServer
from walkeeper_admin.primary.grants import script


@pytest.mark.postgres
def test_a_role_with_the_printed_grants_attaches_and_detaches(
    server: PostgresServer,  # noqa: F811
    walkeeper: Walkeeper,  # noqa: F811
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


def test_before_15_the_script_names_who_may_attach() -> None:
    said = "\n".join(script(140010, "r", "postgres", exists=True))
    assert "ALTER ROLE r REPLICATION;" in said and "only a superuser" in said
    assert "ALTER SYSTEM ON" not in said
