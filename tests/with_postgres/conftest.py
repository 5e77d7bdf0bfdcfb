"""Fixtures of the tests on a real PostgreSQL."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator

import pytest

from tests.support.cluster import Cluster
from tests.support.installations import binaries
from tests.support.postgres_server import PostgresServer, installation

Figure = Callable[[str, float], None]
MAJOR = os.environ.get("WALKEEPER_TEST_POSTGRES")


@pytest.fixture(scope="session", autouse=True)
def another_version() -> Iterator[None]:
    """WALKEEPER_TEST_POSTGRES=18: all of these tests on a server from a package (installations)."""
    if MAJOR is None:
        yield
        return
    with installation(binaries(int(MAJOR))):
        yield


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    """Small segments, so that a short load crosses many of their ends."""
    with PostgresServer.create(initdb_options=["--wal-segsize=1"]) as server:
        yield server


@pytest.fixture
def cluster(primary: PostgresServer) -> Iterator[Cluster]:
    with Cluster.create(primary) as made:
        yield made


@pytest.fixture
def figure(
    record_property: Callable[[str, object], None],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Figure:
    """Records a measurement: in pytest's report, and in `figures.jsonl` of its base directory."""
    file = tmp_path_factory.getbasetemp() / "figures.jsonl"

    def record(name: str, value: float) -> None:
        record_property(name, value)
        with file.open("a") as figures:
            line = {"test": request.node.name, "figure": name, "value": round(value, 4)}
            figures.write(json.dumps(line) + "\n")

    return record
