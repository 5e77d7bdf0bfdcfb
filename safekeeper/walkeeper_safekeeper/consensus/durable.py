"""The promises of one safekeeper, which it must still know after a power cut.

Replaced as a whole, never edited in place; `control_file` turns it into bytes and back. The WAL
itself is not here: flush_lsn is found by scanning it (docs/protocol.md R9).
"""

from __future__ import annotations

from dataclasses import dataclass

from walkeeper_common.history import NO_BALLOT, Ballot, History
from walkeeper_common.lsn import LSN_MAX, ZERO_LSN, Lsn
from walkeeper_common.quorum import Configuration, LogKind


@dataclass(frozen=True, slots=True)
class Durable:
    """One log's control file.

    acceptor_id, incarnation   our name; the incarnation is random, made at prepare
    log_uuid                   the log's, from the prepare phase of creation on (R17)
    configuration              None between the two phases: no vote before it is known
    ballot                     the greatest ballot promised to (R1)
    history                    may run past the WAL; cut it before use (R3)
    commit_lsn, restart_lsn    lazily written lower bounds of the real ones (R11)
    reached_lsn                the start of the last term whose start our WAL had reached (R9)
    truncating_to              a truncation that has begun and must be finished at start (R7)
    suspect_from               a write or an fsync failed beyond this LSN (R15)
    clean_stop                 no write came after the last fsync
    base_lsn                   where the log of a member that replaced another one starts
    change_round               the greatest round of a change of members promised to
    accepted_round, accepted   the next configuration accepted last, and in which round
    donors                     addresses from which a log that begins late is filled (M5)
    """

    acceptor_id: int
    incarnation: bytes
    log_uuid: bytes
    configuration: Configuration | None = None
    ballot: Ballot = NO_BALLOT
    history: History = ()
    commit_lsn: Lsn = ZERO_LSN
    restart_lsn: Lsn = ZERO_LSN
    reached_lsn: Lsn = ZERO_LSN
    truncating_to: Lsn | None = None
    suspect_from: Lsn | None = None
    clean_stop: bool = False
    base_lsn: Lsn = ZERO_LSN
    change_round: Ballot = NO_BALLOT
    accepted_round: Ballot = NO_BALLOT
    accepted: Configuration | None = None
    donors: tuple[str, ...] = ()

    @property
    def begin_lsn(self) -> Lsn:
        """Where the log begins here."""
        assert self.configuration is not None, f"{self.acceptor_id=}"
        return max(self.configuration.creation_lsn, self.base_lsn)

    @property
    def is_physical(self) -> bool:
        """Return True if the log holds WAL, not decoded changes."""
        return self.configuration is not None and self.configuration.kind is LogKind.PHYSICAL

    @property
    def has_change(self) -> bool:
        """True if a change of members has left a trace here."""
        return bool(self.base_lsn) or self.change_round != NO_BALLOT


def unreached_start(durable: Durable) -> Lsn:
    """Return the first start in the history that our WAL is not marked to have reached."""
    later = (e.start_lsn for e in durable.history if e.start_lsn > durable.reached_lsn)
    return min(later, default=LSN_MAX)
