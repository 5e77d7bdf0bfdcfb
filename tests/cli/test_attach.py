"""`attach` and `detach` against a real primary."""

from __future__ import annotations

import signal
import subprocess
import sys

import psycopg
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
from walkeeper_common.errors import Refused

__all__ = ["server", "walkeeper"]

OLD_SETTING = 'ANY 1 ("it\'s old", walreceiver)'


@pytest.mark.postgres
def test_attach_makes_the_proposer_synchronous_and_detach_ends_it(
    server: PostgresServer, walkeeper: Walkeeper
) -> None:
    with proposer(server):
        done = walkeeper("attach", "--dsn", server.dsn())
        assert done.code == 0, done
        assert "attached: synchronous_standby_names = 'FIRST 1 (walkeeper)'" in done.out
        assert server.sql("SELECT sync_state FROM pg_stat_replication") == "sync"
        server.sql("INSERT INTO t VALUES (1)")
        done = walkeeper("attach", "--dsn", server.dsn())
        assert (done.code, done.out[:16]) == (0, "already attached"), done
        set_names(server, "FIRST 2 (walkeeper, gone)")
        done = walkeeper("attach", "--dsn", server.dsn())
        assert "warning: commits wait for gone, too, which is not connected" in done.err, done
        done = walkeeper("detach", "--dsn", server.dsn())
        assert done.code == 0, done
        assert "synchronous_standby_names is empty (was 'FIRST 2 (walkeeper, gone)')" in done.out
        assert "slot walkeeper stays" in done.out
    assert setting(server) == ""
    assert "synchronous_standby_names" not in auto_conf(server)
    done = walkeeper("detach", "--dsn", server.dsn())
    assert done.code == 0 and "not attached" in done.out, done


@pytest.mark.postgres
def test_attach_waits_for_a_proposer_and_changes_nothing_without_one(
    server: PostgresServer, walkeeper: Walkeeper
) -> None:
    done = walkeeper("attach", "--dsn", server.dsn(), "--timeout", "300ms")
    assert done.code == 1
    assert "no proposer (walkeeper or walkeeper_…) is connected" in done.err, done
    assert setting(server) == "" and "synchronous" not in auto_conf(server)


@pytest.mark.postgres
def test_attach_asks_which_of_several_proposers(
    server: PostgresServer, walkeeper: Walkeeper
) -> None:
    with proposer(server), proposer(server, "walkeeper_b"):
        done = walkeeper("attach", "--dsn", server.dsn())
        assert done.code == 1, done
        assert "walkeeper, walkeeper_b" in done.err and "--application-name" in done.err
        done = walkeeper("attach", "--dsn", server.dsn(), "--application-name", "walkeeper_b")
        assert done.code == 0, done
        assert setting(server) == "FIRST 1 (walkeeper_b)"


@pytest.mark.postgres
def test_a_connection_without_a_slot_is_no_proposer(
    server: PostgresServer, walkeeper: Walkeeper
) -> None:
    connection = psycopg.connect(
        server.dsn(application_name="walkeeper_compare", replication="true"), autocommit=True
    )
    with proposer(server), connection:
        done = walkeeper("attach", "--dsn", server.dsn())
        assert done.code == 0, done


@pytest.mark.postgres
@pytest.mark.parametrize("old", [OLD_SETTING, "FIRST 1 (walkeeper, walreceiver)"])
def test_a_foreign_setting_is_refused_then_replaced_then_restored(
    server: PostgresServer, walkeeper: Walkeeper, old: str
) -> None:
    set_names(server, old)
    with proposer(server):
        done = walkeeper("attach", "--dsn", server.dsn())
        assert done.code == 1 and "--replace" in done.err and "walreceiver" in done.err, done
        assert ("may acknowledge instead of walkeeper" in done.err) is (old != OLD_SETTING)
        assert setting(server) == old
        done = walkeeper("attach", "--dsn", server.dsn(), "--replace")
        assert done.code == 0 and "detach restores it" in done.out, done
        assert setting(server) == "FIRST 1 (walkeeper)"
    server.restart("immediate")
    done = walkeeper("detach", "--dsn", server.dsn())
    assert done.code == 0 and "again" in done.out, done
    assert setting(server) == old
    assert "walkeeper.replaced" not in auto_conf(server)


