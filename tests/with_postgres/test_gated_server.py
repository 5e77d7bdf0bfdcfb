"""`walkeeper gate --exec`: Patroni starts a server, and no reader sees a row that may be lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster, walkeeper
from tests.support.crashed_primary import Reader, crashed_with_a_waiting_commit, gets_in
from tests.support.gated_starts import MORE_PACKAGES, GatedServer, gated
from tests.support.postgres_server import PostgresServer, program, run_as_server_user
from tests.support.restore_installation import Installation, installed
from tests.support.standbys import fail_over, standby_of
from tests.support.waiting import wait_until
from walkeeper_admin.primary.door import STATE_PARAMETER

pytestmark = pytest.mark.postgres
STATE = f"SHOW {STATE_PARAMETER}"
PENDING = "SELECT count(*) FROM pg_settings WHERE pending_restart"


@pytest.fixture(scope="module")
def installation() -> Iterator[Installation]:
    with installed(MORE_PACKAGES) as made:
        yield made


@pytest.fixture
def server(
    cluster: Cluster, primary: PostgresServer, installation: Installation
) -> Iterator[GatedServer]:
    with gated(primary, installation, cluster.addresses) as made:
        yield made


def wait_refused_more(reader: Reader) -> None:
    before = reader.refused
    wait_until(lambda: reader.refused > before + 5)


def runs(server: PostgresServer) -> bool:
    return (
        "accepting connections"
        in run_as_server_user(
            [program("pg_isready"), "-h", "127.0.0.1", "-p", str(server.port)], check=False
        ).stdout
    )


def test_a_crashed_primary_admits_clients_when_a_quorum_has_all(
    cluster: Cluster, primary: PostgresServer, server: GatedServer
) -> None:
    crashed_with_a_waiting_commit(cluster, primary)
    rules = (primary.data / "pg_hba.conf").read_text()
    with Reader(primary) as reader:
        process = server.start()
        wait_until(lambda: reader.refused > 5)
        assert primary.postmaster_pid() == process.pid, "Patroni knows the server by this number"
        assert primary.sql("SELECT count(*) FROM t") == 2, "the server itself shows it"
        # Patroni writes its rules anew and reloads, as at its own start.
        (primary.data / "pg_hba.conf").write_text(rules)
        loaded = primary.sql("SELECT pg_conf_load_time()")
        primary.reload()
        wait_until(lambda: primary.sql("SELECT pg_conf_load_time()") != loaded)
        wait_refused_more(reader)
        assert not reader.seen and primary.sql(STATE) == "closed"
        shown = walkeeper("status", "--safekeepers", cluster.addresses, "--dsn", primary.dsn())
        assert "; `walkeeper gate` keeps it closed to clients" in shown.stdout
        for safekeeper in cluster.safekeepers[1:]:
            safekeeper.start()
        wait_until(lambda: reader.seen == {1, 2})
    assert "open: a quorum has all WAL to" in wait_until(lambda: said(primary, "open: "))
    wait_until(lambda: primary.sql(STATE) == "open")
    assert primary.sql(PENDING) == 0, "Patroni would ask for a restart"
    wait_until(lambda: not [pid for pid in server.guards() if pid != process.pid])

    again = server.start_second()
    assert again.returncode and "runs already" in again.stdout
    assert server.door.ticket() is None and gets_in(primary), "the server that runs stays open"

    # postgres would recover in place and show all, without a start that could be closed.
    with primary.connect() as connection:
        os.kill(connection.info.backend_pid, signal.SIGKILL)
    assert process.wait() != 0
    assert not primary.is_running


def said(server: PostgresServer, text: str) -> str:
    return next((line for line in server.log_text().splitlines() if text in line), "")


def test_a_standby_is_never_closed(
    cluster: Cluster, primary: PostgresServer, installation: Installation
) -> None:
    primary.sql("CREATE ROLE reader LOGIN")
    with (
        standby_of(primary, cluster.ports[1]) as standby,
        gated(standby, installation, cluster.addresses) as server,
    ):
        wait_until(lambda: gets_in(standby))
        for safekeeper in cluster.safekeepers:
            safekeeper.kill()
        for stop in (standby.stop, standby.kill):
            stop()
            server.start()
            wait_until(lambda: runs(standby))
            assert gets_in(standby) and server.door.ticket() is None
        assert server.runs_other("--version").startswith("postgres (PostgreSQL)")


def test_a_primary_that_comes_back_as_a_standby_stays_closed_until_the_log_has_all(
    cluster: Cluster, primary: PostgresServer, server: GatedServer
) -> None:
    """Behind a crash of the machine Patroni recovers alone, starts a standby and promotes it."""
    crashed_with_a_waiting_commit(cluster, primary)
    server.runs_other("--single", "-D", str(primary.data), "template1")
    (primary.data / "standby.signal").touch()
    with Reader(primary) as reader:
        for _ in range(2):  # the second one begins where a standby has ended
            server.start()
            wait_refused_more(reader)
            assert primary.sql("SELECT count(*) FROM t") == 2, "the server itself shows it"
            primary.stop()
            server.reap()
        for safekeeper in cluster.safekeepers[1:]:
            safekeeper.start()
        server.start()
        # The log lacks the record with which the recovery ended.
        wait_until(lambda: "goes on for" in primary.log_text())
        assert not reader.seen
        cluster.proposer.kill()
        fail_over(cluster, primary)
        wait_until(lambda: reader.seen == {1, 2})


def test_a_primary_that_was_stopped_with_care_opens_as_a_standby(
    cluster: Cluster, primary: PostgresServer, server: GatedServer
) -> None:
    primary.sql("CREATE ROLE reader LOGIN")
    primary.stop()
    cluster.proposer.kill()
    cluster.settle("--seal")
    for safekeeper in cluster.safekeepers[1:]:
        safekeeper.kill()
    (primary.data / "standby.signal").touch()
    server.start()
    wait_until(lambda: said(primary, "it cannot be known whether the server's WAL is the log"))
    assert not gets_in(primary)
    for safekeeper in cluster.safekeepers[1:]:
        safekeeper.start()
    wait_until(lambda: gets_in(primary))


def test_a_refusal_does_not_end_the_wait_and_a_killed_wait_goes_on(
    primary: PostgresServer, cluster: Cluster, server: GatedServer
) -> None:
    def set_names(names: str) -> None:
        primary.sql(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
        primary.reload()

    primary.sql("CREATE ROLE reader LOGIN")
    names = primary.sql("SHOW synchronous_standby_names")
    set_names("")
    primary.stop()
    server.start()
    wait_until(lambda: said(primary, "synchronous_standby_names is empty"))
    assert not gets_in(primary)
    set_names(names)
    wait_until(lambda: gets_in(primary))

    set_names("")
    primary.stop()
    server.start()
    wait_until(lambda: runs(primary))
    server.kill_guard()
    assert not gets_in(primary)
    set_names(names)
    assert not gets_in(primary), "nobody opens it"
    done = server.wait()
    assert done.returncode == 0 and "open: a quorum has all WAL to" in done.stdout, done
    wait_until(lambda: gets_in(primary))
    assert "open already" in server.wait().stdout
