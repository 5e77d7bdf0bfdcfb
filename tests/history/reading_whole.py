"""Short forms for tests: a whole archive's statistics and problems in one call."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from walkeeper_history.rows.stats import Stats
from walkeeper_wal.sources.opening import open_files
from walkeeper_wal.sources.plan import Plan, Problem, make_plan
from walkeeper_wal.sources.reading import Reading
from walkeeper_wal.sources.threaded_reading import SweepOptions, sweep


def stats_of_segment(reading: Reading) -> Stats:
    stats = Stats()
    for batch in reading:
        stats.add_batch(batch)
    return stats


def unexpected(problems: Sequence[Problem]) -> list[Problem]:
    """Return problems other than segments that a server has prepared for WAL to come."""
    return [problem for problem in problems if "kept for WAL to come" not in problem.reason]


def whole_stats(
    directory: Path,
    *,
    engine: str = "auto",
    timeline: int | None = None,
    start_lsn: int | None = None,
    check_crc: bool = True,
) -> tuple[Stats, Plan, list[Problem]]:
    files = open_files(str(directory))
    plan = make_plan(files, timeline=timeline, start_lsn=start_lsn)
    problems: list[Problem] = []
    total = Stats()
    options = SweepOptions(engine_name=engine, check_crc=check_crc, threads=1)
    for stats, _ in sweep(
        files, plan, stats_of_segment, on_problem=problems.append, options=options
    ):
        total.add(stats)
    return total, plan, problems
