"""The words for a `--dsn` without an answer: the failure is the command's or the primary's. Pure.

A wrong password of this command tells nothing about the primary. The proposer's report does. Only
if the proposer gets no answer either, or reports nothing, is the primary in doubt.
"""

from __future__ import annotations

from typing import Any, NamedTuple

REMEDY = (
    "mend --dsn, its password, or pg_hba.conf of the primary for this host and role; if the "
    "primary is down, start it"
)


class Unanswered(NamedTuple):
    """Words for the operator.

    `is_critical` is True if neither this command nor a proposer knows whether the primary works.
    `is_shared` is True if the proposer gets no answer either."""

    is_critical: bool
    is_shared: bool
    text: str
    remedy: str


def unanswered(cluster: dict[str, Any]) -> Unanswered | None:
    """Return the words, or None if there is an answer or the log needs no primary."""
    error, primary = cluster.get("dsn_error"), cluster.get("primary")
    if not error or cluster.get("closed_lsn"):
        return None
    if primary is None:
        text = f"`--dsn` gets no answer, and no proposer reports the primary's state: {error}"
        return Unanswered(True, False, text, REMEDY)
    if primary["connected"] and primary["error"]:
        text = f"neither `--dsn` nor the proposer gets an answer from the primary: {error}"
        return Unanswered(True, True, text, f"see the primary's log; {REMEDY}")
    text = f"`--dsn` gets no answer, so the primary's state is as its proposer reports it: {error}"
    return Unanswered(False, False, text, REMEDY)
