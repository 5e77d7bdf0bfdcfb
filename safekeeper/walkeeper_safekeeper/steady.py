"""The steady state of an elected term: the next WAL, and nothing else to decide. Pure.

What `Acceptor.on_append` and `on_wal_flushed` do for such an append, seen at one glance: nearly
every commit takes this way, so no event and no queue is between its steps.
`extends` says yes only where those two would accept it and would have nothing more to do than to
move LSNs and to acknowledge; the rest is theirs. test_steady_append.py holds one against the other.
"""

from __future__ import annotations

from walkeeper_common.framing import crc_of
from walkeeper_common.messages import AppendRequest
from walkeeper_safekeeper.acceptor import Acceptor
from walkeeper_safekeeper.acceptor_events import Effect, Send
from walkeeper_safekeeper.answers import ack_of


def extends(acceptor: Acceptor, connection: int, append: AppendRequest) -> bool:
    """Whether this is the next WAL of the elected term (rule 8), whole, behind a log that is
    durable to its end, and reaches no point that has a mark of its own (rules 9 and 11)."""
    durable, timelines = acceptor.durable, acceptor.timelines
    return (
        connection == acceptor.appender
        and append.begin_lsn == acceptor.write_lsn == acceptor.flush_lsn < append.end_lsn
        and append.ballot == durable.ballot
        and durable.configuration is not None
        and append.generation == durable.configuration.generation
        and append.timeline == timelines.last
        and (timelines.first == timelines.last or timelines.last_start_lsn < durable.commit_lsn)
        and acceptor.term_start_lsn <= durable.commit_lsn
        and append.end_lsn < acceptor.unreached_lsn
        and not acceptor.waiting
        and acceptor.refusal is None
        and crc_of(append.payload) == append.crc
    )


def extend(acceptor: Acceptor, connection: int, append: AppendRequest) -> list[Effect]:
    """Its bytes are durable: the log is longer, and this is the ack (rules 9 and 10)."""
    acceptor.write_lsn = acceptor.flush_lsn = acceptor.acked_lsn = append.end_lsn
    acceptor.silent_ticks, acceptor.heard_commit_lsn = 0, append.commit_lsn
    if append.restart_lsn > acceptor.restart_lsn:
        acceptor.restart_lsn = append.restart_lsn
    if append.commit_lsn > acceptor.told_commit_lsn:
        acceptor.told_commit_lsn = append.commit_lsn
    return [*acceptor.move_commit(), Send(connection, ack_of(acceptor))]
