"""How far a reader may see (PROTOCOL.md rule 13). Asked before every read and after it. Pure."""

from __future__ import annotations

from typing import Protocol

from walkeeper_common.history import NO_BALLOT, Ballot
from walkeeper_common.lsn import Lsn
from walkeeper_safekeeper.durable import Durable


class ReadableLog(Protocol):
    """What the answer depends on; the acceptor has it all."""

    durable: Durable
    flush_lsn: Lsn
    commit_lsn: Lsn
    elected: bool
    voted_lsn: Lsn | None


def readable_end(log: ReadableLog, ballot: Ballot) -> Lsn | None:
    """The LSN up to which a reader that names `ballot` may read, or None: nothing, now.

    NO_BALLOT: committed WAL only. The promised ballot: flush_lsn once its leader was heard of
    here, because only then is our log known to be a part of its log; before that up to the
    record_lsn of our vote, which is what the election itself reads of its donor.
    """
    if ballot == NO_BALLOT:
        return log.commit_lsn
    if ballot != log.durable.ballot:
        return None
    return log.flush_lsn if log.elected else log.voted_lsn
