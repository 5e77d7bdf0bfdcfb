"""The marks that must be durable before an acknowledgement, or later (docs/protocol.md R9, R11).

Pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from walkeeper_common.history import cut
from walkeeper_common.lsn import Lsn
from walkeeper_common.timelines import Timelines
from walkeeper_safekeeper.consensus.durable import Durable

PERSIST_COMMIT_TICKS = 5


class MarkedLog(Protocol):
    """The part of a log that determines the marks; the acceptor has it all."""

    durable: Durable
    flush_lsn: Lsn
    commit_lsn: Lsn
    restart_lsn: Lsn
    timelines: Timelines
    unreached_lsn: Lsn
    term_start_lsn: Lsn


def due_marks(log: MarkedLog) -> Durable:
    """Return the control file with the marks that are due, the same object if there are none.

    commit_lsn becomes durable where it first reaches the term's start, since `settle` waits for it.
    It also does where it first passes a fork. From then on readers know the new timeline, and it
    must still exist for a standby after a restart of this safekeeper
    (scenarios/timeline_is_served_when_it_is_committed.txt).
    """
    marks = log.durable
    if log.flush_lsn >= log.unreached_lsn:
        marks = replace(marks, reached_lsn=cut(marks.history, log.flush_lsn)[-1].start_lsn)
    in_term = marks.commit_lsn < log.term_start_lsn <= log.commit_lsn
    timeline = log.timelines.before(log.commit_lsn)
    if in_term or timeline != log.timelines.before(marks.commit_lsn):
        marks = replace(marks, commit_lsn=log.commit_lsn)
    return marks


def lazy_marks(log: MarkedLog, ticks: int) -> Durable:
    """Return what is durable with the present commit_lsn and restart_lsn.

    Return the same object if it is not yet time for them, or if both are durable already.
    """
    durable = log.durable
    is_known = (durable.commit_lsn, durable.restart_lsn) == (log.commit_lsn, log.restart_lsn)
    if is_known or ticks % PERSIST_COMMIT_TICKS:
        return durable
    return replace(durable, commit_lsn=log.commit_lsn, restart_lsn=log.restart_lsn)


def final_marks(log: MarkedLog) -> Durable:
    """Return what a clean stop makes durable, when all WAL that was written is durable."""
    return replace(
        log.durable, commit_lsn=log.commit_lsn, restart_lsn=log.restart_lsn, clean_stop=True
    )
