"""A second log on one primary is refused while the first one's proposer uses the slot. Shell.

Two proposers on one slot end each other's connection about once a second. Each acknowledges the
commits of its seconds, so that neither log has all of them.
"""

from __future__ import annotations

from walkeeper_common.errors import Refused
from walkeeper_proposer.postgres.primary_sql import NotConnected, connected

USER = """
SELECT s.active_pid, r.application_name, r.client_addr::text AS client_addr
FROM pg_replication_slots s LEFT JOIN pg_stat_replication r ON r.pid = s.active_pid
WHERE s.slot_name = $1 AND s.active_pid IS NOT NULL
"""


async def refuse_slot_in_use(dsn: str, slot: str) -> None:
    """Raise Refused if a connection uses the slot, with that connection's name and address.

    Return without an answer if the server admits no SQL of this role."""
    try:
        async with connected(dsn) as sql:
            user = await sql.fetchrow(USER, slot)
    except NotConnected:
        return
    if user is None:
        return
    whose = user["application_name"] or "a connection"
    where = user["client_addr"] or "this host"
    raise Refused(
        f"slot {slot} is in use by {whose} (PID {user['active_pid']}, from {where}): another log's "
        "proposer streams from this primary, and two of them end each other. Stop that one and "
        "`walkeeper detach`, or make a log beside it with another --cluster, --slot and "
        "--application-name"
    )
