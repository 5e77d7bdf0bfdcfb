"""The check that a log is of the kind that a command needs. A shell.

A command that reads WAL or takes PostgreSQL's LSNs cannot use a logical log. The positions of a
logical log look the same and mean something else (docs/logical.md). One safekeeper's answer is
enough, because a log's kind is fixed when it is made. If no safekeeper answers, the command itself
reports that.
"""

from __future__ import annotations

from collections.abc import Sequence

from walkeeper_admin.status import gather
from walkeeper_common.addresses import Address
from walkeeper_common.errors import Refused

ANSWER_TIMEOUT_S = 5.0


async def refuse_logical(safekeepers: Sequence[Address], cluster: str, why: str) -> None:
    """Raise Refused, with `why`, if this is a logical log.

    Wait until all safekeepers have answered, for at most 5 s.
    """
    document = await gather(safekeepers, cluster, ANSWER_TIMEOUT_S)
    if any(line["kind"] == "logical" for line in document["safekeepers"]):
        raise Refused(f"the log of cluster {cluster!r} is logical: it keeps changes, no WAL. {why}")
