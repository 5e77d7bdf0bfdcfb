"""The report to the primary about the standbys: their apply_lsn, and the xmins they need. Pure.

    applied_lsn(commit_lsn, feedback)     the least that they have applied, never past commit_lsn
    needed_xmins(feedback)                the oldest transactions that their queries may look at

A safekeeper without standbys reports 0 for each, and so retains nothing. If a safekeeper leaves,
the report of its standbys leaves with it. Without any standby the applied LSN is 0, and
`remote_apply` waits until there is one: --apply standbys requests exactly that.
"""

from __future__ import annotations

from collections.abc import Sequence

from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.wire.messages import Feedback


def applied_lsn(commit_lsn: Lsn, feedback: Sequence[Feedback]) -> Lsn:
    """Return the LSN on which `remote_apply` may rely. R12 holds for it as for the rest."""
    applied = (said.apply_lsn for said in feedback if said.apply_lsn)
    return min(commit_lsn, min(applied, default=ZERO_LSN))


def needed_xmins(feedback: Sequence[Feedback]) -> tuple[int, int]:
    """Return (xmin, catalog_xmin), each epoch and xid in 64 bits, so the least is the oldest."""
    return (
        min((said.xmin for said in feedback if said.xmin), default=0),
        min((said.catalog_xmin for said in feedback if said.catalog_xmin), default=0),
    )
