"""One safekeeper is killed under load and started again."""

from __future__ import annotations

from walkeeper_lab.demo.stage import READY_S, Stage
from walkeeper_lab.demo.step import Step, require

VICTIM = 2
COMMITS_MIN = 20
GAP_MAX_S = 5.0
MISSING = "SELECT count(*) FROM unnest($1::bigint[]) i WHERE i NOT IN (SELECT id FROM demo)"


async def run(stage: Stage) -> str:
    safekeeper = stage.safekeepers[VICTIM]
    since_s = stage.load.now_s()
    await safekeeper.kill()
    await stage.let_it_run(0.2)
    await stage.until_acknowledged(COMMITS_MIN, since_s)
    until_s = stage.load.now_s()
    require(VICTIM not in await stage.flush_lsns(), f"safekeeper {VICTIM} still answers")
    entries = stage.load.since(since_s)
    missing = await stage.primary.value(MISSING, [entry.id for entry in entries])
    require(missing == 0, f"{missing} acknowledged rows are not on the primary")
    gap_s = stage.load.longest_gap_s(since_s, until_s)
    require(gap_s < GAP_MAX_S, f"for {gap_s:.1f} s no commit returned")
    returned_s = stage.load.now_s()
    commit_lsn = await stage.commit_lsn()
    await safekeeper.start(READY_S)

    async def caught_up() -> bool:
        flush_lsns = await stage.flush_lsns()
        return VICTIM in flush_lsns and flush_lsns[VICTIM] >= commit_lsn

    await stage.until(f"safekeeper {VICTIM} catches up", caught_up)
    return (
        f"{len(entries):,} commits in {until_s - since_s:.1f} s without safekeeper {VICTIM}, "
        f"longest pause {1000 * gap_s:.0f} ms; it had caught up "
        f"{stage.load.now_s() - returned_s:.1f} s after its start"
    )


STEP = Step("A safekeeper is killed", "Commits go on with two of three safekeepers", run)
