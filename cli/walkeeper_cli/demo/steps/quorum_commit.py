"""COMMIT returns when two of three safekeepers have it on disk, and not before."""

from __future__ import annotations

from walkeeper_cli.demo.load import INSERT, WRITERS, median_ms
from walkeeper_cli.demo.stage import PROPOSER, Stage
from walkeeper_cli.demo.step import Step, require
from walkeeper_common.lsn import Lsn

EXAMINED = 20
QUORUM = 2
SYNC_STATE = "SELECT sync_state FROM pg_stat_replication WHERE application_name = $1"


async def run(stage: Stage) -> str:
    since_s = stage.load.now_s()
    stage.start_load()
    await stage.until_acknowledged(WRITERS, since_s)
    sync_state = await stage.primary.value(SYNC_STATE, PROPOSER)
    require(sync_state == "sync", f"the primary calls its proposer {sync_state}, not sync")
    on_disk = [await _examined(stage, -number) for number in range(1, EXAMINED + 1)]
    require(min(on_disk) >= QUORUM, f"a commit returned that was on {min(on_disk)} safekeepers")
    await stage.let_it_run(0.25)
    entries, seconds = stage.load.since(since_s), stage.load.now_s() - since_s
    return (
        f"{EXAMINED} of {EXAMINED} examined at their return; {len(entries):,} commits, "
        f"{len(entries) / seconds:,.0f} a second with {WRITERS} writers, median "
        f"{median_ms(entries):.1f} ms"
    )


async def _examined(stage: Stage, new_id: int) -> int:
    """Commit a row and return how many safekeepers have its WAL when the COMMIT returns."""
    connection = await stage.primary.connect()
    try:
        async with connection.transaction():
            await connection.execute(INSERT, new_id)
            wal = Lsn.parse(await connection.fetchval("SELECT pg_current_wal_insert_lsn()::text"))
        flush_lsns = await stage.flush_lsns()
    finally:
        await connection.close()
    return sum(flush_lsn > wal for flush_lsn in flush_lsns.values())  # the COMMIT record follows


STEP = Step(
    "Commits wait for a quorum",
    "A COMMIT that has returned is on the disks of at least two of three safekeepers",
    run,
)