@pytest.mark.postgres
def test_a_replaced_setting_that_was_emptied_by_hand_does_not_come_back(
    server: PostgresServer, walkeeper: Walkeeper
) -> None:
    set_names(server, "old")
    with proposer(server):
        assert walkeeper("attach", "--dsn", server.dsn(), "--replace").code == 0
        server.sql("ALTER SYSTEM RESET synchronous_standby_names")
        server.reload()
        wait_until(lambda: setting(server) == "")
        assert walkeeper("attach", "--dsn", server.dsn()).code == 0
        done = walkeeper("detach", "--dsn", server.dsn())
    assert done.code == 0 and setting(server) == "", done
    assert "synchronous_standby_names" not in auto_conf(server)


@pytest.mark.postgres
def test_a_setting_from_postgresql_conf_comes_back_from_there(
    server: PostgresServer, walkeeper: Walkeeper
) -> None:
    server.configure({"synchronous_standby_names": OLD_SETTING})
    server.reload()
    wait_until(lambda: setting(server) == OLD_SETTING)
    with proposer(server):
        assert walkeeper("attach", "--dsn", server.dsn(), "--replace").code == 0
        done = walkeeper("detach", "--dsn", server.dsn())
        assert done.code == 0, done
    assert setting(server) == OLD_SETTING
    assert "synchronous_standby_names" not in auto_conf(server)


