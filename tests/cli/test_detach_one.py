"""`detach --application-name`: one of those that commits wait for is taken out, the others stay."""

from __future__ import annotations

import pytest

from tests.cli.attach_stage import (
    Walkeeper,
    auto_conf,
    hanging_commit,
    proposer,
    server,
    set_names,
    setting,
    walkeeper,
)
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import LIMIT_S, wait_until

__all__ = ["server", "walkeeper"]
pytestmark = pytest.mark.postgres

BOTH = "FIRST 2 (walkeeper, walkeeper_changes)"
ONE = ("--application-name", "walkeeper_changes")


def slots(server: PostgresServer) -> list[str]:
    return sorted(name for (name,) in server.rows("SELECT slot_name FROM pg_replication_slots"))


def test_the_named_standby_is_taken_out_and_the_other_logs_durability_stays(
    server: PostgresServer, walkeeper: Walkeeper
) -> None:
    with proposer(server), proposer(server, "walkeeper_changes"):
        set_names(server, BOTH)
        server.sql("INSERT INTO t VALUES (1)")
    confirmed = server.sql(
        "SELECT restart_lsn::text FROM pg_replication_slots WHERE slot_name = 'walkeeper_changes'"
    )
    with hanging_commit(server) as commit:
        done = walkeeper("detach", "--dsn", server.dsn(), *ONE)
        assert done.code == 0, done
        assert setting(server) == "FIRST 1 (walkeeper)", done
        said = "detached: synchronous_standby_names is 'FIRST 1 (walkeeper)' (was"
        assert done.out.startswith(f"{said} '{BOTH}'); commits still wait for walkeeper\n"), done
        assert "warning: commits wait for walkeeper, which is not connected" in done.out, done
        assert f"unsafe range of walkeeper_changes: from {confirmed}, " in done.out, done
        assert "on the primary alone" not in done.out, done
        assert "slot walkeeper_changes stays" in done.out and "slot walkeeper " not in done.out
        again = walkeeper("detach", "--dsn", server.dsn(), *ONE, "--drop-slot")
        assert again.code == 0 and "not attached: walkeeper_changes is not in" in again.out, again
        assert "dropped slot walkeeper_changes" in again.out, again
        assert (setting(server), slots(server)) == ("FIRST 1 (walkeeper)", ["walkeeper"])
        assert commit.poll() is None, "no quorum of the log that stays has it"
        with proposer(server):
            output, _ = commit.communicate(timeout=LIMIT_S)
            assert output.strip() == "INSERT 0 1"
    third = walkeeper("detach", "--dsn", server.dsn(), *ONE)
    assert third.code == 1 and "does not list walkeeper_changes" in third.err, third
    assert setting(server) == "FIRST 1 (walkeeper)"
    done = walkeeper("detach", "--dsn", server.dsn())
    assert done.code == 0 and setting(server) == "", done
    assert "synchronous_standby_names" not in auto_conf(server)


def test_commits_that_waited_for_the_named_one_alone_are_released(
    server: PostgresServer, walkeeper: Walkeeper
) -> None:
    with proposer(server):
        with proposer(server, "walkeeper_changes"):
            set_names(server, BOTH)
        with hanging_commit(server) as commit:
            done = walkeeper("detach", "--dsn", server.dsn(), *ONE)
            assert done.code == 0 and "warning" not in done.out, done
            output, _ = commit.communicate(timeout=LIMIT_S)
            assert output.strip() == "INSERT 0 1"
        server.sql("INSERT INTO t VALUES (2)")
        state = "SELECT sync_state FROM pg_stat_replication"
        wait_until(lambda: server.sql(state) == "sync")


def test_the_range_of_all_counts_the_slot_that_is_furthest_behind(
    server: PostgresServer, walkeeper: Walkeeper
) -> None:
    with proposer(server, "walkeeper_changes"):
        with proposer(server):
            pass
        server.sql("INSERT INTO t SELECT generate_series(1, 10000)")
        ahead = (
            "SELECT min(restart_lsn) < max(restart_lsn) AND min(restart_lsn) = (SELECT restart_lsn "
            "FROM pg_replication_slots WHERE slot_name = 'walkeeper') FROM pg_replication_slots"
        )
        wait_until(lambda: server.sql(ahead))
    least = server.sql("SELECT min(restart_lsn)::text FROM pg_replication_slots")
    set_names(server, BOTH)
    done = walkeeper("detach", "--dsn", server.dsn())
    assert done.code == 0 and f"unsafe range: from {least}, " in done.out, done
    assert "slot walkeeper stays" in done.out and "slot walkeeper_changes stays" in done.out


