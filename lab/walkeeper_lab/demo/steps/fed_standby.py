"""An unmodified standby gets its WAL from a safekeeper instead of from the primary."""

from __future__ import annotations

from walkeeper_common.lsn import Lsn
from walkeeper_lab.demo.stage import Stage
from walkeeper_lab.demo.step import Step, require

SOURCE = 2
RECEIVER = "SELECT status || ' from port ' || sender_port FROM pg_stat_wal_receiver"
RECEIVED = "SELECT pg_last_wal_receive_lsn()::text"
PRESENT = "SELECT count(*) FROM demo WHERE id = $1"


async def run(stage: Stage) -> str:
    port, standby = stage.ports[SOURCE], stage.standby
    await standby.copy(stage.primary)
    standby.configure(stage.standby_settings(SOURCE))
    (standby.data / "standby.signal").touch()
    await standby.start()
    wanted = f"streaming from port {port}"

    async def streams() -> bool:
        return await standby.value(RECEIVER) == wanted

    await stage.until(f"the standby is {wanted}", streams)
    await stage.let_it_run(0.15)
    received = Lsn.parse(str(await standby.value(RECEIVED)))
    commit_lsn = await stage.commit_lsn()
    require(received <= commit_lsn, f"it was sent WAL up to {received}; a quorum has {commit_lsn}")
    last = stage.load.acknowledged[-1]

    async def arrived() -> bool:
        return await standby.value(PRESENT, last.id) == 1

    await stage.until("the newest row reaches the standby", arrived)
    behind_s = stage.load.now_s() - last.returned_s
    rows = await stage.until("every row reaches the standby", lambda: _rows(stage, last.returned_s))
    receiver = await standby.value(RECEIVER)
    require(receiver == wanted, f"pg_stat_wal_receiver says {receiver}")
    await standby.shut_down()  # so that it has WAL to catch up with when the primary is lost
    return (
        f"{rows:,} rows read on it, streaming from safekeeper {SOURCE}; a new row was there within "
        f"{1000 * behind_s:.0f} ms of its COMMIT"
    )


async def _rows(stage: Stage, until_s: float) -> int:
    """Return the number of rows there, or 0 while a row acknowledged by then is missing."""
    promised = {e.id for e in stage.load.acknowledged if e.returned_s <= until_s}
    found = await stage.load.ids_in(stage.standby)
    return len(found) if promised <= found else 0


STEP = Step(
    "A standby streams from a safekeeper",
    "A standby fed by a safekeeper alone has every row, and no WAL that a quorum does not have",
    run,
)
