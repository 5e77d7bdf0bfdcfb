"""The facts of a closed log in `status`, and its remedy (docs/protocol.md M7). Pure.

A close counts when an ack quorum has it durably. Until then a command was interrupted, and the
same command goes on. A member that was away at the close learns of it from the next command.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from walkeeper_admin.member_sets import have_quorum
from walkeeper_common.operator_text.counts import counted

RELEASE = (
    "`walkeeper detach --drop-slot` releases them; for the quorum's guarantee let the primary "
    "write a new log: `walkeeper create --cluster NEW`"
)


def closed_facts(
    facts: dict[str, Any],
    best: dict[str, Any],
    known: Sequence[dict[str, Any]],
    names: Sequence[str],
) -> dict[str, Any]:
    """Return `closed_lsn` and `is_closing` of the cluster, from the answers `known` by `names`.

    `best` is the answer with the log that an election would take."""
    closed_lsn = best.get("closed_lsn")
    having = [name for name, each in zip(names, known, strict=True) if knows(each, best)]
    is_closed = closed_lsn is not None and have_quorum(facts, having)
    return {
        "closed_lsn": closed_lsn if is_closed else None,
        "is_closing": closed_lsn is not None and not is_closed,
    }


def knows(answer: dict[str, Any], best: dict[str, Any]) -> bool:
    """Return True if a safekeeper has the same close as the one with the best log."""
    mark = ("closed_lsn", "last_log_term")
    return [answer.get(name) for name in mark] == [best.get(name) for name in mark]


def unaware(
    cluster: dict[str, Any], lines: Sequence[dict[str, Any]], members: Collection[int]
) -> list[int]:
    """Return the members that answer and do not know of the close."""
    if cluster.get("closed_lsn") is None:
        return []
    ids = (line["id"] for line in lines if line["reachable"] and line.get("closed_lsn") is None)
    return sorted(number for number in ids if number in members)


def again(cluster: dict[str, Any]) -> str:
    """Return the remedy for a close that has not reached everyone."""
    return f"run `walkeeper logs close {cluster['name']}` again with all members up"


def commits_without_a_proposer(cluster: dict[str, Any]) -> str | None:
    """Return the text on commits that wait for the proposer of a closed log, or None.

    Without such commits nothing is wrong: the primary is detached, or writes another log."""
    primary = cluster.get("primary")
    if primary is None or primary["connected"] or not primary["waiting"]:
        return None
    return (
        f"{waiting_commits(primary)} since {primary['waiting_since']} for the proposer of "
        "this log, which is closed"
    )


def waiting_commits(primary: dict[str, Any]) -> str:
    """Return how many commits wait at the primary, as a clause."""
    return counted(primary["waiting"], "commit waits", "commits wait")
