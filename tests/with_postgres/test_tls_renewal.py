"""TLS files change while a cluster commits: renewed, of another authority, revoked.

No commit fails. Only the owner of a revoked certificate is out, until it has a new one.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.cluster import Daemon, walkeeper
from tests.support.journal import Journal
from tests.support.postgres_server import PostgresServer
from tests.support.tls_cluster import TlsCluster, speaking_as
from tests.support.waiting import wait_until
from tests.tls_files import NOW, TlsFiles
from walkeeper_cli.certs.authority import CA_CERTIFICATE, Authority, show
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


def has_loaded(daemon: Daemon) -> bool:
    return "loaded the TLS file" in daemon.output()


def replaced(path: str, content: str) -> None:
    """Replace a TLS file in one step, as `certs renew` does."""
    new = Path(f"{path}.new")
    new.touch(mode=0o600)
    new.write_text(content)
    new.replace(path)


def test_files_and_the_authority_change_under_load_and_no_commit_fails(
    cluster: TlsCluster, files: TlsFiles, tmp_path: Path
) -> None:
    """Renewed files come first, then a second authority beside the first one, then it alone."""
    daemons = [*cluster.safekeepers, cluster.proposer]
    paths = paths_of(files)
    authority = Authority.create(str(tmp_path / "new"), NOW)
    new_ca = (tmp_path / "new" / CA_CERTIFICATE).read_text()

    def renewed(path: str) -> None:
        files.authority.renew(path)

    def with_both(path: str) -> None:
        replaced(path, Path(path).read_text() + new_ca)

    def issued_by_the_new(path: str) -> None:
        old, old_ca = show(path), Path(path).read_text().split("-----BEGIN CERTIFICATE")[2]
        authority.issue(path, old.uris, old.hosts)
        replaced(path, f"{Path(path).read_text()}-----BEGIN CERTIFICATE{old_ca}")

    def without_the_old(path: str) -> None:
        replaced(path, Path(path).read_text().rpartition("-----BEGIN CERTIFICATE")[0])

    with Journal(cluster.primary) as journal:
        for change in (renewed, with_both, issued_by_the_new, without_the_old):
            for path in paths:
                change(path)
            for daemon in daemons:
                daemon.signal(signal.SIGHUP)
                if change is renewed:  # the log holds the same line back from the fourth time on
                    wait_until(partial(has_loaded, daemon))
            journal.wait_for_more(50)
            wait_until(lambda: all(each["reachable"] for each in cluster.status()["safekeepers"]))
    assert "lost the connection" not in cluster.proposer.output()
    with speaking_as(files.path(Role.MONITOR, "of_the_old_authority")):
        wait_until(lambda: all("not valid" in (line["error"] or "")
                               for line in cluster.status()["safekeepers"]))  # fmt: skip


def test_a_broken_file_leaves_the_old_one_in_force(cluster: TlsCluster, files: TlsFiles) -> None:
    path, safekeeper = files.path(Role.SAFEKEEPER, "1"), cluster.safekeepers[0]
    content = Path(path).read_text()
    replaced(path, "broken")
    safekeeper.signal(signal.SIGHUP)
    wait_until(lambda: "stays in use" in safekeeper.output())
    assert all(line["reachable"] for line in cluster.status()["safekeepers"])
    replaced(path, content)


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
