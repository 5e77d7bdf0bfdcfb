"""All incidents of the drill, in the order of its page."""

from __future__ import annotations

from tests.proof.drill import archive_incidents as archive
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
    member.SlowMember,
    primary.ProposerKilled,
    set_up.TwoProposers,
    primary.PrimaryKilled,
    primary.PrimaryHung,
    primary.NamesChanged,
    primary.LoweredCommit,
    archive.ArchiveUnreachable,
    archive.ArchiveReadOnly,
    archive.ArchiveDamaged,
    archive.DamagedSegment,
    reader.SlotHoldsWal,
    reader.StandbyLags,
    reader.WrongTimeline,
    set_up.Sealed,
    set_up.ChangeStuck,
    set_up.WrongMember,
    set_up.ClockBack,
    set_up.OldVersion,
    set_up.CertificateEnds,
)
