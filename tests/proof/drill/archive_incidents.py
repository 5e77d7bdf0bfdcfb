"""Incidents of stored WAL: the archive, and a segment on a safekeeper's disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.proof.drill.incident import Expected, Incident
from tests.support.cluster import Daemon, lsn_of
from tests.support.segment_files import start_of
from tests.support.waiting import wait_until

VICTIM = 3
SEGMENT_BYTES = 1 << 20


class ArchiveUnreachable(Incident):
    name = "archive_unreachable"
    about = "The file system of the archive is gone."
    expected = Expected(
        status="archive", exit_code=1, check="archive: .*cannot archive",
        log="safekeeper[123]: .*WARNING.*archiv", alerts=("WalkeeperArchiveFails",),
        metrics=r"walkeeper_safekeeper_archive_failing\{.*\} 1", page='"archive": ?.*"failure": ?"',
        remedy="docs/archive.md", late_alerts=("WalkeeperArchiveStill",),
    )  # fmt: skip
    remedied = "mount it again."

    def cause(self) -> None:
        self.stage.lose_archive()
        self.stage.begin()
        self.stage.fill(8)

    def mend(self) -> None:
        self.stage.find_archive()


class ArchiveReadOnly(Incident):
    name = "archive_read_only"
    about = "The file system of the archive is remounted read-only."
    expected = replace(ArchiveUnreachable.expected, late_alerts=())
    remedied = "mount it writable."

    def cause(self) -> None:
        self.stage.archive_disk.make_read_only()
        self.stage.begin()
        self.stage.fill(8)

    def mend(self) -> None:
        self.stage.archive_disk.make_writable()


def flip_byte(path: Path) -> None:
    """Damage one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(bytes(data))


def segments(folder: Path) -> list[Path]:
    """Return the segments below a folder, the oldest first."""
    return sorted(each for each in folder.rglob("*") if len(each.name.split(".")[0]) == 24)


class ArchiveDamaged(Incident):
    name = "archive_lost_object"
    about = "An operator deletes a segment from the archive."
    expected = Expected(
        status="differing", exit_code=1, check="restorability: .*",
        log="safekeeper[123]: .*ERROR.*the archive, which has lost it",
        metrics=r"walkeeper_safekeeper_scrub_differences\{.*\} 1", page='"differences": ?1',
        alerts=("WalkeeperCopiesDiffer",), remedy="walkeeper archive repair",
    )  # fmt: skip
    remedied = "`walkeeper archive repair`, from the disks of the safekeepers."

    def cause(self) -> None:
        self.stage.fill(8)
        wait_until(lambda: len(self.compared()) >= 3)
        victim = self.compared()[1]
        self.stage.begin()
        for each in self.objects():
            if each.name.startswith(victim):
                each.unlink()

    def compared(self) -> list[str]:
        """Return the segments that all members have compared. They would put a later one anew."""
        lines = self.stage.status()["safekeepers"]
        end_lsn = min(lsn_of(line["archived_lsn"]) for line in lines)
        names = sorted({each.name.split(".")[0] for each in self.objects()})
        return [name for name in names if start_of(name, SEGMENT_BYTES) + SEGMENT_BYTES <= end_lsn]

    def objects(self) -> list[Path]:
        """Return the segments and their receipts."""
        return segments(self.stage.archive_disk.mount_point)

    def mend(self) -> None:
        self.stage.run("archive", "repair", self.stage.archive_url)

    def check_arguments(self) -> dict[str, object]:
        return {"archive": self.stage.archive_url}


class DamagedSegment(Incident):
    name = "damaged_segment"
    about = "A disk has lost a bit of a committed segment; the archive has it."
    expected = Expected(
        log="safekeeper3: .*ERROR.*damaged",
        metrics=r'walkeeper_safekeeper_scrub_repairs_total\{.*safekeeper="3".*\} [1-9]',
        page='"repairs": ?[1-9]', check="scrub: .*safekeeper 3",
        remedy="runbooks.md#damaged",
    )  # fmt: skip
    remedied = "none, since the safekeeper repairs the segment by itself."

    def cause(self) -> None:
        keeper = self.damaged()
        self.stage.begin()
        keeper.start()

    def damaged(self) -> Daemon:
        """Damage a segment of the victim; return the safekeeper, which is down."""
        self.stage.fill(8)
        name = self.stage.primary.sql("SELECT pg_walfile_name(pg_current_wal_lsn())")
        self.stage.fill(4)
        self.stage.wait_all_equal()
        folder = segments(self.stage.wal_dir(VICTIM))
        keeper = self.stage.safekeepers[VICTIM - 1]
        keeper.terminate()
        self._victim = next(each for each in folder if each.name == name)
        self._sound = self._victim.read_bytes()
        flip_byte(self._victim)
        return keeper

    def mend(self) -> None:
        wait_until(lambda: self._victim.read_bytes() == self._sound)


class DamagedWithoutCopy(DamagedSegment):
    name = "damaged_without_copy"
    about = "A disk has lost a bit of a committed segment, and the archive is away."
    expected = Expected(
        status="damaged", exit_code=1, check="members: .*safekeeper 3.*damaged",
        log="safekeeper3: .*ERROR.*damaged", alerts=("WalkeeperDamagedWal",),
        metrics=r'walkeeper_safekeeper_damaged\{.*safekeeper="3".*\} 1',
        page='"trouble": ?"damaged"', remedy="bring the archive back",
    )  # fmt: skip
    remedied = "mount the archive. The safekeeper then repairs the segment by itself."

    def cause(self) -> None:
        keeper = self.damaged()
        self.stage.lose_archive()
        self.stage.begin()
        keeper.start()

    def mend(self) -> None:
        self.stage.find_archive()
        super().mend()
