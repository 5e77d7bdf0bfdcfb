"""Every kind of fault that the runner has."""

from __future__ import annotations

from collections.abc import Sequence

from tests.proof.chaos import (
    change_faults,
    disk_faults,
    member_faults,
    network_faults,
    process_faults,
    promotion_faults,
    transaction_faults,
)
from tests.proof.chaos.fault import Fault

KINDS: Sequence[type[Fault]] = (
    process_faults.KillSafekeeper,
    process_faults.KillTwoSafekeepers,
    process_faults.RestartSafekeepers,
    process_faults.KillProposer,
    process_faults.KillPrimary,
    process_faults.StopPrimary,
    process_faults.KillStandby,
    process_faults.KillEverything,
    process_faults.FreezeSafekeeper,
    process_faults.FreezeTwoSafekeepers,
    process_faults.FreezeProposer,
    process_faults.FreezePrimary,
    process_faults.TakeOver,
    process_faults.TakeOverFrozen,
    process_faults.LeaseRunsOut,
    process_faults.Settle,
    network_faults.CutSafekeeper,
    network_faults.CutTwoSafekeepers,
    network_faults.DeafSafekeeper,
    network_faults.DeafToSafekeeper,
    network_faults.CutPrimary,
    network_faults.DeafPrimary,
    network_faults.CutFromSuccessor,
    network_faults.LossyNetwork,
    network_faults.SlowNetwork,
    disk_faults.FullDisk,
    disk_faults.TwoFullDisks,
    disk_faults.SlowSync,
    disk_faults.FailingSync,
    disk_faults.FailingWrite,
    disk_faults.FailingControl,
    disk_faults.PowerCut,
    disk_faults.PowerCutOfAll,
    member_faults.WipedAndReplaced,
    member_faults.ReplacementCancelled,
    member_faults.RepairedBySpare,
    *change_faults.CHANGES,
    transaction_faults.LongTransaction,
    transaction_faults.PrimaryDiesInLongTransaction,
    promotion_faults.CollidingPromotions,
)


def kinds_named(names: Sequence[str] | None) -> Sequence[type[Fault]]:
    """Return the kinds with these names, or all without names.

    Raise SystemExit for a name that does not exist.
    """
    if not names:
        return KINDS
    known = {kind.name: kind for kind in KINDS}
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"no such fault: {', '.join(unknown)}; there are {', '.join(known)}")
    return [known[name] for name in names]
