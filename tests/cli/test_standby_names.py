"""The content of synchronous_standby_names and how a name is put into it, also against a server."""

from __future__ import annotations

from functools import partial
from itertools import combinations, product

import pytest

from tests.cli.attach_stage import Walkeeper, proposer, server, walkeeper
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import wait_until
from walkeeper_admin.primary.attach import what_lacks
from walkeeper_admin.primary.primary_settings import Standby
from walkeeper_admin.primary.standby_names import (
    exceeds_its_names,
    includes,
    listed_names,
    quoted_name,
    requires,
    setting_for,
    without,
)

__all__ = ["server", "walkeeper"]


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


@pytest.mark.parametrize(
    ("value", "is_required"),
    [
        ("walkeeper", True),
        ("FIRST 1 (Walkeeper)", True),
        ("FIRST 2 (walkeeper, other)", True),
        ("any 2 (other, walkeeper)", True),
        ("2 (other, walkeeper)", True),
        ("FIRST 2 (walkeeper)", False),  # no commit returns, with it or without
        ("2 (walkeeper, walkeeper)", False),
        ("FIRST 3 (walkeeper, other)", False),
        ("FIRST 1 (other, walkeeper)", False),
        ("FIRST 1 (walkeeper, other)", False),  # the other takes over when the proposer is away
        ("ANY 1 (walkeeper, other)", False),
        ("other, walkeeper", False),
        ('FIRST 1 ("*", walkeeper)', False),
        ("FIRST 2 (walkeeper, *)", False),
        ("*", False),
        ("", False),
    ],
)
def test_a_standby_is_required_if_no_other_can_stand_in(value: str, is_required: bool) -> None:
    assert requires(value, "walkeeper") is is_required


def test_required_standbys_are_those_of_a_trial_of_every_set() -> None:
    for size in (1, 2, 3):
        for listed in product(("w", "a", "b", "*"), repeat=size):
            for method, wanted in product(("FIRST", "ANY"), range(1, size + 2)):
                value = f"{method} {wanted} ({', '.join(listed)})"
                without, ever = (
                    any(
                        _acknowledged(method, wanted, listed, connected, silent)
                        for count in range(6)
                        for connected in combinations("wabcd", count)
                    )
                    for silent in ("w", "nobody")
                )
                assert requires(value, "w") == (ever and not without), value
                assert exceeds_its_names(value) == (not ever), value


@pytest.mark.parametrize(
    ("value", "left"),
    [
        ("FIRST 2 (a, walkeeper)", "FIRST 1 (a)"),
        ("FIRST 3 (walkeeper, a, b)", "FIRST 2 (a, b)"),
        ("any 2(a, Walkeeper)", "ANY 1 (a)"),
        ("2 (a, walkeeper)", "FIRST 1 (a)"),
        ("a, walkeeper, b", "FIRST 1 (a, b)"),
        ("any, walkeeper", 'FIRST 1 ("any")'),
        ("FIRST 2 (a, b, walkeeper)", "FIRST 2 (a, b)"),  # the first two stay so
        ("ANY 2 (a, b, walkeeper)", "ANY 2 (a, b)"),
        ("FIRST 3 (a, walkeeper)", "FIRST 1 (a)"),
        ("FIRST 2 (walkeeper, a, A)", "FIRST 1 (a, A)"),
        ("FIRST 2 (walkeeper, WALKEEPER)", ""),
        ('FIRST 2 ("x ""y""", walkeeper)', 'FIRST 1 ("x ""y""")'),
        ("walkeeper", ""),
        ("", ""),
    ],
)
def test_a_setting_without_one_keeps_the_others(value: str, left: str) -> None:
    assert without(value, "walkeeper") == left


def test_a_required_standby_stays_required_when_another_is_taken_out() -> None:
    for size in (2, 3, 4):
        for listed in product("wabc", repeat=size):
            for method, wanted in product(("FIRST", "ANY"), range(1, size + 2)):
                value = f"{method} {wanted} ({', '.join(listed)})"
                left = without(value, "w")
                assert not includes(left, "w") and not exceeds_its_names(left), value
                for other in set(listed) - {"w"}:
                    assert includes(left, other), value
                    assert requires(left, other) or not requires(value, other), value


def _acknowledged(
    method: str, wanted: int, listed: tuple[str, ...], connected: tuple[str, ...], silent: str
) -> bool:
    """Decide as syncrep.c does. A standby's priority is its first match; one is silent."""
    matches = {
        name: [i for i, each in enumerate(listed) if each in (name, "*")] for name in connected
    }
    candidates = sorted((found[0], name) for name, found in matches.items() if found)
    if method == "FIRST":
        candidates = candidates[:wanted]
    return len([name for _, name in candidates if name != silent]) >= wanted


@pytest.mark.postgres
def test_a_setting_under_which_every_commit_hangs_is_no_attachment(
    server: PostgresServer, walkeeper: Walkeeper
) -> None:
    def set_to(value: str) -> None:
        server.sql(f"ALTER SYSTEM SET synchronous_standby_names = '{value}'")
        server.reload()
        wait_until(partial(_shows, server, value))

    with proposer(server):
        for ours in ("FIRST 2 (walkeeper)", "ANY 2 (walkeeper, walkeeper)"):
            set_to(ours)
            done = walkeeper("attach", "--dsn", server.dsn())
            assert done.code == 0 and done.out.startswith("attached: "), done
            assert f"(replaced '{ours}', which waits for more standbys than" in done.out, done
            server.sql("INSERT INTO t VALUES (1)")
            assert _shows(server, "FIRST 1 (walkeeper)")
        set_to("FIRST 3 (walkeeper, other)")
        done = walkeeper("attach", "--dsn", server.dsn())
        assert done.code == 1 and "waits for more standbys than it names" in done.err, done
        assert walkeeper("attach", "--dsn", server.dsn(), "--replace").code == 0
        server.sql("INSERT INTO t VALUES (1)")


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


def test_a_proposer_that_does_not_stream_is_not_called_absent() -> None:
    compares = Standby(1, "walkeeper", "startup", "async", None, None, None)
    other = Standby(2, "s1", "streaming", "async", None, None, None)
    assert "is connected to this primary and does not stream yet" in what_lacks([compares], None)
    for rows, name in (([other], None), ([compares, other], "mine"), ([], None)):
        assert what_lacks(rows, name).startswith("no proposer (")
