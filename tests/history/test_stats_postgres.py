"""`stats` is pg_waldump --stats, digit for digit, on WAL that a real server makes anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.history.engines_here import engines_here
from tests.history.reading_whole import unexpected, whole_stats
from tests.history.seeded_wal import make_wal
from tests.history.waldump import one_timeline, stats_text
from tests.history.workload import SETTINGS
from tests.support.postgres_server import PostgresServer, program, server_environment
from tests.support.seeds import drawn_seed
from walkeeper_history.rows.stats import format_stats
from walkeeper_wal.sources.plan import Plan

pytestmark = pytest.mark.postgres

# Kinds that the workload is there for; one of each family that a decoder can get wrong.
MUST_OCCUR = (
    "XLOG/SWITCH", "XLOG/FPI", "XLOG/OVERWRITE_CONTRECORD",
    "Transaction/COMMIT_PREPARED", "Transaction/ABORT_PREPARED", "Transaction/INVALIDATION",
    "Database/CREATE_WAL_LOG", "Heap2/MULTI_INSERT+INIT", "Heap2/FREEZE_PAGE", "Heap/HOT_UPDATE",
    "Btree/SPLIT_R", "Hash/SPLIT_ALLOCATE_PAGE", "Gin/VACUUM_PAGE", "Gist/PAGE_SPLIT",
    "SPGist/PICKSPLIT", "BRIN/DESUMMARIZE", "Sequence/LOG", "LogicalMessage/MESSAGE",
    "Generic/Generic", "ReplicationOrigin/DROP", "MultiXact/CREATE_ID", "Standby/LOCK",
)  # fmt: skip
SINCE_17 = {"Heap2/FREEZE_PAGE": "Heap2/PRUNE_VACUUM_SCAN"}


@pytest.fixture(scope="module", params=["1", "16"], ids=["1 MB segments", "16 MB segments"])
def wal(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the pg_wal of a stopped server with seeded work in it."""
    seed = drawn_seed()
    with PostgresServer.create(
        SETTINGS, initdb_options=[f"--wal-segsize={request.param}"]
    ) as server:
        absent = make_wal(server, seed)
        assert not absent, f"Debian's server has everything: {absent}"
        yield server.data / "pg_wal"


def oracle_text(plan: Plan, wal: Path, into: Path, *, by_record: bool) -> list[str]:
    chosen = [(segment.name, wal / segment.path) for segment in plan.segments]
    directory = one_timeline(into, chosen, plan.timeline)
    text = stats_text(
        program("pg_waldump"), directory, by_record=by_record, environment=server_environment()
    )
    return text.splitlines()


@pytest.mark.parametrize("engine", engines_here())
@pytest.mark.parametrize("by_record", [False, True], ids=["rmgr", "record"])
def test_stats_are_those_of_pg_waldump(
    wal: Path, tmp_path: Path, engine: str, by_record: bool
) -> None:
    stats, plan, problems = whole_stats(wal, engine=engine)
    rows = stats.by_record() if by_record else stats.by_rmgr()
    assert not unexpected(problems)
    expected = oracle_text(plan, wal, tmp_path / "one", by_record=by_record)
    assert list(format_stats(stats, rows)) == expected


def test_the_workload_has_what_it_is_there_for(wal: Path) -> None:
    stats, _, _ = whole_stats(wal)
    seen = {row.name for row in stats.by_record()}
    missing = {name for name in MUST_OCCUR if not seen & {name, SINCE_17.get(name)}}
    assert not missing
    assert not [name for name in seen if "UNKNOWN" in name]


def test_an_older_timeline_can_be_asked_for(wal: Path, tmp_path: Path) -> None:
    stats, plan, problems = whole_stats(wal, timeline=1)
    assert not [problem for problem in problems if problem.fatal]
    assert {segment.timeline for segment in plan.segments} == {1}
    expected = oracle_text(plan, wal, tmp_path / "one", by_record=False)
    assert list(format_stats(stats, stats.by_rmgr())) == expected
