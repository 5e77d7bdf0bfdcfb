"""The same of PostgreSQL 13, 14, 16, 17 and 18, digit for digit where there is a pg_waldump.

Without one, every record up to the shutdown checkpoint is checked by CRC and prev-link.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.history.reading_whole import unexpected, whole_stats
from tests.history.seeded_wal import make_wal
from tests.history.waldump import one_timeline, stats_text
from tests.history.workload import SETTINGS
from tests.support.installations import NPM_PACKAGES, WHEELS, binaries_or_skip, versions
from tests.support.postgres_server import PostgresServer, installation, server_environment
from tests.support.seeds import drawn_seed
from walkeeper_common.lsn import Lsn
from walkeeper_history.rows.stats import format_stats

pytestmark = pytest.mark.postgres


@dataclass(frozen=True)
class Made:
    major: int
    wal: Path
    absent: list[str]
    waldump: Path
    environment: dict[str, str]


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest) -> Iterator[Made]:
    seed = drawn_seed()
    programs = binaries_or_skip(request.param)
    with (
        installation(programs),
        PostgresServer.create(SETTINGS, initdb_options=["--wal-segsize=1"]) as server,
    ):
        absent = make_wal(server, seed, scale=1200)
        sys.stderr.write(f"PostgreSQL {request.param} cannot: {absent}\n")
        environment = server_environment()
        wal = server.data / "pg_wal"
        yield Made(request.param, wal, absent, programs / "pg_waldump", environment)


@pytest.mark.parametrize("made", versions(WHEELS), indirect=True)
def test_stats_are_those_of_this_versions_pg_waldump(made: Made, tmp_path: Path) -> None:
    for by_record in (False, True):
        stats, plan, problems = whole_stats(made.wal)
        assert not unexpected(problems)
        rows = stats.by_record() if by_record else stats.by_rmgr()
        chosen = [(segment.name, made.wal / segment.path) for segment in plan.segments]
        directory = one_timeline(tmp_path / f"{by_record}", chosen, plan.timeline)
        expected = stats_text(
            str(made.waldump), directory, by_record=by_record, environment=made.environment
        )
        assert list(format_stats(stats, rows)) == expected.splitlines()


@pytest.mark.parametrize("made", versions([*WHEELS, *NPM_PACKAGES]), indirect=True)
def test_every_record_is_known_and_right(made: Made) -> None:
    stats, plan, problems = whole_stats(made.wal)
    assert not unexpected(problems)
    names = {row.name for row in stats.by_record()}
    assert not [name for name in names if "UNKNOWN" in name]
    assert {"XLOG/OVERWRITE_CONTRECORD", "XLOG/CHECKPOINT_SHUTDOWN", "Heap/INSERT"} <= names
    assert plan.timeline == 2
    # The chain of prev-links reaches the shutdown checkpoint, whose place the server wrote down.
    control = (made.wal.parent / "global" / "pg_control").read_bytes()
    checkpoint = Lsn(int.from_bytes(control[32:40], "little"))
    last, _, _ = whole_stats(made.wal, start_lsn=checkpoint)
    assert [row.name for row in last.by_record()] == ["XLOG/CHECKPOINT_SHUTDOWN"]
    assert (last.start_lsn, last.end_lsn) == (checkpoint, stats.end_lsn)
    assert whole_stats(made.wal, engine="numpy")[0].sums == stats.sums
