"""A cluster that speaks TLS alone: commits reach the quorum, and no stranger reaches anything.

The safekeepers run with --require-tls, so that loopback is no way in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.safekeeper.test_proposer_session import GREETING
from tests.support.cluster import Cluster, Daemon, walkeeper
from tests.support.postgres_server import PostgresServer
from tests.support.recorders import Recorders
from tests.support.tls_cluster import TlsCluster, speaking_as
from tests.support.waiting import LIMIT_S
from tests.tls_files import TlsFiles
from walkeeper_common.access.identity import Role
from walkeeper_common.shell.safekeeper_links.safekeeper_connection import open_streams
from walkeeper_common.wire.framing import FRAME_HEAD, PREFACE, FrameReader, Message, encode
from walkeeper_common.wire.member_change import MembersQuery
from walkeeper_common.wire.messages import Reject
from walkeeper_common.wire.requests import LogQuery, StatusRequest
from walkeeper_safekeeper.connections.permissions import MESSAGES

pytestmark = pytest.mark.postgres


def answer_to(cluster: Cluster, frame: bytes) -> str:
    """Return the text of safekeeper 1's refusal of a frame, or "" if it refuses nothing."""

    async def ask() -> str:
        reader, writer = await open_streams(("127.0.0.1", cluster.ports[0]))
        frames = FrameReader()
        try:
            writer.write(PREFACE + frame)
            while data := await asyncio.wait_for(reader.read(1 << 16), LIMIT_S):
                frames.buffer()[: len(data)] = data
                for message in frames.received(len(data)):
                    return message.text if isinstance(message, Reject) else ""
            return ""
        finally:
            writer.close()

    return asyncio.run(ask())


def refusal_of(cluster: Cluster, message: Message) -> str:
    return answer_to(cluster, b"".join(encode(message)))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def cluster(files: TlsFiles) -> Iterator[TlsCluster]:
    with PostgresServer.create() as server, TlsCluster.with_files(server, files) as made:
        yield made


def test_commits_wait_for_a_quorum_over_tls(cluster: TlsCluster) -> None:
    cluster.primary.sql("CREATE TABLE t AS SELECT generate_series(1, 1000) AS i")
    cluster.wait_all_equal()
    document = cluster.status()
    assert all(line["reachable"] for line in document["safekeepers"]), document
    assert "proposer" in cluster.command("status")


def test_a_killed_safekeeper_comes_back_over_tls(cluster: TlsCluster) -> None:
    cluster.safekeepers[0].kill()
    cluster.primary.sql("CREATE TABLE while_it_was_away AS SELECT generate_series(1, 5000) AS i")
    cluster.safekeepers[0].start()
    cluster.wait_all_equal()


def test_without_a_certificate_there_is_no_way_in(cluster: TlsCluster, files: TlsFiles) -> None:
    status = cluster.try_command("status")
    assert status.stdout.count("with a certificate only") >= 3, status
    assert cluster.status()["cluster"]["commit_lsn"]


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.ADMIN])
def test_a_role_may_send_what_the_table_gives_it_and_nothing_else(
    cluster: TlsCluster, files: TlsFiles, role: Role
) -> None:
    """Votes, appends, members and creation of S3 to S7, each by a peer with a wrong role."""
    name = "7" if role is Role.SAFEKEEPER else "eve"
    with speaking_as(files.path(role, name, cluster="main")):
        for kind, roles in MESSAGES.items():
            text = answer_to(cluster, FRAME_HEAD.pack(1 + 64, kind.TAG) + bytes(64))
            assert ("may not send" in text) is (role not in roles), (kind, text)


def test_a_proposer_of_another_cluster_reaches_nothing(
    cluster: TlsCluster, files: TlsFiles
) -> None:
    with speaking_as(files.path(Role.PROPOSER, "db2", cluster="other")):
        for message in (StatusRequest("main"), LogQuery("main"), MembersQuery("main"), GREETING):
            assert "may not reach cluster" in refusal_of(cluster, message)


def test_a_certificate_of_another_authority_reaches_nothing(
    cluster: TlsCluster, tmp_path: Path
) -> None:
    with speaking_as(TlsFiles(tmp_path).path(Role.ADMIN, "mallory")):
        document = cluster.status()
    errors = [line["error"] for line in document["safekeepers"]]
    assert all("not valid" in error for error in errors), errors


def test_a_safekeeper_with_the_file_of_another_one_does_not_start(
    cluster: TlsCluster, files: TlsFiles
) -> None:
    arguments = ("safekeeper", "--id", "3", "--data-dir", str(cluster.directory / "x"))
    done = walkeeper(
        *arguments, "--listen", "127.0.0.1:0", "--tls", files.path(Role.SAFEKEEPER, "2")
    )
    assert done.returncode == 1 and "is that of safekeeper 2" in done.stderr, done


def test_an_address_beyond_loopback_needs_no_flag_with_a_tls_file(
    cluster: TlsCluster, files: TlsFiles
) -> None:
    data_dir = cluster.directory / "strangers"
    arguments = ("safekeeper", "--id", "9", "--data-dir", str(data_dir), "--listen", "0.0.0.0:0")
    daemon = Daemon(
        "strangers",
        (*arguments, "--tls", files.path(Role.SAFEKEEPER, "9")),
        cluster.directory / "strangers.log",
    )
    try:
        daemon.start()
        assert "no authentication" not in daemon.output()
        assert daemon.terminate() == 0
    finally:
        daemon.kill()


def test_what_crosses_the_wire_shows_no_wal(cluster: TlsCluster, files: TlsFiles) -> None:
    """A recorder stands before each safekeeper, and sees the row of no commit."""
    marker = "a row that nobody else may read, " * 40
    with Recorders(cluster.ports) as recorders:
        cluster.proposer.terminate()
        addresses = ",".join(f"127.0.0.1:{port}" for port in recorders.ports)
        proposer = cluster.new_proposer("recorded")
        proposer.arguments = tuple(
            addresses if word == cluster.addresses else word for word in proposer.arguments
        )
        proposer.start()
        cluster.primary.sql(
            f"CREATE TABLE secret AS SELECT '{marker}' AS row FROM generate_series(1, 100)"
        )
        cluster.wait_all_equal()
        seen = recorders.seen()
        proposer.terminate()
        cluster.proposer.start()
    assert sum(map(len, seen)) > 100 * len(marker)
    for data in seen:
        assert data and marker[:32].encode() not in data and PREFACE not in data
    wal = b"".join(path.read_bytes() for path in cluster.wal_dir(1).iterdir() if path.is_file())
    assert marker.encode() in wal
