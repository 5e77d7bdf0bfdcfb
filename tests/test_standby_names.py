"""What synchronous_standby_names says and how a name is put into it, also against a server."""

from __future__ import annotations

from functools import partial

import pytest

from tests.postgres_server import PostgresServer
from tests.waiting import wait_until
from walkeeper_cli.standby_names import includes, listed_names, quoted_name, setting_for


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("", ()),
        ("a", ("a",)),
        ("a, b", ("a", "b")),
        ("*", ("*",)),
        ("FIRST 2 (a, b)", ("a", "b")),
        ("any 1(a,b)", ("a", "b")),
        ("2 (a, b)", ("a", "b")),
        ('FIRST 1 ("we ""quote"" (it)", first)', ('we "quote" (it)', "first")),
        ("first, any", ("first", "any")),
    ],
)
def test_the_listed_names_are_those_that_postgresql_reads(
    value: str, names: tuple[str, ...]
) -> None:
    assert listed_names(value) == names


@pytest.mark.parametrize(
    "name", ["walkeeper", "walkeeper_my-db", "any", "First", "x y", 'a"b', "it's", "0day", "a$"]
)
def test_a_quoted_name_is_read_back_as_it_was(name: str) -> None:
    value = setting_for(name)
    assert listed_names(value) == (name,)
    assert includes(value, name.upper()), "PostgreSQL compares names without regard to case"
    assert quoted_name(name) in value


@pytest.mark.postgres
def test_every_quoted_name_round_trips_through_a_server() -> None:
    with PostgresServer.create(initdb_options=["--wal-segsize=1"]) as server:
        for name in ["walkeeper_my-db", "any", "x y", 'a"b', "it's", "0day"]:
            wanted = setting_for(name)
            literal = "'" + wanted.replace("'", "''") + "'"
            server.sql(f"ALTER SYSTEM SET synchronous_standby_names = {literal}")
            server.reload()
            wait_until(partial(_shows, server, wanted))
            assert listed_names(wanted) == (name,)


def _shows(server: PostgresServer, wanted: str) -> bool:
    return bool(server.sql("SHOW synchronous_standby_names") == wanted)
