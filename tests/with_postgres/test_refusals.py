"""A wrong command gets one clear line with exit code 1, and disturbs nobody."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, Daemon, lsn_of, walkeeper
from tests.support.journal import Journal
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import LIMIT_S, wait_until
from walkeeper_lab.local.tcp_ports import free_port
from walkeeper_safekeeper.safekeeper_daemon import PROPOSERS_MAX

pytestmark = pytest.mark.postgres

SEGMENT_BYTES = 1 << 20  # the size of the fixture `primary`
PREFACE = b"WALKEEP\x01"


@pytest.fixture(scope="module")
def shared() -> Iterator[Cluster]:
    """One cluster for all tests that only knock at its door; no test here may disturb it."""
    with PostgresServer.create() as primary, Cluster.create(primary) as made:
        pids = [daemon.pid for daemon in [made.proposer, *made.safekeepers]]
        yield made
        assert pids == [daemon.pid for daemon in [made.proposer, *made.safekeepers]]
        assert all(daemon.is_running for daemon in [made.proposer, *made.safekeepers])
        with Journal(primary) as journal:
            journal.wait_for_more(50)


def assert_refused(daemon: Daemon, *words: str, code: int = 1) -> None:
    """Check that it ends with `code`, and that its last line has all of this and no traceback."""
    daemon.start(wait=False)
    ended, said = daemon.ended(), daemon.output()
    assert ended == code, f"{ended}: {said}"
    assert "Traceback" not in said, said
    last = said.splitlines()[-1]
    assert all(word in last for word in words), said


def assert_fails(outcome: tuple[int, str], *words: str) -> None:
    code, said = outcome
    assert code == 1, f"{code}: {said}"
    assert "Traceback" not in said, said
    assert all(word in said for word in words), said


def run(*arguments: str) -> tuple[int, str]:
    """Exit code and stderr."""
    done = walkeeper(*arguments)
    return done.returncode, done.stderr


def test_another_primary_is_refused_by_its_system_identifier(shared: Cluster) -> None:
    with PostgresServer.create(initdb_options=["--data-checksums"]) as other:
        other.sql("SELECT pg_create_physical_replication_slot('walkeeper', true)")
        proposer = shared.new_proposer("strange", "--take-over", dsn=other.dsn())
        its_id = other.sql("SELECT system_identifier FROM pg_control_system()")
        assert_refused(proposer, str(its_id), str(shared.status()["cluster"]["system_id"]))


def test_an_unknown_cluster_is_refused_by_name(shared: Cluster) -> None:
    assert_refused(shared.new_proposer("nobody", cluster="nobody"), "'nobody'", "walkeeper create")
    for command in ("settle", "status"):
        options = ("--safekeepers", shared.addresses, "--cluster", "nobody")
        done = walkeeper(command, *options)
        assert "nobody" in done.stdout + done.stderr
        assert "Traceback" not in done.stderr, done.stderr
    assert_fails(
        run("settle", "--safekeepers", shared.addresses, "--cluster", "nobody"), "'nobody'"
    )


GARBAGE = {
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "zeros": bytes(4096),
    "text": b"hello\n" * 1000,
    "oversized frame": PREFACE + struct.pack("!IB", 0xFFFFFFFF, 0x50) + bytes(100),
    "empty frame": PREFACE + struct.pack("!I", 0) + bytes(100),
    "unknown tag": PREFACE + struct.pack("!IB", 9, 0xEE) + bytes(8),
    "append without greeting": PREFACE + struct.pack("!IB", 69, 0x41) + bytes(68),
    "greeting of nonsense": PREFACE + struct.pack("!IB", 500, 0x50) + b"\xff" * 499,
    "startup of 1 GB": struct.pack("!II", 1 << 30, 196608),
    "other protocol": b"WALKEEP\x09" + bytes(64),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_is_answered_and_closed(shared: Cluster, garbage: bytes) -> None:
    with socket.create_connection(("127.0.0.1", shared.ports[0]), timeout=LIMIT_S) as connection:
        connection.sendall(garbage)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        try:
            while piece := connection.recv(65536):
                answer += piece
                assert len(answer) < 1 << 20
        except ConnectionResetError:
            pass  # it closed with our bytes unread
    assert shared.safekeepers[0].is_running
    assert shared.status()["safekeepers"][0]["reachable"]


def test_a_crowd_of_silent_proposers_shuts_nobody_out(shared: Cluster) -> None:
    """Each silent connection gives its place to a newcomer; before, commands were refused."""
    crowd = []
    try:
        for _ in range(PROPOSERS_MAX):
            crowd.append(socket.create_connection(("127.0.0.1", shared.ports[0]), timeout=LIMIT_S))
            crowd[-1].sendall(PREFACE)
        for _ in range(5):
            assert shared.status()["safekeepers"][0]["reachable"]
        wait_until(lambda: "ran short" in shared.safekeepers[0].output())
        with Journal(shared.primary) as journal:
            journal.wait_for_more(20)  # connected proposers stay so
    finally:
        for connection in crowd:
            connection.close()


def test_a_port_that_is_taken_is_named(shared: Cluster) -> None:
    other = shared.new_safekeeper(9, shared.ports[0], shared.directory / "elsewhere")
    other.log = shared.directory / "taken.log"
    assert_refused(other, f"127.0.0.1:{shared.ports[0]}", "in use")


def test_a_data_directory_in_use_is_named(shared: Cluster) -> None:
    twin = shared.new_safekeeper(1, free_port(), shared.data_dir(1))
    assert_refused(twin, str(shared.data_dir(1)), "another safekeeper is running")


def test_listening_for_strangers_without_authentication_is_refused(shared: Cluster) -> None:
    code, said = run(
        *("safekeeper", "--id", "9", "--listen", "0.0.0.0:0"),
        *("--data-dir", str(shared.directory / "open")),
    )
    assert_fails((code, said), "0.0.0.0", "--allow-unauthenticated")


def test_an_http_port_for_strangers_is_refused(shared: Cluster) -> None:
    """`--http 0.0.0.0:…` listened without a flag, and showed all that a forged peer needs."""
    strangers = ("--http", "0.0.0.0:0")
    safekeepers = ("--safekeepers", "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3")
    where = str(shared.directory / "open")
    for command in (
        ("safekeeper", "--id", "9", "--listen", "127.0.0.1:0", "--data-dir", where),
        ("proposer", *safekeepers, "--dsn", "host=127.0.0.1 port=1"),
        ("pager", *safekeepers, "--base", str(shared.directory), "--data-dir", where),
    ):
        assert_fails(run(*command, *strangers), "--http 0.0.0.0", "--allow-unauthenticated")


def test_create_after_a_term_exists_is_refused(shared: Cluster) -> None:
    before = shared.status()
    done = shared.try_command("create", "--dsn", shared.primary.dsn())
    assert_fails((done.returncode, done.stderr), "main")
    after = shared.status()
    assert after["cluster"]["term"] == before["cluster"]["term"]
    assert lsn_of(after["cluster"]["commit_lsn"]) >= lsn_of(before["cluster"]["commit_lsn"])


def test_create_names_the_member_that_it_cannot_reach(shared: Cluster) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    members = [*shared.addresses.split(",")[:2], nobody]
    options = ("--cluster", "second", "--dsn", shared.primary.dsn())
    assert_fails(run("create", "--safekeepers", ",".join(members), *options), nobody)
    slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'walkeeper_second'"
    assert shared.primary.sql(slots) == 0


def test_create_for_another_primary_leaves_no_slot_there(shared: Cluster) -> None:
    """A slot that nobody uses holds WAL for ever."""
    create = ("create", "--safekeepers", shared.addresses, "--cluster", "fourth", "--dsn")
    slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'walkeeper_fourth'"
    assert walkeeper(*create, shared.primary.dsn()).returncode == 0
    with PostgresServer.create(initdb_options=["--data-checksums"]) as other:
        assert_fails(
            run(*create, other.dsn()),
            "the log belongs to the PostgreSQL cluster with system identifier",
        )
        assert other.sql(slots) == 0
    assert_fails(run(*create, shared.primary.dsn(), "--ack-quorum", "3"), "ack quorum 2")
    assert shared.primary.sql(slots) == 1, "the slot of a log that is there"
    shared.primary.sql("SELECT pg_drop_replication_slot('walkeeper_fourth')")


def test_a_log_on_one_acknowledgement_needs_a_flag(shared: Cluster) -> None:
    options = ("--cluster", "single", "--dsn", shared.primary.dsn(), "--ack-quorum", "1")
    code, said = run("create", "--safekeepers", shared.addresses, *options)
    assert code in (1, 2), said
    assert "--allow-single-ack" in said, said


def test_a_primary_in_recovery_is_refused(shared: Cluster) -> None:
    standby = shared.primary.base_backup()
    try:
        standby.configure({"primary_conninfo": shared.primary.dsn(), "hot_standby": "on"})
        (standby.data / "standby.signal").touch()
        standby.start()
        # The check comes before anybody is fenced, also for one that would take over.
        proposer = shared.new_proposer("standby", "--take-over", dsn=standby.dsn())
        assert_refused(proposer, "recovery")
        options = ("--cluster", "third", "--dsn", standby.dsn())
        assert_fails(run("create", "--safekeepers", shared.addresses, *options), "recovery")
    finally:
        standby.delete()


@pytest.mark.parametrize(
    "setting", ["fsync", pytest.param("full_page_writes", marks=pytest.mark.soak)]
)
def test_a_primary_that_is_not_safe_itself_is_refused(
    primary: PostgresServer, setting: str
) -> None:
    with Cluster.create(primary, attach=False) as cluster:
        cluster.proposer.kill()
        primary.configure({setting: "off"})
        primary.restart()
        assert_refused(cluster.proposer, setting)


def test_a_sealed_log_is_refused_without_resume(primary: PostgresServer) -> None:
    with Cluster.create(primary) as cluster:
        settled = cluster.command("settle", "--seal", "--json")
        assert '"sealed": true' in settled
        assert cluster.proposer.ended() == 1
        assert_refused(cluster.proposer, "sealed", "--resume")
        cluster.proposer.start("--resume")
        with Journal(primary) as journal:
            journal.wait_for_more(50)


def test_a_directory_of_another_safekeeper_is_refused(cluster: Cluster) -> None:
    cluster.safekeepers[0].terminate()
    other = cluster.new_safekeeper(7, cluster.ports[0], cluster.data_dir(1))
    assert_refused(other, str(cluster.data_dir(1)), "safekeeper 1", "7")


def flip_a_byte(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x40
    path.write_bytes(data)


@pytest.mark.parametrize(
    "what", [pytest.param("control file", marks=pytest.mark.soak), "committed record"]
)
def test_damage_is_named_and_the_safekeeper_does_not_serve_it(
    cluster: Cluster, primary: PostgresServer, what: str
) -> None:
    with Journal(primary) as journal:
        journal.wait_for_more(300)
    end = lsn_of(cluster.wait_all_equal())
    damaged = cluster.safekeepers[0]
    assert damaged.terminate() == 0
    if what == "control file":
        path, offset = cluster.data_dir(1) / cluster.name / "control", 40
    else:
        path = sorted(cluster.wal_dir(1).glob("0*"))[(end - 1 - _first(cluster)) // SEGMENT_BYTES]
        offset = (end - 20) % SEGMENT_BYTES  # inside the last record, which is not shorter
    before = path.read_bytes()
    flip_a_byte(path, offset)
    assert_refused(damaged, path.name)
    with Journal(primary) as journal:
        journal.wait_for_more(100)
    path.write_bytes(before)
    damaged.start()
    cluster.wait_caught_up()


def _first(cluster: Cluster) -> int:
    """Return the LSN at which safekeeper 1's WAL begins."""
    name = sorted(cluster.wal_dir(1).glob("0*"))[0].name
    return (int(name[8:16], 16) << 32) + int(name[16:], 16) * SEGMENT_BYTES
