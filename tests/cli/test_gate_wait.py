"""`walkeeper gate` waits without a limit, and goes on with a server that is closed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.crashed_primary import gets_in
from tests.support.postgres_server import PostgresServer
from tests.support.waiting import wait_until
from walkeeper_admin import closed_start
from walkeeper_admin.closed_start import GateSettings, close, reopen, start_closed
from walkeeper_admin.primarys_answer import asked_primary
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
            asyncio.run(closed_start.wait_durable(primary.dsn(), primary.data, say))
        assert len(said) >= 3


@pytest.mark.postgres
def test_a_server_that_runs_is_taken_for_closed_only_if_its_rules_are_in_force() -> None:
    """A killed command left a server that the same command refused, and that a stop waits for."""
    with PostgresServer.create() as primary:
        primary.sql("CREATE ROLE reader LOGIN")
        hba = primary.data / "pg_hba.conf"
        roles = (primary.sql("SELECT current_user"),)
        settings = GateSettings(primary.data, primary.dsn(), roles, ("false",), timeout_s=5.0)

        def refused() -> str:
            with pytest.raises(Refused) as error:
                asyncio.run(start_closed(settings, say=lambda _: None))
            return str(error.value)

        assert "clients may be connected: stop it first" in refused()
        close(hba, roles)
        assert "has not loaded" in refused()
        with primary.connect(user="reader"):
            primary.reload()
            wait_until(lambda: not gets_in(primary))
            assert "reader is connected still" in refused()
        wait_until(lambda: "synchronous_standby_names is empty" in refused())
        assert closed_text(hba) and reopen(hba)
        assert "clients may be connected: stop it first" in refused()


@pytest.mark.postgres
def test_a_server_tells_that_its_rules_are_closed() -> None:
    """`status` saw a closed server only behind --exec."""
    with PostgresServer.create() as primary:
        primary.sql("CREATE ROLE watch LOGIN", "CREATE ROLE waiter LOGIN")
        roles = (primary.sql("SELECT current_user"), "watch")
        hba = primary.data / "pg_hba.conf"

        def seen() -> tuple[str | None, str | None]:
            """Return what a superuser and another role see."""
            dsns = (primary.dsn(), primary.dsn(user="watch"))
            first, second = (asyncio.run(asked_primary(dsn, None, None))["gate"] for dsn in dsns)
            return first, second

        with primary.connect(user="waiter") as session:
            session.execute("SET application_name = walkeeper_gate")
            assert seen() == (None, None), "no superuser's session"
        close(hba, roles)
        assert seen() == ("closed", None)
        primary.sql("ALTER SYSTEM SET synchronous_standby_names = 'FIRST 1 (walkeeper)'")
        primary.reload()
        wait_until(lambda: primary.sql("SHOW synchronous_standby_names"))

        async def waits() -> None:
            waiting = asyncio.create_task(
                closed_start.wait_durable(primary.dsn(), primary.data, print)
            )
            await asyncio.to_thread(wait_until, lambda: seen() == ("closed", "closed"))
            waiting.cancel()
            await asyncio.wait([waiting])

        asyncio.run(waits())
        wait_until(lambda: seen() == ("closed", None))
        assert reopen(hba) and seen() == (None, None)


def closed_text(hba: Path) -> bool:
    return "walkeeper gate: closed to all roles" in hba.read_text()


@pytest.mark.parametrize(
    ("name", "remedy"), [("missing", "--hba-file"), ("missing/pg_hba.conf", "name the data")]
)
def test_a_missing_file_is_no_question_of_rights(tmp_path: Path, name: str, remedy: str) -> None:
    """Debian has pg_hba.conf in /etc: the remedy was to run as the server's user."""
    with pytest.raises(Refused, match=remedy) as refused:
        close(tmp_path / name, ("postgres",))
    assert "run as the server's user" not in str(refused.value)
