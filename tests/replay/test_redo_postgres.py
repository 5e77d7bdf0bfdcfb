"""Redo makes the pages that PostgreSQL made: its own consistency checking says so, 13 to 18."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.installations import NPM_PACKAGES, WHEELS, Unavailable, binaries
from tests.postgres_server import PostgresServer, installation
from tests.replay.workload import SETTINGS, fill
from walkeeper_history.plan import make_plan
from walkeeper_history.reading import SegmentReader
from walkeeper_history.wal_files import open_files
from walkeeper_replay.consistency import Checked, ConsistencyCheck

pytestmark = pytest.mark.postgres
DEBIANS = 15
# What this workload must have made, by the names of every version.
EXPECTED = {
    "INSERT", "INSERT+INIT", "DELETE", "UPDATE", "HOT_UPDATE", "LOCK", "MULTI_INSERT",
    "MULTI_INSERT+INIT", "LOCK_UPDATED",
}  # fmt: skip


@dataclass(frozen=True)
class Made:
    major: int
    wal: Path


def drawn_seed() -> int:
    seed = int(os.environ.get("WAL_SEED") or random.SystemRandom().randrange(1_000_000))
    sys.stderr.write(f"WAL_SEED={seed}\n")
    return seed


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest) -> Iterator[Made]:
    with ExitStack() as stack:
        if request.param != DEBIANS:
            try:
                stack.enter_context(installation(binaries(request.param)))
            except Unavailable as error:
                pytest.skip(f"PostgreSQL {request.param}: {error}")
        server = stack.enter_context(
            PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"])
        )
        with server.connect(options="-c statement_timeout=120s") as connection:
            absent = fill(connection, drawn_seed(), 800)
        sys.stderr.write(f"PostgreSQL {request.param} cannot: {absent}\n")
        server.stop()
        yield Made(request.param, server.data / "pg_wal")


def checked(wal: Path) -> ConsistencyCheck:
    files = open_files(str(wal))
    plan, reader, check = make_plan(files), SegmentReader(files), ConsistencyCheck()
    for index in range(len(plan.segments)):
        for batch in reader.read(plan.reachable, index):
            check.add(batch)
    return check


@pytest.mark.parametrize("made", sorted([DEBIANS, *WHEELS, *NPM_PACKAGES]), indirect=True)
def test_every_heap_page_is_that_of_the_server(made: Made) -> None:
    check = checked(made.wal)
    rows = [row for row in check.rows() if row.name.partition("/")[0] != "XLOG"]
    total = sum(row.equal for row in rows)
    lines = [f"{row.name} {row.equal}" for row in rows if row.equal]
    sys.stderr.write(f"PostgreSQL {made.major}: {total} images equal: {', '.join(lines)}\n")
    wrong = [row for row in rows if row.different or row.not_redone]
    assert not wrong, f"{wrong}\n" + "\n".join(check.shown)
    names = {row.name for row in rows if row.equal}
    assert names >= EXPECTED, EXPECTED - names
    assert total > 10_000
    assert unknown(rows) < total / 1000


def unknown(rows: list[Checked]) -> int:
    """Images of pages that nothing before made known; with full_page_writes, next to none."""
    return sum(row.not_known for row in rows)
