"""The primary and one safekeeper are destroyed under load; a standby takes over without loss."""

from __future__ import annotations

import asyncio
import shutil

from walkeeper_common.lsn import Lsn
from walkeeper_lab.demo.load import INSERT
from walkeeper_lab.demo.stage import CLUSTER, READY_S, Stage
from walkeeper_lab.demo.step import Step, require
from walkeeper_lab.local.daemons import data_directory
from walkeeper_proposer.settling import settle

LOST, SOURCE = 1, 3
# Both are null at first, on a standby that has not yet received or replayed anything.
REACHED = "SELECT greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn(), '0/0')::text"
PROMOTE = "SELECT pg_promote(true, 60)"
AFTERWARDS = -1_000_000


async def run(stage: Stage) -> str:
    since_s = stage.load.now_s()
    await stage.let_it_run(0.2)
    await stage.until_acknowledged(1, since_s)
    destroyed_s = stage.load.now_s()
    await stage.primary.destroy()
    await stage.proposer.kill()
    await stage.safekeepers[LOST].kill()
    await asyncio.to_thread(shutil.rmtree, data_directory(stage.directory, LOST))
    await stage.stop_load()
    settled = await settle(stage.addresses, CLUSTER, seal=True, timeout_s=READY_S)
    standby = stage.standby
    # Its base backup came from an attached primary, but no proposer is left to acknowledge.
    standby.configure({**stage.standby_settings(SOURCE), "synchronous_standby_names": ""})
    await standby.start()

    async def has_everything() -> bool:
        return Lsn.parse(str(await standby.value(REACHED))) >= settled.consensus_lsn

    await stage.until(f"the standby has the WAL up to {settled.consensus_lsn}", has_everything)
    require(bool(await standby.value(PROMOTE)), "pg_promote() gave up after 60 s")
    connection = await standby.connect()
    try:
        await connection.execute(INSERT, AFTERWARDS)
    finally:
        await connection.close()
    open_s = stage.load.now_s() - destroyed_s
    lost, rows = await stage.load.lost_in(standby)
    promised = len(stage.load.acknowledged)
    require(lost == 0, f"{lost} of {promised} acknowledged rows are lost")
    return (
        f"{promised:,} of {promised:,} acknowledged rows found among {rows:,}; settled at "
        f"{settled.consensus_lsn}, open for writes {open_s:.1f} s after the loss"
    )


STEP = Step(
    "The primary is destroyed, and a safekeeper with it",
    "Every acknowledged row is found again from the two safekeepers that are left",
    run,
)
