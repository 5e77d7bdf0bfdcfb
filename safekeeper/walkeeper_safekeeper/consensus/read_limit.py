"""How far a reader may read (docs/protocol.md R13), checked before and after each read. Pure."""

from __future__ import annotations

from typing import Protocol

from walkeeper_common.history import NO_BALLOT, Ballot
from walkeeper_common.lsn import Lsn
from walkeeper_common.wire.messages import RejectCode
from walkeeper_common.wire.requests import ReadRequest, ReadResponse
from walkeeper_common.wire.wal_crc import crc_of
from walkeeper_safekeeper.consensus.acceptor_answers import Speaker, reject_of
from walkeeper_safekeeper.consensus.acceptor_events import Effect, ReadWal, Send, WalRead
from walkeeper_safekeeper.consensus.durable import Durable


class DonorLog(Speaker, Protocol):
    """The part of the acceptor on which the answer to a read depends."""

    durable: Durable
    elected: bool
    voted_lsn: Lsn | None
    truncations: int


def answer_read(log: DonorLog, connection: int, ask: ReadRequest) -> list[Effect]:
    """Read the part of the request that may be read now, or answer why none may."""
    limit = readable_end(log, ask.ballot)
    if limit is None:
        text = f"{ask.ballot} has not been elected here (promised: {log.durable.ballot})"
        return [Send(connection, reject_of(log, RejectCode.NOT_READABLE, text))]
    if ask.begin_lsn < log.oldest_lsn:
        text = f"WAL at {ask.begin_lsn} is gone here, the oldest kept is at {log.oldest_lsn}"
        return [Send(connection, reject_of(log, RejectCode.WAL_REMOVED, text))]
    end_lsn = min(ask.begin_lsn + ask.size_max, limit)
    if end_lsn <= ask.begin_lsn:
        return [Send(connection, ReadResponse(ask.ballot, ask.begin_lsn, 0, b""))]
    return [ReadWal(connection, ask, log.truncations, end_lsn)]


def answer_wal_read(log: DonorLog, read: WalRead) -> list[Effect]:
    """Ask the same question again, now that the bytes are here (R13)."""
    if read.text is not None:
        return [Send(read.connection, reject_of(log, RejectCode.WAL_REMOVED, read.text))]
    begin_lsn, ballot = read.request.begin_lsn, read.request.ballot
    limit = readable_end(log, ballot)
    if limit is None or limit < begin_lsn + len(read.payload):
        text = f"WAL at {begin_lsn} may not be read by {ballot} any more"
        return [Send(read.connection, reject_of(log, RejectCode.NOT_READABLE, text))]
    if read.truncations != log.truncations:
        return answer_read(log, read.connection, read.request)  # the bytes may be the old ones
    response = ReadResponse(ballot, begin_lsn, crc_of(read.payload), read.payload)
    return [Send(read.connection, response)]


def readable_end(log: DonorLog, ballot: Ballot) -> Lsn | None:
    """Return the LSN up to which a reader that names `ballot` may read, or None.

    A reader with NO_BALLOT may read committed WAL. A reader with the promised ballot may read up
    to flush_lsn once its leader is elected here. Only then is our log a part of its log.
    Before that it may read up to the record_lsn of our vote, as the election does of its donor.
    """
    if ballot == NO_BALLOT:
        return log.commit_lsn
    if ballot != log.durable.ballot:
        return None
    return log.flush_lsn if log.elected else log.voted_lsn
