"""`walkeeper gate` waits for the quorum without a limit; the proposer may start at any time."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.postgres_server import PostgresServer
from tests.support.waiting import wait_until
from walkeeper_admin import closed_start
from walkeeper_common.errors import Refused
from walkeeper_proposer.postgres import primary_sql


@pytest.mark.postgres
def test_the_wait_for_the_quorum_outlives_the_limit_of_a_statement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The command ended after 10 s, though the proposer may start at any time."""
    monkeypatch.setattr(primary_sql, "STATEMENT_TIMEOUT_S", 0.5)
    monkeypatch.setattr(closed_start, "SAY_EVERY_S", 0.4)
    with PostgresServer.create() as primary:
        said: list[str] = []

        def wait_for(names: str) -> None:
            primary.sql(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
            primary.reload()
            wait_until(lambda: primary.sql("SHOW synchronous_standby_names") == names)

        def say(line: str) -> None:
            said.append(line)
            if len(said) == 3:
                wait_for("")

        wait_for("FIRST 1 (walkeeper)")
        with pytest.raises(Refused, match="synchronous_standby_names is empty now"):
            asyncio.run(closed_start.wait_durable(primary.dsn(), say))
        assert len(said) >= 3
