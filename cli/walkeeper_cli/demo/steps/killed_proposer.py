"""The proposer is killed under load: commits wait, and return when another proposer leads."""

from __future__ import annotations

from walkeeper_cli.demo.load import WRITERS
from walkeeper_cli.demo.stage import PROPOSER, READY_S, Stage
from walkeeper_cli.demo.step import Step, require

CONNECTED = "SELECT count(*) FROM pg_stat_replication WHERE application_name = $1"
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


async def run(stage: Stage) -> str:
    await stage.proposer.kill()

    async def gone() -> bool:
        return await stage.primary.value(CONNECTED, PROPOSER) == 0

    async def all_wait() -> bool:
        return await stage.primary.value(WAITING) == WRITERS

    await stage.until("the primary notices that its proposer is gone", gone)
    await stage.until("every writer waits for the quorum", all_wait)
    since_s, before = stage.load.now_s(), len(stage.load.acknowledged)
    await stage.let_it_run(0.1)
    alone_s = stage.load.now_s() - since_s
    promised = len(stage.load.acknowledged) - before
    require(promised == 0, f"{promised} commits returned without a quorum")
    started_s = stage.load.now_s()
    await stage.proposer.start(READY_S)

    async def returned() -> bool:
        return len(stage.load.acknowledged) > before

    await stage.until("commits return again", returned)
    resumed_s = stage.load.acknowledged[before].returned_s - started_s
    await stage.until_acknowledged(WRITERS, started_s)
    await stage.let_it_run(0.1)
    lost, _ = await stage.load.lost_in(stage.primary)
    require(lost == 0, f"{lost} acknowledged rows are not on the primary")
    return (
        f"no commit returned in {alone_s:.1f} s while {WRITERS} waited; the first one "
        f"{resumed_s:.1f} s after another proposer was started"
    )


STEP = Step(
    "The proposer is killed",
    "Without a proposer no COMMIT is promised anything, and another one takes over",
    run,
)
