"""Incidents of readers: slots, and the standby."""

from __future__ import annotations

import os
import signal

from tests.proof.drill.incident import Expected, Incident
from tests.proof.drill.memory_disk import SIZE_BYTES
from tests.support.postgres_server import program, run_as_server_user
from tests.support.standbys import rewind
from tests.support.waiting import wait_until

VICTIM = 3
KEPT_BY_STANDBY = "64MB"  # pg_rewind needs the WAL before the promotion
ROOM_BYTES = SIZE_BYTES // 5
RECEIVER = "SELECT pid FROM pg_stat_wal_receiver"


class SlotHoldsWal(Incident):
    name = "slot_holds_wal"
    about = "A slot without a client keeps WAL until the disk is 90 % full."
    expected = Expected(
        check="disk space: .*safekeeper 3", alerts=("WalkeeperDiskFills",),
        metrics=r'walkeeper_safekeeper_slots\{.*safekeeper="3".*\} 1',
        page='"kept_for": ?"slot gone"', remedy="how-large-a-disk",
    )  # fmt: skip
    remedied = "`walkeeper slots drop`, as [how large a disk](operations.md#how-large-a-disk) says."

    def cause(self) -> None:
        stage = self.stage
        where = f"host=127.0.0.1 port={stage.ports[VICTIM - 1]} user=postgres dbname=replication"
        making = "CREATE_REPLICATION_SLOT gone PHYSICAL RESERVE_WAL"
        run_as_server_user([program("psql"), f"{where} replication=true", "-c", making])
        free = os.statvfs(stage.disks[VICTIM - 1].mount_point)
        ballast = stage.disks[VICTIM - 1].mount_point / "ballast"
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - ROOM_BYTES)
        stage.begin()
        stage.fill(2 * (ROOM_BYTES // 2 >> 20) + 16)

    def mend(self) -> None:
        self.stage.run("slots", "drop", "gone")
        where = self.stage.disks[VICTIM - 1].mount_point

        def has_room() -> bool:
            free = os.statvfs(where)
            return free.f_bavail / free.f_blocks > 0.12

        wait_until(has_room)


class StandbyLags(Incident):
    name = "standby_lags"
    about = "The standby's WAL receiver hangs."
    expected = Expected(
        metrics=r"walkeeper_standby_flush_lag_bytes\{.*\} [1-9.]+e\+06",
        page='"application_name": ?"walreceiver"',
    )  # fmt: skip
    remedied = "let the receiver go on."

    def cause(self) -> None:
        self._receiver = int(self.stage.standby.sql(RECEIVER))
        os.kill(self._receiver, signal.SIGSTOP)
        self.stage.begin()
        self.stage.fill(8)

    def mend(self) -> None:
        os.kill(self._receiver, signal.SIGCONT)


class WrongTimeline(Incident):
    name = "wrong_timeline"
    about = "An operator promotes the standby, and then makes it a standby again."
    expected = Expected(
        check="FAILED ancestry", remedy="rebuild it, or pg_rewind",
    )  # fmt: skip
    remedied = "pg_rewind."

    def cause(self) -> None:
        standby = self.stage.standby
        standby.configure({"synchronous_standby_names": "", "wal_keep_size": KEPT_BY_STANDBY})
        standby.pg_ctl("reload")
        standby.promote()
        standby.sql("CREATE TABLE nobody_acknowledged (i int)")
        self.stage.fill(2)
        standby.stop()
        (standby.data / "standby.signal").touch()
        self.stage.begin()
        standby.start()

    def mend(self) -> None:
        standby = self.stage.standby
        standby.stop()
        rewind(standby, self.stage.primary, self.stage.ports[1])
        standby.start()
        wait_until(lambda: standby.sql(RECEIVER) is not None)

    def check_arguments(self) -> dict[str, object]:
        return {"standbys": (self.stage.standby.dsn(),), "archive": self.stage.archive_url}
