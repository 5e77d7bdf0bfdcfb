"""Answers of an acceptor, made from its state. Pure; the acceptor knows when to send them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeAlias

from walkeeper_common.buffers import Buffer
from walkeeper_common.history import NO_BALLOT, TERM_JUMP_MAX, Ballot, cut, is_forged
from walkeeper_common.lsn import ZERO_LSN, Lsn
from walkeeper_common.wire.member_change import replaced_text
from walkeeper_common.wire.messages import (
    NO_FEEDBACK,
    AcceptorGreeting,
    AppendRequest,
    AppendResponse,
    Feedback,
    Reject,
    RejectCode,
    VoteResponse,
)
from walkeeper_common.wire.wal_crc import crc_of
from walkeeper_safekeeper.consensus.durable import Durable

# For a proposer whose message is still arriving: no ballot, so it acknowledges nothing (R26).
SIGN_OF_LIFE = AppendResponse(0, NO_BALLOT, ZERO_LSN, ZERO_LSN, NO_FEEDBACK)
FlawOfWal: TypeAlias = Callable[[int, Buffer], str | None]  # why bytes at an LSN are no WAL
LEASE_TICKS = 3  # a proposer that sent something less heartbeats ago is live (R20)


class Speaker(Protocol):
    """The part of the acceptor that its answers show."""

    durable: Durable
    member: str
    oldest_lsn: Lsn
    flush_lsn: Lsn
    commit_lsn: Lsn
    restart_lsn: Lsn
    failure: str | None
    appender: int | None
    silent_ticks: int
    feedback: Feedback


def greeting_of(acceptor: Speaker, *, flush_lsn: Lsn, record_lsn: Lsn) -> AcceptorGreeting:
    """Make a greeting as of `flush_lsn`, where the proposer's greeting found us.

    The log may have grown since.
    """
    durable = acceptor.durable
    live = acceptor.appender is not None and acceptor.silent_ticks < LEASE_TICKS
    return AcceptorGreeting(
        acceptor_id=durable.acceptor_id,
        incarnation=durable.incarnation,
        log_uuid=durable.log_uuid,
        configuration=durable.configuration,
        ballot=durable.ballot,
        history=cut(durable.history, flush_lsn),
        oldest_lsn=acceptor.oldest_lsn,
        flush_lsn=flush_lsn,
        record_lsn=record_lsn,
        commit_lsn=min(acceptor.commit_lsn, flush_lsn),
        live=durable.ballot if live else None,
    )


def granted_vote(acceptor: Speaker, record_lsn: Lsn) -> VoteResponse:
    """Make a vote that is final for smaller ballots: all received WAL is flushed (R2)."""
    return replace(refused_vote(acceptor), granted=True, record_lsn=record_lsn)


def refused_vote(acceptor: Speaker) -> VoteResponse:
    """Make the answer with the greater ballot that was promised."""
    durable = acceptor.durable
    assert durable.configuration is not None, f"{durable=}"
    return VoteResponse(
        generation=durable.configuration.generation,
        ballot=durable.ballot,
        granted=False,
        oldest_lsn=acceptor.oldest_lsn,
        flush_lsn=acceptor.flush_lsn,
        record_lsn=ZERO_LSN,
        restart_lsn=acceptor.restart_lsn,
        history=cut(durable.history, acceptor.flush_lsn),
    )


def reject_of(acceptor: Speaker, code: RejectCode, text: str) -> Reject:
    """Return a Reject with the promised ballot. A failed acceptor gives none.

    Its memory may have a promise that its disk lacks."""
    return Reject(code, text, acceptor.durable.ballot if acceptor.failure is None else NO_BALLOT)


def refusal_of(acceptor: Speaker, generation: int, ballot: Ballot) -> Reject | None:
    """Return the refusal that all messages of the consensus share, or None."""
    durable, configuration = acceptor.durable, acceptor.durable.configuration
    if acceptor.failure is not None:
        return reject_of(acceptor, RejectCode.STORAGE_FAILED, acceptor.failure)
    if configuration is None or acceptor.member not in configuration.everyone:
        was = configuration and replaced_text(acceptor.member, configuration, durable.history)
        text = was or f"{acceptor.member} is no member: `walkeeper create` was not finished"
        return reject_of(acceptor, RejectCode.NOT_A_MEMBER, text)
    if generation != configuration.generation:
        text = f"generation {generation} is not ours, {configuration.generation}"
        return reject_of(acceptor, RejectCode.STALE_GENERATION, text)
    known = max(durable.ballot, durable.history[-1].ballot)
    if is_forged(ballot, known):
        text = (
            f"ballot {ballot} is refused as forged: it is more than {TERM_JUMP_MAX:,} terms past "
            f"{known}, and a candidate takes the next one; look for what connects here"
        )
        return reject_of(acceptor, RejectCode.REFUSED, text)
    return None


def ack_of(acceptor: Speaker) -> AppendResponse:
    """Return an acknowledgement of the WAL that is durable here."""
    durable = acceptor.durable
    assert durable.configuration is not None, f"{durable=}"
    return AppendResponse(
        generation=durable.configuration.generation,
        ballot=durable.ballot,
        flush_lsn=acceptor.flush_lsn,
        durable_commit_lsn=durable.commit_lsn,
        feedback=acceptor.feedback,
    )


def payload_flaw(append: AppendRequest, flaw_of_wal: FlawOfWal | None) -> str | None:
    """Return why not a byte of this append may be written, or None.

    A leader that sends what is no WAL would spoil every log (R25)."""
    payload = append.payload
    if payload and crc_of(payload) != append.crc:
        return f"the payload at {append.begin_lsn} was damaged on its way"
    flaw = None if flaw_of_wal is None else flaw_of_wal(append.begin_lsn, payload)
    return flaw and (
        f"what the proposer sends is no WAL: {flaw}; nothing of it was written. Look for what "
        "connects here as a proposer, and for damage in the primary's pg_wal"
    )


def corrupt_text(flaw: str) -> str:
    """Return the text for bytes that are no record, and that may be committed.

    It names no directory to remove: all copies may have got the same bytes (R25)."""
    return (
        f"{flaw}. The disk is damaged, or what a proposer has sent: restart this safekeeper, which "
        "truncates what no record covers and is not committed. If it is refused again, keep the "
        "directory, and see docs/failover.md#wal-that-is-no-wal"
    )
