"""Certificates of a running cluster are revoked: the thief is out, and commits go on."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import walkeeper
from tests.support.journal import Journal
from tests.support.postgres_server import PostgresServer
from tests.support.tls_cluster import TlsCluster, speaking_as
from tests.support.waiting import wait_until
from tests.tls_files import TlsFiles
from walkeeper_common.access.identity import Role

pytestmark = pytest.mark.postgres


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return TlsFiles(tmp_path)


@pytest.fixture
def cluster(files: TlsFiles) -> Iterator[TlsCluster]:
    with PostgresServer.create() as server, TlsCluster.with_files(server, files) as made:
        yield made


def paths_of(files: TlsFiles) -> list[str]:
    """Return the files of all daemons and of this process."""
    return [
        *(files.path(Role.SAFEKEEPER, str(number)) for number in (1, 2, 3)),
        files.path(Role.PROPOSER, "db1", cluster="main"),
        files.path(Role.ADMIN, "alice"),
    ]


def revoke(cluster: TlsCluster, files: TlsFiles, *names: str) -> None:
    """Make the list, put it into each file, and let the daemons load it."""
    files.authority.revoke(names)
    for path in paths_of(files):
        files.authority.refresh(path)
    for daemon in (*cluster.safekeepers, cluster.proposer):
        daemon.signal(signal.SIGHUP)


def revoked_peers(cluster: TlsCluster) -> list[int]:
    return [each.output().count("reason=revoked") for each in cluster.safekeepers]


def test_stolen_files_are_revoked_under_load_and_no_commit_fails(
    cluster: TlsCluster, files: TlsFiles, tmp_path: Path
) -> None:
    """Their owners have new files before the list comes."""
    stolen = tmp_path / "stolen.pem"
    with Journal(cluster.primary) as journal:
        for role, name in ((Role.SAFEKEEPER, "3"), (Role.ADMIN, "alice")):
            path = files.path(role, name)
            stolen.touch(mode=0o600)
            stolen.write_text(Path(path).read_text())
            files.authority.renew(path)
            revoke(cluster, files, str(stolen))
            journal.wait_for_more(50)
            wait_until(lambda: all(each["reachable"] for each in cluster.status()["safekeepers"]))
        refused = walkeeper(
            "status", "--safekeepers", cluster.addresses, "--tls", str(stolen), "--json"
        )
        lines = json.loads(refused.stdout)["safekeepers"]
        assert all("admin/alice was revoked" in line["error"] for line in lines), refused
        wait_until(lambda: all(count >= 1 for count in revoked_peers(cluster)))
    assert cluster.proposer.is_running


def test_a_proposer_whose_certificate_is_revoked_is_out_until_it_has_a_new_one(
    cluster: TlsCluster, files: TlsFiles
) -> None:
    own = files.path(Role.PROPOSER, "db1", cluster="main")
    revoke(cluster, files, "proposer/db1")
    wait_until(lambda: all(count >= 1 for count in revoked_peers(cluster)))
    line = next(line for line in cluster.safekeepers[0].output().splitlines() if "revoked" in line)
    assert "identity=db1 how=certificate" in line, line
    wait_until(lambda: "proposer/db1 was revoked" in cluster.proposer.output())
    files.authority.renew(own)
    assert cluster.proposer.is_running
    cluster.primary.sql("CREATE TABLE after_the_renewal AS SELECT 1 AS i")
    with speaking_as(files.path(Role.ADMIN, "alice")):
        cluster.wait_all_equal()
