"""What the primary is told of the standbys: what they have applied, and what they need. Pure.

    applied_lsn(commit_lsn, feedback)     the least that they have applied, never past commit_lsn
    needed_xmins(feedback)                the oldest transactions that their queries may look at

A safekeeper without standbys says 0 of each, and so holds nothing; one that leaves takes its
standbys' word with it. No standby at all has applied nothing: 0, and `remote_apply` waits until
there is one, for that is what --apply standbys was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.wire.messages import Feedback


def applied_lsn(commit_lsn: Lsn, feedback: Sequence[Feedback]) -> Lsn:
    """What `remote_apply` may count on. R12 holds for it as for the rest."""
    applied = (said.apply_lsn for said in feedback if said.apply_lsn)
    return min(commit_lsn, min(applied, default=ZERO_LSN))


def needed_xmins(feedback: Sequence[Feedback]) -> tuple[int, int]:
    """(xmin, catalog_xmin), each epoch and xid in 64 bits, so that the least is the oldest."""
    return (
        min((said.xmin for said in feedback if said.xmin), default=0),
        min((said.catalog_xmin for said in feedback if said.catalog_xmin), default=0),
    )
