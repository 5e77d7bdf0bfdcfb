"""Only the primary knows if commits wait for a proposer: the proposer says it, too."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.support.cluster import Cluster, walkeeper
from tests.support.waiting import until, wait_until
from walkeeper_lab.local.tcp_ports import free_port
from walkeeper_proposer.postgres import sync_state
from walkeeper_proposer.postgres.sync_state import SyncState

pytestmark = pytest.mark.postgres


def asked(dsn: str, steps: list[tuple[Callable[[], object], str | None, bool | None]]) -> None:
    """Do each step, and then check the state that is seen of the primary."""

    async def run() -> None:
        state = SyncState(dsn, "walkeeper")
        watching = asyncio.create_task(state.watch())

        async def seen(value: str | None) -> None:
            await until(lambda: state.value == value)

        for step, value, is_waited_for in steps:
            await asyncio.to_thread(step)
            await seen(value)
            assert state.is_waited_for is is_waited_for
        watching.cancel()

    asyncio.run(run())


def test_it_is_seen_that_commits_do_not_wait_any_more(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_state, "ASK_S", 0.1)
    dsn = cluster.primary.dsn()
    any_of = "ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (walkeeper)'"
    behind = "ALTER SYSTEM SET synchronous_standby_names = 'FIRST 1 (other, walkeeper)'"

    def set_to(command: str) -> Callable[[], object]:
        def change() -> None:
            cluster.primary.sql(command)
            cluster.primary.reload()

        return change

    asked(
        dsn,
        [
            (lambda: None, "sync", True),
            (set_to(any_of), "quorum", True),
            (lambda: walkeeper("detach", "--dsn", dsn), "async", False),
            (set_to(behind), "sync", True),  # while that other one is not there
            (cluster.proposer.kill, "absent", None),
            (cluster.primary.stop, None, None),
        ],
    )


def test_a_proposer_says_so_over_http(cluster: Cluster) -> None:
    address = f"127.0.0.1:{free_port()}"
    cluster.proposer.kill()
    cluster.proposer.start("--http", address)

    def is_said(value: str) -> bool:
        with urlopen(f"http://{address}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        return f'walkeeper_proposer_synchronous{{cluster="main"}} {value}' in text

    wait_until(lambda: is_said("1.0"))
    with urlopen(f"http://{address}/status", timeout=10) as answer:
        assert json.load(answer)["sync_state"] == "sync"
    with urlopen(f"http://{address}/ready", timeout=10) as answer:
        assert answer.status == 200
    for safekeeper in cluster.safekeepers[:2]:
        safekeeper.kill()
    wait_until(lambda: "commits hang: 1 of 2 safekeepers" in unready(address))
    with urlopen(f"http://{address}/metrics", timeout=10) as answer:
        assert 'walkeeper_proposer_quorum{cluster="main"} 0.0' in answer.read().decode()
    wait_until(lambda: "ERROR:  commits hang: 1 of the 2 safekeepers" in cluster.proposer.output())
    assert f"safekeeper 1 at 127.0.0.1:{cluster.ports[0]} is not" in cluster.proposer.output()
    cluster.safekeepers[0].start()
    wait_until(lambda: "LOG:  commits go on after" in cluster.proposer.output())
    assert f"safekeeper 1 at 127.0.0.1:{cluster.ports[0]} is att" in cluster.proposer.output()


def test_status_knows_that_the_primary_is_detached_or_dead(cluster: Cluster) -> None:
    """No option names the primary: the proposer reports it to the safekeepers."""

    def check() -> tuple[int, str]:
        done = cluster.try_command("status", "--check")
        return done.returncode, done.stdout

    dsn = cluster.primary.dsn()
    wait_until(lambda: "streaming, sync since" in cluster.command("status"))
    assert check() == (0, "ok: every safekeeper has what is committed\n")
    cluster.primary.sql("CREATE ROLE sees_no_state LOGIN")
    hidden = cluster.try_command("status", "--check", "--dsn", f"{dsn} user=sees_no_state")
    assert hidden.returncode == 0, "the proposer reports that the primary streams"
    wrong = cluster.try_command("status", "--check", "--dsn", f"{dsn} user=nobody")
    assert wrong.returncode == 1 and 'role "nobody" does not exist' in wrong.stdout, wrong.stdout
    assert "the proposer has no connection" not in wrong.stdout
    walkeeper("detach", "--dsn", dsn)
    wait_until(lambda: check()[0] == 1)
    assert "no commit waits for the quorum: the proposer is async" in check()[1]
    asked = cluster.try_command("status", "--check", "--dsn", dsn)
    assert asked.returncode == 1 and "the proposer is async" in asked.stdout
    cluster.primary.kill()
    wait_until(lambda: check()[0] == 2)
    assert "the proposer has no connection to the primary" in check()[1]
    document = cluster.status()
    assert document["reasons"][0]["code"] == "primary_down"
    assert document["reasons"][0]["since"] and document["verdict"]["exit_code"] == 2


def unready(address: str) -> str:
    try:
        with urlopen(f"http://{address}/ready", timeout=10):
            return ""
    except HTTPError as error:
        assert error.code == 503
        return error.read().decode()
