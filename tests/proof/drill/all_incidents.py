"""All incidents of the drill, in the order of its page."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tests.proof.drill import archive_incidents as archive
from tests.proof.drill import load_incidents as load
from tests.proof.drill import member_incidents as member
from tests.proof.drill import primary_incidents as primary
from tests.proof.drill import reader_incidents as reader
from tests.proof.drill import set_up_incidents as set_up
from tests.proof.drill.incident import Incident

INCIDENTS: tuple[type[Incident], ...] = (
    member.FullDisk,
    member.FailedDisk,
    member.WipedMember,
    member.KilledMember,
    member.TwoMembersDown,
    load.BulkWithoutQuorum,
    member.SlowMember,
    load.LaggingMember,
    load.SlowQuorum,
    load.SlowMajority,
    primary.ProposerKilled,
    set_up.TwoProposers,
    set_up.TwoSupervisors,
    primary.PrimaryKilled,
    primary.PrimaryHung,
    primary.NamesChanged,
    primary.LoweredCommit,
    archive.ArchiveUnreachable,
    archive.ArchiveReadOnly,
    archive.ArchiveDamaged,
    archive.DamagedSegment,
    archive.DamagedWithoutCopy,
    reader.SlotHoldsWal,
    reader.StandbyLags,
    reader.WrongTimeline,
    set_up.Sealed,
    set_up.ChangeStuck,
    set_up.DeadSpare,
    set_up.WrongMember,
    set_up.ClockBack,
    set_up.OldVersion,
    set_up.CertificateEnds,
)
# Alerts that no incident waits for, each with the reason. promtool fires them with made series.
NOT_DRILLED: dict[str, str] = {
    "WalkeeperStandbyLags": "it needs 1 GB of WAL, and a standby that lags by it for 10 minutes",
}


def alert_faults(
    alerts: Collection[str],
    incidents: Iterable[type[Incident]] = INCIDENTS,
    not_drilled: Collection[str] = tuple(NOT_DRILLED),
) -> list[str]:
    """Return the alerts that no incident waits for without a reason, or in spite of one.

    Names that are no alert are faults too."""
    expected = [incident.expected for incident in incidents]
    drilled = {name for each in expected for name in (*each.alerts, *each.late_alerts)}
    faults = {
        "has no incident": set(alerts) - drilled - set(not_drilled),
        "has an incident and a reason for none": drilled & set(not_drilled),
        "is no alert": (drilled | set(not_drilled)) - set(alerts),
    }
    return sorted(f"{name} {fault}" for fault, names in faults.items() for name in names)