@pytest.mark.postgres
def test_attach_that_does_not_come_into_force_puts_the_old_setting_back(
    server: PostgresServer, walkeeper: Walkeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> None:
        assert setting(server) == "FIRST 1 (walkeeper)"
        raise Refused("not within 1 s: the proposer went away")

    monkeypatch.setattr("walkeeper_admin.primary.attach._wait_in_force", never)
    server.configure({"synchronous_standby_names": OLD_SETTING})
    server.reload()
    wait_until(lambda: setting(server) == OLD_SETTING)
    with proposer(server):
        done = walkeeper("attach", "--dsn", server.dsn(), "--replace")
    assert done.code == 1 and "went away" in done.err, done
    assert setting(server) == OLD_SETTING and "synchronous" not in auto_conf(server)


@pytest.mark.postgres
def test_two_connections_of_one_name_are_refused(
    server: PostgresServer, walkeeper: Walkeeper
) -> None:
    with proposer(server), proposer(server, "walkeeper", "second"):
        done = walkeeper("attach", "--dsn", server.dsn(), "--timeout", "1s")
        assert done.code == 1 and "several proposers" in done.err, done
    assert setting(server) == "" and "synchronous" not in auto_conf(server)


@pytest.mark.postgres
def test_print_changes_nothing(server: PostgresServer, walkeeper: Walkeeper) -> None:
    done = walkeeper("attach", "--dsn", "host=nowhere", "--print", "--application-name", "x y")
    assert (done.code, done.out) == (0, "synchronous_standby_names = 'FIRST 1 (\"x y\")'\n"), done
    done = walkeeper("attach", "--dsn", server.dsn(), "--print")
    assert done.code == 1 and "--application-name" in done.err, done
    with proposer(server, "walkeeper_b"):
        done = walkeeper("attach", "--dsn", server.dsn(), "--print")
    assert done.out == "synchronous_standby_names = 'FIRST 1 (walkeeper_b)'\n", done
    assert setting(server) == ""


@pytest.mark.postgres
def test_attach_warns_of_settings_that_undo_it(
    server: PostgresServer, walkeeper: Walkeeper
) -> None:
    server.sql("ALTER SYSTEM SET synchronous_commit = off")
    server.sql("ALTER DATABASE postgres SET synchronous_commit = local")
    server.sql("ALTER SYSTEM SET full_page_writes = off")
    server.reload()
    wait_until(lambda: server.sql("SHOW full_page_writes") == "off")
    with proposer(server):
        done = walkeeper("attach", "--dsn", server.dsn())
    assert done.code == 0, done
    assert "warning: full_page_writes is off" in done.err
    assert "warning: synchronous_commit is local" in done.err
    assert "warning: synchronous_commit=local for database postgres" in done.err


# Rights


@pytest.mark.postgres
def test_a_plain_role_learns_every_grant_it_lacks_and_then_works(
    server: PostgresServer, walkeeper: Walkeeper
) -> None:
    server.sql("CREATE ROLE operator LOGIN REPLICATION", "SELECT pg_reload_conf()")
    dsn = server.dsn(user="operator")
    set_names(server, "walkeeper_gone")
    with proposer(server):
        # Every run names all privileges known to be missing; these are granted here.
        for _ in range(3):
            done = walkeeper("attach", "--dsn", dsn, "--replace", "--application-name", "walkeeper")
            grants = [part.strip() for part in done.err.split(";") if "GRANT" in part]
            if done.code == 0:
                break
            assert grants, done
            for grant in grants:
                server.sql("SET synchronous_commit = local", grant[grant.index("GRANT") :])
        assert done.code == 0, done
        assert setting(server) == "FIRST 1 (walkeeper)"
        done = walkeeper("detach", "--dsn", dsn, "--drop-slot")
    assert done.code == 1 and "stop the proposer first" in done.err, done
    assert setting(server) == "walkeeper_gone"
    done = walkeeper("detach", "--dsn", dsn, "--drop-slot", "--application-name", "walkeeper")
    assert done.code == 0 and "dropped slot walkeeper" in done.out, done
    assert setting(server) == "walkeeper_gone", "it names somebody else now"


@pytest.mark.postgres
def test_a_setting_on_the_command_line_is_refused(
    server: PostgresServer, walkeeper: Walkeeper
) -> None:
    server.stop()
    command = ("-l", str(server.log), "-o", "-c synchronous_standby_names=x", "-w", "start")
    server.pg_ctl(*command)
    done = walkeeper("attach", "--dsn", server.dsn(), "--replace", "--timeout", "1s")
    assert done.code == 1 and "command line" in done.err, done
    done = walkeeper("detach", "--dsn", server.dsn(), "--application-name", "x")
    assert done.code == 1 and "command line" in done.err, done


@pytest.mark.postgres
def test_a_broken_postgresql_conf_is_named_as_the_reason(
    server: PostgresServer, walkeeper: Walkeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("walkeeper_admin.primary.primary_settings.RELOAD_TIMEOUT_S", 0.5)
    with proposer(server):
        assert walkeeper("attach", "--dsn", server.dsn()).code == 0
    with (server.data / "postgresql.conf").open("a") as file:
        file.write("this is = = no setting\n")
    done = walkeeper("detach", "--dsn", server.dsn())
    assert done.code == 1 and "pg_file_settings" in done.err, done


# Detach, the way out


@pytest.mark.postgres
def test_detach_releases_commits_that_wait_for_a_dead_proposer(
    server: PostgresServer, walkeeper: Walkeeper
) -> None:
    with proposer(server):
        assert walkeeper("attach", "--dsn", server.dsn()).code == 0
        server.sql("INSERT INTO t VALUES (1)")
    confirmed = server.sql("SELECT restart_lsn::text FROM pg_replication_slots")
    with hanging_commit(server) as commit:
        done = walkeeper("detach", "--dsn", server.dsn())
        assert done.code == 0, done
        output, _ = commit.communicate(timeout=LIMIT_S)
        assert output.strip() == "INSERT 0 1"
    assert f"unsafe range: from {confirmed}, the last position that a quorum confirmed" in done.out
    server.sql("INSERT INTO t VALUES (2)")
    done = walkeeper("detach", "--dsn", server.dsn(), "--drop-slot")
    assert "dropped slot walkeeper" in done.out, done
    assert server.sql("SELECT count(*) FROM pg_replication_slots") == 0


@pytest.mark.postgres
def test_detach_works_for_a_role_without_a_look_at_others(
    server: PostgresServer, walkeeper: Walkeeper
) -> None:
    with proposer(server):
        assert walkeeper("attach", "--dsn", server.dsn()).code == 0
    server.sql("ALTER SYSTEM SET synchronous_commit = on")  # writes no WAL: does not hang
    with server.connect() as sql:
        sql.execute("SET synchronous_commit = local")
        sql.execute("CREATE ROLE breaker LOGIN")
        sql.execute("GRANT ALTER SYSTEM ON PARAMETER synchronous_standby_names TO breaker")
        sql.execute("GRANT EXECUTE ON FUNCTION pg_reload_conf() TO breaker")
    with hanging_commit(server) as commit:
        done = walkeeper("detach", "--dsn", server.dsn(user="breaker"))
        assert done.code == 0, done
        output, _ = commit.communicate(timeout=LIMIT_S)
        assert output.strip() == "INSERT 0 1"


@pytest.mark.postgres
def test_drop_slot_ends_the_connection_that_uses_it(
    server: PostgresServer, walkeeper: Walkeeper
) -> None:
    with proposer(server):
        assert walkeeper("attach", "--dsn", server.dsn()).code == 0
        done = walkeeper("detach", "--dsn", server.dsn(), "--drop-slot")
        assert (
            done.code == 0 and "dropped slot walkeeper; its proposer runs and makes it" in done.out
        ), done
    assert server.sql("SELECT count(*) FROM pg_replication_slots") == 0


@pytest.mark.postgres
def test_detach_leaves_a_setting_that_names_no_proposer(
    server: PostgresServer, walkeeper: Walkeeper
) -> None:
    set_names(server, "standby1")
    done = walkeeper("detach", "--dsn", server.dsn())
    assert done.code == 1 and "left as it is" in done.err, done
    assert setting(server) == "standby1"
    done = walkeeper("detach", "--dsn", server.dsn(), "--application-name", "Standby1")
    assert done.code == 0 and setting(server) == "", done


@pytest.mark.postgres
def test_detach_says_so_when_the_slot_is_lost_or_gone(
    server: PostgresServer, walkeeper: Walkeeper
) -> None:
    with proposer(server):
        pass
    server.sql("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
    server.reload()
    for _ in range(4):
        server.sql("SELECT pg_logical_emit_message(false, '', ''), pg_switch_wal()")
    server.sql("CHECKPOINT")
    server.sql("ALTER SYSTEM RESET max_slot_wal_keep_size")
    server.reload()
    done = walkeeper("detach", "--dsn", server.dsn())
    assert done.code == 0 and "is lost (max_slot_wal_keep_size) and keeps no WAL" in done.out, done
    with proposer(server):
        assert walkeeper("attach", "--dsn", server.dsn()).code == 0
    server.sql("SELECT pg_drop_replication_slot('walkeeper')")
    done = walkeeper("detach", "--dsn", server.dsn())
    assert done.code == 0 and "unsafe range: unknown" in done.out, done


@pytest.mark.postgres
def test_a_slot_of_another_name_is_found_by_its_name(
    server: PostgresServer, walkeeper: Walkeeper
) -> None:
    with proposer(server, slot="elsewhere"):
        assert walkeeper("attach", "--dsn", server.dsn()).code == 0
    done = walkeeper("detach", "--dsn", server.dsn(), "--slot", "elsewhere", "--drop-slot")
    assert done.code == 0 and "dropped slot elsewhere" in done.out, done
    assert "unsafe range: from" in done.out, done


@pytest.mark.postgres
def test_the_slot_of_a_cluster_with_dashes_is_found(
    server: PostgresServer, walkeeper: Walkeeper
) -> None:
    with proposer(server, "walkeeper_my-db", "walkeeper_my_db"):
        assert walkeeper("attach", "--dsn", server.dsn()).code == 0
    done = walkeeper("detach", "--dsn", server.dsn())
    assert done.code == 0 and "slot walkeeper_my_db stays" in done.out, done


@pytest.mark.postgres
def test_an_interrupted_attach_is_quiet_and_leaves_nothing(server: PostgresServer) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "walkeeper_cli", "attach", "--dsn", server.dsn()],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background job ignores it, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    seen = ""
    while "waiting:" not in seen:
        line = process.stderr.readline()
        assert line, f"it ended: {seen}"
        seen += line
    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130 and "Traceback" not in rest, rest
    assert setting(server) == "" and "synchronous" not in auto_conf(server)


@pytest.mark.postgres
def test_a_standby_is_refused(server: PostgresServer, walkeeper: Walkeeper) -> None:
    standby = server.base_backup(options=["-R"])
    try:
        standby.start()
        for command in ("attach", "detach"):
            done = walkeeper(command, "--dsn", standby.dsn())
            assert done.code == 1 and "in recovery" in done.err, done
    finally:
        standby.delete()


def test_errors_are_one_line_without_a_traceback(walkeeper: Walkeeper) -> None:
    done = walkeeper("detach", "--dsn", "host=127.0.0.1 port=1 user=u")
    assert done.code == 1 and done.err.count("\n") == 1, done
