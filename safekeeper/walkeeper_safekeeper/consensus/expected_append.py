"""The next append of a steady leader, byte for byte, and the ack to it. Pure.

Nearly every commit is the next WAL of a leader that is elected here, while nothing is under way.
The compiled fast path (walkeeper_fastpath) takes such an append without messages, events and
effects. It decides nothing. Everything that `Acceptor.on_append` and `acknowledge` would look at
is in the template, or is a reason to make none:

    a refusal of on_append                            here
    another connection, or another ballot (I4)        `appender`, and the bytes of `append`
    not our generation, no member, a failed disk      `_not_ours`, and the bytes of `append`
    another position (R8)                             the bytes of `append`
    another timeline, or over a fork                  the bytes of `append`, `_is_past_forks`
    a closed log (M7)                                 here
    a damaged payload, no WAL (R25)                   its CRC; `knows_pages`
    a mark that is due before the ack (R9, R11)       `limit_lsn`, `_is_marked`
    a request that waits for the disk                 `waiting`
    WAL that is written and not durable               write_lsn = flush_lsn = acked_lsn

A template is void with the next event, except for the news of the fast path itself.
test_fast_append.py holds the fast path against the slow one, frame by frame.
"""

from __future__ import annotations

from dataclasses import dataclass

from walkeeper_common.lsn import Lsn
from walkeeper_common.wire.framing import encode
from walkeeper_common.wire.messages import AppendRequest
from walkeeper_safekeeper.consensus import acceptor_answers
from walkeeper_safekeeper.consensus.acceptor import Acceptor


@dataclass(frozen=True, slots=True)
class ExpectedAppend:
    """The next append, from begin_lsn to below `limit_lsn`, with any WAL that is WAL.

    `append`: the frame of an append without WAL that says nothing new. The next one has the same
    first bytes, its begin_lsn, and a commit_lsn at least as great.
    `ack`: the frame of the ack to it, with another flush_lsn.
    `knows_pages`: the WAL is PostgreSQL's, so a page's first bytes are known.
    """

    append: bytes
    ack: bytes
    limit_lsn: Lsn
    knows_pages: bool


def expected_append(acceptor: Acceptor, connection: int) -> ExpectedAppend | None:
    """Return the next append on this connection, or None if the acceptor has to see it."""
    durable, end_lsn = acceptor.durable, acceptor.flush_lsn
    configuration = durable.configuration
    if (
        acceptor.appender != connection
        or configuration is None
        or acceptor_answers.refusal_of(acceptor, configuration.generation, durable.ballot)
        is not None
        or not acceptor.write_lsn == acceptor.flush_lsn == acceptor.acked_lsn
        or acceptor.waiting
        or acceptor.refusal is not None
        or acceptor.timelines.closed_lsn is not None
        or not _is_past_forks(acceptor)
        or not _is_marked(acceptor)
    ):
        return None
    append = AppendRequest(
        generation=configuration.generation,
        ballot=durable.ballot,
        timeline=acceptor.timelines.last,
        begin_lsn=end_lsn,
        end_lsn=end_lsn,
        commit_lsn=acceptor.leader_commit_lsn,
        restart_lsn=acceptor.restart_lsn,
        crc=0,
        payload=b"",
    )
    return ExpectedAppend(
        append=b"".join(encode(append)),
        ack=b"".join(encode(acceptor_answers.ack_of(acceptor))),
        limit_lsn=acceptor.unreached_lsn,
        knows_pages=acceptor.flaw_of_wal is not None,
    )


def _is_past_forks(acceptor: Acceptor) -> bool:
    """Return True if all forks of timelines are durably committed: one more is passed nowhere."""
    timelines = acceptor.timelines
    return (
        timelines.first == timelines.last or timelines.last_start_lsn < acceptor.durable.commit_lsn
    )


def _is_marked(acceptor: Acceptor) -> bool:
    """Return True if commit_lsn durably reached the term's start, so no mark is due there."""
    return acceptor.term_start_lsn <= acceptor.durable.commit_lsn
