"""`walkeeper logs` and `walkeeper slots` on real safekeepers."""

from __future__ import annotations

import asyncio
import json
import subprocess

import pytest

from tests.support.cluster import Cluster, walkeeper
from tests.support.postgres_server import program, server_environment
from tests.support.waiting import LIMIT_S, wait_until
from walkeeper_common.shell.safekeeper_links.safekeeper_client import ask
from walkeeper_common.wire.requests import LogQuery, LogState

pytestmark = pytest.mark.postgres


def command(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    group, name, *rest = words
    return walkeeper(group, name, "--safekeepers", cluster.addresses, *rest)


def make_slot(cluster: Cluster, name: str, port: int) -> None:
    where = ["-h", "127.0.0.1", "-p", str(port), "-U", "postgres", "-D", str(cluster.directory)]
    words = [program("pg_receivewal"), *where, "--create-slot", "--slot", name]
    subprocess.run(words, check=True, env=server_environment(), capture_output=True)


def test_slots_are_listed_and_dropped(cluster: Cluster) -> None:
    make_slot(cluster, "old", cluster.ports[0])
    everywhere = [["1", "old"], ["2", "old"], ["3", "old"]]

    def shown() -> list[list[str]]:
        lines = command(cluster, "slots", "ls").stdout.splitlines()
        return [line.split()[:2] for line in lines[1:]]

    wait_until(lambda: shown() == everywhere)
    cluster.safekeepers[2].kill()
    done = command(cluster, "slots", "drop", "old")
    assert "safekeeper 1 at" in done.stdout and "dropped slot old" in done.stdout
    cluster.safekeepers[2].start()
    wait_until(lambda: shown() == [])
    answer = json.loads(command(cluster, "slots", "ls", "--json").stdout)
    assert answer == {"1": [], "2": [], "3": []}
    missing = command(cluster, "slots", "drop", "old")
    assert missing.returncode == 1 and "no safekeeper has a slot old" in missing.stderr


def test_a_dropped_log_is_gone_for_good_and_its_name_is_free(cluster: Cluster) -> None:
    def shown(*words: str) -> str:
        return walkeeper("logs", *words, "--safekeepers", cluster.addresses).stdout

    def columns(*words: str) -> list[list[str]]:
        return [line.split()[:3] for line in shown(*words).splitlines()]  # WAL and states go on

    assert columns() == [["name", "kind", "members"], ["main", "physical", "1,2,3"]]
    assert columns() == columns("ls")
    wait_until(lambda: "ok: every safekeeper has" in shown())
    used = command(cluster, "logs", "drop", "--yes", "main")
    assert used.returncode == 1 and "proposer walkeeper leads main: detach" in used.stderr
    log_uuid = uuid_of(cluster)
    walkeeper("detach", "--dsn", cluster.primary.dsn())
    cluster.proposer.terminate()
    wait_until(lambda: cluster.status()["cluster"]["proposer"] is None)
    cluster.safekeepers[2].kill()
    away = command(cluster, "logs", "drop", "--yes", "main")
    assert away.returncode == 1 and "would keep the log: start it first" in away.stderr
    cluster.safekeepers[2].start()
    done = command(cluster, "logs", "drop", "--yes", "main")
    assert done.returncode == 0 and done.stdout.count("dropped") == 3, done
    assert "--drop-slot --slot walkeeper" in done.stdout, "the slots keep WAL at the primary"
    assert not any(cluster.wal_dir(number).exists() for number in (1, 2, 3))
    cluster.safekeepers[0].kill()
    cluster.safekeepers[0].start()
    late = cluster.proposer
    late.start(wait=False)
    wait_until(lambda: "`walkeeper logs drop` took" in late.output() or not late.is_running)
    late.kill()
    assert not cluster.wal_dir(1).exists(), "a late proposer makes no log"
    walkeeper("detach", "--dsn", cluster.primary.dsn(), "--drop-slot")
    cluster.make_log()
    assert uuid_of(cluster) != log_uuid
    cluster.proposer.start()
    cluster.attach()
    cluster.wait_all_equal()


def uuid_of(cluster: Cluster) -> bytes:
    answer = asyncio.run(ask(("127.0.0.1", cluster.ports[0]), LogQuery("main"), LIMIT_S))
    assert isinstance(answer, LogState)
    return answer.log_uuid
