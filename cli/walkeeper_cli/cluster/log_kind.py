"""Is a log of the kind that a command is for? A shell.

What reads WAL or speaks of PostgreSQL's LSNs can do nothing with a logical log, whose positions
look the same and mean something else (docs/logical.md). One safekeeper's word is enough, because a
log's kind is fixed when it is made; if nobody answers, the command itself will say so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from walkeeper_cli.cluster.status import gather
from walkeeper_common.addresses import Address
from walkeeper_common.errors import Refused

ANSWER_TIMEOUT_S = 5.0


def refuse_logical(safekeepers: Sequence[Address], cluster: str, why: str) -> None:
    """Refused, with `why`, if this is a logical log. Blocks until all have answered, or 5 s."""
    document = asyncio.run(gather(safekeepers, cluster, ANSWER_TIMEOUT_S))
    if any(line["kind"] == "logical" for line in document["safekeepers"]):
        raise Refused(f"the log of cluster {cluster!r} is logical: it keeps changes, no WAL. {why}")