def test_a_setting_that_was_replaced_comes_back_with_the_last(
    server: PostgresServer, walkeeper: Walkeeper
) -> None:
    old = 'ANY 1 ("it\'s old", walreceiver)'
    set_names(server, old)
    with proposer(server), proposer(server, "walkeeper_changes"):
        done = walkeeper(
            "attach", "--dsn", server.dsn(), "--replace", "--application-name", "walkeeper"
        )
        assert done.code == 0, done
        set_names(server, BOTH)
        done = walkeeper("detach", "--dsn", server.dsn(), *ONE)
        assert done.code == 0 and setting(server) == "FIRST 1 (walkeeper)", done
        done = walkeeper("detach", "--dsn", server.dsn(), *ONE)
        assert done.code == 0 and setting(server) == "FIRST 1 (walkeeper)", done
        done = walkeeper("detach", "--dsn", server.dsn(), "--application-name", "walkeeper")
        assert done.code == 0 and setting(server) == old, done
    assert "walkeeper.replaced" not in auto_conf(server)


def test_names_of_others_and_the_way_of_counting_stay(
    server: PostgresServer, walkeeper: Walkeeper
) -> None:
    with proposer(server, "walkeeper_changes"):
        set_names(server, 'ANY 3 (walkeeper, "it\'s mine", Walkeeper_Changes)')
        done = walkeeper("detach", "--dsn", server.dsn(), *ONE)
        assert done.code == 0, done
        assert setting(server) == 'ANY 2 (walkeeper, "it\'s mine")'
        assert "warning: commits wait for it's mine, which is not connected" in done.out, done
    set_names(server, "walkeeper_changes, standby1")
    done = walkeeper("detach", "--dsn", server.dsn(), *ONE)
    assert done.code == 0 and setting(server) == "FIRST 1 (standby1)", done


def test_any_standby_may_be_the_named_one_so_it_cannot_be_taken_out(
    server: PostgresServer, walkeeper: Walkeeper
) -> None:
    both = "FIRST 2 (walkeeper, walkeeper_changes, *)"
    set_names(server, both)
    done = walkeeper("detach", "--dsn", server.dsn(), *ONE)
    assert done.code == 1 and "lists *, any standby" in done.err, done
    assert setting(server) == both
    assert walkeeper("detach", "--dsn", server.dsn()).code == 0
    assert setting(server) == ""
    set_names(server, "FIRST 2 (walkeeper_changes, *)")
    done = walkeeper("detach", "--dsn", server.dsn(), *ONE)
    assert done.code == 0 and "is empty" in done.out and setting(server) == "", done


def test_a_role_with_the_two_rights_alone_is_enough(
    server: PostgresServer, walkeeper: Walkeeper
) -> None:
    server.sql("CREATE ROLE breaker LOGIN")
    set_names(server, BOTH)
    dsn = server.dsn(user="breaker")
    done = walkeeper("detach", "--dsn", dsn, *ONE)
    assert done.code == 1 and "= 'FIRST 1 (walkeeper)'" in done.err, done
    assert setting(server) == BOTH
    server.sql(
        "SET synchronous_commit = local",
        "GRANT ALTER SYSTEM ON PARAMETER synchronous_standby_names TO breaker",
        "GRANT EXECUTE ON FUNCTION pg_reload_conf() TO breaker",
    )
    with proposer(server):
        done = walkeeper("detach", "--dsn", dsn, *ONE)
    assert done.code == 0 and "warning" not in done.out, done
    assert "unsafe range of walkeeper_changes: unknown" in done.out, done
    assert setting(server) == "FIRST 1 (walkeeper)"


def test_detach_by_the_documented_role_releases_what_a_superuser_has_replaced(
    server: PostgresServer, walkeeper: Walkeeper
) -> None:
    """And a restored name whose standby is away is no surprise."""
    with server.connect() as sql:
        sql.execute("CREATE ROLE releaser LOGIN")
        sql.execute("GRANT ALTER SYSTEM ON PARAMETER synchronous_standby_names TO releaser")
        sql.execute("GRANT EXECUTE ON FUNCTION pg_reload_conf() TO releaser")
    server.sql("ALTER SYSTEM SET synchronous_standby_names = 'foo'")
    server.reload()
    with proposer(server):
        assert walkeeper("attach", "--dsn", server.dsn(), "--replace").code == 0
        done = walkeeper("detach", "--dsn", server.dsn(user="releaser"))
    assert done.code == 0, done
    assert "'foo' again" in done.out and "commits wait for foo, which is not connected" in done.out
    assert "may not reset walkeeper.replaced_synchronous_standby_names" in done.out
    done = walkeeper("detach", "--dsn", server.dsn())
    assert done.code == 0 and "may not reset" not in done.out, "a superuser finishes it"
    server.sql("ALTER SYSTEM RESET synchronous_standby_names")
    server.reload()
