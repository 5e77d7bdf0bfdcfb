"""`attach` makes the slot that keeps telling records (docs/protocol.md R22), `detach` drops it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.attach_stage import Walkeeper, proposer, walkeeper
from tests.support.postgres_server import PostgresServer
from walkeeper_admin.primary import retention_slots

pytestmark = pytest.mark.postgres

__all__ = ["walkeeper"]  # a fixture

KEEPS = "SELECT pg_create_physical_replication_slot('walkeeper_retention', true)"
SLOTS = "SELECT string_agg(slot_name, ' ') FROM pg_replication_slots"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresServer]:
    monkeypatch.setattr(retention_slots, "MADE_WITHIN_S", 0.2)
    with PostgresServer.create() as made:
        yield made


def test_attach_says_nothing_of_a_proposer_that_keeps_what_tells(
    server: PostgresServer, walkeeper: Walkeeper
) -> None:
    server.sql(KEEPS)
    with proposer(server):
        done = walkeeper("attach", "--dsn", server.dsn(), "--timeout", "10s")
    assert done.code == 0, done.err
    assert "_retention" not in done.err


def test_detach_drops_it_with_the_proposers_slot_and_after_it(
    server: PostgresServer, walkeeper: Walkeeper
) -> None:
    server.sql(KEEPS, "SELECT pg_create_physical_replication_slot('walkeeper', true)")
    server.sql("SELECT pg_create_physical_replication_slot('of_another_retention', true)")
    done = walkeeper("detach", "--dsn", server.dsn())
    assert "slot walkeeper_retention stays" in done.out + done.err
    server.sql("SELECT pg_drop_replication_slot('walkeeper')")
    done = walkeeper("detach", "--dsn", server.dsn(), "--drop-slot")
    assert "dropped slot walkeeper_retention" in done.out + done.err
    assert server.sql(SLOTS) == "of_another_retention"
