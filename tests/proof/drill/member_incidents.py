"""Incidents of safekeepers: their disks, their processes, their network."""

from __future__ import annotations

import shutil
from dataclasses import replace

from tests.proof.drill.incident import MEMBER_AWAY, Commits, Expected, Incident

VICTIM = 3
SLOW_MS = 400
MEMBER = "safekeeper 3"


class FullDisk(Incident):
    name = "full_disk"
    about = "No block is left on the disk of a safekeeper."
    expected = Expected(
        status="refusing", exit_code=1, check=f"members: .*{MEMBER}.*no space",
        log="safekeeper3: .*WARNING.*no space", alerts=("WalkeeperRefusesWal",),
        metrics=r'walkeeper_safekeeper_refusing_wal\{.*safekeeper="3".*\} 1',
        page='"trouble": ?"refusing"', remedy="free space on its disk",
    )  # fmt: skip
    remedied = "free the space."

    def cause(self) -> None:
        self.stage.disks[VICTIM - 1].fill()
        self.stage.begin()
        self.stage.fill(16)

    def mend(self) -> None:
        self.stage.disks[VICTIM - 1].release()


class FailedDisk(Incident):
    name = "failed_disk"
    about = "An fdatasync of WAL fails with EIO."
    expected = Expected(
        status="failed", exit_code=1, check=f"members: .*{MEMBER}.*disk failed",
        log="safekeeper3: .*ERROR", alerts=("WalkeeperDiskFailed",),
        metrics=r'walkeeper_safekeeper_failed\{.*safekeeper="3".*\} 1',
        page='"trouble": ?"failed"', remedy="restart it",
    )  # fmt: skip
    remedied = "repair the disk, and restart the safekeeper."

    def cause(self) -> None:
        self.stage.steered[VICTIM - 1].fail_syncs(match="/wal/")
        self.stage.fill(1)

    def mend(self) -> None:
        self.stage.steered[VICTIM - 1].well()
        self.stage.safekeepers[VICTIM - 1].terminate()
        self.stage.safekeepers[VICTIM - 1].start()


class WipedMember(Incident):
    name = "wiped_member"
    about = "A safekeeper comes back with an empty directory."
    expected = replace(
        MEMBER_AWAY, status="no_log", check=f"members: .*{MEMBER}.*does not have the log",
        log="proposer: .*(?:safekeeper 3|127.0.0.1)", remedy="walkeeper replace",
    )  # fmt: skip
    remedied = "`walkeeper replace --member 3 --with 3@…`"

    def cause(self) -> None:
        self.stage.safekeepers[VICTIM - 1].kill()
        shutil.rmtree(self.stage.data_dir(VICTIM))
        self.stage.safekeepers[VICTIM - 1].start()

    def mend(self) -> None:
        newcomer = f"{VICTIM}@127.0.0.1:{self.stage.ports[VICTIM - 1]}"
        self.stage.run("replace", "--member", str(VICTIM), "--with", newcomer)


class KilledMember(Incident):
    name = "killed_member"
    about = "One safekeeper is killed."
    expected = replace(
        MEMBER_AWAY, status="unreachable", check=f"members: .*{MEMBER} at .*does not answer",
        log="proposer: .*lost", remedy="start it",
    )  # fmt: skip
    remedied = "start it."

    def cause(self) -> None:
        self.stage.safekeepers[VICTIM - 1].kill()

    def mend(self) -> None:
        self.stage.safekeepers[VICTIM - 1].start()


class TwoMembersDown(Incident):
    name = "two_members_down"
    about = "Two of three safekeepers are killed."
    commits = Commits.HANG
    expected = Expected(
        status="no_quorum", exit_code=2, check="FAILED members: no quorum",
        log="proposer: .*ERROR.*commits hang",
        alerts=("WalkeeperNoQuorum", "WalkeeperCommitsWait"),
        metrics=r"walkeeper_proposer_quorum\{.*\} 0", page='"attached": ?false',
        remedy="bring back one of these safekeepers",
    )  # fmt: skip
    remedied = "start one of them, and the other one later."

    def cause(self) -> None:
        for number in (2, VICTIM):
            self.stage.safekeepers[number - 1].kill()

    def mend(self) -> None:
        for number in (2, VICTIM):
            self.stage.safekeepers[number - 1].start()


class SlowMember(Incident):
    name = "slow_member"
    about = "Each fdatasync of one safekeeper takes 400 ms longer."
    expected = Expected(
        exit_code=0, check=f"fdatasync: .*{MEMBER}", alerts=("WalkeeperSlowDisk",),
        metrics=r'walkeeper_safekeeper_fsync_seconds_sum\{.*safekeeper="3".*\} [1-9]',
        page='"fsync_s": ?0.[1-9]', remedy="slow_disk",
    )  # fmt: skip
    remedied = "another disk."

    def cause(self) -> None:
        self.stage.steered[VICTIM - 1].slow(SLOW_MS)
        self.stage.begin()
        self.stage.fill(8)

    def mend(self) -> None:
        self.stage.steered[VICTIM - 1].well()
