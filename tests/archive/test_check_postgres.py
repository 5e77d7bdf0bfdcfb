"""`walkeeper check` on a real installation: a marker is followed to the archive and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.archive.archiving_cluster import FAST_TAIL, ArchivingCluster
from tests.support.postgres_server import PostgresServer
from tests.support.standbys import standby_of
from tests.support.waiting import wait_until

GRADES = ("OK", "WARNING", "FAILED")
# The verdict on these depends on the machine of the test, so the test looks for the fact alone.
# tests/cli/test_check.py has the verdict for each fact.
FACTS_OF_THE_HOST = {"disk space": " free", "fdatasync": " ms"}
pytestmark = pytest.mark.postgres


def checked(cluster: ArchivingCluster, *options: str) -> tuple[int, dict[str, dict[str, Any]]]:
    done = cluster.try_command("check", "--json", *options)
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)
    assert found["exit_code"] == done.returncode
    worst_first = sorted(found["checks"], key=lambda each: GRADES.index(each["state"]))
    return done.returncode, {each["check"]: each for each in worst_first}


def test_a_marker_is_followed_to_the_disks_the_archive_and_back(tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    url = f"file://{tmp_path}/archive"
    with (
        PostgresServer.create(initdb_options=["--wal-segsize=1"]) as primary,
        ArchivingCluster.archiving(primary, url, *FAST_TAIL) as cluster,
    ):
        cluster.archive()
        all_is_well(cluster, url)
        with standby_of(primary, cluster.ports[0]) as standby:
            _, findings = checked(cluster, "--standby", standby.dsn())
            assert findings["ancestry"]["state"] == "OK", findings["ancestry"]
        one_is_away_and_the_primary_detached(cluster)
        no_quorum(cluster)


def all_is_well(cluster: ArchivingCluster, url: str) -> None:
    wait_until(lambda: all(each["free_bytes"] for each in cluster.status()["safekeepers"]))
    everything = ("--dsn", cluster.primary.dsn(), "--archive", url, "--archive-wait", "60s")
    code, findings = checked(cluster, *everything)
    wrong = {name: each for name, each in findings.items() if each["state"] != "OK"}
    assert wrong.keys() <= FACTS_OF_THE_HOST.keys(), wrong
    assert code == (GRADES.index("WARNING") if wrong else 0), wrong
    for name, fact in FACTS_OF_THE_HOST.items():
        assert fact in findings[name]["text"], findings[name]
    back = ("commit", "quorum", "archive", "restore", "restore, archive", "restorability")
    assert {findings[each]["state"] for each in back} == {"OK"}
    assert "the marker is in it" in findings["restore, archive"]["text"]


def one_is_away_and_the_primary_detached(cluster: ArchivingCluster) -> None:
    names = cluster.primary.sql("SHOW synchronous_standby_names")
    cluster.primary.sql("ALTER SYSTEM SET synchronous_standby_names = ''")
    cluster.primary.reload()
    cluster.safekeepers[0].kill()
    code, findings = checked(cluster, "--dsn", cluster.primary.dsn(), "--archive-wait", "0s")
    assert code >= 1 and findings["attached"]["state"] == "WARNING"
    assert findings["members"]["state"] == "WARNING"
    assert "docs/runbooks.md" in findings["members"]["remedy"]
    cluster.primary.sql(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
    cluster.primary.reload()


def no_quorum(cluster: ArchivingCluster) -> None:
    """Check without a quorum, and see that no session is left behind that waits."""
    cluster.safekeepers[1].kill()
    code, findings = checked(cluster, "--dsn", cluster.primary.dsn(), "--timeout", "2s")
    assert code == 2 and findings["commit"]["state"] == "FAILED"
    assert "a commit did not return within 2 s" in findings["commit"]["text"]
    assert findings["members"]["state"] == "FAILED"
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    wait_until(lambda: cluster.primary.sql(waiting) == 0)
